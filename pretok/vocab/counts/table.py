"""Hash table of words in memory: documents or counted words -> distinct words with two sums each.

Input: UTF-8 documents, some of them held out of training; or words with two numbers each. Output: `Words` with the sums
of all that was added.

A slot is 32 bytes: a key of two integers and the two sums (of documents, the training and the held-out count). A word
of up to 15 bytes is its own key, so a look-up touches one slot. A longer word has its XXH64 and its place in a
pool of bytes as key, and is compared byte by byte. Either way, only words of equal bytes are equal.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from numba import types

from pretok.base.tokens import Bytes, Ints
from pretok.kernels.compile import BYTES, I64, U8, njit
from pretok.kernels.eight_bytes import load64, prefetch
from pretok.kernels.hashing import P1, P2, P3, hash_bytes, rotate_left
from pretok.kernels.pretokenize import code_of, next_word
from pretok.kernels.unicode import class_table
from pretok.vocab.counts.buckets import Words

SHORT = 15
"""Words of at most so many bytes are kept in the table itself."""
_LONG = np.uint64(0xFF << 56)
"""Highest byte of the second key integer of a longer word. A short word has its size there, at most SHORT."""
_AHEAD = 32
"""Words that are scanned before the first of them is counted."""
_HEADER = 8
"""Bytes before a word in the pool: its length."""

_SLOTS = types.Array(types.uint64, 1, "C")
"""Four integers a slot, one slot after the other."""
_SLOT_BYTES = 32
_POOL = types.Array(types.uint8, 1, "C")
_STATE = types.Array(types.int64, 1, "C")
_INTS = types.CPointer(types.int64)
_TABLE = types.Tuple((types.CPointer(types.uint64), types.int64, BYTES, _INTS))
"""(slots, their number of integers less one, pool, state): pointers, as arrays would be reference-counted at every
word."""
_DOCUMENT, _POSITION, _USED, _BYTES, _POOLED = range(5)
"""Fields of the state array: next document; next byte in it, or -1; slots in use; bytes of all words; bytes of the pool
in use."""
_ONE_WORD = -1
"""In the place of the code of a pattern: each document is a word."""


@njit(types.UniTuple(types.uint64, 2)(BYTES, types.int64, types.int64, types.int64), inline=True)
def short_key(data: Any, start: Any, size: Any, limit: Any) -> Any:
    """Return the bytes of a word of 1 to SHORT bytes as two integers, the size in the highest byte of the second.

    Nothing at or after data[limit] is read.
    """
    top = np.uint64(size) << np.uint64(56)
    if size > 8:
        # The second load ends where the word ends. The bytes that the first one has already are shifted out.
        spare = np.uint64(8 * (16 - size))
        return load64(data, start), (load64(data, start + size - 8) >> spare) | top
    if start + 8 <= limit:
        # This load may take bytes after the word, within `limit`: shifting there and back clears them.
        spare = np.uint64(8 * (8 - size))
        return (load64(data, start) << spare) >> spare, top
    # Only the last words of the data come here.
    low = np.uint64(0)
    for k in range(size):
        low |= np.uint64(data[start + k]) << np.uint64(8 * k)
    return low, top


@njit(types.int64(types.uint64, types.uint64), inline=True)
def _home(low: Any, high: Any) -> Any:
    """Return where the search for a key begins, before the mask of the table's size; not negative."""
    # A long word's `low` is a hash already.
    h = low
    if high < _LONG:
        h = (low ^ rotate_left(high * P2, np.uint64(31))) * P1
        h = (h ^ (h >> np.uint64(32))) * P3
    return np.int64((h ^ (h >> np.uint64(29))) >> np.uint64(1))


@njit(types.boolean(BYTES, types.int64, types.int64, BYTES, types.int64))
def _same(data: Any, start: Any, size: Any, pool: Any, at: Any) -> Any:
    """Return whether the word at `at` of the pool is data[start:start + size]."""
    if np.int64(load64(pool, at)) != size:
        return False
    for k in range(size):
        if pool[at + _HEADER + k] != data[start + k]:
            return False
    return True


