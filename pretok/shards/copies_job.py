"""Which documents are copies of earlier ones, settled before tokenizing: every worker is then told its copies.

Input: the tasks of all partitions that are not sealed, and the shards that are. Output: beside the state of each
partition the file of its copies (`screen.copies`). Workers seal shards one by one and never change one afterwards, so
who is first must be known before the first is sealed: a pass over the texts hashes them, which costs a read and spares
the encoding of every copy.

What counts as first does not depend on workers: documents of sealed sources; then those of partitions for which it
was settled before; then partitions in the order of the manifest (names of sources, files, lines), those with a damaged
input last, so that nothing is left out for the sake of a file that will be fixed. What is settled stays: a kill, or an
input fixed later, changes nothing about shards that may be sealed already.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pretok.base.console import Table, table
from pretok.base.execute import Report
from pretok.base.failures import Failures
from pretok.base.storage import atomic_open
from pretok.base.tasks import Step
from pretok.base.tokens import Hashes, Ints
from pretok.base.tree import compare_root
from pretok.chat.documents import read_documents
from pretok.read.batches import buffers, hash_texts
from pretok.read.partition_runs import run_partitions
from pretok.read.readers import Damage
from pretok.screen.copies import (
    Copies,
    CopiesOfPartition,
    find_copies,
    load_copies,
    save_copies,
)
from pretok.shards.ledger import ledger_column
from pretok.shards.manifest import Manifest
from pretok.shards.task import TokenizeTask, copies_path, hashes_path


@dataclass(frozen=True, slots=True)
class PartitionHashes:
    """hashes: (documents, 2); pieces, records: (documents,), where in the partition each is, from 0; damaged: whether
    an input could not be read to its end."""

    hashes: Hashes
    pieces: npt.NDArray[np.int64]
    records: npt.NDArray[np.int64]
    damaged: bool


def hash_partition(task: TokenizeTask, report: Report) -> int:
    """Write the hashes of the documents that tokenizing will read, in their order, unless they are there; how many they
    are. The task of a worker."""
    path = hashes_path(task)
    if path.exists():
        return len(load_hashes(path).hashes)
    hashes, pieces = [np.empty((0, 2), np.uint64)], [np.empty(0, np.int64)]
    records, damaged = [np.empty(0, np.int64)], False
    for batch in read_documents(task.partition, task.record, task.normalization, task.keep):
        if isinstance(batch, Damage):
            damaged = True
            continue
        hashes.append(hash_texts(batch.texts))
        pieces.append(np.full(len(batch.texts), batch.piece))
        records.append(batch.numbers)
        size = len(buffers(batch.texts)[0])
        report({"documents": len(batch.texts), "bytes": size, f"bytes:{task.partition.source}": size})
    with atomic_open(path) as file:
        np.savez(
            file,
            hashes=np.concatenate(hashes),
            pieces=np.concatenate(pieces),
            records=np.concatenate(records),
            damaged=np.bool_(damaged),
        )
    return sum(map(len, records))


def load_hashes(path: Path) -> PartitionHashes:
    """What `hash_partition` wrote."""
    with np.load(path) as file:
        return PartitionHashes(file["hashes"], file["pieces"], file["records"], bool(file["damaged"]))


_Place = tuple[str, int, int]


@dataclass(frozen=True, slots=True)
class _Documents:
    """Documents of a source in a row. count: of them; load: their (count, 2) hashes; places: of those with these
    numbers the file, and the start and record there, as a ledger has them."""

    source: str
    count: int
    load: Callable[[], Hashes]
    places: Callable[[Ints], list[_Place]]


def settle_copies(tasks: Sequence[TokenizeTask], sealed: Manifest | None, step: Step) -> Failures:
    """Leave the file of its copies for every task; the partitions that could not be hashed, which have none.

    sealed: the shards that stay.
    """
    tasks = sorted(tasks, key=lambda task: (task.partition.source, task.partition.number))
    unsettled = [task for task in tasks if not copies_path(task).exists()]
    if not unsettled:
        return []
    failures: Failures = []
    for _ in run_partitions(
        hash_partition, unsettled, unsettled, "to read first for copies", {}, step, failures
    ):
        pass
    failed = {name for name, _ in failures}
    unsettled = [task for task in unsettled if task.partition.name not in failed]
    lists = _of_shards(sealed) if sealed else []
    lists += [_of_settled(task) for task in tasks if copies_path(task).exists()]
    unsettled.sort(key=lambda task: load_hashes(hashes_path(task)).damaged)  # stable
    first, lists = len(lists), lists + [_of_partition(task) for task in unsettled]
    copies = find_copies([one.count for one in lists], lambda number: lists[number].load())
    for task, of_partition in zip(unsettled, _located(unsettled, lists, copies[first:]), strict=True):
        save_copies(copies_path(task), of_partition)
    step.console.show(_table(lists, first, copies))
    return failures


def _table(lists: Sequence[_Documents], first: int, copies: Sequence[Copies]) -> Table:
    """What was found in the lists from `first` on, by source."""
    documents, within, across = Counter[str](), Counter[str](), Counter[str]()
    for one, found in zip(lists[first:], copies[first:], strict=True):
        documents[one.source] += one.count
        firsts, counts = np.unique(found.of_list, return_counts=True)
        same = sum(
            n
            for of, n in zip(firsts.tolist(), counts.tolist(), strict=True)
            if lists[of].source == one.source
        )
        within[one.source] += same
        across[one.source] += len(found.rows) - same
    rows = [
        (name, *(f"{counts[name]:,}" for counts in (documents, within, across))) for name in sorted(documents)
    ]
    return table("copies", ("source", "documents", "copies of its own", "of other sources"), rows)


def _of_shards(sealed: Manifest) -> list[_Documents]:
    """The documents of sealed shards, by their ledgers."""
    found = []
    for shard in sealed.shards:
        path = shard.ledger_path
        load = partial(_hash_values, path, sealed.roots[path])
        found.append(_Documents(shard.source, shard.documents, load, partial(_places, path)))
    return found


def _hash_values(path: Path, sealed: str) -> Hashes:
    compare_root(path, sealed)
    column = ledger_column(path, "hash")
    values = np.frombuffer(column.buffers()[1], ">u8").reshape(-1, 2)
    return values[column.offset : column.offset + len(column)].astype(np.uint64)


def _places(path: Path, rows: Ints) -> list[_Place]:
    columns = [
        ledger_column(path, name).take(pa.array(rows)).to_pylist() for name in ("file", "start", "record")
    ]
    return list(zip(*columns, strict=True))


def _of_partition(task: TokenizeTask) -> _Documents:
    """All documents of a partition."""
    return _listed(task, np.arange(len(load_hashes(hashes_path(task)).hashes)))


def _of_settled(task: TokenizeTask) -> _Documents:
    """The documents of a partition that are no copies: those left out must not be the first of others."""
    hashed, copies = load_hashes(hashes_path(task)), load_copies(copies_path(task))
    gone = np.zeros(len(hashed.hashes), np.bool_)
    for piece in np.unique(copies.pieces):
        here = hashed.pieces == piece
        gone[here] = np.isin(hashed.records[here], copies.records[copies.pieces == piece])
    return _listed(task, np.flatnonzero(~gone))


def _listed(task: TokenizeTask, rows: Ints) -> _Documents:
    def places(numbers: Ints) -> list[_Place]:
        hashed, found = load_hashes(hashes_path(task)), []
        for row in rows[numbers].tolist():
            piece = task.partition.pieces[int(hashed.pieces[row])]
            start, first = piece.origin
            found.append((piece.file.path, start, first + int(hashed.records[row])))
        return found

    return _Documents(
        task.partition.source, len(rows), lambda: load_hashes(hashes_path(task)).hashes[rows], places
    )


def _located(
    tasks: Sequence[TokenizeTask], lists: Sequence[_Documents], copies: Sequence[Copies]
) -> Iterator[CopiesOfPartition]:
    """The copies of each task with the places of what they are copies of. Each list is asked once, for all tasks."""
    of_list, of_row = (
        np.concatenate([np.empty(0, np.int64), *(getattr(one, name) for one in copies)])
        for name in ("of_list", "of_row")
    )
    where = np.zeros((len(of_list), 3), np.int64)
    names: dict[str, int] = {}
    order = np.argsort(of_list, kind="stable")
    for rows in np.split(order, np.flatnonzero(np.diff(of_list[order])) + 1) if len(order) else ():
        places = lists[of_list[rows[0]]].places(of_row[rows])
        where[rows] = [(names.setdefault(file, len(names)), start, record) for file, start, record in places]
    known, end = list(names), 0
    for task, one in zip(tasks, copies, strict=True):
        hashed, begin = load_hashes(hashes_path(task)), end
        end += len(one.rows)
        used, files = np.unique(where[begin:end, 0], return_inverse=True)
        yield CopiesOfPartition(
            pieces=hashed.pieces[one.rows],
            records=hashed.records[one.rows],
            names=[known[name] for name in used.tolist()],
            files=files,
            starts=where[begin:end, 1],
            lines=where[begin:end, 2],
        )
