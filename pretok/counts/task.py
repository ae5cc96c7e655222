"""A partition of text -> counted words; counted words of many files -> one bucket of the corpus.

Input: a CountTask or a ReduceTask, run by a worker. Output, for a partition: a small Parquet file of held-out texts
and, last, NAME.parquet with one row group of words per bucket. For a bucket: one Parquet file with a row group of
sorted words per source. A file that exists is finished work, so a restarted job skips its task.

A document is counted if the hash of its text falls into the sample. Its words are counted apart if another hash falls
into the hold-out. Memory: one table of TABLE_BYTES; a full table is spilled to a file beside the result.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pretok.base.console import Counts
from pretok.base.execute import Report
from pretok.base.failures import Failure
from pretok.base.records import read_record, to_json
from pretok.base.storage import atomic_open, temporary_of, writing
from pretok.chat.documents import read_documents
from pretok.chat.spans import content_ends
from pretok.counts.buckets import BUCKETS, Words, read_group, read_metadata, split_buckets, write_groups
from pretok.counts.counts_file import CountConfig, CountRecord
from pretok.counts.table import WordTable
from pretok.kernels.compile import load_registries
from pretok.kernels.hashing import hash_documents, select
from pretok.read.batches import TextBatch, buffers
from pretok.read.conversation import RecordFormat
from pretok.read.partition import Partition
from pretok.read.readers import Damage

TABLE_BYTES = 256 << 20
"""Memory of a worker's table of words. A table that may take more is spilled."""
SAMPLE_SEED_STEP = 1 << 32
"""Added to the seed for the sample, so that the sample does not depend on the hold-out."""
TEXT_SCHEMA = pa.schema([("text", pa.large_string())])


preload = load_registries
"""What all workers load besides this module; see `pretok.base.pool`."""


@dataclass(frozen=True, slots=True)
class CountTask:
    """Everything that decides the counts of a partition."""

    partition: Partition
    folder: Path
    record: RecordFormat
    config: CountConfig
    keep_text: int
    """Bytes of held-out text to keep for comparisons."""

    @property
    def path(self) -> Path:
        """The file of the counts."""
        return self.folder / f"{self.partition.name}.parquet"

    @property
    def heldout_path(self) -> Path:
        """Where the held-out texts go."""
        return self.folder / f"{self.partition.name}.heldout.parquet"


@dataclass(frozen=True, slots=True)
class ReduceTask:
    """What to add up for one bucket."""

    path: Path
    """Where the result goes."""
    sources: dict[str, list[tuple[Path, int]]]
    """Source -> (file, row group) of each part."""


def load_record(path: Path) -> CountRecord:
    """The record in the file of a counted partition. Raises IntegrityError."""
    return read_record(CountRecord, read_metadata(path), path)


def count_partition(task: CountTask, report: Report) -> CountRecord:
    """Count a partition unless its file exists; `report` gets the increments of documents and bytes."""
    if task.path.exists():
        return load_record(task.path)
    counter = _Counter(task)
    try:
        for batch in read_documents(task.partition, task.record, task.config.normalize):
            report(counter.add(batch))
        return counter.finish()
    finally:
        counter.remove_spills()


@lru_cache(maxsize=1)
def _table() -> WordTable:
    """The process's one table for documents: growing a new one for each partition took a tenth of the time."""
    return WordTable()


class _Counter:
    """Counts the batches of one partition."""

    def __init__(self, task: CountTask) -> None:
        self._task = task
        self._record = CountRecord()
        self._table = _table()
        self._table.clear()
        self._spills: list[Path] = []
        self._texts: list[pa.LargeStringArray] = []
        self._kept = 0

    def add(self, batch: TextBatch | Damage) -> Counts:
        """Count a batch; returns the increments for progress."""
        record, config = self._record, self._task.config
        if isinstance(batch, Damage):
            file = self._task.partition.pieces[batch.piece].file.path
            record.errors += (Failure(self._task.partition.name, file, batch.error),)
            return {}
        record.read += batch.records
        record.note_rejects(Counter(batch.rejects["reason"].to_pylist()))
        refused = {"rejected": len(batch.rejects), "refused bytes": batch.refused}
        texts, spans = batch.texts, batch.spans
        if (sample := Fraction(config.sample)) < 1:
            hashes = hash_documents(*buffers(texts), config.seed + SAMPLE_SEED_STEP)
            chosen = pa.array(select(hashes, sample))
            texts, spans = texts.filter(chosen), None if spans is None else spans.filter(chosen)
            record.unsampled += len(batch.texts) - len(texts)
        data, offsets = buffers(texts)
        heldout = select(hash_documents(data, offsets, config.seed), Fraction(config.holdout))
        # A word never crosses the border between two speakers.
        ends, whose = (offsets, slice(None)) if spans is None else content_ends(spans)
        self._table.add_documents(data, ends, heldout[whose], config.pattern)
        apart, size = int(heldout.sum()), int(np.diff(offsets)[heldout].sum())
        record.documents += len(texts) - apart
        record.bytes += len(data) - size
        record.heldout_documents += apart
        record.heldout_bytes += size
        if apart and self._kept < self._task.keep_text:
            self._keep(texts.filter(pa.array(heldout)))
        if self._table.nbytes >= TABLE_BYTES:
            self._spill()
        return {**refused, "documents": len(texts), "bytes": len(data)}

    def _keep(self, texts: pa.LargeStringArray) -> None:
        """Keep held-out texts, the first ones up to the bytes wanted, at least one."""
        fits = np.cumsum(np.diff(buffers(texts)[1])) <= self._task.keep_text - self._kept
        fits[0] |= self._kept == 0
        self._texts.append(texts.filter(pa.array(fits)))
        self._kept += len(buffers(self._texts[-1])[0])

    def _spill(self) -> None:
        path = temporary_of(self._task.path, f".spill-{len(self._spills)}")
        self._spills.append(path)
        with writing(path), path.open("wb") as file:
            write_groups(file, split_buckets(self._table.words()), {})
        self._table.clear()

    def finish(self) -> CountRecord:
        """Write the held-out texts, then the counts."""
        if self._spills:
            self._spill()
            groups: Iterator[Words] = (
                add_groups([(path, k) for path in self._spills]) for k in range(BUCKETS)
            )
        else:
            groups = split_buckets(self._table.words())
        with atomic_open(self._task.heldout_path) as file:
            texts = pa.table([pa.chunked_array(self._texts, pa.large_string())], schema=TEXT_SCHEMA)
            pq.write_table(texts, file, compression="zstd", row_group_size=max(1, len(texts)))
        # Last: the existence of this file says that the partition is done.
        with atomic_open(self._task.path) as file:
            write_groups(file, groups, to_json(self._record))
        return self._record

    def remove_spills(self) -> None:
        """Delete the spilled files."""
        for path in self._spills:
            path.unlink(missing_ok=True)


def add_groups(groups: list[tuple[Path, int]]) -> Words:
    """Add up row groups, each (file, row group)."""
    table = WordTable()
    for path, group in groups:
        table.add_words(read_group(path, group))
    return table.words()


def reduce_buckets(tasks: list[ReduceTask], report: Report) -> None:
    """Add up the buckets that are not done. `report` is called after each source, where a stop can end the job."""
    for task in tasks:
        if not task.path.exists():
            with atomic_open(task.path) as file:
                write_groups(file, _bucket(task, report), {"sources": list(task.sources)})


def _bucket(task: ReduceTask, report: Report) -> Iterator[Words]:
    for parts in task.sources.values():
        words = add_groups(parts)
        report({})
        yield words.sorted()  # so the bytes of a bucket depend on its words alone
