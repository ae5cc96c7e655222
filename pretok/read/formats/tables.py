"""Tables, as Parquet and Arrow files hold them: what both formats have in common.

`meta.text` is the column `text` in the struct `meta` or, if there is none, a column of that whole name. Only the
columns that are needed are read. A value is always in memory as a whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pretok.base.storage import Tries
from pretok.base.units import listed
from pretok.read.files import CorruptInputError
from pretok.read.format import LIST, NOTHING, OTHER, TEXT, WRITTEN, Keep, Piece, Probe, Records
from pretok.read.formats.arrow_types import (
    inner_type,
    is_json,
    is_list,
    unknown_type,
    values_of,
    without_runs,
)
from pretok.read.kept import TYPES, is_text, keep_column, type_of
from pretok.read.record_format import Conversation, RecordFormat, fields_of
from pretok.read.rejects import EMPTY, NOT_A_STRING, NULL, OK, TOO_LONG

NAMES_SHOWN = 50
"""Most columns that a message lists."""

Columns = list[Any]
"""The text and other columns of the same rows, each a pyarrow Array, or None where there is no such column."""


def schema_fields(fields: Any, prefix: str = "") -> dict[str, set[str]]:
    """Dotted name -> kind of the columns of an Arrow schema, or of the fields of a struct."""
    kinds: dict[str, set[str]] = {}
    is_ = pa.types
    for column in fields:
        name, kind = f"{prefix}{column.name}", column.type
        if is_.is_struct(kind):
            kinds |= schema_fields(kind, f"{name}.")
        else:
            kind = inner_type(kind)
            if strange := unknown_type(column):
                kinds[name] = {f"of the unknown type {strange}"}
            elif is_.is_null(kind):
                kinds[name] = {NOTHING}
            elif is_list(kind):
                kinds[name] = {LIST}
            elif is_json(kind):
                kinds[name] = {TEXT, LIST, *TYPES}  # whatever its values are
            else:
                own = type_of(kind) or OTHER
                kinds[name] = {WRITTEN if own == TEXT and not is_text(kind) else own}
    return kinds


def split_parts(probe: Probe, limit: int) -> list[tuple[Piece, int]]:
    """See `Format`: ranges of row groups or record batches."""
    pieces: list[tuple[Piece, int]] = []
    start = first = row = size = 0
    for i, (part, rows) in enumerate(zip(probe.parts, probe.rows, strict=True)):
        if size and size + part > limit:
            pieces.append((Piece(probe.file, start, i, first), size))
            start, first, size = i, row, 0
        size += part
        row += rows
    if not probe.parts:
        return [(Piece(probe.file), probe.size)]
    return [*pieces, (Piece(probe.file, start, len(probe.parts), first), size)]


class ColumnPlaces:
    """The places of the wanted columns in a schema; the first is the text.

    lists: whether the text may be lists, which become JSON; None: it is a column like the others. Raises
    CorruptInputError if there is no text column, or one of a type without a meaning here.
    """

    def __init__(self, schema: pa.Schema, names: Sequence[str], lists: bool | None) -> None:
        self._paths = [_path(schema, name) for name in names]
        self._lists = lists
        if self._paths[0] is None:
            if (count := schema.names.count(names[0])) > 1:
                raise CorruptInputError(f"{count} columns have the name {names[0]!r}")
            columns = listed([*schema_fields(schema)], NAMES_SHOWN)
            raise CorruptInputError(f"no column {names[0]!r}; the columns are {columns}")
        for path in filter(None, self._paths):
            if strange := unknown_type(_field(schema, path)):
                raise CorruptInputError(
                    f"column {'.'.join(path)!r} has the unknown type {strange}; write it as text"
                )
        self.leaves = list(dict.fromkeys(".".join(path) for path in self._paths if path))

    def columns(self, rows: pa.RecordBatch, limit: int) -> Iterator[Columns]:
        """Yield the columns of some rows, of about `limit` bytes at a time.

        A dictionary of 20 KB can stand for gigabytes. The columns are the texts, with checked offsets, UTF-8 not
        checked; which of them are none, or None; and the others.
        """
        # Sizes first: how many rows are unpacked at a time follows from what they will take, not from what they take in
        # the file.
        columns = [_checked(_pick(rows, path)) if path else None for path in self._paths]
        sizes = np.zeros(len(rows), np.int64)
        for column in columns:
            if column is not None:
                sizes += _sizes(column)
        ends, start = np.cumsum(sizes), 0
        while start < len(rows):
            before = ends[start - 1] if start else 0
            stop = max(start + 1, int(np.searchsorted(ends, before + limit, "right")))
            text, *others = (
                None if column is None else _unpacked(column.slice(start, stop - start)) for column in columns
            )
            yield [*_texts(text, self._lists), *others]
            start = stop

    def longest(self, rows: pa.RecordBatch) -> int:
        """Bytes of the longest values in the dictionaries of the columns, together."""
        columns = [_checked(_pick(rows, path)) for path in self._paths if path]
        packed = [column.dictionary for column in columns if pa.types.is_dictionary(column.type)]
        return sum(int(_sizes(values).max(initial=0)) for values in packed)


Choose = Callable[[pa.Schema], ColumnPlaces]


def _path(schema: pa.Schema, field: str) -> list[str] | None:
    """Return the names that lead to a field, through structs or as a column of the whole name.

    None if there is no such column, or several with the name.
    """
    for names in (field.split("."), [field]):
        fields = list(schema)
        for name in names:
            types = [column.type for column in fields if column.name == name]
            if len(types) != 1:
                break
            fields = list(types[0]) if pa.types.is_struct(types[0]) else []
        else:
            return names
    return None


def _field(schema: pa.Schema, path: list[str]) -> pa.Field:
    """Return the field at a path of names."""
    field = schema.field(path[0])
    for name in path[1:]:
        field = field.type.field(name)
    return field


def _pick(rows: pa.RecordBatch, path: list[str]) -> pa.Array:
    """Return the column at a path of names; null where a struct on the way is null."""
    column = rows.column(path[0])
    return pc.struct_field(column, path[1:]) if path[1:] else column


def _checked(column: pa.Array) -> pa.Array:
    """Return a column with checked offsets and indices.

    Texts, also those of a dictionary, are large_binary, since they may be other bytes than UTF-8.
    """
    column = without_runs(column)
    if pa.types.is_dictionary(column.type):
        column.validate()
        return pa.DictionaryArray.from_arrays(
            column.indices, _checked(column.dictionary)
        )  # checks the indices
    if is_text(column.type):
        return _binary(column)
    column.validate(full=True)
    return column


def _unpacked(column: pa.Array) -> pa.Array:
    """Return a column without a dictionary."""
    return column.dictionary.take(column.indices) if pa.types.is_dictionary(column.type) else column


def _sizes(column: pa.Array) -> npt.NDArray[np.int64]:
    """Return (rows,) bytes of each value once it is unpacked, texts inside of it too; the mean for other values."""
    if pa.types.is_dictionary(column.type):
        # A null has no index: it gets -1, which finds the 0 that is appended.
        sizes: npt.NDArray[np.int64] = np.append(_sizes(column.dictionary), 0)
        places: npt.NDArray[np.int64] = np.asarray(column.indices.fill_null(-1), np.int64)
        return sizes[places]
    if is_json(column.type):
        column = column.storage
    if is_text(column.type):
        return np.asarray(pc.binary_length(column).fill_null(0), np.int64)
    if pa.types.is_struct(column.type):
        return sum(map(_sizes, column.flatten()), np.zeros(len(column), np.int64))
    if is_list(column.type):
        ends: npt.NDArray[np.int64] = np.cumsum(
            np.asarray(pc.list_value_length(column).fill_null(0), np.int64)
        )
        until: npt.NDArray[np.int64] = np.append(0, np.cumsum(_sizes(column.flatten())))
        starts = ends - np.diff(ends, prepend=0)
        return np.asarray(until[ends] - until[starts], np.int64)
    return np.full(len(column), column.nbytes // max(1, len(column)))


def _texts(column: pa.Array, lists: bool | None) -> tuple[pa.LargeBinaryArray, pa.BooleanArray | None]:
    """Return the texts of a column as large_binary, with `lists` also lists as JSON; and which values are neither.

    The latter is None if the type tells that there are none. lists: None for the column as it is.
    """
    if lists is None:
        return column, None
    if lists and is_list(column.type):
        column.validate(full=True)
        return _json(values_of(column)), None
    if not is_json(column.type):
        return _binary(column), None
    taken = (list, dict) if lists else ()
    texts: list[bytes | None] = []
    wrong: list[bool] = []
    for value in values_of(column):
        if isinstance(value, str):
            texts.append(value.encode("utf-8", "surrogatepass"))
        else:
            texts.append(_encoded(value) if isinstance(value, taken) else None)
        wrong.append(not isinstance(value, (str, type(None), *taken)))
    return pa.array(texts, pa.large_binary()), pa.array(wrong)


def _binary(column: pa.Array) -> pa.LargeBinaryArray:
    """Strings or bytes of any layout as large_binary."""
    kind = column.type
    if not is_text(kind):
        raise CorruptInputError(f"the text column has type {kind}, not string or binary")
    column = column.cast(pa.binary() if kind == pa.string() else pa.large_binary())
    column.validate(full=True)
    return column.cast(pa.large_binary())


def _json(values: Sequence[Any]) -> pa.LargeBinaryArray:
    """Values as JSON, None as null."""
    return pa.array(map(_encoded, values), pa.large_binary())


def _encoded(value: Any) -> bytes | None:
    """Return a value as JSON. What is not UTF-8 stands in place of its value, so that it is rejected."""
    if isinstance(value, UnicodeDecodeError):
        return value.object
    return None if value is None else msgspec.json.encode(value)


def read_table(
    rows: Callable[[Piece, Choose, int], Iterator[Columns]],
    kind: str,
    piece: Piece,
    record: RecordFormat,
    keep: Keep,
    batch_bytes: int,
) -> Iterator[Records]:
    """Yield the records of a piece of a table.

    rows: reads some rows at a time, and gives the same at every reading; kind: of the table, for messages.

    The texts of conversations, or of a template's fields, are their JSON.
    """
    how, names = record.conversation, [*fields_read(record), *(column.field for column in keep)]
    lists = None if isinstance(how, Conversation) and how.fields else isinstance(how, Conversation)

    def choose(schema: pa.Schema) -> ColumnPlaces:
        return ColumnPlaces(schema, names, lists)

    for columns in _all_rows(lambda: rows(piece, choose, batch_bytes), kind, piece.place, batch_bytes):
        yield documents_of(columns, record, keep)


def fields_read(record: RecordFormat) -> list[str]:
    """Return the fields that make a document: of the text, or all of a template."""
    how = record.conversation
    if isinstance(how, Conversation) and how.fields:
        return list(dict.fromkeys(field for _, field in fields_of(how.template) if field))
    return [record.field]


def documents_of(columns: Columns, record: RecordFormat, keep: Keep) -> Records:
    """Return the records of these columns.

    They are the first of `fields_read`, which of its values are no text or None, the others, and those of `keep`.
    """
    text, wrong, *others = columns
    fields, how = fields_read(record), record.conversation
    if isinstance(how, Conversation) and how.fields:
        text, wrong = _objects([text, *others[: len(fields) - 1]], fields), None
    return column_records(text, others[len(fields) - 1 :], keep, record.max_document, wrong)


def _objects(columns: Columns, names: Sequence[str]) -> pa.LargeBinaryArray:
    """Return the objects of JSON whose fields are columns; without those that are null."""
    rows = len(columns[0])
    values = [[None] * rows if column is None else values_of(column) for column in columns]
    objects = []
    for row in zip(*values, strict=True):
        bad = next((value for value in row if isinstance(value, UnicodeDecodeError)), None)
        objects.append(
            bad or {name: value for name, value in zip(names, row, strict=True) if value is not None}
        )
    return _json(objects)


def _all_rows(
    read: Callable[[], Iterator[Columns]], kind: str, place: str, batch_bytes: int
) -> Iterator[Columns]:
    """Yield the batches of `read`, joined up to `batch_bytes`.

    After an error that may be temporary, it reads again and skips what was given already.

    A lack of memory names the `place`. Any other exception becomes CorruptInputError after the last rows: the
    bytes are not what the library expects.
    """
    given, tries = 0, Tries()
    waiting: list[Columns] = []
    size, damage = 0, None
    while True:
        try:
            # A reader that failed cannot go on where it was. It begins again, and what was given already is passed
            # over.
            for columns in islice(read(), given, None):
                given += 1
                more = sum(column.nbytes for column in columns if column is not None)
                if waiting and size + more > batch_bytes:
                    yield _joined(waiting)
                    waiting, size = [], 0
                waiting.append(columns)
                size += more
        except Exception as error:
            if tries.again(error):
                continue
            if isinstance(error, MemoryError):
                raise MemoryError(f"{place}: {error}") from None
            damage = error
        break
    if waiting:
        yield _joined(waiting)
    if isinstance(damage, CorruptInputError):
        raise damage
    if damage:
        message = (
            " ".join(str(damage).split()) or type(damage).__name__
        )  # those of libraries have line breaks
        what = "encrypted" if "decrypt" in message else "damaged"
        raise CorruptInputError(f"{what} {kind}: {message}") from damage


def _joined(parts: Sequence[Columns]) -> Columns:
    """Return all rows of the parts; a single part is not copied."""
    if len(parts) == 1:
        return parts[0]
    columns = zip(*parts, strict=True)
    return [None if column[0] is None else pa.concat_arrays(column) for column in columns]


def column_records(
    column: pa.Array, others: Columns, keep: Keep, limit: int, wrong: pa.BooleanArray | None = None
) -> Records:
    """Return the records of a large_binary or large_string array, with other columns of the same rows.

    Nulls are rejects. wrong: which values of the file are no texts, if the type of the column does not tell.
    """
    lengths = np.asarray(pc.binary_length(column).fill_null(0), np.int64)
    reasons = [np.asarray(column.is_null()), lengths == 0, lengths > limit]
    status = np.select(reasons, [NULL, EMPTY, TOO_LONG], OK).astype(np.uint8)
    if wrong is not None:
        status[np.asarray(wrong)] = NOT_A_STRING
    if status.any():  # a filter copies the text
        good = pa.array(status == OK)
        column = column.filter(good)
        others = [None if other is None else other.filter(good) for other in others]
    _, offsets, data = column.buffers()
    # The same bytes under another type, without a copy. They are checked for UTF-8 when the batch is complete.
    texts = pa.LargeStringArray.from_buffers(len(column), offsets, data, offset=column.offset)
    kept = [
        keep_column(pa.nulls(len(texts), TYPES[column.type]) if other is None else other, column.type)
        for other, column in zip(others, keep, strict=True)
    ]

    def explain(row: int) -> str:
        return f"more than {limit} bytes" if status[row] == TOO_LONG else ""

    return Records(status, texts, explain, lengths, np.arange(len(status)), len(status), kept)
