"""Hashes of documents -> which of them are copies of an earlier one.

Input: lists of 128-bit hashes (`shards.ledger.hash_texts`), in the order in which documents count as first. Output:
which documents of each list are copies, and of which one; and a file of the copies of a partition, for the task that
drops them. Two documents with the same hash are copies: the probability that any two of 10^12 different texts share one
is 10^-15.

Memory is bounded: each of several passes holds the hashes of a part of all values.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pretok.base.storage import atomic_open
from pretok.base.tokens import Hashes, Ints

MEMORY = 4 << 30
"""Bytes that a pass may hold: 50 million documents. Each pass reads all hashes again."""
_BYTES = 80
"""Bytes of a document in a pass: two hashes, list and row, and what the sort copies."""


@dataclass(frozen=True, slots=True)
class Copies:
    """The copies in one list: (n,) rows, ascending, and of which row of which list each is a copy."""

    rows: Ints
    of_list: Ints
    of_row: Ints


def find_copies(counts: Sequence[int], load: Callable[[int], Hashes], memory: int = MEMORY) -> list[Copies]:
    """Find the copies in each list. counts: documents in each; load: the (documents, 2) hashes of one.

    A document is a copy of the first one with its hash: of the earliest list, there of the lowest row.
    """
    passes = max(1, -(-sum(counts) * _BYTES // memory))
    copies = np.concatenate([_pass(number, passes, len(counts), load) for number in range(passes)])
    copies = copies[np.lexsort((copies[:, 1], copies[:, 0]))]
    ends = np.searchsorted(copies[:, 0], np.arange(len(counts) + 1))
    return [Copies(*copies[first:end, 1:].T) for first, end in pairwise(ends)]


def _pass(number: int, passes: int, lists: int, load: Callable[[int], Hashes]) -> Ints:
    """Return (copies, 4): list, row, and list and row of the first, for the hashes of one pass."""
    hashes, origins = [np.empty((0, 2), np.uint64)], [np.empty((0, 2), np.int64)]
    for one in range(lists):
        theirs = load(one)
        rows = np.flatnonzero((theirs[:, 1] >> np.uint64(40)) % np.uint64(passes) == number)
        hashes.append(theirs[rows])
        origins.append(np.stack([np.full(len(rows), one), rows], axis=1))
    values, where = np.concatenate(hashes), np.concatenate(origins)
    order = np.lexsort((values[:, 1], values[:, 0]))  # stable: equal hashes stay in the order of the lists
    values, where = values[order], where[order]
    starts = np.ones(len(values), np.bool_)
    starts[1:] = (values[1:] != values[:-1]).any(axis=1)
    first = np.maximum.accumulate(np.where(starts, np.arange(len(values)), 0))
    return np.concatenate([where, where[first]], axis=1)[~starts]


class CopiesOfPartition:
    """The copies in one partition, as `save_copies` wrote them: the piece and number of each, ascending, and `file`,
    `start` and `record` of the document that it is a copy of."""

    def __init__(self, path: Path) -> None:
        self._table = pq.read_table(path, use_threads=False).combine_chunks()
        self._pieces, self._numbers = (np.asarray(self._table[name]) for name in ("piece", "number"))

    def of(self, piece: int, numbers: Ints) -> list[tuple[int, str]]:
        """Return (number, the document that it is a copy of) for the copies among the records `numbers`, ascending."""
        start, end = np.searchsorted(self._pieces, [piece, piece + 1])
        at = start + np.flatnonzero(np.isin(self._numbers[start:end], numbers))
        return [(row["number"], _place(row)) for row in self._table.take(pa.array(at)).to_pylist()]


def _place(row: dict[str, Any]) -> str:
    """Return FILE:LINE. If the start is not 0, only the whole file would tell the line or row."""
    place = f"{row['file']}:{row['record'] + 1}"
    return f"{place}, counted from byte {row['start']}" if row["start"] else place


def save_copies(path: Path, copies: pa.Table) -> None:
    """Write the file of a `CopiesOfPartition`."""
    with atomic_open(path) as file:
        pq.write_table(copies, file, compression="zstd")
