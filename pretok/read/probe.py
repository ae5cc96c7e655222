"""The inputs of a source -> what planning needs to know of each: how much text it holds, and which fields it has.

Input: InputFiles, the name of the text field, and the kept columns. Output: a Probe of each, or UsageError if no input
has the text field, or none has a kept field. Of every table, the schema and the sizes of its parts are read once; of
JSON Lines, the first records of some files.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from functools import lru_cache

import pyarrow as pa

from pretok.base.console import NO_CONSOLE, Console
from pretok.base.errors import UsageError
from pretok.base.reads import map_reads
from pretok.base.records import replace
from pretok.base.storage import tried
from pretok.base.units import listed
from pretok.read.files import InputFile
from pretok.read.format import LIST, NOTHING, OTHER, TEXT, WRITTEN, Probe
from pretok.read.formats import FORMATS
from pretok.read.kept import TYPES, KeptColumn, fits
from pretok.read.record_format import TokenFiles

PROBED_FILES = 32
"""How many files of a source are opened to read their first records, evenly spaced: opening a million takes minutes."""
NAMED = 10
"""How many text fields, and files without the field, a message names."""
FIELDS_NAMED = 50
"""How many fields of any type a message names."""
CHATS = ("messages", "conversations", "conversation")
"""Usual names of the field with the list of turns of a conversation."""


def probe_inputs(
    inputs: Sequence[InputFile],
    fields: Sequence[str],
    lists: bool = False,
    tokens: TokenFiles | None = None,
    console: Console = NO_CONSOLE,
) -> list[Probe]:
    """Return a Probe of each input.

    `console` gets a notice of files without the field and, if there are several names for it, of which files have
    which; UsageError if no file has one.

    lists: whether the field may hold messages; tokens: how ids are read, for files of tokens.
    """
    step = -(-len(inputs) // PROBED_FILES)
    sampled = {file.path for file in inputs[::step]} if inputs else set()
    probes = map_reads(lambda file: _probe(file, file.path in sampled), inputs)
    if tokens is not None:
        probes = [replace(probe, tokens=tokens) for probe in probes]
    problems = [problem for probe in probes if (problem := lacks_text(probe, fields, lists))]
    others = [probe for probe in probes if probe.fields or (probe.file.format == "text" and probe.size)]
    if problems and len(problems) == len(others):
        more = f" ({len(problems) - 1} more files are like it)" if len(problems) > 1 else ""
        raise UsageError(problems[0] + more)
    for problem in problems[:NAMED]:
        console.notice(problem)
    if len(problems) > NAMED:
        console.notice(f"{len(problems) - NAMED} more files lack the field {_either(fields)}")
    if len(fields) > 1:
        found: dict[str, list[str]] = {}
        for probe in probes:
            if probe.fields:
                found.setdefault(field_of(probe, fields), []).append(probe.file.path)
        for field, paths in found.items():
            console.notice(f"the text is in {field!r} of {listed(paths, NAMED)}")
    return probes


def field_of(probe: Probe, fields: Sequence[str]) -> str:
    """Return the first of the names that an input has as a field with text; the first if it has none or is unknown."""
    return next((name for name in fields if TEXT in probe.fields.get(name, ())), fields[0])


@lru_cache(PROBED_FILES)
def chosen_field(file: InputFile, fields: tuple[str, ...]) -> str:
    """`field_of` a file, by its schema or its first records, so that all pieces of the file agree.

    A process looks once at a file, the pieces of which follow each other.
    """
    return field_of(_probe(file, True), fields)


def _either(fields: Sequence[str]) -> str:
    return " or ".join(map(repr, fields))


def _probe(file: InputFile, sampled: bool) -> Probe:
    if file.format in FORMATS:
        with suppress(pa.ArrowException, OSError, ValueError):  # ValueError: a name that is not UTF-8
            return tried(lambda: FORMATS[file.format].probe(file, sampled))
    return Probe(file, 0)  # planned whole; reading it will report the error


def lacks_text(probe: Probe, fields: Sequence[str], lists: bool) -> str:
    """Say why the records of an input give no document, "" if they do or if it is unknown.

    lists: whether the field may hold messages.
    """
    names, path, field = probe.fields, probe.file.path, field_of(probe, fields)
    if not names or names.get(field, set()) & {TEXT, NOTHING, LIST if lists else TEXT}:
        return ""
    if chat := next((name for name in CHATS if LIST in names.get(name, ())), ""):
        place = "in the table of the source, in the place of field"
        return f"{path} holds conversations: write messages = {chat!r} {place}"
    there = any(f"{name}.".startswith(f"{field}.") for name in names)
    strange = next(
        (kind for kind in names.get(field, ()) if kind.startswith("of the unknown type")), "not text"
    )
    what = f"the field {field!r} is {strange} in {path}" if there else f"no field {_either(fields)} in {path}"
    texts = sorted(name for name, kinds in names.items() if TEXT in kinds)
    if not texts:
        return f"{what}, nor any text in another field"
    return f"{what}; text fields: {listed(texts, NAMED)}; choose one with --field"


def check_kept(source: str, columns: Sequence[KeptColumn], probes: Sequence[Probe]) -> None:
    """Raise UsageError if no input can give the kept columns.

    That is so if an input has no fields, if no input has a kept field without a declared type, or if the field has no
    value of the column's type in any input. Of a column with a declared type, only tables are asked: they declare types
    too, and a value of it may follow the first records of JSON Lines.
    """
    bare = {"text": ("plain text has", "plain text"), "tokens": ("tokens have", "a file of tokens")}
    if columns and (without := [probe.file for probe in probes if probe.file.format in bare]):
        have, what = bare[without[0].format]
        raise UsageError(f"source {source}: {have} no fields to keep, and {without[0].path} is {what}")
    names = {name for probe in probes for name in probe.fields}
    for column in columns if names else ():
        if not column.type and column.field not in names:
            raise UsageError(
                f"source {source}: keep: no field {column.field!r} in the records that were sampled; there are "
                f"{listed(sorted(names), FIELDS_NAMED)}; if it comes later, give its type: {column.field}:text"
            )
        wanted, tables = column.type or TEXT, all(probe.parts for probe in probes if probe.fields)
        found = [(kind, probe.file.path) for probe in probes for kind in sorted(_kinds(probe, column.field))]
        if found and (tables or not column.type) and not any(_suits(kind, wanted) for kind, _ in found):
            kind, path = found[0]
            name = "" if column.name == column.field else f"{column.name}="
            remedy = f"write {name}{column.field}:{kind}" if kind in TYPES else "leave it out"
            raise UsageError(
                f"source {source}: keep: {column.field!r} is {kind} in {path}, not {wanted}; {remedy}"
            )


def _kinds(probe: Probe, field: str) -> set[str]:
    """Return the kinds of values of a field, or OTHER if it is an object."""
    inside = any(name.startswith(f"{field}.") for name in probe.fields)
    return probe.fields.get(field, {OTHER} if inside else set())


def _suits(kind: str, wanted: str) -> bool:
    """Whether values of this kind may be those of a column of the type `wanted`."""
    return kind == NOTHING or fits(TEXT if kind == WRITTEN else kind, wanted)
