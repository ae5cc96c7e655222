"""Files of rows -> tables: where each row stands, its key as texts, its values in one type a column.

Input: JSON Lines or Parquet, plain or compressed. Output: tables of some MB: `file` and `line`, the number of the file
and the line or row from 1; `k0`, ... the key; `v0`, ... the values, of columns that have one. Keys are compared as
texts: 17 is "17", bytes are those of a text in UTF-8, a hash is its hexadecimal digits. Types of values are as found:
text, integer (64 bits), float, boolean; whole numbers and floats in one column are float, and any other mixture is an
error, as is a value that cannot be kept: what a person meant is not guessed.
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
TAKEN = f"text, numbers and true or false can be joined: {LEAVE}"
NAMES: dict[type, str] = {str: "text", int: "integer", float: "float", bool: "boolean"}
"""Of the types of values in JSON."""
Read = tuple[Sequence[int], dict[str, pa.Array]]
"""Lines or rows from 1, and the columns of the key and of values there."""


@dataclass(slots=True)
class Columns:
    """What the columns met so far are."""

    by: tuple[str, ...]
    """The key."""
    wanted: tuple[str, ...] | None
    """The values to take, None for all but the key."""
    taken: Set[str]
    """Names in small letters of columns that documents have already."""
    kinds: dict[str, str] = field(default_factory=dict)
    """Name -> type of each column of values, "" while all is null."""
    left: dict[str, None] = field(default_factory=dict)
    """Names of those that are not taken."""
    first: dict[str, str] = field(default_factory=dict)
    """Where a column had its first value."""

    def used(self, names: Sequence[str], file: InputFile) -> list[str]:
        """Which columns are of the key or values. Raises UsageError where two of them have one name, or one has that of
        what documents have already."""
        of_key = [name for name in names if name in self.by]
        others = [name for name in names if name not in self.by]
        values = [name for name in others if self.wanted is None or name in self.wanted]
        self.left |= dict.fromkeys(name for name in others if name not in values)
        seen = set[str]()
        for name in (*of_key, *values):
            if name.lower() in seen:  # SQL tells no case apart
                raise UsageError(f"{file.path}: two columns are called {name}; rename one, or {LEAVE}")
            seen.add(name.lower())
        for name in values:
            if name not in self.kinds:
                if name.lower() in self.taken:
                    raise UsageError(f"column {name}: documents have one of that name; rename it, or {LEAVE}")
                self.kinds[name] = ""
        return [*of_key, *values]

    def see(self, name: str, kind: pa.DataType, where: str) -> None:
        """Take note of a type. Raises UsageError for one that does not go with what was seen."""
        if pa.types.is_null(kind):
            return
        found, known = type_of(kind), self.kinds[name]
        if not found:
            raise UsageError(f"{where}: {name} holds {kind}; {TAKEN}")
        if known and known != found and {known, found} != {"integer", "float"}:
            raise _mixed(name, known, self.first[name], found, where)
        self.first.setdefault(name, where)
        self.kinds[name] = "float" if known and known != found else found


def _mixed(name: str, kind: str, where: str, other: str, there: str) -> UsageError:
    return UsageError(f"{name} is {kind} in {where} and {other} in {there}; a column has one type")


def read_rows(number: int, file: InputFile, columns: Columns) -> Iterator[pa.Table]:
    """The rows of file `number`; `columns` learns their types. Raises UsageError."""
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
        if name in found:
            columns.see(name, found[name].type, where)
            if kind := columns.kinds[name]:
                table[f"v{at}"] = _value(found[name], name, kind, file, lines)
    return pa.table(table)


def _key(name: str, column: pa.Array, where: str) -> pa.Array:
    """A column of a key as texts."""
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    is_, kind = pa.types, column.type
    binary = is_.is_binary(kind) or is_.is_large_binary(kind) or is_.is_fixed_size_binary(kind)
    texts = is_.is_string(kind) or is_.is_large_string(kind) or is_.is_string_view(kind)
    if name == "hash" and binary:
        return hex_digits(column)
    if not (binary or texts or is_.is_integer(kind) or is_.is_null(kind)):
        raise UsageError(f"{where}: {name} is {kind}; a key is text or a whole number")
    try:
        column = column.cast(pa.large_string())
    except pa.ArrowInvalid as error:
        raise UsageError(f"{where} or after it: {name} holds bytes that are no text ({error})") from None
    return pc.ascii_lower(column) if name == "hash" else column


def _value(column: pa.Array, name: str, kind: str, file: InputFile, lines: Sequence[int]) -> pa.Array:
    """A column as one of its type. UsageError names a value that cannot be kept."""
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
        lines, rows = list[int](), list[dict[str, Any]]()
        for line, text in enumerate(data.split(b"\n"), before + 1):
            if text.strip():  # blank lines are no rows
                try:
                    rows.append(decode(text))
                except (msgspec.DecodeError, ValueError, RecursionError) as error:
                    raise CorruptInputError(f"line {line} is not one object ({error})") from None
                lines.append(line)
        names = list(dict.fromkeys(chain.from_iterable(rows)))
        yield (
            lines,
            {
                name: _column([row.get(name) for row in rows], name, file, lines, columns)
                for name in columns.used(names, file)
            },
        )
        before += data.count(b"\n")


def _column(
    values: list[Any], name: str, file: InputFile, lines: Sequence[int], columns: Columns
) -> pa.Array:
    """Values of JSON as one Arrow array; whole numbers of a key as texts."""
    kinds = set(map(type, values)) - {type(None)}
    if name in columns.by and kinds <= {str, int}:
        return pa.array([value if value is None else str(value) for value in values], pa.large_string())
    if kinds - NAMES.keys() or (len(kinds) > 1 and kinds != {int, float}):
        first = {type(value): line for line, value in zip(reversed(lines), reversed(values), strict=True)}
        found = sorted(kinds, key=first.__getitem__)
        at = [f"{file.path}, line or row {first[kind]}" for kind in found]
        for kind, where in zip(found, at, strict=True):
            if kind not in NAMES:
                raise UsageError(f"{where}: {name} holds {kind.__name__}; {TAKEN}")
        raise _mixed(name, NAMES[found[0]], at[0], NAMES[found[1]], at[1])
    if int in kinds:
        for line, value in zip(lines, values, strict=True):
            if type(value) is int and not -(2**63) <= value < 2**63:
                raise UsageError(
                    f"{file.path}: line {line}: {name} is {value}; a whole number has at most 64 bits: write it as a "
                    f"text, or {LEAVE}"
                )
    if kinds == {int, float}:
        values = [value if value is None else float(value) for value in values]
    return pa.array(values)
