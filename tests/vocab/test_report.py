"""The figures that decide on a vocabulary, against the texts themselves read by `tokenizers`."""

from __future__ import annotations

import math
import re
from collections import Counter
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from counting import documents, recipe
from telling import Told
from tokenizers import Tokenizer

from pretok.base.console import SILENT, Table
from pretok.base.errors import IntegrityError, UsageError
from pretok.base.execute import Engine
from pretok.base.records import to_json
from pretok.base.storage import read_json, write_json
from pretok.config import Recipe, make_recipe
from pretok.counts.counts_file import load_counts
from pretok.tokenizer.vocabulary import load_vocab
from pretok.vocab.job import run_build_vocab
from pretok.vocab.measure import renyi_efficiency
from pretok.vocab.planned import check_mix, plan_text
from pretok.vocab.records import MIX

SIZE = 900
SHARES = {"it": 0.9, "en": 0.1}


pytestmark = pytest.mark.usefixtures("few_buckets")


@pytest.fixture(autouse=True)
def few_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pretok.vocab.job.OTHER_SIZES", ())


def planned_recipe(folder: Path, mix: dict[str, Any] | None, **vocab: Any) -> Recipe:
    data = recipe(folder, size=SIZE, **vocab).model_dump(exclude_unset=True)
    return make_recipe({**data, "mix": mix} if mix else data, "test")


def names_of(tokenizer: Tokenizer, vocab: Path) -> dict[int, bytes]:
    loaded = load_vocab(vocab)
    return {i: loaded.token_bytes(i) for i in range(loaded.size)}


def words_of(tokenizer: Tokenizer, text: str) -> list[str]:
    return [text[a:b] for _, (a, b) in tokenizer.pre_tokenizer.pre_tokenize_str(text)]


def test_the_planned_mix_weighs_every_figure(folder: Path, here: Engine) -> None:
    made = planned_recipe(folder, {"tokens": "1M", "weights": SHARES}, holdout="0")
    report = to_json(run_build_vocab(made, here, SILENT))
    sizes = report["sizes"][str(SIZE)]
    tokenizer = Tokenizer.from_file(str(made.vocab_dir / "tokenizer.json"))
    tokenizer.encode_special_tokens = True
    names = names_of(tokenizer, made.vocab_dir)
    uses: Counter[int] = Counter()  # in the planned mix
    sums: Counter[str] = Counter()
    for source, share in SHARES.items():
        texts = documents(folder, source)
        ids = [i for text in texts for i in tokenizer.encode(text).ids]
        words = [word for text in texts for word in words_of(tokenizer, text)]
        scale = share * 1_000_000 / len(ids)
        for i in ids:
            uses[i] += scale
        size = sum(len(text.encode()) for text in texts)
        row = sizes["text"][source]
        assert (row["tokens"], row["bytes"]) == (len(ids), size)
        assert row["bytes_per_token"] == pytest.approx(size / len(ids), abs=1e-4)
        assert row["tokens_per_word"] == pytest.approx(len(ids) / len(words), abs=1e-4)
        sums.update(size=scale * size, words=scale * len(words))
    text = sizes["text"][MIX]
    assert text["tokens"] == 1_000_000
    assert text["tokens_per_word"] == pytest.approx(1_000_000 / sums["words"], abs=1e-4)
    assert text["bytes_per_token"] == pytest.approx(sums["size"] / 1_000_000, abs=1e-4)
    single = sum(n for i, n in uses.items() if len(names[i]) == 1)
    split = sum(n for i, n in uses.items() if len(names[i]) == 1 and names[i] >= b"\x80")
    assert text["single_bytes"] == pytest.approx(single / sums["size"], abs=1e-6)
    assert text["split_characters"] == pytest.approx(split / sums["size"], abs=1e-6)
    power = sum((n / 1_000_000) ** 2.5 for n in uses.values())
    assert text["renyi"] == pytest.approx(math.log(power) / -1.5 / math.log(SIZE), abs=1e-4)
    learned = [i for i, name in names.items() if len(name) > 1 and i >= 64]
    assert sizes["rare"] == {str(n): sum(uses[i] < n - 1e-6 for i in learned) for n in (100, 1_000, 10_000)}
    assert sizes["unused"] == sum(not uses[i] for i in learned)
    listed = [entry["id"] for entry in report["rare"]]
    assert sorted(listed) == [i for i in learned if uses[i] < 1_000]
    assert [uses[i] for i in listed] == pytest.approx(sorted(uses[i] for i in listed))


def test_other_proportions_than_those_on_disk_change_the_figures(folder: Path, here: Engine) -> None:
    found = {}
    for name, mix in {"it": {"it": 1.0, "en": 0.0}, "en": {"it": 0.0, "en": 1.0}}.items():
        made = planned_recipe(folder, {"tokens": "1M", "weights": mix})
        made = made.model_copy(update={"out": folder / name})
        report = run_build_vocab(made, here, SILENT)
        text = to_json(report.sizes[str(SIZE)].text)
        assert report.basis == "mix"
        assert text[MIX] == text[name] | {"tokens": 1_000_000, "bytes": text[MIX]["bytes"]}
        found[name] = report.rare
    assert found["it"] != found["en"]
    assert [e.token for e in found["it"] if e.uses == 0] != [e.token for e in found["en"] if e.uses == 0]


