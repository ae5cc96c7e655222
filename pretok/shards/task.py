"""One partition -> sealed parts: the task that a worker runs.

Input: a TokenizeTask. Output, for each part of the partition (one, unless an input that can't be cut fills several
shards): the train shard under its final name and its ledger; beside the plan, in the state folder, the same of the
validation documents, the rejects, and last the part's record, which makes the part count as done.

Everything follows from the task alone, so a task that runs twice writes the same bytes. Before a part is sealed some of
its documents are encoded again by `tokenizers` (`pretok.shards.sample`); where one differs, the whole part is.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from fractions import Fraction
from math import ceil
from pathlib import Path
from typing import IO, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pretok.base.console import SILENT, Counts
from pretok.base.errors import MismatchError
from pretok.base.execute import Report
from pretok.base.failures import Failure
from pretok.base.records import Count, Record, read_record, replace, to_json
from pretok.base.storage import atomic_open, read_json, write_json
from pretok.base.tokens import Bytes, Tokens
from pretok.chat.documents import read_documents
from pretok.chat.resolve import chat_tokenizer
from pretok.kernels.compile import load_registries
from pretok.read.batches import Rejects, TextBatch, buffers
from pretok.read.conversation import Conversation
from pretok.read.kept import Keep, Mismatch
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
from pretok.shards.format import SealedShard, ShardWriter
from pretok.shards.ledger import LedgerWriter, SealedLedger, ledger_rows, schema_with
from pretok.shards.sample import Differs, Place, Sample
from pretok.shards.software import refuse_other_engine, software
from pretok.shards.spans import SealedSpans, SpanWriter
from pretok.tokenizer.encoder import Encoder, load_libraries
from pretok.tokenizer.reference import Unencodable
from pretok.tokenizer.vocabulary import load_vocab

ROLL_OVER = Fraction(5, 4)
"""A shard is full at this multiple of its target size: a partition a little over target still gives one shard."""


@dataclass(frozen=True, slots=True)
class TokenizeTask:
    """All that decides the bytes of a partition's shards. target: bytes of tokens a shard should hold; append: number
    of the append that the partition is of, 0 for the source itself.

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
    bos_id: int | None
    target: int
    append: int
    val_fraction: Fraction
    val_seed: int
    software: dict[str, str]


class SealedSplit(Record, frozen=True, omit_defaults=True):
    """The documents of a part that went to one split; text_bytes: of their text; spans: of conversations."""

    shard: SealedShard
    ledger: SealedLedger
    text_bytes: Count
    spans: SealedSpans | None = None


class PartMismatch(Record, frozen=True):
    """What `kept.Mismatch` says, of a whole part; piece: that of the first."""

    piece: Count
    first: Mismatch
    count: Count


class PartRecord(Record, frozen=True, kw_only=True, omit_defaults=True):
    """What a sealed part holds; JSON in the state folder.

    name: of its train shard; records: how many were read for it, per piece of the partition; lines: of each such piece
    how many lines or rows stand before what follows the part; rejected: by reason;
    errors: inputs whose rest could not be read; mismatches: values of kept columns that are null because of another
    type; last: whether the partition ends here; train, val: None where empty; contaminated: what was found of the items
    of a benchmark, in documents that were refused too; refused: bytes of the inputs that held no document; software:
    what made it; compared, compared_bytes: documents that `tokenizers` encoded again, and their text; differed: the one
    that the engine had encoded otherwise, so that `tokenizers` encoded the whole part; None where the engine did.
    """

    name: str
    part: Count
    records: dict[str, Count]
    rejected: dict[str, Count]
    errors: tuple[Failure, ...]
    mismatches: tuple[PartMismatch, ...]
    last: bool
    lines: dict[str, Count]
    refused: Count
    train: SealedSplit | None = None
    val: SealedSplit | None = None
    contaminated: tuple[ItemCount, ...]
    software: dict[str, str]
    compared: Count
    compared_bytes: Count
    differed: Place | None = None

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
            f"bytes:{source}": size + self.refused,
            "refused bytes": self.refused,
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


