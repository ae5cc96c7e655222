"""Small batches are handled together, and no byte tells which were."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest
import zstandard
from tokenizing import contents, run

from pretok.base.errors import PartitionsFailed
from pretok.base.execute import Engine
from pretok.config import Recipe, make_recipe
from pretok.read.batches import TextBatch
from pretok.shards import task
from pretok.shards.batching import JoinedBatches, join
from pretok.shards.manifest import load_manifest
from pretok.tokenizer.encoder import Encoder
from pretok.tokenizer.reference import Unencodable

FILES = 200


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Small files: of none, one and several documents, with rejects; some hold much more text than was planned."""
    folder = tmp_path_factory.mktemp("small")
    for number in range(FILES):
        documents: list[object] = [f"Il documento {i} del file {number}." for i in range(number % 4)]
        documents += ["", 7] if number % 5 == 0 else []
        documents += ["UNENCODABLE qui"] if number in (17, 40) else []
        documents += ["molto testo che si ripete " * 40]
        lines = [json.dumps({"text": text, "url": f"u{number}"}) + "\n" for text in documents]
        data = zstandard.compress("".join(lines).encode())
        (folder / f"{number:03d}.jsonl.zst").write_bytes(data)
    return folder


def recipe(inputs: Path, out: Path, vocab: Path) -> Recipe:
    source = {"inputs": [f"{inputs}/*.zst"], "keep": ["url:text"]}
    shards = {"size": 60_000, "val_fraction": "0.1", "max_reject_share": "0.9"}
    return make_recipe(
        {"out": out, "sources": {"it": source}, "vocab": {"path": vocab}, "shards": shards}, "test"
    )


def test_shards_ledgers_and_rejects_do_not_tell_what_was_handled_together(
    tmp_path: Path, inputs: Path, vocab_dir: Path, here: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    encode, calls = Encoder.encode, []

    def encoded(self: Encoder, texts: pa.LargeStringArray) -> object:
        bad = [i for i, text in enumerate(texts.to_pylist()) if text.startswith("UNENCODABLE")]
        calls.append(len(texts))
        if bad:
            raise Unencodable(bad, "by no engine")
        return encode(self, texts)

    monkeypatch.setattr(Encoder, "encode", encoded)
    found = {}
    for most in (task.MOST_BATCHES, 1, 7):
        monkeypatch.setattr(task, "MOST_BATCHES", most)
        calls.clear()
        made = recipe(inputs, tmp_path / str(most), vocab_dir)
        run(made, here)
        found[most] = (contents(made.shards_dir), len(calls))
        names = [shard.prefix.name for shard in load_manifest(made.shards_dir).of("it")]
        assert any(name.endswith("-1") for name in names)  # a partition that filled more than a shard
    first, *others = found.values()
    assert all(other[0] == first[0] for other in others)
    assert b"unencodable" in first[0]["rejects/it-00000.jsonl"]
    assert first[1] < 0.7 * found[1][1]  # fewer calls: they were, but for those near the end of a shard


def test_rejects_do_not_wait_without_end(
    tmp_path: Path, vocab_dir: Path, here: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lines that are all refused hold no tokens, but memory."""
    (tmp_path / "a.zst").write_bytes(zstandard.compress(b'{"text": "a"}\n' + b"falso\n" * 200))
    monkeypatch.setattr("pretok.read.readers.BATCH_RECORDS", 10)
    monkeypatch.setattr("pretok.shards.task.MOST_TOKENS", 1000)
    joined: list[int] = []

    def count(batches: list[TextBatch]) -> JoinedBatches:
        joined.append(len(batches))
        return join(batches)

    monkeypatch.setattr("pretok.shards.task.join", count)
    with pytest.raises(PartitionsFailed, match="200 of 201"):
        run(recipe(tmp_path, tmp_path / "out", vocab_dir), here)
    assert sum(joined) == 21
    assert max(joined) < 5
