"""Parquet and Arrow files -> columns of text.

Input: a piece of one of these, the name of its text field and of other columns. `meta.text` is the column `text` in the
struct `meta` or, if there is none, a column of that whole name. Only these columns are read. Output: large_binary
arrays of about `batch_bytes` of text, at most UNEVEN times that or one longer value, in order, with nulls and checked
offsets, and the other columns as they are. A value is always in memory as a whole.

Any exception of a library while it reads an input becomes CorruptInputError: the bytes are not what it expects.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import islice
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pretok.base.storage import Tries
from pretok.base.units import listed
from pretok.read.files import READ_SIZE, CorruptInputError, arrow_batches, open_parquet
from pretok.read.kept import is_text
from pretok.read.partition import Piece
from pretok.read.probe import fields_of

NAMES_SHOWN = 50
"""Most columns that a message lists."""
MOST_ROWS, FIRST_ROWS = 1024, 16
"""Most rows of Parquet that are decoded at a time, and the first rows of a file. Arrow has no limit in bytes, and a
value in a dictionary takes the same space in the file for one row as for all."""
UNEVEN = 4
"""How many times `batch_bytes` a batch may have: making all of equal size would copy most of the text."""


TextColumns = tuple[pa.Array, list[pa.Array | None]]
"""(texts, other columns) of some rows; None for a missing column."""


def table_columns(
    piece: Piece, field: str, others: Sequence[str], batch_bytes: int, lists: bool = False
) -> Iterator[tuple[pa.LargeBinaryArray, list[pa.Array | None]]]:
    """(texts, the columns `others`) of a piece, in batches. lists: the field may have lists, which become JSON. Raises
    CorruptInputError after the last batch that can be read."""
    held: list[TextColumns] = []
    room = batch_bytes
    damage = None
    try:
        for texts, rest in _read_on(piece, field, others, batch_bytes, lists):
            for part, size in _cut(texts, rest, UNEVEN * batch_bytes):
                if held and size > room:
                    yield _joined(held)
                    held, room = [], batch_bytes
                held.append(part)
                room -= size
    except CorruptInputError as error:
        damage = error
    if held:
        yield _joined(held)
    if damage:
        raise damage


def _read_on(
    piece: Piece, field: str, others: Sequence[str], batch_bytes: int, lists: bool
) -> Iterator[TextColumns]:
    """The rows of a piece. After an error that may be temporary, the file is opened again and reading continues."""
    seen, tries = 0, Tries()
    while True:
        try:  # a second reading gives the same rows at a time
            for found in islice(_reads(piece, field, others, batch_bytes, lists), seen, None):
                seen += 1
                yield found
            return
        except CorruptInputError as error:
            if not tries.again(error.__cause__):
                raise


def _reads(
    piece: Piece, field: str, others: Sequence[str], batch_bytes: int, lists: bool
) -> Iterator[TextColumns]:
    read = _parquet if piece.file.format == "parquet" else _arrow
    for texts, rest in read(piece, field, others, batch_bytes, lists):
        with _library("a column is damaged"):
            for other in rest:
                if other is not None:
                    other.validate(full=True)
        yield texts, rest


def _cut(
    texts: pa.LargeBinaryArray, rest: list[pa.Array | None], most: int
) -> Iterator[tuple[TextColumns, int]]:
    """(rows, bytes) of parts of at most `most` bytes of text and offsets, or of one row."""
    offsets = np.frombuffer(texts.buffers()[1], np.int64)[texts.offset : texts.offset + len(texts) + 1]
    ends = offsets[1:] - offsets[0] + 8 * np.arange(1, len(texts) + 1)
    start = before = 0
    while start < len(texts):
        stop = max(start + 1, int(np.searchsorted(ends, before + most, "right")))
        part = texts[start:stop], [None if column is None else column[start:stop] for column in rest]
        yield part, int(ends[stop - 1]) - before
        start, before = stop, int(ends[stop - 1])


def _joined(held: Sequence[TextColumns]) -> TextColumns:
    """Concatenate parts; a single part is not copied."""
    if len(held) == 1:
        return held[0]
    columns = zip(*([texts, *rest] for texts, rest in held), strict=True)
    texts, *rest = (None if parts[0] is None else pa.concat_arrays(parts) for parts in columns)
    return texts, rest


@contextmanager
def _library(what: str) -> Iterator[None]:
    """Turn any exception into CorruptInputError. Only for calls into a library that parses an input."""
    try:
        yield
    except CorruptInputError:
        raise
    except Exception as error:
        message = " ".join(str(error).split())  # messages of libraries have line breaks
        raise CorruptInputError(f"{what}: {message or type(error).__name__}") from error


def _text(column: pa.Array, lists: bool) -> pa.LargeBinaryArray:
    """The texts of a column whose buffers may be damaged."""
    with _library("the text column is damaged"):
        return _binary(column, lists)


def _binary(column: pa.Array, lists: bool) -> pa.LargeBinaryArray:
    """Strings or bytes of any layout as large_binary, with checked offsets and indices, UTF-8 not checked. With
    `lists`, lists as JSON."""
    kind = column.type
    if lists and (pa.types.is_list(kind) or pa.types.is_large_list(kind)):
        return _json(column)
    if pa.types.is_dictionary(kind):
        return _binary(column.dictionary, lists).take(column.indices)  # take checks the indices
    if not is_text(kind):
        raise CorruptInputError(f"the text column has type {kind}, not string or binary")
    column = column.cast(pa.binary() if kind == pa.string() else pa.large_binary())
    column.validate(full=True)
    return column.cast(pa.large_binary())


def _json(column: pa.Array) -> pa.LargeBinaryArray:
    """Lists as JSON. Arrow adds every key of a struct's type, so null keys are those that the writer left out."""

    def given(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: given(inner) for key, inner in value.items() if inner is not None}
        return [given(inner) for inner in value] if isinstance(value, list) else value

    column.validate(full=True)
    rows = (None if row is None else msgspec.json.encode(given(row)) for row in column.to_pylist())
    return pa.array(rows, pa.large_binary())


