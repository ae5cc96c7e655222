"""Finds the documents that are copies of earlier ones, before tokenizing.

Input: the tasks of all partitions that are not sealed, and the sealed shards. Output: a file of copies for each
partition (`screen.copies`), in its state folder. Workers seal shards one by one and never change them. So which
document of a text comes first must be known before the first shard is sealed: a pass over all inputs hashes their
texts. It costs one read, and no copy is encoded. Two documents with the same 128-bit hash are copies: the probability
that any two of 10^12 different texts share one is 10^-15.

The order does not depend on workers: documents of sealed sources that are not marked as copies; then partitions whose
copies were found by an earlier run; then partitions in the order of the manifest (sources by name, files, lines). A
partition with a damaged input fails here and is in none of them, so that nothing is left out in favour of a file that
will be fixed. A file of copies is final: a kill, or an input that is fixed later, changes nothing about shards that may
be sealed already.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from pretok.base.execute import Report
from pretok.base.failures import Failures
from pretok.base.partition_tasks import run_partitions
from pretok.base.sql import database, parquet
from pretok.base.tasks import Step
from pretok.base.texts import buffers
from pretok.base.tree import compare_root
from pretok.base.units import plural
from pretok.read.batches import hash_texts
from pretok.screen.copies import save_copies
from pretok.shards.document_table import ROWS, make_table
from pretok.shards.ledger import SCHEMA, LedgerWriter, ledger_rows
from pretok.shards.manifest import Manifest
from pretok.shards.tokenize_task import COPIES, HASHES, TokenizeTask, read_task

PIECE, NUMBER = "pretok:piece", "pretok:number"
HASHED = pa.schema([*SCHEMA, (PIECE, pa.int64()), (NUMBER, pa.int64())])
"""The ledger of documents that are not encoded yet, with their piece of the partition and number in the piece. No kept
column of another ledger has these names."""
ROW_BITS = 36
"""Bits of the row in a place; the upper ones are the number of the ledger."""


def hash_partition(task: TokenizeTask, report: Report) -> None:
    """Write a ledger without tokens of the documents that tokenizing will read, unless there is one.

    This is the task of a worker. Raises DamagedInput for a damaged input.
    """
    path = task.state(HASHES)
    if path.exists():
        return
    with LedgerWriter(path, HASHED) as writer:
        for batch in read_task(task):
            piece, count = task.partition.pieces[batch.piece], len(batch.texts)
            sizes = np.diff(buffers(batch.texts)[1])
            columns = {
                "file": pa.repeat(pa.scalar(piece.file.path, pa.string()), count),
                "start": np.full(count, piece.origin[0]),
                "record": piece.origin[1] + batch.numbers,
                "tokens": np.zeros(count, np.int32),
                "bytes": sizes,
                "hash": hash_texts(batch.texts),
                PIECE: np.full(count, batch.piece),
                NUMBER: batch.numbers,
            }
            writer.append(ledger_rows(columns, HASHED))
            report({"documents": count, "bytes": int(sizes.sum())})
        writer.seal(task.partition.source)


def hash_documents(tasks: Sequence[TokenizeTask], step: Step) -> Failures:
    """Let workers hash the documents of the tasks whose copies are not settled. Returns the partitions that failed."""
    unsettled, failures = [task for task in tasks if not _is_settled(task)], Failures()
    for task in unsettled:  # copies without hashes, which a kill may leave, do not count
        task.state(COPIES).unlink(missing_ok=True)
    for _ in run_partitions(
        hash_partition, unsettled, unsettled, "to read first for copies", {}, step, failures
    ):
        pass
    return failures


def _is_settled(task: TokenizeTask) -> bool:
    return all(task.state(suffix).exists() for suffix in (HASHES, COPIES))


def settle_copies(tasks: Sequence[TokenizeTask], sealed: Manifest | None, step: Step) -> None:
    """Write the file of copies of each task whose documents were hashed.

    sealed: the shards that exist already. Raises IntegrityError if one of their ledgers was changed.
    """
    tasks = sorted(tasks, key=lambda task: (task.partition.source, task.partition.number))
    settled = [task for task in tasks if _is_settled(task)]
    unsettled = [task for task in tasks if task.state(HASHES).exists() and task not in settled]
    if not unsettled:
        return
    ledgers = []
    if sealed is not None:
        ledgers = [shard.ledger_path for shard in sealed.shards]
        for path in ledgers:
            compare_root(path, sealed.roots[path])
    marked = '"duplicate_of"' if ledgers and tasks[0].screening.duplicates == "mark" else "NULL"
    left_out = {task.state(COPIES): len(ledgers) + number for number, task in enumerate(settled)}
    first_new = len(ledgers) + len(settled)
    # The number of a ledger is its place in the order that the module describes, and the upper bits of a place: so the
    # smallest place of a hash is the document that stays.
    ledgers += [task.state(HASHES) for task in (*settled, *unsettled)]
    numbers = {path: number for number, path in enumerate(ledgers)} | left_out
    scratch = unsettled[0].state_dir.parent / "copies.duckdb"
    # At most half of what is free: the shards need the rest.
    with database(scratch, 1, shutil.disk_usage(scratch.parent).free // 2) as sql:
        make_table(sql, "files", [{"path": str(path), "ledger": n} for path, n in numbers.items()])
        joined = 'd JOIN files f ON f.path = d."pretok:file"'
        rows = parquet(ledgers, f"union_by_name = true, {ROWS}")
        sql.execute(
            f"""CREATE VIEW documents AS SELECT f.ledger << {ROW_BITS} | d.file_row_number AS place, d.hash,
                d."{PIECE}" AS piece, d."{NUMBER}" AS number, d.file, d.start, d.record, {marked} AS marked
                FROM {rows} {joined}"""
        )
        sql.execute("CREATE TABLE left_out (place BIGINT)")
        if settled:  # a copy, dropped or marked, must not count as the first of others
            rows = parquet(left_out, ROWS)
            sql.execute(f"INSERT INTO left_out SELECT f.ledger << {ROW_BITS} | d.row FROM {rows} {joined}")
        # Hashes alone first: places in files are read for the few documents that have copies.
        sql.execute(
            f"""CREATE TABLE copies AS SELECT place, first, piece, number
            FROM documents JOIN (SELECT hash, min(place) AS first FROM documents ANTI JOIN left_out USING (place)
                WHERE marked IS NULL GROUP BY hash HAVING count(*) > 1) USING (hash)
            WHERE place > first AND place >= {first_new << ROW_BITS}"""
        )
        sql.execute(
            """CREATE TABLE placed AS SELECT c.place, c.piece, c.number, f.file, f.start, f.record
            FROM copies c JOIN documents f ON f.place = c.first ORDER BY c.place"""
        )
        for number, task in enumerate(unsettled, first_new):
            # Sorted by place, of which a partition has one range.
            of_partition = sql.sql(
                f"""SELECT place & {(1 << ROW_BITS) - 1} AS row, piece, number, file, start, record FROM placed
                WHERE place >= {number << ROW_BITS} AND place < {(number + 1) << ROW_BITS} ORDER BY place"""
            )
            save_copies(task.state(COPIES), of_partition.to_arrow_table())
        query = f"SELECT count(*), (SELECT count(*) FROM placed) FROM documents WHERE place >= {first_new << ROW_BITS}"
        ((documents, copies),) = sql.execute(query).fetchall()
    step.console.notice(
        f"of {plural(documents, 'document')}, {copies:,} are copies of others, by their hashes"
    )
