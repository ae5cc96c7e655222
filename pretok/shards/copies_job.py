"""Finds the documents that are copies of earlier ones, before tokenizing.

Input: the tasks of all partitions that are not sealed, and the sealed shards. Output: a file of copies for each
partition (`screen.copies`), in its state folder. Workers seal shards one by one and never change them. So which
document of a text comes first must be known before the first shard is sealed: a pass over all inputs hashes their
texts. It costs one read, and no copy is encoded.

The order does not depend on workers: documents of sealed sources; then partitions whose copies were found by an earlier
run; then partitions in the order of the manifest (sources by name, files, lines), those with a damaged input last, so
that nothing is left out in favour of a file that will be fixed. A file of copies is final: a kill, or an input that is
fixed later, changes nothing about shards that may be sealed already.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pretok.base.execute import Report
from pretok.base.failures import Failures
from pretok.base.tasks import Step
from pretok.base.tokens import Hashes, Ints
from pretok.base.tree import compare_root
from pretok.base.units import plural
from pretok.chat.documents import read_documents
from pretok.read.batches import buffers, hash_texts
from pretok.read.partition_runs import run_partitions
from pretok.read.readers import Damage
from pretok.screen.copies import Copies, find_copies, save_copies
from pretok.shards.documents import PLACE_IN_FILE
from pretok.shards.ledger import SCHEMA, LedgerWriter, ledger_column, ledger_rows
from pretok.shards.manifest import Manifest
from pretok.shards.task import COPIES, DAMAGED, HASHES, TokenizeTask

HASHED = pa.schema([*SCHEMA, ("piece", pa.int64()), ("number", pa.int64())])
"""The ledger of documents that are not encoded yet, with their piece of the partition and number in the piece."""
PLACES = pa.schema(
    [("file", pa.dictionary(pa.int32(), pa.string())), ("start", pa.int64()), ("record", pa.int64())]
)
NONE = np.empty(0, np.int64)


def hash_partition(task: TokenizeTask, report: Report) -> None:
    """The task of a worker: write a ledger without tokens of the documents that tokenizing will read, unless there is
    one."""
    path = task.state(HASHES)
    if path.exists():
        return
    task.state(DAMAGED).unlink(missing_ok=True)  # left by a killed try; the input may be whole now
    with LedgerWriter(path, HASHED) as writer:
        for batch in read_documents(task.partition, task.record, task.normalization, task.keep):
            if isinstance(batch, Damage):
                task.state(DAMAGED).touch()
                continue
            piece, count = task.partition.pieces[batch.piece], len(batch.texts)
            sizes = np.diff(buffers(batch.texts)[1])
            rows = ledger_rows(
                pa.repeat(pa.scalar(piece.file.path, pa.string()), count),
                np.full(count, piece.origin[0]),
                piece.origin[1] + batch.numbers,
                np.zeros(count, np.int32),
                sizes,
                hash_texts(batch.texts),
                [pa.array(np.full(count, batch.piece)), pa.array(batch.numbers)],
                HASHED,
            )
            writer.append(rows)
            size = int(sizes.sum())
            report({"documents": count, "bytes": size})
        writer.seal(task.partition.source)


@dataclass(frozen=True, slots=True)
class _Documents:
    """The documents of a ledger without the rows `left_out`."""

    ledger: Path
    rows: int
    left_out: Ints

    def __len__(self) -> int:
        return self.rows - len(self.left_out)

    def hashes(self) -> Hashes:
        """(documents, 2) uint64."""
        if not self.rows:
            return np.empty((0, 2), np.uint64)
        column = ledger_column(self.ledger, "hash")
        values = np.frombuffer(column.buffers()[1], ">u8").reshape(-1, 2)[column.offset :][: self.rows]
        return np.delete(values.astype(np.uint64), self.left_out, axis=0)

    def places(self, numbers: Ints) -> pa.Table:
        """Their places as the ledger has them. numbers: without the rows left out."""
        rows = pa.array(np.delete(np.arange(self.rows), self.left_out)[numbers])
        file, *columns = (ledger_column(self.ledger, name).take(rows) for name in PLACE_IN_FILE)
        return pa.Table.from_arrays([file.dictionary_encode(), *columns], schema=PLACES)


def settle_copies(tasks: Sequence[TokenizeTask], sealed: Manifest | None, step: Step) -> Failures:
    """Write the file of copies of each task. Returns the partitions that could not be hashed and have no such file.

    sealed: the shards that exist already.
    """
    tasks = sorted(tasks, key=lambda task: (task.partition.source, task.partition.number))
    unsettled = [task for task in tasks if not task.state(COPIES).exists()]
    if not unsettled:
        return []
    failures: Failures = []
    for _ in run_partitions(
        hash_partition, unsettled, unsettled, "to read first for copies", {}, step, failures
    ):
        pass
    failed = {name for name, _ in failures}
    unsettled = [task for task in unsettled if task.partition.name not in failed]
    unsettled.sort(key=lambda task: task.state(DAMAGED).exists())  # stable
    lists = _sealed(sealed) if sealed else []
    # A copy that was left out must not count as the first of others.
    lists += [
        _hashed(task, np.asarray(_columns(task.state(COPIES), "row")["row"]))
        for task in tasks
        if task.state(COPIES).exists()
    ]
    first, lists = len(lists), lists + [_hashed(task, NONE) for task in unsettled]
    copies = find_copies([len(one) for one in lists], lambda number: lists[number].hashes())
    places = _places(lists, copies[first:])
    for task, one in zip(unsettled, copies[first:], strict=True):
        here, places = places.slice(0, len(one.rows)), places.slice(len(one.rows))
        hashed = _columns(task.state(HASHES), "piece", "number").take(pa.array(one.rows))
        columns = {"row": pa.array(one.rows)} | {
            name: part[name] for part in (hashed, here) for name in part.column_names
        }
        save_copies(task.state(COPIES), pa.table(columns))
    found = sum(len(one.rows) for one in copies[first:])
    step.console.notice(
        f"of {plural(sum(map(len, lists[first:])), 'document')}, {found:,} are copies of others, as their hashes say"
    )
    return failures


def _sealed(manifest: Manifest) -> list[_Documents]:
    """The documents of sealed shards. Raises IntegrityError if a ledger was changed."""
    for shard in manifest.shards:
        compare_root(shard.ledger_path, manifest.roots[shard.ledger_path])
    return [_Documents(shard.ledger_path, shard.documents, NONE) for shard in manifest.shards]


def _hashed(task: TokenizeTask, left_out: Ints) -> _Documents:
    """The documents of a partition."""
    path = task.state(HASHES)
    return _Documents(path, pq.read_metadata(path).num_rows, left_out)


def _columns(path: Path, *names: str) -> pa.Table:
    return pq.read_table(path, columns=list(names), use_threads=False)


def _places(lists: Sequence[_Documents], copies: Sequence[Copies]) -> pa.Table:
    """Where the documents are that these are copies of, in their order. Each list is read once."""
    of_list, of_row = (
        np.concatenate([NONE, *(getattr(one, name) for one in copies)]) for name in ("of_list", "of_row")
    )
    order, found = np.argsort(of_list, kind="stable"), [PLACES.empty_table()]
    for rows in np.split(order, np.flatnonzero(np.diff(of_list[order])) + 1):
        if len(rows):
            found.append(lists[of_list[rows[0]]].places(of_row[rows]))
    table = pa.concat_tables(found).unify_dictionaries().combine_chunks()
    return table.take(pa.array(np.argsort(order)))
