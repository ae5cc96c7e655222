"""One partition -> sealed parts: the task that a worker runs.

Enters: a TokenizeTask. Leaves, for each part of the partition (one, unless an input that can't be cut fills several
shards): the train shard under its final name; beside the plan, in the state folder, the validation documents as a small
shard, the rejects, and last the part's record, which makes the part count as done.

Everything follows from the task alone, so a task that runs twice writes the same bytes.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pretok.base.errors import MismatchError
from pretok.base.progress import Counts
from pretok.base.storage import atomic_open, read_json, write_json
from pretok.base.tokens import Tokens
from pretok.kernels.hashing import hash_documents, select
from pretok.read.batches import Reject, TextBatch, buffers
from pretok.read.normalize import Normalization
from pretok.read.partition import Partition
from pretok.read.readers import Damage, RecordFormat, read_partition
from pretok.shards.format import SealedShard, ShardWriter
from pretok.tokenizer.encoder import Encoder
from pretok.tokenizer.reference import Unencodable
from pretok.tokenizer.vocabulary import load_vocab

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
    normalization: Normalization
    tokenizer_json: Path
    tokenizer: str
    eod_id: int
    target: int
    val_fraction: Fraction
    val_seed: int


@dataclass(slots=True)
class PartRecord:
    """What a sealed part holds; JSON in the state folder.

    name: of its train shard; records: how many were read for it, per piece of the partition; rejected: by reason;
    val_records: which records of the partition went to validation; errors: inputs whose rest could not be read;
    last: whether the partition ends here; train, val: the sealed shards with `text_bytes`, None where empty.
    """

    name: str
    part: int
    records: dict[str, int] = field(default_factory=dict)
    rejected: dict[str, int] = field(default_factory=dict)
    val_records: list[int] = field(default_factory=list)
    errors: list[dict[str, Any]] = field(default_factory=list)
    last: bool = False
    train: dict[str, Any] | None = None
    val: dict[str, Any] | None = None

    @property
    def read(self) -> int:
        """Records read for this part."""
        return sum(self.records.values())

    def counts(self, source: str) -> Counts:
        """What was reported of this part, which is of `source`, when it was made."""
        shards = [shard for shard in (self.train, self.val) if shard is not None]
        size = sum(shard["text_bytes"] for shard in shards)
        return {
            "documents": sum(shard["documents"] for shard in shards),
            "tokens": sum(shard["tokens"] for shard in shards),
            "bytes": size,
            f"bytes:{source}": size,
            "rejected": sum(self.rejected.values()),
        }


def part_name(partition: str, part: int) -> str:
    """Name of a part's shard: the partition's, with the part's number from the second on."""
    return f"{partition}-{part}" if part else partition


def load_parts(state_dir: Path, partition: str) -> list[PartRecord]:
    """Records of the sealed parts of a partition, in order."""
    parts: list[PartRecord] = []
    while (path := state_dir / f"{part_name(partition, len(parts))}.json").exists():
        parts.append(PartRecord(**read_json(path)))
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
    batches = read_partition(task.partition, task.record, task.normalization)
    batches = _skip(batches, sum(part.read for part in done), task)
    finished = False
    while not finished:
        with _PartWriter(task, encoder, len(done), sum(part.read for part in done)) as writer:
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


