"""The plan of a source as JSON, as manifests of versions 1 and 2 and unfinished work of their time have it.

Enters: JSON. Leaves: typed records, strictly. Only `shards.inputs` asks; nothing writes this form any more.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pretok.base.records import read_record
from pretok.base.storage import read_json
from pretok.read.files import InputFile
from pretok.read.kept import KeptColumn
from pretok.read.partition import Piece


@dataclass(frozen=True, slots=True)
class OldPartition:
    """A partition as JSON."""

    number: int
    estimate: int
    pieces: tuple[Piece, ...]


@dataclass(frozen=True, slots=True)
class OldPlan:
    """A plan as JSON; `kept` is missing from before there were ledgers."""

    settings: dict[str, Any]
    inputs: tuple[InputFile, ...]
    partitions: tuple[OldPartition, ...]
    kept: tuple[KeptColumn, ...] = ()


@dataclass(frozen=True, slots=True)
class _OldFile:
    config: dict[str, Any]
    plan: OldPlan


def read_old_plan(path: Path) -> tuple[OldPlan, dict[str, Any]]:
    """A plan in a folder of unfinished work, and what all sources shared. Raises IntegrityError."""
    found = read_record(_OldFile, read_json(path), path)
    return found.plan, found.config
