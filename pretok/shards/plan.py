"""The plan of one source: made once, kept on disk, compared with what a later run is given.

Input: the inputs and settings of a source, and the plan of an earlier run if there is one. Output: a SourcePlan.
A changed input or setting is refused by name, except a file that was damaged, failed, and has been fixed; and
what has written no document binds nothing.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from pretok.base.console import Console
from pretok.base.errors import MismatchError
from pretok.base.records import replace, to_json
from pretok.config import Source
from pretok.read.changes import input_changes, refuse, refuse_changes
from pretok.read.files import InputFile
from pretok.read.partition import Partition, plan, shard_bytes
from pretok.read.probe import decide_types, probe_inputs
from pretok.read.recognise import list_inputs
from pretok.shards.inputs import SourcePlan, read_plan, write_plan
from pretok.shards.task import PartRecord, load_parts


def plan_source(
    name: str,
    source: Source,
    config: dict[str, object],
    size: int,
    itemsize: int,
    state: Path,
    sealed: SourcePlan | None,
    console: Console,
) -> SourcePlan:
    """The plan of a source: the stored one if nothing changed; a new one, written to disk, if there is none.

    config: what all sources share; size: bytes of a shard, 0 for the automatic size; itemsize: bytes of a token; state:
    the folder of unfinished work; sealed: the plan in the manifest. Raises MismatchError that names what changed.
    """
    inputs, notices = list_inputs(source.inputs, source.format)
    for text in notices:
        console.notice(text)
    old, before = read_plan(state / name) or (sealed, None)
    settings = to_json(source.record) | {"keep": list(source.keep), "on_mismatch": source.on_mismatch}
    if old is not None:
        try:
            return _continue(
                old, before, inputs, config, settings | ({"target": size} if size else {}), state
            )
        except MismatchError:
            if _has_documents(state, name):
                raise
            console.notice(
                f"{name}: the run before, of other settings or inputs, wrote no document and is forgotten"
            )
            shutil.rmtree(state / name, ignore_errors=True)
    probes = probe_inputs(inputs, source.field, console)
    target = size or shard_bytes(probes, itemsize)
    kept = decide_types(name, source.kept, probes, console)
    partitions = plan(name, probes, target, itemsize)
    new = SourcePlan(name, settings | {"target": target}, inputs, partitions, kept)
    write_plan(state / name, new, config)
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
    what, shards = f"the shards of {old.name}", state.parent
    if before is not None:
        refuse_changes(f"the unfinished shards of {old.name}", shards, before, config)
    refuse_changes(what, shards, old.settings, settings)
    if inputs == old.inputs:
        return old
    fixed = _fixed(old, inputs, state / old.name)
    planned = {file.path: file for file in old.inputs}
    accepted = [planned[file.path] if file.path in fixed else file for file in inputs]
    refuse(what, shards, input_changes(old.inputs, accepted))
    if not fixed:
        return old
    new = _replace_files(old, {file.path: file for file in inputs})
    write_plan(state / old.name, new, config)
    return new


def _has_documents(state: Path, name: str) -> bool:
    """Whether any shard of a source is there, unfinished ones of the validation split included."""
    return any(path for folder in (state.parent / name, state / name) for path in folder.glob("*.bin"))


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


def is_complete(state: Path, partition: str) -> bool:
    """Whether all parts of a partition are sealed and no input of it was damaged."""
    if not state.exists():  # only finished sources have no state folder
        return True
    parts = load_parts(state, partition)
    return bool(parts) and parts[-1].last and not any(part.errors for part in parts)


def _replace_files(old: SourcePlan, files: dict[str, InputFile]) -> SourcePlan:
    def fixed(partition: Partition) -> Partition:
        pieces = (replace(piece, file=files[piece.file.path]) for piece in partition.pieces)
        return replace(partition, pieces=tuple(pieces))

    return replace(old, inputs=list(files.values()), partitions=[fixed(part) for part in old.partitions])
