"""inspect: one document as its tokens, and the line or row of the input it came from.

Enters: SHARDS, a source, a split and the number of a document in it. Leaves: an Inspection.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pretok.errors import UsageError
from pretok.jobs.seal import piece_starts
from pretok.manifest import Manifest, Shard, load_manifest
from pretok.shard import ShardReader
from pretok.storage import read_json_lines
from pretok.vocab import TOKENIZER_FILE, Vocabulary, load_vocab


@dataclass(frozen=True, slots=True)
class Inspection:
    """A document: where its tokens are, where its text came from (file and line or row, from 1), what it holds."""

    shard: str
    document: int
    file: str
    position: int
    ids: list[int]
    tokens: list[str]


def run_inspect(shards: Path, source: str, document: int, split: str = "train") -> Inspection:
    """Document `document` (from 0) of a source's split. UsageError names what there is instead."""
    manifest = load_manifest(shards)
    if source not in manifest.sources:
        raise UsageError(f"no source {source!r} in {shards}; there is {', '.join(manifest.sources)}")
    shard, number = _find(manifest, source, split, document)
    ids = np.asarray(ShardReader(shard.prefix)[number]).tolist()
    vocab = load_vocab(manifest.folder / TOKENIZER_FILE, eod=manifest.eod_id)
    file, position = origin(manifest, shard, number)
    return Inspection(str(shard.path), number, file, position, ids, _show(vocab, ids))


def _find(manifest: Manifest, source: str, split: str, document: int) -> tuple[Shard, int]:
    shards = manifest.of(source, split)
    ends = np.cumsum([shard.documents for shard in shards]).tolist() or [0]
    if not 0 <= document < ends[-1]:
        raise UsageError(
            f"source {source} has {ends[-1]} {split} documents, numbered from 0; there is no {document}"
        )
    at = bisect_right(ends, document)
    return shards[at], document - (ends[at - 1] if at else 0)


def _show(vocab: Vocabulary, ids: list[int]) -> list[str]:
    """Each token's bytes as text; a token that is a part of a character shows its bytes."""
    return [vocab.token_bytes(i).decode("utf-8", "backslashreplace") for i in ids]


def origin(manifest: Manifest, shard: Shard, number: int) -> tuple[str, int]:
    """(input file, line or row from 1) of document `number` of a shard."""
    data = manifest.data
    parts, plan = data["parts"][shard.source], data["plans"][shard.source]
    origins = manifest.folder / shard.source / f"{shard.source}-val-00000.origins.npy"
    held_out = np.load(origins) if origins.exists() else np.empty((0, 2), np.int64)
    if shard.split == "val":
        index, record = (int(x) for x in held_out[number])
        return _locate(plan, parts, parts[index]["partition"], record)
    index = next(i for i, part in enumerate(parts) if part["name"] == shard.prefix.name)
    partition = parts[index]["partition"]
    first = sum(sum(p["records"].values()) for p in parts[:index] if p["partition"] == partition)
    elsewhere = {int(record) for part, record in held_out if parts[part]["partition"] == partition}
    elsewhere |= _rejected_records(manifest, shard.source, plan, parts, partition)
    record = first
    left = number
    for gone in sorted(elsewhere):
        if gone < first:
            continue
        if gone - record > left:
            break
        left -= gone - record
        record = gone + 1
    return _locate(plan, parts, partition, record + left)


def _piece_records(parts: list[dict[str, Any]], partition: int) -> dict[int, int]:
    """Records read of each piece of a partition."""
    records: dict[int, int] = {}
    for part in parts:
        if part["partition"] == partition:
            for piece, count in part["records"].items():
                records[int(piece)] = records.get(int(piece), 0) + count
    return dict(sorted(records.items()))


def _locate(
    plan: dict[str, Any], parts: list[dict[str, Any]], partition: int, record: int
) -> tuple[str, int]:
    """File and position of a record, counted from 0 over all pieces of a partition."""
    starts = piece_starts(plan, parts)
    for piece, count in _piece_records(parts, partition).items():
        if record < count:
            file, start = starts[partition, piece]
            return file, start + record + 1
        record -= count
    raise AssertionError(f"partition {partition} has fewer records than its shards say")


def _rejected_records(
    manifest: Manifest, source: str, plan: dict[str, Any], parts: list[dict[str, Any]], partition: int
) -> set[int]:
    """Records of a partition that the ledger lists, counted over its pieces."""
    path = manifest.folder / "rejects" / f"{source}-00000.jsonl"
    if not path.exists():
        return set()
    starts = piece_starts(plan, parts)
    spans = []  # file, first position, one past the last, record of the partition at the first
    before = 0
    for piece, count in _piece_records(parts, partition).items():
        file, start = starts[partition, piece]
        spans.append((file, start + 1, start + count + 1, before))
        before += count
    found = set()
    for line in read_json_lines(path):
        for file, first, end, record in spans:
            if line["file"] == file and first <= line["position"] < end:
                found.add(record + line["position"] - first)
    return found
