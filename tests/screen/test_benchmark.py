"""What documents hold of benchmark items: against the definition, planted in every spelling, and on novels."""

from __future__ import annotations

import gzip
import itertools
import json
import random
import re
import unicodedata
from collections.abc import Callable
from pathlib import Path

import pytest
import regex
from texts import pack

from pretok.base.errors import UsageError
from pretok.kernels.ngrams import GRAM, SHORTEST
from pretok.screen.benchmark import (
    Benchmark,
    ContaminationFinder,
    ItemCount,
    load_benchmark,
    read_benchmark,
    save_benchmark,
    sum_items,
)


def write_items(folder: Path, **files: list[object]) -> Path:
    for name, items in files.items():
        folder.mkdir(parents=True, exist_ok=True)
        lines = "".join(json.dumps(item, ensure_ascii=False) + "\n" for item in items)
        (folder / f"{name}.jsonl").write_text(lines, encoding="utf-8")
    return folder


def search(finder: ContaminationFinder, texts: list[str]) -> list[tuple[float, str | None]]:
    shares, items = finder.search(*pack(texts))
    names = finder.benchmark.names
    return [(s, names[i] if i >= 0 else None) for s, i in zip(shares.tolist(), items.tolist(), strict=True)]


def sentence(rng: random.Random, words: int) -> str:
    return " ".join("".join(rng.choices("aeionrtlsc", k=rng.randint(1, 3))) for _ in range(words))


def grams_of(text: str) -> list[tuple[str, ...]]:
    words = text.lower().split()
    if SHORTEST <= len(words) < GRAM:
        return [tuple(words)]
    return [tuple(words[i : i + GRAM]) for i in range(len(words) - GRAM + 1)]


def test_shares_are_those_of_the_definition(tmp_path: Path) -> None:
    """Random items that share passages, with documents made of parts of them; every share and count by brute force."""
    rng = random.Random(0)
    pool = [sentence(rng, rng.choice([3, 8, 12, 13, 14, 30])) for _ in range(40)]
    items = [{"q": rng.choice(pool), "c": rng.choices(pool, k=rng.randint(0, 3)), "n": 3} for _ in range(60)]
    documents = []
    for _ in range(200):
        parts = [rng.choice(pool).split() for _ in range(rng.randint(0, 4))]
        cut = [" ".join(part[rng.randint(0, 3) : rng.randint(8, 40)]) for part in parts]
        documents.append(" ".join([sentence(rng, rng.randint(0, 9)), *cut]))
    finder = ContaminationFinder(read_benchmark(write_items(tmp_path / "b", a=items[:25], z=items[25:])))
    names = [f"a.jsonl:{n + 1}" for n in range(25)] + [f"z.jsonl:{n + 1}" for n in range(35)]
    wanted = [[gram for text in (item["q"], *item["c"]) for gram in grams_of(text)] for item in items]
    found = {name: [0, 0] for name in names}
    expected: list[tuple[float, str | None]] = []
    for document in documents:
        words = document.split()
        held = {tuple(words[i : i + n]) for n in range(SHORTEST, GRAM + 1) for i in range(len(words) - n + 1)}
        counts = [sum(gram in held for gram in grams) for grams in wanted]
        shares = [count / max(len(grams), 1) for count, grams in zip(counts, wanted, strict=True)]
        best = max(range(len(items)), key=lambda item: (shares[item], -item))
        expected.append((shares[best], names[best]) if shares[best] else (0.0, None))
        for name, count in zip(names, counts, strict=True):
            found[name] = [found[name][0] + (count > 0), max(found[name][1], count)]
    assert search(finder, documents[:90]) + search(finder, documents[90:]) == expected
    assert len({name for _, name in expected}) > 10
    assert {share for share, _ in expected} > {0.0, 1.0}
    assert finder.take() == tuple(
        ItemCount(name, len(wanted[n]), *found[name]) for n, name in enumerate(names) if found[name][0]
    )
    assert finder.take() == ()
    checkable = [name for name, grams in zip(names, wanted, strict=True) if grams]
    assert finder.benchmark.not_checkable == [name for name in names if name not in checkable]