_loaded: dict[tuple[str, int, int | None, tuple[str, ...]], Encoder] = {}
"""The process's encoder: loading it costs a second and its word cache starts cold. By what it encodes, not by its path:
each job has a copy of the file beside its shards. A second one may be for conversations."""


def preload() -> None:
    """Load what all workers need beside this module; see `pretok.base.pool`."""
    load_libraries()
    load_registries()


def encoder_of(task: TokenizeTask) -> Encoder:
    """The encoder of the documents of a task."""
    how = task.record.conversation
    markers = tuple(how.markers) if isinstance(how, Conversation) else ()
    return load_encoder(task.tokenizer_json, task.tokenizer, task.eod_id, task.bos_id, markers)


def load_encoder(
    tokenizer_json: Path,
    tokenizer: str,
    eod_id: int,
    bos_id: int | None = None,
    markers: tuple[str, ...] = (),
) -> Encoder:
    """The encoder of the tokenizer with the fingerprint `tokenizer`, from the file unless the process has it. markers:
    added tokens that are text where a text spells them, special or not.

    MismatchError when the file has another fingerprint, that is, was replaced since the job began.
    """
    if encoder := _loaded.get((tokenizer, eod_id, bos_id, markers)):
        return encoder
    vocab = load_vocab(tokenizer_json, eod_id)
    if vocab.fingerprint != tokenizer:
        raise MismatchError(
            f"{tokenizer_json} has the fingerprint {vocab.fingerprint}, but the shards are made with {tokenizer}: "
            "it was replaced while the job ran; run the same command again"
        )
    if len(_loaded) > 1:
        _loaded.clear()
    json = chat_tokenizer(vocab.raw.decode(), markers)
    encoder = Encoder(json, eod_id, vocab.size, str(tokenizer_json), bos_id)
    _loaded[tokenizer, eod_id, bos_id, markers] = encoder
    return encoder


def tokenize_partition(task: TokenizeTask, report: Report) -> list[PartRecord]:
    """Encode and seal all parts of a partition that are not sealed yet; the records of all of them.

    `report` is told the increments of documents, tokens, bytes and rejected as they happen.
    """
    refuse_other_engine(task.shards_dir, task.software, SILENT)
    encoder = encoder_of(task)
    done = load_parts(task.state_dir, task.partition.name)
    if done and done[-1].last:
        return done
    screen, batches = _batches(task, done)
    differed: Place | None = None
    while not (done and done[-1].last):
        by = encoder.exact if differed else encoder
        try:
            with _PartWriter(task, by, screen, len(done), differed) as writer:
                done.append(_write_part(writer, batches, report))
            differed = None
        except Differs as found:
            if differed:
                raise AssertionError(
                    f"{writer.name}: tokenizers differs from itself at {found.place}"
                ) from None
            differed = found.place
            screen, batches = _batches(task, done)
    return done


def _batches(task: TokenizeTask, done: list[PartRecord]) -> tuple[Screen, Iterator[TextBatch | Damage]]:
    """What follows the sealed parts, and what screens it."""
    batches = read_documents(task.partition, task.record, task.normalization, task.keep)
    screen = Screen(task.screening, copies_path(task))
    return screen, map(screen, _skip(batches, sum(part.read for part in done), task))