class _PartWriter:
    """Writes one part: encodes batches, sends documents to train or validation, notes rejects; seals all at once."""

    def __init__(self, task: TokenizeTask, encoder: Encoder, part: int, first_record: int) -> None:
        self._task = task
        self._encoder = encoder
        self._next_record = first_record
        self._record = PartRecord(part_name(task.partition.name, part), part)
        self._reasons: Counter[str] = Counter()
        self._text_bytes = {"train": 0, "val": 0}
        self._stack = ExitStack()
        self._writers: dict[str, ShardWriter] = {}
        self._rejects: IO[str] | None = None

    def __enter__(self) -> _PartWriter:
        return self

    def __exit__(self, *exc: Any) -> None:
        self._stack.__exit__(*exc)

    @property
    def full(self) -> bool:
        """Whether the train shard has reached its size."""
        tokens = self._writers["train"].tokens if "train" in self._writers else 0
        return tokens * self._encoder.dtype.itemsize >= self._task.target * ROLL_OVER

    def _writer(self, split: str) -> ShardWriter:
        """The split's shard, begun with its first document: most partitions have no rejects, many no validation."""
        if split not in self._writers:
            name, task = self._record.name, self._task
            train, val = task.shards_dir / task.partition.source / name, task.state_dir / f"{name}.val"
            writer = ShardWriter(train if split == "train" else val, self._encoder.dtype)
            self._writers[split] = self._stack.enter_context(writer)
        return self._writers[split]

    def _reject(self, piece: int, reject: Reject) -> None:
        if self._rejects is None:
            path = self._task.state_dir / f"{self._record.name}.rejects.jsonl"
            self._rejects = self._stack.enter_context(atomic_open(path, "w"))
        self._reasons[reject.reason] += 1
        self._rejects.write(json.dumps({"piece": piece, **asdict(reject)}, ensure_ascii=False) + "\n")

    def add(self, batch: TextBatch | Damage) -> Counts:
        """Take a batch; the increments for progress."""
        if isinstance(batch, Damage):
            piece = self._task.partition.pieces[batch.piece]
            self._record.errors.append(
                {"partition": self._task.partition.name, "file": piece.file.path, "error": batch.error}
            )
            return {}
        piece_key = str(batch.piece)
        self._record.records[piece_key] = self._record.records.get(piece_key, 0) + batch.records
        for reject in batch.rejects:
            self._reject(batch.piece, reject)
        documents = tokens = size = 0
        if len(batch.texts):
            size = len(buffers(batch.texts)[0])
            documents, tokens = self._write(batch)
        self._next_record += batch.records
        return {
            "documents": documents,
            "tokens": tokens,
            "bytes": size,
            f"bytes:{self._task.partition.source}": size,
            "rejected": len(batch.rejects) + len(batch.texts) - documents,
        }

    def _write(self, batch: TextBatch) -> tuple[int, int]:
        """Send each document of a batch to its split and encode it there; (documents, tokens) written."""
        task, texts, numbers = self._task, batch.texts, batch.numbers
        splits = [("train", texts, numbers)]
        if task.val_fraction:
            val = select(hash_documents(*buffers(texts), task.val_seed), task.val_fraction)
            if val.any():
                splits = [
                    (split, texts.filter(pa.array(members)), numbers[members])
                    for split, members in (("train", ~val), ("val", val))
                ]
        documents = total = 0
        for split, part, part_numbers in splits:
            part, part_numbers, tokens, lengths = self._encode(part, part_numbers, batch.piece)
            if len(part) == 0:  # all documents of the batch are in the other split, or none can be encoded
                continue
            self._writer(split).append(tokens, lengths)
            self._text_bytes[split] += len(buffers(part)[0])
            if split == "val":
                # numbers count from the piece's first record; the partition's count runs on over its pieces
                self._record.val_records += (self._next_record - batch.first + part_numbers).tolist()
            documents, total = documents + len(part), total + len(tokens)
        return documents, total

    def _encode(
        self, texts: pa.LargeStringArray, numbers: npt.NDArray[np.int64], piece: int
    ) -> tuple[pa.LargeStringArray, npt.NDArray[np.int64], Tokens, npt.NDArray[np.int32]]:
        """(documents, their records, ids, lengths); those that no engine can encode are rejected."""
        try:
            return texts, numbers, *self._encoder.encode(texts)
        except Unencodable as error:
            for number in numbers[error.documents].tolist():
                self._reject(piece, Reject(number, "unencodable", error.reason))
            kept = np.ones(len(texts), np.bool_)
            kept[error.documents] = False
            texts, numbers = texts.filter(pa.array(kept)), numbers[kept]
            return texts, numbers, *self._encoder.encode(texts)

    def seal(self, *, last: bool) -> PartRecord:
        """Seal shards and rejects, then the record. Checks that every record read is accounted for."""
        record = self._record
        record.last = last
        record.rejected = dict(sorted(self._reasons.items()))
        documents = sum(writer.documents for writer in self._writers.values())
        if record.read != documents + self._reasons.total():
            raise AssertionError(
                f"{record.name}: read {record.read}, wrote {documents}, rejected {self._reasons.total()}"
            )
        for split, writer in self._writers.items():
            setattr(record, split, _sealed(writer.seal(), self._text_bytes[split]))
        self._stack.close()
        write_json(self._task.state_dir / f"{record.name}.json", asdict(record))
        return record


def _sealed(shard: SealedShard, text_bytes: int) -> dict[str, Any]:
    return {**asdict(shard), "text_bytes": text_bytes}
