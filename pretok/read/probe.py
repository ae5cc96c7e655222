"""The inputs of a source -> what planning needs to know of each: how much text it holds, and which fields it has.

Input: InputFiles, the name of the text field, and the kept columns. Output: a Probe of each, or UsageError if no input
has the text field, or none has a kept field. Of every table, the schema and the sizes of its parts are read once; of
JSON Lines, the first records of some files.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

import pyarrow as pa

from pretok.base.console import NO_CONSOLE, Console
from pretok.base.errors import UsageError
from pretok.base.reads import map_reads
from pretok.base.records import replace
from pretok.base.storage import tried
from pretok.base.units import listed
from pretok.read.files import InputFile
from pretok.read.format import LIST, TEXT, Probe
from pretok.read.formats import FORMATS
from pretok.read.kept import KeptColumn

PROBED_FILES = 32
"""How many files of a source are opened to read their first records, evenly spaced: opening a million takes minutes."""
NAMED = 10
"""How many text fields, and files without the field, a message names."""
FIELDS_NAMED = 50
"""How many fields of any type a message names."""
CHATS = ("messages", "conversations", "conversation")
"""Usual names of the field with the list of turns of a conversation."""


def probe_inputs(
    inputs: Sequence[InputFile], field: str, lists: bool = False, console: Console = NO_CONSOLE
) -> list[Probe]:
    """A Probe of each input. `console` gets a notice of files without the field; UsageError if no file has it.

    lists: whether the field may hold messages.
    """
    step = -(-len(inputs) // PROBED_FILES)
    sampled = {file.path for file in inputs[::step]} if inputs else set()
    probes = map_reads(lambda file: _probe(file, file.path in sampled), inputs)
    problems = [problem for probe in probes if (problem := _problem(probe, probe.file.field or field, lists))]
    others = [probe for probe in probes if probe.fields or (probe.file.format == "text" and probe.size)]
    if problems and len(problems) == len(others):
        more = f" ({len(problems) - 1} more files are like it)" if len(problems) > 1 else ""
        raise UsageError(problems[0] + more)
    for problem in problems[:NAMED]:
        console.notice(problem)
    if len(problems) > NAMED:
        console.notice(f"{len(problems) - NAMED} more files lack the field {field!r}")
    return probes


def choose_fields(inputs: Sequence[InputFile], fields: Sequence[str]) -> list[InputFile]:
    """The inputs, each with the first of `fields` that is text in it, if it has one of them."""

    def choose(file: InputFile) -> InputFile:
        names = _probe(file, True).fields
        found = next((name for name in fields if TEXT in names.get(name, ())), None)
        return replace(file, field=found) if found else file

    return list(map_reads(choose, inputs))


def _probe(file: InputFile, sampled: bool) -> Probe:
    if file.format in FORMATS:
        with suppress(pa.ArrowException, OSError, ValueError):  # ValueError: a name that is not UTF-8
            return tried(lambda: FORMATS[file.format].probe(file, sampled))
    return Probe(file, 0)  # planned whole; reading it will report the error


def _problem(probe: Probe, field: str, lists: bool) -> str:
    """Why the records of an input give no document, "" if they do or if it is unknown. lists: whether the field
    may hold messages."""
    names, path = probe.fields, probe.file.path
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


def check_kept(source: str, columns: Sequence[KeptColumn], probes: Sequence[Probe]) -> None:
    """Raise UsageError if an input is plain text, or if no input has a kept field without a declared type."""
    if columns and (plain := [probe.file.path for probe in probes if probe.file.format == "text"]):
        raise UsageError(f"source {source}: plain text has no fields to keep, and {plain[0]} is plain text")
    names = {name for probe in probes for name in probe.fields}
    for column in columns if names else ():
        if not column.type and column.field not in names:
            raise UsageError(
                f"source {source}: keep: no field {column.field!r} in the records that were sampled; there are "
                f"{listed(sorted(names), FIELDS_NAMED)}; if it comes later, give its type: {column.field}:text"
            )
