"""The file of the copies in a partition: written when they are found, read by the task that marks or drops them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pretok.base.storage import atomic_open
from pretok.base.tokens import Ints


class CopiesOfPartition:
    """The copies in one partition, as `save_copies` wrote them.

    The table has the piece and number of each, ascending, and `file`, `start` and `record` of the document that it is a
    copy of.
    """

    def __init__(self, path: Path) -> None:
        self._table = pq.read_table(path, use_threads=False).combine_chunks()
        self._pieces, self._numbers = (np.asarray(self._table[name]) for name in ("piece", "number"))

    def of(self, piece: int, numbers: Ints) -> list[tuple[int, str]]:
        """Return (number, the document that it is a copy of) for the copies among the records `numbers`, ascending."""
        # Rows are sorted by piece: only those of this one are compared with the batch's numbers.
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