@pytest.mark.parametrize(
    ("uses", "expected"), [([1.0] * 8, 1.0), ([5.0] + [0.0] * 7, 0.0), ([0.0] * 8, None)]
)
def test_renyi_efficiency_of_what_is_known(uses: list[float], expected: float | None) -> None:
    assert renyi_efficiency(np.array(uses)) == expected


def test_the_tables_are_details(folder: Path, here: Engine) -> None:
    told = Told()
    text = run_build_vocab(planned_recipe(folder, None), here, told).sizes[str(SIZE)].text[MIX]
    tables = {table.title.split(" (")[0]: table for table in told.details if isinstance(table, Table)}
    assert {"sizes in the planned mix", "bytes per token of held-out texts"} < tables.keys()
    row = tables["sizes in the planned mix"].rows[-1]
    assert row[:3] == (str(SIZE), f"{text.tokens:,}", str(text.bytes_per_token))


def test_other_tokenizers_on_the_planned_mix(folder: Path, here: Engine) -> None:
    small = recipe(folder, "small", size=700, weights={"it": "0.02", "en": "0.98"})
    run_build_vocab(small, here, SILENT)
    other = small.vocab_dir / "tokenizer.json"
    made = planned_recipe(folder, {"tokens": "1M", "weights": SHARES})
    report = run_build_vocab(made, here, SILENT, [other])
    counts = load_counts(made.counts_dir)
    text = report.sizes[str(SIZE)].text
    planned = {name: (text[name].bytes_per_token or 0) * share for name, share in SHARES.items()}
    shares = {name: size / sum(planned.values()) for name, size in planned.items()}
    for name, path in (("this", made.vocab_dir / "tokenizer.json"), (str(other), other)):
        tokenizer = Tokenizer.from_file(str(path))
        tokenizer.encode_special_tokens = True
        rates: Counter[int] = Counter()
        spaced = 0.0
        for source, share in shares.items():
            texts = counts.heldout_texts(source).to_pylist()
            size = sum(len(text.encode()) for text in texts)
            ids = [i for text in texts for i in tokenizer.encode(text).ids]
            for i in ids:
                rates[i] += share / size
            words = sum(len(re.findall(r"[^\t\n\f\r ]+", text)) for text in texts)
            spaced += share / size * words
            assert report.compare[name][source].tokens_per_word == pytest.approx(len(ids) / words, abs=1e-4)
        row, total = report.compare[name][MIX], sum(rates.values())
        assert row.bytes_per_token == pytest.approx(1 / total, abs=2e-4)
        assert row.tokens_per_word == pytest.approx(total / spaced, abs=1e-4)


def test_what_is_planned() -> None:
    sizes, tokens = {"it": 4_000, "en": 8_000}, {"it": 1_000, "en": 2_000}

    def scale(mix: dict[str, Any] | None, sample: str = "1", **vocab: Any) -> tuple[str, list[float]]:
        sources = {name: {"inputs": ["x"]} for name in sizes}
        data = {"out": "x", "sources": sources, "vocab": vocab, **({"mix": mix} if mix else {})}
        basis, found = plan_text(make_recipe(data, "test"), Fraction(sample), sizes, tokens)
        return basis, found.tolist()

    half = {"it": 0.5, "en": 0.5}
    assert scale(None) == ("disk", [1, 1])
    assert scale(None, sample="1/10") == ("disk", [10, 10])
    assert scale(None, weights=half) == ("weights", [1.5, 0.75])  # 12,000 bytes, half of them each
    assert scale({"tokens": 6_000, "weights": half}, weights={"it": 1, "en": 0}) == ("mix", [3, 1.5])
    assert scale({}) == ("disk", [1, 1])
    assert scale({"tokens": "all"}) == ("mix", [1, 1])
    assert scale({"tokens": "all", "weights": {"it": 1}}) == ("mix", [1, 0])
    assert scale({"tokens": "all", "weights": half}) == ("mix", [1, 0.5])  # Italian is the scarcest
    stages = [{"tokens": 500, "weights": {"it": 1}}, {"tokens": "all", "weights": half}]
    assert scale({"stages": stages, "seq_len": 16}) == ("mix", [1, 0.25])


def test_a_mix_of_unknown_sources_is_refused_before_the_work(folder: Path, here: Engine) -> None:
    made = planned_recipe(folder, {"tokens": "1M", "weights": SHARES})
    with pytest.raises(UsageError, match=r"\[mix\] names en, but the sources are it"):
        check_mix(made, ["it"])


def test_a_report_of_another_version_is_refused(folder: Path, here: Engine) -> None:
    made = planned_recipe(folder, None)
    run_build_vocab(made, here, SILENT)
    path = made.vocab_dir / "report.json"
    report = read_json(path)
    del report["words"]["distinct"]
    write_json(path, report)
    with pytest.raises(IntegrityError, match=r"words: lacks the key 'distinct'; .*made by another version"):
        run_build_vocab(made, here, SILENT)
