"""What a source is made of: its inputs, how they were cut, how many records each piece of them gave.

Input: the plan of a source; once it is sealed, the records of each piece. Output: a Parquet file, `plan.parquet` in
the folder of unfinished work and then `NAME.files.parquet` beside the shards, and what such a file says; what is
appended has one of its own, `NAME.1.files.parquet` and so on, whose partitions are numbered behind those before. One
row a piece, in the order in which they are read:

    file, format, compression, size, identity   the input, as `read.files.InputFile`
    partition           int64   its number; null, as all that follows, where there is nothing to read
    start, stop, first  int64   where in the file, as `read.partition.Piece`
    estimate            int64   bytes of text expected of the partition; of a plan alone
    read, rejected      int64   records; of a sealed source alone
    lines               int64   lines or rows, of which blank ones are no records; likewise

The metadata of the schema holds, under `pretok`, the settings and kept columns as JSON, in a plan also what all sources
share. All of this stands beside the manifest, which stays small whatever the number of inputs: every rank of a
training reads one.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
from msgspec.structs import astuple

from pretok.base.errors import IntegrityError
from pretok.base.records import Record, read_record, replace, to_json
from pretok.base.storage import atomic_open, damaged, reading
from pretok.base.tree import Tree
from pretok.read.files import InputFile, Stamp
from pretok.read.kept import KeptColumn
from pretok.read.partition import Partition, Piece
from pretok.shards.manifest import Manifest, inputs_name, unit_name

PLAN_FILE = "plan.parquet"
"""The plan in the folder of unfinished work."""
_FILE = ("file", "format", "compression", "size", "identity")
_PIECE = ("partition", "start", "stop", "first", "estimate", "read", "rejected", "lines")
SCHEMA = pa.schema(
    [pa.field(name, pa.int64() if name == "size" else pa.string(), nullable=False) for name in _FILE]
    + [pa.field(name, pa.int64()) for name in _PIECE]
)
_KEY = b"pretok"
Place = tuple[int, int]
"""Number of a partition, and place of a piece in it."""


class PlannedPiece(NamedTuple):
    """A row of the table; without a partition there is nothing to read in the file."""

    file: InputFile
    partition: int | None = None
    start: int | None = None
    stop: int | None = None
    first: int | None = None
    estimate: int | None = None
    read: int | None = None
    rejected: int | None = None
    lines: int | None = None

    @property
    def piece(self) -> Piece:
        """What a partition has of it."""
        return Piece(self.file, self.start, self.stop, self.first)


@dataclass(frozen=True, slots=True)
class SourcePlan:
    """What a source is made of, or what is appended to it as the `append`-th."""

    name: str
    settings: dict[str, Any]
    """What, besides the inputs, decides its shards: how records are read, what is kept of them, and `target`, the bytes
    of a shard."""
    rows: tuple[PlannedPiece, ...]
    kept: tuple[KeptColumn, ...] = ()
    """The columns of its ledgers, with the types they were found to have."""
    append: int = 0
    config: dict[str, Any] | None = None
    """What all sources share; None once it is sealed."""
    stamps: Mapping[str, Stamp] = field(default_factory=dict)
    """Of its inputs by path, as this job found them; not kept."""

    @property
    def unit(self) -> str:
        """What it is called where a source has several."""
        return unit_name(self.name, self.append)

    @property
    def inputs(self) -> list[InputFile]:
        """Each input once, sorted by path."""
        return sorted({row.file.path: row.file for row in self.rows}.values(), key=lambda file: file.path)

    @property
    def partitions(self) -> list[Partition]:
        """What is read, in order."""
        held: dict[int, list[PlannedPiece]] = {}
        for row in self.rows:
            if row.partition is not None:
                held.setdefault(row.partition, []).append(row)
        return [
            Partition(self.name, number, tuple(row.piece for row in rows), rows[0].estimate or 0)
            for number, rows in held.items()
        ]

    def cut(self, partitions: Iterable[Partition]) -> SourcePlan:
        """The same, cut into partitions."""
        rows = [
            PlannedPiece(piece.file, one.number, piece.start, piece.stop, piece.first, one.estimate)
            for one in partitions
            for piece in one.pieces
        ]
        paths = {row.file.path for row in rows}
        return replace(self, rows=(*rows, *(PlannedPiece(f) for f in self.inputs if f.path not in paths)))

    def sealed(
        self, read: Mapping[Place, int], rejected: Mapping[Place, int], lines: Mapping[Place, int]
    ) -> SourcePlan:
        """The same as the table of a sealed source. A piece without a count gave nothing."""
        counted = iter(
            row._replace(
                estimate=None,
                read=read.get(place, 0),
                rejected=rejected.get(place, 0),
                lines=lines.get(place, 0),
            )
            for place, row, _ in self.placed()
        )
        rows = tuple(row if row.partition is None else next(counted) for row in self.rows)
        return replace(self, rows=rows, config=None)

    def placed(self) -> Iterator[tuple[Place, PlannedPiece, int]]:
        """Each piece with its place, and the lines of its file before it: pieces of a file follow each other."""
        places, lines = Counter[int](), Counter[str]()
        for row in self.rows:
            if row.partition is not None:
                yield (row.partition, places[row.partition]), row, lines[row.file.path]
                places[row.partition] += 1
                lines[row.file.path] += row.lines or 0

    def files(self) -> list[tuple[str, int, int, int]]:
        """(path, size, records read, records rejected) of each input, sorted by path."""
        read, rejected = Counter[str](), Counter[str]()
        for row in self.rows:
            read[row.file.path] += row.read or 0
            rejected[row.file.path] += row.rejected or 0
        return [(file.path, file.size, read[file.path], rejected[file.path]) for file in self.inputs]

    def lines_before(self) -> dict[tuple[str, int], int]:
        """(file, start) of a ledger -> lines of the file before `start`: what a record's number lacks to be
        absolute."""
        found = {}
        for _, row, lines in self.placed():
            start, first = row.piece.origin
            found[row.file.path, start] = lines - first
        return found


class _Said(Record, frozen=True, omit_defaults=True):
    """What the metadata say. config: what all sources share, in a plan."""

    settings: dict[str, Any]
    kept: tuple[KeptColumn, ...]
    config: dict[str, Any] | None = None


def write_plan(path: Path, plan: SourcePlan) -> None:
    """Write the table of a plan, or of a source that is sealed."""
    rows = [(*astuple(row.file), *row[1:]) for row in plan.rows]
    columns = zip(*rows, strict=True) if rows else [()] * len(SCHEMA)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, SCHEMA, strict=True)]
    said = to_json(_Said(plan.settings, plan.kept, plan.config))
    schema = SCHEMA.with_metadata({_KEY: json.dumps(said, ensure_ascii=False).encode()})
    with atomic_open(path) as out:
        pq.write_table(pa.Table.from_arrays(arrays, schema=schema), out, compression="zstd")


def read_plan(folder: Path) -> SourcePlan | None:
    """The plan in a folder of unfinished work; None where there is none."""
    path = folder / PLAN_FILE
    source, _, append = folder.name.partition(".")
    return _read(path, path.read_bytes(), source, int(append or 0)) if path.exists() else None


def load_inputs(manifest: Manifest, source: str) -> SourcePlan:
    """What a source of a manifest was made of, with all that was appended to it. Raises IntegrityError where a table is
    not as it was sealed."""
    parts = load_appends(manifest, source)
    return replace(parts[0], rows=tuple(row for part in parts for row in part.rows))


def load_appends(manifest: Manifest, source: str) -> list[SourcePlan]:
    """The same, each part by itself."""
    sealed = {file.path: file.root for file in manifest.side_files if file.source == source}
    names = [inputs_name(source, append) for append in range(manifest.appends(source) + 1)]
    return [_load(manifest.folder / name, source, number, sealed[name]) for number, name in enumerate(names)]


@lru_cache(maxsize=4)
def _load(path: Path, source: str, append: int, root: str) -> SourcePlan:
    with reading(path):
        data = path.read_bytes()
    if Tree(data).hexdigest() != root:
        raise damaged(path)
    return _read(path, data, source, append)


def _read(path: Path, data: bytes, source: str, append: int) -> SourcePlan:
    try:
        with pq.ParquetFile(pa.BufferReader(data)) as file:
            # pq.read_table would hand `data` to Arrow's threads: one that is the last to hold it while the interpreter
            # ends waits for the lock of Python, and ends the process.
            table = file.read(use_threads=False)
        table.validate(full=True)  # a plan has no seal
        said = json.loads((table.schema.metadata or {})[_KEY])
    except (pa.ArrowException, OSError, KeyError, ValueError, RecursionError) as error:
        raise IntegrityError(f"{path} is no table of inputs ({error}); it was damaged or edited") from None
    if table.schema.remove_metadata() != SCHEMA:
        raise IntegrityError(f"{path} is no table of inputs of this version; it was damaged or edited")
    about = read_record(_Said, said, path)
    files: dict[str, InputFile] = {}
    rows = tuple(
        PlannedPiece(files.setdefault(row[0], InputFile(*row[: len(_FILE)])), *row[len(_FILE) :])
        for row in zip(*(column.to_pylist() for column in table.columns), strict=True)
    )
    return SourcePlan(source, about.settings, rows, about.kept, append, about.config)
