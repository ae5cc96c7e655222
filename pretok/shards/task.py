"""One partition -> sealed parts: the task that a worker runs.

Enters: a TokenizeTask. Leaves, for each part of the partition (one, unless an input that can't be cut fills several
shards): the train shard under its final name and its ledger; beside the plan, in the state folder, the same of the
validation documents, the rejects, and last the part's record, which makes the part count as done.

Everything follows from the task alone, so a task that runs twice writes the same bytes.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pretok.base.errors import MismatchError
from pretok.base.failures import Failure
from pretok.base.progress import Counts
from pretok.base.records import read_record, to_json
from pretok.base.storage import atomic_open, read_json, write_json
from pretok.base.tokens import Hashes, Tokens
from pretok.kernels.hashing import hash_documents, select
from pretok.read.batches import Reject, TextBatch, buffers
from pretok.read.kept import Keep, Mismatch
from pretok.read.normalize import Normalization
from pretok.read.partition import Partition
from pretok.read.readers import Damage, RecordFormat, read_partition
from pretok.screen.contamination import ItemCount
from pretok.screen.screening import Screen, Screening
from pretok.shards.format import SealedShard, ShardWriter
from pretok.shards.ledger import LedgerWriter, SealedLedger, hash_texts, ledger_rows, schema_with
from pretok.tokenizer.encoder import Encoder
from pretok.tokenizer.reference import Unencodable
from pretok.tokenizer.vocabulary import load_vocab

Rows = npt.NDArray[np.int64]
"""Which documents of a batch."""

ROLL_OVER = Fraction(5, 4)
"""A shard is full at this multiple of its target size: a partition a little over target still gives one shard."""


@dataclass(frozen=True, slots=True)
class TokenizeTask:
    """All that decides the bytes of a partition's shards. target: bytes of tokens a shard should hold.

    tokenizer_json: the copy beside the shards, which must have the fingerprint `tokenizer`.
    """

    partition: Partition
    shards_dir: Path
    state_dir: Path
    record: RecordFormat
    keep: Keep
    screening: Screening
    normalization: Normalization
    tokenizer_json: Path
    tokenizer: str
    eod_id: int
    target: int
    val_fraction: Fraction
    val_seed: int


@dataclass(frozen=True, slots=True)
class SealedSplit:
    """The documents of a part that went to one split; text_bytes: of their text."""

    shard: SealedShard
    ledger: SealedLedger
    text_bytes: int


@dataclass(frozen=True, slots=True)
class PartMismatch:
    """What `kept.Mismatch` says, of a whole part; piece: that of the first."""

    piece: int
    first: Mismatch
    count: int


@dataclass(frozen=True, slots=True)
class PartRecord:
    """What a sealed part holds; JSON in the state folder.

    name: of its train shard; records: how many were read for it, per piece of the partition; rejected: by reason;
    errors: inputs whose rest could not be read; mismatches: values of kept columns that are null because of another
    type; last: whether the partition ends here; train, val: None where empty; contaminated: what was found of the items
    of a benchmark, in documents that were refused too.
    """

    name: str
    part: int
    records: dict[str, int]
    rejected: dict[str, int]
    errors: tuple[Failure, ...]
    mismatches: tuple[PartMismatch, ...]
    last: bool
    train: SealedSplit | None = None
    val: SealedSplit | None = None
    contaminated: tuple[ItemCount, ...] = ()

    @property
    def read(self) -> int:
        """Records read for this part."""
        return sum(self.records.values())

    def counts(self, source: str) -> Counts:
        """What was reported of this part, which is of `source`, when it was made."""
        splits = [split for split in (self.train, self.val) if split is not None]
        size = sum(split.text_bytes for split in splits)
        return {
            "documents": sum(split.shard.documents for split in splits),
            "tokens": sum(split.shard.tokens for split in splits),
            "bytes": size,
            f"bytes:{source}": size,
            "rejected": sum(self.rejected.values()),
        }


def part_name(partition: str, part: int) -> str:
    """Name of a part's shard: the partition's, with the part's number from the second on."""
    return f"{partition}-{part}" if part else partition


def hashes_path(task: TokenizeTask) -> Path:
    """Where the hashes of a partition's documents are, if its copies are left out."""
    return task.state_dir / f"{task.partition.name}.hashes.npz"


def copies_path(task: TokenizeTask) -> Path:
    """Where it stands which documents of a partition are copies."""
    return task.state_dir / f"{task.partition.name}.copies.npz"


def load_parts(state_dir: Path, partition: str) -> list[PartRecord]:
    """Records of the sealed parts of a partition, in order."""
    parts: list[PartRecord] = []
    while (path := state_dir / f"{part_name(partition, len(parts))}.json").exists():
        parts.append(read_record(PartRecord, read_json(path), path))
        if parts[-1].last:
            break
    return parts


