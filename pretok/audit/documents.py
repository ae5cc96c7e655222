"""inspect: one document as its tokens, and the line or row of the input it came from.

Enters: SHARDS, a source, a split and the number of a document in it. Leaves: an Inspection. The tables that lead back
to the input are compared with their checksums first: what is damaged must not name a wrong line.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from pretok.base.errors import IntegrityError, UsageError
from pretok.base.records import read_record
from pretok.base.storage import checksum, read_json_lines
from pretok.shards.contents import SPLITS, PartEntry
from pretok.shards.format import ShardReader
from pretok.shards.manifest import Manifest, Shard, load_manifest
from pretok.shards.plan import SourcePlan
from pretok.shards.seal import origins_path, piece_starts, rejects_path
from pretok.tokenizer.vocabulary import TOKENIZER_FILE, Vocabulary, load_vocab


@dataclass(frozen=True, slots=True)
class Inspection:
    """A document: where its tokens are, where its text came from (file and line or row, from 1), what it holds."""

    shard: str
    document: int
    file: str
    position: int
    ids: list[int]
    tokens: list[str]


@dataclass(frozen=True, slots=True)
class _Reject:
    """A line of a ledger of rejects; position: line or row of the file, from 1."""

    file: str
    position: int
    reason: str
    detail: str


def run_inspect(shards: Path, source: str, document: int, split: str = "train") -> Inspection:
    """Document `document` (from 0) of a source's split. UsageError names what there is instead, IntegrityError what is
    damaged."""
    manifest = load_manifest(shards)
    if source not in manifest.sources:
        raise UsageError(f"no source {source!r} in {shards}; there is {', '.join(manifest.sources)}")
    if split not in SPLITS:
        raise UsageError(f"no split {split!r}; there are {' and '.join(SPLITS)}")
    if source not in manifest.contents.plans:
        raise UsageError(f"{shards} holds a mix in its order; its documents are in the shards it was made of")
    shard, number = _find(manifest, source, split, document)
    reader = ShardReader(shard.prefix)
    if (len(reader), len(reader.tokens)) != (shard.documents, shard.tokens):
        raise IntegrityError(f"{shard.path} is not what the manifest says; see pretok verify")
    ids = np.asarray(reader[number]).tolist()
    if ids and not 0 <= min(ids) <= max(ids) < manifest.vocab_size:
        raise IntegrityError(f"{shard.path}: document {number} has ids of no token; see pretok verify")
    vocab = load_vocab(manifest.folder / TOKENIZER_FILE, eod=manifest.eod_id)
    file, position = origin(manifest, shard, number)
    return Inspection(str(shard.path), number, file, position, ids, _show(vocab, ids))


def _find(manifest: Manifest, source: str, split: str, document: int) -> tuple[Shard, int]:
    shards = manifest.of(source, split)
    ends = np.cumsum([shard.documents for shard in shards]).tolist() or [0]
    if not 0 <= document < ends[-1]:
        held = {
            name: sum(shard.documents for shard in manifest.of(source, name)) for name in SPLITS
        }  # of the other split too: it may be the one that was meant
        raise UsageError(
            f"source {source} has {held['train']} train and {held['val']} val documents, each numbered from 0; there "
            f"is no {split} document {document}"
        )
    at = bisect_right(ends, document)
    return shards[at], document - (ends[at - 1] if at else 0)


def _show(vocab: Vocabulary, ids: list[int]) -> list[str]:
    """Each token's bytes as text; a token that is a part of a character shows its bytes."""
    return [vocab.token_bytes(i).decode("utf-8", "backslashreplace") for i in ids]


class _Records:
    """Which records of a source's inputs its parts were made of. Partitions and pieces count from 0; so do records,
    over all pieces of a partition."""

    def __init__(self, manifest: Manifest, source: str) -> None:
        self.parts: tuple[PartEntry, ...] = manifest.contents.parts[source]
        plan = SourcePlan.from_json(source, manifest.contents.plans[source])
        self.starts = piece_starts(plan, self.parts)

    def pieces(self, partition: int) -> dict[int, int]:
        """Records read of each piece of a partition."""
        records: Counter[int] = Counter()
        for part in self.parts:
            if part.partition == partition:
                records.update({int(piece): count for piece, count in part.records.items()})
        return dict(sorted(records.items()))

    def locate(self, partition: int, record: int) -> tuple[str, int]:
        """File and position of a record."""
        for piece, count in self.pieces(partition).items():
            if record < count:
                file, start = self.starts[partition, piece]
                return file, start + record + 1
            record -= count
        raise IntegrityError(f"partition {partition} has fewer records than its shards; see pretok verify")

    def rejected(self, partition: int, ledger: list[_Reject]) -> set[int]:
        """Records of a partition that a ledger lists."""
        spans = []  # file, first position, one past the last, record of the partition at the first
        before = 0
        for piece, count in self.pieces(partition).items():
            file, start = self.starts[partition, piece]
            spans.append((file, start + 1, start + count + 1, before))
            before += count
        return {
            record + reject.position - first
            for reject in ledger
            for file, first, end, record in spans
            if reject.file == file and first <= reject.position < end
        }


def origin(manifest: Manifest, shard: Shard, number: int) -> tuple[str, int]:
    """(input file, line or row from 1) of document `number` of a shard."""
    records = _Records(manifest, shard.source)
    held_out = _origins(manifest, shard.source)
    if shard.split == "val":
        index, record = (int(x) for x in held_out[number])
        return records.locate(records.parts[index].partition, record)
    index = next(i for i, part in enumerate(records.parts) if part.name == shard.prefix.name)
    partition = records.parts[index].partition
    first = sum(sum(p.records.values()) for p in records.parts[:index] if p.partition == partition)
    elsewhere = {int(record) for part, record in held_out if records.parts[part].partition == partition}
    elsewhere |= records.rejected(partition, _ledger(manifest, shard.source))
    record = first
    left = number
    for gone in sorted(elsewhere):
        if gone < first:
            continue
        if gone - record > left:
            break
        left -= gone - record
        record = gone + 1
    return records.locate(partition, record + left)


def _origins(manifest: Manifest, source: str) -> npt.NDArray[np.int64]:
    """(documents, 2): part and record of each validation document."""
    path = origins_path(manifest.folder, source)
    if not _as_sealed(manifest, path):
        return np.empty((0, 2), np.int64)
    found: npt.NDArray[np.int64] = np.load(path)
    return found


def _ledger(manifest: Manifest, source: str) -> list[_Reject]:
    path = rejects_path(manifest.folder, source)
    if not _as_sealed(manifest, path):
        return []
    return [read_record(_Reject, line, path) for line in read_json_lines(path)]


def _as_sealed(manifest: Manifest, path: Path) -> bool:
    """Whether a side file exists. Raises IntegrityError when it should, or is not what was sealed."""
    sealed = {manifest.folder / file.path: file for file in manifest.contents.side_files}
    if path in sealed and (not path.exists() or checksum(path) != sealed[path].checksum):
        raise IntegrityError(f"{path} is missing or damaged: its checksum is not that of the manifest")
    return path.exists()