SPELLINGS: dict[str, Callable[[str], str]] = {
    "verbatim": str,
    "upper case": str.upper,
    "title": str.title,
    "white space": lambda text: re.sub(" ", "  \n\t", text),
    "no-break space": lambda text: text.replace(" ", "\u00a0"),
    "decomposed": lambda text: unicodedata.normalize("NFD", text),
    "compatibility": lambda text: unicodedata.normalize("NFKC", text),
    "no accents": lambda text: regex.sub(r"\p{M}", "", unicodedata.normalize("NFD", text)),
    "typographic": lambda text: text.replace("'", "’").replace('"', "»").replace(".", "…").replace("-", "–"),
    "no punctuation": lambda text: re.sub(r"[^\w\s]|_", " ", text),
}


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_planted_items_are_all_found(
    tmp_path: Path, sample_texts: dict[str, list[str]], spelling: str
) -> None:
    """Recall 1.0: every item stands as a whole in the document it was planted in, however it is spelled there."""
    texts = sample_texts["it"][:80] + sample_texts["en"][:80]
    items = [{"text": " ".join(text.split()[:60])} for text in texts if len(text.split()) > 80]
    others = sample_texts["it"][80:] + sample_texts["en"][80:]
    finder = ContaminationFinder(read_benchmark(write_items(tmp_path, items=items)))
    change = SPELLINGS[spelling]
    beside = itertools.cycle(others)
    planted = [f"{next(beside)[:300]}\n{change(item['text'])}. {others[0][:99]}" for item in items]
    assert len(planted) > 50
    assert [share for share, _ in search(finder, planted)] == [1.0] * len(planted)
    assert sum(share >= 0.5 for share, _ in search(finder, others)) == 0


def test_what_is_counted_for_an_item_adds_up_over_parts() -> None:
    """However documents are divided among tasks."""
    counts = [ItemCount("b:1", 4, 2, 3), ItemCount("a:1", 9, 1, 1), ItemCount("b:1", 4, 5, 2)]
    assert sum_items(counts) == (ItemCount("a:1", 9, 1, 1), ItemCount("b:1", 4, 7, 3))
    assert sum_items(reversed(counts)) == sum_items(counts)


def test_a_benchmark_is_kept_as_a_file(tmp_path: Path) -> None:
    folder = write_items(tmp_path / "b", one=[{"q": "the quick brown fox jumps over the lazy dog"}, "è"])
    (folder / "deeper").mkdir()
    with gzip.open(folder / "deeper" / "two.jsonl.gz", "wt", encoding="utf-8") as file:
        file.write(json.dumps(["la volpe svelta e bruna salta sopra il cane pigro"]) + "\n\n")
    benchmark = read_benchmark(folder)
    assert benchmark.names == ("deeper/two.jsonl.gz:1", "one.jsonl:1", "one.jsonl:2")
    assert benchmark.not_checkable == ["one.jsonl:2"]
    path = tmp_path / "kept.npz"
    save_benchmark(benchmark, path)
    again = load_benchmark(path, benchmark.fingerprint)
    text = ["LA VOLPE SVELTA e bruna, salta sopra il cane pigro; THE quick brown fox"]
    assert search(ContaminationFinder(again), text) == [(1.0, "deeper/two.jsonl.gz:1")]
    write_items(folder, one=[{"q": "the quick brown fox jumps over the lazy cat"}, "è"])
    assert read_benchmark(folder).fingerprint != benchmark.fingerprint


def test_a_folder_that_holds_no_items_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="nowhere is not a folder"):
        read_benchmark(tmp_path / "nowhere")
    with pytest.raises(UsageError, match="holds no file named"):
        read_benchmark(tmp_path)
    write_items(tmp_path, good=["x"])
    (tmp_path / "bad.jsonl").write_text('{"q": 1}\n{"q": \n')
    with pytest.raises(UsageError, match=r"bad\.jsonl, line 2 is not JSON"):
        read_benchmark(tmp_path)


def test_items_and_documents_may_be_nothing(tmp_path: Path) -> None:
    finder = ContaminationFinder(read_benchmark(write_items(tmp_path, items=["too short"])))
    assert isinstance(finder.benchmark, Benchmark)
    assert search(finder, ["too short to be looked for, but this has more words than eight"]) == [(0.0, None)]
    assert search(finder, []) == []
