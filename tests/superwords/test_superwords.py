"""Superwords: ids against `tokenizers`, training against a plain one."""

from __future__ import annotations

import json
import re
import time
from collections import Counter
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import hypothesis
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st
from segment_texts import TRICKY, texts
from telling import Told
from texts import HARD, pack
from tokenizers import Tokenizer

from pretok.audit.verify_job import run_verify
from pretok.base.console import Silent
from pretok.config import make_recipe
from pretok.counts.table import WordTable
from pretok.kernels.pretokenize import PATTERNS, disputed
from pretok.read.batches import buffers
from pretok.read.sample import sample_path
from pretok.shards.job import run_tokenize
from pretok.superwords.chains import BREAK, ChainFinder, train_superwords
from pretok.superwords.encode import SHORT_RUN, SuperwordEngine
from pretok.superwords.segments import BASE, COARSE, COMMA, SEPARATORS, SPACE
from pretok.superwords.stages import Merge, drop_crossing
from pretok.tokenizer.encoder import BatchEncoder, Encoder, choose_engine, fast_engine
from pretok.tokenizer.reference import ReferenceEngine
from pretok.tokenizer.vocabulary import tokenizer_data
from pretok.vocab.bpe import Merges, train_merges
from pretok.vocab.symbols import buffer_of

SPECIAL = ["<|endoftext|>", "<|pad|>"]
SIZE, SUPERWORDS = 700, 300


@dataclass(frozen=True)
class Trained:
    """A superword vocabulary, its two ways of encoding, and what it was trained from."""

    separators: int
    texts: list[str]
    tokens: list[bytes]
    words: list[Merge]
    superwords: Merges
    file: str
    engine: BatchEncoder
    reference: Tokenizer


def pairs_of(merges: Merges) -> list[Merge]:
    return [(merges.tokens[a], merges.tokens[b]) for a, b in merges.pairs.tolist()]


def chains_of(
    texts: list[str], words: list[Merge], tokens: list[bytes], separators: int
) -> npt.NDArray[np.uint32]:
    array = pa.array(texts, pa.large_string())
    stage = ReferenceEngine(json.dumps(tokenizer_data(PATTERNS[BASE], SPECIAL, words)))
    return ChainFinder(tokens, separators).find(*buffers(array), *stage.encode(array))


@pytest.fixture(scope="module", params=SEPARATORS)
def trained(request: pytest.FixtureRequest, sample_texts: dict[str, list[str]]) -> Trained:
    return train(
        request.param, 3 * TRICKY + sample_texts["it"][:40] + sample_texts["en"][:20], SIZE, SUPERWORDS
    )


@pytest.fixture(scope="module")
def crowded() -> Trained:
    """Superwords of six words that can meet in any order."""
    rng = np.random.default_rng(0)
    return train("space", ["".join(rng.choice(SIX, 5000, p=[0.3, 0.2, 0.2, 0.1, 0.1, 0.1]))], 394, 130)


SIX = [" a", " b", " c", " d", " e", " f"]


def train(name: str, texts: list[str], size: int, wanted: int) -> Trained:
    """Stage 1 and stage 2 on the texts."""
    separators = SEPARATORS[name]
    table = WordTable()
    table.add_documents(*pack(texts), np.zeros(len(texts), np.bool_), BASE)
    counted = table.words()
    buffer = buffer_of(counted.data, counted.offsets, counted.counts)
    merges = train_merges(buffer, vocab_size=size - wanted, special_tokens=len(SPECIAL))
    words = drop_crossing(pairs_of(merges), separators)
    tokens = merges.tokens
    chains = chains_of(texts, words, tokens, separators)
    superwords = train_superwords(lambda: iter([chains]), tokens, wanted, 4)
    file = json.dumps(tokenizer_data(COARSE[name], SPECIAL, words + pairs_of(superwords)))
    reference = Tokenizer.from_str(file)
    reference.encode_special_tokens = True
    return Trained(separators, texts, tokens, words, superwords, file, fast_engine(file), reference)


def encode(trained: Trained, text: str) -> list[int]:
    return trained.engine.encode(pa.array([text], pa.large_string()))[0].tolist()


def expected(trained: Trained, text: str) -> list[int]:
    return trained.reference.encode(text, add_special_tokens=False).ids


@given(data=st.data())
def test_ids_are_those_of_tokenizers_and_decode_to_the_text(trained: Trained, data: st.DataObject) -> None:
    text = data.draw(st.one_of(texts, texts_of(trained)))
    hypothesis.assume(not disputed(*pack([text])).any())
    ids = encode(trained, text)
    assert ids == expected(trained, text)
    assert trained.reference.decode(ids, skip_special_tokens=False) == text


