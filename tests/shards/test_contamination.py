"""tokenize against a benchmark: what documents are told, what is rejected, what is reported."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from screened import rejects, rows, write
from telling import Told
from tokenizing import recipe, run

from pretok.base.errors import MismatchError
from pretok.base.execute import Engine
from pretok.commands.steps import tokenize_step
from pretok.shards.contamination import contamination_table, found_items


@pytest.fixture(scope="module")
def items(tmp_path_factory: pytest.TempPathFactory, texts: list[str]) -> Path:
    folder = tmp_path_factory.mktemp("benchmark")
    lines = [json.dumps({"question": text[:150], "choices": ["sì", "no"]}) for text in texts[:20]]
    (folder / "quiz.jsonl").write_text("".join(line + "\n" for line in [*lines, '{"question": "che?"}']))
    return folder


@pytest.fixture
def inputs(tmp_path: Path, texts: list[str]) -> dict[str, list[Path | str]]:
    planted = [f"{texts[50]} {texts[n][:150].upper()}, {texts[51]}" for n in range(10)]
    return {
        "it": [write(tmp_path / "in" / "it.jsonl", texts[30:60] + planted)],
        "en": [write(tmp_path / "in" / "en.jsonl", [texts[0].replace(" ", "\n"), *texts[60:90]])],
    }


def test_documents_are_told_what_they_hold(
    tmp_path: Path, inputs: dict[str, list[Path | str]], items: Path, vocab_dir: Path, here: Engine
) -> None:
    made = recipe(tmp_path / "out", vocab_dir, inputs, against=items)
    told = Told()
    tokenize_step(made, here, told)
    assert any("21 items" in text and text.endswith("has 8 words: 1 item") for text in told.notices)
    found = rows(made, "it")
    assert [row["contaminated_share"] for row in found] == [0.0] * 30 + [1.0] * 10
    names = [None] * 30 + [f"quiz.jsonl:{n + 1}" for n in range(10)]
    assert [row["contaminated_by"] for row in found] == names
    held = found_items(made.shards_dir, made.sources)
    assert [(item.item, item.documents) for item in held] == [
        (f"quiz.jsonl:{n}", 2 if n == 1 else 1) for n in sorted(range(1, 11), key=str)
    ]
    assert all(item.grams == item.size for item in held)
    table = contamination_table(made.shards_dir, made.sources)
    assert table is not None
    assert list(table.rows) == [("quiz.jsonl", "21", "1", "10", "10", "1.00")]
    assert table in told.shown
    assert not (made.shards_dir / ".state").exists()


def test_documents_that_hold_too_much_are_rejected(
    tmp_path: Path, inputs: dict[str, list[Path | str]], items: Path, vocab_dir: Path, here: Engine
) -> None:
    made = recipe(tmp_path / "out", vocab_dir, inputs, against=items, reject_contaminated="0.5")
    run(made, here)
    assert len(rows(made, "it")) == 30
    assert [(r["position"], r["reason"], r["detail"]) for r in rejects(made, "it")] == [
        (31 + n, "contaminated", f"1.00 of quiz.jsonl:{n + 1}") for n in range(10)
    ]
    assert [reject["position"] for reject in rejects(made, "en")] == [1]
    assert len(found_items(made.shards_dir, made.sources)) == 10
    _, notices = run(made, here)
    assert any("nothing to do" in notice for notice in notices)
    assert not (made.shards_dir / ".state").exists()


def test_another_benchmark_needs_another_folder(
    tmp_path: Path, inputs: dict[str, list[Path | str]], items: Path, vocab_dir: Path, here: Engine
) -> None:
    run(recipe(tmp_path / "out", vocab_dir, inputs, against=items), here)
    other = tmp_path / "other"
    write(other / "one.jsonl", ["the quick brown fox jumps over the lazy dog"])
    with pytest.raises(MismatchError, match="benchmark was '"):
        run(recipe(tmp_path / "out", vocab_dir, inputs, against=other), here)
    with pytest.raises(MismatchError, match="and is None"):
        run(recipe(tmp_path / "out", vocab_dir, inputs), here)
