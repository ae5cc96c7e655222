"""Shards folders without inputs, for benchmarks and tests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from pretok.base.records import replace
from pretok.base.tokens import token_dtype
from pretok.base.tree import Tree, root_of, write_nodes
from pretok.shards.manifest import UNCOUNTED, Manifest, Shard, TokenizerEntry, write_manifest
from pretok.shards.shard_file import index_bytes

DOCUMENT = 1000


def write_random_shards(folder: Path, tokens: int, vocab_size: int = 50_000) -> Path:
    """One source of about `tokens` random tokens in documents of 1,000, without pyarrow; returns `folder`."""
    (folder / "random").mkdir(parents=True)
    dtype = token_dtype(vocab_size)
    documents = -(-tokens // DOCUMENT)
    values = np.random.default_rng(0).integers(1, vocab_size, (documents, DOCUMENT), dtype=np.int32)
    values[:, -1] = 0
    prefix = folder / "random" / "random-00000"
    values.astype(dtype).tofile(prefix.with_suffix(".bin"))
    tree = Tree(prefix.with_suffix(".bin").read_bytes())
    write_nodes(prefix.with_suffix(".bin"), tree.nodes)
    prefix.with_suffix(".idx").write_bytes(index_bytes(np.full(documents, DOCUMENT, np.int32), dtype))
    shard = Shard(
        "random/random-00000.bin",
        "random",
        "train",
        documents * DOCUMENT,
        documents,
        documents * DOCUMENT * dtype.itemsize,
        4 * documents * DOCUMENT,
        root=tree.hexdigest(),
        index_root=root_of(prefix.with_suffix(".idx")),
    )
    write_manifest(folder, bare_manifest(vocab_size, [shard]))
    return folder


def write_documents(folder: Path, documents: int, mean: int, shards: int, chat: bool = False) -> Path:
    """One source `web` of documents with log-normal lengths and ledgers that keep id and url; returns `folder`. chat:
    a third of each document, in runs of 20 tokens, is of the kind that an assistant writes."""

    from pretok.read.kept import KeptColumn
    from pretok.shards.ledger import ledger_rows, schema_with
    from pretok.shards.writer import ShardWriter

    random, each = np.random.default_rng(0), -(-documents // shards)
    schema = schema_with([KeptColumn("id", "id", "text"), KeptColumn("url", "url", "text")])
    entries, files = [], []
    for number in range(shards):
        numbers = np.arange(number * each, (number + 1) * each)
        drawn = random.lognormal(np.log(mean) - 0.5, 1.0, each)
        lengths = np.clip(drawn, 2, 1 << 20).astype(np.int32)
        ids = random.integers(1, 50_000, lengths.sum(), dtype=np.uint16)
        ids[np.cumsum(lengths) - 1] = 0
        kinds = (np.arange(len(ids)) // 20 % 3 == 0).astype(np.uint8) * 6 if chat else None
        columns = {
            "file": ["web.jsonl"] * each,
            "start": np.zeros(each, np.int64),
            "record": numbers,
            "tokens": lengths,
            "bytes": 4 * lengths,
            "hash": np.stack([numbers.astype(np.uint64), random.integers(0, 2**63, each, np.uint64)], axis=1),
            "id": [f"document-{n}" for n in numbers],
            "url": [f"https://example.org/a/page/{n}" for n in numbers],
        }
        rows = ledger_rows(columns, schema)
        with ShardWriter(folder / "web" / f"web-{number:05d}", np.dtype("<u2"), schema) as writer:
            writer.append(ids, lengths, kinds, rows)
            entry, beside = writer.seal("web", "train")
        entries.append(entry)
        files += beside
    write_manifest(folder, replace(bare_manifest(50_000, entries), side_files=tuple(files)))
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
