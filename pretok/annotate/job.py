"""annotate: columns made by other tools -> a second ledger beside shards, never changing these or the first.

Enters: a shards folder, files of rows and the columns of a key. Leaves: SHARDS/annotations/NAME (`shards.annotations`).

    spill  the rows, read once in this process, go to buckets by the hash of their key
    index  one task a bucket sorts it (`index_task`): each key once
    join   one task for some millions of documents (`join_task`) finds the row of each
    seal   the rows that no document used are listed, the record is replaced, files of the one before are removed

Until the record is replaced nothing has changed; a job that was killed begins anew. The buckets take about the bytes of
the rows and 28 bytes each in the folder, for as long as the job runs.
"""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from pretok.annotate.index_task import Indexed, IndexTask, index_bucket, load_rows
from pretok.annotate.join_task import SHOWN, Joined, JoinTask, join_shards
from pretok.annotate.keys import DOCUMENT, KEY, OF_SHARD, OURS, ShardPlace
from pretok.annotate.spill import HASHES, Spill, buckets_for
from pretok.annotate.values import PLACE, Columns, read_values
from pretok.base.errors import UsageError
from pretok.base.execute import Engine, Item, Result, Task
from pretok.base.failures import TaskError, raise_failures
from pretok.base.lock import hold
from pretok.base.progress import Progress
from pretok.base.storage import atomic_open, checksum, fingerprint
from pretok.base.tasks import run_tasks
from pretok.base.tell import Teller
from pretok.base.units import counted
from pretok.read.files import InputFile, list_inputs
from pretok.read.kept import TYPES
from pretok.read.probe import COMPRESSION_RATIO
from pretok.shards.annotations import (
    RECORD,
    AnnotationRecord,
    Annotations,
    GivenFile,
    JoinCounts,
    JoinedColumn,
    JoinedPart,
    ListedRows,
    annotations_folder,
    find_annotations,
    ledgers_fingerprint,
    matched_column,
    write_annotations,
)
from pretok.shards.ledger import SCHEMA, ledger_path, ledger_schema
from pretok.shards.manifest import Manifest, Shard, load_manifest
from pretok.shards.plan import SourcePlan
from pretok.shards.seal import lines_before
from pretok.shards.unfinished import refuse_unfinished

WORK = ".work"
"""Folder inside that of the annotations that holds rows while the job runs."""
TEXT_PER_DOCUMENT = 100
"""Bytes of text that take as long to encode as the row of a document takes to find, about."""
PART_DOCUMENTS = 8 << 20
"""Documents of one file of rows: few files, and enough of them for many workers."""


@dataclass(frozen=True, slots=True)
class Request:
    """What to join. by: the key, columns of the view `docs`; name: of the annotations; columns: those to take of the
    files, None for all that are not of the key."""

    shards: Path
    files: tuple[str, ...]
    by: tuple[str, ...]
    name: str = "notes"
    columns: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class AnnotateSummary:
    """What was joined. unmatched: the file that lists rows without a document, None without any; lonely: keys of some
    documents without a row; unused: of some rows without a document."""

    name: str
    folder: str
    by: tuple[str, ...]
    columns: tuple[JoinedColumn, ...]
    counts: JoinCounts
    unmatched: str | None
    lonely: tuple[str, ...]
    unused: tuple[str, ...]


def tell_summary(summary: AnnotateSummary, tell: Teller) -> None:
    """The summary in words."""
    counts = summary.counts
    columns = ", ".join(column.name for column in summary.columns) or matched_column(summary.name)
    tell.notice(
        f"{summary.name}: {columns} of {counts.documents_matched:,} of {counted(counts.documents, 'document')}, by "
        f"{', '.join(summary.by)}; {summary.folder}"
    )
    if lonely := counts.documents - counts.documents_matched:
        tell.notice(
            f"{counted(lonely, 'document')} without a row, where {matched_column(summary.name)} is false, such as"
        )
        for text in summary.lonely:
            tell.notice(f"  {text}")
    if unused := counts.rows - counts.rows_matched:
        tell.notice(
            f"{counted(unused, 'row')} of {counts.rows:,} without a document, listed in {summary.unmatched}, such as"
        )
        for text in summary.unused:
            tell.notice(f"  {text}")
    if counts.repeated:
        tell.notice(f"{counted(counts.repeated, 'row')} left out that said again what an earlier row says")


@dataclass(frozen=True, slots=True)
class _Rows:
    """The rows that were given, on disk. schema: of all of them; buckets: the files of each bucket; keyless: those of
    the rows without a whole key."""

    inputs: Sequence[InputFile]
    schema: pa.Schema
    buckets: tuple[tuple[Path, ...], ...]
    keyless: tuple[Path, ...]

    @property
    def values(self) -> list[pa.Field]:
        """The columns to join."""
        return [field for field in self.schema if not field.name.startswith(OURS)]


