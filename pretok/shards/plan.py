"""The plan of one source: made once, kept on disk, compared with what a later run is given.

Input: the inputs and settings of a source, and the plan of an earlier run if there is one. Output: a SourcePlan.
A changed input or setting is refused by name, except a file that was damaged, failed, and has been fixed; and
what has written no document binds nothing.
"""

from __future__ import annotations

import re
import shutil
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from pretok.base.console import Console
from pretok.base.errors import MismatchError, UsageError
from pretok.base.records import replace, to_json
from pretok.base.units import listed, plural
from pretok.config import Source
from pretok.read.changes import SHOWN, differences, input_changes, refuse
from pretok.read.files import InputFile, Stamp, stamps_of
from pretok.read.partition import Partition, plan, shard_bytes
from pretok.read.probe import check_kept, probe_inputs
from pretok.read.readers import RecordFormat
from pretok.read.recognise import list_inputs
from pretok.shards.inputs import PLAN_FILE, PlannedPiece, SourcePlan, read_plan, write_plan
from pretok.shards.manifest import unit_words
from pretok.shards.parts import load_parts


def plan_source(
    name: str,
    source: Source,
    record: RecordFormat,
    config: dict[str, object],
    size: int,
    itemsize: int,
    state: Path,
    sealed: Sequence[SourcePlan],
    console: Console,
) -> list[SourcePlan]:
    """The plans of a source and of all that is appended to it: stored ones if nothing changed; new ones, written to
    disk, where there are none.

    record: how records are read, as the vocabulary settles it; config: what all sources share; size: bytes of a shard,
    0 for the automatic size; itemsize: bytes of a token; state: the folder of unfinished work; sealed: the plans in the
    manifest. Raises MismatchError that names what changed, UsageError where an append names files that are there.
    """
    if len(sealed) > len(source.append) + 1:
        raise MismatchError(
            f"inputs were appended to {name} {plural(len(sealed) - 1, 'time')} in {state.parent}, and "
            f"{len(source.append)} are named: name them all, in their order ([[sources.{name}.append]] or --append)"
        )
    settings = to_json(record) | {"keep": list(source.keep)}
    settings |= {"target": size} if size else {}  # an automatic size follows the inputs, which are compared
    asked, stamps = [], dict[str, Stamp]()
    for append, globs in enumerate(source.inputs_by_append):
        inputs, notices = list_inputs(globs, source.format)
        for text in notices:
            console.notice(text)
        if again := [file.path for file in inputs if file.path in stamps]:
            raise UsageError(
                f"append {append} of {name} names what is in it already: {listed(again, SHOWN)}; name only new files"
            )
        stamps |= stamps_of(inputs)
        rows = tuple(PlannedPiece(file) for file in inputs)
        asked.append(SourcePlan(name, settings, rows, append=append, config=config))
    plans: list[SourcePlan] = []
    for one in asked:
        old = read_plan(state / one.unit) or next(iter(sealed[one.append : one.append + 1]), None)
        made = _continue(old, one, state, console) if old is not None else None
        if made is None:
            probes = probe_inputs(one.inputs, *source.probed, console=console)
            if not plans:
                check_kept(name, source.kept, probes)
            target = size or shard_bytes(probes, itemsize)
            first = sum(len(plan.partitions) for plan in plans)
            made = replace(
                one.cut(plan(name, probes, target, itemsize, first)),
                settings=settings | {"target": target},
                kept=tuple(replace(column, type=column.type or "text") for column in source.kept),
            )
            for path in _shards_of(made, state.parent) if one.append else ():
                path.unlink()  # somebody has deleted the plan of these to begin the append anew
            write_plan(state / one.unit / PLAN_FILE, made)
        plans.append(made)
    return [replace(one, stamps=stamps) for one in plans]


def _continue(old: SourcePlan, asked: SourcePlan, state: Path, console: Console) -> SourcePlan | None:
    """The stored plan, in which fixed files stand as they are now; None where what changed has written no document.
    Raises MismatchError."""
    what, folder = f"shards of {unit_words(old.unit)}", state.parent
    changes = differences(old.settings, asked.settings)
    if old.config is not None:
        what, changes = f"unfinished {what}", differences(old.config, asked.config or {}) + changes
        folder = state / old.unit if old.append else folder  # an append can begin anew alone
    fixed = _fixed(old, asked.inputs, state / old.unit)
    changes += input_changes(old.inputs, [fixed.get(file.path, file) for file in asked.inputs])
    if changes:
        if any((state / old.unit).glob("*.bin")) or _shards_of(old, state.parent):
            refuse(f"the {what}", folder, changes)
        console.notice(
            f"{unit_words(old.unit)}: the run before, of other settings or inputs, wrote no document and is forgotten"
        )
        shutil.rmtree(state / old.unit, ignore_errors=True)
        return None
    if not fixed:
        return old
    now = {file.path: file for file in asked.inputs}
    rows = tuple(row._replace(file=now[row.file.path]) for row in old.rows)
    new = replace(old, rows=rows, config=asked.config)
    write_plan(state / old.unit / PLAN_FILE, new)
    return new


def _shards_of(plan: SourcePlan, shards: Path) -> list[Path]:
    """The train shards of a plan, and of what was planned behind it, with what belongs to them."""
    first = plan.partitions[0].number if plan.partitions else 0
    numbered = re.compile(rf"{re.escape(plan.name)}-(\d+)(-\d+)?\.")
    found = ((path, numbered.match(path.name)) for path in (shards / plan.name).glob(f"{plan.name}-*"))
    return [path for path, match in found if match and int(match[1]) >= first]


def _fixed(old: SourcePlan, inputs: Sequence[InputFile], state: Path) -> dict[str, InputFile]:
    """The files, as they were planned, that may differ now: each is whole in one partition that starts over, as it was
    damaged, or as nothing of it is sealed. One that was killed between two parts goes on in the file it began with."""
    planned = {file.path: file for file in old.inputs}
    changed = {file.path for file in inputs if planned.get(file.path, file) != file}
    holding: defaultdict[str, list[Partition]] = defaultdict(list)
    for partition in old.partitions if changed else ():
        for piece in partition.pieces:
            holding[piece.file.path].append(partition)
    fixed = {}
    for path in changed:
        parts = load_parts(state, holding[path][0].name) if len(holding[path]) == 1 else []
        over = not parts or (parts[-1].last and any(part.errors for part in parts))
        if len(holding[path]) == 1 and state.exists() and over:
            fixed[path] = planned[path]
    return fixed
