"""The inputs of a source -> what planning needs to know of each: how much text it holds, and which fields it has.

Input: InputFiles, the name of the text field, and the kept columns. Output: a Probe of each, or UsageError if no input
has the text field, or none has a kept field. Of every table, the schema and the sizes of its parts are read once; of
JSON Lines, the first records of some files.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import pyarrow as pa

from pretok.base.console import SILENT, Console
from pretok.base.errors import UsageError
from pretok.base.reads import map_reads
from pretok.base.storage import tried
from pretok.base.units import listed
from pretok.read.files import CorruptInputError, InputFile, arrow_batches, open_parquet, read_bytes
from pretok.read.kept import KeptColumn, is_text
from pretok.read.paths import is_remote

COMPRESSION_RATIO = 3.0
"""Assumed bytes of text per byte of a zstd or gzip file."""
PROBED_FILES = 32
"""How many JSON Lines files of a source are opened, evenly spaced: opening a million takes minutes."""
PROBED_RECORDS, PROBED_BYTES = 20, 1 << 20
"""How much of such a file is read, whichever limit comes first."""
TEXT, LIST, OTHER = "text", "list", "other"
"""Kinds of values of a field."""
NAMED = 10
"""How many text fields, and files without the field, a message names."""
FIELDS_NAMED = 50
"""How many fields of any type a message names."""
CHATS = ("messages", "conversations", "conversation")
"""Usual names of the field with the list of turns of a conversation."""


@dataclass(frozen=True, slots=True)
class Probe:
    """What is known of an input before it is read.

    size: expected bytes of text; parts, rows: of each row group or record batch of a table, the bytes of all columns
    and the number of rows; fields: dotted name -> the kinds of values that were seen.
    """

    file: InputFile
    size: int
    parts: tuple[int, ...] = ()
    rows: tuple[int, ...] = ()
    fields: dict[str, set[str]] = field(default_factory=dict)

    def problem(self, field: str, lists: bool) -> str:
        """Why its records give no document, "" if they do or nothing is known of them. lists: whether the field may
        hold messages."""
        names, path = self.fields, self.file.path
        if not names or names.get(field, set()) & ({TEXT, LIST} if lists else {TEXT}):
            return ""
        if chat := next((name for name in CHATS if LIST in names.get(name, ())), ""):
            place = "in the table of the source, in the place of field"
            return f"{path} holds conversations: write messages = {chat!r} {place}"
        there = any(f"{name}.".startswith(f"{field}.") for name in names)
        what = f"the field {field!r} is not text in {path}" if there else f"no field {field!r} in {path}"
        texts = sorted(name for name, kinds in names.items() if TEXT in kinds)
        if not texts:
            return f"{what}, nor any text in another field"
        return f"{what}; text fields: {listed(texts, NAMED)}; choose one with --field"


def probe_inputs(
    inputs: Sequence[InputFile], field: str, lists: bool = False, console: Console = SILENT
) -> list[Probe]:
    """A Probe of each input. `console` gets a notice of files without the field; UsageError if no file has it.

    lists: whether the field may hold messages.
    """
    lines = [file for file in inputs if file.format == "jsonl" and file.size]
    looked_into = set(lines[:: -(-len(lines) // PROBED_FILES) or 1])
    probes = map_reads(
        lambda file: _probe(file, file in looked_into),
        inputs,
        far=any(is_remote(file.path) for file in inputs if file.format in _TABLES or file in looked_into),
    )
    problems = [problem for probe in probes if (problem := probe.problem(field, lists))]
    others = [probe for probe in probes if probe.fields or (probe.file.format == "text" and probe.size)]
    if problems and len(problems) == len(others):
        more = f" ({len(problems) - 1} more files are like it)" if len(problems) > 1 else ""
        raise UsageError(problems[0] + more)
    for problem in problems[:NAMED]:
        console.notice(problem)
    if len(problems) > NAMED:
        console.notice(f"{len(problems) - NAMED} more files lack the field {field!r}")
    return probes


def _probe(file: InputFile, look_into: bool) -> Probe:
    if file.format in _TABLES:
        try:
            return tried(lambda: _TABLES[file.format](file))
        except (pa.ArrowException, OSError, ValueError):  # ValueError: a name that is not UTF-8
            return Probe(file, 0)  # planned whole; reading it will report the error
    fields: dict[str, set[str]] = {}
    for record in _first_records(file) if look_into else ():
        for name, value in values_of(record) if isinstance(record, dict) else ():
            text = value is None or isinstance(value, str)
            fields.setdefault(name, set()).add(TEXT if text else LIST if isinstance(value, list) else OTHER)
    return Probe(file, int(file.size * COMPRESSION_RATIO) if file.compression else file.size, fields=fields)


def _first_records(file: InputFile) -> Iterator[Any]:
    """The first lines that are complete and valid JSON."""
    data = b""
    stop = None if file.compression else min(file.size, PROBED_BYTES)
    try:
        for block in read_bytes(file.path, file.compression, 0, stop):
            data += block
            if len(data) >= PROBED_BYTES or data.count(b"\n") >= PROBED_RECORDS:
                break
        else:
            data += b"\n" * (stop is None or stop == file.size)  # the last line may lack its end
    except CorruptInputError:  # reported when it is read
        pass
    whole = data[: data.rfind(b"\n") + 1].removeprefix(b"\xef\xbb\xbf")
    for line in islice(whole.split(b"\n"), PROBED_RECORDS):
        try:
            yield json.loads(line)
        except (ValueError, RecursionError):
            continue


def values_of(record: dict[str, object], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """(dotted name, value) of everything in a record that is not an object itself."""
    for key, value in record.items():
        if isinstance(value, dict):
            yield from values_of(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _probe_parquet(file: InputFile) -> Probe:
    """From the footer. The sizes are those of row groups: reading the size of a column in a damaged footer makes
    pyarrow abort the process (seen with version 23)."""
    import pyarrow.parquet as pq

    with open_parquet(file.path) as stream, pq.ParquetFile(stream) as opened:
        groups = [opened.metadata.row_group(index) for index in range(opened.num_row_groups)]
        fields = fields_of(opened.schema_arrow)
    # A damaged footer may have negative numbers.
    parts = tuple(max(0, group.total_byte_size) for group in groups)
    return Probe(file, sum(parts), parts, tuple(max(0, group.num_rows) for group in groups), fields)


def _probe_arrow(file: InputFile) -> Probe:
    """From the headers of its record batches; of a remote file from its schema alone."""
    parts, rows = [], []
    with arrow_batches(file.path) as (schema, batches):
        for batch in () if is_remote(file.path) else batches:
            parts.append(min(batch.nbytes, file.size))
            rows.append(batch.num_rows)
    return Probe(file, sum(parts) or file.size, tuple(parts), tuple(rows), fields_of(schema))


_TABLES = {"parquet": _probe_parquet, "arrow": _probe_arrow}


def fields_of(fields: Any, prefix: str = "") -> dict[str, set[str]]:
    """Dotted name -> kind of the columns of an Arrow schema, or of the fields of a struct."""
    found: dict[str, set[str]] = {}
    is_ = pa.types
    for column in fields:
        name, kind = f"{prefix}{column.name}", column.type
        if is_.is_struct(kind):
            found |= fields_of(kind, f"{name}.")
        else:
            kind = kind.value_type if is_.is_dictionary(kind) else kind
            lists = is_.is_list(kind) or is_.is_large_list(kind)
            found[name] = {TEXT if is_text(kind) else LIST if lists else OTHER}
    return found


def check_kept(source: str, columns: Sequence[KeptColumn], probes: Sequence[Probe]) -> None:
    """Raises UsageError if an input is plain text, or if no input has a kept field whose type is not given."""
    if columns and (plain := [probe.file.path for probe in probes if probe.file.format == "text"]):
        raise UsageError(f"source {source}: plain text has no fields to keep, and {plain[0]} is plain text")
    names = {name for probe in probes for name in probe.fields}
    for column in columns if names else ():
        if not column.type and column.field not in names:
            raise UsageError(
                f"source {source}: keep: no field {column.field!r} in what was looked at; there are "
                f"{listed(sorted(names), FIELDS_NAMED)}; if it comes later, say its type: {column.field}:text"
            )
