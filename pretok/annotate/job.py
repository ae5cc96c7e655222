"""annotate: columns made by other tools -> a second ledger beside shards, never changing these or the first.

Input: a shards folder, files of rows and the columns of a key. Output: SHARDS/annotations/NAME (`shards.annotations`).

    read   the rows are read once, in this process, and kept by the number of their key
    join   tasks find the row of each document, bucket by bucket of these numbers, and write the files (`annotate.join`)
    seal   the rows that no document used are listed, the record is replaced, files of the one before are removed

Until the record is replaced nothing has changed; a job that was killed begins anew. While it runs, the folder holds the
rows, 24 bytes for each document and, for each, what was joined to it.
"""

from __future__ import annotations

import re
import secrets
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from pretok.annotate.join import (
    SHOWN,
    Group,
    Join,
    Joined,
    key_writer,
    write_by_key,
)
from pretok.annotate.keys import document_keys
from pretok.annotate.values import Columns, read_values, rows_schema
from pretok.base.console import Console
from pretok.base.errors import UsageError
from pretok.base.execute import Engine, Item, Result, Task
from pretok.base.lock import hold
from pretok.base.stop import StopFlag
from pretok.base.storage import TEMPORARY_SUFFIX, atomic_open, checksum
from pretok.base.tasks import open_step
from pretok.base.units import listed, plural
from pretok.read.files import InputFile
from pretok.read.kept import TYPES
from pretok.read.probe import COMPRESSION_RATIO
from pretok.read.recognise import list_inputs
from pretok.shards.annotations import (
    FOLDER,
    AnnotationRecord,
    Annotations,
    GivenFile,
    JoinCounts,
    JoinedColumn,
    ListedRows,
    annotations_folder,
    find_annotations,
    matched_column,
    write_annotations,
)
from pretok.shards.documents import OF_SHARD, Numbered, chosen_shards, scan
from pretok.shards.ledger import SCHEMA, ledger_schema
from pretok.shards.manifest import Manifest, Shard, load_manifest
from pretok.shards.unfinished import reading, refuse_unfinished

WORK = ".work"
"""Folder inside that of the annotations that holds rows while the job runs."""
TEXT_PER_DOCUMENT = 100
"""Bytes of text that take as long to encode as the row of a document takes to find, about."""
OURS = r".+-[0-9a-f]{8}\.parquet|\..+" + re.escape(TEMPORARY_SUFFIX)
"""Names of files that this job writes and replaces."""
PART_DOCUMENTS = 8 << 20
"""Documents of one file of rows: few files, and enough of them for many workers."""
BUCKET_BYTES = 32 << 20
"""Of rows and keys of documents in a bucket, where there are not too many."""
KEY_BYTES = 24
"""Of the key of a document."""
MOST_BUCKETS = 256
"""As many as the first byte of a key's number has values."""
RUN_BYTES = 32 << 20
"""Rows that are sorted by bucket at a time."""
SPILL_TIMES, SPILL_LEAST = 16, 1 << 30
"""What a task may put on disk: so many times the bytes of its bucket and a byte of each document, and so many at
least."""
DOCUMENT = (*OF_SHARD, "doc", "file", "position", "hash")
"""What names every document, as the view `docs` of `pretok query` has it; what a ledger keeps comes to it."""


@dataclass(frozen=True, slots=True)
class Request:
    """What to join. by: the key, columns of the view `docs`; name: of the annotations; columns: those to take of the
    files, None for all that are not of the key."""

    shards: Path
    files: tuple[str, ...]
    by: tuple[str, ...]
    name: str = "notes"
    columns: tuple[str, ...] | None = None


def check_request(request: Request, shards: Sequence[Shard], console: Console) -> None:
    """UsageError for a name or a key that cannot be."""
    if not re.fullmatch("[A-Za-z][A-Za-z0-9_]*", request.name):
        raise UsageError(f"--name {request.name!r}: letters, digits and _, as it begins the name of a column")
    parent = annotations_folder(request.shards, request.name).parent
    for folder in (parent, parent / request.name):
        if folder.is_symlink():
            raise UsageError(
                f"{folder} is a link to another folder, where annotate would replace and delete files: make it a folder"
            )
    if not request.by or len(set(request.by)) != len(request.by) or set(request.by) <= set(OF_SHARD):
        raise UsageError("--by names what tells documents apart: id, hash, url, file,position or source,id")
    kept = {
        shard.source: {name for name in ledger_schema(shard.ledger_path).names if name not in SCHEMA.names}
        for shard in shards
    }
    for column in request.by:
        if column in DOCUMENT:
            continue
        lacking = sorted(source for source, names in kept.items() if column not in names)
        if len(lacking) == len(kept):
            there = sorted(set().union(*kept.values()))
            told = f"only {', '.join(there)}" if there else "no column"
            raise UsageError(
                f"--by {column}: these shards keep {told} (tokenize them with --keep {column}). Without it, join by "
                "file,position or by hash"
            )
        if lacking:
            console.notice(f"{', '.join(lacking)} kept no {column}: no row can be joined to their documents")


