"""Rows that are read when they are asked for, a batch at a time, and given as Arrow, pandas or polars.

Input: a schema and a function that reads batches. Output: `LazyTable`. Nothing is held: whoever asks twice
reads twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from operator import index
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from pretok.base.errors import UsageError

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl

SHOWN = 8
"""Rows that a repr and a notebook show."""


class LazyTable:
    """A table: iterate over it for Arrow record batches, whatever its size, or take it whole.

    name: what it holds; schema: its columns (pyarrow.Schema). `len` is known without reading. DuckDB, polars, pandas
    and pyarrow also read it as it is, a batch at a time, by Arrow's C stream interface. It may be pickled: another
    process opens the files itself.
    """

    def __init__(
        self, name: str, schema: pa.Schema, length: int, read: Callable[[], Iterator[pa.RecordBatch]]
    ) -> None:
        self.name = name
        self.schema = schema
        self._length = length
        self._read = read

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        """Record batches in the order of the shards."""
        return self._read()

    def head(self, rows: int = SHOWN) -> pa.Table:
        """The first rows, reading no more than their batches. UsageError for fewer than 0."""
        if index(rows) < 0:
            raise UsageError(f"head of {rows} rows; it takes 0 or more")
        found: list[pa.RecordBatch] = []
        for batch in self:
            found.append(batch.slice(0, rows - sum(map(len, found))))
            if sum(map(len, found)) >= rows:
                break
        return pa.Table.from_batches(found, self.schema)

    def to_arrow(self) -> pa.Table:
        """All rows as a pyarrow.Table."""
        return pa.Table.from_batches(list(self), self.schema)

    def to_pandas(self) -> pd.DataFrame:
        """All rows as a pandas.DataFrame. UsageError where pandas is not installed."""
        _needs("pandas")
        return self.to_arrow().to_pandas()

    def to_polars(self) -> pl.DataFrame:
        """All rows as a polars.DataFrame. UsageError where polars is not installed."""
        _needs("polars")
        import polars as pl

        made: Any = pl.from_arrow(self.to_arrow())
        return made  # type: ignore[no-any-return]

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Arrow's C stream interface: what other libraries call."""
        return pa.RecordBatchReader.from_batches(self.schema, self).__arrow_c_stream__(requested_schema)

    def __repr__(self) -> str:
        columns = ", ".join(f"{field.name}: {field.type}" for field in self.schema)
        return f"<pretok {self.name}: {len(self):,} rows of {columns}>"


def _needs(package: str) -> None:
    try:
        __import__(package)
    except ImportError:
        raise UsageError(f"this needs {package}: pip install {package}") from None
