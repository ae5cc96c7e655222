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
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
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
    """What a source is made of, or what is appended to it as the `append`-th."""

    name: str
    settings: dict[str, Any]
    """What, besides the inputs, decides its shards: how records are read, what is kept of them, and `target`, the bytes
    of a shard."""
    inputs: list[InputFile]
    partitions: Sequence[Partition] = ()
    kept: tuple[KeptColumn, ...] = ()
    """The columns of its ledgers, with the types they were found to have."""
    append: int = 0
    config: dict[str, Any] | None = None
    """What all sources share; None once it is sealed."""
    read: PieceCounts = field(default_factory=dict)
    """The records of each piece, known once it is sealed; so are the next two."""
    rejected: PieceCounts = field(default_factory=dict)
    lines: PieceCounts = field(default_factory=dict)
    stamps: Mapping[str, Stamp] = field(default_factory=dict)
    """Of its inputs by path, as this job found them; not kept."""

    @property
    def unit(self) -> str:
        """What it is called where a source has several."""
        return unit_name(self.name, self.append)

    def files(self) -> list[tuple[str, int, int, int]]:
        """(path, size, records read, records rejected) of each input, sorted by path."""
        read, rejected = Counter[str](), Counter[str]()
        for partition in self.partitions:
            for at, piece in enumerate(partition.pieces):
                read[piece.file.path] += self.read.get((partition.number, at), 0)
                rejected[piece.file.path] += self.rejected.get((partition.number, at), 0)
        return [(file.path, file.size, read[file.path], rejected[file.path]) for file in self.inputs]

    def starts(self) -> dict[tuple[int, int], tuple[str, int]]:
        """(partition, piece) -> (file, lines of that file before the piece): pieces of a file follow each other."""
        seen, starts = Counter[str](), {}
        for partition in self.partitions:
            for at, piece in enumerate(partition.pieces):
                path = piece.file.path
                starts[partition.number, at] = (path, seen[path])
                seen[path] += self.lines.get((partition.number, at), 0)
        return starts


class _Said(Record, frozen=True, omit_defaults=True):
    """What the metadata say. config: what all sources share, in a plan."""

    settings: dict[str, Any]
    kept: tuple[KeptColumn, ...]
    config: dict[str, Any] | None = None


def write_plan(path: Path, plan: SourcePlan) -> None:
    """Write the table of a plan, or of a source that is sealed. A piece without a count gave nothing."""
    placed = [(part, at, piece) for part in plan.partitions for at, piece in enumerate(part.pieces)]
    cut = {piece.file.path for _, _, piece in placed}
    files = [*(piece.file for _, _, piece in placed), *(file for file in plan.inputs if file.path not in cut)]
    sealed = plan.config is None
    columns: list[list[Any]] = [
        *([getattr(file, name) for file in files] for name in ("path", *_FILE[1:])),
        [part.number for part, _, _ in placed],
        *([getattr(piece, name) for _, _, piece in placed] for name in ("start", "stop", "first")),
        [] if sealed else [part.estimate for part, _, _ in placed],
        *(
            [getattr(plan, name).get((part.number, at), 0) for part, at, _ in placed] if sealed else []
            for name in COUNTED
        ),
    ]
    arrays = [
        pa.array(values + [None] * (len(files) - len(values)), field.type)
        for values, field in zip(columns, SCHEMA, strict=True)
    ]
    said = to_json(_Said(plan.settings, plan.kept, plan.config))
    metadata = {_KEY: json.dumps(said, ensure_ascii=False).encode()}
    with atomic_open(path) as out:
        pq.write_table(
            pa.Table.from_arrays(arrays, schema=SCHEMA.with_metadata(metadata)), out, compression="zstd"
        )


def read_plan(folder: Path) -> SourcePlan | None:
    """The plan in a folder of unfinished work; None where there is none."""
    path = folder / PLAN_FILE
    source, _, append = folder.name.partition(".")
    return _read(path, path.read_bytes(), source, int(append or 0)) if path.exists() else None


def load_inputs(manifest: Manifest, source: str) -> SourcePlan:
    """What a source of a manifest was made of, with all that was appended to it. Raises IntegrityError where a table is
    not as it was sealed."""
    parts = load_appends(manifest, source)
    if len(parts) == 1:
        return parts[0]
    counts = {name: dict(chain(*(getattr(part, name).items() for part in parts))) for name in COUNTED}
    return replace(
        parts[0],
        inputs=sorted(chain(*(part.inputs for part in parts)), key=lambda file: file.path),
        partitions=list(chain(*(part.partitions for part in parts))),
        **counts,
    )


def load_appends(manifest: Manifest, source: str) -> list[SourcePlan]:
    """The same, each part by itself."""
    sealed = {file.path: file.root for file in manifest.side_files if file.source == source}
    names = [inputs_name(source, append) for append in range(manifest.appends(source) + 1)]
    return [_load(manifest.folder / name, source, number, sealed[name]) for number, name in enumerate(names)]


@lru_cache(maxsize=4)
def _load(path: Path, source: str, append: int, root: str) -> SourcePlan:
    with reading(path):
        data = path.read_bytes()
    if root_of_bytes(data) != root:
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
    inputs: dict[str, InputFile] = {}
    pieces: defaultdict[int, list[Piece]] = defaultdict(list)
    estimates: dict[int, int] = {}
    counts: dict[str, dict[tuple[int, int], int]] = {name: {} for name in COUNTED}
    for row in zip(*(column.to_pylist() for column in table.columns), strict=True):
        (name, *described), (number, start, stop, first, estimate, *counted) = row[:5], row[5:]
        input_file = inputs.get(name) or inputs.setdefault(name, InputFile(name, *described))
        if number is None:  # there is nothing to read
            continue
        for column, count in zip(COUNTED, counted, strict=True):
            counts[column][number, len(pieces[number])] = count or 0
        pieces[number].append(Piece(input_file, start, stop, first))
        estimates[number] = estimate or 0
    partitions = [
        Partition(source, number, tuple(held), estimates[number]) for number, held in pieces.items()
    ]
    ordered = sorted(inputs.values(), key=lambda file: file.path)
    return SourcePlan(
        source,
        about.settings,
        ordered,
        partitions,
        about.kept,
        append,
        about.config,
        counts["read"],
        counts["rejected"],
        counts["lines"],
    )


def lines_before(plan: SourcePlan) -> dict[tuple[str, int], int]:
    """(file, start) of a ledger -> lines of the file before `start`: what a record's number lacks to be absolute."""
    starts = plan.starts()
    return {
        (file, piece.origin[0]): before - piece.origin[1]
        for partition in plan.partitions
        for at, piece in enumerate(partition.pieces)
        for file, before in [starts[partition.number, at]]
    }
