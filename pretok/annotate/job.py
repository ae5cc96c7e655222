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
import secrets
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from pretok.annotate.index_task import index_bucket
from pretok.annotate.join_task import SHOWN, Joined, JoinTask, join_shards
from pretok.annotate.keys import ShardPlace
from pretok.annotate.request import Request, check_request, named_places, refuse_taken
from pretok.annotate.rows import Index, Rows, index_of, index_tasks, read_rows
from pretok.annotate.unused import hits_of, list_unused, unused_rows
from pretok.base.execute import Engine
from pretok.base.lock import hold
from pretok.base.storage import TEMPORARY_SUFFIX
from pretok.base.tasks import run_all
from pretok.base.tell import Progress, Teller
from pretok.base.units import counted
from pretok.read.kept import TYPES
from pretok.shards.annotations import (
    FOLDER,
    AnnotationRecord,
    Annotations,
    GivenFile,
    JoinCounts,
    JoinedColumn,
    JoinedPart,
    annotations_folder,
    find_annotations,
    ledgers_fingerprint,
    matched_column,
    write_annotations,
)
from pretok.shards.manifest import Manifest, Shard, load_manifest
from pretok.shards.positions import lines_of_source
from pretok.shards.unfinished import reading, refuse_unfinished

WORK = ".work"
"""Folder inside that of the annotations that holds rows while the job runs."""
TEXT_PER_DOCUMENT = 100
"""Bytes of text that take as long to encode as the row of a document takes to find, about."""
OURS = r".+-[0-9a-f]{8}\.parquet|\..+" + re.escape(TEMPORARY_SUFFIX)
"""Names of files that this job writes and replaces."""
PART_DOCUMENTS = 8 << 20
"""Documents of one file of rows: few files, and enough of them for many workers."""

_Group = list[tuple[Shard, ShardPlace]]


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


def run_annotate(request: Request, engine: Engine, tell: Teller) -> AnnotateSummary:
    """Join the columns, as the only job that writes annotations there; shards may be added meanwhile.

    Raises UsageError, MismatchError, IntegrityError, FolderInUse.
    """
    refuse_unfinished(request.shards)
    manifest = load_manifest(request.shards)
    places = named_places(manifest)
    check_request(request, places, tell)
    with hold(manifest.folder / FOLDER, "annotate", beside=True), reading(manifest, "annotate"):
        others = [one for one in find_annotations(manifest.folder) if one.name != request.name]
        with _work_folder(manifest.folder, request.name) as work, tell.progress("annotate") as progress:
            rows = read_rows(request, refuse_taken(request, places, others), work, engine.stop, tell)
            documents = sum(place.documents for _, place in places)
            engine.choose(sum(file.size for file in rows.inputs) + TEXT_PER_DOCUMENT * documents)
            tasks = index_tasks(rows, work)
            names = [task.out.stem for task in tasks]
            built = run_all(index_bucket, tasks, names, "bucket", engine, tell, progress, kept=False)
            index = index_of(tasks, [one for _, one in sorted(built)])
            return _join(request, manifest, places, rows, index, engine, progress, tell)


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


def _join(
    request: Request,
    manifest: Manifest,
    places: Sequence[tuple[Shard, ShardPlace]],
    rows: Rows,
    index: Index,
    engine: Engine,
    progress: Progress,
    tell: Teller,
) -> AnnotateSummary:
    """Join, list what is left over, and replace the record."""
    folder, mark = annotations_folder(manifest.folder, request.name), secrets.token_hex(4)
    groups = _groups(places)
    tasks = _tasks(request, manifest, groups, rows, index, mark)
    names = [task.out.stem for task in tasks]
    found = run_all(join_shards, tasks, names, "file", engine, tell, progress, kept=False)
    joined = [one for _, one in sorted(found)]
    hits = hits_of(index, joined)
    unused = list_unused(rows, unused_rows(rows, index, hits), folder / f"unmatched-{mark}.parquet")
    matched = sum(int(hit.sum()) for hit in hits)
    documents, with_row = sum(one.documents for one in joined), sum(one.matched for one in joined)
    record = AnnotationRecord(
        made=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        by=request.by,
        columns=tuple(JoinedColumn(f.name, _kind(f.type)) for f in rows.values),
        counts=JoinCounts(matched + unused.count, index.repeated, matched, documents, with_row),
        files=tuple(GivenFile(file.path, file.size, file.identity) for file in rows.inputs),
        parts=tuple(_part(manifest, *one) for one in zip(tasks, joined, groups, strict=True)),
        unmatched=unused.listed,
    )
    _remove_others(write_annotations(folder, record))
    return AnnotateSummary(
        name=request.name,
        folder=str(folder),
        by=request.by,
        columns=record.columns,
        counts=record.counts,
        unmatched=str(folder / unused.listed.path) if unused.listed else None,
        lonely=tuple(key for one in joined for key in one.lonely)[:SHOWN],
        unused=unused.named,
    )


def _tasks(
    request: Request, manifest: Manifest, groups: Sequence[_Group], rows: Rows, index: Index, mark: str
) -> list[JoinTask]:
    """A task for each group of shards; mark: ends the names of this job's files."""
    schema = pa.schema([pa.field(matched_column(request.name), pa.bool_(), nullable=False), *rows.values])
    folder, tasks = annotations_folder(manifest.folder, request.name), []
    sources = {place.source for group in groups for _, place in group}
    before = {
        source: lines_of_source(manifest, source) if "position" in request.by else {} for source in sources
    }
    for number, group in enumerate(groups):
        first = group[0][1]
        out = folder / f"{first.source}-{first.split}-{number:05d}-{mark}.parquet"
        shards = tuple(place for _, place in group)
        tasks.append(JoinTask(shards, request.by, index.paths, schema, before[first.source], out))
    return tasks


def _part(manifest: Manifest, task: JoinTask, joined: Joined, group: _Group) -> JoinedPart:
    first = task.shards[0]
    return JoinedPart(
        path=task.out.name,
        source=first.source,
        split=first.split,
        first=first.first,
        documents=joined.documents,
        matched=joined.matched,
        ledgers=ledgers_fingerprint(manifest, [shard for shard, _ in group]),
        file_bytes=joined.file_bytes,
        checksum=joined.checksum,
    )


def _groups(places: Sequence[tuple[Shard, ShardPlace]]) -> list[_Group]:
    """Shards whose rows stand in one file: of one source and split, in a row."""
    groups: list[_Group] = []
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


def _kind(kind: pa.DataType) -> str:
    return next(name for name, arrow in TYPES.items() if arrow == kind)


def _remove_others(annotations: Annotations) -> None:
    """Files of the annotations that these replace, and what killed jobs left; not what others put there."""
    for path in annotations.folder.iterdir():
        if re.fullmatch(OURS, path.name) and path not in annotations.sealed:
            path.unlink()
