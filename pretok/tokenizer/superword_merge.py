"""Stage 2 of encoding: ids of words -> ids of superwords.

Enters: documents as bytes, their ids by stage 1, the merges of stage 2. Leaves: ids as if all merges had been applied
to segments in order of rank, leftmost first.

A table holds the pairs of stage-2 merges, and the pairs of stage-1 ids that meet inside of some superword. Runs are ids
whose neighbours all are in the table and in one segment. No processor foresees where one begins and how long it is, so
a document is gone over four times, by loops with few branches or none: a filter of bits, small enough for a cache near
the core, leaves a quarter of the pairs; the table leaves those that meet; each run of these is merged where it stands;
and what was merged away is taken out. One pass with branches at every id took twice as long.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from numba import types

from pretok.base.tokens import Ids, Ints
from pretok.kernels.compile import BYTES, I64, U8, njit
from pretok.kernels.unicode import class_table
from pretok.tokenizer.segments import COMMA, joined
from pretok.tokenizer.stages import Stages, begins_word, letter_first, letter_last
from pretok.tokenizer.superword_runs import (
    ASK,
    FILTER_BITS,
    IDS,
    INTS,
    MEETING,
    MISSING,
    NEVER,
    RESULT,
    fill_table,
    filter_bit,
    merge_long,
    merge_short,
    merge_three,
    value_of,
)

GONE = 0xFFFFFFFF
"""Stands for an id that was merged into the one before."""
LETTER_END, OTHER_END, WORD_START, SPACE_START, OTHER_START, LONE_COMMA = 1, 2, 4, 8, 16, 32
"""Traits of tokens: the last character is a letter, is another one; it begins with a separator and a letter, with a
space and a letter, can begin with neither space and letter; it is a comma. Of a cut character nothing is known."""
SHORT_RUN = 32
"""Up to this length a scan for the lowest rank beats a heap; longer runs are rare in text."""

_I32 = types.Array(types.int32, 1, "C", readonly=True)
_U32 = types.Array(types.uint32, 1, "C", readonly=True)


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
        bit = filter_bit(left, right)
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
        value = value_of(np.int64(ids[i - 1]), np.int64(ids[i]), slots, mask)
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
                size = merge_three(ids, first, values, at, bits, slots, mask)
            elif pairs < SHORT_RUN:
                size = merge_short(ids, first, values, at, pairs + 1, bits, slots, mask)
            else:
                size = merge_long(ids, first, values, at, pairs + 1, bits, slots, mask)
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


class Joiner:
    """Stage 2 of one vocabulary. Memory: about 60 bytes a superword and 5 an entry of stage 1."""

    def __init__(self, stages: Stages) -> None:
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
        fill_table(keys, contents, self._slots, self._bits)

    def _ask(self, left: int, right: int) -> int:
        """ASK where a pair of stage 1 needs it."""
        whole = self._traits[left] & LETTER_END and self._traits[right] & WORD_START
        return 0 if whole else ASK

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
