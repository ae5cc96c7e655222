"""Batches of documents -> how much of a benchmark item each of them holds.

Enters: documents as one array of bytes with offsets, and a Benchmark. Leaves: for each document the largest share of an
item that it holds, and which item; for each item, in how many documents it stands and how much of it at most.

The share of an item that a document holds is the share of the item's grams (see `benchmark`) that stand in the
document, however often. It is a share of the item and not of the document: a page that quotes one question spoils it,
however long the page is; a document that shares a common phrase with a long item does not.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt
from numba import types

from pretok.base.records import Count, Record
from pretok.kernels.compile import I64, njit
from pretok.kernels.ngrams import find_grams
from pretok.screen.benchmark import Benchmark

_I32 = types.Array(types.int32, 1, "C", readonly=True)
_NEW_I32, _NEW_I64 = (types.Array(kind, 1, "C") for kind in (types.int32, types.int64))


@njit(types.void(I64, _I32, I64, _I32, _I32, _NEW_I32, _NEW_I32, _NEW_I64, _NEW_I32))
def _count(
    at: Any, hits: Any, starts: Any, holders: Any, sizes: Any, best: Any, held: Any, documents: Any, most: Any
) -> Any:
    """Per document (best, held), the item of which it holds the largest share, the first of equals, and how many of its
    grams; adds to (documents, most) of each item."""
    counts = np.zeros(len(sizes), np.int32)
    touched = np.empty(len(sizes), np.int32)
    for d in range(len(at) - 1):
        n = 0
        for k in range(at[d], at[d + 1]):
            for place in range(starts[hits[k]], starts[hits[k] + 1]):
                item = holders[place]
                if counts[item] == 0:
                    touched[n] = item
                    n += 1
                counts[item] += 1
        for k in range(n):
            item = touched[k]
            count, documents[item] = counts[item], documents[item] + 1
            counts[item] = 0
            most[item] = max(most[item], count)
            ours = 0 if best[d] < 0 else np.int64(held[d]) * sizes[item]
            theirs = np.int64(count) * (1 if best[d] < 0 else sizes[best[d]])
            if theirs > ours or (theirs == ours and item < best[d]):
                best[d], held[d] = item, count


class ItemCount(Record, frozen=True):
    """What was found of one item. documents: that hold a part of it; grams: of it in the one that holds most."""

    item: str
    size: Count
    documents: Count
    grams: Count


class ContaminationFinder:
    """Searches batch after batch, and adds up what it finds of each item until `take` is called."""

    def __init__(self, benchmark: Benchmark) -> None:
        self.benchmark = benchmark
        self._documents = np.zeros(len(benchmark.names), np.int64)
        self._most = np.zeros(len(benchmark.names), np.int32)

    def search(
        self, data: npt.NDArray[np.uint8], offsets: npt.NDArray[np.int64]
    ) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int32]]:
        """Of each document data[offsets[d]:offsets[d + 1]] the largest share of an item that it holds, and the number
        of that item, -1 where it holds of none; both (documents,)."""
        benchmark = self.benchmark
        at, hits = find_grams(benchmark.grams, data, offsets)
        best, held = np.full(len(offsets) - 1, -1, np.int32), np.zeros(len(offsets) - 1, np.int32)
        if len(hits):
            _count(
                at, hits, benchmark.starts, benchmark.holders, benchmark.sizes,
                best, held, self._documents, self._most,
            )  # fmt: skip
        return held / np.maximum(benchmark.sizes[best], 1), best

    def take(self) -> tuple[ItemCount, ...]:
        """What was found since the last call, of items of which something was; in the order of the items."""
        found = tuple(
            ItemCount(
                self.benchmark.names[item],
                *(int(x[item]) for x in (self.benchmark.sizes, self._documents, self._most)),
            )
            for item in np.flatnonzero(self._documents)
        )
        self._documents[:] = self._most[:] = 0
        return found


def sum_items(counts: Iterable[ItemCount]) -> tuple[ItemCount, ...]:
    """One count an item, by name: documents added up, the most of all."""
    summed: dict[str, ItemCount] = {}
    for count in counts:
        if (one := summed.get(count.item)) is not None:
            count = ItemCount(
                count.item, count.size, one.documents + count.documents, max(one.grams, count.grams)
            )
        summed[count.item] = count
    return tuple(summed[item] for item in sorted(summed))