_loaded: dict[tuple[str, int], Encoder] = {}
"""The process's one encoder: loading it costs a second and its word cache starts cold. By what it encodes, not by its
path: each job has a copy of the file beside its shards."""


def load_encoder(tokenizer_json: Path, tokenizer: str, eod_id: int) -> Encoder:
    """The encoder of the tokenizer with the fingerprint `tokenizer`, from the file unless the process has it.

    MismatchError when the file has another fingerprint, that is, was replaced since the job began.
    """
    if encoder := _loaded.get((tokenizer, eod_id)):
        return encoder
    vocab = load_vocab(tokenizer_json, eod_id)
    if vocab.fingerprint != tokenizer:
        raise MismatchError(
            f"{tokenizer_json} has the fingerprint {vocab.fingerprint}, but the shards are made with {tokenizer}: "
            "it was replaced while the job ran; run the same command again"
        )
    _loaded.clear()
    encoder = _loaded[tokenizer, eod_id] = Encoder(
        vocab.raw.decode(), eod_id, vocab.size, str(tokenizer_json)
    )
    return encoder


def tokenize_partition(task: TokenizeTask, report: Callable[[Counts], None]) -> list[PartRecord]:
    """Encode and seal all parts of a partition that are not sealed yet; the records of all of them.

    `report` is told the increments of documents, tokens, bytes and rejected as they happen.
    """
    encoder = load_encoder(task.tokenizer_json, task.tokenizer, task.eod_id)
    done = load_parts(task.state_dir, task.partition.name)
    if done and done[-1].last:
        return done
    batches = read_partition(task.partition, task.record, task.normalization, task.keep)
    screen = Screen(task.screening, copies_path(task))
    batches = map(screen, _skip(batches, sum(part.read for part in done), task))
    finished = False
    while not finished:
        with _PartWriter(task, encoder, screen, len(done)) as writer:
            finished = True
            for batch in batches:
                report(writer.add(batch))
                if writer.full:
                    finished = False
                    break
            done.append(writer.seal(last=finished))
    return done


def _skip(
    batches: Iterator[TextBatch | Damage], records: int, task: TokenizeTask
) -> Iterator[TextBatch | Damage]:
    """Read again, but leave out, the records that sealed parts hold."""
    for batch in batches:
        if records == 0:
            yield batch
            continue
        if isinstance(batch, Damage):
            continue
        records -= batch.records
        if records < 0:
            raise MismatchError(
                f"partition {task.partition.name}: its sealed parts end inside a batch, so another version of pretok "
                f"wrote them; delete {task.state_dir} and the shards of this source, and run again"
            )


class _SplitWriter:
    """Writes the documents of one split: shard and ledger."""

    def __init__(self, prefix: Path, dtype: np.dtype[Any], schema: pa.Schema, stack: ExitStack) -> None:
        self.shard = stack.enter_context(ShardWriter(prefix, dtype))
        self.ledger = stack.enter_context(LedgerWriter(prefix, schema))
        self._text_bytes = 0

    def append(self, tokens: Tokens, rows: pa.RecordBatch) -> None:
        """Add whole documents: all their ids, and their rows."""
        self.shard.append(tokens, np.asarray(rows["tokens"]))
        self.ledger.append(rows)
        self._text_bytes += pc.sum(rows["bytes"]).as_py()

    def seal(self) -> SealedSplit:
        """The ledger first: a shard that is there has its ledger."""
        ledger = self.ledger.seal()
        return SealedSplit(self.shard.seal(), ledger, self._text_bytes)


