"""Documents -> 64-bit hashes, and seeded selections by hash.

Input: UTF-8 documents as one array of bytes with offsets. Output: XXH64 of each document, equal to
`xxhash.xxh64(document, seed)`; the function is described at https://github.com/Cyan4973/xxHash (doc/xxhash_spec.md).
A document is selected (for validation, hold-out, samples) by its bytes and the seed alone, so the choice does not
depend on the number of workers, the order of files or restarts, and copies of a document are selected together.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt
from numba import types

from pretok.kernels.compile import BYTES, I64, U8, njit
from pretok.kernels.eight_bytes import load32, load64

P1 = np.uint64(0x9E3779B185EBCA87)
P2 = np.uint64(0xC2B2AE3D27D4EB4F)
P3 = np.uint64(0x165667B19E3779F9)
P4 = np.uint64(0x85EBCA77C2B2AE63)
P5 = np.uint64(0x27D4EB2F165667C5)
"""The primes of XXH64, as its specification numbers them."""


@njit(types.uint64(types.uint64, types.uint64), inline=True)
def rotate_left(x: Any, bits: Any) -> Any:
    """Rotate a 64-bit integer left."""
    return (x << bits) | (x >> (np.uint64(64) - bits))


@njit(types.uint64(types.uint64, types.uint64), inline=True)
def _round(lane: Any, value: Any) -> Any:
    return rotate_left(lane + value * P2, np.uint64(31)) * P1


@njit(types.uint64(BYTES, types.int64, types.int64, types.uint64))
def _stripes(data: Any, start: Any, end: Any, seed: Any) -> Any:
    """Merge XXH64's four lanes over the whole 32-byte stripes of data[start:end] into one integer."""
    # Sums and products wrap around at 64 bits, as the specification wants. The lanes do not depend on each
    # other, so the processor multiplies for several at once.
    a, b, c, d = seed + P1 + P2, seed + P2, seed, seed - P1
    for i in range(start, end - 31, 32):
        a = _round(a, load64(data, i))
        b = _round(b, load64(data, i + 8))
        c = _round(c, load64(data, i + 16))
        d = _round(d, load64(data, i + 24))
    merged = (
        rotate_left(a, np.uint64(1))
        + rotate_left(b, np.uint64(7))
        + rotate_left(c, np.uint64(12))
        + rotate_left(d, np.uint64(18))
    )
    for lane in (a, b, c, d):
        merged = (merged ^ _round(np.uint64(0), lane)) * P1 + P4
    return merged


@njit(types.uint64(BYTES, types.int64, types.int64, types.uint64))
def hash_bytes(data: Any, start: Any, end: Any, seed: Any) -> Any:
    """Return the XXH64 of data[start:end]; no bounds check."""
    length = end - start
    h = _stripes(data, start, end, seed) if length >= 32 else seed + P5
    h += np.uint64(length)
    # What the stripes left, at most 31 bytes.
    i = end - (length & 31)
    while i + 8 <= end:
        h = rotate_left(h ^ _round(np.uint64(0), load64(data, i)), np.uint64(27)) * P1 + P4
        i += 8
    if i + 4 <= end:
        h = rotate_left(h ^ (np.uint64(load32(data, i)) * P1), np.uint64(23)) * P2 + P3
        i += 4
    while i < end:
        h = rotate_left(h ^ (np.uint64(data[i]) * P5), np.uint64(11)) * P1
        i += 1
    # A product moves bits up only: the shifts bring the high ones down.
    h = (h ^ (h >> np.uint64(33))) * P2
    h = (h ^ (h >> np.uint64(29))) * P3
    return h ^ (h >> np.uint64(32))


@njit(types.Array(types.uint64, 1, "C")(U8, I64, types.uint64))
def _hash_documents(data: Any, offsets: Any, seed: Any) -> Any:
    hashes = np.empty(len(offsets) - 1, np.uint64)
    for d in range(len(hashes)):
        hashes[d] = hash_bytes(data.ctypes, offsets[d], offsets[d + 1], seed)
    return hashes


def hash_documents(
    data: npt.NDArray[np.uint8], offsets: npt.NDArray[np.int64], seed: int
) -> npt.NDArray[np.uint64]:
    """Return the XXH64 with `seed` (0 to 2**64 - 1) of the documents data[offsets[d]:offsets[d + 1]], uint64[d]."""
    hashes: npt.NDArray[np.uint64] = _hash_documents(data, offsets, np.uint64(seed))
    return hashes


def select(hashes: npt.NDArray[np.uint64], fraction: Fraction | float) -> npt.NDArray[np.bool_]:
    """Return which hashes are in the lowest `fraction` (0 to 1) of all 64-bit integers, bool[d].

    The threshold is an exact integer, floor(fraction * 2**64); a larger fraction selects a superset.
    """
    # The fraction 1 gives 2**64, which no uint64 holds, so hashes are compared with one less; 0 then needs a
    # case of its own.
    threshold = int(Fraction(fraction) * 2**64)
    if threshold == 0:
        return np.zeros(len(hashes), np.bool_)
    return hashes <= np.uint64(threshold - 1)
