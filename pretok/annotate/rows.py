"""Read files of rows as tables: where each row stands, its key as texts, its values with one type per column.

Input: JSON Lines or Parquet, plain or compressed. Output: tables of some MB: `file` and `line`, the number of the file
and the line or row from 1; `k0`, ... the key; `v0`, ... the values. Keys are compared as texts: 17 equals "17", bytes
are UTF-8, a hash is its hexadecimal digits. The types of values are text, integer (64 bits), float and boolean; whole
numbers and floats in one column become float. Any other mixture is an error, and so is a value that cannot be kept:
nothing is guessed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pretok.base.errors import UsageError
from pretok.read.files import CorruptInputError, InputFile, open_parquet, raise_passing, read_bytes
from pretok.read.kept import LONGEST_VALUE, TYPES, keep_column, type_of
from pretok.read.spans import whole_records
from pretok.shards.ledger import hex_digits

BLOCK = 8 << 20
"""Bytes of JSON Lines that are parsed at a time."""
LONGEST_LINE = 64 << 20
BATCH_ROWS = 1 << 16
LEAVE = "leave it out with --columns"
TAKEN = f"text, numbers and true or false can be joined, of one type in a column: {LEAVE}"
Read = tuple[Sequence[int], dict[str, pa.Array]]
"""Lines or rows from 1, and the columns of the key and of values there."""


@dataclass(slots=True)
class Columns:
    """The columns found so far.

    by: the key; wanted: values to take, None: all but the key; taken: names, in lower case, of columns that documents
    have already; kinds: name -> type of each column of values, "" while all values are null.
    """

    by: tuple[str, ...]
    wanted: tuple[str, ...] | None
    taken: Set[str]
    kinds: dict[str, str] = field(default_factory=dict)

    def used(self, names: Sequence[str], file: InputFile) -> list[str]:
        """Return which columns are used. Raises UsageError if two of them have the same name, or one has the name of a
        column that documents have already."""
        values = [
            name for name in names if name not in self.by and (self.wanted is None or name in self.wanted)
        ]
        found = [name for name in names if name in self.by] + values
        small = [name.lower() for name in found]  # SQL tells no case apart
        for at, name in enumerate(found):
            if small.index(name.lower()) < at:
                raise UsageError(f"{file.path}: two columns are called {name}; rename one, or {LEAVE}")
        for name in values:
            if name.lower() in self.taken:
                raise UsageError(f"column {name}: documents have one of that name; rename it, or {LEAVE}")
            self.kinds.setdefault(name, "")
        return found

    def see(self, name: str, kind: pa.DataType, where: str) -> str:
        """Record the type of some values and return that of the column. Raises UsageError if they do not agree."""
        known, found = self.kinds[name], type_of(kind)
        if not pa.types.is_null(kind):
            if not found:
                raise UsageError(f"{where}: {name} holds {kind}; {TAKEN}")
            if known and known != found and {known, found} != {"integer", "float"}:
                raise UsageError(f"{where}: {name} is {found} here and {known} in rows before; {TAKEN}")
            self.kinds[name] = "float" if known and known != found else found
        return self.kinds[name]


def read_rows(number: int, file: InputFile, columns: Columns) -> Iterator[pa.Table]:
    """Read the rows of file `number` and record their types in `columns`. Raises UsageError."""
    try:
        tables = _parquet(file, columns) if file.format == "parquet" else _json_lines(file, columns)
        for lines, found in tables:
            if lines:
                yield _table(number, file, lines, found, columns)
    except CorruptInputError as error:
        raise_passing(error)
        raise UsageError(f"{file.path}: {error}") from None


def _table(
    number: int, file: InputFile, lines: Sequence[int], found: dict[str, pa.Array], columns: Columns
) -> pa.Table:
    where = f"{file.path}, line or row {lines[0]}"
    table = {
        "file": pa.repeat(pa.scalar(number, pa.int32()), len(lines)),
        "line": pa.array(lines, pa.int64()),
    }
    for at, name in enumerate(columns.by):
        if name not in found:
            raise UsageError(f"{where}: no column {name!r}; there are {', '.join(found)}")
        table[f"k{at}"] = _key(name, found[name], where)
    for at, name in enumerate(columns.kinds):
        if name in found and (kind := columns.see(name, found[name].type, where)):
            table[f"v{at}"] = _value(found[name], name, kind, file, lines)
    return pa.table(table)


def _key(name: str, column: pa.Array, where: str) -> pa.Array:
    """A column of a key as texts."""
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    is_, kind = pa.types, column.type
    binary = is_.is_binary(kind) or is_.is_large_binary(kind) or is_.is_fixed_size_binary(kind)
    if name == "hash" and binary:
        return hex_digits(column)
    if not (binary or type_of(kind) in ("text", "integer") or is_.is_null(kind)):
        raise UsageError(f"{where}: {name} is {kind}; a key is text or a whole number")
    try:
        column = column.cast(pa.large_string())
    except pa.ArrowInvalid as error:
        raise UsageError(f"{where} or after it: {name} holds bytes that are no text ({error})") from None
    return pc.ascii_lower(column) if name == "hash" else column


def _value(column: pa.Array, name: str, kind: str, file: InputFile, lines: Sequence[int]) -> pa.Array:
    """Convert a column to its type. Raises UsageError for a value that cannot be kept."""
    if pa.types.is_null(column.type):
        return pa.nulls(len(column), TYPES[kind])
    kept, wrong = keep_column(column, kind)
    if wrong:
        row = int(np.argmax(np.asarray(kept.is_null()) & np.asarray(column.is_valid())))
        raise UsageError(
            f"{file.path}, line or row {lines[row]}: {name} is {column[row].as_py()!r:.80}, which cannot be kept: a "
            f"text has at most {LONGEST_VALUE} bytes, a whole number 64 bits; {LEAVE}"
        )
    return kept


def _parquet(file: InputFile, columns: Columns) -> Iterator[Read]:
    try:
        with open_parquet(file.path) as stream, pq.ParquetFile(stream, pre_buffer=False) as opened:
            used = columns.used(opened.schema_arrow.names, file)
            row = 1
            for batch in opened.iter_batches(BATCH_ROWS, columns=used, use_threads=False):
                batch.validate(full=True)
                yield range(row, row + len(batch)), dict(zip(batch.schema.names, batch.columns, strict=True))
                row += len(batch)
    except (pa.ArrowException, OSError) as error:
        raise CorruptInputError(f"cannot be read: {error}") from error


def _json_lines(file: InputFile, columns: Columns) -> Iterator[Read]:
    decode = msgspec.json.Decoder(dict[str, Any]).decode
    before = 0  # lines before the block
    for span in whole_records(read_bytes(file.path, file.compression), b"\n", LONGEST_LINE, BLOCK):
        if span is None:
            raise UsageError(f"{file.path}: a line after line {before} has more than {LONGEST_LINE} bytes")
        data = bytes(span)
        rows = dict[int, dict[str, Any]]()
        for line, text in enumerate(data.split(b"\n"), before + 1):
            if text.strip():  # blank lines are no rows
                try:
                    rows[line] = decode(text)
                except (msgspec.DecodeError, ValueError, RecursionError) as error:
                    raise CorruptInputError(f"line {line} is not one object ({error})") from None
        names = list(dict.fromkeys(chain.from_iterable(rows.values())))
        found = dict[str, pa.Array]()
        for name in columns.used(names, file):
            values = [row.get(name) for row in rows.values()]
            if name in columns.by:  # compared as text, so that whole numbers may have any size
                values = [str(value) if type(value) is int else value for value in values]
            found[name] = _column(values, name, file, list(rows))
        yield list(rows), found
        before += data.count(b"\n")


def _column(values: list[Any], name: str, file: InputFile, lines: Sequence[int]) -> pa.Array:
    """Values of JSON as one Arrow array. Raises UsageError for the first that differs in type from those before it."""
    first = next((type(value) for value in values if value is not None), type(None))
    # Numbers never go with true or false, which Arrow takes for 1 and 0.
    alike = (int, float) if first in (int, float) else (first,)
    for line, value in zip(lines, values, strict=True):
        large = type(value) is int and not -(2**63) <= value < 2**63
        if value is not None and (type(value) not in alike or large):
            raise UsageError(
                f"{file.path}, line or row {line}: {name} is {value!r:.80}, which is too large or of another type than "
                f"those before; {TAKEN}"
            )
    try:
        return pa.array(values)
    except (pa.ArrowException, OverflowError) as error:  # of nested values
        raise UsageError(
            f"{file.path}, line or row {lines[0]} or after it: {name}: {error}; {TAKEN}"
        ) from None
