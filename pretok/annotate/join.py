"""Rows and documents, by bucket of their keys -> the row of each document, in files that follow the ledgers.

Input: rows in files as `write_by_key` leaves them, and shards. Output: one Parquet file for each group of shards, and
the rows that no document has the key of. Three kinds of tasks, each out of core, in a folder that all of them see:

    find_keys     a group of shards -> the number of each document and that of its key
    join_bucket   rows and documents of a bucket of keys -> the row of each document, and rows of no document
    write_rows    what all buckets found for a group of shards -> its file, in the order of the documents

A bucket is a range of `h0`. Files of rows and of documents are sorted by bucket, in small row groups, so a bucket reads
little but its own. What is kept is written by Arrow in an order that is said, so no byte of it depends on DuckDB.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pretok.annotate.keys import HASHES, document_keys, hash_keys
from pretok.base.execute import Report
from pretok.base.sql import database, parquet, quoted
from pretok.base.storage import atomic_open, checksum, temporary_of, writing
from pretok.shards.annotations import JoinedPart, ledgers_fingerprint
from pretok.shards.documents import Numbered, scan
from pretok.shards.ledger import WINDOW
from pretok.shards.manifest import load_manifest

SHOWN = 5
"""Conflicts, documents and rows that are named."""
LEAST_GROUP = 2048
"""Rows of a row group that is read for a bucket, at least."""
ROW_GROUP = 4 << 20
"""Bytes of a row group that DuckDB writes, about."""
CHUNK = 1 << 20
"""Documents whose keys are sorted at a time."""
SQL_TYPES = {"text": "VARCHAR", "integer": "BIGINT", "float": "DOUBLE", "boolean": "BOOLEAN"}
"""Of `read.kept.TYPES`."""


@dataclass(frozen=True, slots=True)
class Group:
    """Shards in a row, whose documents have the numbers from `first` on among all, and the file of their rows."""

    shards: tuple[Numbered, ...]
    number: int
    first: int
    documents: int
    out: Path


@dataclass(frozen=True, slots=True)
class Joined:
    """Of a bucket. rows: different ones; repeated: those that say again what an earlier one says; used: rows that a
    document has the key of; conflicts: rows that say something else of a key than the one before, and of the first such
    both, as (file, line, key..., value...) each; lonely: numbers of the first documents without a row."""

    rows: int = 0
    repeated: int = 0
    used: int = 0
    conflicts: int = 0
    named: tuple[tuple[tuple[Any, ...], tuple[Any, ...]], ...] = ()
    lonely: tuple[int, ...] = ()


@contextmanager
def key_writer(path: Path, schema: pa.Schema) -> Iterator[pq.ParquetWriter]:
    """A file that `write_by_key` adds to and tasks read: whole or not at all, as a task may run twice."""
    temporary = temporary_of(path)
    with (
        writing(path),
        pq.ParquetWriter(temporary, schema, compression="lz4", use_dictionary=False) as writer,
    ):
        yield writer
    temporary.replace(path)


def write_by_key(writer: pq.ParquetWriter, table: pa.Table, buckets: int) -> None:
    """Add rows, sorted by bucket."""
    if buckets > 1:
        first_byte = (np.asarray(table[HASHES[0]]) >> np.uint64(56)).astype(
            np.uint8
        )  # numpy sorts bytes fastest
        table = table.take(pa.array(np.argsort(first_byte, kind="stable")))
    writer.write_table(table, row_group_size=max(LEAST_GROUP, len(table) // buckets))


@dataclass(frozen=True, slots=True)
class Join:
    """What all tasks know. shards: their folder; work: that of unfinished files, with rows-*.parquet; by: the key;
    types: of the values, keys of TYPES, "" for one that has none in any row; schema: of the files that are made;
    workers: how many share a machine; spill: bytes that each may put on disk."""

    shards: Path
    work: Path
    by: tuple[str, ...]
    types: tuple[str, ...]
    schema: pa.Schema
    groups: int
    buckets: int
    workers: int
    spill: int

    def _database(self, task: str) -> AbstractContextManager[Any]:
        return database(self.work / f"spilled-{task}", self.workers, self.spill)

    def _found(self, bucket: int) -> Path:
        return self.work / f"found-{bucket}.parquet"

    def unused(self, bucket: int) -> Path:
        """The file of the rows of a bucket that no document has the key of: file, line and key."""
        return self.work / f"unused-{bucket}.parquet"

    def _keys(self, group: int) -> Path:
        return self.work / f"keys-{group}.parquet"

    def find_keys(self, group: Group, report: Report) -> None:  # noqa: ARG002
        """Write the keys of documents. Raises IntegrityError for a ledger that is not as it was sealed."""
        manifest = load_manifest(self.shards)
        for shard, _ in group.shards:
            manifest.check(shard.ledger_path)
        schema = pa.schema([*((name, pa.uint64()) for name in HASHES), ("n", pa.int64())])
        first, held = group.first, list[pa.RecordBatch]()
        with key_writer(self._keys(group.number), schema) as writer:
            for _, _, rows in scan(manifest, self.by, group.shards):
                numbers = pa.array(np.arange(first, first + len(rows)))
                hashes = hash_keys(document_keys(self.by, rows))
                held.append(pa.record_batch([*hashes, numbers], schema=schema))
                first += len(rows)
                if sum(map(len, held)) >= CHUNK or first == group.first + group.documents:
                    write_by_key(writer, pa.Table.from_batches(held), self.buckets)
                    held.clear()

    def join_bucket(self, bucket: int, report: Report) -> Joined:  # noqa: ARG002
        """Find what is to be told of a bucket's keys."""
        width = (1 << 64) // self.buckets
        within = f"h0 BETWEEN {bucket * width} AND {(bucket + 1) * width - 1}"
        keys, values = [f"k{at}" for at in range(len(self.by))], [f"v{at}" for at in range(len(self.types))]
        place = ["file", "line", *keys]
        typed = [
            f"{name if kind else 'NULL'}::{SQL_TYPES[kind or 'text']} AS {name}"
            for name, kind in zip(values, self.types, strict=True)
        ]
        given = sorted(
            self.work.glob("rows-*.parquet")
        )  # a column may be missing, or whole numbers, in some of them
        with self._database(f"bucket-{bucket}") as sql:
            sql.execute(
                f"""CREATE TABLE given AS SELECT {", ".join(["h0", "h1", *place, *typed])}
                FROM {parquet(given, "union_by_name = true")} WHERE {within}"""
            )
            sql.execute(
                """CREATE TABLE again AS SELECT h0, h1 FROM given WHERE h1 NOT NULL
                GROUP BY ALL HAVING count(*) > 1"""
            )
            of_key = "OVER (PARTITION BY h0, h1 ORDER BY file, line)"
            columns = [*place, *values]
            before = [f"lag({name}) {of_key} AS before_{name}" for name in columns]
            differs = " OR ".join(f"{name} IS DISTINCT FROM before_{name}" for name in values) or "false"
            conflicts = sql.execute(
                f"""SELECT count(*) OVER (), {", ".join([f"before_{name}" for name in columns] + columns)}
                FROM (SELECT h0, h1, {", ".join(columns + before)} FROM given SEMI JOIN again USING (h0, h1))
                WHERE before_line NOT NULL AND ({differs}) ORDER BY h0, h1, file, line LIMIT {SHOWN}"""
            ).fetchall()
            if conflicts:
                named = tuple((row[1 : len(columns) + 1], row[len(columns) + 1 :]) for row in conflicts)
                return Joined(conflicts=conflicts[0][0], named=named)
            repeated = _count(
                sql,
                f"""DELETE FROM given WHERE rowid IN (SELECT rowid FROM (
                    SELECT given.rowid, row_number() {of_key} AS nth FROM given SEMI JOIN again USING (h0, h1)
                ) WHERE nth > 1)""",
            )
            documents = parquet(self._keys(group) for group in range(self.groups))
            sql.execute(f"CREATE TABLE docs AS SELECT h0, h1, n FROM {documents} WHERE {within}")
            _write(
                sql,
                f"""SELECT {", ".join(["n", "given.h1 NOT NULL AS matched", *values])}
                FROM docs LEFT JOIN given ON docs.h0 = given.h0 AND docs.h1 = given.h1 ORDER BY n""",
                self._found(bucket),
            )
            unused = _write(
                sql,
                f"""SELECT {", ".join(place)}
                FROM given ANTI JOIN docs ON docs.h0 = given.h0 AND docs.h1 = given.h1
                ORDER BY h1 NOT NULL, h0, h1, file, line""",
                self.unused(bucket),
            )
            rows = _count(sql, "SELECT count(*) FROM given")
            lonely = sql.execute(
                f"SELECT n FROM {parquet([self._found(bucket)])} WHERE NOT matched ORDER BY n LIMIT {SHOWN}"
            ).fetchall()
            return Joined(rows, repeated, rows - unused, lonely=tuple(number for (number,) in lonely))

    def write_rows(self, group: Group, report: Report) -> JoinedPart:
        """Write the rows of all documents of a group, in the windows of their ledgers."""
        sizes = [
            min(WINDOW, shard.documents - start)
            for shard, _ in group.shards
            for start in range(0, shard.documents, WINDOW)
        ]
        found, last = parquet(map(self._found, range(self.buckets))), group.first + group.documents - 1
        matched = 0
        with (
            self._database(f"file-{group.number}") as sql,
            atomic_open(group.out) as file,
            pq.ParquetWriter(file, self.schema, compression="zstd", store_schema=False) as writer,
        ):
            rows = sql.sql(
                f"SELECT * EXCLUDE n FROM {found} WHERE n BETWEEN {group.first} AND {last} ORDER BY n"
            )
            for table in _windows(rows.to_arrow_reader(WINDOW), sizes):
                table = table.rename_columns(self.schema.names).cast(self.schema)
                writer.write_table(table)
                matched += int(np.count_nonzero(table[0]))
                report({"documents": len(table)})
        shard, before = group.shards[0]
        return JoinedPart(
            path=group.out.name,
            source=shard.source,
            split=shard.split,
            first=before,
            documents=group.documents,
            matched=matched,
            ledgers=ledgers_fingerprint(load_manifest(self.shards), [shard for shard, _ in group.shards]),
            file_bytes=group.out.stat().st_size,
            checksum=checksum(group.out),
        )


def _write(sql: Any, query: str, path: Path) -> int:
    """Write what a query gives to a file that only tasks read; how many rows."""
    temporary = temporary_of(path)
    # A group of rows is held in memory until it is written.
    rows = _count(
        sql, f"COPY ({query}) TO {quoted(str(temporary))} (FORMAT parquet, ROW_GROUP_SIZE_BYTES {ROW_GROUP})"
    )
    temporary.replace(path)
    return rows


def _count(sql: Any, statement: str) -> int:
    ((rows,),) = sql.execute(statement).fetchall()
    return int(rows)


def _windows(rows: pa.RecordBatchReader, sizes: Sequence[int]) -> Iterator[pa.Table]:
    """Tables of so many rows."""
    held = list[pa.RecordBatch]()
    for size in sizes:
        while sum(map(len, held)) < size:
            held.append(rows.read_next_batch())
        table = pa.Table.from_batches(held)
        yield table.slice(0, size).combine_chunks()
        held = table.slice(size).to_batches()