def run_annotate(request: Request, engine: Engine, tell: Teller) -> AnnotateSummary:
    """Join the columns, as the only job that writes there. Raises UsageError, MismatchError, IntegrityError."""
    refuse_unfinished(request.shards)
    manifest = load_manifest(request.shards)
    places = _places(manifest, tell)
    _check(request, places, tell)
    with hold(manifest.folder, "annotate"):
        others = [one for one in find_annotations(manifest.folder) if one.name != request.name]
        with _work_folder(manifest.folder, request.name) as work, tell.progress("annotate") as progress:
            rows = _read(request, places, others, work, engine, tell)
            index = _index(rows, work, engine, progress, tell)
            return _join(request, manifest, places, rows, index, engine, progress, tell)


def _places(manifest: Manifest, tell: Teller) -> list[tuple[Shard, ShardPlace]]:
    """The shards that have documents and a ledger."""
    listed = {manifest.folder / file.path for file in manifest.contents.side_files}
    first: dict[tuple[str, str], int] = {}
    places, lacking = [], 0
    for shard in manifest.shards:
        split = (shard.source, shard.split)
        before = first.get(split, 0)
        first[split] = before + shard.documents
        if ledger_path(shard.prefix) not in listed:
            lacking += 1
        elif shard.documents:
            places.append((shard, ShardPlace(shard.prefix, *split, before, shard.documents)))
    if not places:
        raise UsageError(f"{manifest.folder} has no ledgers: there is nothing that names its documents")
    if lacking:
        tell.notice(f"{counted(lacking, 'shard')} of {len(manifest.shards)} have no ledger and are left out")
    return places


def _check(request: Request, places: Sequence[tuple[Shard, ShardPlace]], tell: Teller) -> None:
    """UsageError for a name or a key that cannot be."""
    if not re.fullmatch("[A-Za-z][A-Za-z0-9_]*", request.name):
        raise UsageError(f"--name {request.name!r}: letters, digits and _, as it begins the name of a column")
    if not request.by or len(set(request.by)) != len(request.by) or set(request.by) <= set(OF_SHARD):
        raise UsageError("--by names what tells documents apart: id, hash, url, file,position or source,id")
    kept = {name: set(_kept(shard)) for shard, place in places for name in [place.source]}
    for column in request.by:
        if column in DOCUMENT:
            continue
        lacking = sorted(source for source, names in kept.items() if column not in names)
        if len(lacking) == len(kept):
            there = sorted(set().union(*kept.values()))
            raise UsageError(f"--by {column}: no ledger has it; kept is {', '.join(there) or 'nothing'}")
        if lacking:
            tell.notice(f"{', '.join(lacking)} kept no {column}: no row can be joined to their documents")


def _kept(shard: Shard) -> list[str]:
    return [name for name in ledger_schema(ledger_path(shard.prefix)).names if name not in SCHEMA.names]


@contextmanager
def _work_folder(shards: Path, name: str) -> Iterator[Path]:
    """An empty folder for rows. What a killed job left is removed, and nothing of this one stays."""
    folder = annotations_folder(shards, name) / WORK
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        for empty in (folder.parent, folder.parent.parent):
            if not any(empty.iterdir()):
                empty.rmdir()


def _read(
    request: Request,
    places: Sequence[tuple[Shard, ShardPlace]],
    others: Sequence[Annotations],
    work: Path,
    engine: Engine,
    tell: Teller,
) -> _Rows:
    """Read the files and leave their rows in buckets."""
    inputs, notices = list_inputs(request.files, "auto")
    for notice in notices:
        tell.notice(notice)
    for file in inputs:
        if file.format not in ("jsonl", "parquet"):
            raise UsageError(f"{file.path} is {file.format}; rows come as JSON Lines or Parquet")
    columns = Columns(request.by, request.columns, _refuse_taken(request, places, others))
    size = sum(int(file.size * (COMPRESSION_RATIO if file.compression else 1)) for file in inputs)
    engine.choose(size + TEXT_PER_DOCUMENT * sum(place.documents for _, place in places))
    with engine.stop.raising(), Spill(work, buckets_for(size)) as spill:
        for number, file in enumerate(inputs):
            for table in read_values(number, file, columns):
                spill.append(table)
    if missing := [name for name in request.columns or () if name not in columns.kinds]:
        raise UsageError(
            f"--columns: no row has {missing[0]!r}; other columns are {', '.join(columns.left) or 'none'}"
        )
    tell.notice(f"{counted(spill.rows, 'row')} in {counted(len(inputs), 'file')}")
    schema = pa.schema([*HASHES, *columns.schema(last=True)])
    keyless = tuple(spill.paths.pop(-1))
    return _Rows(inputs, schema, tuple(tuple(spill.paths[number]) for number in sorted(spill.paths)), keyless)


