"""The record of a partition: what a worker leaves when it has written all of it.

The record is JSON in the state folder and is written last. So a partition with a record is done, and a restart skips
it; a partition without one is done again from its beginning, and overwrites what an earlier try left. The record holds
what the manifest will say, so sealing a source means adding up the records of its partitions.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable, Mapping
from functools import cache
from importlib.metadata import version
from pathlib import Path

from pretok.base.errors import MismatchError
from pretok.base.records import Count, Record, decode_record
from pretok.base.storage import await_files, read_file
from pretok.base.version import PRETOK_VERSION
from pretok.read.source_plan import PieceCounts, SourcePlan
from pretok.screen.benchmark import ItemCount
from pretok.shards.manifest import Shard, SideFile, SourceCounts

ENGINES = ("gigatoken", "tokenizers")
"""Packages that decide ids. The others can only change bytes of ledgers."""
PACKAGES = (*ENGINES, "pyarrow", "numpy", "numba")
"""Packages whose version can change a byte of the shards."""


class PartitionRecord(Record, frozen=True):
    """A partition that was read to its end."""

    found: SourceCounts
    """What was read, rejected and compared. What was written follows from the shards."""
    shards: tuple[Shard, ...]
    """The train shards, and the validation shard in the state folder."""
    side_files: tuple[SideFile, ...]
    """The files next to the train shards."""
    pieces: tuple[PieceCounts, ...]
    """The records of each piece."""
    counts: dict[str, Count]
    """The progress that was reported."""
    contaminated: tuple[ItemCount, ...]
    """Benchmark items that were found, also in documents that were rejected for it."""


def load_record(path: Path) -> PartitionRecord | None:
    """Return the record at a path, or None."""
    return decode_record(PartitionRecord, read_file(path), path) if path.exists() else None


def load_records(state: Path, plan: SourcePlan) -> dict[int, PartitionRecord]:
    """Read number of a partition -> its record, for the partitions that have one.

    state: the folder of the plan.
    """
    records = (
        (partition.number, load_record(state / f"{partition.name}.json")) for partition in plan.partitions
    )
    return {number: record for number, record in records if record is not None}


def all_records(state: Path, plan: SourcePlan) -> dict[int, PartitionRecord]:
    """Return the records of a plan of which every partition is done, once this node sees them."""
    await_files([state / f"{partition.name}.json" for partition in plan.partitions])
    return load_records(state, plan)


@cache
def software() -> dict[str, str]:
    """Versions of pretok, Python and PACKAGES in this process."""
    return {
        "pretok": PRETOK_VERSION,
        "python": platform.python_version(),
        **{name: version(name) for name in PACKAGES},
    }


def all_software(used: Iterable[Mapping[str, str]]) -> dict[str, str]:
    """Return all versions that were used of each package: `20.0.0`, or `20.0.0, 21.0.0`."""
    every: dict[str, set[str]] = {}
    for versions in used:
        for name, each in versions.items():
            every.setdefault(name, set()).update(each.split(", "))
    return {name: ", ".join(sorted(versions)) for name, versions in every.items()}


def refuse_other_software(job: Mapping[str, str]) -> None:
    """Raise MismatchError if this worker has other versions than its job: the same text could get other ids."""
    installed = software()
    if others := [
        f"{name} {installed[name]} instead of {job[name]}" for name in job if installed[name] != job[name]
    ]:
        raise MismatchError(
            f"{os.uname().nodename} has {', '.join(others)}: install the same versions on all nodes"
        )
