"""The inputs of a source as a table: how they are cut into pieces, and later the records that each piece gave.

The table is `plan.json` in the folder of unfinished work, and then `NAME.files.json` next to the shards. Each append
has a table of its own, `NAME.1.files.json` and so on, whose partitions are numbered after those before. The fields are
those of `SourcePlan`: `rows` has one for each piece, in reading order. The table is not in the manifest because every
rank of a training reads the manifest, which stays small whatever the number of inputs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import msgspec

from pretok.base.records import Count, Record, read_record, replace, to_json
from pretok.base.storage import read_json, write_json
from pretok.base.tree import compare_root
from pretok.read.files import InputFile, Stamp
from pretok.read.format import Piece
from pretok.read.kept import KeptColumn
from pretok.read.partition import Partition
from pretok.shards.manifest import Manifest, inputs_name, unit_name

PLAN_FILE = "plan.json"
"""Name of the plan in the folder of unfinished work."""
Place = tuple[int, int]
"""(number of a partition, index of a piece in it)."""


class PieceCounts(Record, frozen=True):
    """The counts of a piece: records read, those of them that were rejected, and its lines or rows, blank ones
    included."""

    read: Count = 0
    rejected: Count = 0
    lines: Count = 0


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

    def cut(self, partitions: Iterable[Partition]) -> SourcePlan:
        """The plan, cut into partitions."""
        rows = [
            PlannedPiece(piece.file, one.number, piece.start, piece.stop, piece.first, one.estimate)
            for one in partitions
            for piece in one.pieces
        ]
        paths = {row.file.path for row in rows}
        return replace(self, rows=(*rows, *(PlannedPiece(f) for f in self.inputs if f.path not in paths)))

    def sealed(self, counts: Mapping[int, Sequence[PieceCounts]]) -> SourcePlan:
        """The table of the sealed source. counts: number of a partition -> the counts of each of its pieces."""
        pieces = {number: iter(of_pieces) for number, of_pieces in counts.items()}
        rows = tuple(
            row if row.partition is None else replace(row, estimate=None, counts=next(pieces[row.partition]))
            for row in self.rows
        )
        return replace(self, rows=rows, config=None)

    def placed(self) -> Iterator[tuple[Place, PlannedPiece, int]]:
        """(place, row, lines of the file before it) of each piece. Pieces of a file follow each other."""
        places, lines = Counter[int](), Counter[str]()
        for row in self.rows:
            if row.partition is not None:
                yield (row.partition, places[row.partition]), row, lines[row.file.path]
                places[row.partition] += 1
                lines[row.file.path] += row.counts.lines if row.counts else 0

    def files(self) -> list[tuple[str, int, int, int]]:
        """(path, size, records read, records rejected) of each input, sorted by path."""
        read, rejected = Counter[str](), Counter[str]()
        for row in self.rows:
            if row.counts:
                read[row.file.path] += row.counts.read
                rejected[row.file.path] += row.counts.rejected
        return [(file.path, file.size, read[file.path], rejected[file.path]) for file in self.inputs]

    def lines_before(self) -> dict[tuple[str, int], int]:
        """(file, start) of a ledger -> lines of the file before `start`, to which the number of a record is added."""
        before = {}
        for _, row, lines in self.placed():
            start, first = row.piece.origin
            before[row.file.path, start] = lines - first
        return before


def write_plan(path: Path, plan: SourcePlan) -> None:
    """Write the table of a plan or of a sealed source."""
    write_json(path, to_json(replace(plan, stamps={})))


def read_plan(folder: Path) -> SourcePlan | None:
    """The plan in a folder of unfinished work, or None."""
    path = folder / PLAN_FILE
    return read_record(SourcePlan, read_json(path), path) if path.exists() else None


def load_inputs(manifest: Manifest, source: str) -> SourcePlan:
    """The inputs of a source, with those of its appends. Raises IntegrityError if a table was changed."""
    parts = load_appends(manifest, source)
    return replace(parts[0], rows=tuple(row for part in parts for row in part.rows))


def load_appends(manifest: Manifest, source: str) -> list[SourcePlan]:
    """The inputs of a source and of each append. Raises IntegrityError."""
    sealed = {file.path: file.root for file in manifest.side_files if file.source == source}
    names = [inputs_name(source, append) for append in range(manifest.appends(source) + 1)]
    return [_load(manifest.folder / name, sealed[name]) for name in names]


@lru_cache(maxsize=4)
def _load(path: Path, root: str) -> SourcePlan:
    compare_root(path, root)
    return read_record(SourcePlan, read_json(path), path)
