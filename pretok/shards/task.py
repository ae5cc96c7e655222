"""One partition -> sealed parts: the task that a worker runs.

    read    the partition -> batches of documents, screened
    encode  batches -> token ids of the documents of each split (`batching.py`), a sample of them again (`sample.py`)
    write   ids, ledger rows and rejects -> files under temporary names (`writer.py`)
    seal    rename the files, then write the record of the part (`parts.py`)

A part is a train shard under its final name; in the state folder it leaves a small validation shard, its rejects and
its record. The bytes depend on the task alone, so a task that runs twice writes the same. If a document of the sample
differs from what `tokenizers` gives, the whole part is written again with `tokenizers`.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from fractions import Fraction
from math import ceil
from pathlib import Path
from typing import IO, Any

import numpy as np
import pyarrow as pa

from pretok.base.console import Counts
from pretok.base.errors import MismatchError
from pretok.base.execute import Report
from pretok.base.failures import Failure
from pretok.base.records import replace, to_json
from pretok.base.storage import atomic_open, write_json
from pretok.chat.documents import read_documents
from pretok.kernels.compile import load_registries
from pretok.read.batches import TextBatch, buffers
from pretok.read.conversation import Conversation
from pretok.read.kept import KeptColumn
from pretok.read.normalize import Normalization
from pretok.read.partition import Partition
from pretok.read.readers import Damage, RecordFormat
from pretok.screen.benchmark import ItemCount
from pretok.screen.screening import Screen, Screening
from pretok.shards.batching import (
    MOST_BATCHES,
    MOST_TOKENS,
    EncodedSplit,
    JoinedBatches,
    encode_splits,
    join,
    most_tokens,
)
from pretok.shards.format import LEDGER_SUFFIX
from pretok.shards.ledger import ledger_rows, schema_with
from pretok.shards.manifest import SPLITS, UNCOUNTED, Compared
from pretok.shards.parts import (
    PartRecord,
    load_parts,
    part_name,
    refuse_other_engine,
    software,
)
from pretok.shards.sample import Differs, Sample
from pretok.shards.writer import ShardWriter
from pretok.tokenizer.encoder import Encoder, load_libraries
from pretok.tokenizer.vocabulary import load_vocab

Batches = Iterator[TextBatch | Damage]
ROLL_OVER = Fraction(5, 4)
"""A shard is full at this multiple of its target size, so that a partition a little over target gives one shard."""


@dataclass(frozen=True, slots=True)
class TokenizeTask:
    """Everything that decides the bytes of a partition's shards. target: bytes of tokens a shard should hold;
    tokenizer_json: the copy beside the shards, which must have the fingerprint `tokenizer`."""

    partition: Partition
    shards_dir: Path
    state_dir: Path
    record: RecordFormat
    keep: tuple[KeptColumn, ...]
    screening: Screening
    normalization: Normalization
    tokenizer_json: Path
    tokenizer: str
    eod_id: int
    bos_id: int | None
    target: int
    val_fraction: Fraction
    val_seed: int
    software: dict[str, str]


def hashes_path(task: TokenizeTask) -> Path:
    """Path of the hashes of a partition's documents, if copies are looked for."""
    return task.state_dir / f"{task.partition.name}.hashes{LEDGER_SUFFIX}"


def damaged_path(task: TokenizeTask) -> Path:
    """Path of a marker: an input could not be read to its end when its documents were hashed."""
    return task.state_dir / f"{task.partition.name}.damaged"


def copies_path(task: TokenizeTask) -> Path:
    """Path of the list of a partition's documents that are copies."""
    return task.state_dir / f"{task.partition.name}.copies.parquet"


_loaded: dict[tuple[str, int, int | None, tuple[str, ...]], Encoder] = {}
"""The encoders of this process: loading one takes a second, and its word cache starts cold. The key is what it encodes
and not its path, as each job has a copy beside its shards. A second one may be for conversations."""


def preload() -> None:
    """Load the libraries that all workers need; see `pretok.base.pool`."""
    load_libraries()
    load_registries()


def encoder_of(task: TokenizeTask, _report: Report | None = None) -> Encoder:
    """The encoder for a task, loaded unless this process has it.

    Raises MismatchError if the file was replaced since the job began.
    """
    how = task.record.conversation
    markers = tuple(how.markers) if isinstance(how, Conversation) else ()
    key = task.tokenizer, task.eod_id, task.bos_id, markers
    if key not in _loaded:
        vocab = load_vocab(task.tokenizer_json, task.eod_id, task.bos_id)
        if vocab.fingerprint != task.tokenizer:
            raise MismatchError(
                f"{task.tokenizer_json} has the fingerprint {vocab.fingerprint}, but the shards are made with "
                f"{task.tokenizer}: it was replaced while the job ran; run the same command again"
            )
        if len(_loaded) > 1:
            _loaded.clear()
        _loaded[key] = Encoder(vocab.with_special(markers))
    return _loaded[key]