def _path(schema: pa.Schema, field: str) -> list[str] | None:
    """The names that lead to a field, through structs or as a column of the whole name; None if there is no such
    column, or several with the name."""
    for names in (field.split("."), [field]):
        fields = list(schema)
        for name in names:
            found = [column.type for column in fields if column.name == name]
            if len(found) != 1:
                break
            fields = list(found[0]) if pa.types.is_struct(found[0]) else []
        else:
            return names
    return None


class _Chosen:
    """Where a schema has the text and the other columns."""

    def __init__(self, schema: pa.Schema, field: str, others: Sequence[str]) -> None:
        if (text := _path(schema, field)) is None:
            if (count := schema.names.count(field)) > 1:
                raise CorruptInputError(f"{count} columns are called {field!r}")
            names = listed([*fields_of(schema)], NAMES_SHOWN)
            raise CorruptInputError(f"no column {field!r}; the columns are {names}")
        self.text = text
        self._others = [_path(schema, other) for other in others]
        paths = [self.text, *(path for path in self._others if path)]
        self.tops = list(dict.fromkeys(path[0] for path in paths))
        self.leaves = list(dict.fromkeys(".".join(path) for path in paths))

    def pick(self, rows: pa.RecordBatch) -> TextColumns:
        """(texts, other columns) of some rows."""
        return _pick(rows, self.text), [path and _pick(rows, path) for path in self._others]


def _pick(rows: pa.RecordBatch, path: list[str]) -> pa.Array:
    """The column at a path of names; null where a struct on the way is null."""
    column = rows.column(path[0])
    return pc.struct_field(column, path[1:]) if path[1:] else column


def _parquet(
    piece: Piece, field: str, others: Sequence[str], batch_bytes: int, lists: bool
) -> Iterator[TextColumns]:
    """(texts, other columns) of some rows at a time. Their number follows from the bytes of the rows before, at first
    from the bytes of the row group in all columns: pyarrow aborts the process on a damaged size of a column."""
    with _library("damaged Parquet"):
        stream = open_parquet(piece.file.path)
    with stream:
        with _library("damaged Parquet"):
            # Without a buffer, Arrow reads a whole row group before its first row: 400 MB for 850 MB of text. Page
            # checksums are verified if the file has any: 1 ms of a core for 16 MiB of text under zstd.
            file = pq.ParquetFile(
                stream, pre_buffer=False, buffer_size=READ_SIZE, page_checksum_verification=True
            )
            chosen = _Chosen(file.schema_arrow, field, others)
            groups = range(piece.start or 0, file.num_row_groups if piece.stop is None else piece.stop)
        seen = size = 0
        for group in groups:
            with _library("damaged Parquet"):
                some = partial(
                    file.iter_batches, row_groups=[group], columns=chosen.leaves, use_threads=False
                )
                meta = file.metadata.row_group(group)
                of_rows, of_bytes = (seen, size) if seen else (meta.num_rows, meta.total_byte_size)
                if not seen and (first := next(some(FIRST_ROWS), None)):
                    column = _text(chosen.pick(first)[0], lists)
                    if (
                        column.nbytes > of_bytes
                    ):  # more than all rows take in the file: a dictionary repeats them
                        of_rows, of_bytes = len(column), column.nbytes
                batches = some(max(1, min(of_rows * batch_bytes // max(1, of_bytes), MOST_ROWS)))
            while True:
                with _library("damaged Parquet"):
                    batch = next(batches, None)
                    if batch is None:
                        break
                    column, rest = chosen.pick(batch)
                texts = _text(column, lists)
                seen, size = seen + len(texts), size + texts.nbytes
                yield texts, rest


def _arrow(
    piece: Piece, field: str, others: Sequence[str], batch_bytes: int, lists: bool
) -> Iterator[TextColumns]:
    """(texts, other columns) of some rows at a time: a record batch may have any size, so it is split by its bytes."""
    with ExitStack() as opened:
        with _library("damaged Arrow"):
            schema, found = opened.enter_context(arrow_batches(piece.file.path))
            chosen = _Chosen(schema, field, others)
            batches = islice(found, piece.start or 0, piece.stop)
        while True:
            with _library("damaged Arrow"):
                batch = next(batches, None)
                if batch is None:
                    return
                column, _ = chosen.pick(batch)
                column.validate()  # nbytes relies on the offsets
                rows = max(1, int(batch.num_rows * batch_bytes / max(1, column.nbytes)))
            for at in range(0, batch.num_rows, rows):
                with _library("damaged Arrow"):
                    column, rest = chosen.pick(batch.slice(at, rows))
                yield _text(column, lists), rest
