"""Random tokens as a shards folder, for the benchmarks of the trainer; numpy and the standard library only."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from pretok.manifest import FILE_NAME, FORMAT, VERSION, manifest_fingerprint
from pretok.shard import index_bytes, token_dtype
from pretok.storage import write_json

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
    counts = {"tokens": documents * DOCUMENT, "documents": documents, "bytes": 4 * documents * DOCUMENT}
    shard = {"path": "random/random-00000.bin", "source": "random", "split": "train"}
    data: dict[str, Any] = {
        "format": FORMAT,
        "version": VERSION,
        "tokenizer": {"fingerprint": "", "vocab_size": vocab_size, "eod_id": 0, "dtype": dtype.name},
        "totals": counts,
        "sources": {"random": {**counts, "rejected": {}, "train": counts, "val": dict.fromkeys(counts, 0)}},
        "shards": [{**shard, **counts, "checksum": "", "index_checksum": ""}],
    }
    write_json(folder / FILE_NAME, data | {"fingerprint": manifest_fingerprint(data)})
    return folder
