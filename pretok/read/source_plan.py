"""The plan of a source: how its inputs are cut into partitions, and later the records that each piece gave.

Input: the inputs and settings of a source. Output: a `SourcePlan`, kept next to the unfinished work of counting and of
tokenizing, so that a restart does the same work. If a file was damaged, the same plan says which partitions are read
again once it is repaired (`repaired`), or what is left without it (`read.damage`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from pretok.base.failures import LeftOut
from pretok.base.records import Count, Record, decode_record, replace, write_record
from pretok.base.storage import read_file
from pretok.base.units import unit_name
from pretok.read.files import InputFile, Stamp
from pretok.read.format import Piece
from pretok.read.kept import KeptColumn
from pretok.read.partition import Partition

PLAN_FILE = "plan.json"
"""Name of the plan in the folder of unfinished work."""
Place = tuple[int, int]
"""(number of a partition, index of a piece in it)."""


class PieceCounts(Record, frozen=True):
    """The counts of a piece."""

    read: Count = 0
    """Records."""
    rejected: Count = 0
    """Those of them that became no document."""
    lines: Count = 0
    """Lines or rows, blank ones included."""
    remarks: dict[str, Count] | UnsetType = UNSET
    """Of a file of tokens: what was found -> in how many of its documents."""


class PlannedPiece(Record, frozen=True, omit_defaults=True):
    """A piece of an input, as `read.partition.Piece`. Without a partition there is nothing to read in the file."""

    file: InputFile
    partition: Count | None = None
    """Number of the partition that reads it."""
    start: Count | None = None
    stop: Count | None = None
    first: Count | None = None
    estimate: Count | None = None
    """Bytes of text expected of the partition; only in a plan."""
    counts: PieceCounts | None = None
    """What it gave; only of a sealed source."""
    damaged: str | None = None
    """Why it was left out: then it counts as one record, which was rejected."""

    @property
    def piece(self) -> Piece:
        """The piece of a partition."""
        return Piece(self.file, self.start, self.stop, self.first)


class SourcePlan(Record, frozen=True, omit_defaults=True):
    """The inputs and settings of a source, or of its `append`-th append."""

    name: str
    settings: dict[str, Any]
    """What decides its shards besides the inputs: how records are read, the kept columns, and `target`, the bytes of a
    shard."""
    rows: tuple[PlannedPiece, ...]
    kept: tuple[KeptColumn, ...] = ()
    """The kept columns of its ledgers, with their types."""
    append: Count = 0
    config: dict[str, Any] | None = None
    """The settings that all sources share; None once it is sealed."""
    stamps: dict[str, Stamp] = msgspec.field(default_factory=dict)
    """When its inputs changed last, by path, as this job found them; not stored."""

    @property
    def unit(self) -> str:
        """Its name among the parts of a source."""
        return unit_name(self.name, self.append)

    @property
    def inputs(self) -> list[InputFile]:
        """Each input once, sorted by path."""
        return sorted({row.file.path: row.file for row in self.rows}.values(), key=lambda file: file.path)

    @property
    def left_out(self) -> tuple[LeftOut, ...]:
        """The damaged files that no partition reads."""
        return tuple(
            LeftOut(row.file.path, row.file.size, row.damaged) for row in self.rows if row.damaged is not None
        )

    @property
    def partitions(self) -> list[Partition]:
        """The partitions, in order."""
        held: dict[int, list[PlannedPiece]] = {}
        for row in self.rows:
            if row.partition is not None:
                held.setdefault(row.partition, []).append(row)
        return [
            Partition(self.name, number, tuple(row.piece for row in rows), rows[0].estimate or 0)
            for number, rows in held.items()
        ]

    @property
    def end(self) -> int:
        """The number of the first partition of the next append."""
        return 1 + max((row.partition for row in self.rows if row.partition is not None), default=-1)

    def without(self, damaged: Mapping[str, str]) -> SourcePlan:
        """Return the plan without some files. damaged: path -> why it is left out."""
        files = [file for file in self.inputs if file.path in damaged]
        rows = [row for row in self.rows if row.file.path not in damaged]
        return replace(
            self, rows=(*rows, *(PlannedPiece(file, damaged=damaged[file.path]) for file in files))
        )

    def repaired(self, inputs: Iterable[InputFile], done: Container[int]) -> SourcePlan:
        """Return the plan with those of its files as they are now that have changed without kept results.

        Each is read by one partition, which is not done. Mostly they were damaged. done: numbers of the partitions that
        are.
        """
        now = {file.path: file for file in inputs}
        readers = Counter(row.file.path for row in self.rows if row.partition is not None)
        rows = tuple(
            replace(row, file=now.get(row.file.path, row.file))
            if row.partition is not None and row.partition not in done and readers[row.file.path] == 1
            else row
            for row in self.rows
        )
        return replace(self, rows=rows)

    def cut(self, partitions: Iterable[Partition]) -> SourcePlan:
        """Return the plan, cut into partitions."""
        rows = [
            PlannedPiece(
                piece.file, partition.number, piece.start, piece.stop, piece.first, partition.estimate
            )
            for partition in partitions
            for piece in partition.pieces
        ]
        paths = {row.file.path for row in rows}
        return replace(self, rows=(*rows, *(PlannedPiece(f) for f in self.inputs if f.path not in paths)))

    def sealed(self, counts: Mapping[int, Sequence[PieceCounts]]) -> SourcePlan:
        """Return the table of the sealed source. counts: number of a partition -> the counts of each of its pieces."""
        pieces = {number: iter(of_pieces) for number, of_pieces in counts.items()}
        rows = tuple(
            replace(row, counts=PieceCounts(1, 1))
            if row.damaged is not None
            else row
            if row.partition is None
            else replace(row, estimate=None, counts=next(pieces[row.partition]))
            for row in self.rows
        )
        return replace(self, rows=rows, config=None)

    def placed(self) -> Iterator[tuple[Place, PlannedPiece, int]]:
        """Yield (place, row, lines of the file before it) of each piece. Pieces of a file follow each other."""
        places, lines = Counter[int](), Counter[str]()
        for row in self.rows:
            if row.partition is not None:
                yield (row.partition, places[row.partition]), row, lines[row.file.path]
                places[row.partition] += 1
                lines[row.file.path] += row.counts.lines if row.counts else 0

    def files(self) -> list[tuple[str, int, int, int]]:
        """Return (path, size, records read, records rejected) of each input, sorted by path."""
        read, rejected = Counter[str](), Counter[str]()
        for row in self.rows:
            if row.counts:
                read[row.file.path] += row.counts.read
                rejected[row.file.path] += row.counts.rejected
        return [(file.path, file.size, read[file.path], rejected[file.path]) for file in self.inputs]

    def remarks(self) -> dict[str, Counter[str]]:
        """Return what was found in files of tokens -> path -> in how many of its documents."""
        found: dict[str, Counter[str]] = {}
        for row in self.rows:
            for remark, number in ((row.counts and row.counts.remarks) or {}).items():
                found.setdefault(remark, Counter())[row.file.path] += number
        return found

    def lines_before(self) -> dict[tuple[str, int], int]:
        """Return (file, start) of a ledger -> lines of the file before `start`, to add to the number of a record."""
        before = {}
        for _, row, lines in self.placed():
            start, first = row.piece.origin
            before[row.file.path, start] = lines - first
        return before


def write_plan(path: Path, plan: SourcePlan) -> None:
    """Write the table of a plan or of a sealed source."""
    write_record(path, replace(plan, stamps={}))


def read_plan(path: Path) -> SourcePlan | None:
    """Return the plan in a file, or None if there is none."""
    return decode_record(SourcePlan, read_file(path), path) if path.exists() else None