def _write_part(writer: _PartWriter, batches: Iterator[TextBatch | Damage], report: Report) -> PartRecord:
    """Fill a part and seal it. Raises Differs."""
    last = True
    for batch in batches:
        report(writer.add(batch))
        if writer.full:
            last = False
            break
    report(writer.flush())
    return writer.seal(last=last)


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
        self._spans: SpanWriter | None = None
        self._prefix = prefix

    def append(self, tokens: Tokens, rows: pa.RecordBatch, kinds: Bytes | None) -> None:
        """Add whole documents: all their ids, their rows, and of conversations the kind of each token."""
        if kinds is not None:
            self._spans = self._spans or SpanWriter(self._prefix)
            self._spans.append(kinds, np.asarray(rows["tokens"]))
        self.shard.append(tokens, np.asarray(rows["tokens"]))
        self.ledger.append(rows)
        self._text_bytes += pc.sum(rows["bytes"]).as_py()

    def seal(self) -> SealedSplit:
        """The ledger and the spans first: a shard that is there has them."""
        ledger = self.ledger.seal()
        spans = self._spans.seal() if self._spans else None
        return SealedSplit(self.shard.seal(), ledger, self._text_bytes, spans)


class _PartWriter:
    """Writes one part: encodes batches, sends documents to train or validation, notes rejects; seals all at once."""

    def __init__(
        self, task: TokenizeTask, encoder: Encoder, screen: Screen, part: int, differed: Place | None
    ) -> None:
        self._task = task
        self._screen = screen
        self._encoder = encoder
        self._sample = Sample(encoder)
        self._differed = differed
        self._part = part
        self.name = part_name(task.partition.name, part)
        self._records: Counter[str] = Counter()
        self._lines: dict[str, int] = {}
        self._refused = 0
        self._reasons: Counter[str] = Counter()
        self._errors: list[Failure] = []
        self._mismatches: dict[str, PartMismatch] = {}
        self._schema = schema_with([*task.keep.columns, *task.screening.columns])
        self._stack = ExitStack()
        self._writers: dict[str, _SplitWriter] = {}
        self._rejects: IO[str] | None = None
        self._waiting: list[TextBatch] = []
        self._most = self._held = 0  # tokens of what waits, and bytes of it
        self._most_tokens = ceil(task.target * ROLL_OVER / encoder.dtype.itemsize)  # of the train shard

    def __enter__(self) -> _PartWriter:
        return self

    def __exit__(self, *exc: Any) -> None:
        self._stack.__exit__(*exc)

    @property
    def full(self) -> bool:
        """Whether the train shard has reached its size."""
        return self._may_hold(0)

    def _may_hold(self, more: int) -> bool:
        """Whether the train shard has its size if `more` tokens come to it."""
        tokens = self._writers["train"].shard.tokens if "train" in self._writers else 0
        return tokens + more >= self._most_tokens

    def _writer(self, split: str) -> _SplitWriter:
        """The split's writer, begun with its first document: most partitions have no rejects, many no validation."""
        if split not in self._writers:
            task = self._task
            train, val = (
                task.shards_dir / task.partition.source / self.name,
                task.state_dir / f"{self.name}.val",
            )
            prefix = train if split == "train" else val
            self._writers[split] = _SplitWriter(prefix, self._encoder.dtype, self._schema, self._stack)
        return self._writers[split]

    def _reject(self, piece: int, rejects: Rejects) -> None:
        if not rejects:
            return
        if self._rejects is None:
            path = self._task.state_dir / f"{self.name}.rejects.jsonl"
            self._rejects = self._stack.enter_context(atomic_open(path, "w"))
        self._reasons.update(rejects.by_reason())
        for reject in rejects:
            self._rejects.write(json.dumps({"piece": piece, **asdict(reject)}, ensure_ascii=False) + "\n")

    def add(self, batch: TextBatch | Damage) -> Counts:
        """Take a batch; the increments for progress, of this one and those that waited or none where it waits too.

        A shard ends with the batch that fills it, so what could fill it does not wait.
        """
        if isinstance(batch, Damage):
            piece = self._task.partition.pieces[batch.piece]
            self._errors.append(Failure(self._task.partition.name, piece.file.path, batch.error))
            return {}
        counts: Counter[str] = Counter()
        most = most_tokens(batch)
        if self._waiting and self._may_hold(self._most + most):
            counts.update(self.flush())
        self._waiting.append(batch)
        self._most += most
        self._held += batch.nbytes
        many = max(self._most, self._held) >= MOST_TOKENS or len(self._waiting) >= MOST_BATCHES
        if many or self._may_hold(self._most):
            counts.update(self.flush())
        return dict(counts)

    def flush(self) -> Counts:
        """Encode and write what waits; the increments for progress."""
        batches, self._waiting, self._most, self._held = self._waiting, [], 0, 0
        if not batches:
            return {}
        joined = join(batches)
        try:
            encoded, refused = encode_splits(
                joined, self._encoder, self._task.val_fraction, self._task.val_seed
            )
        except Unencodable:  # a reject stands where its batch stood: halve until it is alone
            counts: Counter[str] = Counter()
            for self._waiting in (batches[: len(batches) // 2], batches[len(batches) // 2 :]):
                counts.update(self.flush())
            return dict(counts)
        self._sample.add(joined, encoded, refused)
        for batch in batches:
            self._note(batch)
        self._reject(batches[0].piece, Rejects.of(refused))
        for documents in encoded:
            self._write(joined, documents)
        written = sum(len(documents.rows) for documents in encoded)
        size = sum(int(documents.sizes.sum()) for documents in encoded)
        refused_bytes = sum(batch.refused for batch in batches) + len(buffers(joined.texts)[0]) - size
        self._refused += refused_bytes
        return {
            "documents": written,
            "tokens": sum(len(documents.tokens) for documents in encoded),
            "bytes": size,
            f"bytes:{self._task.partition.source}": size + refused_bytes,
            "refused bytes": refused_bytes,
            "rejected": sum(len(batch.rejects) for batch in batches) + len(joined.texts) - written,
        }

    def _note(self, batch: TextBatch) -> None:
        self._records[str(batch.piece)] += batch.records
        self._lines[str(batch.piece)] = batch.end
        self._reject(batch.piece, batch.rejects)
        for found in batch.mismatches:
            before = self._mismatches.get(found.column, PartMismatch(batch.piece, found, 0))
            self._mismatches[found.column] = replace(before, count=before.count + found.count)

    def _write(self, joined: JoinedBatches, encoded: EncodedSplit) -> None:
        """Add documents to the shard and the ledger of their split."""
        pieces = [self._task.partition.pieces[batch.piece] for batch in joined.batches]
        origins = np.array([piece.origin for piece in pieces], np.int64)
        rows = encoded.rows
        batch = joined.batch[rows]
        described = ledger_rows(
            pa.array([piece.file.path for piece in pieces], pa.string()).take(pa.array(batch)),
            origins[batch, 0],
            origins[batch, 1] + joined.numbers[rows],
            encoded.lengths,
            encoded.sizes,
            encoded.hashes,
            [column.take(pa.array(rows)) for column in joined.kept],
            self._schema,
        )
        self._writer(encoded.split).append(encoded.tokens, described, encoded.kinds)

    def seal(self, *, last: bool) -> PartRecord:
        """Seal shards, ledgers and rejects, then the record. Checks that every record read is accounted for."""
        self._sample.finish()
        documents = sum(writer.shard.documents for writer in self._writers.values())
        if self._records.total() != documents + self._reasons.total():
            raise AssertionError(
                f"{self.name}: read {self._records.total()}, wrote {documents}, rejected {self._reasons.total()}"
            )
        sealed = {split: writer.seal() for split, writer in self._writers.items()}
        self._stack.close()
        record = PartRecord(
            name=self.name,
            part=self._part,
            records=dict(self._records),
            rejected=dict(sorted(self._reasons.items())),
            errors=tuple(self._errors),
            mismatches=tuple(self._mismatches[name] for name in sorted(self._mismatches)),
            last=last,
            lines=self._lines,
            refused=self._refused,
            **sealed,
            contaminated=self._screen.take(),
            software=software(),
            compared=self._sample.documents,
            compared_bytes=self._sample.bytes,
            differed=self._differed,
        )
        write_json(self._task.state_dir / f"{self.name}.json", to_json(record))
        return record
