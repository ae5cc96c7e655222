"""The ledger of a shard: one row a document, in the order of the shard, as a Parquet file beside it.

Input: what is known of documents when they are encoded. Output: `NAME.docs.parquet`, which any Parquet reader opens:

    file    string                  the input
    start   int64                   where in the file the counting of `record` begins: 0, or the byte at which a part
                                    of a JSON Lines file begins (the number of a shard of a hub's dataset)
    record  int64                   the line or row, from 0 after `start`
    tokens  int32                   BOS and EOD included
    bytes   int64                   of the text as it was tokenized, after normalization, in UTF-8
    hash    fixed_size_binary(16)   of that text: xxhash.xxh64_digest(text, 0) + xxhash.xxh64_digest(text, 1)

and then the columns that the recipe keeps. Where documents were removed these are null, and two more columns say when,
`removed`, and why, `removed_reason`. Row groups are windows of 65,536 documents. The bytes follow from the rows
and the version of pyarrow alone, however the rows came.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pretok.base.errors import IntegrityError
from pretok.base.storage import reading
from pretok.base.tokens import Hashes
from pretok.base.tree import TreeFile
from pretok.read.batches import HASH, hash_column
from pretok.read.kept import TYPES, KeptColumn
from pretok.screen.removed import COLUMNS
from pretok.shards.manifest import LEDGER_SUFFIX, SideFile

WINDOW = 65_536
"""Documents of a row group."""
PIECE = 8192
"""Rows that are put together as they come, so that nothing holds a row group twice. Where pieces of an array begin
decides bytes of a file; with these they are those of a row group in one piece."""
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
"""The columns that a ledger gets when documents of its shard are removed. Before, its readers find them null."""
DELTA = ("record", "tokens", "bytes")
"""Columns written as differences: as small as a dictionary of their values, and faster to write."""


def schema_with(kept: Sequence[KeptColumn]) -> pa.Schema:
    """The columns of a ledger that keeps these."""
    return pa.schema([*SCHEMA, *(pa.field(column.name, TYPES[column.type]) for column in kept)])


def ledger_path(prefix: Path) -> Path:
    """Where the ledger of the shard `prefix` (path without suffix) is."""
    return prefix.with_name(prefix.name + LEDGER_SUFFIX)


def hex_digits(column: pa.Array) -> pa.LargeStringArray:
    """Bytes, as of `hash`, as lower-case hexadecimal digits."""
    return pa.array(
        [None if value is None else value.hex() for value in column.to_pylist()], pa.large_string()
    )


def ledger_rows(
    files: pa.StringArray,
    starts: npt.NDArray[np.int64],
    records: npt.NDArray[np.int64],
    tokens: npt.NDArray[np.int32],
    sizes: npt.NDArray[np.int64],
    hashes: Hashes,
    kept: Sequence[pa.Array] = (),
    schema: pa.Schema = SCHEMA,
) -> pa.RecordBatch:
    """Rows of documents. starts: see `start` above; sizes: bytes of their texts; kept: their kept columns."""
    columns = [
        files,
        pa.array(starts, pa.int64()),
        pa.array(records, pa.int64()),
        pa.array(tokens, pa.int32()),
        pa.array(sizes, pa.int64()),
        hash_column(hashes),
        *kept,
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


class LedgerWriter:
    """Writes the ledger of the shard `prefix`: `append` as often as needed, then `seal`. Nothing is visible before.

    Leaving the context without `seal` removes the temporary file.
    """

    def __init__(self, prefix: Path, schema: pa.Schema = SCHEMA) -> None:
        self.documents = 0
        self._schema = schema
        self._pieces: list[pa.Table] = []
        self._loose: list[pa.RecordBatch] = []
        self._rows = 0  # of the loose batches
        self._file = TreeFile(ledger_path(prefix))
        self._writer = pq.ParquetWriter(
            pa.PythonFile(self._file, mode="w"),
            schema,
            compression={name: "none" if name == "hash" else "zstd" for name in schema.names},
            use_dictionary=[name for name in schema.names if name not in ("hash", *DELTA)],
            column_encoding=dict.fromkeys(DELTA, "DELTA_BINARY_PACKED"),
            store_schema=False,
        )

    def __enter__(self) -> LedgerWriter:
        return self

    def __exit__(self, *exc: object) -> None:
        self._file.__exit__()
        self._writer.close()

    def append(self, rows: pa.RecordBatch) -> None:
        """Add rows of the schema."""
        self._loose.append(rows)
        self._rows += len(rows)
        self.documents += len(rows)
        if self._rows < PIECE:
            return
        loose = pa.Table.from_batches(self._loose, self._schema)
        whole = len(loose) // PIECE * PIECE
        rest = loose.slice(whole)
        self._loose, self._rows = rest.to_batches(), len(rest)
        for at in range(0, whole, PIECE):
            self._pieces.append(loose.slice(at, PIECE).combine_chunks())
            if len(self._pieces) == WINDOW // PIECE:
                self._write_window()

    def _write_window(self) -> None:
        self._writer.write_table(pa.concat_tables(self._pieces), row_group_size=WINDOW)
        self._pieces = []

    def seal(self, source: str) -> SideFile:
        """Flush and rename; what the manifest says of it."""
        if self._rows or not self.documents:
            self._pieces.append(pa.Table.from_batches(self._loose, self._schema).combine_chunks())
        if self._pieces:
            self._write_window()
        self._writer.close()
        self._file.seal()
        return SideFile(f"{source}/{self._file.path.name}", source, self._file.size, self._file.root)


def open_ledger(path: Path) -> pq.ParquetFile:
    """A ledger for reading. Raises IntegrityError that names it where it is none."""
    with reading(path, pa.ArrowException, ValueError):
        file = pq.ParquetFile(path)
        names = file.schema_arrow.names
    if names[: len(SCHEMA)] != SCHEMA.names:
        file.close()
        raise IntegrityError(f"{path} is not a ledger: its columns are {', '.join(names)}")
    return file


def ledger_schema(path: Path) -> pa.Schema:
    """The columns of a ledger, as `LedgerWriter` takes them."""
    with open_ledger(path) as file:
        return pa.schema([pa.field(f.name, f.type, f.nullable) for f in file.schema_arrow])


def ledger_windows(path: Path, columns: list[str] | None = None) -> Iterator[pa.RecordBatch]:
    """The rows of a ledger, a row group at a time; all columns or those named."""
    with open_ledger(path) as file:
        for group in range(file.num_row_groups):
            with reading(path, pa.ArrowException):
                table = file.read_row_group(group, columns=columns, use_threads=False)
            yield from table.combine_chunks().to_batches()


def ledger_column(path: Path, name: str) -> pa.Array:
    """A whole column of a ledger. Raises IntegrityError."""
    chunks = [rows[name] for rows in ledger_windows(path, [name])]
    return pa.concat_arrays(chunks)


def strike(
    path: Path, prefix: Path, source: str, rows: npt.NDArray[np.bool_], at: str, reason: str
) -> SideFile:
    """Write a ledger again as that of the shard `prefix`, where documents (documents,) are removed: of these nothing
    that was kept is left, and when and why stands there."""
    schema = ledger_schema(path)
    for name in COLUMNS:
        if name not in schema.names:
            schema = schema.append(pa.field(name, pa.string()))
    values = dict(zip(COLUMNS, (at, reason), strict=True))
    with LedgerWriter(prefix, schema) as writer:
        for window in ledger_windows(path):
            here = pa.array(rows[writer.documents : writer.documents + len(window)])
            columns = []
            for field in schema:
                known = field.name in window.schema.names
                column = window[field.name] if known else pa.nulls(len(window), field.type)
                if field.name not in SCHEMA.names:
                    value = pa.scalar(values.get(field.name), field.type)
                    column = pc.if_else(here, value, column)
                columns.append(column)
            writer.append(pa.RecordBatch.from_arrays(columns, schema=schema))
        return writer.seal(source)
