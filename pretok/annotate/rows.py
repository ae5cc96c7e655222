"""Load files of rows into DuckDB, with one type per column.

Input: JSON Lines or Parquet, plain or compressed. Output: the table `given` with a row for each of theirs: `file` and
`line`, the number of the file and the line or row from 1; `k0`, ... the key as texts; `key`, their hash; `v0`, ... the
values. 17 and "17" are the same key, bytes are UTF-8, a hash is its hexadecimal digits. A column of values is text,
integer (64 bits), float or boolean; whole numbers and floats in one column become float. Any other mixture is an error,
and so is a value that cannot be kept: nothing is guessed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence, Set
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pretok.base.errors import UsageError
from pretok.base.sql import quoted, told
from pretok.read.files import CorruptInputError, InputFile, open_parquet, raise_passing, read_bytes
from pretok.read.kept import LONGEST_VALUE
from pretok.read.spans import whole_records
from pretok.shards.documents import identifier

BLOCK = 2 << 20
"""Bytes of JSON Lines that are parsed at a time: DuckDB needs many times as much memory."""
LONGEST_LINE = 64 << 20
BATCH_ROWS = 1 << 16
SQL_TYPES = {"text": "VARCHAR", "integer": "BIGINT", "float": "DOUBLE", "boolean": "BOOLEAN", "": "VARCHAR"}
"""Type of a column (`read.kept.TYPES`), "" if it has no value so far -> DuckDB's type for it."""
KINDS = {
    "text": "VARCHAR",
    "integer": r"U?(TINY|SMALL|BIG|HUGE)?INT(EGER)?",
    "float": "FLOAT|DOUBLE",
    "boolean": "BOOLEAN",
    "": '"NULL"',
}
"""Type of a column -> the types of DuckDB that become it."""
LEAVE = "leave it out with --columns"
LIMITS = (
    f"a column holds texts of at most {LONGEST_VALUE} bytes, numbers of 64 bits, or true and false: {LEAVE}"
)
Used = Callable[[Sequence[str]], list[str]]
"""Names of all columns -> those that are used."""


def load_rows(
    sql: Any, inputs: Sequence[InputFile], by: Sequence[str], wanted: Sequence[str] | None, taken: Set[str]
) -> dict[str, str]:
    """Fill the table `given`, and return name -> type of the columns of values, in the order of `v0`, `v1`, ...

    by: the key; wanted: columns of values, None: all but the key; taken: names, in lower case, of columns that
    documents have already. Raises UsageError.
    """
    import duckdb

    texts = ", ".join(f"k{at} VARCHAR" for at in range(len(by)))
    sql.execute(f"CREATE TABLE given (file INTEGER, line BIGINT, {texts}, key UHUGEINT)")
    kinds: dict[str, str] = {}
    for number, file in enumerate(inputs):

        def used(names: Sequence[str], path: str = file.path) -> list[str]:
            chosen = [name for name in names if name in by or wanted is None or name in wanted]
            _check_names(path, chosen, by, taken)
            return chosen

        blocks = _parquet(sql, file, used) if file.format == "parquet" else _json_lines(sql, file, used, by)
        try:
            for first in blocks:
                _insert(sql, number, f"{file.path}, line or row {first}", by, kinds)
        except CorruptInputError as error:
            raise_passing(error)
            raise UsageError(f"{file.path}: {error}") from None
        except (duckdb.ConversionException, duckdb.NotImplementedException) as error:
            # Bytes of a key that are no text, or a type of Arrow that DuckDB does not have.
            raise UsageError(f"{file.path}: {told(error)}") from None
    if missing := [name for name in wanted or () if name not in kinds]:
        raise UsageError(f"--columns: no row has {missing[0]!r}")
    return {name: kind or "text" for name, kind in kinds.items()}


def key_of(by: Sequence[str]) -> str:
    """Return the SQL of a key. The lengths distinguish ('a', 'bc') from ('ab', 'c'); `||` is null if one of them is."""
    parts = " || ".join(f"length(k{at}) || ':' || k{at}" for at in range(len(by)))
    return f"md5_number({parts})"


def _check_names(path: str, names: Sequence[str], by: Sequence[str], taken: Set[str]) -> None:
    """Raise UsageError if the key is not there, or SQL, which ignores case, could not tell two columns apart."""
    small = [name.lower() for name in names]
    for at, name in enumerate(names):
        if small.index(name.lower()) < at:
            raise UsageError(f"{path}: two columns are called {name}; rename one, or {LEAVE}")
        if name.lower() in taken and name not in by:
            raise UsageError(f"column {name}: documents have one of that name; rename it, or {LEAVE}")
    if absent := [name for name in by if name not in names]:
        raise UsageError(f"{path}: no column {absent[0]!r}; there are {', '.join(names)}")


def _parquet(sql: Any, file: InputFile, used: Used) -> Iterator[int]:
    """Fill the table `block` with some rows and `pretok:line`, and yield the number of the first."""
    try:
        with open_parquet(file.path) as stream, pq.ParquetFile(stream, pre_buffer=False) as opened:
            names, first = used(opened.schema_arrow.names), 1
            for batch in opened.iter_batches(BATCH_ROWS, columns=names, use_threads=False):
                batch.validate(full=True)
                lines = pa.array(range(first, first + len(batch)), pa.int64())
                columns = [lines, *map(_plain, batch.columns)]
                sql.register("rows", pa.table(columns, ["pretok:line", *batch.schema.names]))
                sql.execute("CREATE OR REPLACE TEMP TABLE block AS SELECT * FROM rows")
                yield first
                first += len(batch)
    except (pa.ArrowException, OSError) as error:
        raise CorruptInputError(f"cannot be read: {error}") from error


