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
    lines               int64   lines or rows, of which blank ones in a row are one record; likewise

The metadata of the schema holds, under `pretok`, the settings and kept columns as JSON, in a plan also what all sources
share. All of this stands beside the manifest, which stays small whatever the number of inputs: every rank of a
training reads one.
"""

from __future__ import annotations

import json
from collections import ChainMap, Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from itertools import chain
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pretok.base.errors import IntegrityError
from pretok.base.records import Record, read_record, replace, to_json
from pretok.base.storage import atomic_open, damaged, reading
from pretok.base.tree import root_of_bytes
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
COUNTED = ("read", "rejected", "lines")
"""What is known of each piece of a sealed source."""
_KEY = b"pretok"
PieceCounts = Mapping[tuple[int, int], int]
"""(number of a partition, place of a piece in it) -> records."""


@dataclass(frozen=True, slots=True)
class SourcePlan:
    """The work on one source, or on what is appended to it as the `append`-th.

    settings: what, besides the inputs, decides its shards: how records are read, what is kept of them, and `target`,
    the bytes of a shard. kept: the columns of its ledgers, with the types they were found to have. stamps: of its
    inputs by path, as this job found them; not kept."""

    name: str
    settings: dict[str, Any]
    inputs: list[InputFile]
    partitions: Sequence[Partition]
    kept: tuple[KeptColumn, ...] = ()
    append: int = 0
    stamps: Mapping[str, Stamp] = field(default_factory=dict)

    @property
    def unit(self) -> str:
        """What it is called where a source has several."""
        return unit_name(self.name, self.append)


@dataclass(frozen=True, slots=True)
class SealedInputs:
    """What a sealed source was made of, and the records and lines of each piece."""

    plan: SourcePlan
    read: PieceCounts
    rejected: PieceCounts
    lines: PieceCounts

    def files(self) -> list[tuple[str, int, int, int]]:
        """(path, size, records read, records rejected) of each input, sorted by path."""
        read: Counter[str] = Counter()
        rejected: Counter[str] = Counter()
        for partition in self.plan.partitions:
            for at, piece in enumerate(partition.pieces):
                key = (partition.number, at)
                read[piece.file.path] += self.read.get(key, 0)
                rejected[piece.file.path] += self.rejected.get(key, 0)
        return [(file.path, file.size, read[file.path], rejected[file.path]) for file in self.plan.inputs]


class _Said(Record, frozen=True, omit_defaults=True):
    """What the metadata say. config: what all sources share, in a plan."""

    settings: dict[str, Any]
    kept: tuple[KeptColumn, ...]
    config: dict[str, Any] | None = None


def inputs_path(shards: Path, source: str, append: int = 0) -> Path:
    """Where the table of a sealed source is, or of what was appended to it."""
    return shards / inputs_name(source, append)


def write_plan(folder: Path, plan: SourcePlan, config: dict[str, object]) -> None:
    """Write the plan of a source into its folder of unfinished work."""
    counts = [[part.estimate for part in plan.partitions for _ in part.pieces], [], [], []]
    _write(folder / PLAN_FILE, plan, _Said(plan.settings, plan.kept, config), counts)


def write_inputs(
    path: Path, plan: SourcePlan, read: PieceCounts, rejected: PieceCounts, lines: PieceCounts
) -> None:
    """Write the table of a source that is sealed. A piece that is in no mapping gave nothing."""
    keys = [(part.number, at) for part in plan.partitions for at in range(len(part.pieces))]
    counts = [[], *([found.get(key, 0) for key in keys] for found in (read, rejected, lines))]
    _write(path, plan, _Said(plan.settings, plan.kept), counts)


def _write(path: Path, plan: SourcePlan, said: _Said, counts: list[list[int]]) -> None:
    """counts: the last four columns."""
    pieces = [piece for part in plan.partitions for piece in part.pieces]
    cut = {piece.file.path for piece in pieces}
    empty = [file for file in plan.inputs if file.path not in cut]
    files = [*(piece.file for piece in pieces), *empty]
    columns: list[Any] = [
        [file.path for file in files],
        [file.format for file in files],
        [file.compression for file in files],
        [file.size for file in files],
        [file.identity for file in files],
        [part.number for part in plan.partitions for _ in part.pieces],
        [piece.start for piece in pieces],
        [piece.stop for piece in pieces],
        [piece.first for piece in pieces],
        *counts,
    ]
    arrays = [
        pa.array(values + [None] * (len(files) - len(values)), field.type)
        for values, field in zip(columns, SCHEMA, strict=True)
    ]
    metadata = {_KEY: json.dumps(to_json(said), ensure_ascii=False).encode()}
    table = pa.Table.from_arrays(arrays, schema=SCHEMA.with_metadata(metadata))
    with atomic_open(path) as file:
        pq.write_table(table, file, compression="zstd")


def read_plan(folder: Path) -> tuple[SourcePlan, dict[str, Any]] | None:
    """The plan in a folder of unfinished work, and what all sources shared then; None where there is none."""
    path = folder / PLAN_FILE
    if not path.exists():
        return None
    table, said = _read(path, path.read_bytes())
    source, _, append = folder.name.partition(".")
    return _plan(source, table, said, int(append or 0)), said.config or {}


def load_inputs(manifest: Manifest, source: str) -> SealedInputs:
    """What a source of a manifest was made of, with all that was appended to it. Raises IntegrityError where a table is
    not as it was sealed."""
    first, *appended = load_appends(manifest, source)
    if not appended:
        return first
    parts = (first, *appended)
    plan = replace(
        first.plan,
        inputs=sorted(chain(*(part.plan.inputs for part in parts)), key=lambda file: file.path),
        partitions=list(chain(*(part.plan.partitions for part in parts))),
    )
    return SealedInputs(plan, *(ChainMap(*(getattr(part, name) for part in parts)) for name in COUNTED))


def load_appends(manifest: Manifest, source: str) -> list[SealedInputs]:
    """The same, each part by itself."""
    sealed = {file.path: file.root for file in manifest.side_files if file.source == source}
    return [
        _load(manifest.folder / name, source, append, sealed[name])
        for append in range(manifest.appends(source) + 1)
        for name in [inputs_name(source, append)]
    ]


def count_files(manifest: Manifest, source: str) -> int:
    """How many input files a source was made of; 0 where that is not known."""
    return len(load_inputs(manifest, source).plan.inputs) if source in manifest.tokenized else 0


@lru_cache(maxsize=4)
def _load(path: Path, source: str, append: int, root: str) -> SealedInputs:
    with reading(path):
        data = path.read_bytes()
    if root_of_bytes(data) != root:
        raise damaged(path)
    table, said = _read(path, data)
    plan = _plan(source, table, said, append)
    keys = _keys(table)
    counts = [table[name].slice(0, len(keys)).to_pylist() for name in COUNTED]
    if any(None in column for column in counts):
        raise IntegrityError(f"{path} lacks counts of records; it was edited")
    return SealedInputs(plan, *(dict(zip(keys, column, strict=True)) for column in counts))


def _read(path: Path, data: bytes) -> tuple[pa.Table, _Said]:
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
    return table, read_record(_Said, said, path)


def _keys(table: pa.Table) -> list[tuple[int, int]]:
    """The piece of each row that has one: these come first."""
    keys: list[tuple[int, int]] = []
    for number in table["partition"].to_pylist():
        if number is None:
            break
        keys.append((number, keys[-1][1] + 1 if keys and keys[-1][0] == number else 0))
    return keys


def _plan(name: str, table: pa.Table, said: _Said, append: int) -> SourcePlan:
    of_row: list[InputFile] = []
    for row in zip(*(table[column].to_pylist() for column in _FILE), strict=True):
        # The pieces of a file follow each other.
        same = of_row and of_row[-1].path == row[0]
        of_row.append(of_row[-1] if same else InputFile(*row))
    inputs = sorted({file.path: file for file in of_row}.values(), key=lambda file: file.path)
    return SourcePlan(name, said.settings, inputs, _Stored(name, table, of_row), said.kept, append)


class _Stored(Sequence[Partition]):
    """The partitions of a table, made when one is looked at: a command that has nothing to do only counts them."""

    def __init__(self, source: str, table: pa.Table, of_row: list[InputFile]) -> None:
        self._source = source
        self._table = table
        self._of_row = of_row

    @cached_property
    def _made(self) -> list[Partition]:
        columns = (self._table[name].to_pylist() for name in ("start", "stop", "first", "estimate"))
        pieces: dict[int, list[Piece]] = {}
        estimates: dict[int, int] = {}
        for (number, _), file, start, stop, first, estimate in zip(
            _keys(self._table), self._of_row, *columns, strict=False
        ):
            pieces.setdefault(number, []).append(Piece(file, start, stop, first))
            estimates[number] = estimate or 0
        return [
            Partition(self._source, number, tuple(pieces[number]), estimates[number]) for number in pieces
        ]

    def __len__(self) -> int:
        return len(set(self._table["partition"].drop_null().to_pylist()))

    def __getitem__(self, at: Any) -> Any:
        return self._made[at]


def sum_pieces(parts: Iterable[tuple[int, Mapping[str, int]]]) -> Counter[tuple[int, int]]:
    """Records read of each piece, from the number of the partition and the counts of every part."""
    read: Counter[tuple[int, int]] = Counter()
    for partition, records in parts:
        for piece, count in records.items():
            read[partition, int(piece)] += count
    return read


def piece_starts(plan: SourcePlan, lines: PieceCounts) -> dict[tuple[int, int], tuple[str, int]]:
    """(partition, piece) -> (file, lines of that file before the piece): pieces of a file follow each other."""
    seen: Counter[str] = Counter()
    starts = {}
    for partition in plan.partitions:
        for at, piece in enumerate(partition.pieces):
            path = piece.file.path
            starts[partition.number, at] = (path, seen[path])
            seen[path] += lines.get((partition.number, at), 0)
    return starts


def lines_before(inputs: SealedInputs) -> dict[tuple[str, int], int]:
    """(file, start) of a ledger -> lines of the file before `start`: what a record's number lacks to be absolute."""
    starts = piece_starts(inputs.plan, inputs.lines)
    return {
        (file, piece.origin[0]): before - piece.origin[1]
        for partition in inputs.plan.partitions
        for at, piece in enumerate(partition.pieces)
        for file, before in [starts[partition.number, at]]
    }
