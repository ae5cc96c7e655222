"""The whole promise of build-vocab --extend on real text: English entries, Italian text that was kept apart.

    PRETOK_CORPUS=FOLDER python -m pytest -m slow tests/vocab/test_extend_corpus.py -s

prints the figures of docs/vocabulary.md; some five minutes on two cores.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from tokenizers import AddedToken, Tokenizer

from pretok.base.storage import read_json, write_json
from pretok.cli import run_command
from pretok.counts.buckets import concatenate
from pretok.counts.counts_file import load_counts
from pretok.counts.weigh import weigh
from pretok.read.batches import from_buffers
from pretok.read.files import read_bytes
from pretok.tokenizer.encoder import Encoder
from pretok.tokenizer.tokenizer_file import to_characters
from pretok.tokenizer.vocabulary import load_vocab

pytestmark = [pytest.mark.corpus, pytest.mark.timeout(1200)]
ADD, OLD, EVERY = 8_000, 32_000, 100
"""One document in EVERY is kept apart: no vocabulary sees it."""
Texts = dict[str, list[str]]


@pytest.fixture(scope="module")
def texts(corpus: Path) -> Texts:
    """The documents of each language."""
    return {
        source: [
            json.loads(line)["text"]
            for path in sorted((corpus / source).glob("*.jsonl.zst"))
            for line in b"".join(read_bytes(str(path), "zstd")).splitlines()
        ]
        for source in ("it", "en")
    }


@pytest.fixture(scope="module")
def work(texts: Texts, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """OUT/old of English, OUT/new that extends it and OUT/scratch of both languages from nothing."""
    out = tmp_path_factory.mktemp("adapt")
    for source, every in texts.items():
        rows = (json.dumps({"text": text}) for i, text in enumerate(every) if i % EVERY)
        (out / f"{source}.jsonl").write_text("\n".join(rows) + "\n")

    def make(name: str, *more: str) -> None:
        assert run_command(["build-vocab", *more, "--out", str(out / name), "--workers", "0"]) == 0

    both = (f"it={out}/it.jsonl", f"en={out}/en.jsonl", "--weights", "it=0.5,en=0.5")
    make("old", both[1], "--vocab-size", str(OLD))
    make("new", *both, "--extend", str(out / "old/vocab"), "--add", str(ADD))
    make("scratch", *both, "--counts", str(out / "new/counts"), "--vocab-size", str(OLD + ADD))
    return out


def encoder(path: Path) -> Callable[[list[str]], list[list[int]]]:
    vocab = load_vocab(path)
    ours = Encoder(vocab.raw.decode(), vocab.eod_id, vocab.size)

    def encode(texts: list[str]) -> list[list[int]]:
        ids, offsets = ours.ids(pa.array(texts, pa.large_string()))
        return [part.tolist() for part in np.split(ids, offsets[1:-1])]

    return encode


def test_ids_of_ten_thousand_documents(texts: Texts, work: Path) -> None:
    """They equal those of tokenizers and, where no new entry occurs, the old ones."""
    chosen = [text[:2000] for source in texts for text in texts[source][:5000]]
    assert len(chosen) == 10_000
    theirs, old = (Tokenizer.from_file(str(work / name / "vocab/tokenizer.json")) for name in ("new", "old"))
    for tokenizer in (theirs, old):
        tokenizer.encode_special_tokens = True
    found = encoder(work / "new/vocab")(chosen)
    assert found == [e.ids for e in theirs.encode_batch_fast(chosen, add_special_tokens=False)]
    same = [(text, ids) for text, ids in zip(chosen, found, strict=True) if max(ids, default=0) < OLD]
    print(f"{len(same)} of 10,000 documents have no new entry")
    assert len(same) > 1000
    plain = old.encode_batch_fast([text for text, _ in same], add_special_tokens=False)
    assert [e.ids for e in plain] == [ids for _, ids in same]


def test_italian_takes_a_third_fewer_tokens(texts: Texts, work: Path, tmp_path: Path) -> None:
    apart = {source: every[::EVERY] for source, every in texts.items()}
    size = {source: sum(len(text.encode()) for text in every) for source, every in apart.items()}
    cut = {name: encoder(work / name / "vocab") for name in ("old", "new", "scratch")}

    # Naive appending: the most frequent words that are no entries yet, without merges or as added tokens.
    data = read_json(work / "old/vocab/tokenizer.json")
    old = Tokenizer.from_str(json.dumps(data))
    counts = load_counts(work / "new/counts")
    italian = {name: int(name == "it") for name in counts.sources}
    words = concatenate([part for part, _ in weigh(counts.buckets, italian, 1)])
    frequent = np.argsort(-words.counts, kind="stable")[: 3 * (OLD + ADD)]
    spelled = from_buffers(words.data, words.offsets).take(frequent).to_pylist()
    entries = data["model"]["vocab"]
    named = [word for word in spelled if to_characters(word.encode()) not in entries][:ADD]
    assert len(named) == ADD
    entries |= {to_characters(word.encode()): OLD + i for i, word in enumerate(named)}
    (tmp_path / "appended").mkdir()
    write_json(tmp_path / "appended/tokenizer.json", data)
    cut["appended"] = encoder(tmp_path / "appended")
    old.add_tokens([AddedToken(word, normalized=False) for word in named])
    cut["added"] = lambda every: [e.ids for e in old.encode_batch_fast(every, add_special_tokens=False)]

    tokens = {
        name: {source: sum(map(len, encode(apart[source]))) for source in apart}
        for name, encode in cut.items()
    }
    for name, found in tokens.items():
        each = (f"{source} {n:,} tokens, {size[source] / n:.3f} bytes a token" for source, n in found.items())
        print(f"{name:>9}: {', '.join(each)}")
    mix = {name: 2 / sum(n / size[source] for source, n in found.items()) for name, found in tokens.items()}
    print(f"bytes per token of the mix: {mix}")
    assert tokens["new"]["it"] < 0.7 * tokens["old"]["it"]
    assert tokens["new"]["it"] < tokens["added"]["it"] < tokens["old"]["it"]
    assert tokens["new"]["en"] <= tokens["old"]["en"] < tokens["added"]["en"]
    assert tokens["appended"] == tokens["old"]  # no text reaches what no merge makes
    assert mix["new"] > 0.95 * mix["scratch"]
