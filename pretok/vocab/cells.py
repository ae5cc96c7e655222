"""Words in a row of cells: the text that BPE merges, and how often each cell of it occurs.

Enters: words as bytes or tokens in a row, and how often each occurs. Leaves: Cells, and the Text that compiled code
walks over.

There is a cell for each token, and one before, between and after words. When tokens are joined, the new one begins at
the first one's cell; of the other cells it covers the first and the last hold its length, as a negative number. So both
neighbours of a token are found in constant time, however long it is.

How often a cell occurs is kept for runs of words that occur equally often, not for each cell; a hint for every 64 cells
says where among the runs to begin to look. Any order of words is right. Ordered by their counts they are few runs,
which stay in the processor's caches: half of all distinct words occur once.

Memory: 4 bytes for each token and each word, and 12 for each run.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from numba import types

from pretok.base.errors import UsageError
from pretok.base.tokens import Bytes, Ints
from pretok.kernels.compile import I64, njit
from pretok.tokenizer.vocabulary import ALPHABET

BOUNDARY = -1
"""Symbol of the cells around words. A cell that a token covers but does not begin at has a smaller one."""
HINT_BITS = 6
"""A hint is for 2**HINT_BITS cells."""
MAX_CELLS = 2**31 - 1
MAX_OCCURRENCES = 2.0**62
_BLOCK = 1 << 16
"""Words whose bytes are made tokens at once."""

POINTER32 = types.CPointer(types.int32)
POINTER = types.CPointer(types.int64)
I32 = types.int32[::1]
_Int32s = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Cells:
    """Words laid out. Merging uses them up."""

    symbols: _Int32s
    """[cells], the token that begins there; BOUNDARY; or the length of the token that covers it, negative."""
    starts: _Int32s
    """[runs + 1], the first cell of each run of words that occur equally often; last, the number of cells."""
    hints: _Int32s
    """For every 2**HINT_BITS cells, the run that the first of them is in."""
    counts: Ints
    """[runs], how often each of the words occurs."""


class Text(NamedTuple):
    """The words while they are merged: pointers, as counting references to arrays took half of the time."""

    cells: Any
    """How many."""
    symbols: Any
    starts: Any
    hints: Any
    counts: Any
    """These as in Cells."""
    weights: Any
    """int64[ids], the weight of each token."""
    limit: Any
    """Pairs of a greater weight than this are left alone."""


TEXT = types.NamedTuple((types.int64, POINTER32, POINTER32, POINTER32, POINTER, POINTER, types.int64), Text)


@njit(TEXT(types.int64, POINTER32, POINTER32, POINTER32, POINTER, POINTER, types.int64))
def text_of(cells: Any, symbols: Any, starts: Any, hints: Any, counts: Any, weights: Any, limit: Any) -> Any:
    """A Text of arrays, which must outlive it."""
    return Text(cells, symbols, starts, hints, counts, weights, limit)


@njit(types.int64(POINTER32, types.int64), inline=True)
def after(symbols: Any, p: Any) -> Any:
    """The cell after the token that begins at p."""
    covered = symbols[p + 1]
    return p - covered if covered < BOUNDARY else p + 1


@njit(types.int64(POINTER32, types.int64), inline=True)
def before(symbols: Any, p: Any) -> Any:
    """The cell where the token before p begins, or the boundary before p."""
    covered = symbols[p - 1]
    return p + covered if covered < BOUNDARY else p - 1


@njit(types.boolean(TEXT, types.int64, types.int64), inline=True)
def joinable(text: Any, a: Any, b: Any) -> Any:
    """Whether the symbols of two neighbours are tokens, and light enough to be merged."""
    return a >= 0 and b >= 0 and text.weights[a] + text.weights[b] <= text.limit


@njit(types.int64(TEXT, types.int64), inline=True)
def count_at(text: Any, p: Any) -> Any:
    """How often the word occurs that cell p is in."""
    run = np.int64(text.hints[p >> HINT_BITS])
    while text.starts[run + 1] <= p:
        run += 1
    return text.counts[run]


@njit(types.int64(types.Array(types.int32, 1, "C", readonly=True), I64, I32, types.int64))
def _place(tokens: Any, offsets: Any, symbols: Any, p: Any) -> Any:
    """Write words of tokens, and a boundary after each, to the cells from p on; returns the cell after them."""
    first = offsets[0]
    for w in range(len(offsets) - 1):
        for i in range(offsets[w] - first, offsets[w + 1] - first):
            symbols[p] = tokens[i]
            p += 1
        symbols[p] = BOUNDARY
        p += 1
    return p


def cells_of(data: Bytes, offsets: Ints, counts: Ints) -> Cells:
    """Words of bytes, each byte the token of its place in ALPHABET.

    Word w is data[offsets[w]:offsets[w + 1]], any bytes, and occurs counts[w] times. Words that occur equally often
    had better be neighbours. Raises UsageError where 32 bits do not number the cells, or 64 bits do not count them.
    """
    ids = np.empty(256, np.int32)
    ids[list(ALPHABET)] = np.arange(256)
    return _cells(lambda start, stop: ids[data[start:stop]], len(data), offsets, counts)


def cells_of_tokens(tokens: _Int32s, offsets: Ints, counts: Ints) -> Cells:
    """As `cells_of`, of words of tokens, which are numbers from 0 on."""
    return _cells(lambda start, stop: tokens[start:stop], len(tokens), offsets, counts)


def _cells(tokens: Callable[[int, int], _Int32s], length: int, offsets: Ints, counts: Ints) -> Cells:
    """tokens: those from a place to another."""
    words = len(counts)
    if len(offsets) != words + 1 or offsets[0] < 0 or offsets[-1] > length:
        raise ValueError("there is one offset more than counts, all within the symbols")
    size = int(offsets[-1] - offsets[0]) + words + 1
    if size > MAX_CELLS:
        raise UsageError(
            f"{words:,} words of {size - words - 1:,} bytes are too many to merge (words and bytes together: "
            f"{MAX_CELLS:,}); drop rare words with a greater min-count"
        )
    if counts.min(initial=0) < 0 or counts.astype(np.float64) @ np.diff(offsets) > MAX_OCCURRENCES:
        raise UsageError(
            "word counts must not be negative, nor add up to 2**62 bytes of text or more; scale the weights down"
        )
    symbols, end = np.empty(size, np.int32), 1
    symbols[0] = BOUNDARY
    for w in range(0, words, _BLOCK):
        part = offsets[w : w + _BLOCK + 1]
        end = _place(tokens(part[0], part[-1]), part, symbols, end)
    first = np.flatnonzero(np.diff(counts, prepend=-1))  # words of each run
    starts = np.append(offsets[first] - offsets[0] + first + 1, size).astype(np.int32)
    hints = np.searchsorted(starts, np.arange(0, size, 1 << HINT_BITS, dtype=np.int32), side="right") - 1
    return Cells(symbols, starts, np.maximum(hints, 0).astype(np.int32), counts[first])
