"""One partition -> sealed shards and a record: the task that a worker runs.

    read    the partition -> batches of documents, screened
    encode  batches -> token ids of the documents of each split, a sample of them again (`encode.py`)
    write   ids, ledger rows and rejects -> files under temporary names (`writer.py`)
    seal    rename the files, then write the record of the partition (`record.py`)

A partition gives one train shard, or several if an input that cannot be cut fills more than one. In the state folder it
leaves a small validation shard, its rejects and its record. The bytes depend on the task alone, so a task that runs
twice writes the same. If `tokenizers` encodes a document of the sample differently, the whole partition is written
again with `tokenizers`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from fractions import Fraction
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from msgspec import UNSET

from pretok.base.console import Counts
from pretok.base.errors import DamagedInput, MismatchError
from pretok.base.execute import Report
from pretok.base.records import replace, write_record
from pretok.base.texts import buffers
from pretok.chat.limits import LIMITS, TemplateLimits
from pretok.chat.read_documents import read_documents
from pretok.kernels.compile import load_registries
from pretok.read.batches import NOT_CANONICAL, TextBatch, hash_ids
from pretok.read.damage import read_whole
from pretok.read.kept import KeptColumn
from pretok.read.normalize import Normalization
from pretok.read.partition import Partition
from pretok.read.record_format import Conversation, RecordFormat
from pretok.read.rejects_file import REJECTS, RejectsWriter
from pretok.screen.benchmark import ItemCount
from pretok.screen.screening import Screen, Screening
from pretok.shards.encode import Differs, EncodedSplit, JoinedBatches, ShardSamples, encode_splits, group
from pretok.shards.ledger import ledger_rows, schema_with
from pretok.shards.manifest import UNCOUNTED, SideFile, SourceCounts, TokenizerEntry
from pretok.shards.partition_record import PartitionRecord, refuse_other_software
from pretok.shards.shard_file import LEDGER_SUFFIX, Shard
from pretok.shards.writer import ShardWriter
from pretok.tokenizer.encoder import Encoder, load_libraries
from pretok.tokenizer.vocabulary import TOKENIZER_FILE, Vocabulary, load_vocab

HASHES, COPIES = f".hashes{LEDGER_SUFFIX}", ".copies.parquet"
"""Files of a partition in the state folder if copies are looked for: the hashes of its documents, and which of them are
copies."""
ROLL_OVER = Fraction(5, 4)
"""A shard is full at this multiple of its target size, so that a partition a little over target gives one shard."""


@dataclass(frozen=True, slots=True)
class TokenizeTask:
    """Everything that decides the bytes of a partition's shards."""

    partition: Partition
    shards_dir: Path
    state_dir: Path
    record: RecordFormat
    keep: tuple[KeptColumn, ...]
    screening: Screening
    normalization: Normalization
    tokenizer: TokenizerEntry
    """The entry of the manifest that the copy next to the shards must match."""
    target: int
    """Bytes of tokens a shard should hold."""
    val_fraction: Fraction
    val_seed: int
    software: dict[str, str]
    """Versions that the worker must have."""
    limits: TemplateLimits = LIMITS
    skip_damaged: bool = False
    """Whether the job leaves damaged inputs out."""

    def state(self, suffix: str) -> Path:
        """Path of a file of the partition in the state folder."""
        return self.state_dir / f"{self.partition.name}{suffix}"


_loaded: dict[tuple[TokenizerEntry, tuple[str, ...]], Encoder] = {}
"""The encoders of this process: loading one takes a second, and its word cache starts cold. The key is what it encodes
and not its path, as each job has a copy next to its shards. A second one may be for conversations."""


def preload() -> None:
    """Load the libraries that all workers need; see `pretok.base.pool`."""
    load_libraries()
    load_registries()


def encoder_of(task: TokenizeTask) -> Encoder:
    """Return the encoder for a task, loaded unless this process has it or was forked from one that has it.

    Raises MismatchError if the file was replaced since the job began.
    """
    key = task.tokenizer, markers_of(task)
    if key not in _loaded:
        vocab = load_vocab(task.shards_dir / TOKENIZER_FILE, task.tokenizer.eod_id, task.tokenizer.bos_id)
        if vocab.fingerprint != task.tokenizer.fingerprint:
            raise MismatchError(
                f"{vocab.path} has the fingerprint {vocab.fingerprint}, but the shards are made with "
                f"{task.tokenizer.fingerprint}: it was replaced while the job ran; run the same command again"
            )
        _load(vocab, *key)
    return _loaded[key]


def load_encoder(asked: tuple[Vocabulary, TokenizerEntry, tuple[str, ...]], _: Report) -> str:
    """Load an encoder before the tasks that need it, unless this process has it. Returns its notice."""
    if asked[1:] not in _loaded:
        _load(*asked)
    return _loaded[asked[1:]].notice


def _load(vocab: Vocabulary, entry: TokenizerEntry, markers: tuple[str, ...]) -> None:
    if len(_loaded) > 1:
        _loaded.clear()
    _loaded[entry, markers] = Encoder(vocab.with_special(markers))


def markers_of(task: TokenizeTask) -> tuple[str, ...]:
    """Return the tokens of a conversation's template, which no text may become."""
    how = task.record.conversation
    return tuple(how.markers) if isinstance(how, Conversation) else ()


