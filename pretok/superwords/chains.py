"""What stage 2 of a superword vocabulary is trained on: chains of tokens that follow each other across words.

Input: documents with their ids by stage 1. Output: chains, flat with BREAK after each; and from the chains of a whole
sample, the merges of stage 2. Superwords join only where one word ends and the next begins, so a chain is a longest
run of tokens with such a border between each two; a word of several tokens ends one chain and begins another.

Training first counts pairs in a table of BUCKETS sums, each no less than the count of any pair in it, and cuts chains
between pairs that are too rare to become a merge. What is left are short chains that repeat, kept once with their
count. Cutting changes nothing as long as every merge is more frequent than what was cut; otherwise it is done again
with a lower bound.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from numba import types

from pretok.base.tokens import Ids, Ints
from pretok.counts.table import WordTable
from pretok.kernels.compile import I64, U8, njit
from pretok.kernels.hashing import P1
from pretok.kernels.unicode import class_table
from pretok.superwords.segments import joined
from pretok.superwords.stages import letter_last, marks
from pretok.vocab.bpe import Merges, merge_sequences

Chains = Callable[[], Iterator[Ids]]
"""The chains of a sample, piece by piece, each time it is called."""

BREAK = 0xFFFFFFFF
"""After each chain."""
BUCKETS = 1 << 24
RARE = 4
"""Where n superwords are wanted, chains are first cut between pairs so many times rarer than the n-th most frequent;
the last superword was about half as frequent as that pair in real text."""

_U32 = types.Array(types.uint32, 1, "C", readonly=True)


@njit(types.int64(U8, I64, _U32, I64, I64, U8, U8, U8, types.int64, types.uint32[::1]))
def _chains(
    data: Any, offsets: Any, ids: Any, borders: Any, lengths: Any, ends: Any, begins: Any, table: Any,
    separators: Any, out: Any,
) -> Any:  # fmt: skip
    """Write the chains of documents into `out`; how much was written."""
    text, classes = data.ctypes, table.ctypes
    n = 0
    for d in range(len(offsets) - 1):
        position = offsets[d]
        inside = False
        for i in range(borders[d] + 1, borders[d + 1]):
            left, right = ids[i - 1], ids[i]
            position += lengths[left]
            if (
                ends[left]
                and begins[right]
                and joined(text, offsets[d], position, offsets[d + 1], classes, separators)
            ):
                if not inside:
                    out[n] = left
                    n += 1
                    inside = True
                out[n] = right
                n += 1
            elif inside:
                out[n] = BREAK
                n += 1
                inside = False
        if inside:
            out[n] = BREAK
            n += 1
    return n


class ChainFinder:
    """Finds chains in documents encoded by stage 1, whose entries are `tokens` (id -> bytes, b"" for specials)."""

    def __init__(self, tokens: Sequence[bytes], separators: int) -> None:
        self.size = len(tokens)
        self._separators = separators
        self._lengths = np.array([len(token) for token in tokens], np.int64)
        self._ends = np.array([token == b"," or bool(letter_last(token)) for token in tokens], np.uint8)
        self._begins = np.array([token.startswith(marks(separators)) for token in tokens], np.uint8)

    def find(self, data: npt.NDArray[np.uint8], offsets: Ints, ids: Ids, borders: Ints) -> Ids:
        """The chains of the documents data[offsets[d]:offsets[d + 1]] with ids[borders[d]:borders[d + 1]], flat."""
        out = np.empty(3 * len(ids) // 2 + 1, np.uint32)
        written = _chains(
            data, offsets, ids, borders, self._lengths, self._ends, self._begins, class_table(),
            self._separators, out,
        )  # fmt: skip
        return out[:written].copy()


@njit(types.int64(types.int64, types.int64), inline=True)
def _bucket(left: Any, right: Any) -> Any:
    """Where a pair is counted; BUCKETS is 2**24."""
    return np.int64((np.uint64((left << 32) | right) * P1) >> np.uint64(40))


@njit(types.void(_U32, types.int64[::1]))
def _count(chains: Any, sums: Any) -> Any:
    """Add the pairs of chains to the sums of their buckets."""
    for i in range(1, len(chains)):
        if chains[i - 1] != BREAK and chains[i] != BREAK:
            sums[_bucket(np.int64(chains[i - 1]), np.int64(chains[i]))] += 1


@njit(types.int64(_U32, I64, types.int64, types.uint32[::1], types.int64[::1]))
def _cut(chains: Any, sums: Any, bound: Any, symbols: Any, offsets: Any) -> Any:
    """Cut chains between pairs whose bucket is below `bound` and drop single tokens; the number of chains left.

    Chain c is symbols[offsets[c]:offsets[c + 1]].
    """
    found, n = 0, 0
    for i in range(1, len(chains)):
        left, right = chains[i - 1], chains[i]
        if left != BREAK and right != BREAK and sums[_bucket(np.int64(left), np.int64(right))] >= bound:
            if n == offsets[found]:
                symbols[n] = left
                n += 1
            symbols[n] = right
            n += 1
        elif n > offsets[found]:
            found += 1
            offsets[found] = n
    if n > offsets[found]:
        found += 1
        offsets[found] = n
    return found


def _frequent_chains(chains: Chains, sums: Ints, bound: int) -> tuple[npt.NDArray[np.int32], Ints, Ints]:
    """(symbols, offsets, counts) of the distinct chains that are left after cutting at pairs below `bound`."""
    table = WordTable()
    for piece in chains():
        symbols = np.empty(len(piece) + 1, np.uint32)
        offsets = np.zeros(len(piece) // 2 + 2, np.int64)
        found = _cut(piece, sums, bound, symbols, offsets)
        ones, zeros = np.ones(found, np.int64), np.zeros(found, np.int64)
        table.add_numbers(symbols.view(np.uint8), 4 * offsets[: found + 1], ones, zeros)
    data, offsets, counts, _ = table.sums()
    return data.view(np.uint32).astype(np.int32), offsets // 4, counts


def train_superwords(chains: Chains, tokens: Sequence[bytes], wanted: int, max_words: int) -> Merges:
    """BPE over chains: `wanted` new entries (fewer if there are no more pairs) of at most `max_words` words each.

    tokens: the entries of stage 1, id -> bytes; a comma counts as no word. Memory: 8 * BUCKETS bytes, then what
    `bpe.merge_sequences` takes for the distinct chains that are frequent.
    """
    sums = np.zeros(BUCKETS, np.int64)
    for piece in chains():
        _count(piece, sums)
    weights = np.array([token != b"," for token in tokens], np.int64)
    counted, bound = sums[sums > 0], 0  # of small text a few thousand
    if wanted <= len(counted):
        counted.partition(-wanted)
        bound = int(counted[-wanted]) // RARE
    del counted
    while True:
        symbols, offsets, counts = _frequent_chains(chains, sums, bound)
        merges = merge_sequences(symbols, offsets, counts, tokens, wanted, weights=weights, limit=max_words)
        enough = len(merges.tokens) == len(tokens) + wanted and int(merges.counts.min()) >= bound
        if enough or bound <= 1:
            return merges
        bound //= 2
