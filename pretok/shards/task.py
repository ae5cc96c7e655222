"""One partition -> sealed shards and a record: the task that a worker runs.

    read    the partition -> batches of documents, screened
    encode  batches -> token ids of the documents of each split (`batching.py`), a sample of them again (`sample.py`)
    write   ids, ledger rows and rejects -> files under temporary names (`writer.py`)
    seal    rename the files, then write the record of the partition (`record.py`)

A partition gives one train shard, or several if an input that cannot be cut fills more than one. In the state folder it
leaves a small validation shard, its rejects and its record. The bytes depend on the task alone, so a task that runs
twice writes the same. If `tokenizers` encodes a document of the sample differently, the whole partition is written
again with `tokenizers`.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
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
from pretok.read.conversation import Conversation, RecordFormat
from pretok.read.kept import KeptColumn
from pretok.read.normalize import Normalization
from pretok.read.partition import Partition
from pretok.read.readers import Damage
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
from pretok.shards.format import LEDGER_SUFFIX, Shard
from pretok.shards.inputs import PieceCounts
from pretok.shards.ledger import ledger_rows, schema_with
from pretok.shards.manifest import UNCOUNTED, SideFile, SourceCounts
from pretok.shards.record import PartitionRecord, refuse_other_software
from pretok.shards.sample import Differs, Sample
from pretok.shards.writer import ShardWriter
from pretok.tokenizer.encoder import Encoder, load_libraries
from pretok.tokenizer.vocabulary import load_vocab

HASHES, COPIES, DAMAGED = f".hashes{LEDGER_SUFFIX}", ".copies.parquet", ".damaged"
"""Files of a partition in the state folder if copies are looked for: the hashes of its documents; which of them are
copies; and a marker that an input could not be read to its end when the documents were hashed."""
ROLL_OVER = Fraction(5, 4)
"""A shard is full at this multiple of its target size, so that a partition a little over target gives one shard."""


@dataclass(frozen=True, slots=True)
class TokenizeTask:
    """Everything that decides the bytes of a partition's shards. target: bytes of tokens a shard should hold;
    tokenizer_json: the copy beside the shards, which must have the fingerprint `tokenizer`; software: versions that the
    worker must have."""

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

    def state(self, suffix: str) -> Path:
        """Path of a file of the partition in the state folder."""
        return self.state_dir / f"{self.partition.name}{suffix}"


_loaded: dict[tuple[str, int, int | None, tuple[str, ...]], Encoder] = {}
"""The encoders of this process: loading one takes a second, and its word cache starts cold. The key is what it encodes
and not its path, as each job has a copy next to its shards. A second one may be for conversations."""


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


def tokenize_partition(task: TokenizeTask, report: Report) -> None:
    """Encode a partition and seal its shards.

    Calls `report` with the increments of documents, tokens, bytes and rejected.
    """
    refuse_other_software(task.software)
    encoder = encoder_of(task)
    try:
        _tokenize(task, encoder, report)
    except Differs as error:  # if `tokenizers` differs from itself, that is a bug and raised as one
        file = task.partition.pieces[error.piece].file.path
        _tokenize(task, encoder.exact, report, (f"{task.partition.name}: {file}, hash {error.digest}",))


def _tokenize(
    task: TokenizeTask, encoder: Encoder, report: Report, encoded_again: tuple[str, ...] = ()
) -> None:
    """Read, encode, write and seal. encoded_again: for the manifest. Raises Differs."""
    screen = Screen(task.screening, task.state(COPIES))
    batches = read_documents(task.partition, task.record, task.normalization, task.keep)
    sample = Sample(encoder)
    with PartitionWriter(task, encoder.dtype) as writer:
        for group in _groups(map(screen, batches), writer.is_full):
            if isinstance(group, Damage):
                writer.add_damage(group)
                continue
            joined = join(group)
            encoded, refused = encode_splits(joined, encoder, task.val_fraction, task.val_seed)
            sample.add(joined, encoded, refused)
            report(writer.add(joined, encoded, refused))
            if writer.is_full(0):
                sample.finish_shard()
                writer.seal_shard("train")
        sample.finish_shard()
        compared = replace(UNCOUNTED, compared=sample.compared, encoded_again=encoded_again)
        record = writer.seal(compared, screen.take())
    # The record is written when all files have their final names: it makes them count.
    write_json(task.state(".json"), to_json(record))


def _groups(
    batches: Iterator[TextBatch | Damage], is_full: Callable[[int], bool]
) -> Iterator[list[TextBatch] | Damage]:
    """Batches that are encoded together, and the damage between them. is_full: see `PartitionWriter.is_full`.

    A shard ends with the batch that fills it. So batches that could fill it do not wait for more: where shards end does
    not depend on which batches are encoded together.
    """
    waiting: list[TextBatch] = []
    most = size = 0  # the tokens that they can be at most, and their bytes
    for batch in batches:
        if isinstance(batch, Damage):
            yield batch
            continue
        waiting.append(batch)
        most += most_tokens(batch)
        size += batch.nbytes
        if max(most, size) >= MOST_TOKENS or len(waiting) >= MOST_BATCHES or is_full(most):
            yield waiting
            waiting, most, size = [], 0, 0
    if waiting:
        yield waiting


class PartitionWriter:
    """Writes the documents of a partition to shards of train and validation, and its rejects next to them.

    Leaving the context without `seal` removes the temporary files.
    """

    def __init__(self, task: TokenizeTask, dtype: np.dtype[Any]) -> None:
        self.task = task
        self._dtype = dtype
        self._most_tokens = ceil(task.target * ROLL_OVER / dtype.itemsize)  # of a train shard
        pieces = task.partition.pieces
        self._files = pa.array([piece.file.path for piece in pieces], pa.string())
        self._origins = np.array([piece.origin for piece in pieces], np.int64)
        self._schema = schema_with([*task.keep, *task.screening.columns])
        self._stack = ExitStack()
        self._writers: dict[str, ShardWriter] = {}
        self._rejects: IO[str] | None = None
        self._shards: list[Shard] = []
        self._side_files: list[SideFile] = []
        self._errors: list[Failure] = []
        self._read, self._refused, self._lines = (Counter[int]() for _ in range(3))  # by piece
        self._rejected, self._mismatches, self._counts = (Counter[str]() for _ in range(3))

    def __enter__(self) -> PartitionWriter:
        return self

    def __exit__(self, *exc: Any) -> None:
        self._stack.__exit__(*exc)  # with an exception, files that are not sealed are removed

    def is_full(self, more: int) -> bool:
        """Whether `more` tokens would fill the train shard."""
        tokens = self._writers["train"].tokens if "train" in self._writers else 0
        return tokens + more >= self._most_tokens

    def add_damage(self, damage: Damage) -> None:
        """Note an input whose rest cannot be read."""
        partition = self.task.partition
        self._errors.append(Failure(partition.name, partition.pieces[damage.piece].file.path, damage.error))

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
            self._read[batch.piece] += batch.records
            self._lines[batch.piece] = batch.end
            for column, count in zip(self.task.keep, batch.mismatches, strict=False):
                self._mismatches[column.name] += count
        for split in encoded:
            self._write(joined, split)
        size = sum(int(split.sizes.sum()) for split in encoded)
        refused_size = sum(batch.refused for batch in joined.batches) + len(buffers(joined.texts)[0]) - size
        counts = {
            "documents": sum(len(split.rows) for split in encoded),
            "tokens": sum(len(split.tokens) for split in encoded),
            "bytes": size,
            "refused bytes": refused_size,
            "rejected": len(rejects),
        }
        self._counts.update(counts)
        return counts

    def _reject(self, rejects: list[dict[str, Any]]) -> None:
        """List rejected records."""
        if rejects and self._rejects is None:
            path = self.task.state(".rejects.jsonl")
            self._rejects = self._stack.enter_context(atomic_open(path, "w"))
        for reject in rejects:
            self._refused[reject["piece"]] += 1
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
            name, number = self.task.partition.name, len(self._shards)
            train = (
                self.task.shards_dir / self.task.partition.source / (f"{name}-{number}" if number else name)
            )
            prefix = train if split == "train" else self.task.state(".val")
            writer = ShardWriter(prefix, self._dtype, self._schema)
            self._writers[split] = self._stack.enter_context(writer)
        self._writers[split].append(encoded.tokens, encoded.lengths, encoded.kinds, described)

    def seal_shard(self, split: str) -> None:
        """Seal the shard of a split, if there is one."""
        if writer := self._writers.pop(split, None):
            shard, files = writer.seal(self.task.partition.source, split)
            self._shards.append(shard)
            self._side_files += files if split == "train" else ()

    def seal(self, compared: SourceCounts, contaminated: tuple[ItemCount, ...]) -> PartitionRecord:
        """Seal the shards, then the rejects. compared: with the counts of the sample."""
        self.seal_shard("train")
        self.seal_shard("val")
        self._stack.close()
        pieces = tuple(
            PieceCounts(self._read[n], self._refused[n], self._lines[n]) for n in range(len(self._files))
        )
        return PartitionRecord(
            found=replace(
                compared, read=self._read.total(), rejected=self._rejected, mismatches=+self._mismatches
            ),
            shards=tuple(self._shards),
            side_files=tuple(self._side_files),
            pieces=pieces,
            errors=tuple(self._errors),
            counts=self._counts,
            contaminated=contaminated,
        )
