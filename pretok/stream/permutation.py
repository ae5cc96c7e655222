"""Keyed permutations of 0..n-1, row by row, and where epochs are cut: arithmetic that is the same for ever.

Input: indexes, sizes and round keys. Output: their images, and back. A Feistel network with unequal halves over the
smallest 2^b >= n and cycle walking (Black and Rogaway, "Ciphers with arbitrary finite domains", 2002); the round keys
are BLAKE2b of seed, source name and epoch. Backwards: the rounds in reverse, and the walk along the same cycle the
other way.
"""

from __future__ import annotations

import hashlib

import numpy as np
import numpy.typing as npt

from pretok.base.tokens import Ints

UInt64s = npt.NDArray[np.uint64]

ROUNDS = 6
_MULTIPLIERS = (
    np.uint64(0xFF51AFD7ED558CCD),
    np.uint64(0xC4CEB9FE1A85EC53),
)  # of MurmurHash3's 64-bit finalizer
_SHIFT = np.uint64(32)


def round_keys(seed: int, source: str, epoch: int) -> UInt64s:
    """The (ROUNDS,) keys of one epoch's permutation."""
    digest = hashlib.blake2b(f"{seed}\0{source}\0{epoch}".encode(), digest_size=8 * ROUNDS).digest()
    return np.frombuffer(digest, "<u8").astype(np.uint64)


def cut(seed: int, source: str, epoch: int, seq_len: int) -> int:
    """At which token of a source the sequences of an epoch begin, 0 to seq_len - 1."""
    digest = hashlib.blake2b(f"{seed}\0{source}\0{epoch}\0cut".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") % seq_len


def permute(index: Ints, size: Ints, keys: UInt64s) -> Ints:
    """Row by row the image of `index` under a keyed permutation of 0..size-1.

    index, size: (n,) with 0 <= index < size; keys: (n, ROUNDS). Returns (n,).
    """
    return _walk(index, size, keys, range(ROUNDS))


def unpermute(image: Ints, size: Ints, keys: UInt64s) -> Ints:
    """Inverse of `permute`: what is mapped to `image`. Arguments and result alike."""
    return _walk(image, size, keys, range(ROUNDS - 1, -1, -1))


def _walk(index: Ints, size: Ints, keys: UInt64s, rounds: range) -> Ints:
    bits = np.maximum(np.frexp((size - 1).astype(np.float64))[1], 2).astype(np.uint64)
    result = index.copy()
    walking = np.arange(len(index))
    while len(walking):  # each walk ends: its cycle holds the start, which lies inside
        image = _feistel(result[walking].astype(np.uint64), bits[walking], keys[walking], rounds)
        result[walking] = image.astype(np.int64)
        walking = walking[result[walking] >= size[walking]]
    return result


def _feistel(value: UInt64s, bits: UInt64s, keys: UInt64s, rounds: range) -> UInt64s:
    """A permutation of 0..2^bits-1, row by row; the halves have floor(bits / 2) and ceil(bits / 2) bits.

    A round changes one half by the other, so the same rounds backwards undo it: even rounds change the low half.
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
    """A 64-bit hash of a half under a key; its upper bits are the best mixed."""
    mixed: UInt64s = (half ^ key) * _MULTIPLIERS[0]
    mixed ^= mixed >> _SHIFT
    mixed *= _MULTIPLIERS[1]
    return mixed
