"""Distinct words and their counts -> one array of symbols, in which neighbours are joined in place.

Input: words as tokens, part by part, and how often each occurs. Output: a SymbolBuffer, and compiled functions that
find the neighbours of a token and the count of its word.

All words lie in one array, with a position for each token and one before, between and after words. When
tokens are joined, the new one begins at the position of the first. Of the other positions it covers, the first and the
last hold its length as a negative number, so both neighbours of a token are found in constant time. The counts of words
are kept for runs of words that occur equally often, and a hint for every 32 positions says where to begin the search
among the runs. Words come ordered by their counts, so the runs are few: half of all distinct words occur once.

Memory: 4.125 bytes for each token and each word of the buffer, and 12 for each run. The words are not needed once they
are laid out, so the caller can free them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from numba import types

from pretok.base.errors import UsageError
from pretok.base.tokens import Bytes, Ints
from pretok.kernels.compile import I64, njit
from pretok.tokenizer.tokenizer_file import ALPHABET

BOUNDARY = -1
"""Symbol of the positions around words. A position that a token covers but does not begin at has a smaller one."""
HINT_BITS = 5
"""A hint is for 2**HINT_BITS positions."""
MAX_SYMBOLS = 2**31 - 1
MAX_OCCURRENCES = 2.0**62 + 2.0**59
"""Weighted bytes: `counts.weigh.LIMIT` and room, as sources of almost no weight may exceed it by their own bytes."""
_IDS = np.empty(256, np.int32)
_IDS[list(ALPHABET)] = np.arange(256)

POINTER32 = types.CPointer(types.int32)
POINTER = types.CPointer(types.int64)
I32 = types.int32[::1]
LONGS = types.int64[::1]
Int32s = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class SymbolBuffer:
    """Words laid out for merging, which changes them in place."""

    symbols: Int32s
    """[positions], the token that begins there; BOUNDARY; or the length of the token that covers it, negative."""
    starts: Int32s
    """[runs + 1], the first position of each run of words that occur equally often; last, the number of positions."""
    hints: Int32s
    """For every 2**HINT_BITS positions, the run that the first of them is in."""
    counts: Ints
    """[runs], how often each of the words occurs."""


class BufferWriter:
    """Words -> SymbolBuffer, part by part, so that not all words are in memory at once.

    most: limit of positions; words beyond it are counted but not kept.
    """

    def __init__(self, most: int = MAX_SYMBOLS) -> None:
        self.words, self.bytes = 0, 0
        self._most, self._end, self._occurrences = min(most, MAX_SYMBOLS), 1, 0.0
        self._symbols = np.full(1, BOUNDARY, np.int32)
        self._starts: list[Int32s] = []
        self._counts: list[Ints] = []

    @property
    def size(self) -> int:
        """The positions of all words added."""
        return self.bytes + self.words + 1

    def add(self, tokens: Int32s, offsets: Ints, counts: Ints) -> None:
        """Add words of tokens, which are numbered from 0.

        Word w is tokens[offsets[w]:offsets[w + 1]] and occurs counts[w] times. Words that occur equally often should be
        neighbours, for the sake of memory. Raises UsageError for counts that are negative or overflow when added up.
        """
        if len(offsets) != len(counts) + 1 or offsets[0] < 0 or offsets[-1] > len(tokens):
            raise ValueError("there is one offset more than counts, all within the symbols")
        # A dot product would wake the threads of BLAS, which then spin as long again.
        self._occurrences += float(np.multiply(counts, np.diff(offsets), dtype=np.float64).sum())
        if counts.min(initial=0) < 0 or self._occurrences > MAX_OCCURRENCES:
            raise UsageError(
                "word counts must not be negative, nor add up to 2**62 bytes of text or more; scale the weights down"
            )
        self.words += len(counts)
        self.bytes += int(offsets[-1] - offsets[0])
        if self.size > self._most:
            return
        first = np.flatnonzero(np.diff(counts, prepend=-1))  # words of each run
        # Each word before takes a boundary, too: hence `first`, the number of these words.
        self._starts.append((offsets[first] - offsets[0] + first + self._end).astype(np.int32))
        self._counts.append(counts[first])
        if self.size > len(self._symbols):
            self._resize(self.size + self.size // 4)
        self._end = _place(tokens, offsets, self._symbols, self._end)

    def _resize(self, size: int) -> None:
        """Resize in place, or let the kernel move it, so a large array is never in memory twice.

        No view of it exists.
        """
        self._symbols.resize(size, refcheck=False)

    def buffer(self) -> SymbolBuffer:
        """Return the words added.

        Raises UsageError if they take more positions than `most`, or than 32 bits can number.
        """
        if self.size > self._most:
            raise UsageError(
                f"{self.words:,} distinct words of {self.bytes:,} bytes are too many to merge here: words and bytes "
                f"together may be {self._most:,}. Drop rare words with a greater min_count under [vocab] of a recipe, "
                "or take a node with more memory; the counts are kept"
            )
        self._resize(self._end)
        starts = np.concatenate([*self._starts, [self._end]]).astype(np.int32)
        blocks = np.arange(0, self._end, 1 << HINT_BITS, dtype=np.int32)
        # Position 0 is a boundary before the first run.
        hints = np.maximum(np.searchsorted(starts, blocks, side="right") - 1, 0).astype(np.int32)
        counts = np.concatenate([np.empty(0, np.int64), *self._counts])
        return SymbolBuffer(self._symbols, starts, hints, counts)


def byte_tokens(data: Bytes) -> Int32s:
    """Return the token of each byte: its place in ALPHABET."""
    return _IDS[data]


def buffer_of(data: Bytes, offsets: Ints, counts: Ints) -> SymbolBuffer:
    """Return the SymbolBuffer of words of bytes: word w is data[offsets[w]:offsets[w + 1]], counts[w] times."""
    writer = BufferWriter()
    writer.add(byte_tokens(data), offsets, counts)
    return writer.buffer()


class _Pointers(NamedTuple):
    """A SymbolBuffer as pointers: with arrays, counting references took half of the time."""

    size: Any
    symbols: Any
    starts: Any
    hints: Any
    counts: Any


TEXT = types.NamedTuple((types.int64, POINTER32, POINTER32, POINTER32, POINTER), _Pointers)


@njit(TEXT(types.int64, POINTER32, POINTER32, POINTER32, POINTER), inline=True)
def text_of(size: Any, symbols: Any, starts: Any, hints: Any, counts: Any) -> Any:
    """Return a _Text of arrays, which must outlive it."""
    return _Pointers(size, symbols, starts, hints, counts)


@njit(types.int64(POINTER32, types.int64), inline=True)
def after(symbols: Any, p: Any) -> Any:
    """Return the position after the token that begins at p."""
    # Behind a token of several positions stands its length; otherwise the next token or boundary does.
    covered = symbols[p + 1]
    return p - covered if covered < BOUNDARY else p + 1


@njit(types.int64(POINTER32, types.int64), inline=True)
def before(symbols: Any, p: Any) -> Any:
    """Return the position where the token before p begins, or the boundary before p."""
    covered = symbols[p - 1]
    return p + covered if covered < BOUNDARY else p - 1


@njit(types.int64(TEXT, types.int64), inline=True)
def count_at(text: Any, p: Any) -> Any:
    """Return how often the word that holds position p occurs."""
    # The hint is right for the first position of 2**HINT_BITS, so the walk is shorter than that.
    run = np.int64(text.hints[p >> HINT_BITS])
    while text.starts[run + 1] <= p:
        run += 1
    return text.counts[run]


@njit(types.int64(types.Array(types.int32, 1, "C", readonly=True), I64, I32, types.int64))
def _place(tokens: Any, offsets: Any, symbols: Any, p: Any) -> Any:
    """Write words of tokens, and a boundary after each, to the positions from p on; returns the position after them."""
    for w in range(len(offsets) - 1):
        for i in range(offsets[w], offsets[w + 1]):
            symbols[p] = tokens[i]
            p += 1
        symbols[p] = BOUNDARY
        p += 1
    return p
