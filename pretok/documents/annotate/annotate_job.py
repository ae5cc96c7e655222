"""annotate: join columns made by other tools to the documents, in a second ledger; shards do not change.

Input: a shards folder, files of rows and the columns of a key. Output: SHARDS/annotations/NAME (`shards.annotations`).

DuckDB joins two tables, which it keeps on disk if they do not fit in memory:

    given   a row of the files: `place`, `key` and the values `v0`, `v1`, ...
    wanted  a document: its number `n` among all, and `key`
    joined  a document with a row: `n` and the values, in the order of `n`

`key` is the MD5 of the columns of the key, 128 bits; it is null if one of these is, and then equals nothing. Arrow
writes the result in the order of the documents, so none of its bytes depend on DuckDB. Nothing has changed until the
record is replaced; a killed job starts again.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from pretok.base.console import Console, Gauge
from pretok.base.errors import UsageError
from pretok.base.lock import hold
from pretok.base.memory import free_memory
from pretok.base.sql import database
from pretok.base.stop import StopFlag
from pretok.base.storage import TEMPORARY_SUFFIX
from pretok.base.units import listed, plural
from pretok.documents.annotate.rows import key_of, load_rows, place_of
from pretok.read.files import InputFile
from pretok.read.kept import TYPES
from pretok.read.recognise import list_inputs
from pretok.shards.annotations import (
    FOLDER,
    Annotations,
    JoinedPart,
    annotations_folder,
    find_annotations,
    matched_column,
    write_annotations,
)
from pretok.shards.document_table import OF_SHARD, chosen_shards, identifier, make_views
from pretok.shards.ledger import WINDOW, LedgerWriter, ledger_schema
from pretok.shards.manifest import Manifest, Shard, load_manifest
from pretok.shards.unfinished import reading, refuse_unfinished

OURS = r".+-[0-9a-f]{8}\.parquet|\..+" + re.escape(TEMPORARY_SUFFIX)
"""Names of files that this job writes and replaces."""
SHOWN = 5
"""Files that a message names."""
MEMORY = 1 << 30
"""Bytes that DuckDB keeps in memory, and free memory for each of its threads."""


@dataclass(frozen=True, slots=True)
class AnnotateRequest:
    """What to join."""

    shards: Path
    files: tuple[str, ...]
    by: tuple[str, ...]
    """The key, columns of the view `documents`."""
    name: str = "notes"
    """Of the annotations."""
    columns: tuple[str, ...] | None = None
    """Those to take from the files, None: all that are not in the key."""


def run_annotate(request: AnnotateRequest, console: Console) -> Annotations:
    """Join the columns, as the only job that writes annotations there; shards may be added meanwhile.

    Raises UsageError, MismatchError, IntegrityError, FolderInUse, MemoryError.
    """
    refuse_unfinished(request.shards)
    manifest = load_manifest(request.shards)
    numbered = [entry for entry in chosen_shards(manifest) if entry[0].documents]
    numbered.sort(key=lambda entry: (entry[0].source, entry[0].split, entry[1]))
    if not numbered:
        raise UsageError(f"{manifest.folder} holds no documents")
    shards, folder = [shard for shard, _ in numbered], annotations_folder(manifest.folder, request.name)
    scratch = manifest.folder.parent / f".annotate-{os.getpid()}"  # made where the tables fit no memory
    room = shutil.disk_usage(manifest.folder).free // 2
    with (
        hold(manifest.folder / FOLDER, "annotate", beside=True),
        reading(manifest, "annotate"),
        StopFlag() as stop,
        stop.raising(),
        database(scratch, 1, room, MEMORY) as sql,
        console.progress("annotate") as progress,
    ):
        taken = _check_request(request, manifest, shards)
        inputs = _list_rows(request, console)
        # Rows are joined by what ledgers say, and the result is sealed: a changed ledger must not get a seal of its
        # own.
        for shard in shards:
            manifest.check(shard.ledger_path)
        threads = max(1, min(len(os.sched_getaffinity(0)), free_memory() // MEMORY))
        sql.execute(f"SET threads = {threads}")  # every result below has its order
        progress.expect(sum(shard.documents for shard in shards), unit="documents")
        progress.note = "reading the rows"
        kinds = load_rows(sql, inputs, request.by, request.columns, taken)
        progress.note = "joining"
        _load_documents(sql, request.by, manifest)
        repeated = _drop_repeated(sql, inputs, len(kinds))
        rows_matched = _one(sql, "SELECT count(*) FROM given SEMI JOIN wanted USING (key)")
        if not rows_matched:
            raise UsageError(
                f"no row of {listed([file.path for file in inputs], SHOWN)} matches a document; to see their keys: "
                f"pretok query {request.shards} 'SELECT {', '.join(request.by)} FROM documents LIMIT 5'"
            )
        folder.mkdir(parents=True, exist_ok=True)
        annotations = Annotations(
            made=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            by=request.by,
            columns=dict(kinds),
            rows=_one(sql, "SELECT count(*) FROM given"),
            repeated=repeated,
            rows_matched=rows_matched,
            files=tuple(inputs),
            parts=dict(_write_parts(sql, request, kinds, manifest, shards, folder, progress)),
            folder=folder,
        )
        # Only the record makes the new files count. Files of the old record and of killed jobs are deleted after it.
        write_annotations(annotations)
        for path in folder.iterdir():
            if re.fullmatch(OURS, path.name) and path not in annotations.roots:
                path.unlink()
    return annotations


def show_joined(annotations: Annotations, console: Console) -> None:
    """Show what was joined."""
    columns = ", ".join(annotations.columns) or matched_column(annotations.name)
    documents, by = plural(annotations.documents, "document"), ", ".join(annotations.by)
    console.notice(
        f"{annotations.name}: {columns} of {annotations.matched:,} of {documents}, by {by}; {annotations.folder}"
    )
    if left := annotations.rows - annotations.rows_matched:
        console.notice(
            f"{plural(left, 'row')} of {annotations.rows:,} without a document: pretok query shows them, as in SELECT "
            f"* FROM '{annotations.files[0].path}' ANTI JOIN documents USING ({by})"
        )
    if annotations.repeated:
        console.notice(f"{plural(annotations.repeated, 'row')} left out that repeat an earlier row")


def _check_request(request: AnnotateRequest, manifest: Manifest, shards: Sequence[Shard]) -> set[str]:
    """Return the names of columns that documents have already, in lower case, as SQL ignores case.

    Raises UsageError for a wrong name or key.
    """
    if not re.fullmatch("[A-Za-z][A-Za-z0-9_]*", request.name):
        raise UsageError(f"--name {request.name!r}: use letters, digits and _, as in names of columns")
    if not request.by or len(set(request.by)) != len(request.by) or set(request.by) <= set(OF_SHARD):
        raise UsageError("--by must tell documents apart: id, hash, url, file,position or source,id")
    known = {name for shard in shards for name in ledger_schema(shard.ledger_path).names}
    known |= {*OF_SHARD, "doc", "position"}
    for column in request.by:
        if column not in known:
            raise UsageError(
                f"--by {column}: documents have only {', '.join(sorted(known))}; tokenize them with --keep {column}, "
                "or join by file,position or by hash"
            )
    known |= {matched_column(request.name), "file_row_number", "pretok:file"}
    for joined in find_annotations(manifest.folder):
        known |= {*joined.types} if joined.name != request.name else set()
    return {name.lower() for name in known}


def _list_rows(request: AnnotateRequest, console: Console) -> Sequence[InputFile]:
    """List the files of rows. Raises UsageError."""
    inputs, notices, _ = list_inputs(request.files, "auto")
    for notice in notices:
        console.notice(notice)
    for file in inputs:
        if file.format not in ("jsonl", "parquet"):
            raise UsageError(f"{file.path} is {file.format}; rows must be JSON Lines or Parquet")
    return inputs


def _one(sql: Any, query: str) -> int:
    ((number,),) = sql.execute(query).fetchall()
    return int(number)


def _load_documents(sql: Any, by: Sequence[str], manifest: Manifest) -> None:
    """Fill the table `wanted`, in which documents are numbered by source, split and number in the split."""
    make_views(sql, manifest, ())
    texts = ", ".join(f"ledger.{identifier(name)}::VARCHAR AS k{at}" for at, name in enumerate(by))
    sql.execute(
        f"""CREATE TABLE wanted AS WITH
            splits AS (SELECT source, split, count(*) AS size FROM ledger GROUP BY ALL),
            starts AS (SELECT source, split, sum(size) OVER (ORDER BY source, split) - size AS before FROM splits),
            keys AS (SELECT starts.before + ledger.doc AS n, {texts} FROM ledger JOIN starts USING (source, split))
        SELECT n::BIGINT AS n, {key_of(by)} AS key FROM keys"""
    )


def _drop_repeated(sql: Any, inputs: Sequence[InputFile], values: int) -> int:
    """Delete rows that repeat an earlier one, and return how many. Raises UsageError if two rows of a key differ."""
    sql.execute(
        """CREATE TABLE firsts AS SELECT key, min(place) AS first FROM given GROUP BY key
        HAVING count(*) > 1 AND key NOT NULL"""
    )
    differs = " OR ".join(["false", *(f"g.v{at} IS DISTINCT FROM f.v{at}" for at in range(values))])
    pair = sql.execute(
        f"""SELECT f.place, g.place FROM firsts JOIN given f ON f.place = first JOIN given g ON g.key = firsts.key
        WHERE {differs} ORDER BY g.place LIMIT 1"""
    ).fetchone()
    if pair:
        first, other = (place_of(inputs, place) for place in pair)
        raise UsageError(f"rows with the same key differ: {first}, and {other}")
    return _one(sql, "DELETE FROM given USING firsts WHERE given.key = firsts.key AND place > first")


def _write_parts(
    sql: Any,
    request: AnnotateRequest,
    kinds: dict[str, str],
    manifest: Manifest,
    shards: Sequence[Shard],
    folder: Path,
    progress: Gauge,
) -> Iterator[tuple[str, JoinedPart]]:
    """Write a row for every document, in the windows of the ledgers, one file per shard.

    Yields the path of each shard with its rows.
    """
    fields = [pa.field(name, TYPES[kind]) for name, kind in kinds.items()]
    schema = pa.schema([pa.field(matched_column(request.name), pa.bool_(), nullable=False), *fields])
    values = "".join(f", v{at}" for at in range(len(kinds)))
    # In this order a window is in a few blocks, which DuckDB finds by their smallest and largest n.
    sql.execute(f"CREATE TABLE joined AS SELECT n{values} FROM wanted JOIN given USING (key) ORDER BY n")
    window = f"""SELECT joined.n NOT NULL AS matched{values}
        FROM range($1, $2) AS every(n) LEFT JOIN (SELECT * FROM joined WHERE n >= $1 AND n < $2) joined USING (n)
        ORDER BY every.n"""
    # New names, so that the files of the old record stay whole until the new one replaces it.
    mark, first = secrets.token_hex(4), 0
    for number, shard in enumerate(shards):
        out = folder / f"{shard.source}-{number:05d}-{mark}.parquet"
        matched, end = 0, first + shard.documents
        with LedgerWriter(out, schema) as writer:
            # A window at a time: memory does not grow with the shard.
            for start in range(first, end, WINDOW):
                table = sql.sql(window, params=[start, min(start + WINDOW, end)]).to_arrow_table()
                matched += pc.sum(table[0]).as_py()
                rows = table.rename_columns(schema.names).cast(schema).combine_chunks()
                writer.append(rows.to_batches()[0])
                progress({"documents": table.num_rows})
            file = writer.seal(shard.source)
        first = end
        ledger = manifest.roots[shard.ledger_path]
        yield shard.path, JoinedPart(out.name, ledger, shard.documents, matched, file.file_bytes, file.root)
