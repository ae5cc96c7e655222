"""Files of rows -> tables: the key as texts, the values in one type a column.

Input: JSON Lines or Parquet, plain or compressed. Output: tables of some MB: `h0` and `h1`, the number of the key;
`file` and `line`, the number of the file and the line or row from 1; `k0`, ... the key; `v0`, ... the values. Types are
as found: text, integer (64 bits), float, boolean; whole numbers and floats in one column are float, and any other
mixture is an error, as is a value that cannot be kept: what a person meant is not guessed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj
import pyarrow.parquet as pq

from pretok.annotate.keys import HASHES, hash_keys, key_text, one_array
from pretok.base.errors import UsageError
from pretok.read.files import CorruptInputError, InputFile, open_parquet, raise_passing, read_bytes
from pretok.read.kept import LONGEST_VALUE, TYPES, KeptColumn, kept_tables, type_of
from pretok.read.spans import whole_records

LineNumbers = npt.NDArray[np.int64]
BLOCK = 8 << 20
"""Bytes of JSON Lines that are parsed at a time."""
LONGEST_LINE = 64 << 20
BATCH_ROWS = 1 << 16


@dataclass(slots=True)
class Columns:
    """The columns of values met so far. by: the key; wanted: those to take, None for all but the key; refuse: called
    with the name of each new one, raises for one that cannot be joined; kinds: name -> type, "" while all is null;
    left: names of those that are not taken."""

    by: tuple[str, ...]
    wanted: tuple[str, ...] | None
    refuse: Callable[[str], None]
    kinds: dict[str, str] = field(default_factory=dict)
    left: dict[str, None] = field(default_factory=dict)
    _where: dict[str, str] = field(default_factory=dict)

    def take(self, names: Sequence[str]) -> list[str]:
        """Which columns of a table are values."""
        values = [name for name in names if name not in self.by]
        taken = [name for name in values if self.wanted is None or name in self.wanted]
        self.left |= dict.fromkeys(name for name in values if name not in taken)
        return taken

    def used(self, names: Sequence[str], file: InputFile) -> list[str]:
        """Which columns of a table are of the key or values. Raises UsageError where two of them have one name."""
        used = [name for name in names if name in self.by] + self.take(names)
        lower = [name.lower() for name in used]  # SQL tells no case apart
        for number, name in enumerate(used):
            if lower.index(name.lower()) < number:
                raise UsageError(
                    f"{file.path}: two columns are called {name}; rename one, or leave it out with --columns"
                )
        return used

    def see(self, name: str, kind: pa.DataType, where: str) -> None:
        """Take note of a column's type. Raises UsageError for one that does not go with what was seen."""
        if name not in self.kinds:
            self.refuse(name)
            self.kinds[name] = ""
        if pa.types.is_null(kind):
            return
        found, known = type_of(kind), self.kinds[name]
        if not found:
            raise UsageError(
                f"{where}: {name} holds {kind}; text, numbers and true or false can be joined: leave it out with "
                "--columns"
            )
        if known and known != found and {known, found} != {"integer", "float"}:
            raise UsageError(
                f"{name} is {known} in {self._where[name]} and {found} in {where}; a column has one type"
            )
        self._where.setdefault(name, where)
        self.kinds[name] = "float" if known and known != found else found


def read_values(number: int, file: InputFile, columns: Columns) -> Iterator[pa.Table]:
    """The rows of file `number`; `columns` learns their types, a column without a value so far is left out. Raises
    UsageError."""
    try:
        tables = _parquet(file, columns) if file.format == "parquet" else _json_lines(file, columns)
        for lines, table in tables:
            yield _rows(number, file, lines, table, columns)
    except CorruptInputError as error:
        raise_passing(error)
        raise UsageError(f"{file.path}: {error}") from None


def rows_schema(by: Sequence[str]) -> pa.Schema:
    """The columns of all tables, before those of the values."""
    keys = ((f"k{at}", pa.large_string()) for at in range(len(by)))
    place = [("file", pa.int32()), ("line", pa.int64())]
    return pa.schema([*((name, pa.uint64()) for name in HASHES), *place, *keys])


def _rows(number: int, file: InputFile, lines: LineNumbers, table: pa.Table, columns: Columns) -> pa.Table:
    where = f"{file.path}, line or row {lines[0] if len(lines) else 1}"
    names = table.schema.names
    if lacking := [name for name in columns.by if name not in names]:
        raise UsageError(f"{where}: no column {lacking[0]!r}; there are {', '.join(names)}")
    keys = []
    for name in columns.by:
        try:
            key = key_text(name, one_array(table, name))
        except pa.ArrowInvalid as error:
            raise UsageError(f"{where} or after it: {name} holds bytes that are no text ({error})") from None
        if key is None:
            raise UsageError(
                f"{where}: {name} is {table.schema.field(name).type}; a key is text or a whole number"
            )
        keys.append(pc.ascii_lower(key) if name == "hash" else key)
    for name in columns.take(names):
        columns.see(name, table.schema.field(name).type, where)
    place = [pa.repeat(pa.scalar(number, pa.int32()), len(table)), pa.array(lines, pa.int64())]
    found = dict(zip(rows_schema(columns.by).names, [*hash_keys(keys), *place, *keys], strict=True))
    for at, (name, kind) in enumerate(columns.kinds.items()):
        if kind:
            column = one_array(table, name) if name in names else pa.nulls(len(table))
            found[f"v{at}"] = _value(column, name, kind, file, lines)
    return pa.table(found)