def tokenize_partition(task: TokenizeTask, report: Report) -> None:
    """Encode a partition and seal its shards.

    Calls `report` with the increments of documents, tokens, bytes and rejected. Raises MismatchError for other
    software or another tokenizer than the job's, DamagedInput for a damaged input.
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
    sample = ShardSamples(encoder)
    with PartitionWriter(task) as writer:
        for joined in group(map(screen, read_task(task)), writer.is_full):
            encoded, refused = encode_splits(joined, encoder, task.val_fraction, task.val_seed)
            sample.add(joined, encoded, refused)
            report(writer.add(joined, encoded, refused))
            # Asked after each group and not after each document: where a shard ends depends on batches alone, which
            # depend on the inputs.
            if writer.is_full(0):
                sample.finish_shard()
                writer.seal_shard("train")
        sample.finish_shard()
        compared = replace(UNCOUNTED, compared=sample.compared, encoded_again=encoded_again)
        record = writer.seal(compared, screen.take())
    # The record is written when all files have their final names: it makes them count.
    write_record(task.state(".json"), record)


def read_task(task: TokenizeTask) -> Iterator[TextBatch]:
    """Yield the batches of documents of a partition.

    Raises DamagedInput after the last one if inputs could not be read to their end, as `read_whole` does.
    """
    try:
        batches = read_documents(task.partition, task.record, task.normalization, task.keep, task.limits)
        yield from read_whole(task.partition, batches, task.state_dir.name, task.state_dir)
    except DamagedInput:
        # The input may have had other documents when they were hashed, so copies are looked for again. In this
        # order: a kill in between leaves copies without hashes, which do not count (`settle_copies`).
        for suffix in (HASHES, COPIES):
            task.state(suffix).unlink(missing_ok=True)
        raise


class PartitionWriter:
    """Writes the documents of a partition to shards of train and validation, and its rejects next to them.

    Leaving the context without `seal` removes the temporary files.
    """

    def __init__(self, task: TokenizeTask) -> None:
        self.task = task
        self._dtype = np.dtype(task.tokenizer.dtype)
        self._most_tokens = ceil(task.target * ROLL_OVER / self._dtype.itemsize)  # of a train shard
        pieces = task.partition.pieces
        self._files = pa.array([piece.file.path for piece in pieces], pa.string())
        self._origins = np.array([piece.origin for piece in pieces], np.int64)
        self._schema = schema_with([*task.keep, *task.screening.columns])
        self._stack = ExitStack()
        self._writers: dict[str, ShardWriter] = {}
        self._rejects = self._stack.enter_context(RejectsWriter(task.state(REJECTS)))
        self._shards: list[Shard] = []
        self._side_files: list[SideFile] = []
        self._lines = Counter[int]()  # by piece
        self._mismatches, self._counts = Counter[str](), Counter[str]()
        tokens = task.record.tokens
        self._same = tokens is not UNSET and tokens.fingerprint == task.tokenizer.fingerprint

    def __enter__(self) -> PartitionWriter:
        return self

    def __exit__(self, *exc: Any) -> None:
        self._stack.__exit__(*exc)  # with an exception, files that are not sealed are removed

    def is_full(self, more: int) -> bool:
        """Whether `more` tokens would fill the train shard."""
        tokens = self._writers["train"].tokens if "train" in self._writers else 0
        return tokens + more >= self._most_tokens

    def add(
        self, joined: JoinedBatches, encoded: list[EncodedSplit], refused: list[tuple[int, str]]
    ) -> Counts:
        """Write encoded batches; the increments for `report`. refused: documents that cannot be encoded, and why."""
        later = [
            {
                "piece": int(joined.pieces[row]),
                "record": int(joined.numbers[row]),
                "reason": "unencodable",
                "detail": reason,
            }
            for row, reason in refused
        ]
        rejected = self._rejects.add(joined.batches, later)
        for batch in joined.batches:
            self._lines[batch.piece] = batch.end
        for split in encoded:
            self._write(joined, split)
        size = sum(int(split.sizes.sum()) for split in encoded)
        refused_size = sum(batch.refused for batch in joined.batches) + len(buffers(joined.texts)[0]) - size
        counts = {
            "documents": sum(len(split.rows) for split in encoded),
            "tokens": sum(len(split.tokens) for split in encoded),
            "bytes": size,
            "refused bytes": refused_size,
            "rejected": rejected,
        }
        self._counts.update(counts)
        return counts

    def _write(self, joined: JoinedBatches, encoded: EncodedSplit) -> None:
        """Add documents to the shard of their split."""
        rows, split = encoded.rows, encoded.split
        for column, wrong in zip(self.task.keep, joined.mismatches, strict=True):
            self._mismatches[column.name] += int(wrong[rows].sum())
        pieces = joined.pieces[rows]
        if self._same and joined.before is not None:
            ids = hash_ids(*encoded.ids(self.task.tokenizer.bos_id is not None))
            for piece in pieces[ids != joined.before[rows]].tolist():
                self._rejects.remarks[piece][NOT_CANONICAL] += 1
        columns = {
            "file": self._files.take(pa.array(pieces)),
            "start": self._origins[pieces, 0],
            "record": self._origins[pieces, 1] + joined.numbers[rows],
            "tokens": encoded.lengths,
            "bytes": encoded.sizes,
            "hash": encoded.hashes,
        }
        kept = zip(self._schema.names[len(columns) :], joined.kept, strict=True)
        columns |= {name: values.take(pa.array(rows)) for name, values in kept}
        described = ledger_rows(columns, self._schema)
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
        return PartitionRecord(
            found=replace(
                compared,
                read=self._rejects.read,
                rejected=self._rejects.rejected,
                mismatches=+self._mismatches,
                remarks=sum(self._rejects.remarks.values(), Counter()),
            ),
            shards=tuple(self._shards),
            side_files=tuple(self._side_files),
            pieces=self._rejects.pieces(len(self._files)),
            counts=self._counts,
            contaminated=contaminated,
        )
