"""Helpers several tests share: small finished shards folders, written by the real writer."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pretok.base.tokens import token_dtype
from pretok.shards.contents import (
    Contents,
    ShardEntry,
    SourceCounts,
    TokenizerEntry,
    count_source,
    shard_entry,
    sum_sources,
)
from pretok.shards.format import ShardWriter
from pretok.shards.manifest import write_manifest

ROOT = Path(__file__).parent.parent
"""The checkout."""
TASK_PATH = os.pathsep.join(
    str(path) for path in (ROOT, ROOT / "tests", ROOT / "tests" / "base", ROOT / "tests" / "shards")
)
"""What another process needs as PYTHONPATH to find the tasks that tests define."""
SPECIAL = ("<|endoftext|>", "<|pad|>", "<|reserved_0|>")
"""Special tokens of the small vocabulary of the tests."""
EOD = 0


PACKAGES = {"megatron": "megatron-core", "torch": "torch==2.13.0"}
"""Where a package is not installed by the name of its module."""


def needs(module: str) -> Any:
    """The module, or a skip that says what to install."""
    top = module.split(".")[0]
    package = PACKAGES.get(top, top)
    return pytest.importorskip(module, reason=f"{module} is not installed: pip install {package}")


def make_shards(
    folder: Path,
    sources: Mapping[str, Iterable[Sequence[int]]],
    *,
    val: Mapping[str, Iterable[Sequence[int]]] | None = None,
    vocab_size: int = 1000,
    documents_per_shard: int = 3,
) -> Path:
    """Write a shards folder with its manifest. Documents come without EOD (id 0), which is added; returns `folder`."""
    shards: list[ShardEntry] = []
    counts: dict[str, SourceCounts] = {}
    dtype = token_dtype(vocab_size)
    for name in sorted(sources):
        entries: list[ShardEntry] = []
        for split, documents in (("train", sources[name]), ("val", (val or {}).get(name, ()))):
            entries += _write_split(folder, name, split, list(documents), dtype, documents_per_shard)
        counts[name] = count_source(entries, sum(entry.documents for entry in entries), {})
        shards += entries
    write_manifest(folder, make_contents(vocab_size, shards, counts))
    return folder


def make_contents(
    vocab_size: int, shards: Sequence[ShardEntry], counts: Mapping[str, SourceCounts]
) -> Contents:
    """The contents of a manifest of shards that no input stands behind."""
    return Contents(
        tokenizer=TokenizerEntry("0" * 32, vocab_size, EOD, token_dtype(vocab_size).name),
        totals=sum_sources(counts.values()),
        sources=dict(counts),
        failed=(),
        shards=tuple(shards),
        side_files=(),
        files=(),
        plans={},
        parts={},
        config={},
        software={},
    )


def _write_split(
    folder: Path,
    name: str,
    split: str,
    documents: list[Sequence[int]],
    dtype: np.dtype[Any],
    documents_per_shard: int,
) -> list[ShardEntry]:
    entries = []
    for number, start in enumerate(range(0, len(documents), documents_per_shard)):
        stem = f"{name}-{number:05d}" if split == "train" else f"{name}-{split}-{number:05d}"
        with ShardWriter(folder / name / stem, dtype) as writer:
            for document in documents[start : start + documents_per_shard]:
                tokens = np.array([*document, EOD], dtype)
                writer.append(tokens, np.array([len(tokens)], np.int32))
            sealed = writer.seal()
        text_bytes = 4 * (sealed.tokens - sealed.documents)
        entries.append(shard_entry(f"{name}/{stem}.bin", name, split, sealed, text_bytes))
    return entries
