"""Texts -> ids of a superword vocabulary: words first, then superwords.

Input: batches of texts and a tokenizer.json that joins words. Output: ids as if all merges had been applied to
segments in order of rank, leftmost first. This is what `pretok.tokenizer` asks for, see `reference.superwords_for`.

Stage 1 is gigatoken's. Stage 2 has a table of the pairs of its merges, and of the pairs of stage-1 ids that meet inside
of some superword. Runs are ids whose neighbours all are in the table and in one segment. No processor foresees where
one begins and how long it is, so a document is gone over four times, by loops with few branches or none: a filter of
bits, small enough for a cache near the core, leaves a quarter of the pairs; the table leaves those that meet; each run
of these is merged where it stands, in time quadratic in the length of short runs and n log n in that of others; and
what was merged away is taken out. One pass with branches at every id took twice as long.

A pair's value is rank * 2**32 + result; results are never 0.
"""

from __future__ import annotations

import heapq
import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
from numba import types

from pretok.base.tokens import Bytes, Ids, Ints
from pretok.kernels.compile import BYTES, I64, U8, njit
from pretok.kernels.hashing import P1
from pretok.kernels.unicode import class_table
from pretok.read.batches import buffers
from pretok.superwords.segments import COMMA, FLAGS_OF, joined, segment_ends
from pretok.superwords.stages import begins_word, letter_first, letter_last, split_stages
from pretok.tokenizer.encoder import FastEngine
from pretok.tokenizer.tokenizer_file import decoded

GONE = 0xFFFFFFFF
"""Stands for an id that was merged into the one before."""
LETTER_END, OTHER_END, WORD_START, SPACE_START, OTHER_START, LONE_COMMA = 1, 2, 4, 8, 16, 32
"""Traits of tokens: the last character is a letter, is another one; it begins with a separator and a letter, with a
space and a letter, can begin with neither space and letter; it is a comma. Of a cut character nothing is known."""
SHORT_RUN = 32
"""Up to this length a scan for the lowest rank beats a heap; longer runs are rare in text."""

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

_I32 = types.Array(types.int32, 1, "C", readonly=True)
_U32 = types.Array(types.uint32, 1, "C", readonly=True)
INTS = types.CPointer(types.int64)
IDS = types.CPointer(types.uint32)
_RUN = types.int64(IDS, types.int64, INTS, types.int64, types.int64, BYTES, INTS, types.int64)


def cutter(pattern: str) -> Callable[[Bytes], Ints]:
    """What finds the ends of segments in one document, for a pattern of FLAGS_OF."""
    return lambda data: segment_ends(data, FLAGS_OF[pattern])


class SuperwordEngine:
    """One superword vocabulary. Memory, beside that of stage 1: about 60 bytes a superword and 5 an entry of stage 1.

    Raises ValueError for a tokenizer.json that joins words, but not in two stages or with words that gigatoken does not
    know.
    """

    def __init__(self, tokenizer_json: str) -> None:
        stages = split_stages(decoded(tokenizer_json))
        self._words = FastEngine(json.dumps(stages.first))
        self._separators = stages.separators
        self._lengths = np.zeros(max(stages.tokens) + 1, np.int32)
        self._traits = np.zeros(len(self._lengths), np.uint8)
        for i, token in stages.tokens.items():
            self._lengths[i] = len(token)
            self._traits[i] = _traits(token, stages.separators)
        first_last: dict[int, tuple[int, int]] = {}
        values: dict[int, int] = {}
        for rank, (left, right, result) in enumerate(stages.merges):
            head, last = first_last.get(left, (left, left))
            begin, tail = first_last.get(right, (right, right))
            first_last[result] = head, tail
            values.setdefault((last << 32) | begin, MEETING | self._ask(last, begin))
            ask = self._ask(left, right) if (left, right) == (last, begin) else 0
            values[(left << 32) | right] = (rank << 32) | ask | result
        capacity = 1 << (2 * len(values) + 1).bit_length()
        self._slots = np.zeros(2 * capacity, np.int64)
        self._bits = np.zeros(1 << FILTER_BITS >> 3, np.uint8)
        keys, contents = np.array(list(values), np.int64), np.array(list(values.values()), np.int64)
        _fill_table(keys, contents, self._slots, self._bits)

    def _ask(self, left: int, right: int) -> int:
        """ASK where a pair of stage 1 needs it."""
        whole = self._traits[left] & LETTER_END and self._traits[right] & WORD_START
        return 0 if whole else ASK

    def encode(self, texts: pa.LargeStringArray) -> tuple[Ids, Ints]:
        """(ids of all documents in a row, offsets (documents + 1,))."""
        data, offsets = buffers(texts)
        ids, borders = self._words.encode(texts)
        out = np.empty(len(ids), np.uint32)
        out_borders = np.zeros(len(borders), np.int64)
        written = _join(
            data, offsets, ids, borders, self._lengths, self._bits, self._traits, self._slots, class_table(),
            self._separators, out, out_borders,
        )  # fmt: skip
        return out[:written], out_borders