def texts_of(trained: Trained) -> st.SearchStrategy[str]:
    """Text made of the words that superwords consist of, so that many merges compete."""
    pieces = sorted({t.decode(errors="ignore") for pair in pairs_of(trained.superwords) for t in pair})
    return st.lists(st.sampled_from(pieces), max_size=60).map("".join)


@pytest.mark.parametrize("text", TRICKY + HARD)
def test_ids_of_tricky_texts(trained: Trained, text: str) -> None:
    assert encode(trained, text) == expected(trained, text)


def test_ids_of_real_text_in_batches(trained: Trained, sample_texts: dict[str, list[str]]) -> None:
    documents = [*sample_texts["it"], "", *sample_texts["en"]]
    ids, borders = trained.engine.encode(pa.array(documents, pa.large_string()).slice(1))
    found = [ids[a:b].tolist() for a, b in pairwise(borders)]
    assert found == [expected(trained, text) for text in documents[1:]]
    assert np.isin(ids, trained.superwords.products).mean() > 0.05  # or nothing was tested


@pytest.mark.parametrize("cut", ["(?=,)", "(?<=,)", "(?= )", "(?<= )"])
def test_no_superword_reaches_over_the_border_of_documents(
    trained: Trained, sample_texts: dict[str, list[str]], cut: str
) -> None:
    documents = re.split(cut, " ".join(sample_texts["it"][:20]))
    ids, borders = trained.engine.encode(pa.array(documents, pa.large_string()))
    found = [ids[a:b].tolist() for a, b in pairwise(borders)]
    assert found == [expected(trained, text) for text in documents]


def test_a_line_without_end_takes_time_in_proportion(trained: Trained) -> None:
    joined_pairs = [(a + b).decode() for a, b in pairs_of(trained.superwords)]
    text = next(t for t in joined_pairs if len(expected(trained, 4 * t)) <= 5) * 200_000
    start = time.process_time()
    ids = encode(trained, text)
    assert time.process_time() - start < 20  # quadratic work would take hours
    assert ids == expected(trained, text)
    assert len(ids) < 250_000


@pytest.mark.parametrize(
    "length", [2, 3, 9, SHORT_RUN - 1, SHORT_RUN, SHORT_RUN + 1, SHORT_RUN + 2, 9 * SHORT_RUN]
)
def test_short_and_long_runs_agree_with_tokenizers(crowded: Trained, length: int) -> None:
    rng = np.random.default_rng(length)
    for _ in range(30):
        text = "".join(rng.choice(SIX, length))
        ids = encode(crowded, text)
        assert ids == expected(crowded, text)
        assert length < SHORT_RUN - 1 or len(ids) <= 0.7 * length


def naive_superwords(
    chains: list[list[int]], tokens: list[bytes], wanted: int, max_words: int
) -> list[Merge]:
    """BPE by the book over chains: the most frequent pair, of equals the one with the smallest ids."""
    tokens = list(tokens)
    weights = [int(token != b",") for token in tokens]
    counts = Counter(map(tuple, chains))
    merges = []
    while len(tokens) < wanted + SIZE - SUPERWORDS:
        pairs: Counter[tuple[int, int]] = Counter()
        for chain, count in counts.items():
            for pair in pairwise(chain):
                if weights[pair[0]] + weights[pair[1]] <= max_words:
                    pairs[pair] += count
        best = min(pairs, key=lambda pair: (-pairs[pair], pair))
        token = tokens[best[0]] + tokens[best[1]]
        merges.append((tokens[best[0]], tokens[best[1]]))
        if token not in tokens:
            tokens.append(token)
            weights.append(weights[best[0]] + weights[best[1]])
        merged: Counter[tuple[int, ...]] = Counter()
        for chain, count in counts.items():
            merged[tuple(replace_pair(list(chain), best, tokens.index(token)))] += count
        counts = merged
    return merges


def replace_pair(chain: list[int], pair: tuple[int, int], product: int) -> list[int]:
    out: list[int] = []
    while chain:
        step = 2 if tuple(chain[:2]) == pair else 1
        out.append(product if step == 2 else chain[0])
        chain = chain[step:]
    return out