def _refuse_taken(
    request: Request, places: Sequence[tuple[Shard, ShardPlace]], others: Sequence[Annotations]
) -> Callable[[str], None]:
    """What raises UsageError for the name of a column that documents have already."""
    taken = dict.fromkeys((*DOCUMENT, matched_column(request.name)), "the view docs has")
    for shard, _ in places:
        taken |= dict.fromkeys(ledger_schema(ledger_path(shard.prefix)).names, "the ledgers have")
    for one in others:
        taken |= dict.fromkeys(one.columns, f"the annotations {one.name} have")
    lower = {name.lower(): where for name, where in taken.items()}  # SQL tells no case apart

    def refuse(name: str) -> None:
        if where := lower.get(name.lower()):
            raise UsageError(
                f"column {name}: {where} one of that name; rename it, or leave it out with --columns"
            )

    return refuse


@dataclass(frozen=True, slots=True)
class _Index:
    """The sorted buckets, with so many keys each; repeated: rows that said again what another says."""

    paths: tuple[Path, ...]
    keys: tuple[int, ...]
    repeated: int


def _index(rows: _Rows, work: Path, engine: Engine, progress: Progress, tell: Teller) -> _Index:
    given = tuple(file.path for file in rows.inputs)
    tasks = [
        IndexTask(paths, rows.schema, given, work / f"sorted-{number}.arrow")
        for number, paths in enumerate(rows.buckets)
    ]
    found: list[Indexed] = _run(
        index_bucket, tasks, [f"bucket {n}" for n in range(len(tasks))], engine, progress, tell
    )
    if conflicts := sum(one.conflicts for one in found):
        named = [text for one in found for text in one.named][:SHOWN]
        more = [f"  and {conflicts - len(named)} more"] if conflicts > len(named) else []
        raise UsageError(
            "\n".join(["rows of one key say different things:", *(f"  {text}" for text in named), *more])
        )
    return _Index(
        tuple(task.out for task in tasks),
        tuple(one.rows for one in found),
        sum(one.repeated for one in found),
    )


def _run(
    function: Task[Item, Result],
    tasks: Sequence[Item],
    names: Sequence[str],
    engine: Engine,
    progress: Progress,
    tell: Teller,
) -> list[Result]:
    """The results of all tasks, in their order. Raises what the failures of any of them mean."""
    done: dict[int, Result] = {}
    failures = []
    for outcome in run_tasks(function, tasks, names, "task", engine, tell, progress):
        if isinstance(outcome.result, TaskError):
            failures.append((names[outcome.index], outcome.result))
        else:
            done[outcome.index] = outcome.result
    raise_failures(failures, tell, "tasks")
    return [done[number] for number in range(len(tasks))]


def _join(
    request: Request,
    manifest: Manifest,
    places: Sequence[tuple[Shard, ShardPlace]],
    rows: _Rows,
    index: _Index,
    engine: Engine,
    progress: Progress,
    tell: Teller,
) -> AnnotateSummary:
    """Join, list what is left over, and replace the record."""
    folder = annotations_folder(manifest.folder, request.name)
    made = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    mark = fingerprint([made, *request.by, *(file.identity for file in rows.inputs)])[:8]
    schema = pa.schema([pa.field(matched_column(request.name), pa.bool_(), nullable=False), *rows.values])
    groups = _groups(places)
    tasks = [
        JoinTask(
            tuple(place for _, place in group),
            request.by,
            index.paths,
            schema,
            _lines_before(manifest, group[0][0].source) if "position" in request.by else {},
            folder / f"{group[0][0].source}-{group[0][0].split}-{number:05d}-{mark}.parquet",
        )
        for number, group in enumerate(groups)
    ]
    joined: list[Joined] = _run(join_shards, tasks, [task.out.stem for task in tasks], engine, progress, tell)
    hits = _hits(index, joined)
    matched = sum(int(hit.sum()) for hit in hits)
    unused = _list_unused(rows, _unused_rows(rows, index, hits), folder / f"unmatched-{mark}.parquet")
    parts = [
        JoinedPart(
            task.out.name,
            task.shards[0].source,
            task.shards[0].split,
            task.shards[0].first,
            one.documents,
            one.matched,
            ledgers_fingerprint(manifest, [shard for shard, _ in group]),
            one.file_bytes,
            one.checksum,
        )
        for task, one, group in zip(tasks, joined, groups, strict=True)
    ]
    record = AnnotationRecord(
        made,
        request.by,
        tuple(JoinedColumn(f.name, _kind(f.type)) for f in rows.values),
        JoinCounts(
            matched + unused.count,
            index.repeated,
            matched,
            sum(part.documents for part in parts),
            sum(part.matched for part in parts),
        ),
        tuple(GivenFile(file.path, file.size, file.identity) for file in rows.inputs),
        tuple(parts),
        unused.listed,
    )
    annotations = write_annotations(folder, record)
    _remove_others(annotations)
    return AnnotateSummary(
        request.name,
        str(folder),
        request.by,
        record.columns,
        record.counts,
        str(folder / unused.listed.path) if unused.listed else None,
        tuple(key for one in joined for key in one.lonely)[:SHOWN],
        unused.named,
    )


