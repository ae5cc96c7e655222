"""One partition -> sealed parts: the task that a worker runs.

Input: a TokenizeTask. Output, for each part of the partition (one, unless an input that can't be cut fills several
shards): the train shard under its final name and its ledger; beside the plan, in the state folder, the same of the
validation documents, the rejects, and last the part's record, which makes the part count as done.

Everything follows from the task alone, so a task that runs twice writes the same bytes. Before a part is sealed some of
its documents are encoded again by `tokenizers` (`pretok.shards.sample`); where one differs, the whole part is.
"""

from __future__ import annotations

import json
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
from pretok.chat.resolve import chat_tokenizer
from pretok.kernels.compile import load_registries
from pretok.read.batches import TextBatch, buffers
from pretok.read.conversation import Conversation
from pretok.read.kept import KeptColumn
from pretok.read.normalize import Normalization
from pretok.read.partition import Partition
from pretok.read.readers import Damage, RecordFormat
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
from pretok.shards.parts import (
    PartRecord,
    SplitWriter,
    load_parts,
    part_name,
    refuse_other_engine,
    software,
)
from pretok.shards.sample import Differs, Sample
from pretok.tokenizer.encoder import Encoder, load_libraries
from pretok.tokenizer.vocabulary import load_vocab

Batches = Iterator[TextBatch | Damage]
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
    """Where the hashes of a partition's documents are, if its copies are left out."""
    return task.state_dir / f"{task.partition.name}.hashes{LEDGER_SUFFIX}"


def damaged_path(task: TokenizeTask) -> Path:
    """What stands there if an input could not be read to its end when they were hashed."""
    return task.state_dir / f"{task.partition.name}.damaged"


def copies_path(task: TokenizeTask) -> Path:
    """Where it stands which documents of a partition are copies."""
    return task.state_dir / f"{task.partition.name}.copies.parquet"


_loaded: dict[tuple[str, int, int | None, tuple[str, ...]], Encoder] = {}
"""The process's encoder: loading it costs a second and its word cache starts cold. By what it encodes, not by its path:
each job has a copy of the file beside its shards. A second one may be for conversations."""


def preload() -> None:
    """Load what all workers need beside this module; see `pretok.base.pool`."""
    load_libraries()
    load_registries()


def encoder_of(task: TokenizeTask, _report: Report | None = None) -> Encoder:
    """The encoder of the documents of a task, from its file unless the process has it; a task of its own for workers.

    MismatchError when the file has another fingerprint, that is, was replaced since the job began.
    """
    how = task.record.conversation
    markers = tuple(how.markers) if isinstance(how, Conversation) else ()
    key = task.tokenizer, task.eod_id, task.bos_id, markers
    if key not in _loaded:
        vocab = load_vocab(task.tokenizer_json, task.eod_id)
        if vocab.fingerprint != task.tokenizer:
            raise MismatchError(
                f"{task.tokenizer_json} has the fingerprint {vocab.fingerprint}, but the shards are made with "
                f"{task.tokenizer}: it was replaced while the job ran; run the same command again"
            )
        if len(_loaded) > 1:
            _loaded.clear()
        json = chat_tokenizer(vocab.raw.decode(), markers)
        _loaded[key] = Encoder(json, task.eod_id, vocab.size, str(task.tokenizer_json), task.bos_id)
    return _loaded[key]


def tokenize_partition(task: TokenizeTask, report: Report) -> list[PartRecord]:
    """Encode and seal all parts of a partition that are not sealed yet; the records of all of them.

    `report` is told the increments of documents, tokens, bytes and rejected as they happen.
    """
    refuse_other_engine(task.shards_dir, task.software)
    encoder = encoder_of(task)
    done = load_parts(task.state_dir, task.partition.name)
    differed: tuple[int, int] | None = None  # in the part that comes next
    batches: Batches | None = None  # what follows the parts that are done
    while not (done and done[-1].last):
        if batches is None:
            screen = Screen(task.screening, copies_path(task))
            batches = map(screen, _read(task, sum(part.read for part in done)))
        try:
            done.append(_tokenize_part(task, encoder, len(done), differed, batches, screen, report))
            differed = None
        except Differs as found:  # the part is made again, by tokenizers alone
            if differed:
                raise AssertionError(
                    f"{task.partition.name}: tokenizers differs from itself at {found.place}"
                ) from None
            differed, batches = found.place, None
    return done


def _tokenize_part(
    task: TokenizeTask,
    encoder: Encoder,
    number: int,
    differed: tuple[int, int] | None,
    batches: Batches,
    screen: Screen,
    report: Report,
) -> PartRecord:
    """Take batches until the shard is full, or there are no more, and seal. Raises Differs.

    differed: piece and record of the document that the engine has encoded otherwise than `tokenizers`, which then
    encodes the part.
    """
    encoder = encoder.exact if differed else encoder
    sample = Sample(encoder)
    with _PartWriter(task, number, encoder.dtype) as writer:
        for group in _together(batches, writer.may_hold):
            if isinstance(group, Damage):
                writer.note_damage(group)
                continue
            joined = join(group)
            encoded, refused = encode_splits(joined, encoder, task.val_fraction, task.val_seed)
            sample.add(joined, encoded, refused)
            report(writer.add(joined, encoded, refused))
            if full := writer.may_hold(0):
                break
        else:
            full = False
        sample.finish()
        return writer.seal(
            last=not full,
            contaminated=screen.take(),
            compared=sample.documents,
            compared_bytes=sample.bytes,
            differed=differed,
        )