@pytest.mark.slow
@pytest.mark.parametrize("max_words", [2, 4])
def test_training_is_bpe_over_chains_however_rare_pairs_are_cut(
    trained: Trained, max_words: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    flat = chains_of(trained.texts, trained.words, trained.tokens, trained.separators)
    plain: list[list[int]] = [[]]
    for i in flat.tolist():
        plain[-1].append(i) if i != BREAK else plain.append([])
    wanted = naive_superwords(plain, trained.tokens, 60, max_words)
    half = int(np.flatnonzero(flat == BREAK)[50]) + 1
    for rare in (1, 1 << 40):  # cut too much, and start again; cut nothing
        monkeypatch.setattr("pretok.superwords.chains.RARE", rare)
        made = train_superwords(lambda: iter([flat[:half], flat[half:]]), trained.tokens, 60, max_words)
        assert pairs_of(made) == wanted


def test_chains_are_the_words_of_a_segment_that_are_one_token(trained: Trained) -> None:
    text = "Il di un, che non; di xqzj la"
    flat = chains_of([text, text], trained.words, trained.tokens, trained.separators).tolist()
    chains = b"|".join(b"/" if i == BREAK else trained.tokens[i] for i in flat).decode()
    joined_by_comma = " di| un|,| che| non|/|" if trained.separators & COMMA else " di| un|/| che| non|/|"
    assert joined_by_comma in chains
    assert flat.count(BREAK) % 2 == 0


def test_merges_that_cross_words_are_dropped_with_what_needs_them() -> None:
    comma, quote = SEPARATORS["space+apostrophe+comma"], "\u2019".encode()
    merges = [
        (b"\xa0", b" "), (b"a", b"b"), (b"\xa0 ", b" "), (b"\xc2", b"\xa0"), (b"\xc2\xa0", b" "), (b",", b"'"),
        (b"a", quote[:1]), (b"ab", quote[:1]), (b"\xbb", b","), (b" ", b" "), (b"'", b"a"), (quote[:1], quote[1:2]),
    ]  # fmt: skip
    assert drop_crossing(merges, comma) == [merges[i] for i in (1, 3, 4, 5, 9, 10, 11)]
    assert drop_crossing(merges[:9], SPACE) == [merges[i] for i in (1, 3, 4, 5, 6, 7, 8)]


@pytest.mark.parametrize("foreign", [(b"a", b"b"), (b"\xa0", b" ")])
def test_other_merges_in_the_wrong_place_fall_back_to_tokenizers(trained: Trained, foreign: Merge) -> None:
    pairs = trained.words + pairs_of(trained.superwords)
    pairs = [p for p in pairs if p != foreign]
    position = len(pairs) if foreign[0] == b"a" else 0
    changed = [*pairs[:position], foreign, *pairs[position:]]
    file = json.dumps(
        tokenizer_data(
            json.loads(trained.file)["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"],
            SPECIAL,
            changed,
        )
    )
    engine, notice = choose_engine(file, ReferenceEngine(file))
    assert isinstance(engine, ReferenceEngine)
    assert "merge" in notice


def test_engine_is_the_fast_one_and_encoder_takes_it(trained: Trained) -> None:
    assert isinstance(trained.engine, SuperwordEngine)
    encoder = Encoder(trained.file, 0, SIZE)
    assert encoder.notice == ""
    documents = ["l'acqua di un \U000323b0 che", "di un, che l'altro"]
    tokens, lengths = encoder.encode(pa.array(documents, pa.large_string()))
    whole = [[*expected(trained, text), 0] for text in documents]
    assert tokens.tolist() == [i for ids in whole for i in ids]
    assert lengths.tolist() == [len(ids) for ids in whole]


def test_tokenize_verify_and_inspect_take_superwords(tmp_path: Path, here: Any, trained: Trained) -> None:
    (tmp_path / "vocab").mkdir()
    (tmp_path / "vocab" / "tokenizer.json").write_text(trained.file)
    data = {
        "out": str(tmp_path),
        "sources": {"it": {"inputs": [str(sample_path("it"))]}},
        "vocab": {"path": str(tmp_path / "vocab"), "eod": SPECIAL[0]},
    }
    told = Told()
    run_tokenize(make_recipe(data, "test"), here, told)
    assert not any("tokenizers instead" in notice for notice in told.notices)
    manifest, problems = run_verify(tmp_path / "shards", None, here, Silent())
    assert problems == []
    texts = [
        json.loads(line)["text"] for line in Path(sample_path("it")).read_text(encoding="utf-8").splitlines()
    ]
    assert manifest.data["totals"]["tokens"] == sum(len(expected(trained, text)) + 1 for text in texts)


@pytest.mark.slow
@pytest.mark.corpus
def test_ids_of_the_corpus(trained: Trained, corpus: Path) -> None:
    for path in sorted(corpus.glob("*/*.jsonl.zst")):
        with path.open("rb") as file:
            lines = zstandard.ZstdDecompressor().stream_reader(file).read(400_000).splitlines()[:-1]
        documents = [json.loads(line)["text"] for line in lines]
        tokens, lengths = Encoder(trained.file, 0, SIZE).encode(pa.array(documents, pa.large_string()))
        found = [ids[:-1].tolist() for ids in np.split(tokens, np.cumsum(lengths)[:-1])]
        assert found == [expected(trained, text) for text in documents]
