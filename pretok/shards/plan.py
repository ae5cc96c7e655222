"""The plan of one source: made once, kept on disk, and compared with the settings and inputs of each later run.

Input: the inputs and settings of a source, and the plan of an earlier run if there is one. Output: a SourcePlan.
A changed input or setting is refused by name, except for a file that was damaged and has been fixed. As long as no
document was written, a plan is replaced, and so it is if an input changed while its parts were read.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from pretok.base.console import Console
from pretok.base.errors import MismatchError
from pretok.base.records import replace, to_json
from pretok.base.units import plural, unit_words
from pretok.config import Source
from pretok.config.changes import differences, input_changes, refuse
from pretok.read.damage import CHANGED, forget
from pretok.read.files import Stamp, stamps_of
from pretok.read.partition import plan, shard_bytes
from pretok.read.probe import check_kept, probe_inputs
from pretok.read.recognise import Listing
from pretok.read.record_format import RecordFormat
from pretok.read.source_plan import PLAN_FILE, PlannedPiece, SourcePlan, read_plan, write_plan
from pretok.shards.partition_record import load_records


def plan_source(
    name: str,
    source: Source,
    listings: Sequence[Listing],
    record: RecordFormat,
    config: dict[str, object],
    size: int,
    itemsize: int,
    state: Path,
    sealed: Sequence[SourcePlan],
    console: Console,
) -> list[SourcePlan]:
    """Return the plans of a source and its appends: the stored ones if nothing changed, else new ones.

    New ones are stored. listings: the inputs of the source and of each append; record: how records are read, with
    the chat template that the vocabulary decides; config: the settings that all sources share; size: bytes of a
    shard, 0 for the automatic size; itemsize: bytes of a token; state: the folder of unfinished work; sealed: the
    plans in the manifest. Raises MismatchError that names what changed.
    """
    if len(sealed) > len(source.append) + 1:
        raise MismatchError(
            f"inputs were appended to {name} {plural(len(sealed) - 1, 'time')} in {state.parent}, and "
            f"only {len(source.append)} are named: name all, in their order ([[sources.{name}.append]] or --append)"
        )
    settings = to_json(record) | {"keep": list(source.keep)}
    if size:  # an automatic size follows from the inputs, which are compared
        settings["target"] = size
    asked, stamps = [], dict[str, Stamp]()
    for append, listing in enumerate(listings):
        stamps |= stamps_of(listing.files)
        rows = tuple(PlannedPiece(file) for file in listing.files)
        asked.append(SourcePlan(name, settings, rows, append=append, config=config))
    plans: list[SourcePlan] = []
    for wanted in asked:
        old = read_plan(state / wanted.unit / PLAN_FILE) or next(
            iter(sealed[wanted.append : wanted.append + 1]), None
        )
        new = _continue(old, wanted, state, console) if old is not None else None
        if new is None:
            probes = probe_inputs(wanted.inputs, *source.probed, console=console)
            check_kept(name, plans[0].kept if plans else source.kept, probes)
            target = size or shard_bytes(probes, itemsize)
            first = max((plan.end for plan in plans), default=0)
            new = replace(
                wanted.cut(plan(name, probes, target, itemsize, first)),
                settings=settings | {"target": target},
                kept=tuple(replace(column, type=column.type or "text") for column in source.kept),
            )
            write_plan(state / wanted.unit / PLAN_FILE, new)
        plans.append(new)
    return [replace(plan, stamps=stamps) for plan in plans]


def _continue(old: SourcePlan, asked: SourcePlan, state: Path, console: Console) -> SourcePlan | None:
    """Return the stored plan, with fixed files as they are now.

    None if something changed and no document is written, or if an input changed between its parts. Raises MismatchError
    if something changed.
    """
    if any((state / old.unit).glob(f"*{CHANGED}")):
        console.notice(f"{unit_words(old.unit)}: an input changed while its parts were read; starting over")
        shutil.rmtree(state / old.unit)
        return None
    what, folder = f"shards of {unit_words(old.unit)}", state.parent
    changes, new = differences(old.settings, asked.settings), old
    records = load_records(state / old.unit, old)
    if old.config is not None:  # it is not sealed
        what, changes = f"unfinished {what}", differences(old.config, asked.config or {}) + changes
        folder = state / old.unit if old.append else folder  # an append can start over by itself
        new = old.repaired(asked.inputs, records)  # mostly files that were damaged
    changes += input_changes(new.inputs, asked.inputs, old.left_out)
    if changes:
        if old.config is None or any(record.shards for record in records.values()):
            refuse(f"the {what}", folder, changes)
        console.notice(
            f"{unit_words(old.unit)}: the settings or inputs changed since a run that wrote no document; starting over"
        )
        shutil.rmtree(state / old.unit)
        return None
    if new != old:
        fixed = set(new.rows) - set(old.rows)
        forget(
            (
                partition
                for partition in old.partitions
                if partition.number in {row.partition for row in fixed}
            ),
            state / old.unit,
        )
        write_plan(state / old.unit / PLAN_FILE, new)
    return new
