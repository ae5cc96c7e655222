"""What is to be kept of a source and what its inputs were seen to have -> the one type of each column.

Enters: KeptColumns, some without a type, and the Probes of the inputs. Leaves: the same columns with types. The types
are decided once, when a source is planned: they must not follow from which records a worker happens to read.
"""

from __future__ import annotations

from collections.abc import Sequence

from pretok.base.errors import UsageError
from pretok.base.records import replace
from pretok.base.tell import Teller
from pretok.base.units import listed
from pretok.read.kept import KeptColumn
from pretok.read.probe import NULL, Probe

NAMED = 50
"""Fields that a message names."""


def decide_types(
    source: str, columns: Sequence[KeptColumn], probes: Sequence[Probe], tell: Teller
) -> tuple[KeptColumn, ...]:
    """The columns with their types: what was said, or what was seen, where a whole number is also a float.

    Raises UsageError for a field that no input has, or has in different types, or that holds lists or objects. `tell`
    hears of fields that were null wherever they were seen; they are taken for text.
    """
    if columns and (plain := [probe.file.path for probe in probes if probe.file.format == "text"]):
        raise UsageError(f"source {source}: plain text has no fields to keep, and {plain[0]} is plain text")
    return tuple(_decide(source, column, probes, tell) for column in columns)


def _decide(source: str, column: KeptColumn, probes: Sequence[Probe], tell: Teller) -> KeptColumn:
    seen: dict[str, str] = {}  # type -> the first file that has it
    for probe in probes:
        for kind in sorted(probe.fields.get(column.field, ())):
            seen.setdefault(kind, probe.file.path)
    if column.type:
        return column
    example = f"{column.field}:text"
    if not seen and any(probe.fields for probe in probes):
        names = sorted({name for probe in probes for name in probe.fields})
        raise UsageError(
            f"source {source}: keep: no field {column.field!r} in what was looked at; there are "
            f"{listed(names, NAMED)}; if it comes later, say its type: {example}"
        )
    kinds = seen.keys() - {NULL}
    if "" in kinds:
        raise UsageError(
            f"source {source}: keep: {column.field!r} is no text, number or true or false in {seen['']}"
        )
    if kinds == {"integer", "float"}:
        kinds = {"float"}
    if len(kinds) > 1:
        what = " and ".join(f"{kind} in {seen[kind]}" for kind in sorted(kinds))
        raise UsageError(
            f"source {source}: keep: {column.field!r} is {what}; say which it shall be, such as {example}: the others "
            'are then null, or rejects with on_mismatch = "reject"'
        )
    if not kinds:
        tell.notice(
            f"{source}: {column.field!r} has no value in what was looked at and is kept as text; if it is something "
            f"else, say so, such as {column.field}:float"
        )
    return replace(column, type=min(kinds, default="text"))