def tokenize_partition(task: TokenizeTask, report: Report) -> list[PartRecord]:
    """Encode and seal all parts of a partition that are not sealed yet; the records of all parts.

    Calls `report` with the increments of documents, tokens, bytes and rejected.
    """
    refuse_other_engine(task.shards_dir, task.software)
    encoder = encoder_of(task)
    parts = load_parts(task.state_dir, task.partition.name)
    differed: tuple[int, int] | None = None  # in the part that comes next
    batches: Batches | None = None  # what follows the sealed parts
    while not (parts and parts[-1].last):
        if batches is None:
            screen = Screen(task.screening, copies_path(task))
            batches = map(screen, _read(task, sum(part.found.read for part in parts)))
        try:
            part = PartWriter(task, len(parts), encoder.exact if differed else encoder, differed)
            parts.append(part.write(batches, screen, report))
            differed = None
        except Differs as found:  # write the part again, with tokenizers alone
            if differed:
                raise AssertionError(
                    f"{task.partition.name}: tokenizers differs from itself at {found.place}"
                ) from None
            differed, batches = found.place, None
    return parts


def _read(task: TokenizeTask, records: int) -> Batches:
    """The documents of a partition after the first `records` records, which sealed parts hold. These are read again."""
    for batch in read_documents(task.partition, task.record, task.normalization, task.keep):
        if records == 0:
            yield batch
        elif not isinstance(batch, Damage):
            records -= batch.records
        if records < 0:
            raise MismatchError(
                f"partition {task.partition.name}: its sealed parts end inside a batch, so another version of pretok "
                f"wrote them; delete {task.state_dir} and the shards of this source, and run again"
            )