class _PartWriter:
    """Writes one part: encodes batches, sends documents to train or validation, notes rejects; seals all at once."""

    def __init__(self, task: TokenizeTask, encoder: Encoder, screen: Screen, part: int) -> None:
        self._task = task
        self._screen = screen
        self._encoder = encoder
        self._part = part
        self._name = part_name(task.partition.name, part)
        self._records: Counter[str] = Counter()
        self._reasons: Counter[str] = Counter()
        self._errors: list[Failure] = []
        self._mismatches: dict[str, PartMismatch] = {}
        self._schema = schema_with([*task.keep.columns, *task.screening.columns])
        self._stack = ExitStack()
        self._writers: dict[str, _SplitWriter] = {}
        self._rejects: IO[str] | None = None

    def __enter__(self) -> _PartWriter:
        return self

    def __exit__(self, *exc: Any) -> None:
        self._stack.__exit__(*exc)

    @property
    def full(self) -> bool:
        """Whether the train shard has reached its size."""
        tokens = self._writers["train"].shard.tokens if "train" in self._writers else 0
        return tokens * self._encoder.dtype.itemsize >= self._task.target * ROLL_OVER

    def _writer(self, split: str) -> _SplitWriter:
        """The split's writer, begun with its first document: most partitions have no rejects, many no validation."""
        if split not in self._writers:
            task = self._task
            train, val = (
                task.shards_dir / task.partition.source / self._name,
                task.state_dir / f"{self._name}.val",
            )
            prefix = train if split == "train" else val
            self._writers[split] = _SplitWriter(prefix, self._encoder.dtype, self._schema, self._stack)
        return self._writers[split]

    def _reject(self, piece: int, reject: Reject) -> None:
        if self._rejects is None:
            path = self._task.state_dir / f"{self._name}.rejects.jsonl"
            self._rejects = self._stack.enter_context(atomic_open(path, "w"))
        self._reasons[reject.reason] += 1
        self._rejects.write(json.dumps({"piece": piece, **asdict(reject)}, ensure_ascii=False) + "\n")

    def add(self, batch: TextBatch | Damage) -> Counts:
        """Take a batch; the increments for progress."""
        if isinstance(batch, Damage):
            piece = self._task.partition.pieces[batch.piece]
            self._errors.append(Failure(self._task.partition.name, piece.file.path, batch.error))
            return {}
        self._records[str(batch.piece)] += batch.records
        for reject in batch.rejects:
            self._reject(batch.piece, reject)
        for found in batch.mismatches:
            before = self._mismatches.get(found.column, PartMismatch(batch.piece, found, 0))
            self._mismatches[found.column] = replace(before, count=before.count + found.count)
        documents = tokens = size = 0
        if len(batch.texts):
            size = len(buffers(batch.texts)[0])
            documents, tokens = self._write(batch)
        return {
            "documents": documents,
            "tokens": tokens,
            "bytes": size,
            f"bytes:{self._task.partition.source}": size,
            "rejected": len(batch.rejects) + len(batch.texts) - documents,
        }

    def _write(self, batch: TextBatch) -> tuple[int, int]:
        """Send each document of a batch to its split and encode it there; (documents, tokens) written."""
        task, texts = self._task, batch.texts
        hashes = hash_texts(texts)
        piece = task.partition.pieces[batch.piece]
        start, first = piece.origin
        documents = total = 0
        for split, rows in self._split(texts, hashes):
            if len(rows) == 0:
                continue
            part = texts if len(rows) == len(texts) else texts.take(pa.array(rows))
            part, rows, tokens, lengths = self._encode(part, rows, batch)
            if len(part) == 0:  # none can be encoded
                continue
            place, sizes = (piece.file.path, start), np.diff(buffers(part)[1])
            records, kept = (
                first + batch.numbers[rows],
                [column.take(pa.array(rows)) for column in batch.kept],
            )
            described = ledger_rows(place, records, lengths, sizes, hashes[rows], kept, self._schema)
            self._writer(split).append(tokens, described)
            documents, total = documents + len(part), total + len(tokens)
        return documents, total

    def _split(self, texts: pa.LargeStringArray, hashes: Hashes) -> Iterator[tuple[str, Rows]]:
        """Which of the texts go to which split."""
        fraction, seed = self._task.val_fraction, self._task.val_seed
        if not fraction:
            yield "train", np.arange(len(texts))
            return
        deciding = hashes[:, 0] if seed == 0 else hash_documents(*buffers(texts), seed)
        val = select(deciding, fraction)
        yield "train", np.flatnonzero(~val)
        yield "val", np.flatnonzero(val)

    def _encode(
        self, texts: pa.LargeStringArray, rows: Rows, batch: TextBatch
    ) -> tuple[pa.LargeStringArray, Rows, Tokens, npt.NDArray[np.int32]]:
        """(documents, their rows in the batch, ids, lengths); those that no engine can encode are rejected."""
        try:
            return texts, rows, *self._encoder.encode(texts)
        except Unencodable as error:
            for number in batch.numbers[rows[error.documents]].tolist():
                self._reject(batch.piece, Reject(number, "unencodable", error.reason))
            kept = np.ones(len(texts), np.bool_)
            kept[error.documents] = False
            texts, rows = texts.filter(pa.array(kept)), rows[kept]
            return texts, rows, *self._encoder.encode(texts)

    def seal(self, *, last: bool) -> PartRecord:
        """Seal shards, ledgers and rejects, then the record. Checks that every record read is accounted for."""
        documents = sum(writer.shard.documents for writer in self._writers.values())
        if self._records.total() != documents + self._reasons.total():
            raise AssertionError(
                f"{self._name}: read {self._records.total()}, wrote {documents}, rejected {self._reasons.total()}"
            )
        sealed = {split: writer.seal() for split, writer in self._writers.items()}
        self._stack.close()
        record = PartRecord(
            self._name,
            self._part,
            dict(self._records),
            dict(sorted(self._reasons.items())),
            tuple(self._errors),
            tuple(self._mismatches[name] for name in sorted(self._mismatches)),
            last,
            **sealed,
            contaminated=self._screen.take(),
        )
        write_json(self._task.state_dir / f"{self._name}.json", to_json(record))
        return record
