"""Helpers several tests share: small finished shards folders, written by the real writer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pretok.manifest import FILE_NAME, FORMAT, VERSION, manifest_fingerprint
from pretok.shard import ShardWriter, token_dtype
from pretok.storage import write_json

ROOT = Path(__file__).parent.parent
"""The checkout."""
SPECIAL = ("<|endoftext|>", "<|pad|>", "<|reserved_0|>")
"""Special tokens of the small vocabulary of the tests."""
EOD = 0


def make_shards(
    folder: Path,
    sources: Mapping[str, Iterable[Sequence[int]]],
    *,
    val: Mapping[str, Iterable[Sequence[int]]] | None = None,
    vocab_size: int = 1000,
    documents_per_shard: int = 3,
) -> Path:
    """Write a shards folder with its manifest. Documents come without EOD (id 0), which is added; returns `folder`."""
    shards: list[dict[str, Any]] = []
    counts: dict[str, dict[str, Any]] = {}
    dtype = token_dtype(vocab_size)
    for name in sorted(sources):
        totals = {}
        for split, documents in (("train", sources[name]), ("val", (val or {}).get(name, ()))):
            entries = _write_split(folder, name, split, list(documents), dtype, documents_per_shard)
            totals[split] = {
                "tokens": sum(entry["tokens"] for entry in entries),
                "documents": sum(entry["documents"] for entry in entries),
                "bytes": sum(entry["text_bytes"] for entry in entries),
            }
            shards += entries
        both = {key: totals["train"][key] + totals["val"][key] for key in ("tokens", "documents", "bytes")}
        counts[name] = {**both, "rejected": {}, **totals}
    data: dict[str, Any] = {
        "format": FORMAT,
        "version": VERSION,
        "fingerprint": "",
        "tokenizer": {
            "fingerprint": "0" * 32,
            "vocab_size": vocab_size,
            "eod_id": EOD,
            "dtype": dtype.name,
        },
        "totals": {
            key: sum(source[key] for source in counts.values()) for key in ("tokens", "documents", "bytes")
        },
        "sources": counts,
        "shards": shards,
        "files": [],
        "failed": [],
        "config": {},
        "software": {},
    }
    data["fingerprint"] = manifest_fingerprint(data)
    write_json(folder / FILE_NAME, data)
    return folder


def _write_split(
    folder: Path,
    name: str,
    split: str,
    documents: list[Sequence[int]],
    dtype: np.dtype[Any],
    documents_per_shard: int,
) -> list[dict[str, Any]]:
    entries = []
    for number, start in enumerate(range(0, len(documents), documents_per_shard)):
        stem = f"{name}-{number:05d}" if split == "train" else f"{name}-{split}-{number:05d}"
        with ShardWriter(folder / name / stem, dtype) as writer:
            for document in documents[start : start + documents_per_shard]:
                tokens = np.array([*document, EOD], dtype)
                writer.append(tokens, np.array([len(tokens)], np.int32))
            sealed = writer.seal()
        entries.append(
            {
                "path": f"{name}/{stem}.bin",
                "source": name,
                "split": split,
                "tokens": sealed.tokens,
                "documents": sealed.documents,
                "bytes": sealed.bin_bytes,
                "text_bytes": 4 * (sealed.tokens - sealed.documents),
                "checksum": sealed.bin_checksum,
                "index_checksum": sealed.idx_checksum,
            }
        )
    return entries
