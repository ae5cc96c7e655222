"""The figures that decide on a vocabulary, against the texts themselves read by `tokenizers`."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest
from counting import documents, recipe
from recording import RecordingConsole
from tokenizers import Tokenizer

from pretok.base.console import NO_CONSOLE, Table
from pretok.base.execute import Engine
from pretok.base.records import to_json
from pretok.tokenizer.vocabulary import load_vocab
from pretok.vocab.build_vocab_job import run_build_vocab
from pretok.vocab.counts.counts_file import load_counts
from pretok.vocab.report import sources_table
from pretok.vocab.report_file import MIX

SIZE = 900
SHARES = {"it": 0.9, "en": 0.1}
WEIGHTS = {"it": "0.9", "en": "0.1"}


pytestmark = pytest.mark.usefixtures("few_buckets")


def test_every_figure_of_the_weighted_mix(folder: Path, here: Engine) -> None:
    made = recipe(folder, size=SIZE, weights=WEIGHTS, holdout="0")
    report = to_json(run_build_vocab(made, here, NO_CONSOLE))
    figures = report["sizes"][str(SIZE)]
    tokenizer = Tokenizer.from_file(str(made.vocab_dir / "tokenizer.json"))
    tokenizer.encode_special_tokens = True
    vocab = load_vocab(made.vocab_dir)
    names = {i: vocab.token_bytes(i) for i in range(vocab.size)}
    texts = {source: documents(folder, source) for source in SHARES}
    there = {source: sum(len(text.encode()) for text in some) for source, some in texts.items()}
    uses: Counter[int] = Counter()  # in the mix
    sums: Counter[str] = Counter()
    for source, share in SHARES.items():
        ids = [i for text in texts[source] for i in tokenizer.encode(text).ids]
        cut = tokenizer.pre_tokenizer.pre_tokenize_str
        words = [text[a:b] for text in texts[source] for _, (a, b) in cut(text)]
        size = there[source]
        scale = share * sum(there.values()) / size
        for i in ids:
            uses[i] += scale
        row = figures[source]
        assert (row["tokens"], row["bytes"]) == (len(ids), size)
        assert report["sources"][source]["weight"] == pytest.approx(share)
        assert report["sources"][source]["distinct_words"] == len({*words})
        assert row["bytes_per_token"] == pytest.approx(size / len(ids), abs=1e-4)
        assert row["tokens_per_word"] == pytest.approx(len(ids) / len(words), abs=1e-4)
        sums.update(size=scale * size, words=scale * len(words), tokens=scale * len(ids))
    text = figures[MIX]
    assert text["tokens"] == round(sums["tokens"])
    assert text["tokens_per_word"] == pytest.approx(sums["tokens"] / sums["words"], abs=1e-4)
    assert text["bytes_per_token"] == pytest.approx(sums["size"] / sums["tokens"], abs=1e-4)
    single = sum(n for i, n in uses.items() if len(names[i]) == 1)
    split = sum(n for i, n in uses.items() if len(names[i]) == 1 and names[i] >= b"\x80")
    assert text["single_bytes"] == pytest.approx(single / sums["size"], abs=1e-6)
    assert text["split_characters"] == pytest.approx(split / sums["size"], abs=1e-6)
    learned = [i for i, name in names.items() if len(name) > 1 and i >= 64]
    rare = {str(n): sum(uses[i] < n - 1e-6 for i in learned) for n in (1, 100, 1_000, 10_000)}
    assert report["rare"][str(SIZE)] == rare
    listed = [entry["id"] for entry in report["rarest"]]
    assert sorted(listed) == sorted(sorted(i for i in learned if uses[i] < 1_000)[: len(listed)])
    assert [uses[i] for i in listed] == pytest.approx(sorted(uses[i] for i in listed))


def test_the_tables_show_the_report(folder: Path, here: Engine) -> None:
    console = RecordingConsole()
    report = run_build_vocab(recipe(folder, size=SIZE, sizes=(700,)), here, console)
    sizes, heldout = (table for table in console.details if isinstance(table, Table))
    for row, (size, texts) in zip(sizes.rows, report.sizes.items(), strict=True):
        assert row[:3] == (size, f"{texts[MIX].tokens:,}", str(texts[MIX].bytes_per_token))
        assert row[-4:] == tuple(f"{n:,}" for n in report.rare[size].values())
    assert [row[0] for row in heldout.rows] == ["it, this", "en, this", f"{MIX}, this"]
    rows = sources_table(report).rows
    assert [row[:2] for row in rows] == [
        (name, f"{row.tokens:,}") for name, row in report.sizes[str(SIZE)].items()
    ]


def test_other_tokenizers_on_the_weighted_mix(folder: Path, here: Engine) -> None:
    small = recipe(folder, "small", size=700, weights={"it": "0.02", "en": "0.98"})
    run_build_vocab(small, here, NO_CONSOLE)
    other = small.vocab_dir / "tokenizer.json"
    made = recipe(folder, size=SIZE, weights=WEIGHTS)
    report = run_build_vocab(made, here, NO_CONSOLE, [other])
    counts = load_counts(made.counts_dir)
    for name, path in (("this", made.vocab_dir / "tokenizer.json"), (str(other), other)):
        tokenizer = Tokenizer.from_file(str(path))
        tokenizer.encode_special_tokens = True
        rates: Counter[int] = Counter()
        spaced = 0.0
        for source, share in SHARES.items():
            texts = counts.heldout_texts(source).to_pylist()
            size = sum(len(text.encode()) for text in texts)
            ids = [i for text in texts for i in tokenizer.encode(text).ids]
            for i in ids:
                rates[i] += share / size
            assert report.sources[source].heldout_documents == len(texts)
            assert (report.compare[name][source].tokens, report.compare[name][source].bytes) == (
                len(ids),
                size,
            )
            words = sum(len(re.findall(r"[^\t\n\f\r ]+", text)) for text in texts)
            spaced += share / size * words
            assert report.compare[name][source].tokens_per_word == pytest.approx(len(ids) / words, abs=1e-4)
        row, total = report.compare[name][MIX], sum(rates.values())
        assert row.bytes_per_token == pytest.approx(1 / total, abs=2e-4)
        assert row.tokens_per_word == pytest.approx(total / spaced, abs=1e-4)