def _plain(column: pa.Array) -> pa.Array:
    """Write dates, times and decimal numbers as text, as those of documents are, and not in the time zone of DuckDB."""
    kind = column.type
    if pa.types.is_temporal(kind) or pa.types.is_decimal(kind):
        return column.cast(pa.large_string())
    return column.cast(pa.float32()) if pa.types.is_float16(kind) else column


def _json_lines(sql: Any, file: InputFile, used: Used, by: Sequence[str]) -> Iterator[int]:
    """Do the same with JSON Lines, in which blank lines are no rows. DuckDB finds one type for all values of a column:
    JSON if there is none."""
    before = 0  # lines before the span
    # DuckDB could read the file itself, but checks no checksum of gzip or zstd, and does not know lines.
    for span in whole_records(read_bytes(file.path, file.compression), b"\n", LONGEST_LINE, BLOCK):
        if span is None:
            raise UsageError(f"{file.path}: a line after line {before} has more than {LONGEST_LINE} bytes")
        lines = bytes(span).split(b"\n")
        rows = pa.table({"line": range(before + 1, before + 1 + len(lines)), "data": lines})
        sql.register("rows", rows.filter([bool(line.strip()) for line in lines]))
        sql.execute(
            "CREATE OR REPLACE TEMP TABLE texts AS SELECT line, TRY_CAST(try(decode(data)) AS JSON) AS text FROM rows"
        )
        wrong = "min(line) FILTER (json_type(text) IS DISTINCT FROM 'OBJECT')"
        query = f"SELECT min(line), {wrong}, json_group_structure(text) FROM texts"
        first, line, structure_json = sql.execute(query).fetchone()
        if line is not None:
            raise UsageError(f"{file.path}: line {line} is not one JSON object")
        if first is not None:
            # If all rows are {}, DuckDB's name for their structure is JSON.
            structure = {} if structure_json == '"JSON"' else json.loads(structure_json)
            types = {name: structure[name] for name in used(list(structure))}
            types |= {name: "VARCHAR" for name in by if types[name] == "JSON"}  # texts and numbers
            for name in (name for name, kind in types.items() if kind == "DOUBLE"):
                _refuse_rounded(sql, file.path, name)
            sql.execute(
                f"""CREATE OR REPLACE TEMP TABLE block AS
                SELECT line AS "pretok:line", unnest(json_transform(text, {quoted(json.dumps(types))})) FROM texts"""
            )
            yield first
        before += bytes(span).count(b"\n")


def _refuse_rounded(sql: Any, path: str, name: str) -> None:
    """Raise UsageError for a number that a float would not hold: JSON has no limits."""
    number = f"json_transform(text, {quoted(json.dumps({name: 'JSON'}))}).{identifier(name)}::VARCHAR"
    wrong = "regexp_full_match(number, '-?[0-9]{17,}') OR isinf(TRY_CAST(number AS DOUBLE))"
    query = f"SELECT line, number FROM (SELECT line, {number} AS number FROM texts) WHERE {wrong} ORDER BY 1 LIMIT 1"
    if row := sql.execute(query).fetchone():
        raise UsageError(
            f"{path}, line or row {row[0]}: {name} is {row[1]:.80}, which is too large; {LIMITS}"
        )


def _insert(sql: Any, number: int, where: str, by: Sequence[str], kinds: dict[str, str]) -> None:
    """Add the rows of `block` to `given`, and the types of its columns to `kinds`. Raises UsageError."""
    columns = [f"{number} AS file", '"pretok:line" AS line']
    types = {
        name: kind for name, kind, *_ in sql.execute("DESCRIBE block").fetchall() if name != "pretok:line"
    }
    for name, sql_type in types.items():
        column = identifier(name)
        kind = next((kind for kind, some in KINDS.items() if re.fullmatch(some, sql_type)), None)
        if name in by:
            if sql_type == "BLOB":
                column = f"hex({column})" if name == "hash" else f"decode({column})"
            elif kind not in ("text", "integer", ""):
                raise UsageError(
                    f"{where} or after it: {name} is {sql_type}; a key is text or a whole number"
                )
            text = f"lower({column})" if name == "hash" else f"{column}::VARCHAR"
            columns.append(f"{text} AS k{by.index(name)}")
            continue
        known = kinds.get(name, "")
        mixed = {known, kind} - {""}
        if kind is None or (len(mixed) == 2 and mixed != {"integer", "float"}):
            shown = "of more than one type" if sql_type == "JSON" else kind or sql_type
            before = f", {known} in rows before" if known else ""
            raise UsageError(f"{where} or after it: {name} is {shown}{before}; {LIMITS}")
        kinds[name] = "float" if len(mixed) == 2 else kind or known
        wrong = {
            "text": f"strlen({column}::VARCHAR) > {LONGEST_VALUE}",
            "integer": f"{column} NOT NULL AND TRY_CAST({column} AS BIGINT) IS NULL",
        }.get(kind, "false")
        at, sql_type = list(kinds).index(name), SQL_TYPES[kinds[name]]
        columns.append(f"{column}::{sql_type} AS v{at}")
        sql.execute(f"ALTER TABLE given ADD COLUMN IF NOT EXISTS v{at} {sql_type}")
        if kinds[name] != known:  # its first value, or a float after whole numbers
            sql.execute(f"ALTER TABLE given ALTER v{at} TYPE {sql_type}")
        query = f'SELECT "pretok:line" FROM block WHERE {wrong} ORDER BY 1 LIMIT 1'
        if row := sql.execute(query).fetchone():
            raise UsageError(f"{where}: {name} is too large in line or row {row[0]}; {LIMITS}")
    sql.execute(
        f"INSERT INTO given BY NAME SELECT *, {key_of(by)} AS key FROM (SELECT {', '.join(columns)} FROM block)"
    )