def refuse_taken(
    request: Request, shards: Sequence[Shard], others: Sequence[Annotations]
) -> Callable[[str], None]:
    """What raises UsageError for the name of a column that documents have already."""
    own = (*DOCUMENT, matched_column(request.name), "file_row_number", "pretok:file")
    taken = dict.fromkeys(own, "the view docs has")
    for shard in shards:
        taken |= dict.fromkeys(ledger_schema(shard.ledger_path).names, "the ledgers have")
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


def tell_summary(summary: AnnotateSummary, console: Console) -> None:
    """The summary in words."""
    counts = summary.counts
    columns = ", ".join(column.name for column in summary.columns) or matched_column(summary.name)
    console.notice(
        f"{summary.name}: {columns} of {counts.documents_matched:,} of {plural(counts.documents, 'document')}, by "
        f"{', '.join(summary.by)}; {summary.folder}"
    )
    if lonely := counts.documents - counts.documents_matched:
        console.notice(
            f"{plural(lonely, 'document')} without a row, where {matched_column(summary.name)} is false, such as"
        )
        for text in summary.lonely:
            console.notice(f"  {text}")
    if unused := counts.rows - counts.rows_matched:
        console.notice(
            f"{plural(unused, 'row')} of {counts.rows:,} without a document, listed in {summary.unmatched}, such as"
        )
        for text in summary.unused:
            console.notice(f"  {text}")
    if counts.repeated:
        console.notice(f"{plural(counts.repeated, 'row')} left out that said again what an earlier row says")


