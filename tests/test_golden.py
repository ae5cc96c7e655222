"""Shards written today equal those written by the first version, byte for byte: `tests/golden` is never made again.

`documents.jsonl` holds prose, texts that pre-tokenizers get wrong, every escape and every kind of bad line.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard

from pretok.base.execute import Engine
from pretok.base.tell import Silent
from pretok.config import make_recipe
from pretok.shards.job import run_tokenize
from pretok.shards.manifest import load_manifest

GOLDEN = Path(__file__).parent / "golden"
PACKED: dict[str, Callable[[bytes], bytes]] = {
    "jsonl": lambda data: data,
    "jsonl.gz": gzip.compress,
    "jsonl.zst": zstandard.ZstdCompressor().compress,
}


@pytest.mark.parametrize("suffix", PACKED)
def test_shards_are_those_of_the_first_version(tmp_path: Path, here: Engine, suffix: str) -> None:
    path = tmp_path / f"documents.{suffix}"
    path.write_bytes(PACKED[suffix]((GOLDEN / "documents.jsonl").read_bytes()))
    data = {
        "out": tmp_path,
        "sources": {"docs": {"inputs": [str(path)]}},
        "vocab": {"path": GOLDEN / "tokenizer.json"},
        "shards": {"val_fraction": "0.2", "max_reject_share": "0.1"},
    }
    run_tokenize(make_recipe(data, "test"), here, Silent())
    written = {p.name: p.read_bytes() for p in (tmp_path / "shards" / "docs").glob("*.[bi]*")}
    expected = {p.name: p.read_bytes() for p in (GOLDEN / "docs").glob("*.[bi]*")}
    assert sorted(written) == sorted(expected)
    assert [name for name in expected if written[name] != expected[name]] == []
    counts = load_manifest(tmp_path / "shards").data["sources"]["docs"]
    assert counts == json.loads((GOLDEN / "counts.json").read_text(encoding="utf-8"))
