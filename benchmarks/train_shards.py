"""Shards folders without inputs, also of random tokens, for benchmarks and tests. numpy, xxhash, standard library."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from pretok.base.records import replace
from pretok.base.tokens import token_dtype
from pretok.base.tree import root_of
from pretok.shards.format import index_bytes
from pretok.shards.manifest import UNCOUNTED, Manifest, Shard, TokenizerEntry, write_manifest

DOCUMENT = 1000


def write_random_shards(folder: Path, tokens: int, vocab_size: int = 50_000) -> Path:
    """One source of about `tokens` random tokens in documents of 1,000; returns `folder`."""
    (folder / "random").mkdir(parents=True)
    dtype = token_dtype(vocab_size)
    documents = -(-tokens // DOCUMENT)
    values = np.random.default_rng(0).integers(1, vocab_size, (documents, DOCUMENT), dtype=np.int32)
    values[:, -1] = 0
    prefix = folder / "random" / "random-00000"
    values.astype(dtype).tofile(prefix.with_suffix(".bin"))
    prefix.with_suffix(".idx").write_bytes(index_bytes(np.full(documents, DOCUMENT, np.int32), dtype))
    shard = Shard(
        "random/random-00000.bin",
        "random",
        "train",
        documents * DOCUMENT,
        documents,
        documents * DOCUMENT * dtype.itemsize,
        4 * documents * DOCUMENT,
        root=root_of(prefix.with_suffix(".bin")),
        index_root=root_of(prefix.with_suffix(".idx")),
    )
    write_manifest(folder, bare_manifest(vocab_size, [shard]))
    return folder


def bare_manifest(vocab_size: int, shards: Sequence[Shard], empty: Iterable[str] = ()) -> Manifest:
    """The contents of a manifest of shards that no input stands behind. empty: sources that may have no shard."""
    documents = Counter[str]()
    for shard in shards:
        documents[shard.source] += shard.documents
    names = sorted({*documents, *empty})
    return Manifest(
        tokenizer=TokenizerEntry("0" * 32, vocab_size, 0, token_dtype(vocab_size).name),
        totals=UNCOUNTED,
        sources={name: replace(UNCOUNTED, read=documents[name]) for name in names},
        shards=tuple(shards),
        side_files=(),
        config={},
        software={},
    ).counted()
