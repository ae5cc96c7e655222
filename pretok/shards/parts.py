"""The record of a part: what a worker leaves of a partition, one shard at a time.

A partition is written as one part, or as several if an input that cannot be cut fills more than one shard. The record
of a part is JSON in the state folder. It is written last, so a part with a record is complete, and a restart goes on
after it. It holds what the manifest will say, so sealing a source means adding up its parts.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable, Mapping
from functools import cache
from importlib.metadata import version
from pathlib import Path

from pretok.base.errors import MismatchError
from pretok.base.failures import Failure
from pretok.base.records import Count, Record, read_record
from pretok.base.storage import read_json
from pretok.base.version import PRETOK_VERSION
from pretok.screen.benchmark import ItemCount
from pretok.shards.manifest import Shard, SideFile, SourceCounts

PACKAGES = ("gigatoken", "tokenizers", "pyarrow", "numpy", "numba")
"""Packages whose version can change a byte of the shards."""
ENGINES = PACKAGES[:2]
"""Packages that decide ids. The others can only change bytes of ledgers."""


class PartRecord(Record, frozen=True):
    """A sealed part."""

    name: str
    """Name of its train shard."""
    last: bool
    """Whether the partition ends here."""
    found: SourceCounts
    """What was read, rejected and compared; what was written follows from the shards."""
    shards: tuple[Shard, ...]
    """The train shard, the validation shard in the state folder, both or none."""
    side_files: tuple[SideFile, ...]
    """The files beside the train shard."""
    records: dict[str, Count]
    """Records read, by number of the piece in the partition."""
    lines: dict[str, Count]
    """Lines or rows of each piece before what follows this part."""
    errors: tuple[Failure, ...]
    """Inputs whose rest could not be read."""
    counts: dict[str, Count]
    """The progress that was reported."""
    contaminated: tuple[ItemCount, ...]
    """Benchmark items that were found, also in documents that were rejected for it."""
    software: dict[str, str]
    differed: tuple[Count, Count] | None
    """Piece and record of a document for which the fast engine gave wrong tokens, so that `tokenizers` encoded the
    whole part."""


def part_name(partition: str, part: int) -> str:
    """Name of a part: the partition's, with its number from the second part on."""
    return f"{partition}-{part}" if part else partition


def load_parts(state_dir: Path, partition: str) -> list[PartRecord]:
    """Records of the sealed parts of a partition, in order."""
    parts: list[PartRecord] = []
    while not (parts and parts[-1].last):
        path = state_dir / f"{part_name(partition, len(parts))}.json"
        if not path.exists():
            break
        parts.append(read_record(PartRecord, read_json(path), path))
    return parts


def is_complete(state: Path, partition: str) -> bool:
    """Whether all parts of a partition are sealed and no input was damaged."""
    if not state.exists():  # only finished sources have no state folder
        return True
    parts = load_parts(state, partition)
    return bool(parts) and parts[-1].last and not any(part.errors for part in parts)


@cache
def software() -> dict[str, str]:
    """Versions of pretok, Python and PACKAGES in this process."""
    return {
        "pretok": PRETOK_VERSION,
        "python": platform.python_version(),
        **{name: version(name) for name in PACKAGES},
    }


def all_software(used: Iterable[Mapping[str, str]]) -> dict[str, str]:
    """All versions that were used of each package: `20.0.0`, or `20.0.0, 21.0.0`."""
    found: dict[str, set[str]] = {}
    for versions in used:
        for name, each in versions.items():
            found.setdefault(name, set()).update(each.split(", "))
    return {name: ", ".join(sorted(versions)) for name, versions in found.items()}


def refuse_other_engine(shards: Path, made: Mapping[str, str]) -> None:
    """Raises MismatchError if an engine of another version made what is in `shards`."""
    now = software()
    if others := [name for name in ENGINES if made.get(name, now[name]) != now[name]]:
        name = others[0]
        raise MismatchError(
            f"{shards} holds ids of {name} {made[name]}, and {os.uname().nodename} has {name} {now[name]}, which may "
            f"give other ids to the same text: pip install {name}=={made[name].rpartition(', ')[2]}, or use another "
            "--out folder"
        )
