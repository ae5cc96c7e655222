"""Documents that `tokenizers` encodes again before a shard counts: how many, and what happens where one differs."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pytest
import xxhash
from chatting import write_tokenizer
from tokenizing import contents, run

from pretok.audit.verify_job import run_verify
from pretok.base.console import Silent
from pretok.base.execute import Engine
from pretok.config import make_recipe
from pretok.read.batches import TextBatch
from pretok.shards import sample
from pretok.shards.batching import encode_splits, join
from pretok.shards.manifest import FILE_NAME, load_manifest
from pretok.shards.sample import Sample
from pretok.tokenizer.encoder import Encoder, FastEngine
from pretok.tokenizer.reference import Unencodable
from pretok.tokenizer.vocabulary import load_vocab


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory, sample_texts: dict[str, list[str]]) -> Path:
    folder = tmp_path_factory.mktemp("sample")
    rows = [{"text": text} for text in ["", *sample_texts["it"][:80]]]
    (folder / "text.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    chats = [
        [{"role": "user", "content": "why?"}, {"role": "assistant", "content": row["text"]}]
        for row in rows[1:]
    ]
    (folder / "chat.jsonl").write_text("".join(json.dumps({"messages": chat}) + "\n" for chat in chats))
    write_tokenizer(folder / "chat", "qwen3", sample_texts["it"][:40])
    return folder


VOCABS: dict[str, dict[str, str]] = {
    "text": {"path": "{vocab}"},
    "bos": {"path": "{vocab}", "bos": "<|reserved_0|>"},
    "chat": {"path": "{inputs}/chat", "eod": "<|endoftext|>"},
}


@pytest.mark.parametrize("form", VOCABS)
def test_a_shard_of_which_a_document_differs_is_encoded_by_tokenizers(
    form: str, inputs: Path, vocab_dir: Path, tmp_path: Path, here: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All files are those of an engine that does not err, and the manifest and the last lines tell."""
    file = inputs / ("chat.jsonl" if form == "chat" else "text.jsonl")
    made = {
        "sources": {"it": {"inputs": [str(file)], **({"messages": "messages"} if form == "chat" else {})}},
        "vocab": {key: value.format(vocab=vocab_dir, inputs=inputs) for key, value in VOCABS[form].items()},
        "shards": {"size": 6000, "val_fraction": "0.1", "max_reject_share": "0.1"},
    }
    run(make_recipe({"out": tmp_path / "right", **made}, "test"), here)
    right = load_manifest(tmp_path / "right" / "shards")
    assert (shards := len(right.of("it"))) > 1
    assert right.totals.compared is not None
    assert (right.totals.compared.documents, right.totals.compared.encoded_again) == (shards, ())

    encode = FastEngine.encode

    def wrong(self: FastEngine, texts: pa.LargeStringArray) -> tuple[Any, Any]:
        ids, offsets = encode(self, texts)
        ids = np.array(ids)
        ids[offsets[1:][np.diff(offsets) > 1] - 1] ^= 1
        return ids, offsets

    monkeypatch.setattr(FastEngine, "encode", wrong)
    _, notices = run(make_recipe({"out": tmp_path / "wrong", **made}, "test"), here)
    left, meant = (contents(tmp_path / name / "shards") for name in ("wrong", "right"))
    assert {**left, FILE_NAME: b""} == {**meant, FILE_NAME: b""}
    found = load_manifest(tmp_path / "wrong" / "shards")
    assert found.totals.compared is not None
    again = found.totals.compared.encoded_again
    assert [one.shard for one in again] == [Path(shard.path).stem for shard in right.of("it")]
    assert f"other ids than tokenizers in {shards} shards" in notices[-1]
    assert f"{again[0].shard}: {file}, line or row {again[0].position}\n" in notices[-1]
    assert run_verify(found.folder, None, here, Silent())[1] == []


def test_documents_that_are_refused_one_after_the_other_are_all_rejects() -> None:
    """Each failing alone: what names one document at a time does not end in a recursion."""

    class Picky:
        def encode(self, texts: pa.LargeStringArray) -> tuple[Any, Any]:
            if bad := [n for n, text in enumerate(texts.to_pylist()) if text.startswith("bad")]:
                raise Unencodable(bad[:1], "it is bad")
            return np.zeros(len(texts), np.uint16), np.ones(len(texts), np.int32)

    column = pa.array(["bad 1", "good", "bad 2", "bad 3"], pa.large_string())
    joined = join([TextBatch(0, 4, 4, column, np.arange(4))])
    encoded, refused = encode_splits(joined, cast("Encoder", Picky()), Fraction(0), 0)
    assert [one.rows.tolist() for one in encoded] == [[1]]
    assert [row for row, _ in refused] == [0, 2, 3]


def test_a_share_of_the_documents_is_compared_and_at_least_one_that_is_short(
    vocab_dir: Path, sample_texts: dict[str, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Chosen by their hashes, however they came together."""
    encoder = Encoder(load_vocab(vocab_dir))
    texts = sample_texts["it"][:130]
    hashes = [
        xxhash.xxh64_intdigest(text.encode()) ^ xxhash.xxh64_intdigest(text.encode(), 1) for text in texts
    ]

    def compared(share: float, step: int) -> tuple[int, int]:
        monkeypatch.setattr(sample, "SHARE", share)
        looked = Sample(encoder)
        for at in range(0, len(texts), step):
            column = pa.array(texts[at : at + step], pa.large_string())
            joined = join([TextBatch(0, len(column), len(column), column, np.arange(len(column)))])
            looked.add(joined, encode_splits(joined, encoder, Fraction(1, 4), 1)[0], [])
        looked.finish()
        return looked.documents, looked.bytes

    for share in (0.05, 0.3):
        chosen = [text for text, key in zip(texts, hashes, strict=True) if key < share * 2**64]
        assert chosen
        assert (
            compared(share, 10) == compared(share, 130) == (len(chosen), sum(len(t.encode()) for t in chosen))
        )
    sizes = [len(text.encode()) for text in texts]
    for short in (max(sizes), sizes[hashes.index(min(hashes))] - 1):  # of all, and not of the lowest hash
        monkeypatch.setattr(sample, "SHORT", short)
        least = min((size > short, key, size) for size, key in zip(sizes, hashes, strict=True))
        assert compared(0, 7) == compared(0, 130) == (1, least[2])
