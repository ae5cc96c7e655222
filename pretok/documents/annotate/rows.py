"""Load files of rows into DuckDB, with one type per column.

Input: JSON Lines or Parquet, plain or compressed. Output: the table `given` with a row for each of theirs: `place`,
where it stands (`place_of`); `key`, the hash of its key; `v0`, `v1`, ... the values. 17 and "17" are the same key,
bytes are UTF-8, a hash is its hexadecimal digits. A column of values is text, integer (64 bits), float or boolean.
Whole numbers and floats in one column become float; any other mixture is an error, and so is a value that would change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence, Set
from functools import partial
from itertools import chain
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pretok.base.errors import UsageError
from pretok.base.sql import duckdb_message
from pretok.read.files import CorruptInputError, InputFile, in_file, open_parquet, raise_passing
from pretok.read.fill import fill_from
from pretok.read.kept import LONGEST_VALUE, is_text, keep_column, type_of
from pretok.read.whole_records import whole_records

BLOCK = 2 << 20
"""Bytes of JSON Lines that are parsed at a time."""
LONGEST_LINE = 64 << 20
BATCH_ROWS = 1 << 16
LINES = 1 << 40
"""More lines than a file has."""
SQL_TYPES = {"text": "VARCHAR", "integer": "BIGINT", "float": "DOUBLE", "boolean": "BOOLEAN", "": "VARCHAR"}
"""Type of a column (`read.kept.TYPES`), "" if it has no value so far -> DuckDB's type for it."""
LEAVE = "leave it out with --columns"
LIMITS = (
    f"a column holds texts of at most {LONGEST_VALUE} bytes, numbers of 64 bits, or true and false: {LEAVE}"
)
Block = tuple[Sequence[int], Iterator[tuple[str, Any]]]
"""(line or row of each row, from 1; (name, values) of each column: an Arrow array or a list)."""
Used = Callable[[Sequence[str]], list[str]]
"""Names of all columns -> those that are used."""


def load_rows(
    sql: Any, inputs: Sequence[InputFile], by: Sequence[str], wanted: Sequence[str] | None, taken: Set[str]
) -> dict[str, str]:
    """Fill the table `given`, and return name -> type of the columns of values, in the order of `v0`, `v1`, ...

    by: the key; wanted: columns of values, None: all but the key; taken: names, in lower case, of columns that
    documents have already. Raises UsageError.
    """
    sql.execute("CREATE TABLE given (place BIGINT, key UHUGEINT)")
    kinds: dict[str, str] = {}
    for number, file in enumerate(inputs):
        used = partial(_used, file.path, by, wanted, taken)
        try:
            for lines, columns in (_parquet if file.format == "parquet" else _json_lines)(file, used):
                block = _block(sql, kinds, by, f"{file.path}, line or row {lines[0]} or after it", columns)
                block["place"] = pa.array(number * LINES + np.asarray(lines, np.int64))
                sql.register("block", pa.table(block))
                columns_sql = f"COLUMNS('place|v[0-9]+'), {key_of(by)} AS key"
                sql.execute(f"INSERT INTO given BY NAME SELECT {columns_sql} FROM block")
        except CorruptInputError as error:
            raise_passing(error)
            raise UsageError(f"{file.path}: {error}") from None
    if missing := [name for name in wanted or () if name not in kinds]:
        raise UsageError(f"--columns: no row has {missing[0]!r}")
    return {name: kind or "text" for name, kind in kinds.items()}


def place_of(inputs: Sequence[InputFile], place: int) -> str:
    """Return the file and the line or row of a `place`."""
    return f"{inputs[place // LINES].path}, line or row {place % LINES}"


def key_of(by: Sequence[str]) -> str:
    """Return the SQL of a key. The lengths distinguish ('a', 'bc') from ('ab', 'c'); `||` is null if one of them is."""
    parts = " || ".join(f"length(k{at}) || ':' || k{at}" for at in range(len(by)))
    return f"md5_number({parts})"


def _used(
    path: str, by: Sequence[str], wanted: Sequence[str] | None, taken: Set[str], names: Sequence[str]
) -> list[str]:
    """Choose among the columns of a file.

    Raise UsageError if the key is not there, or SQL, which ignores case, could not tell two columns apart.
    """
    chosen = [name for name in names if name in by or wanted is None or name in wanted]
    small = [name.lower() for name in chosen]
    for at, name in enumerate(chosen):
        if small.index(name.lower()) < at:
            raise UsageError(f"{path}: two columns have the name {name}; rename one, or {LEAVE}")
        if name.lower() in taken and name not in by:
            raise UsageError(f"column {name}: documents have one of that name; rename it, or {LEAVE}")
    if absent := [name for name in by if name not in chosen]:
        raise UsageError(f"{path}: no column {absent[0]!r}; the columns are {', '.join(names)}")
    return chosen


