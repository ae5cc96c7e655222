"""The symbol buffer: words laid out in a row, which BPE merges in place, and how often each position of it occurs.

Input: words as bytes or tokens, and how often each occurs. Output: a SymbolBuffer, and the Text that compiled code
walks over.

There is a position for each token, and one before, between and after words. When tokens are joined, the new one begins
at the first one's position; of the other positions it covers the first and the last hold its length, as a negative
number. So both neighbours of a token are found in constant time, however long it is.

How often a position occurs is kept for runs of words that occur equally often, not for each position; a hint for every
32 positions says where among the runs to begin to look. Any order of words is right. Ordered by their counts they are
few runs, which stay in the processor's caches: half of all distinct words occur once.

Memory: 4.125 bytes for each token and each word, and 12 for each run.
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
from pretok.tokenizer.tokenizer_file import ALPHABET

BOUNDARY = -1
"""Symbol of the positions around words. A position that a token covers but does not begin at has a smaller one."""
HINT_BITS = 5
"""A hint is for 2**HINT_BITS positions."""
MAX_SYMBOLS = 2**31 - 1
MAX_OCCURRENCES = 2.0**62
_BLOCK = 1 << 16
"""Words whose bytes are made tokens at once."""
_IDS = np.empty(256, np.int32)
_IDS[list(ALPHABET)] = np.arange(256)

POINTER32 = types.CPointer(types.int32)
POINTER = types.CPointer(types.int64)
I32 = types.int32[::1]
_Int32s = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class SymbolBuffer:
    """Words laid out. Merging uses them up."""

    symbols: _Int32s
    """[positions], the token that begins there; BOUNDARY; or the length of the token that covers it, negative."""
    starts: _Int32s
    """[runs + 1], the first position of each run of words that occur equally often; last, the number of positions."""
    hints: _Int32s
    """For every 2**HINT_BITS positions, the run that the first of them is in."""
    counts: Ints
    """[runs], how often each of the words occurs."""


class Text(NamedTuple):
    """The words while they are merged: pointers, as counting references to arrays took half of the time."""

    size: Any
    """How many positions."""
    symbols: Any
    starts: Any
    hints: Any
    counts: Any
    """These as in SymbolBuffer."""
    weights: Any
    """int64[ids], the weight of each token."""
    limit: Any
    """Pairs of a greater weight than this are left alone."""


TEXT = types.NamedTuple((types.int64, POINTER32, POINTER32, POINTER32, POINTER, POINTER, types.int64), Text)


@njit(TEXT(types.int64, POINTER32, POINTER32, POINTER32, POINTER, POINTER, types.int64))
def text_of(size: Any, symbols: Any, starts: Any, hints: Any, counts: Any, weights: Any, limit: Any) -> Any:
    """A Text of arrays, which must outlive it."""
    return Text(size, symbols, starts, hints, counts, weights, limit)


@njit(types.int64(POINTER32, types.int64), inline=True)
def after(symbols: Any, p: Any) -> Any:
    """The position after the token that begins at p."""
    covered = symbols[p + 1]
    return p - covered if covered < BOUNDARY else p + 1


@njit(types.int64(POINTER32, types.int64), inline=True)
def before(symbols: Any, p: Any) -> Any:
    """The position where the token before p begins, or the boundary before p."""
    covered = symbols[p - 1]
    return p + covered if covered < BOUNDARY else p - 1


@njit(types.boolean(TEXT, types.int64, types.int64), inline=True)
def joinable(text: Any, a: Any, b: Any) -> Any:
    """Whether the symbols of two neighbours are tokens, and light enough to be merged."""
    return a >= 0 and b >= 0 and text.weights[a] + text.weights[b] <= text.limit


@njit(types.int64(TEXT, types.int64), inline=True)
def count_at(text: Any, p: Any) -> Any:
    """How often the word occurs that position p is in."""
    run = np.int64(text.hints[p >> HINT_BITS])
    while text.starts[run + 1] <= p:
        run += 1
    return text.counts[run]


@njit(types.int64(types.Array(types.int32, 1, "C", readonly=True), I64, I32, types.int64))
def _place(tokens: Any, offsets: Any, symbols: Any, p: Any) -> Any:
    """Write words of tokens, and a boundary after each, to the positions from p on; returns the position after them."""
    first = offsets[0]
    for w in range(len(offsets) - 1):
        for i in range(offsets[w] - first, offsets[w + 1] - first):
            symbols[p] = tokens[i]
            p += 1
        symbols[p] = BOUNDARY
        p += 1
    return p


class BufferWriter:
    """Words -> SymbolBuffer, part by part, so that the words need not be there all at once.

    most: positions; of more than that, words are only counted.
    """

    def __init__(self, most: int = MAX_SYMBOLS) -> None:
        self.words, self.bytes = 0, 0
        self._most, self._end, self._occurrences = min(most, MAX_SYMBOLS), 1, 0.0
        self._symbols = np.full(1, BOUNDARY, np.int32)
        self._starts: list[_Int32s] = []
        self._counts: list[Ints] = []

    @property
    def size(self) -> int:
        """The positions of all words added."""
        return self.bytes + self.words + 1

    def add(self, data: Bytes, offsets: Ints, counts: Ints) -> None:
        """Add words of bytes, each byte the token of its place in ALPHABET.

        Word w is data[offsets[w]:offsets[w + 1]], any bytes, and occurs counts[w] times. Words that occur equally often
        had better be neighbours. Raises UsageError for counts that are negative, or too large to be added up.
        """
        self._add(lambda start, stop: _IDS[data[start:stop]], len(data), offsets, counts)

    def add_tokens(self, tokens: _Int32s, offsets: Ints, counts: Ints) -> None:
        """As `add`, for words of tokens, which are numbers from 0 on."""
        self._add(lambda start, stop: tokens[start:stop], len(tokens), offsets, counts)

    def _add(self, tokens: Callable[[int, int], _Int32s], length: int, offsets: Ints, counts: Ints) -> None:
        """tokens: those from a place to another."""
        if len(offsets) != len(counts) + 1 or offsets[0] < 0 or offsets[-1] > length:
            raise ValueError("there is one offset more than counts, all within the symbols")
        # A product of matrices would wake the threads of BLAS, which take as much time again to wait for the next.
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
        self._starts.append((offsets[first] - offsets[0] + first + self._end).astype(np.int32))
        self._counts.append(counts[first])
        if self.size > len(self._symbols):
            self._resize(self.size + self.size // 4)
        for w in range(0, len(counts), _BLOCK):
            part = offsets[w : w + _BLOCK + 1]
            self._end = _place(tokens(part[0], part[-1]), part, self._symbols, self._end)

    def _resize(self, size: int) -> None:
        """Where it lies, or moved by the kernel: a large array is never there twice. No other array looks at it."""
        self._symbols.resize(size, refcheck=False)

    def buffer(self) -> SymbolBuffer:
        """The words added. Raises UsageError where they are too many, as 32 bits number the positions."""
        if self.size > self._most:
            raise UsageError(
                f"{self.words:,} words of {self.bytes:,} bytes are too many to merge (words and bytes together: "
                f"{self._most:,}); drop rare words with a greater min_count"
            )
        self._resize(self._end)
        starts = np.concatenate([*self._starts, [self._end]]).astype(np.int32)
        blocks = np.arange(0, self._end, 1 << HINT_BITS, dtype=np.int32)
        hints = np.maximum(np.searchsorted(starts, blocks, side="right") - 1, 0).astype(np.int32)
        counts = np.concatenate([np.empty(0, np.int64), *self._counts])
        return SymbolBuffer(self._symbols, starts, hints, counts)


def buffer_of(data: Bytes, offsets: Ints, counts: Ints) -> SymbolBuffer:
    """The SymbolBuffer of words of bytes, as `BufferWriter.add` takes them."""
    writer = BufferWriter()
    writer.add(data, offsets, counts)
    return writer.buffer()
