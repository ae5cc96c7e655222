"""Stage 2 of encoding: ids of words -> ids of superwords.

Enters: documents as bytes, their ids by stage 1, the merges of stage 2. Leaves: ids as if all merges had been applied
to segments in order of rank, leftmost first.

A table holds the pairs of stage-2 merges, and the pairs of stage-1 ids that meet inside of some superword. One pass
over the ids finds runs whose neighbours all are in the table and in one segment; most ids are in none, and most of
these a filter of bits, small enough for the nearest cache, tells apart without a look at the table. Merging stays
within a run: its cost is quadratic in the length of short runs, and n log n in that of others.
"""

from __future__ import annotations

import heapq
from typing import Any

import numpy as np
import numpy.typing as npt
from numba import types

from pretok.base.tokens import Ids, Ints
from pretok.kernels.compile import I64, U8, njit
from pretok.kernels.hashing import P1
from pretok.kernels.unicode import class_table
from pretok.tokenizer.segments import joined
from pretok.tokenizer.stages import Stages, begins_word, ends_in_letter

LOW = 0xFFFFFFFF
NEVER = 0x7FFFFFFF
"""Rank of a pair that is no merge. A pair's value is rank * 2**32 + result; results are never 0."""
MEETING = NEVER << 32
"""Value of a pair that meets inside of a superword but is no merge."""
MISSING = MEETING | 1
"""Value of a pair that is not in the table, and of a place where no pair is left."""
FILTER_BITS = 18
"""Binary logarithm of the bits in the filter: 32 KiB, of which 10,000 superwords set 4 %."""
ENDS_IN_LETTER, BEGINS_WORD = 1, 2
"""Traits of tokens. Where a word begins after a letter, the two words are in one segment; any other border of a pair
in the table is looked at in the text."""
SHORT_RUN = 32
"""Up to this length a scan for the lowest rank beats a heap; longer runs are rare in text."""

_SLOTS = types.CPointer(types.int64)
_IDS = types.CPointer(types.uint32)
_I32 = types.Array(types.int32, 1, "C", readonly=True)
_U32 = types.Array(types.uint32, 1, "C", readonly=True)


@njit(types.int64(types.int64, types.int64), inline=True)
def _home(key: Any, mask: Any) -> Any:
    """Slot where the search for a pair begins."""
    return np.int64((np.uint64(key) * P1) >> np.uint64(32)) & mask


@njit(types.int64(types.int64, types.int64, _SLOTS, types.int64), inline=True)
def _value(left: Any, right: Any, slots: Any, mask: Any) -> Any:
    """Value of a pair of ids. A slot is two integers, the key and the value; the value of a free one is 0."""
    key = (left << 32) | right
    at = _home(key, mask)
    while slots[2 * at + 1] != 0:
        if slots[2 * at] == key:
            return slots[2 * at + 1]
        at = (at + 1) & mask
    return np.int64(MISSING)


@njit(types.int64(types.int64, types.int64), inline=True)
def _bit(left: Any, right: Any) -> Any:
    """Number of a pair's bit in the filter."""
    return np.int64((np.uint64((left << 32) | right) * P1) >> np.uint64(64 - FILTER_BITS))


@njit(types.void(I64, I64, types.int64[::1], types.uint8[::1]))
def _fill(keys: Any, values: Any, slots: Any, bits: Any) -> Any:
    """Put distinct pairs in an empty table whose size is a power of two, and in the filter."""
    mask = len(slots) // 2 - 1
    for k in range(len(keys)):
        at = _home(keys[k], mask)
        while slots[2 * at + 1] != 0:
            at = (at + 1) & mask
        slots[2 * at], slots[2 * at + 1] = keys[k], values[k]
        bit = _bit(keys[k] >> 32, keys[k] & LOW)
        bits[bit >> 3] |= 1 << (bit & 7)


@njit(types.int64(_IDS, types.int64, _SLOTS, types.int64, _SLOTS, types.int64))
def _merge_short(run: Any, first: Any, values: Any, size: Any, slots: Any, mask: Any) -> Any:
    """Merge run[first:first + size] in place; its new length. values[k] is that of the pair which begins at k."""
    while size > 1:
        best = 0
        for k in range(1, size - 1):
            if values[k] >> 32 < values[best] >> 32:
                best = k
        if values[best] >> 32 == NEVER:
            break
        run[first + best] = np.uint32(values[best] & LOW)
        size -= 1
        for k in range(best + 1, size):
            run[first + k] = run[first + k + 1]
            values[k - 1] = values[k]
        if best > 0:
            values[best - 1] = _value(
                np.int64(run[first + best - 1]), np.int64(run[first + best]), slots, mask
            )
        if best + 1 < size:
            values[best] = _value(np.int64(run[first + best]), np.int64(run[first + best + 1]), slots, mask)
    return size