class PartWriter:
    """Writes one part of a partition: reads batches until the shard is full, encodes them, writes documents to train
    or validation and rejects beside them, and seals everything.

    encoder: for all documents of the part; differed: piece and record of the document for which the fast engine gave
    wrong tokens, if the part is written again.
    """

    def __init__(
        self, task: TokenizeTask, number: int, encoder: Encoder, differed: tuple[int, int] | None
    ) -> None:
        self.name = part_name(task.partition.name, number)
        self.task = task
        self._encoder = encoder
        self._differed = differed
        pieces = task.partition.pieces
        self._files = pa.array([piece.file.path for piece in pieces], pa.string())
        self._origins = np.array([piece.origin for piece in pieces], np.int64)
        self._schema = schema_with([*task.keep, *task.screening.columns])
        self._stack = ExitStack()
        self._writers: dict[str, ShardWriter] = {}
        self._rejects: IO[str] | None = None
        self._most_tokens = ceil(task.target * ROLL_OVER / encoder.dtype.itemsize)  # of the train shard
        self._errors: list[Failure] = []
        self._lines: dict[str, int] = {}
        self._records, self._rejected, self._mismatches, self._counts = (Counter[str]() for _ in range(4))

    def write(self, batches: Batches, screen: Screen, report: Report) -> PartRecord:
        """Take batches until the shard is full or there are no more, and seal. Raises Differs."""
        sample, full = Sample(self._encoder), False
        with self._stack:
            for group in self._groups(batches):
                if isinstance(group, Damage):
                    file = self.task.partition.pieces[group.piece].file.path
                    self._errors.append(Failure(self.task.partition.name, file, group.error))
                    continue
                joined = join(group)
                encoded, refused = encode_splits(
                    joined, self._encoder, self.task.val_fraction, self.task.val_seed
                )
                sample.add(joined, encoded, refused)
                report(self.add(joined, encoded, refused))
                if full := self._is_full(0):
                    break
            sample.finish()
            return self.seal(not full, screen.take(), Compared(sample.documents, sample.bytes, ()))

    def _is_full(self, more: int) -> bool:
        """Whether the train shard has its size if `more` tokens come to it."""
        tokens = self._writers["train"].tokens if "train" in self._writers else 0
        return tokens + more >= self._most_tokens

    def _groups(self, batches: Batches) -> Iterator[list[TextBatch] | Damage]:
        """Batches that are encoded together, and the damage between them.

        A shard ends with the batch that fills it, so a batch that could fill it does not wait for more: nothing is left
        over when the caller stops because the shard is full.
        """
        waiting: list[TextBatch] = []
        most = size = 0  # the tokens that they can be at most, and their bytes
        for batch in batches:
            if isinstance(batch, Damage):
                yield batch
                continue
            more = most_tokens(batch)
            if waiting and self._is_full(most + more):
                yield waiting
                waiting, most, size = [], 0, 0
            waiting.append(batch)
            most += more
            size += batch.nbytes
            if max(most, size) >= MOST_TOKENS or len(waiting) >= MOST_BATCHES or self._is_full(most):
                yield waiting
                waiting, most, size = [], 0, 0
        if waiting:
            yield waiting

    def add(
        self, joined: JoinedBatches, encoded: list[EncodedSplit], refused: list[tuple[int, str]]
    ) -> Counts:
        """Write encoded batches; the increments for `report`. refused: documents that cannot be encoded, and why."""
        rejects = [
            {"piece": batch.piece, **reject}
            for batch in joined.batches
            for reject in batch.rejects.to_pylist()
        ]
        for row, reason in refused:
            piece, number = joined.place(row)
            rejects.append({"piece": piece, "record": number, "reason": "unencodable", "detail": reason})
        self._reject(sorted(rejects, key=lambda reject: (reject["piece"], reject["record"])))
        for batch in joined.batches:
            self._records[str(batch.piece)] += batch.records
            self._lines[str(batch.piece)] = batch.end
            for column, count in zip(self.task.keep, batch.mismatches, strict=False):
                self._mismatches[column.name] += count
        for split in encoded:
            self._write(joined, split)
        size = sum(int(split.sizes.sum()) for split in encoded)
        counts = {
            "documents": sum(len(split.rows) for split in encoded),
            "tokens": sum(len(split.tokens) for split in encoded),
            "bytes": size,
            "refused bytes": sum(batch.refused for batch in joined.batches)
            + len(buffers(joined.texts)[0])
            - size,
            "rejected": len(rejects),
        }
        self._counts.update(counts)
        return counts

    def _reject(self, rejects: list[dict[str, Any]]) -> None:
        """List rejected records."""
        if rejects and self._rejects is None:
            path = self.task.state_dir / f"{self.name}.rejects.jsonl"
            self._rejects = self._stack.enter_context(atomic_open(path, "w"))
        for reject in rejects:
            self._rejected[reject["reason"]] += 1
            assert self._rejects is not None
            self._rejects.write(json.dumps(reject, ensure_ascii=False) + "\n")

    def _write(self, joined: JoinedBatches, encoded: EncodedSplit) -> None:
        """Add documents to the shard of their split."""
        rows, split = encoded.rows, encoded.split
        pieces = joined.pieces[rows]
        described = ledger_rows(
            self._files.take(pa.array(pieces)),
            self._origins[pieces, 0],
            self._origins[pieces, 1] + joined.numbers[rows],
            encoded.lengths,
            encoded.sizes,
            encoded.hashes,
            [column.take(pa.array(rows)) for column in joined.kept],
            self._schema,
        )
        if split not in self._writers:  # most partitions have few or no documents for validation
            train = self.task.shards_dir / self.task.partition.source / self.name
            prefix = train if split == "train" else self.task.state_dir / f"{self.name}.val"
            writer = ShardWriter(prefix, self._encoder.dtype, self._schema)
            self._writers[split] = self._stack.enter_context(writer)
        self._writers[split].append(encoded.tokens, encoded.lengths, encoded.kinds, described)

    def seal(self, last: bool, contaminated: tuple[ItemCount, ...], compared: Compared) -> PartRecord:
        """Seal the shards, then the rejects, then write the record, which makes the part count."""
        source = self.task.partition.source
        sealed = {
            split: self._writers[split].seal(source, split) for split in SPLITS if split in self._writers
        }
        self._stack.close()
        record = PartRecord(
            name=self.name,
            last=last,
            found=replace(
                UNCOUNTED,
                read=sum(self._records.values()),
                rejected=self._rejected,
                mismatches=+self._mismatches,
                compared=compared,
            ),
            shards=tuple(shard for shard, _ in sealed.values()),
            side_files=sealed["train"][1] if "train" in sealed else (),
            records=self._records,
            lines=self._lines,
            errors=tuple(self._errors),
            counts=self._counts,
            contaminated=contaminated,
            software=software(),
            differed=self._differed,
        )
        write_json(self.task.state_dir / f"{self.name}.json", to_json(record))
        return record
