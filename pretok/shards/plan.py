"""The plan of one source: made once, kept on disk, compared with what a later run is given.

Enters: the inputs and settings of a source, and the plan of an earlier run if there is one. Leaves: a SourcePlan.
A changed input or setting is refused by name, except a file that was damaged, failed, and has been mended; and
what has written no document binds nothing.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from pretok.base.errors import MismatchError
from pretok.base.records import read_record, to_json
from pretok.base.storage import read_json, write_json
from pretok.base.tell import Teller
from pretok.config import Source
from pretok.read.changes import input_changes, refuse, refuse_changes
from pretok.read.files import InputFile
from pretok.read.kept import KeptColumn
from pretok.read.kept_types import decide_types
from pretok.read.partition import Partition, plan, shard_bytes
from pretok.read.probe import probe_inputs
from pretok.read.recognise import list_inputs
from pretok.shards.task import PartRecord, load_parts

NOTHING_KEPT = {"keep": [], "on_mismatch": "null"}
"""Settings of plans made before there were ledgers."""


@dataclass(frozen=True, slots=True)
class SourcePlan:
    """The work on one source. settings: what, besides the inputs, decides its shards: how records are read, what is
    kept of them, and `target`, the bytes of a shard. kept: the columns of its ledgers, with the types they were found
    to have."""

    name: str
    settings: dict[str, Any]
    inputs: list[InputFile]
    partitions: Sequence[Partition]
    kept: tuple[KeptColumn, ...] = ()

    def to_json(self) -> dict[str, object]:
        """For `plan.json` and the manifest."""
        return {
            "settings": self.settings,
            "inputs": to_json(self.inputs),
            "partitions": [partition.to_json() for partition in self.partitions],
            "kept": to_json(self.kept),
        }

    @classmethod
    def from_json(cls, name: str, data: dict[str, object]) -> SourcePlan:
        """Inverse of `to_json`. Raises IntegrityError, of a partition when it is looked at."""
        plan = read_record(_PlanEntry, data, f"the plan of source {name}")
        return cls(name, plan.settings, list(plan.inputs), _Stored(name, plan.partitions), plan.kept)


class _Stored(Sequence[Partition]):
    """Partitions as JSON, read when one is looked at: a command that has nothing to do only counts them."""

    def __init__(self, source: str, entries: Sequence[dict[str, object]]) -> None:
        self._source = source
        self._entries = entries

    @cached_property
    def _read(self) -> list[Partition]:
        return [Partition.from_json(self._source, entry) for entry in self._entries]

    def __len__(self) -> int:
        return len(self._entries)

    def __getitem__(self, at: Any) -> Any:
        return self._read[at]


@dataclass(frozen=True, slots=True)
class _PlanEntry:
    """A plan as JSON."""

    settings: dict[str, Any]
    inputs: tuple[InputFile, ...]
    partitions: tuple[dict[str, object], ...]
    kept: tuple[KeptColumn, ...] = ()


def plan_source(
    name: str,
    source: Source,
    config: dict[str, object],
    size: int,
    itemsize: int,
    state: Path,
    sealed: dict[str, object] | None,
    tell: Teller,
) -> SourcePlan:
    """The plan of a source: the stored one if nothing changed; a new one, written to disk, if there is none.

    config: what all sources share; size: bytes of a shard, 0 for the automatic size; itemsize: bytes of a token; state:
    the folder of unfinished work; sealed: the plan in the manifest. Raises MismatchError that names what changed.
    """
    inputs, notices = list_inputs(source.inputs, source.format)
    for text in notices:
        tell.notice(text)
    path = state / name / "plan.json"
    stored = read_json(path)["plan"] if path.exists() else sealed
    settings = asdict(source.record) | {"keep": list(source.keep), "on_mismatch": source.on_mismatch}
    if stored is not None:
        old = SourcePlan.from_json(name, stored)
        try:
            return _continue(old, inputs, config, settings | ({"target": size} if size else {}), state)
        except MismatchError:
            if _has_documents(state, name):
                raise
            tell.notice(
                f"{name}: the run before, of other settings or inputs, wrote no document and is forgotten"
            )
            shutil.rmtree(state / name, ignore_errors=True)
    probes = probe_inputs(inputs, source.field, tell)
    target = size or shard_bytes(probes, itemsize)
    kept = decide_types(name, source.kept, probes, tell)
    partitions = plan(name, probes, target, itemsize)
    new = SourcePlan(name, settings | {"target": target}, inputs, partitions, kept)
    write_json(path, {"config": config, "plan": new.to_json()})
    return new


def _continue(
    old: SourcePlan,
    inputs: list[InputFile],
    config: dict[str, object],
    settings: dict[str, object],
    state: Path,
) -> SourcePlan:
    """The stored plan, in which mended files stand as they are now. Raises MismatchError.

    settings: without `target` where the size of a shard follows the inputs, which are compared.
    """
    path = state / old.name / "plan.json"
    what, shards = f"the shards of {old.name}", state.parent
    if path.exists():
        refuse_changes(f"the unfinished shards of {old.name}", shards, read_json(path)["config"], config)
    refuse_changes(what, shards, NOTHING_KEPT | old.settings, settings)
    if inputs == old.inputs:
        return old
    mended = _mended(old, inputs, state / old.name)
    planned = {file.path: file for file in old.inputs}
    accepted = [planned[file.path] if file.path in mended else file for file in inputs]
    refuse(what, shards, input_changes(old.inputs, accepted))
    if not mended:
        return old
    new = _replace_files(old, {file.path: file for file in inputs})
    write_json(path, {"config": config, "plan": new.to_json()})
    return new


def _has_documents(state: Path, name: str) -> bool:
    """Whether any shard of a source is there, unfinished ones of the validation split included."""
    return any(path for folder in (state.parent / name, state / name) for path in folder.glob("*.bin"))


def _mended(old: SourcePlan, inputs: list[InputFile], state: Path) -> set[str]:
    """Files that may differ from the plan: each is whole in one partition, of which nothing sealed will stay."""
    planned = {file.path: file for file in old.inputs}
    changed = {file.path for file in inputs if file.path in planned and planned[file.path] != file}
    pieces = [(piece, partition) for partition in old.partitions for piece in partition.pieces]
    mended = set()
    for path in changed:
        holding = [partition for piece, partition in pieces if piece.file.path == path]
        if len(holding) == 1 and state.exists() and _starts_over(load_parts(state, holding[0].name)):
            mended.add(path)
    return mended


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
    def mended(partition: Partition) -> Partition:
        pieces = (replace(piece, file=files[piece.file.path]) for piece in partition.pieces)
        return replace(partition, pieces=tuple(pieces))

    return replace(old, inputs=list(files.values()), partitions=[mended(part) for part in old.partitions])