@njit(types.void(BYTES, types.int64, types.int64, BYTES, _INTS))
def _keep(data: Any, start: Any, size: Any, pool: Any, state: Any) -> Any:
    """Append a word to the pool."""
    # `WordTable._add` has made room for the words of all its documents.
    at = state[_POOLED]
    for k in range(_HEADER):
        pool[at + k] = (size >> (8 * k)) & 0xFF
    for k in range(size):
        pool[at + _HEADER + k] = data[start + k]
    state[_POOLED] = at + _HEADER + size


@njit(types.UniTuple(types.uint64, 2)(BYTES, types.int64, types.int64, types.int64), inline=True)
def _key(data: Any, start: Any, size: Any, limit: Any) -> Any:
    """Return the key of the word data[start:start + size]. Nothing at or after data[limit] is read."""
    if size > SHORT:
        return hash_bytes(data, start, start + size, np.uint64(0)), _LONG
    return short_key(data, start, size, limit)


@njit(types.int64(types.uint64, types.uint64, BYTES, types.int64, types.int64, _TABLE))
def _find(low: Any, high: Any, data: Any, start: Any, size: Any, table: Any) -> Any:
    """Return where in the slots that of the word data[start:start + size] begins. A new word gets a free slot.

    low, high: its key.
    """
    slots, mask, pool, state = table
    long = size > SHORT
    # The product may wrap around: only its low bits stay, and they are those of a multiple of 4.
    at = 4 * _home(low, high) & mask
    # `_add` keeps half of the slots free, so the search ends.
    while slots[at + 1] != 0:
        if slots[at] == low:
            if not long:
                if slots[at + 1] == high:
                    return at
            # The first eight bytes of a short word may equal the hash of a long one.
            elif slots[at + 1] >= _LONG and _same(data, start, size, pool, np.int64(slots[at + 1] & ~_LONG)):
                return at
        at = (at + 4) & mask
    if long:
        # Its place in the pool is in the 56 bits below, for `_same` and `_extract`.
        high |= np.uint64(state[_POOLED])
        _keep(data, start, size, pool, state)
    slots[at], slots[at + 1] = low, high
    state[_USED] += 1
    state[_BYTES] += size
    return at


@njit(types.boolean(U8, I64, I64, I64, U8, types.int64, types.Tuple((_SLOTS, _POOL, _STATE))))
def _add(data: Any, offsets: Any, first: Any, second: Any, classes: Any, code: Any, table: Any) -> Any:
    """Add first[d] and second[d] for each word of document d, from the position in `state` on.

    Returns False if the table must grow first.
    """
    slots, pool, state = table
    mask = len(slots) - 1
    text, of_points, words = data.ctypes, classes.ctypes, slots.ctypes
    pointers = words, mask, pool.ctypes, state.ctypes
    starts = np.empty(_AHEAD + 1, np.int64)
    lows, highs = np.empty(_AHEAD, np.uint64), np.empty(_AHEAD, np.uint64)
    for d in range(state[_DOCUMENT], len(offsets) - 1):
        i, end = offsets[d], offsets[d + 1]
        counted, apart = np.uint64(first[d]), np.uint64(second[d])
        if state[_POSITION] >= 0:
            i = state[_POSITION]
            state[_POSITION] = -1
        while i < end:
            # Only between two blocks: then `state` says where to go on and no word counts twice, and within a
            # block the slots stay where they were prefetched.
            if 8 * (state[_USED] + _AHEAD) > len(slots):  # more than half of the slots would be in use
                state[_DOCUMENT], state[_POSITION] = d, i
                return False
            n = 0
            while n < _AHEAD and i < end:
                starts[n] = i
                i = end if code == _ONE_WORD else next_word(text, i, end, of_points, code)
                lows[n], highs[n] = _key(text, starts[n], i - starts[n], len(data))
                prefetch(words, 4 * _home(lows[n], highs[n]) & mask)
                n += 1
            # A word ends where the next one begins, as words leave nothing out; the last one ends at i.
            starts[n] = i
            for k in range(n):
                size = starts[k + 1] - starts[k]
                slot = _find(lows[k], highs[k], text, starts[k], size, pointers)
                slots[slot + 2] += counted
                if apart:  # of most documents it is 0: not to write it saves 3 % of the time
                    slots[slot + 3] += apart
    return True


