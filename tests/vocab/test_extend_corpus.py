"""What build-vocab --extend gains on real text: English entries, Italian text that was kept apart.

    PRETOK_CORPUS=FOLDER python -m pytest -m slow tests/vocab/test_extend_corpus.py -s

prints the tokens of held-out text, as in docs/vocabulary.md; some five minutes on two cores.
"""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest

from pretok.cli import run_command
from pretok.read.files import read_bytes
from pretok.tokenizer.encoder import Encoder
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


def tokens_of(path: Path, texts: list[str]) -> int:
    vocab = load_vocab(path)
    ids, _ = Encoder(vocab).ids(pa.array(texts, pa.large_string()))
    return len(ids)


def test_italian_takes_a_third_fewer_tokens(texts: Texts, work: Path) -> None:
    tokens = {
        name: {source: tokens_of(work / name / "vocab", every[::EVERY]) for source, every in texts.items()}
        for name in ("old", "new", "scratch")
    }
    print(tokens)
    assert tokens["new"]["it"] < 0.7 * tokens["old"]["it"]
    assert tokens["new"]["en"] <= tokens["old"]["en"]
    assert tokens["new"]["it"] < 1.1 * tokens["scratch"]["it"]
