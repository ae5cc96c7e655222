"""build-vocab with superwords: what it makes, continues, refuses and reports."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import zstandard
from counting import recipe, write_lines
from telling import Told
from tokenizers import Tokenizer

from pretok.base.console import SILENT, Console
from pretok.base.errors import MismatchError, Stopped, UsageError
from pretok.config import make_recipe
from pretok.counts.counts_file import CorpusCounts, load_counts
from pretok.counts.job import run_count
from pretok.read.sample import sample_path
from pretok.superwords.chains import train_superwords
from pretok.superwords.job import check_superwords
from pretok.tokenizer.vocabulary import load_vocab
from pretok.vocab.bpe import Merges
from pretok.vocab.job import run_build_vocab

pytestmark = pytest.mark.usefixtures("few_buckets")


@pytest.fixture
def few_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """The report's comparisons cost more than all else on small texts."""
    monkeypatch.setattr("pretok.superwords.job.ROWS", (0, 100, 300))
    monkeypatch.setattr("pretok.vocab.job.OTHER_SIZES", ())


def build(tmp_path: Path, name: str, engine: Any, console: Console = SILENT, **settings: Any) -> Path:
    sources = {language: {"inputs": [str(sample_path(language))]} for language in ("it", "en")}
    vocab = {"size": 1200, "superwords": 200, "holdout": 0.1, "weights": {"it": 0.8, "en": 0.2}, **settings}
    data = {
        "out": str(tmp_path / name),
        "sources": sources,
        "vocab": vocab,
        "mix": {"tokens": "1M", "weights": vocab["weights"] or "natural"},
    }
    recipe = make_recipe(data, "test")
    run_build_vocab(recipe, engine, console)
    return recipe.vocab_dir


@pytest.mark.usefixtures("few_rows")
def test_build_vocab_with_superwords(tmp_path: Path, here: Any) -> None:
    folder = build(tmp_path, "one", here)
    vocab = load_vocab(folder)
    assert vocab.size == 1200
    report = json.loads((folder / "report.json").read_text())
    section = report["superwords"]
    assert (section["entries"], section["words"]) == (200, 1000)
    assert report["vocabulary"]["fingerprint"] == vocab.fingerprint
    assert list(section["heldout_tokens"]) == ["plain", "0", "100", "200", "300"]
    for name in ("it", "en"):
        tokens = [row[name] for row in section["heldout_tokens"].values()]
        assert tokens[1:] == sorted(tokens[1:], reverse=True)  # more superwords never cost
        assert tokens[3] == report["compare"]["this"][name]["tokens"]
    plain, joined_rows = section["heldout_tokens"]["plain"], section["heldout_tokens"]["200"]
    worth = 0.8 * plain["it"] / joined_rows["it"] + 0.2 * plain["en"] / joined_rows["en"]
    assert section["budget"] == {"tokens": 1_000_000, "plain_tokens": round(1_000_000 * worth)}
    assert section["most_used"][0]["share"] > section["most_used"][-1]["share"] > 0
    assert not (folder / ".state").exists()
    again = build(tmp_path, "two", here)
    assert (again / "tokenizer.json").read_bytes() == (folder / "tokenizer.json").read_bytes()
    small = build(tmp_path, "three", here, superword_sample=40_000)
    assert (small / "tokenizer.json").read_bytes() != (folder / "tokenizer.json").read_bytes()
    assert (
        sum(json.loads((small / "report.json").read_text())["superwords"]["sample_bytes"].values()) < 60_000
    )


@pytest.mark.slow
@pytest.mark.usefixtures("few_rows")
@pytest.mark.parametrize("weights", [{"it": 0.9, "en": 0.1}, {"it": 0.02, "en": 0.98}, {}])
def test_figures_of_the_mix_weigh_the_sources_as_training_does(
    tmp_path: Path, here: Any, weights: dict[str, float]
) -> None:
    told = Told()
    folder = build(tmp_path, "one", here, told, weights=weights)
    report = json.loads((folder / "report.json").read_text())
    counts = load_counts(tmp_path / "one" / "counts")
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    sizes = {name: counts.of(name).bytes for name in ("it", "en")}
    parts = {name: weights.get(name, sizes[name] / sum(sizes.values())) for name in sizes}
    rates: Counter[int] = Counter()  # uses of each id in one byte of the mix
    for name, part in parts.items():
        texts = counts.heldout_texts(name).to_pylist()
        size = sum(len(text.encode()) for text in texts)
        for text in texts:
            for i in tokenizer.encode(text).ids:
                rates[i] += part / size
    section, total = report["superwords"], sum(rates.values())
    assert section["share_of_tokens"] == round(sum(rates[i] for i in range(1000, 1200)) / total, 4)
    assert section["mix_bytes_per_token"]["200"] == pytest.approx(1 / total, abs=1e-4)
    assert report["mix"]["compare"]["this"] == pytest.approx(1 / total, abs=1e-4)
    assert report["mix"]["shares"] == pytest.approx(parts, abs=1e-6)
    shares = [entry["share"] for entry in section["most_used"]]
    assert shares == pytest.approx(
        sorted((rates[i] / total for i in range(1000, 1200)), reverse=True)[:50], abs=1e-6
    )
    foremost = section["most_used"][0]
    (shown,) = [text for text in told.details if str(text).startswith("most used in the mix: ")]
    assert shown.startswith(f"most used in the mix: {foremost['token']!r}, ")
    others = {"it": "en", "en": "it"}
    for name, part in weights.items():
        if part >= 0.9:  # its own words come first, whatever the other source has more of
            assert foremost["uses"][name] > foremost["uses"][others[name]]