@njit(types.void(_SLOTS, _SLOTS))
def _rehash(old: Any, new: Any) -> Any:
    """Move every used slot into a larger table."""
    mask = len(new) - 1
    for k in range(0, len(old), 4):
        if old[k + 1] != 0:
            at = 4 * _home(old[k], old[k + 1]) & mask
            # All keys of a table differ, so the first free slot is right, and no word is compared.
            while new[at + 1] != 0:
                at = (at + 4) & mask
            for field in range(4):
                new[at + field] = old[k + field]


@njit(types.void(_SLOTS, _POOL, _POOL, *3 * [_STATE]))
def _extract(slots: Any, pool: Any, data: Any, offsets: Any, first: Any, second: Any) -> Any:
    """Write all words and their sums out, in the order of the slots."""
    w, size = 0, 0
    for k in range(0, len(slots), 4):
        high = slots[k + 1]
        if high == 0:
            continue
        at = np.int64(high & ~_LONG)
        long = high >= _LONG
        length: Any = np.int64(load64(pool.ctypes, at)) if long else np.int64(high >> np.uint64(56))
        for b in range(length):
            if long:
                data[size + b] = pool[at + _HEADER + b]
            else:
                data[size + b] = slots[k + (b >> 3)] >> np.uint64(8 * (b & 7)) & np.uint64(0xFF)
        size += length
        offsets[w + 1] = size
        first[w] = slots[k + 2]
        second[w] = slots[k + 3]
        w += 1


class WordTable:
    """Growing table of words; see the module. Not for use by several threads at once."""

    def __init__(self) -> None:
        self._slots = np.zeros(4 << 12, np.uint64)
        self._pool = np.empty(1 << 16, np.uint8)
        self._state = np.zeros(5, np.int64)

    def clear(self) -> None:
        """Forget all words, but keep the memory."""
        # Only slots refer to the pool: without them its bytes are free.
        self._slots[:] = 0
        self._state[:] = 0

    def __len__(self) -> int:
        return int(self._state[_USED])

    @property
    def nbytes(self) -> int:
        """Bytes of memory that its words may take: a table is a quarter to half full, a pool half full to full."""
        return 4 * _SLOT_BYTES * len(self) + 2 * int(self._state[_POOLED])

    def add_documents(self, data: Bytes, offsets: Ints, heldout: npt.NDArray[np.bool_], pattern: str) -> None:
        """Count the words of the documents data[offsets[d]:offsets[d + 1]] (valid UTF-8) by a pattern of PATTERNS.

        heldout: (documents,) bool, those whose words go to the second sum.
        """
        second = heldout.astype(np.int64)
        self._add(data, offsets, 1 - second, second, code_of(pattern))

    def add_words(self, words: Words) -> None:
        """Add the sums of counted words."""
        self._add(words.data, words.offsets, words.counts, words.others, _ONE_WORD)

    def _add(self, data: Bytes, offsets: Ints, first: Ints, second: Ints, code: int) -> None:
        pooled = int(self._state[_POOLED])
        # A word in the pool takes at most half more than in the text.
        if (needed := pooled + 3 * int(offsets[-1] - offsets[0]) // 2) > len(self._pool):
            pool = np.empty(max(2 * len(self._pool), needed), np.uint8)
            pool[:pooled] = self._pool[:pooled]
            self._pool = pool
        self._state[[_DOCUMENT, _POSITION]] = 0, -1
        columns = data, offsets, first, second, class_table(), code
        # The kernel cannot replace an array that its caller holds: it returns, and continues where it
        # stopped.
        while not _add(*columns, (self._slots, self._pool, self._state)):
            slots = np.zeros(2 * len(self._slots), np.uint64)
            _rehash(self._slots, slots)
            self._slots = slots

    def words(self) -> Words:
        """Return all words, in the order of their slots."""
        data = np.empty(self._state[_BYTES], np.uint8)
        offsets = np.zeros(len(self) + 1, np.int64)
        first, second = np.empty(len(self), np.int64), np.empty(len(self), np.int64)
        _extract(self._slots, self._pool, data, offsets, first, second)
        return Words(data, offsets, first, second)