def _value(column: pa.Array, name: str, kind: str, file: InputFile, lines: LineNumbers) -> pa.Array:
    if pa.types.is_null(column.type):
        return pa.nulls(len(column), TYPES[kind])
    kept = kept_tables([column], [KeptColumn(name, name, kind)], len(column))
    if kept.wrong.any():
        row = int(np.flatnonzero(kept.wrong[0])[0])
        raise UsageError(
            f"{file.path}, line or row {lines[row]}: {name} is {kept.show(row, 0)[:80]}, which cannot be kept: a text "
            f"has at most {LONGEST_VALUE} bytes, a whole number 64 bits; leave it out with --columns"
        )
    return kept.columns[0]


def _parquet(file: InputFile, columns: Columns) -> Iterator[tuple[LineNumbers, pa.Table]]:
    try:
        with open_parquet(file.path) as stream, pq.ParquetFile(stream, pre_buffer=False) as opened:
            taken = columns.used(opened.schema_arrow.names, file)
            row = 1
            for batch in opened.iter_batches(BATCH_ROWS, columns=taken, use_threads=False):
                batch.validate(full=True)
                yield np.arange(row, row + len(batch)), pa.Table.from_batches([batch])
                row += len(batch)
    except (pa.ArrowException, OSError) as error:
        raise CorruptInputError(f"cannot be read: {error}") from error


def _json_lines(file: InputFile, columns: Columns) -> Iterator[tuple[LineNumbers, pa.Table]]:
    line = 1
    for span in whole_records(read_bytes(file.path, file.compression), b"\n", LONGEST_LINE, BLOCK):
        if span is None:
            raise UsageError(f"{file.path}: a line after line {line} has more than {LONGEST_LINE} bytes")
        data = bytes(span)
        if data.strip():
            texts = [text.strip() for text in data.split(b"\n")]
            lines = line + np.flatnonzero([bool(text) for text in texts])  # blank ones are no rows
            objects = [text for text in texts if text]
            table = _parse(data, file.path, lines)
            # The parser knows no lines: it takes two objects on one, and one object on two.
            whole = all(text[:1] == b"{" and text[-1:] == b"}" for text in objects)
            if not whole or len(objects) != len(table):
                _refuse_line(objects, lines)
            _refuse_wide(table, columns.used(table.schema.names, file), objects, lines)
            yield lines, table
        line += data.count(b"\n")


def _refuse_line(texts: Sequence[bytes], lines: LineNumbers) -> None:
    """Name the first line that is not one object."""
    for text, line in zip(texts, lines.tolist(), strict=True):
        try:
            whole = isinstance(json.loads(text), dict)
        except ValueError:
            whole = False
        if not whole:
            raise CorruptInputError(f"line {line} is not one object")


def _refuse_wide(table: pa.Table, used: Sequence[str], texts: Sequence[bytes], lines: LineNumbers) -> None:
    """A whole number beyond 64 bits makes the parser call its column, and all others of it, floats."""
    for name in used:
        if not pa.types.is_floating(table.schema.field(name).type):
            continue
        large = np.flatnonzero(np.abs(np.nan_to_num(table[name].to_numpy())) >= 2.0**63)
        for row in large.tolist():
            if isinstance(value := json.loads(texts[row])[name], int):
                raise CorruptInputError(
                    f"line {lines[row]}: {name} is {value}; a whole number has at most 64 bits: write it as a text, or "
                    "leave it out with --columns"
                )


def _parse(data: bytes, path: str, lines: LineNumbers) -> pa.Table:
    """Lines as a table; lines: the number of each that is not blank; what looks like a date as the text it is."""
    reading = pj.ReadOptions(use_threads=False, block_size=len(data) + 1)
    copy = pa.BufferOutputStream()  # a thread of Arrow holds what is read: memory of Python it could not free
    copy.write(data)
    given = copy.getvalue()
    try:
        table = pj.read_json(pa.BufferReader(given), reading)
        dates = [field.name for field in table.schema if pa.types.is_temporal(field.type)]
        if dates:
            texts = pa.schema([(name, pa.string()) for name in dates])
            table = pj.read_json(pa.BufferReader(given), reading, pj.ParseOptions(explicit_schema=texts))
        table.validate(full=True)
    except pa.ArrowInvalid as error:
        what = str(error).partition("\n")[0]
        row = re.search(r"in row (\d+)", what)
        at = f", line {lines[min(int(row[1]), len(lines) - 1)]}" if row else f", line {lines[0]} or after it"
        raise UsageError(f"{path}{at}: {what}") from None
    return table