def _read(task: TokenizeTask, records: int) -> Batches:
    """The documents of a partition behind so many records, which sealed parts hold and which are read again."""
    for batch in read_documents(task.partition, task.record, task.normalization, task.keep):
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


def _together(batches: Batches, may_hold: Callable[[int], bool]) -> Iterator[list[TextBatch] | Damage]:
    """Batches that are encoded together, and what was damaged between them.

    A shard ends with the batch that fills it, so what could fill it does not wait: nothing is held back when the caller
    stops because the shard is full. may_hold: whether the shard can have its size with so many tokens more.
    """
    waiting: list[TextBatch] = []
    most = held = 0  # tokens that they can be, and bytes of them
    for batch in batches:
        if isinstance(batch, Damage):
            yield batch
            continue
        more = most_tokens(batch)
        if waiting and may_hold(most + more):
            yield waiting
            waiting, most, held = [], 0, 0
        waiting.append(batch)
        most += more
        held += batch.nbytes
        if max(most, held) >= MOST_TOKENS or len(waiting) >= MOST_BATCHES or may_hold(most):
            yield waiting
            waiting, most, held = [], 0, 0
    if waiting:
        yield waiting


class _PartWriter:
    """Writes one part: documents to train or validation, rejects beside; seals all at once."""

    def __init__(self, task: TokenizeTask, number: int, dtype: np.dtype[Any]) -> None:
        self.record = PartRecord(name=part_name(task.partition.name, number), software=software())
        self._task = task
        self._dtype = dtype
        pieces = task.partition.pieces
        self._files = pa.array([piece.file.path for piece in pieces], pa.string())
        self._origins = np.array([piece.origin for piece in pieces], np.int64)
        self._schema = schema_with([*task.keep, *task.screening.columns])
        self._stack = ExitStack()
        self._writers: dict[str, SplitWriter] = {}
        self._rejects: IO[str] | None = None
        self._most_tokens = ceil(task.target * ROLL_OVER / dtype.itemsize)  # of the train shard

    def __enter__(self) -> _PartWriter:
        return self

    def __exit__(self, *exc: Any) -> None:
        self._stack.__exit__(*exc)

    def may_hold(self, more: int) -> bool:
        """Whether the train shard has its size if `more` tokens come to it."""
        tokens = self._writers["train"].shard.tokens if "train" in self._writers else 0
        return tokens + more >= self._most_tokens

    def note_damage(self, damage: Damage) -> None:
        """Note an input whose rest cannot be read."""
        partition = self._task.partition
        self.record.errors.append(
            Failure(partition.name, partition.pieces[damage.piece].file.path, damage.error)
        )

    def add(
        self, joined: JoinedBatches, encoded: list[EncodedSplit], refused: list[tuple[int, str]]
    ) -> Counts:
        """Write batches that were encoded; the increments for progress. refused: documents without tokens."""
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
            self._note(batch)
        for documents in encoded:
            self._write(joined, documents)
        written = sum(len(documents.rows) for documents in encoded)
        size = sum(int(documents.sizes.sum()) for documents in encoded)
        refused_bytes = sum(batch.refused for batch in joined.batches) + len(buffers(joined.texts)[0]) - size
        made = {
            "documents": written,
            "tokens": sum(len(documents.tokens) for documents in encoded),
            "bytes": size,
            "refused bytes": refused_bytes,
            "rejected": len(rejects),
        }
        for name, count in made.items():
            self.record.counts[name] += count
        return made

    def _note(self, batch: TextBatch) -> None:
        """Note how far a batch has come, and how many of its kept values were of another type."""
        record = self.record
        record.records[str(batch.piece)] += batch.records
        record.lines[str(batch.piece)] = batch.end
        for column, count in zip(self._task.keep, batch.mismatches, strict=False):
            if count:
                record.mismatches[column.name] += count

    def _reject(self, rejects: list[dict[str, Any]]) -> None:
        """List what is refused."""
        if not rejects:
            return
        if self._rejects is None:
            path = self._task.state_dir / f"{self.record.name}.rejects.jsonl"
            self._rejects = self._stack.enter_context(atomic_open(path, "w"))
        for reject in rejects:
            self.record.rejected[reject["reason"]] += 1
            self._rejects.write(json.dumps(reject, ensure_ascii=False) + "\n")

    def _write(self, joined: JoinedBatches, encoded: EncodedSplit) -> None:
        """Add documents to the shard and the ledger of their split."""
        rows = encoded.rows
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
        if encoded.split not in self._writers:  # most partitions have few or no documents for validation
            task = self._task
            folder = task.shards_dir / task.partition.source if encoded.split == "train" else task.state_dir
            name = self.record.name + ("" if encoded.split == "train" else ".val")
            self._writers[encoded.split] = SplitWriter(folder / name, self._dtype, self._schema, self._stack)
        self._writers[encoded.split].append(encoded.tokens, described, encoded.kinds)

    def seal(self, **found: Any) -> PartRecord:
        """Seal shards, ledgers and rejects, then the record, with what else was `found`."""
        source = self._task.partition.source
        if "train" in self._writers:
            found["train"], found["side_files"] = self._writers["train"].seal(source, "train")
        if "val" in self._writers:
            found["val"], _ = self._writers["val"].seal(source, "val")
        self._stack.close()
        record = replace(self.record, **found)
        write_json(self._task.state_dir / f"{record.name}.json", to_json(record))
        return record
