"""The ledger of a shard: a Parquet file next to it with one row per document, in the order of the shard.

`NAME.docs.parquet` has the columns

    file    string                  the input
    start   int64                   where `record` counts from: 0, or the byte where a part of a JSON Lines file begins
    record  int64                   the line or row, from 0 after `start`
    tokens  int32                   with BOS and EOD
    bytes   int64                   of the text as it was tokenized, after normalization, in UTF-8
    hash    fixed_size_binary(16)   of that text: xxhash.xxh64_digest(text, 0) + xxhash.xxh64_digest(text, 1)

and then the columns that the recipe keeps. For a removed document these are null, and two more columns say when
(`removed`) and why (`removed_reason`) it was removed. Row groups hold 65,536 documents. The bytes of the file depend
only on the rows and the version of pyarrow, not on how many rows were appended at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pretok.base.errors import IntegrityError
from pretok.base.storage import reading
from pretok.base.tree import TreeFile
from pretok.read.batches import HASH, hash_column
from pretok.read.kept import TYPES, KeptColumn
from pretok.screen.removed import COLUMNS
from pretok.shards.manifest import LEDGER_SUFFIX, SideFile

WINDOW = 65_536
"""Documents of a row group."""
SCHEMA = pa.schema(
    [
        pa.field("file", pa.string(), nullable=False),
        pa.field("start", pa.int64(), nullable=False),
        pa.field("record", pa.int64(), nullable=False),
        pa.field("tokens", pa.int32(), nullable=False),
        pa.field("bytes", pa.int64(), nullable=False),
        pa.field("hash", HASH, nullable=False),
    ]
)
"""The columns of every ledger."""
REMOVED = pa.schema([(name, pa.string()) for name in COLUMNS])
"""Columns that a ledger gets when documents of its shard are removed. Until then readers see them as null."""
MATCHED = "_matched"
"""End of the name of the first column of a file of joined columns (`annotations.py`), which is written as a ledger."""
DELTA = ("record", "tokens", "bytes")
"""Columns that are written as differences, which is as small as a dictionary and faster."""


def schema_with(kept: Sequence[KeptColumn]) -> pa.Schema:
    """Return the schema of a ledger with these kept columns."""
    return pa.schema([*SCHEMA, *(pa.field(column.name, TYPES[column.type]) for column in kept)])


def ledger_path(prefix: Path) -> Path:
    """Path of the ledger of the shard `prefix` (a path without suffix)."""
    return prefix.with_name(prefix.name + LEDGER_SUFFIX)


def hex_digits(column: pa.Array) -> pa.LargeStringArray:
    """Binary values, such as `hash`, as lower-case hexadecimal digits."""
    return pa.array(
        [None if value is None else value.hex() for value in column.to_pylist()], pa.large_string()
    )


def ledger_rows(columns: Mapping[str, Any], schema: pa.Schema = SCHEMA) -> pa.RecordBatch:
    """Make ledger rows of a column of documents for each name in `schema`; `hash` as `hash_texts` gives it."""
    return pa.RecordBatch.from_pydict({**columns, "hash": hash_column(columns["hash"])}, schema=schema)


class LedgerWriter:
    """Writes a ledger: `append` as often as needed, then `seal`. Nothing has its final name before `seal`.

    Leaving the context without `seal` removes the temporary file.
    """

    def __init__(self, path: Path, schema: pa.Schema = SCHEMA) -> None:
        self.documents = 0
        self._schema = schema
        self._waiting: list[pa.RecordBatch] = []  # rows of the next row group
        self._rows = 0
        self._file = TreeFile(path)
        self._writer = pq.ParquetWriter(
            pa.PythonFile(self._file, mode="w"),
            schema,
            # Hashes are random bytes: neither compression nor a dictionary makes them smaller.
            compression={name: "none" if name == "hash" else "zstd" for name in schema.names},
            use_dictionary=[name for name in schema.names if name not in ("hash", *DELTA)],
            column_encoding={name: "DELTA_BINARY_PACKED" for name in DELTA if name in schema.names},
            store_schema=False,
        )

    def __enter__(self) -> LedgerWriter:
        return self

    def __exit__(self, *exc: object) -> None:
        self._file.__exit__()
        self._writer.close()

    def append(self, rows: pa.RecordBatch) -> None:
        """Add rows that have the schema."""
        self._waiting.append(rows)
        self._rows += len(rows)
        self.documents += len(rows)
        while self._rows >= WINDOW:
            self._write_group()

    def _write_group(self) -> None:
        """Write a row group of the rows that wait, as one chunk: where chunks begin decides bytes of the file."""
        waiting = pa.Table.from_batches(self._waiting, self._schema)
        self._writer.write_table(waiting.slice(0, WINDOW).combine_chunks(), row_group_size=WINDOW)
        rest = waiting.slice(WINDOW)
        self._waiting, self._rows = rest.to_batches(), len(rest)

    def seal(self, source: str) -> SideFile:
        """Flush and rename the file; its manifest entry."""
        if self._rows or not self.documents:
            self._write_group()
        self._writer.close()
        self._file.seal()
        return SideFile(f"{source}/{self._file.path.name}", source, self._file.size, self._file.root)


def open_ledger(path: Path) -> pq.ParquetFile:
    """Open a ledger, or joined columns, for reading. Raises IntegrityError if it is neither."""
    with reading(path, pa.ArrowException, ValueError):
        file = pq.ParquetFile(path)
        names = file.schema_arrow.names
    if names[: len(SCHEMA)] != SCHEMA.names and not names[0].endswith(MATCHED):
        file.close()
        raise IntegrityError(f"{path} is not a ledger: its columns are {', '.join(names)}")
    return file


def ledger_schema(path: Path) -> pa.Schema:
    """Return the schema of a ledger, as `LedgerWriter` takes it."""
    with open_ledger(path) as file:
        return pa.schema([pa.field(f.name, f.type, f.nullable) for f in file.schema_arrow])


def ledger_windows(path: Path, columns: list[str] | None = None) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a ledger, one row group at a time, with all columns or the named ones."""
    with open_ledger(path) as file:
        for group in range(file.num_row_groups):
            with reading(path, pa.ArrowException):
                table = file.read_row_group(group, columns=columns, use_threads=False)
            yield from table.combine_chunks().to_batches()


def ledger_column(path: Path, name: str) -> pa.Array:
    """Return a whole column of a ledger. Raises IntegrityError."""
    return pa.concat_arrays([rows[name] for rows in ledger_windows(path, [name])])


def rewrite_without(
    path: Path, to: Path, source: str, rows: npt.NDArray[np.bool_], values: Mapping[str, object]
) -> SideFile:
    """Write a ledger, or joined columns, again to `to`, with the documents `rows` (documents,) removed.

    Of their columns other than SCHEMA those in `values` get that value and all others become null. Columns REMOVED that
    `values` has are added.
    """
    schema = ledger_schema(path)
    more = (field for field in REMOVED if field.name in values and field.name not in schema.names)
    schema = pa.schema([*schema, *more])
    with LedgerWriter(to, schema) as writer:
        for window in ledger_windows(path):
            # The writer has as many documents as were read before this window.
            here = pa.array(rows[writer.documents : writer.documents + len(window)])
            columns = []
            for field in schema:
                known = field.name in window.schema.names
                column = window[field.name] if known else pa.nulls(len(window), field.type)
                if field.name not in SCHEMA.names:
                    column = pc.if_else(here, pa.scalar(values.get(field.name), field.type), column)
                columns.append(column)
            writer.append(pa.RecordBatch.from_arrays(columns, schema=schema))
        return writer.seal(source)