@njit(types.int64(_IDS, types.int64, _SLOTS, types.int64, _SLOTS, types.int64))
def _merge_long(run: Any, first: Any, values: Any, size: Any, slots: Any, mask: Any) -> Any:
    """As `_merge_short`, with a heap of (rank, place) and links between the places that are left."""
    following = np.arange(1, size + 1)
    previous = np.arange(-1, size - 1)
    values[size - 1] = MISSING
    heap = [((values[k] >> 32) << 32) | k for k in range(size - 1)]
    heapq.heapify(heap)
    while heap:
        item = heapq.heappop(heap)
        if item >> 32 == NEVER:
            break
        place = item & LOW
        if values[place] >> 32 != item >> 32:
            continue  # one of the two has been merged since
        run[first + place] = np.uint32(values[place] & LOW)
        values[following[place]] = MISSING
        following[place] = following[following[place]]
        if following[place] < size:
            previous[following[place]] = place
        for left in (previous[place], place):
            if left < 0:
                continue
            right = following[left]
            values[left] = MISSING
            if right < size:
                values[left] = _value(np.int64(run[first + left]), np.int64(run[first + right]), slots, mask)
                heapq.heappush(heap, ((values[left] >> 32) << 32) | left)
    kept = 0
    place = 0
    while place < size:
        run[first + kept] = run[first + place]
        kept += 1
        place = following[place]
    return kept


@njit(
    types.int64(U8, I64, _U32, I64, _I32, U8, U8, I64, U8, types.int64, types.uint32[::1], types.int64[::1])
)
def _join(
    data: Any,
    offsets: Any,
    ids: Any,
    borders: Any,
    lengths: Any,
    bits: Any,
    traits: Any,
    slots: Any,
    table: Any,
    separators: Any,
    out: Any,
    out_borders: Any,
) -> Any:
    """Joins ids[borders[d]:borders[d + 1]] of each document into `out`; the number of ids written."""
    longest = 1
    for d in range(len(offsets) - 1):
        longest = max(longest, borders[d + 1] - borders[d])
    values = np.empty(longest, np.int64)
    mask = len(slots) // 2 - 1
    text, classes, pairs, written = data.ctypes, table.ctypes, slots.ctypes, out.ctypes
    n = 0
    for d in range(len(offsets) - 1):
        i, stop = borders[d], borders[d + 1]
        counted, position = i, offsets[d]  # `position` is the byte where token `counted` begins
        while i < stop:
            out[n] = ids[i]
            after = i + 1
            while after < stop:
                left, right = np.int64(ids[after - 1]), np.int64(ids[after])
                bit = _bit(left, right)
                if bits[bit >> 3] >> (bit & 7) & 1 == 0:
                    break
                value = _value(left, right, pairs, mask)
                if value == MISSING:
                    break
                if traits[left] & ENDS_IN_LETTER == 0 or traits[right] & BEGINS_WORD == 0:
                    while counted < after:
                        position += lengths[ids[counted]]
                        counted += 1
                    if not joined(text, offsets[d], position, offsets[d + 1], classes, separators):
                        break
                values[after - 1 - i] = value
                out[n + after - i] = ids[after]
                after += 1
            size = after - i
            if size == 2:  # most runs
                if values[0] >> 32 != NEVER:
                    out[n] = values[0] & LOW
                    size = 1
            elif size > SHORT_RUN:
                size = _merge_long(written, n, values.ctypes, size, pairs, mask)
            elif size > 1:
                size = _merge_short(written, n, values.ctypes, size, pairs, mask)
            n += size
            i = after
        out_borders[d + 1] = n
    return n


class Joiner:
    """Stage 2 of one vocabulary. Memory: about 60 bytes a superword and 4 an entry of stage 1."""

    def __init__(self, stages: Stages) -> None:
        self._separators = stages.separators
        self._lengths = np.zeros(max(stages.tokens) + 1, np.int32)
        self._traits = np.zeros(len(self._lengths), np.uint8)
        for i, token in stages.tokens.items():
            self._lengths[i] = len(token)
            self._traits[i] = ENDS_IN_LETTER * ends_in_letter(token) + BEGINS_WORD * begins_word(
                token, stages.separators
            )
        first_last: dict[int, tuple[int, int]] = {}
        values: dict[int, int] = {}
        for rank, (left, right, result) in enumerate(stages.merges):
            head, last = first_last.get(left, (left, left))
            begin, tail = first_last.get(right, (right, right))
            first_last[result] = head, tail
            values.setdefault((last << 32) | begin, MEETING)
            values[(left << 32) | right] = (rank << 32) | result
        capacity = 1 << (2 * len(values) + 1).bit_length()
        self._slots = np.zeros(2 * capacity, np.int64)
        self._bits = np.zeros(1 << FILTER_BITS >> 3, np.uint8)
        keys, contents = np.array(list(values), np.int64), np.array(list(values.values()), np.int64)
        _fill(keys, contents, self._slots, self._bits)

    def join(self, data: npt.NDArray[np.uint8], offsets: Ints, ids: Ids, borders: Ints) -> tuple[Ids, Ints]:
        """ids (n,) uint32 of the documents data[offsets[d]:offsets[d + 1]] by stage 1, document d at
        ids[borders[d]:borders[d + 1]], borders[0] being 0 -> ids and borders after stage 2."""
        out = np.empty(len(ids), np.uint32)
        out_borders = np.zeros(len(borders), np.int64)
        written = _join(
            data, offsets, ids, borders, self._lengths, self._bits, self._traits, self._slots, class_table(),
            self._separators, out, out_borders,
        )  # fmt: skip
        return out[:written], out_borders
