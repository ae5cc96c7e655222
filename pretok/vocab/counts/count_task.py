"""A partition of text -> counted words; counted words of many files -> one bucket of the corpus.

Input: a CountTask or a ReduceTask, run by a worker. Output, for a partition: NAME.parquet with one or more runs, each
of which has a row group of words per bucket, and then one row group of held-out texts. For a bucket: one Parquet file
with a row group of sorted words per source. A file that exists is finished work, so a restarted job skips its task.

A document is counted if the hash of its text falls into the sample. Its words are counted apart if another hash falls
into the hold-out. Memory: one table of TABLE_BYTES; whenever it is full, it is written as a run and emptied.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from pathlib import Path

import numpy as np
import pyarrow as pa
from msgspec import Struct

from pretok.base.console import Counts
from pretok.base.execute import Report
from pretok.base.records import Count, read_record, to_json
from pretok.base.storage import atomic_open
from pretok.base.texts import buffers
from pretok.chat.read_documents import read_documents
from pretok.chat.spans import content_ends
from pretok.kernels.compile import load_registries
from pretok.kernels.hashing import hash_documents, select
from pretok.read.batches import TextBatch
from pretok.read.damage import read_whole
from pretok.read.partition import Partition
from pretok.read.record_format import RecordFormat
from pretok.read.rejects_file import REJECTS, RejectsWriter
from pretok.read.source_plan import PieceCounts
from pretok.vocab.counts.buckets import (
    Words,
    read_group,
    read_metadata,
    split_buckets,
    whole_texts,
    write_groups,
)
from pretok.vocab.counts.counts_file import CountConfig, CountRecord
from pretok.vocab.counts.table import WordTable

TABLE_BYTES = 256 << 20
"""Memory of a worker's table of words. One that may take more is full."""
SAMPLE_SEED_STEP = 1 << 32
"""Added to the seed for the sample, so that the sample does not depend on the hold-out."""
Groups = tuple[Path, Sequence[int]]
"""(file, row groups)."""


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
    skip_damaged: bool = False
    """Whether the job leaves damaged inputs out."""

    @property
    def path(self) -> Path:
        """The file of the counts."""
        return self.folder / f"{self.partition.name}.parquet"


@dataclass(frozen=True, slots=True)
class ReduceTask:
    """What to add up for one bucket."""

    path: Path
    """Where the result goes."""
    sources: dict[str, list[Groups]]
    """Of each source, the row groups of each part."""


class Counted(Struct, forbid_unknown_fields=True):
    """What the file of a partition holds."""

    record: CountRecord
    runs: Count = 0
    pieces: tuple[PieceCounts, ...] = ()
    """The records of each piece of the partition."""


def load_counted(path: Path) -> Counted:
    """Load what the file of a counted partition says of itself. Raises IntegrityError."""
    return read_record(Counted, read_metadata(path), path)


def count_partition(task: CountTask, report: Report) -> Counted:
    """Count a partition unless its file exists; `report` gets the increments of documents and bytes.

    Raises DamagedInput for a damaged input.
    """
    if task.path.exists():
        return load_counted(task.path)
    counter = _Counter(task)
    # The existence of the file says that the partition is done.
    with atomic_open(task.path) as file:
        write_groups(file, counter.groups(report), lambda: to_json(counter.counted))
    return counter.counted


@lru_cache(maxsize=1)
def _table() -> WordTable:
    """Return the process's one table for documents.

    Growing a new one for each partition took a tenth of the time.
    """
    return WordTable()


class _Counter:
    """Counts the batches of one partition."""

    def __init__(self, task: CountTask) -> None:
        self.counted = Counted(CountRecord())
        self._task = task
        self._table = _table()
        self._table.clear()
        self._texts: list[pa.LargeStringArray] = []
        self._kept = 0

    def groups(self, report: Report) -> Iterator[Words]:
        """Read the partition; the row groups of its file."""
        task = self._task
        batches = read_documents(task.partition, task.record, task.config.normalize)
        with RejectsWriter(task.folder / f"{task.partition.name}{REJECTS}") as rejects:
            for batch in read_whole(task.partition, batches, task.partition.source, task.folder):
                rejects.add([batch])
                report(self._add(batch))
                if self._table.nbytes >= TABLE_BYTES:
                    yield from self._run()
        self.counted.record.read = rejects.read
        self.counted.record.note_rejects(rejects.rejected)
        self.counted.pieces = rejects.pieces(len(task.partition.pieces))
        yield from self._run()
        yield whole_texts(pa.chunked_array(self._texts, pa.large_string()))

    def _run(self) -> Iterator[Words]:
        """Yield the words of each bucket; empties the table."""
        yield from split_buckets(self._table.words())
        self._table.clear()
        self.counted.runs += 1

    def _add(self, batch: TextBatch) -> Counts:
        """Count a batch; returns the increments for progress."""
        record, config = self.counted.record, self._task.config
        refused = {"rejected": len(batch.rejects), "refused bytes": batch.refused}
        texts, spans = batch.texts, batch.spans
        if (sample := Fraction(config.sample)) < 1:
            # By the bytes of the text: copies are chosen together, and no choice depends on workers or order.
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
        return {**refused, "documents": len(texts), "bytes": len(data)}

    def _keep(self, texts: pa.LargeStringArray) -> None:
        """Keep held-out texts, the first ones up to the bytes wanted, at least one."""
        fits = np.cumsum(np.diff(buffers(texts)[1])) <= self._task.keep_text - self._kept
        # One text at least, or a source of long documents would have none to compare.
        fits[0] |= self._kept == 0
        self._texts.append(texts.filter(pa.array(fits)))
        self._kept += len(buffers(self._texts[-1])[0])


def reduce_buckets(tasks: list[ReduceTask], report: Report) -> None:
    """Add up the buckets that are not done. `report` is called after each source, where a stop can end the job."""
    for task in tasks:
        if not task.path.exists():
            with atomic_open(task.path) as file:
                write_groups(file, _bucket(task, report))


def _bucket(task: ReduceTask, report: Report) -> Iterator[Words]:
    for parts in task.sources.values():
        table = WordTable()
        for path, groups in parts:
            table.add_words(read_group(path, *groups))
        report({})
        yield table.words().sorted()  # so the bytes of a bucket depend on its words alone
