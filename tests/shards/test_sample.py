"""Documents that `tokenizers` encodes again before a shard counts: how many, and what happens where one differs."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import xxhash
from chatting import write_tokenizer
from tokenizing import contents, run

import pretok
from pretok.base.console import Console
from pretok.base.execute import Engine
from pretok.config import make_recipe
from pretok.documents.audit.verify_job import run_verify
from pretok.read.batches import TextBatch
from pretok.shards import encode
from pretok.shards.encode import JoinedBatches, ShardSamples, encode_splits, join
from pretok.shards.manifest import FILE_NAME, load_manifest
from pretok.tokenizer.encoder import Encoder, FastEngine
from pretok.tokenizer.vocabulary import load_vocab


@pytest.mark.parametrize("form", ["text", "bos", "chat"])
def test_a_shard_of_which_a_document_differs_is_encoded_by_tokenizers(
    form: str,
    sample_texts: dict[str, list[str]],
    vocab_dir: Path,
    tmp_path: Path,
    here: Engine,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All files are those of an engine that does not err, and the manifest and the last notice say so."""
    texts, file = sample_texts["it"][:80], tmp_path / "a.jsonl"
    records: list[dict[str, Any]] = [{"text": text} for text in ["", *texts]]
    source, vocab = {"inputs": [str(file)]}, {"path": str(vocab_dir)}
    if form == "bos":
        vocab["bos"] = "<|reserved_0|>"
    if form == "chat":
        records = [{"messages": [{"role": "assistant", "content": text}]} for text in texts]
        source["messages"] = "messages"
        write_tokenizer(tmp_path / "chat", "qwen3", texts[:40])
        vocab = {"path": str(tmp_path / "chat"), "eod": "<|endoftext|>"}
    file.write_text("".join(json.dumps(record) + "\n" for record in records))
    settings = {"size": 6000, "val_fraction": "0.1", "max_reject_share": "0.1"}
    made = {"sources": {"it": source}, "vocab": vocab, "shards": settings}
    run(make_recipe({"out": tmp_path / "right", **made}, "test"), here)
    right = load_manifest(tmp_path / "right" / "shards")
    assert (shards := len(right.of("it"))) > 1
    assert (right.totals.compared, right.totals.encoded_again) == (shards, ())

    real = FastEngine.encode

    def wrong(self: FastEngine, texts: pa.LargeStringArray) -> tuple[Any, Any]:
        ids, offsets = real(self, texts)
        ids = np.array(ids)
        ids[offsets[1:][np.diff(offsets) > 1] - 1] ^= 1
        return ids, offsets

    monkeypatch.setattr(FastEngine, "encode", wrong)
    _, notices = run(make_recipe({"out": tmp_path / "wrong", **made}, "test"), here)
    found, expected = (contents(tmp_path / name / "shards") for name in ("wrong", "right"))
    assert {**found, FILE_NAME: b""} == {**expected, FILE_NAME: b""}
    manifest = load_manifest(tmp_path / "wrong" / "shards")
    again = manifest.totals.encoded_again
    assert [text.split(":")[0] for text in again] == [Path(shard.path).stem for shard in right.of("it")]
    rows = pretok.open(tmp_path / "wrong").documents("it", columns=["hash"]).read_all()["hash"].to_pylist()
    assert {text.split(f": {file}, hash ")[1] for text in again} <= set(rows)
    assert f"other ids than tokenizers in {shards} partitions" in notices[-1]
    assert again[0] in notices[-1]
    assert run_verify(manifest.folder, None, here, Console())[1] == []


def test_a_share_of_the_documents_is_compared_and_at_least_one_that_is_short(
    vocab_dir: Path, sample_texts: dict[str, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Chosen by their hashes, however they came together."""
    encoder = Encoder(load_vocab(vocab_dir))
    texts = sample_texts["it"][:130]
    keys = [xxhash.xxh64_intdigest(t.encode()) ^ xxhash.xxh64_intdigest(t.encode(), 1) for t in texts]
    compared: list[str] = []

    def encode_again(self: ShardSamples, joined: JoinedBatches, document: int) -> Any:
        compared.append(joined.texts[document].as_py())
        return real(self, joined, document)

    real = ShardSamples._encode
    monkeypatch.setattr(ShardSamples, "_encode", encode_again)

    def chosen(share: float, step: int) -> list[str]:
        monkeypatch.setattr(encode, "SHARE", share)
        compared.clear()
        one = ShardSamples(encoder)
        for at in range(0, len(texts), step):
            column = pa.array(texts[at : at + step], pa.large_string())
            joined = join([TextBatch(0, len(column), len(column), column, np.arange(len(column)))])
            one.add(joined, encode_splits(joined, encoder, Fraction(1, 4), 1)[0], [])
        one.finish_shard()
        assert one.compared == len(compared)
        return sorted(compared)

    for share in (0.05, 0.3):
        expected = sorted(text for text, key in zip(texts, keys, strict=True) if key < share * 2**64)
        assert expected
        assert chosen(share, 10) == chosen(share, 130) == expected
    sizes = [len(text.encode()) for text in texts]
    for short in (max(sizes), sizes[keys.index(min(keys))] - 1):  # of all, and without the lowest hash
        monkeypatch.setattr(encode, "SHORT", short)
        least = min(zip(sizes, keys, texts, strict=True), key=lambda one: (one[0] > short, one[1]))
        assert chosen(0, 7) == chosen(0, 130) == [least[2]]
