"""The pairs of superwords, and runs of ids merged by them.

Enters: pairs with their values, then a run of ids and the values of its pairs. Leaves: the run as if all merges had
been applied in order of rank, leftmost first. Time is quadratic in the length of short runs, n log n in that of others.

A pair's value is rank * 2**32 + result; results are never 0.
"""

from __future__ import annotations

import heapq
from typing import Any

import numpy as np
from numba import types

from pretok.kernels.compile import BYTES, I64, njit
from pretok.kernels.hashing import P1

LOW = 0xFFFFFFFF
NEVER = 0x7FFFFFFF
"""Rank of a pair that is no merge."""
MEETING = NEVER << 32
"""Value of a pair that meets inside of a superword but is no merge."""
ASK = 1 << 31
"""Bit of the value of a pair of stage 1 that does not itself tell whether one segment holds both."""
RESULT = ASK - 1
MISSING = MEETING | 1
"""Value of a pair that is not in the table, and of a place where no pair is left."""
FILTER_BITS = 19
"""Binary logarithm of the bits in the filter: 64 KiB, of which 10,000 superwords set 2 %."""

INTS = types.CPointer(types.int64)
IDS = types.CPointer(types.uint32)
_RUN = types.int64(IDS, types.int64, INTS, types.int64, types.int64, BYTES, INTS, types.int64)


@njit(types.int64(types.int64, types.int64), inline=True)
def _home(key: Any, mask: Any) -> Any:
    """Slot where the search for a pair begins."""
    return np.int64((np.uint64(key) * P1) >> np.uint64(32)) & mask


@njit(types.int64(types.int64, types.int64, INTS, types.int64), inline=True)
def value_of(left: Any, right: Any, slots: Any, mask: Any) -> Any:
    """Value of a pair of ids. A slot is two integers, the key and the value; the value of a free one is 0."""
    key = (left << 32) | right
    at = _home(key, mask)
    while slots[2 * at + 1] != 0:
        if slots[2 * at] == key:
            return slots[2 * at + 1]
        at = (at + 1) & mask
    return np.int64(MISSING)


@njit(types.int64(types.int64, types.int64), inline=True)
def filter_bit(left: Any, right: Any) -> Any:
    """Number of a pair's bit in the filter."""
    return np.int64((np.uint64((left << 32) | right) * P1) >> np.uint64(64 - FILTER_BITS))


@njit(types.void(I64, I64, types.int64[::1], types.uint8[::1]))
def fill_table(keys: Any, values: Any, slots: Any, bits: Any) -> Any:
    """Put distinct pairs in an empty table whose size is a power of two, and in the filter."""
    mask = len(slots) // 2 - 1
    for k in range(len(keys)):
        at = _home(keys[k], mask)
        while slots[2 * at + 1] != 0:
            at = (at + 1) & mask
        slots[2 * at], slots[2 * at + 1] = keys[k], values[k]
        bit = filter_bit(keys[k] >> 32, keys[k] & LOW)
        bits[bit >> 3] |= 1 << (bit & 7)


@njit(types.int64(types.int64, types.int64, BYTES, INTS, types.int64), inline=True)
def _merged_value(left: Any, right: Any, bits: Any, slots: Any, mask: Any) -> Any:
    """`value_of` of a pair of which one is a superword: most are not in the table, as the filter knows."""
    bit = filter_bit(left, right)
    if bits[bit >> 3] >> (bit & 7) & 1 == 0:
        return np.int64(MISSING)
    return value_of(left, right, slots, mask)


@njit(types.int64(IDS, types.int64, INTS, types.int64, BYTES, INTS, types.int64), inline=True)
def merge_three(run: Any, first: Any, values: Any, at: Any, bits: Any, slots: Any, mask: Any) -> Any:
    """`merge_short` of three ids, which most runs are that it would have to do with."""
    left, right = values[at], values[at + 1]
    if right >> 32 < left >> 32:
        run[first + 1] = np.uint32(right & RESULT)
    elif left >> 32 != NEVER:
        run[first] = np.uint32(left & RESULT)
        run[first + 1] = run[first + 2]
    else:
        return 3
    value = _merged_value(np.int64(run[first]), np.int64(run[first + 1]), bits, slots, mask)
    if value >> 32 == NEVER:
        return 2
    run[first] = np.uint32(value & RESULT)
    return 1


@njit(_RUN)
def merge_short(
    run: Any, first: Any, values: Any, at: Any, size: Any, bits: Any, slots: Any, mask: Any
) -> Any:
    """Merge run[first:first + size] in place; its new length. values[at + k] is that of the pair which begins at k."""
    while size > 1:
        best = 0
        for k in range(1, size - 1):
            if values[at + k] >> 32 < values[at + best] >> 32:
                best = k
        if values[at + best] >> 32 == NEVER:
            break
        run[first + best] = np.uint32(values[at + best] & RESULT)
        size -= 1
        for k in range(best + 1, size):
            run[first + k] = run[first + k + 1]
            values[at + k - 1] = values[at + k]
        for k in range(max(best - 1, 0), min(best + 1, size - 1)):
            values[at + k] = _merged_value(
                np.int64(run[first + k]), np.int64(run[first + k + 1]), bits, slots, mask
            )
    return size


@njit(_RUN)
def merge_long(run: Any, first: Any, pairs: Any, at: Any, size: Any, bits: Any, slots: Any, mask: Any) -> Any:
    """As `merge_short`, with a heap of (rank, place) and links between the places that are left."""
    following = np.arange(1, size + 1)
    previous = np.arange(-1, size - 1)
    values = np.full(size, MISSING)
    for k in range(size - 1):
        values[k] = pairs[at + k]
    heap = [((values[k] >> 32) << 32) | k for k in range(size - 1)]
    heapq.heapify(heap)
    while heap:
        item = heapq.heappop(heap)
        if item >> 32 == NEVER:
            break
        place = item & LOW
        if values[place] >> 32 != item >> 32:
            continue  # one of the two has been merged since
        run[first + place] = np.uint32(values[place] & RESULT)
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
                values[left] = _merged_value(
                    np.int64(run[first + left]), np.int64(run[first + right]), bits, slots, mask
                )
                heapq.heappush(heap, ((values[left] >> 32) << 32) | left)
    kept = 0
    place = 0
    while place < size:
        run[first + kept] = run[first + place]
        kept += 1
        place = following[place]
    return kept