def _parquet(file: InputFile, used: Used) -> Iterator[Block]:
    """Yield the rows of a Parquet file."""
    try:
        with open_parquet(file.path) as stream, pq.ParquetFile(stream, pre_buffer=False) as opened:
            names, first = used(opened.schema_arrow.names), 1
            for batch in opened.iter_batches(BATCH_ROWS, columns=names, use_threads=False):
                # A damaged file may hold offsets that point outside of its buffers.
                batch.validate(full=True)
                yield range(first, first + len(batch)), zip(batch.schema.names, batch.columns, strict=True)
                first += len(batch)
    except (pa.ArrowException, OSError) as error:
        raise CorruptInputError(f"cannot be read: {error}") from error


def _json_lines(file: InputFile, used: Used) -> Iterator[Block]:
    """Yield the rows of a file of JSON Lines, in which blank lines are no rows."""
    before, decode = 0, msgspec.json.Decoder(dict[str, Any]).decode
    for span in whole_records(fill_from(in_file(file.path), file.compression), b"\n", LONGEST_LINE, BLOCK):
        if span is None:
            raise UsageError(f"{file.path}: a line after line {before} has more than {LONGEST_LINE} bytes")
        rows: dict[int, dict[str, Any]] = {}
        texts = bytes(span).split(b"\n")
        for line, text in enumerate(texts, before + 1):
            try:
                if text.strip():
                    rows[line] = decode(text)
            except (ValueError, RecursionError) as error:
                raise UsageError(f"{file.path}: line {line} is not one JSON object: {error}") from None
        before += len(texts) - 1
        if rows:
            names = used(list(dict.fromkeys(chain.from_iterable(rows.values()))))
            yield list(rows), ((name, [row.get(name) for row in rows.values()]) for name in names)


def _block(
    sql: Any, kinds: dict[str, str], by: Sequence[str], where: str, columns: Iterator[tuple[str, Any]]
) -> dict[str, pa.Array]:
    """Return the columns of the key, `k0`, ..., and of values, `v0`, ..., with their types. Raises UsageError."""
    import duckdb

    block = {}
    for name, values in columns:
        try:
            if name in by:
                block[f"k{by.index(name)}"] = _key(name, values)
            else:
                column = _values(sql, kinds, name, values)
                block[f"v{list(kinds).index(name)}"] = column
        except (
            ValueError,
            TypeError,
            OverflowError,
            pa.ArrowException,
            duckdb.InvalidInputException,
        ) as error:
            raise UsageError(f"{where}: {name}: {duckdb_message(error)}; {LIMITS}") from None
    return block


def _key(name: str, values: Any) -> pa.Array:
    """Return a column of the key as texts. Raises ValueError."""
    if isinstance(values, list):  # of JSON, in which the same key may be a text or a whole number
        values = pa.array([str(value) if type(value) is int else value for value in values])
    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    if pa.types.is_fixed_size_binary(values.type):
        values = values.cast(pa.binary())
    kind = values.type
    if not (pa.types.is_null(kind) or is_text(kind) or type_of(kind) in ("text", "integer")):
        raise ValueError(f"it is {kind}; a key is text or a whole number")
    # Other tools write hashes in capitals, too.
    if name != "hash":
        return values.cast(pa.large_string())
    texts = [value.hex() if isinstance(value, bytes) else value for value in values.to_pylist()]
    return pc.ascii_lower(pa.array(texts, pa.large_string()))


def _values(sql: Any, kinds: dict[str, str], name: str, values: Any) -> pa.Array:
    """Return the values of a column with the type of all of them, which becomes wider if it must. Raises ValueError."""
    values = pa.array(values) if isinstance(values, list) else values
    if alike := [other for other in kinds if other.lower() == name.lower() and other != name]:
        raise ValueError(f"rows before have the column {alike[0]}, and SQL ignores case; rename one")
    known, empty = kinds.get(name, ""), pa.types.is_null(values.type)
    kind = known if empty else type_of(values.type)
    mixed = {known, kind} - {""}
    if (not kind and not empty) or (len(mixed) == 2 and mixed != {"integer", "float"}):
        raise ValueError(f"it is {kind or values.type}" + (f", {known} in rows before" if known else ""))
    now = kinds[name] = "float" if len(mixed) == 2 else kind
    at, sql_type = list(kinds).index(name), SQL_TYPES[now]
    sql.execute(f"ALTER TABLE given ADD COLUMN IF NOT EXISTS v{at} {sql_type}")
    if now != known:  # its first value, or a float after whole numbers
        # A whole number that no float equals would become another value without a word.
        exact = f"if(v{at}::DOUBLE::HUGEINT = v{at}, v{at}::DOUBLE, error('no float is ' || v{at}))"
        sql.execute(f"ALTER TABLE given ALTER v{at} TYPE {sql_type} {f'USING {exact}' if known else ''}")
    if (kind, now) == ("integer", "float"):
        values = values.cast(pa.float64())
    column, lost = keep_column(values, now or "text")
    if lost.any():
        raise ValueError("a value is too large")
    return column
