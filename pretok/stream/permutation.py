"""Keyed permutations of 0..n-1, row by row, and where epochs are cut; the results must never change.

Input: indices, sizes and round keys. Output: their images, or the inverse. The permutation is a Feistel network with
unequal halves on the smallest 2^b >= n, with cycle walking (Black and Rogaway, "Ciphers with arbitrary finite domains",
2002). The round keys are BLAKE2b of seed, source name and epoch. The inverse runs the rounds in reverse order, and so
walks along the same cycle in the other direction.
"""

from __future__ import annotations

import hashlib
import struct
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from pretok.base.tokens import Ints

UInt64s = npt.NDArray[np.uint64]

ROUNDS = 6
_FIRST, _SECOND = 0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53
"""The multipliers of MurmurHash3's 64-bit finalizer."""
_MULTIPLIERS = np.uint64(_FIRST), np.uint64(_SECOND)
_SHIFT = np.uint64(32)
_WORD = (1 << 64) - 1


@lru_cache(1 << 12)
def key_numbers(seed: int, source: str, epoch: int) -> tuple[int, ...]:
    """Return the ROUNDS round keys of one epoch's permutation."""
    digest = hashlib.blake2b(f"{seed}\0{source}\0{epoch}".encode(), digest_size=8 * ROUNDS).digest()
    return struct.unpack(f"<{ROUNDS}Q", digest)


def round_keys(seed: int, source: str, epoch: int) -> UInt64s:
    """Return `key_numbers` as an array, (ROUNDS,)."""
    return np.array(key_numbers(seed, source, epoch), np.uint64)


@lru_cache(1 << 12)
def cut(seed: int, source: str, epoch: int, seq_len: int) -> int:
    """Return the token of a source at which the sequences of an epoch begin, 0 to seq_len - 1."""
    # A remainder of 64 bits is uniform enough: no value is likelier than another by more than seq_len / 2^64.
    digest = hashlib.blake2b(f"{seed}\0{source}\0{epoch}\0cut".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") % seq_len


def permute(index: Ints, size: Ints, keys: UInt64s) -> Ints:
    """Return the image of each `index` under a keyed permutation of 0..size-1.

    index, size: (n,) with 0 <= index < size; keys: (n, ROUNDS). Returns (n,).
    """
    return _walk(index, size, keys, range(ROUNDS))


def permute_one(index: int, size: int, keys: tuple[int, ...]) -> int:
    """Return what `permute` returns for one index, without the fixed costs of numpy's calls."""
    low_bits = max((size - 1).bit_length(), 2) >> 1
    high_bits = max((size - 1).bit_length(), 2) - low_bits
    while True:
        high, low = index >> low_bits, index & (1 << low_bits) - 1
        for even, odd in zip(keys[::2], keys[1::2], strict=True):
            mixed = (high ^ even) * _FIRST & _WORD
            low ^= ((mixed ^ mixed >> 32) * _SECOND & _WORD) >> 64 - low_bits
            mixed = (low ^ odd) * _FIRST & _WORD
            high ^= ((mixed ^ mixed >> 32) * _SECOND & _WORD) >> 64 - high_bits
        index = high << low_bits | low
        if index < size:
            return index


def unpermute(image: Ints, size: Ints, keys: UInt64s) -> Ints:
    """Return the inverse of `permute`: the index that is mapped to `image`. Same shapes."""
    return _walk(image, size, keys, range(ROUNDS - 1, -1, -1))


def _walk(index: Ints, size: Ints, keys: UInt64s, rounds: range) -> Ints:
    # The exponent of frexp is the bit length of size - 1, exact below 2^53. Each half needs at least one bit.
    bits = np.maximum(np.frexp((size - 1).astype(np.float64))[1], 2).astype(np.uint64)
    result = index.copy()
    walking = np.arange(len(index))
    # Cycle walking: apply the permutation of 0..2^b-1 until the value is below `size`. Every walk ends, as its cycle
    # leads back to the start, which is below `size`. From 3 on 2^b < 2 size, so on average a walk takes below 2 steps.
    while len(walking):
        image = _feistel(result[walking].astype(np.uint64), bits[walking], keys[walking], rounds)
        result[walking] = image.astype(np.int64)
        walking = walking[result[walking] >= size[walking]]
    return result


def _feistel(value: UInt64s, bits: UInt64s, keys: UInt64s, rounds: range) -> UInt64s:
    """Permute 0..2^bits-1, row by row; the halves have floor(bits / 2) and ceil(bits / 2) bits.

    A round changes one half by a hash of the other, so the same round undoes it, and all rounds in reverse order are
    the inverse. Even rounds change the low half. As the halves differ in size, they are not swapped.
    """
    low_bits = bits >> np.uint64(1)
    high_bits = bits - low_bits
    high: UInt64s = value >> low_bits
    low = value ^ (high << low_bits)
    for number in rounds:
        if number % 2:
            high ^= _mix(low, keys[:, number]) >> (np.uint64(64) - high_bits)
        else:
            low ^= _mix(high, keys[:, number]) >> (np.uint64(64) - low_bits)
    high <<= low_bits
    high |= low
    return high


def _mix(half: UInt64s, key: UInt64s) -> UInt64s:
    """Return a 64-bit hash of a half under a key. Callers use its upper bits, which are mixed best."""
    mixed: UInt64s = (half ^ key) * _MULTIPLIERS[0]
    mixed ^= mixed >> _SHIFT
    mixed *= _MULTIPLIERS[1]
    return mixed
