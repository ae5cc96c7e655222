"""The inputs of a source -> what planning must know of each: how much text it holds, and whether it has the field.

Input: InputFiles, the name of the text field, and what is to be kept beside it. Output: a Probe of each, UsageError
when the field is in none; the one type of each kept column. Of every Parquet file the footer is read, once; of JSON
Lines the first records of some files. Types are decided here, once: they must not follow from which records a worker
happens to read.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Any

from pretok.base.console import SILENT, Console
from pretok.base.errors import UsageError
from pretok.base.reads import map_reads
from pretok.base.records import replace
from pretok.base.storage import tried
from pretok.base.units import listed
from pretok.read.files import CorruptInputError, InputFile, arrow_batches, open_parquet, read_bytes
from pretok.read.guarded import in_child
from pretok.read.kept import KeptColumn, type_of
from pretok.read.paths import is_remote

COMPRESSION_RATIO = 3.0
"""Assumed bytes of text per byte of a zstd or gzip file."""
PROBED_FILES = 32
"""How many JSON Lines files of a source are looked into, at even distances: opening a million takes minutes."""
PROBED_RECORDS, PROBED_BYTES = 20, 1 << 20
"""How much of such a file is read to see whether it has the field: what comes first of the two."""
NULL = "null"
"""Type of a field that has no value."""
NAMED = 10
"""Text fields that a message names."""
FIELDS_NAMED = 50
"""Fields of any type that a message names."""


@dataclass(frozen=True, slots=True)
class Probe:
    """What is known of an input before it is read.

    size: expected bytes of text; parts, rows: the same, and the rows, of each row group or record batch of a table;
    judged: whether its records were looked at; problem: why they give no document, ""
    if they do; fields: by their dotted names the types that were seen (of `kept.TYPES`, NULL, or "" for any other).
    """

    file: InputFile
    size: int
    parts: tuple[int, ...] = ()
    rows: tuple[int, ...] = ()
    judged: bool = False
    problem: str = ""
    fields: dict[str, set[str]] = field(default_factory=dict)


def probe_inputs(
    inputs: Sequence[InputFile], field: str, lists: bool = False, console: Console = SILENT
) -> list[Probe]:
    """A Probe of each input. `console` hears of files without the field; UsageError when all that were judged are.

    lists: whether the field may hold messages.
    """
    lines = [file for file in inputs if file.format == "jsonl" and file.size]
    looked_into = set(lines[:: -(-len(lines) // PROBED_FILES) or 1])
    parquet = [file for file in inputs if file.format == "parquet"]
    known: dict[InputFile, Probe | None] = {}
    # Of a damaged footer pyarrow tells the size of a column by ending the process (seen with 23); reading is safe.
    known |= zip(parquet, in_child(partial(_probe_parquet, field=field, lists=lists), parquet), strict=True)
    opened = [file for file in inputs if file in looked_into or file.format == "arrow"]
    far = any(is_remote(file.path) for file in opened)
    probed = map_reads(lambda file: _probe(file, field, True, lists), opened, far=far)
    known |= zip(opened, probed, strict=True)
    probes = [
        (known[file] or Probe(file, 0)) if file in known else _probe(file, field, False) for file in inputs
    ]
    problems = [probe.problem for probe in probes if probe.problem]
    judged = sum(probe.judged for probe in probes)
    if problems and len(problems) == judged:
        others = f" ({len(problems) - 1} more files are like it)" if len(problems) > 1 else ""
        raise UsageError(problems[0] + others)
    for problem in problems[:NAMED]:
        console.notice(problem)
    if len(problems) > NAMED:
        console.notice(f"{len(problems) - NAMED} more files lack the field {field!r}")
    return probes


def _probe(file: InputFile, field: str, look_into: bool, lists: bool = False) -> Probe:
    if file.format == "arrow":
        return _probe_arrow(file, field, lists)
    size = int(file.size * COMPRESSION_RATIO) if file.compression else file.size
    if not look_into:
        return Probe(file, size, judged=file.format == "text" and size > 0)
    found: Counter[str] = Counter()
    records = [record for record in _first_records(file) if isinstance(record, dict)]
    for record in records:
        found.update({name: len(text) for name, text in _texts(record, "") if isinstance(text, str)})
    values = [value for record in records for name, value in _texts(record, "") if name == field]
    good = any(value is None or isinstance(value, str | list if lists else str) for value in values)
    there = bool(values) or any(name.startswith(f"{field}.") for name in found)
    problem = _problem(file.path, field, there, found) if records and not good else ""
    if problem and (chat := next((name for name in CHATS if isinstance(records[0].get(name), list)), "")):
        problem = (
            f"{file.path} holds conversations: write messages = {chat!r} in the table of the source, in the place of "
            "field"
        )
    fields: dict[str, set[str]] = {}
    for record in records:
        for name, value in _texts(record, ""):
            fields.setdefault(name, set()).add(_JSON_TYPES.get(type(value), ""))
    return Probe(file, size, judged=bool(records), problem=problem, fields=fields)


_JSON_TYPES = {str: "text", int: "integer", float: "float", bool: "boolean", type(None): NULL}


CHATS = ("messages", "conversations", "conversation")
"""Fields in which data of chats has its turns, as a list."""


def _problem(path: str, field: str, there: bool, found: Counter[str]) -> str:
    """What is wrong with the field, and which others there are; found: text field -> bytes of text seen."""
    what = f"the field {field!r} is no text in {path}" if there else f"no field {field!r} in {path}"
    if not found:
        return f"{what}, nor any text in another field"
    names = [name for name, _ in found.most_common(NAMED)]
    return f"{what}; there are {', '.join(sorted(names))}; use --field {names[0]}"


def _first_records(file: InputFile) -> Iterator[Any]:
    """The first whole lines that are JSON."""
    data = b""
    stop = None if file.compression else min(file.size, PROBED_BYTES)
    try:
        for block in read_bytes(file.path, file.compression, 0, stop):
            data += block
            if len(data) >= PROBED_BYTES or data.count(b"\n") >= PROBED_RECORDS:
                break
        else:
            data += b"\n" * (stop is None or stop == file.size)  # the last line may lack its end
    except CorruptInputError:  # told when it is read
        pass
    whole = data[: data.rfind(b"\n") + 1].removeprefix(b"\xef\xbb\xbf")
    for line in islice(whole.split(b"\n"), PROBED_RECORDS):
        try:
            yield json.loads(line)
        except (ValueError, RecursionError):
            continue


def _texts(record: dict[str, object], prefix: str) -> Iterator[tuple[str, Any]]:
    """(dotted name, value) of everything in a record that is no record itself."""
    for key, value in record.items():
        if isinstance(value, dict):
            yield from _texts(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _probe_parquet(file: InputFile, field: str, lists: bool = False) -> Probe:
    """From the footer. One that cannot be read gives no parts: planned whole, the file fails by name when read."""
    import pyarrow as pa

    try:
        return tried(lambda: _from_footer(file, field, lists))
    except (pa.ArrowException, OSError, ValueError):  # a name may be no UTF-8
        return Probe(file, 0)


def _from_footer(file: InputFile, field: str, lists: bool) -> Probe:
    import pyarrow.parquet as pq

    with open_parquet(file.path) as stream, pq.ParquetFile(stream) as opened:
        meta = opened.metadata
        columns = [meta.schema.column(index) for index in range(meta.num_columns)]
        groups = [meta.row_group(index) for index in range(meta.num_row_groups)]
        texts = {
            column.path: index
            for index, column in enumerate(columns)
            if column.physical_type == "BYTE_ARRAY" and column.max_repetition_level == 0
        }
        wanted = [texts[field]] if field in texts else []
        if lists and not wanted:
            wanted = [at for at, column in enumerate(columns) if column.path.startswith(f"{field}.")]
        parts = tuple(
            sum(group.column(at).total_uncompressed_size for at in wanted) or group.total_byte_size
            for group in groups
        )
        fields = _schema_fields(opened.schema_arrow)
        problem = ""
        if not wanted:
            there = any(f"{column.path}.".startswith(f"{field}.") for column in columns)
            first = groups[:1]
            found = {
                name: sum(g.column(at).total_uncompressed_size for g in first) for name, at in texts.items()
            }
            problem = _problem(file.path, field, there, Counter(found))
    rows = tuple(max(0, group.num_rows) for group in groups)  # a damaged footer says anything
    return Probe(file, sum(parts), parts, rows, judged=True, problem=problem, fields=fields)


def _schema_fields(fields: Any, prefix: str = "") -> dict[str, set[str]]:
    """Dotted names and types of the columns of an Arrow schema, or of the fields of a struct."""
    found: dict[str, set[str]] = {}
    for column in fields:
        name = f"{prefix}{column.name}"
        inner = _schema_fields(column.type, f"{name}.") if str(column.type).startswith("struct<") else {}
        found |= inner or {name: {type_of(column.type)}}
    return found


def _probe_arrow(file: InputFile, field: str, lists: bool) -> Probe:
    """From the headers of its record batches. One that cannot be read is planned whole, and fails by name when read."""
    import pyarrow as pa

    parts, rows = [], []
    try:
        with arrow_batches(file.path) as (schema, batches):
            for batch in () if is_remote(file.path) else batches:
                parts.append(min(batch.nbytes, file.size))
                rows.append(batch.num_rows)
    except (pa.ArrowException, OSError, ValueError):
        return Probe(file, file.size)
    fields = _schema_fields(schema)
    there = any(f"{name}.".startswith(f"{field}.") for name in fields)
    problem = ""
    if not there or (fields.get(field, set()) & {"integer", "float", "boolean"} and not lists):
        texts = [name for name, kinds in fields.items() if "text" in kinds]
        problem = _problem(file.path, field, there, Counter(dict.fromkeys(texts, 0)))
    return Probe(
        file, sum(parts) or file.size, tuple(parts), tuple(rows), judged=True, problem=problem, fields=fields
    )


def decide_types(
    source: str, columns: Sequence[KeptColumn], probes: Sequence[Probe], console: Console
) -> tuple[KeptColumn, ...]:
    """The columns with their types: what was said, or what was seen, where a whole number is also a float.

    Raises UsageError for a field that no input has, or has in different types, or that holds lists or objects, and for
    a field that was given a name which another field has. `console` hears of such names, and of a field that has no
    value wherever it was seen; it is taken for text.
    """
    if columns and (plain := [probe.file.path for probe in probes if probe.file.format == "text"]):
        raise UsageError(f"source {source}: plain text has no fields to keep, and {plain[0]} is plain text")
    for column in columns:
        if column.renamed:
            what = f"the ledger has a column {column.field!r} of its own"
            if any(column.name in probe.fields for probe in probes):
                raise UsageError(
                    f"source {source}: keep: {what}, and the records have a field {column.name!r} too; name the kept "
                    f"column: --keep my_{column.field}={column.field}"
                )
            console.notice(f"{source}: {what}, so the field {column.field!r} is kept as {column.name!r}")
    return tuple(
        column if column.type else replace(column, type=_seen_type(source, column.field, probes, console))
        for column in columns
    )


def _seen_type(source: str, field: str, probes: Sequence[Probe], console: Console) -> str:
    seen = {kind: probe.file.path for probe in reversed(probes) for kind in probe.fields.get(field, ())}
    kinds = {"float" if kind == "integer" and "float" in seen else kind for kind in seen if kind != NULL}
    if len(kinds) == 1 and "" not in kinds:
        return min(kinds)
    if kinds:
        what = " and ".join(f"{kind or 'list or object'} in {seen[kind]}" for kind in sorted(kinds))
        raise UsageError(
            f"source {source}: keep: {field!r} is {what}; say what to keep, such as {field}:text: other values are "
            'then null, or rejects with on_mismatch = "reject"'
        )
    names = sorted({name for probe in probes for name in probe.fields})
    if names and not seen:
        raise UsageError(
            f"source {source}: keep: no field {field!r} in what was looked at; there are "
            f"{listed(names, FIELDS_NAMED)}; if it comes later, say its type: {field}:text"
        )
    console.notice(f"{source}: {field!r} has no value in what was looked at and is kept as text")
    return "text"