def _traits(token: bytes, separators: int) -> int:
    """What a token tells of the borders on both sides."""
    last = letter_last(token)
    found = 0 if last is None else LETTER_END if last else OTHER_END
    if token[:1] != b" ":
        found |= OTHER_START
        if begins_word(token, separators):
            found |= WORD_START
    elif (second := letter_first(token[1:])) is not None:
        found |= WORD_START | SPACE_START if second else OTHER_START
    if token == b"," and separators & COMMA:
        found |= LONE_COMMA
    return found


@njit(types.int64(IDS, types.int64, types.int64, IDS, BYTES, INTS), inline=True)
def _look(ids: Any, start: Any, stop: Any, out: Any, bits: Any, places: Any) -> Any:
    """Copies ids[start:stop] to `out`, and the second place of every pair that the filter lets pass to `places`,
    counted from `start`; how many these are."""
    count = 0
    left = np.int64(ids[start])
    out[start] = ids[start]
    for i in range(start + 1, stop):
        right = np.int64(ids[i])
        out[i] = ids[i]
        bit = _filter_bit(left, right)
        places[count] = i - start
        count += np.int64(bits[bit >> 3]) >> (bit & 7) & 1
        left = right
    return count


@njit(types.int64(IDS, types.int64, types.int64, types.int64, BYTES), inline=True)
def _tells(ids: Any, start: Any, stop: Any, i: Any, traits: Any) -> Any:
    """Whether the border before ids[i] is in a segment, as the tokens around it tell: 1, 0, or -1 where they do not."""
    left, right = traits[ids[i - 1]], traits[ids[i]]
    if left & LONE_COMMA != 0 and right & SPACE_START != 0 and i - 2 >= start:
        before = traits[ids[i - 2]]
        if before & (LETTER_END | OTHER_END) != 0:
            return np.int64(before & LETTER_END != 0)
    elif left & LETTER_END != 0 and right & LONE_COMMA != 0 and i + 1 < stop:
        after = traits[ids[i + 1]]
        if after & (SPACE_START | OTHER_START) != 0:
            return np.int64(after & SPACE_START != 0)
    return np.int64(-1)


@njit(
    types.int64(
        BYTES, types.int64, types.int64, IDS, types.int64, types.int64, types.int64, types.CPointer(types.int32), BYTES,
        INTS, types.int64, BYTES, types.int64, INTS, INTS,
    ),
    inline=True,
)  # fmt: skip
def _meet(
    data: Any,
    begin: Any,
    end: Any,
    ids: Any,
    start: Any,
    stop: Any,
    count: Any,
    lengths: Any,
    traits: Any,
    slots: Any,
    mask: Any,
    classes: Any,
    separators: Any,
    places: Any,
    values: Any,
) -> Any:
    """Keeps of `places` those of pairs that are in the table and in one segment; puts the pairs' values in `values`;
    how many these are. The document is data[begin:end] and ids[start:stop]."""
    kept = 0
    counted, position = start, begin  # `position` is the byte where token `counted` begins
    for k in range(count):
        place = places[k]
        i = start + place
        value = _value_of(np.int64(ids[i - 1]), np.int64(ids[i]), slots, mask)
        if value & ASK != 0:
            told = _tells(ids, start, stop, i, traits)
            if told < 0:
                while counted < i:
                    position += lengths[ids[counted]]
                    counted += 1
                told = np.int64(joined(data, begin, position, end, classes, separators))
            value = value - ASK if told == 1 else np.int64(MISSING)
        places[kept] = place
        values[kept] = value
        kept += value != MISSING
    return kept


@njit(types.void(IDS, types.int64, types.int64, BYTES, INTS, types.int64, INTS, INTS), inline=True)
def _merge(
    ids: Any, start: Any, count: Any, bits: Any, slots: Any, mask: Any, places: Any, values: Any
) -> None:
    """Merges each run of neighbouring places where it stands, GONE at its end for every id that it is shorter."""
    at = 0
    while at < count:
        first = start + places[at] - 1
        pairs = 1
        while at + pairs < count and places[at + pairs] == places[at] + pairs:
            pairs += 1
        if pairs == 1:  # most runs
            if values[at] >> 32 != NEVER:
                ids[first] = np.uint32(values[at] & RESULT)
                ids[first + 1] = GONE
        else:
            if pairs == 2:
                size = _merge_three(ids, first, values, at, bits, slots, mask)
            elif pairs < SHORT_RUN:
                size = _merge_short(ids, first, values, at, pairs + 1, bits, slots, mask)
            else:
                size = _merge_long(ids, first, values, at, pairs + 1, bits, slots, mask)
            for i in range(first + size, first + pairs + 1):
                ids[i] = GONE
        at += pairs


