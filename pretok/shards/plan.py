"""The plan of one source: made once, kept on disk, compared with what a later run is given.

Input: the inputs and settings of a source, and the plan of an earlier run if there is one. Output: a SourcePlan.
A changed input or setting is refused by name, except a file that was damaged, failed, and has been fixed; and
what has written no document binds nothing.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pretok.base.console import Console
from pretok.base.errors import MismatchError, UsageError
from pretok.base.records import replace, to_json
from pretok.base.units import listed, plural
from pretok.config import Source
from pretok.read.changes import SHOWN, input_changes, refuse, refuse_changes
from pretok.read.files import InputFile, Stamp, stamps_of
from pretok.read.partition import Partition, plan, shard_bytes
from pretok.read.probe import decide_types, probe_inputs
from pretok.read.readers import RecordFormat
from pretok.read.recognise import list_inputs
from pretok.shards.inputs import SourcePlan, read_plan, write_plan
from pretok.shards.manifest import unit_name, unit_words
from pretok.shards.parts import PartRecord, load_parts


def plan_source(
    name: str,
    source: Source,
    config: dict[str, object],
    size: int,
    itemsize: int,
    state: Path,
    sealed: Sequence[SourcePlan],
    console: Console,
    record: RecordFormat,
) -> list[SourcePlan]:
    """The plans of a source and of all that is appended to it: stored ones if nothing changed; new ones, written to
    disk, where there are none.

    config: what all sources share; size: bytes of a shard, 0 for the automatic size; itemsize: bytes of a token; state:
    the folder of unfinished work; sealed: the plans in the manifest; record: how records are read, as the vocabulary
    settles it. Raises MismatchError that names what changed, UsageError where an append names files that are there.
    """
    if len(sealed) > len(source.append) + 1:
        raise MismatchError(
            f"inputs were appended to {name} {plural(len(sealed) - 1, 'time')} in {state.parent}, and "
            f"{len(source.append)} are named: name them all, in their order ([[sources.{name}.append]] or --append)"
        )
    given, stamps = [], dict[str, Stamp]()
    for append, globs in enumerate(source.inputs_by_append):
        inputs, notices = list_inputs(globs, source.format)
        for text in notices:
            console.notice(text)
        if again := [file.path for file in inputs if file.path in stamps]:
            raise UsageError(
                f"append {append} of {name} names what is in it already: {listed(again, SHOWN)}; name only new files"
            )
        stamps |= stamps_of(inputs)
        given.append(inputs)
    plans: list[SourcePlan] = []
    for append, inputs in enumerate(given):
        old = sealed[append] if append < len(sealed) else None
        plans.append(
            _plan_part(name, source, inputs, plans, config, size, itemsize, state, old, console, record)
        )
    return [replace(one, stamps=stamps) for one in plans]


def _plan_part(
    name: str,
    source: Source,
    inputs: list[InputFile],
    plans: Sequence[SourcePlan],
    config: dict[str, object],
    size: int,
    itemsize: int,
    state: Path,
    sealed: SourcePlan | None,
    console: Console,
    record: RecordFormat,
) -> SourcePlan:
    """The plan of these inputs behind others of the same source."""
    unit, first = unit_name(name, len(plans)), sum(len(plan.partitions) for plan in plans)
    old, before = read_plan(state / unit) or (sealed, None)
    settings = to_json(record) | {"keep": list(source.keep), "on_mismatch": source.on_mismatch}
    if old is not None:
        try:
            return _continue(
                old, before, inputs, config, settings | ({"target": size} if size else {}), state
            )
        except MismatchError:
            if _has_documents(state, old):
                raise
            console.notice(
                f"{unit_words(unit)}: the run before, of other settings or inputs, wrote no document and is forgotten"
            )
            shutil.rmtree(state / unit, ignore_errors=True)
    probes = probe_inputs(inputs, *source.probed, console=console)
    target = size or shard_bytes(probes, itemsize)
    # All ledgers of a source have the same columns.
    kept = plans[0].kept if plans else decide_types(name, source.kept, probes, console)
    partitions = plan(name, probes, target, itemsize, first)
    new = SourcePlan(name, settings | {"target": target}, inputs, partitions, kept, len(plans))
    if plans:  # no plan stands for them: somebody has deleted it to begin the append anew
        for path in _shards_from(state.parent, name, first):
            path.unlink()
    write_plan(state / unit, new, config)
    return new


def _continue(
    old: SourcePlan,
    before: dict[str, Any] | None,
    inputs: list[InputFile],
    config: dict[str, object],
    settings: dict[str, object],
    state: Path,
) -> SourcePlan:
    """The stored plan, in which fixed files stand as they are now. Raises MismatchError.

    before: the `config` of work that is unfinished; settings: without `target` where the size of a shard follows the
    inputs, which are compared.
    """
    what, shards = f"the shards of {unit_words(old.unit)}", state.parent
    if before is not None:
        refuse_changes(f"the unfinished shards of {unit_words(old.unit)}", shards, before, config)
        if old.append:  # which can begin anew alone
            what, shards = f"the unfinished shards of {unit_words(old.unit)}", state / old.unit
    refuse_changes(what, shards, old.settings, settings)
    if inputs == old.inputs:
        return old
    fixed = _fixed(old, inputs, state / old.unit)
    planned = {file.path: file for file in old.inputs}
    accepted = [planned[file.path] if file.path in fixed else file for file in inputs]
    refuse(what, shards, input_changes(old.inputs, accepted))
    if not fixed:
        return old
    new = _replace_files(old, {file.path: file for file in inputs})
    write_plan(state / old.unit, new, config)
    return new


def _has_documents(state: Path, old: SourcePlan) -> bool:
    """Whether any shard of a plan is there, unfinished ones of the validation split included."""
    first = old.partitions[0].number if old.partitions else 0
    return any((state / old.unit).glob("*.bin")) or bool(_shards_from(state.parent, old.name, first))


def _shards_from(shards: Path, name: str, first: int) -> list[Path]:
    """The train shards of a source, and what belongs to them, from a partition on."""
    numbered = re.compile(rf"{re.escape(name)}-(\d+)(-\d+)?\.")
    found = ((path, numbered.match(path.name)) for path in (shards / name).glob(f"{name}-*"))
    return [path for path, match in found if match and int(match[1]) >= first]


def _fixed(old: SourcePlan, inputs: list[InputFile], state: Path) -> set[str]:
    """Files that may differ from the plan: each is whole in one partition, of which nothing sealed will stay."""
    planned = {file.path: file for file in old.inputs}
    changed = {file.path for file in inputs if file.path in planned and planned[file.path] != file}
    pieces = [(piece, partition) for partition in old.partitions for piece in partition.pieces]
    fixed = set()
    for path in changed:
        holding = [partition for piece, partition in pieces if piece.file.path == path]
        if len(holding) == 1 and state.exists() and _starts_over(load_parts(state, holding[0].name)):
            fixed.add(path)
    return fixed


def _starts_over(parts: list[PartRecord]) -> bool:
    """Whether a partition is done from its beginning: it was damaged, or nothing of it is sealed.

    One that was killed between two parts goes on where it stopped, in the file that it began with.
    """
    return not parts or (parts[-1].last and any(part.errors for part in parts))


def _replace_files(old: SourcePlan, files: dict[str, InputFile]) -> SourcePlan:
    def fixed(partition: Partition) -> Partition:
        pieces = (replace(piece, file=files[piece.file.path]) for piece in partition.pieces)
        return replace(partition, pieces=tuple(pieces))

    return replace(old, inputs=list(files.values()), partitions=[fixed(part) for part in old.partitions])