@pytest.mark.usefixtures("few_rows")
def test_the_report_is_shown_when_it_is_made_and_not_again(tmp_path: Path, here: Any) -> None:
    first, second = Told(), Told()
    build(tmp_path, "one", here, first)
    assert any(text.startswith("vocabulary: 1,200 entries from ") for text in first.notices)
    assert first.details
    folder = build(tmp_path, "one", here, second)
    assert second.notices == [f"the vocabulary in {folder} is there and unchanged"]
    assert not second.details


@pytest.mark.slow
@pytest.mark.usefixtures("few_rows")
def test_a_stopped_sample_is_continued(tmp_path: Path, here: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = build(tmp_path, "whole", here)

    def stop(*_: Any) -> None:
        raise Stopped("stopped")

    with monkeypatch.context() as patch:
        patch.setattr("pretok.superwords.job.train_superwords", stop)
        with pytest.raises(Stopped):
            build(tmp_path, "part", here)
    files = sorted((tmp_path / "part").rglob("*.npy"))
    assert len(files) == 2
    times = [file.stat().st_mtime_ns for file in files]

    def train(chains: Any, *rest: Any) -> Merges:
        assert [file.stat().st_mtime_ns for file in files] == times
        return train_superwords(chains, *rest)

    monkeypatch.setattr("pretok.superwords.job.train_superwords", train)
    assert (build(tmp_path, "part", here) / "tokenizer.json").read_bytes() == (
        whole / "tokenizer.json"
    ).read_bytes()


def test_superwords_of_other_patterns_and_of_counts_are_refused(tmp_path: Path, here: Any) -> None:
    with pytest.raises(UsageError, match="join words of the pattern cl100k, not gpt2"):
        build(tmp_path, "x", here, pattern="gpt2")
    with pytest.raises(UsageError, match="no room for 1000 superwords"):
        build(tmp_path, "x", here, superwords=1000)
    with pytest.raises(UsageError, match="leave out --counts"):
        check_superwords(
            make_recipe({"out": "x", "sources": {"it": {"inputs": ["x"]}}}, "x").vocab, counted=True
        )


@pytest.mark.usefixtures("few_rows")
def test_a_file_that_changes_between_counting_and_superwords_is_refused(
    tmp_path: Path, here: Any, sample_texts: dict[str, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, texts in sample_texts.items():
        write_lines(tmp_path / "in" / f"{name}.jsonl", texts)
    made = recipe(tmp_path, size=1200, superwords=200)

    def count_then_shrink(*arguments: Any) -> CorpusCounts:
        counts = run_count(*arguments)
        write_lines(tmp_path / "in" / "it.jsonl", sample_texts["it"][:20])
        return counts

    monkeypatch.setattr("pretok.vocab.job.run_count", count_then_shrink)
    with pytest.raises(
        MismatchError, match=r"it\.jsonl: changed since it was planned: it had .* delete the counts"
    ):
        run_build_vocab(made, here, SILENT)
    assert not (made.vocab_dir / "tokenizer.json").exists()


@pytest.mark.usefixtures("few_rows")
def test_damage_that_counting_has_named_stops_no_superwords(
    tmp_path: Path, here: Any, sample_texts: dict[str, list[str]]
) -> None:
    for name, texts in sample_texts.items():
        write_lines(tmp_path / "in" / f"{name}.jsonl", texts)
    path = tmp_path / "in" / "it.jsonl.zst"
    path.write_bytes(zstandard.ZstdCompressor().compress((tmp_path / "in" / "it.jsonl").read_bytes())[:-200])
    inputs = {name: {"inputs": [str(tmp_path / "in" / f"{name}.jsonl*")]} for name in ("it", "en")}
    vocab = {"size": 1200, "superwords": 200}
    made = make_recipe({"out": tmp_path / "out", "sources": inputs, "vocab": vocab}, "test")
    run_build_vocab(made, here, SILENT)
    (failure,) = load_counts(made.counts_dir).failed
    assert failure.file == str(path)
    assert load_vocab(made.vocab_dir).size == 1200


@pytest.mark.slow
@pytest.mark.usefixtures("few_rows")
def test_nested_sizes_have_fewer_superwords(tmp_path: Path, here: Any) -> None:
    whole = build(tmp_path, "whole", here, sizes=[1100])
    alone = build(tmp_path, "alone", here, size=1100, superwords=100)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        assert (whole / "1100" / name).read_bytes() == (alone / name).read_bytes()