@njit(types.int64(IDS, types.int64, types.int64, types.int64), inline=True)
def _take_out(ids: Any, start: Any, stop: Any, n: Any) -> Any:
    """Moves what is not GONE of ids[start:stop] to ids[n:]; where that ends."""
    for i in range(start, stop):
        one = ids[i]
        ids[n] = one
        n += np.int64(one != GONE)
    return n


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
    place_list, value_list = np.empty(longest, np.int64), np.empty(longest, np.int64)
    places, values = place_list.ctypes, value_list.ctypes
    mask = len(slots) // 2 - 1
    read, written, filtered, pairs = ids.ctypes, out.ctypes, bits.ctypes, slots.ctypes
    n = 0
    for d in range(len(offsets) - 1):
        start, stop = borders[d], borders[d + 1]
        if start < stop:
            count = _look(read, start, stop, written, filtered, places)
            count = _meet(
                data.ctypes, offsets[d], offsets[d + 1], read, start, stop, count, lengths.ctypes,
                traits.ctypes, pairs, mask, table.ctypes, separators, places, values,
            )  # fmt: skip
            _merge(written, start, count, filtered, pairs, mask, places, values)
            n = _take_out(written, start, stop, n)
        out_borders[d + 1] = n
    return n


@njit(types.int64(types.int64, types.int64), inline=True)
def _home(key: Any, mask: Any) -> Any:
    """Slot where the search for a pair begins."""
    return np.int64((np.uint64(key) * P1) >> np.uint64(32)) & mask


@njit(types.int64(types.int64, types.int64, INTS, types.int64), inline=True)
def _value_of(left: Any, right: Any, slots: Any, mask: Any) -> Any:
    """Value of a pair of ids. A slot is two integers, the key and the value; the value of a free one is 0."""
    key = (left << 32) | right
    at = _home(key, mask)
    while slots[2 * at + 1] != 0:
        if slots[2 * at] == key:
            return slots[2 * at + 1]
        at = (at + 1) & mask
    return np.int64(MISSING)


@njit(types.int64(types.int64, types.int64), inline=True)
def _filter_bit(left: Any, right: Any) -> Any:
    """Number of a pair's bit in the filter."""
    return np.int64((np.uint64((left << 32) | right) * P1) >> np.uint64(64 - FILTER_BITS))


@njit(types.void(I64, I64, types.int64[::1], types.uint8[::1]))
def _fill_table(keys: Any, values: Any, slots: Any, bits: Any) -> Any:
    """Put distinct pairs in an empty table whose size is a power of two, and in the filter."""
    mask = len(slots) // 2 - 1
    for k in range(len(keys)):
        at = _home(keys[k], mask)
        while slots[2 * at + 1] != 0:
            at = (at + 1) & mask
        slots[2 * at], slots[2 * at + 1] = keys[k], values[k]
        bit = _filter_bit(keys[k] >> 32, keys[k] & LOW)
        bits[bit >> 3] |= 1 << (bit & 7)


@njit(types.int64(types.int64, types.int64, BYTES, INTS, types.int64), inline=True)
def _merged_value(left: Any, right: Any, bits: Any, slots: Any, mask: Any) -> Any:
    """`_value_of` of a pair of which one is a superword: most are not in the table, as the filter knows."""
    bit = _filter_bit(left, right)
    if bits[bit >> 3] >> (bit & 7) & 1 == 0:
        return np.int64(MISSING)
    return _value_of(left, right, slots, mask)


@njit(types.int64(IDS, types.int64, INTS, types.int64, BYTES, INTS, types.int64), inline=True)
def _merge_three(run: Any, first: Any, values: Any, at: Any, bits: Any, slots: Any, mask: Any) -> Any:
    """`_merge_short` of three ids, which most runs are that it would have to do with."""
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
def _merge_short(
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
def _merge_long(
    run: Any, first: Any, pairs: Any, at: Any, size: Any, bits: Any, slots: Any, mask: Any
) -> Any:
    """As `_merge_short`, with a heap of (rank, place) and links between the places that are left."""
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
