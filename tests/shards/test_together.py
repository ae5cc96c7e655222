"""Small batches are handled together, and no byte tells which were."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest
import zstandard
from tokenizing import contents, recipe, run

from pretok.base.errors import PartitionsFailed
from pretok.base.execute import Engine
from pretok.shards import encode
from pretok.shards.encode import join
from pretok.shards.manifest import load_manifest
from pretok.tokenizer.encoder import Encoder
from pretok.tokenizer.reference import Unencodable


def test_shards_ledgers_and_rejects_do_not_depend_on_what_was_handled_together(
    tmp_path: Path, vocab_dir: Path, here: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Small files of none, one and several documents, with rejects; some hold much more text than was planned."""
    for number in range(200):
        documents: list[object] = [f"Il documento {i} del file {number}." for i in range(number % 4)]
        documents += ["", 7] if number % 5 == 0 else []
        # Each fails alone: what names one document at a time does not end in a recursion.
        documents += ["UNENCODABLE uno", "UNENCODABLE due"] if number in (17, 40) else []
        documents += ["molto testo che si ripete " * 40]
        lines = [json.dumps({"text": text, "url": f"u{number}"}) + "\n" for text in documents]
        (tmp_path / f"{number:03d}.jsonl.zst").write_bytes(zstandard.compress("".join(lines).encode()))
    real, calls = Encoder.encode, []

    def encoded(self: Encoder, texts: pa.LargeStringArray) -> object:
        bad = [i for i, text in enumerate(texts.to_pylist()) if text.startswith("UNENCODABLE")]
        calls.append(len(texts))
        if bad:
            raise Unencodable(bad[:1], "by no engine")
        return real(self, texts)

    monkeypatch.setattr(Encoder, "encode", encoded)
    found = {}
    for most in (encode.MOST_BATCHES, 1, 7):
        monkeypatch.setattr(encode, "MOST_BATCHES", most)
        calls.clear()
        inputs: dict[str, list[Path | str]] = {"it": [f"{tmp_path}/*.zst"]}
        settings = {"size": 60_000, "max_reject_share": "0.9"}
        made = recipe(tmp_path / str(most), vocab_dir, inputs, ["url:text"], **settings)
        run(made, here)
        found[most] = (contents(made.shards_dir), len(calls))
        names = [shard.prefix.name for shard in load_manifest(made.shards_dir).of("it")]
        assert any(name.endswith("-1") for name in names)  # a partition that filled more than a shard
    first, *others = found.values()
    assert all(other[0] == first[0] for other in others)
    assert first[0]["rejects/it-00000.jsonl"].count(b"unencodable") == 4
    assert first[1] < 0.7 * found[1][1]  # fewer calls: they were, but for those near the end of a shard


def test_rejects_do_not_wait_without_end(
    tmp_path: Path, vocab_dir: Path, here: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lines that are all refused hold no tokens, but memory."""
    (tmp_path / "a.zst").write_bytes(zstandard.compress(b'{"text": "a"}\n' + b"falso\n" * 200))
    monkeypatch.setattr("pretok.read.readers.BATCH_RECORDS", 10)
    monkeypatch.setattr("pretok.shards.encode.MOST_TOKENS", 1000)
    joined: list[int] = []
    monkeypatch.setattr(encode, "join", lambda batches: joined.append(len(batches)) or join(batches))
    with pytest.raises(PartitionsFailed, match="200 of 201"):
        run(recipe(tmp_path / "out", vocab_dir, {"it": [tmp_path / "a.zst"]}), here)
    assert sum(joined) == 21
    assert max(joined) < 5