def _groups(places: Sequence[tuple[Shard, ShardPlace]]) -> list[list[tuple[Shard, ShardPlace]]]:
    """Shards whose rows stand in one file: of one source and split, in a row."""
    groups: list[list[tuple[Shard, ShardPlace]]] = []
    held = end = 0
    for shard, place in places:
        last = groups[-1][-1][1] if groups else None
        follows = last and (last.source, last.split, end) == (place.source, place.split, place.first)
        if not follows or held + place.documents > PART_DOCUMENTS:
            groups.append([])
            held = 0
        groups[-1].append((shard, place))
        held, end = held + place.documents, place.first + place.documents
    return groups


def _lines_before(manifest: Manifest, source: str) -> Mapping[tuple[str, int], int]:
    plan = SourcePlan.from_json(source, manifest.contents.plans[source])
    return lines_before(plan, manifest.contents.parts[source])


def _kind(kind: pa.DataType) -> str:
    return next(name for name, arrow in TYPES.items() if arrow == kind)


@dataclass(frozen=True, slots=True)
class _Unused:
    """Rows that no document has the key of: how many, some by name, and the file that lists them all."""

    count: int
    named: tuple[str, ...]
    listed: ListedRows | None


def _hits(index: _Index, joined: Sequence[Joined]) -> list[npt.NDArray[np.bool_]]:
    """Of each bucket which rows a document has the key of."""
    hits = [np.zeros(count, np.bool_) for count in index.keys]
    for one in joined:
        for hit, used in zip(hits, one.used, strict=True):
            hit[used] = True
    return hits


def _unused_rows(rows: _Rows, index: _Index, hits: Sequence[npt.NDArray[np.bool_]]) -> Iterator[pa.Table]:
    """Those without a whole key, then the others bucket by bucket."""
    for path in rows.keyless:
        yield load_rows([path], rows.schema)
    for path, hit in zip(index.paths, hits, strict=True):
        with pa.memory_map(str(path)) as file:
            yield pa.ipc.open_file(file).read_all().filter(pa.array(~hit))


def _list_unused(rows: _Rows, tables: Iterator[pa.Table], path: Path) -> _Unused:
    """Write which rows no document has the key of: their file, line or row, and key."""
    keys = [name for name in rows.schema.names if name.startswith(KEY)]
    fields = [("given_file", pa.string()), ("line", pa.int64())]
    schema = pa.schema([*fields, *((name.removeprefix(KEY), pa.large_string()) for name in keys)])
    names = pa.array([file.path for file in rows.inputs], pa.string())
    count, named = 0, list[str]()
    with (
        atomic_open(path) as file,
        pq.ParquetWriter(file, schema, compression="zstd", store_schema=False) as writer,
    ):
        for table in tables:
            place = [names.take(table[PLACE.names[0]].combine_chunks()), table[PLACE.names[1]]]
            writer.write_table(listed := pa.table([*place, *(table[name] for name in keys)], schema))
            count += len(listed)
            for given, line, *key in (
                tuple(row.values()) for row in listed.slice(0, SHOWN - len(named)).to_pylist()
            ):
                told = ", ".join(
                    f"{name.removeprefix(KEY)} {value!r}" for name, value in zip(keys, key, strict=True)
                )
                named.append(f"{given}, line or row {line}: {told}")
    if not count:
        path.unlink()
        return _Unused(0, (), None)
    return _Unused(count, tuple(named), ListedRows(path.name, path.stat().st_size, checksum(path)))


def _remove_others(annotations: Annotations) -> None:
    """Files of the annotations that these replace, and what killed jobs left."""
    for path in annotations.folder.iterdir():
        if path.is_file() and path.name != RECORD and path not in annotations.sealed:
            path.unlink()
