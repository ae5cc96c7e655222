"""The inputs of a source as a table: how they are cut into pieces, and later the records that each piece gave.

The table is `plan.parquet` in the folder of unfinished work, and then `NAME.files.parquet` beside the shards. Each
append has a table of its own, `NAME.1.files.parquet` and so on, whose partitions are numbered after those before. It
has one row per piece, in reading order:

    file, format, compression, size, identity   the input, as `read.files.InputFile`
    partition           int64   number of the partition; null, like all that follows, if there is nothing to read
    start, stop, first  int64   where in the file, as `read.partition.Piece`
    estimate            int64   bytes of text expected of the partition; only in a plan
    read, rejected      int64   records; only of a sealed source
    lines               int64   lines or rows, of which blank ones are no records; only of a sealed source

The metadata of the schema has, under `pretok`, the settings and kept columns as JSON; in a plan also the settings that
all sources share. The table is not in the manifest because every rank of a training reads the manifest, which stays
small whatever the number of inputs.
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
from pretok.read.format import Piece
from pretok.read.kept import KeptColumn
from pretok.read.partition import Partition
from pretok.shards.manifest import Manifest, inputs_name, unit_name

PLAN_FILE = "plan.parquet"
"""Name of the plan in the folder of unfinished work."""
_FILE = ("file", "format", "compression", "size", "identity")
_PIECE = ("partition", "start", "stop", "first", "estimate", "read", "rejected", "lines")
SCHEMA = pa.schema(
    [pa.field(name, pa.int64() if name == "size" else pa.string(), nullable=False) for name in _FILE]
    + [pa.field(name, pa.int64()) for name in _PIECE]
)
_KEY = b"pretok"
Place = tuple[int, int]
"""(number of a partition, index of a piece in it)."""


class PlannedPiece(NamedTuple):
    """A row of the table. Without a partition there is nothing to read in the file."""

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
        """The piece of a partition."""
        return Piece(self.file, self.start, self.stop, self.first)


@dataclass(frozen=True, slots=True)
class SourcePlan:
    """The inputs and settings of a source, or of its `append`-th append."""

    name: str
    settings: dict[str, Any]
    """What decides its shards besides the inputs: how records are read, the kept columns, and `target`, the bytes of a
    shard."""
    rows: tuple[PlannedPiece, ...]
    kept: tuple[KeptColumn, ...] = ()
    """The kept columns of its ledgers, with their types."""
    append: int = 0
    config: dict[str, Any] | None = None
    """The settings that all sources share; None once it is sealed."""
    stamps: Mapping[str, Stamp] = field(default_factory=dict)
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

    def sealed(
        self, read: Mapping[Place, int], rejected: Mapping[Place, int], lines: Mapping[Place, int]
    ) -> SourcePlan:
        """The table of the sealed source. A piece without a count gave nothing."""
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
        """(place, row, lines of the file before it) of each piece. Pieces of a file follow each other."""
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
        """(file, start) of a ledger -> lines of the file before `start`, to which the number of a record is added."""
        found = {}
        for _, row, lines in self.placed():
            start, first = row.piece.origin
            found[row.file.path, start] = lines - first
        return found


class _Said(Record, frozen=True, omit_defaults=True):
    """The metadata of the schema."""

    settings: dict[str, Any]
    kept: tuple[KeptColumn, ...]
    config: dict[str, Any] | None = None


def write_plan(path: Path, plan: SourcePlan) -> None:
    """Write the table of a plan or of a sealed source."""
    rows = [(*astuple(row.file), *row[1:]) for row in plan.rows]
    columns = zip(*rows, strict=True) if rows else [()] * len(SCHEMA)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, SCHEMA, strict=True)]
    said = to_json(_Said(plan.settings, plan.kept, plan.config))
    schema = SCHEMA.with_metadata({_KEY: json.dumps(said, ensure_ascii=False).encode()})
    with atomic_open(path) as out:
        pq.write_table(pa.Table.from_arrays(arrays, schema=schema), out, compression="zstd")


def read_plan(folder: Path) -> SourcePlan | None:
    """The plan in a folder of unfinished work, or None."""
    path = folder / PLAN_FILE
    source, _, append = folder.name.partition(".")
    return _read(path, path.read_bytes(), source, int(append or 0)) if path.exists() else None


def load_inputs(manifest: Manifest, source: str) -> SourcePlan:
    """The inputs of a source, with those of its appends. Raises IntegrityError if a table was changed."""
    parts = load_appends(manifest, source)
    return replace(parts[0], rows=tuple(row for part in parts for row in part.rows))


def load_appends(manifest: Manifest, source: str) -> list[SourcePlan]:
    """The inputs of a source and of each append. Raises IntegrityError."""
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
            # pq.read_table would hand `data` to Arrow's threads. A thread that is the last to release it while the
            # interpreter ends would wait for the GIL and end the process.
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
