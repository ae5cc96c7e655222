"""Losses per token and per byte of the validation split, against sums written out."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from mixing import request
from support import needs

torch = needs("torch")
from pretok.base.storage import read_lines
from pretok.shards.manifest import load_manifest
from pretok.stream.mix_job import run_mix
from pretok.tokenizer.vocabulary import tokenizer_data
from tests.support import make_shards
from tests.train_support import add_tokenizer, filled, model_file, tiny_config
from train import loop
from train.model.sizes import model_config

LENGTH = 16


def random_documents(seed: int, count: int, shortest: int, longest: int) -> list[list[int]]:
    rng = np.random.default_rng(seed)
    return [rng.integers(1, 60, size=rng.integers(shortest, longest)).tolist() for _ in range(count)]


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Short documents have more end-of-document tokens: the two sources differ in bytes per token."""
    return make_shards(
        tmp_path_factory.mktemp("shards"),
        {"it": random_documents(0, 20, 20, 90), "en": random_documents(1, 20, 20, 90)},
        val={"it": random_documents(2, 6, 20, 90), "en": random_documents(3, 30, 1, 6)},
        vocab_size=60,
    )


def test_bits_per_byte_are_those_of_a_plain_sum(
    shards: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    loop.train(tiny_config(shards, tmp_path, steps=1, val_every=1, lr=0.0, val_sequences=1000))
    (record,) = read_lines(tmp_path / "run/validation.jsonl")
    model, manifest = filled(model_config(model_file(tmp_path))), load_manifest(shards)
    all_nats = all_bytes = 0.0
    for name in ("it", "en"):
        paths = [shard.bin_path for shard in manifest.of(name, "val")]
        tokens = np.concatenate([np.fromfile(path, "<u2") for path in paths]).astype(np.int64)
        nats, scored = 0.0, 0
        for start in range(0, len(tokens) - LENGTH, LENGTH):
            sequence = torch.from_numpy(tokens[start : start + LENGTH + 1])
            with torch.no_grad():
                logits = model(sequence[None, :-1])[0, :, :60].double()
            chosen = logits.log_softmax(1).gather(1, sequence[1:, None])
            nats, scored = nats - chosen.sum().item(), scored + LENGTH
        ends = int((tokens == 0).sum())
        text_bytes = (
            scored * 4 * (len(tokens) - ends) / len(tokens)
        )  # these shards have 4 bytes a token of text
        assert record["sources"][name] == pytest.approx(nats / scored, rel=1e-5)
        assert record["bits_per_byte"][name] == pytest.approx(nats / math.log(2) / text_bytes, rel=1e-5)
        all_nats, all_bytes = all_nats + nats, all_bytes + text_bytes
    assert record["val_bits_per_byte"] == pytest.approx(all_nats / math.log(2) / all_bytes, rel=1e-5)
    assert record["bits_per_byte"]["en"] > 1.1 * record["bits_per_byte"]["it"]
    line = next(line for line in capsys.readouterr().out.splitlines() if "validation loss" in line)
    assert f"({record['val_bits_per_byte']:.4f} bits per byte)" in line
    assert f"en {record['sources']['en']:.4f} ({record['bits_per_byte']['en']:.4f})" in line


def test_of_conversations_the_learned_tokens_and_their_bytes_count(tmp_path: Path) -> None:
    """Ids say of which kind they are; those from 257 on have two bytes, the end of a document none."""
    rng = np.random.default_rng(0)
    pairs = [(bytes([first]), bytes([second])) for first in range(65, 75) for second in range(97, 107)]

    def documents(count: int) -> list[list[int]]:
        return [rng.integers(1, 357, rng.integers(5, 60)).tolist() for _ in range(count)]

    shards = make_shards(
        tmp_path / "shards", {"chat": documents(20)}, val={"chat": documents(9)}, chats={"chat": 6}
    )
    add_tokenizer(shards, tokenizer_data(".", ["<eod>"], pairs))
    wish = request("320:chat=1", seq_len=LENGTH)
    run_mix(shards, tmp_path / "mix.json", replace(wish, learn={"chat": ["answer", "user"]}))
    (tmp_path / "model").mkdir()
    size = model_file(tmp_path / "model")
    Path(size).write_text(Path(size).read_text().replace("vocab_size = 60", "vocab_size = 1000"))
    settings = {"mix": str(tmp_path / "mix.json"), "seq_len": None, "model": size}
    loop.train(tiny_config(shards, tmp_path, steps=1, val_every=1, lr=0.0, val_sequences=1000, **settings))
    (record,) = read_lines(tmp_path / "run/validation.jsonl")
    model = filled(model_config(size))
    tokens = np.concatenate(
        [np.fromfile(s.bin_path, "<u2") for s in load_manifest(shards).of("chat", "val")]
    ).astype(np.int64)
    nats, scored, text_bytes = 0.0, 0, 0
    for start in range(0, len(tokens) - LENGTH, LENGTH):
        sequence = torch.from_numpy(tokens[start : start + LENGTH + 1])
        with torch.no_grad():
            losses = -model(sequence[None, :-1])[0, :, :1000].double().log_softmax(1)
        for at, target in enumerate(sequence[1:].tolist()):
            if target == 0 or (target - 1) % 7 in (2, 6):
                nats, scored = nats + losses[at, target].item(), scored + 1
                text_bytes += 0 if target == 0 else 1 if target < 257 else 2
    assert 0 < scored < len(tokens) / 2
    assert record["sources"]["chat"] == pytest.approx(nats / scored, rel=1e-5)
    assert record["bits_per_byte"]["chat"] == pytest.approx(nats / math.log(2) / text_bytes, rel=1e-5)
