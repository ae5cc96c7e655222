"""Shards in a row -> the joined row of each of their documents: the task of annotate's second step.

Enters: a JoinTask. Leaves: one Parquet file in the windows of the ledgers, and which of the rows given were used. The
sorted rows are mapped into memory and not read: what of them is touched stays in the node's page cache for all workers.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from pretok.annotate.keys import ShardPlace, document_keys, hash_keys, ledger_columns, one_array
from pretok.annotate.spill import HASHES, bucket_of
from pretok.base.storage import atomic_open, checksum, compare_checksum
from pretok.base.tell import Counts
from pretok.base.tokens import Hashes, Ints
from pretok.shards.ledger import WINDOW, ledger_path, ledger_schema, ledger_windows
from pretok.shards.positions import LinesBefore

SHOWN = 5
"""Documents without a row that a task names."""
CHUNK = 16
"""Windows that are looked up at a time: the more, the fewer times a row's page is asked for."""


@dataclass(frozen=True, slots=True)
class JoinTask:
    """index: the sorted buckets; schema: of the file, `matched` first; before: (file, start) -> lines before, where the
    key needs it."""

    shards: tuple[ShardPlace, ...]
    by: tuple[str, ...]
    index: tuple[Path, ...]
    schema: pa.Schema
    before: LinesBefore
    out: Path


@dataclass(frozen=True, slots=True)
class Joined:
    """used: of each bucket the rows that a document has the key of; lonely: keys of some documents without a row."""

    documents: int
    matched: int
    used: tuple[npt.NDArray[np.uint32], ...]
    lonely: tuple[str, ...]
    file_bytes: int
    checksum: str


def join_shards(task: JoinTask, report: Callable[[Counts], None]) -> Joined:
    """Write the rows of all documents of the shards, in their order."""
    index = _Index(task.index, task.schema.names[1:])
    matched = documents = 0
    lonely: list[str] = []
    with (
        atomic_open(task.out) as file,
        pq.ParquetWriter(file, task.schema, compression="zstd", store_schema=False) as writer,
    ):
        for place in task.shards:
            for keys in _chunks(place, task):
                rows, found = index.join(*hash_keys(keys))
                for name in np.flatnonzero(~found)[: SHOWN - len(lonely)].tolist():
                    lonely.append(
                        ", ".join(f"{b} {k[name].as_py()!r}" for b, k in zip(task.by, keys, strict=True))
                    )
                columns = [
                    pa.array(found),
                    *(column.cast(f.type) for column, f in zip(rows, list(task.schema)[1:], strict=True)),
                ]
                table = pa.table(columns, task.schema)
                writer.write_table(table, row_group_size=WINDOW)
                matched, documents = matched + int(found.sum()), documents + len(found)
                report({"documents": len(found)})
    used = tuple(index.used(number) for number in range(len(task.index)))
    return Joined(documents, matched, used, tuple(lonely), task.out.stat().st_size, checksum(task.out))


def _chunks(place: ShardPlace, task: JoinTask) -> Iterator[list[pa.LargeStringArray]]:
    """The keys of a shard's documents, some windows at a time."""
    path = ledger_path(place.prefix)
    compare_checksum(path, place.checksum)
    held: list[list[pa.LargeStringArray]] = []
    at = 0
    for rows in ledger_windows(path, ledger_columns(task.by, ledger_schema(path).names)):
        held.append(document_keys(place, at, rows, task.by, task.before))
        at += len(rows)
        if len(held) == CHUNK:
            yield _together(held)
            held = []
    if held and at:
        yield _together(held)


def _together(held: list[list[pa.LargeStringArray]]) -> list[pa.LargeStringArray]:
    return [pa.concat_arrays(columns) for columns in zip(*held, strict=True)]


class _Index:
    """The sorted rows, and which were used."""

    def __init__(self, paths: tuple[Path, ...], values: list[str]) -> None:
        self._tables = []
        self._used: dict[int, list[npt.NDArray[np.uint32]]] = defaultdict(list)
        for path in paths:
            with pa.memory_map(str(path)) as file:
                self._tables.append(pa.ipc.open_file(file).read_all().select([*HASHES.names, *values]))
        self._values = values

    def join(
        self, hashes: Hashes, given: npt.NDArray[np.bool_]
    ) -> tuple[list[pa.Array], npt.NDArray[np.bool_]]:
        """(the values of each document, null without a row; which have one)."""
        where = np.full(len(hashes), -1, np.int64)  # among the rows taken
        bucket = np.where(given, bucket_of(hashes, len(self._tables)), -1)
        taken, count = [self._tables[0].select(self._values).slice(0, 0)], 0
        for number in np.unique(bucket[given]).tolist():
            here = np.flatnonzero(bucket == number)
            here = here[np.argsort(hashes[here, 0])]  # so that pages of the rows are asked for in their order
            rows = self._find(number, hashes[here])
            hit = rows >= 0
            self._used[number].append(rows[hit].astype(np.uint32))
            if self._values:
                taken.append(self._tables[number].select(self._values).take(pa.array(rows[hit])))
            where[here[hit]] = count + np.arange(hit.sum())
            count += int(hit.sum())
        found: npt.NDArray[np.bool_] = where >= 0
        rows_of, table = pa.array(where, mask=~found), pa.concat_tables(taken).combine_chunks()
        return [one_array(table, name).take(rows_of) for name in self._values], found

    def _find(self, number: int, hashes: Hashes) -> Ints:
        """The row of each key, -1 where there is none."""
        first, second = (_flat(self._tables[number], name) for name in HASHES.names)
        rows = np.searchsorted(first, hashes[:, 0])
        open_ = np.flatnonzero(rows < len(first))
        found = np.full(len(hashes), -1, np.int64)
        while len(open_):  # once, but where two keys have half of their hashes in common
            at = rows[open_]
            same = first[at] == hashes[open_, 0]
            hit = same & (second[at] == hashes[open_, 1])
            found[open_[hit]] = at[hit]
            open_ = open_[same & ~hit & (at + 1 < len(first))]
            rows[open_] += 1
        return found

    def used(self, number: int) -> npt.NDArray[np.uint32]:
        """The rows of a bucket that were found, each once."""
        return np.unique(np.concatenate([np.empty(0, np.uint32), *self._used[number]]))


def _flat(table: pa.Table, name: str) -> npt.NDArray[np.uint64]:
    found: npt.NDArray[np.uint64] = np.asarray(one_array(table, name))
    return found