def run_annotate(request: Request, engine: Engine, console: Console) -> AnnotateSummary:
    """Join the columns, as the only job that writes annotations there; shards may be added meanwhile.

    Raises UsageError, MismatchError, IntegrityError, FolderInUse.
    """
    refuse_unfinished(request.shards)
    manifest = load_manifest(request.shards)
    numbered = [(shard, before) for shard, before in chosen_shards(manifest) if shard.documents]
    if not numbered:
        raise UsageError(f"{manifest.folder} holds no documents")
    shards = [shard for shard, _ in numbered]
    check_request(request, shards, console)
    folder = annotations_folder(manifest.folder, request.name)
    with hold(manifest.folder / FOLDER, "annotate", beside=True), reading(manifest, "annotate"):
        others = [one for one in find_annotations(manifest.folder) if one.name != request.name]
        columns = Columns(request.by, request.columns, refuse_taken(request, shards, others))
        with (
            _work_folder(manifest.folder, request.name) as work,
            open_step("annotate", engine, console) as step,
        ):
            inputs = list_rows(request, console)
            documents = sum(shard.documents for shard in shards)
            size = sum(int(file.size * (COMPRESSION_RATIO if file.compression else 1)) for file in inputs)
            size += KEY_BYTES * documents
            buckets = min(MOST_BUCKETS, 1 << max(0, -(-size // BUCKET_BYTES) - 1).bit_length())
            read_rows(request, inputs, columns, buckets, work, engine.stop, console)
            engine.choose(sum(file.size for file in inputs) + TEXT_PER_DOCUMENT * documents)
            groups = _groups(numbered, folder, mark := secrets.token_hex(4))
            join = Join(
                shards=manifest.folder,
                work=work,
                by=request.by,
                types=tuple(columns.kinds.values()),
                schema=_schema(request, columns),
                groups=len(groups),
                buckets=buckets,
                workers=engine.parallel,
                spill=SPILL_LEAST
                + SPILL_TIMES * (size // buckets + max(group.documents for group in groups)),
            )

            def name(item: object) -> str:
                return item.out.stem if isinstance(item, Group) else f"bucket {item}"

            def run(task: Task[Item, Result], items: Sequence[Item], what: str) -> list[Result]:
                each = list(items)
                done = step.map(task, each, what, name, kept=False)
                found = {id(item): result for item, result in done}  # groups have no hash
                return [found[id(item)] for item in each]

            run(join.find_keys, groups, "file")
            joined = run(join.join_bucket, range(buckets), "bucket")
            _refuse_conflicts(request, inputs, columns, joined)
            _refuse_unmatched(manifest, request, inputs, join, groups, joined)
            parts = run(join.write_rows, groups, "file")
            unused, unmatched = _list_unused(request, inputs, join, folder / f"unmatched-{mark}.parquet")
        record = AnnotationRecord(
            made=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            by=request.by,
            columns=tuple(JoinedColumn(name, kind or "text") for name, kind in columns.kinds.items()),
            counts=JoinCounts(
                rows=sum(one.rows for one in joined),
                repeated=sum(one.repeated for one in joined),
                rows_matched=sum(one.used for one in joined),
                documents=documents,
                documents_matched=sum(part.matched for part in parts),
            ),
            files=tuple(GivenFile(file.path, file.size, file.identity) for file in inputs),
            parts=tuple(parts),
            unmatched=unmatched,
        )
        _remove_others(write_annotations(folder, record))
        lonely = sorted(number for one in joined for number in one.lonely)[:SHOWN]
        return AnnotateSummary(
            name=request.name,
            folder=str(folder),
            by=request.by,
            columns=record.columns,
            counts=record.counts,
            unmatched=str(folder / unmatched.path) if unmatched else None,
            lonely=tuple(_keys_of(manifest, request, groups, lonely)),
            unused=unused,
        )


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


def list_rows(request: Request, console: Console) -> Sequence[InputFile]:
    """The files of rows. Raises UsageError."""
    inputs, notices = list_inputs(request.files, "auto")
    for notice in notices:
        console.notice(notice)
    for file in inputs:
        if file.format not in ("jsonl", "parquet"):
            raise UsageError(f"{file.path} is {file.format}; rows come as JSON Lines or Parquet")
    return inputs


def read_rows(
    request: Request,
    inputs: Sequence[InputFile],
    columns: Columns,
    buckets: int,
    work: Path,
    stop: StopFlag,
    console: Console,
) -> None:
    """Leave the rows in WORK/rows-*.parquet; `columns` learns what they hold. Raises UsageError, Stopped."""
    held: list[pa.Table] = []
    rows = files = 0

    def write() -> None:
        nonlocal files
        with key_writer(work / f"rows-{files}.parquet", held[0].schema) as writer:
            write_by_key(writer, pa.concat_tables(held), buckets)
        held.clear()
        files += 1

    with stop.raising():
        for number, file in enumerate(inputs):
            for table in read_values(number, file, columns):
                if held and (held[0].schema != table.schema or sum(one.nbytes for one in held) > RUN_BYTES):
                    write()
                held.append(table)
                rows += len(table)
        held = held or [rows_schema(request.by).empty_table()]
        write()
    if missing := [name for name in request.columns or () if name not in columns.kinds]:
        raise UsageError(
            f"--columns: no row has {missing[0]!r}; other columns are {', '.join(columns.left) or 'none'}"
        )
    console.notice(f"{plural(rows, 'row')} in {plural(len(inputs), 'file')}")


def _groups(numbered: Sequence[Numbered], folder: Path, mark: str) -> list[Group]:
    """Shards whose rows stand in one file: of one source and split, in a row. mark: ends the names of this job's
    files."""
    groups: list[list[Numbered]] = []
    held = end = 0
    for shard, before in numbered:
        last = groups[-1][-1][0] if groups else None
        follows = last and (last.source, last.split, end) == (shard.source, shard.split, before)
        if not follows or held + shard.documents > PART_DOCUMENTS:
            groups.append([])
            held = 0
        groups[-1].append((shard, before))
        held, end = held + shard.documents, before + shard.documents
    found, first = list[Group](), 0
    for number, group in enumerate(groups):
        shard, documents = group[0][0], sum(shard.documents for shard, _ in group)
        name = f"{shard.source}-{shard.split}-{number:05d}-{mark}.parquet"
        found.append(Group(tuple(group), number, first, documents, folder / name))
        first += documents
    return found


def _schema(request: Request, columns: Columns) -> pa.Schema:
    """Of the files of rows."""
    values = [pa.field(name, TYPES[kind or "text"]) for name, kind in columns.kinds.items()]
    return pa.schema([pa.field(matched_column(request.name), pa.bool_(), nullable=False), *values])


def _refuse_conflicts(
    request: Request, inputs: Sequence[InputFile], columns: Columns, joined: Sequence[Joined]
) -> None:
    """UsageError that names rows which say different things of one key."""
    told = []
    for before, here in (pair for one in joined for pair in one.named):
        values = 2 + len(request.by)
        at = next(at for at in range(values, len(here)) if not _same(before[at], here[at]))
        name = list(columns.kinds)[at - values]
        one, other = (f"{inputs[row[0]].path}, line or row {row[1]}" for row in (before, here))
        told.append(
            f"{_key_text(request, here[2:])}: {name} is {before[at]!r} in {one} and {here[at]!r} in {other}"
        )
    if told:
        count = sum(one.conflicts for one in joined)
        raise UsageError(
            "rows of one key say different things:\n  " + listed(told, SHOWN, "\n  ", count=count)
        )


def _refuse_unmatched(
    manifest: Manifest,
    request: Request,
    inputs: Sequence[InputFile],
    join: Join,
    groups: Sequence[Group],
    joined: Sequence[Joined],
) -> None:
    """UsageError where no row has the key of a document."""
    if any(one.used for one in joined):
        return
    files = listed([file.path for file in inputs], SHOWN)
    unused = (pq.read_table(join.unused(at), partitioning=None) for at in range(join.buckets))
    row = next((list(table.slice(0, 1).to_pylist()[0].values()) for table in unused if len(table)), None)
    if row is None:
        raise UsageError(f"{files} holds no row")
    first = min(number for one in joined for number in one.lonely)
    raise UsageError(
        f"no row of {files} matches a document: the rows have keys like {_key_text(request, row[2:])}, the documents "
        f"like {next(_keys_of(manifest, request, groups, [first]))}"
    )


def _same(one: object, other: object) -> bool:
    """Equal, or both no number."""
    return one == other or (one != one and other != other)


def _list_unused(
    request: Request, inputs: Sequence[InputFile], join: Join, out: Path
) -> tuple[tuple[str, ...], ListedRows | None]:
    """Write which rows no document has the key of: their file, line or row, and key. (some by name, the file)."""
    fields = [("given_file", pa.string()), ("line", pa.int64())]
    schema = pa.schema([*fields, *((name, pa.large_string()) for name in request.by)])
    paths = pa.array([file.path for file in inputs], pa.string())
    named = list[str]()
    with (
        atomic_open(out) as file,
        pq.ParquetWriter(file, schema, compression="zstd", store_schema=False) as writer,
    ):
        for bucket in range(join.buckets):
            table = pq.read_table(join.unused(bucket), use_threads=False, partitioning=None)
            files = paths.take(table["file"].combine_chunks())
            table = table.set_column(0, "file", files).rename_columns(schema.names).cast(schema)
            writer.write_table(table)
            for row in table.slice(0, SHOWN - len(named)).to_pylist():
                where, line, *key = row.values()
                named.append(f"{where}, line or row {line}: {_key_text(request, key)}")
    if not named:
        out.unlink()
        return (), None
    return tuple(named), ListedRows(out.name, out.stat().st_size, checksum(out))


def _keys_of(
    manifest: Manifest, request: Request, groups: Sequence[Group], numbers: Sequence[int]
) -> Iterator[str]:
    """The keys of documents by their numbers among all, which rise."""
    for group in groups:
        at, last = group.first, max((n for n in numbers if n < group.first + group.documents), default=-1)
        for _, _, rows in scan(manifest, request.by, group.shards) if last >= at else ():
            keys = document_keys(request.by, rows)
            for number in numbers:
                if at <= number < at + len(rows):
                    yield _key_text(request, [column[number - at].as_py() for column in keys])
            at += len(rows)
            if at > last:
                break


def _key_text(request: Request, key: Sequence[object]) -> str:
    return ", ".join(f"{name} {value!r}" for name, value in zip(request.by, key, strict=False))


def _remove_others(annotations: Annotations) -> None:
    """Files of the annotations that these replace, and what killed jobs left; not what others put there."""
    for path in annotations.folder.iterdir():
        if re.fullmatch(OURS, path.name) and path not in annotations.files:
            path.unlink()
