"""tokenize against a benchmark: what documents are told, what is rejected, what is reported."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from recording import RecordingConsole
from screened import rejects, rows, write
from tokenizing import recipe, run

from pretok.base.errors import MismatchError
from pretok.base.execute import Engine
from pretok.shards.contamination import contamination_table, found_items
from pretok.shards.manifest import load_manifest
from pretok.steps import tokenize_step


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


def test_documents_are_marked_or_rejected_by_what_they_hold(
    tmp_path: Path, inputs: dict[str, list[Path | str]], items: Path, vocab_dir: Path, here: Engine
) -> None:
    marked = recipe(tmp_path / "marked", vocab_dir, inputs, against=items)
    console = RecordingConsole()
    tokenize_step(marked, here, console)
    assert any("21 items" in text and text.endswith("has 8 words: 1 item") for text in console.notices)
    found = rows(marked, "it")
    assert [row["contaminated_share"] for row in found] == [0.0] * 30 + [1.0] * 10
    names = [None] * 30 + [f"quiz.jsonl:{n + 1}" for n in range(10)]
    assert [row["contaminated_by"] for row in found] == names
    expected = [(f"quiz.jsonl:{n}", 2 if n == 1 else 1) for n in sorted(range(1, 11), key=str)]
    table = contamination_table(load_manifest(marked.shards_dir), marked.sources)
    assert table in console.shown
    assert table is not None
    assert list(table.rows) == [("quiz.jsonl", "21", "1", "10", "10", "1.00")]

    dropped = recipe(tmp_path / "dropped", vocab_dir, inputs, against=items, reject_contaminated="0.5")
    run(dropped, here)
    assert len(rows(dropped, "it")) == 30
    assert [(r["position"], r["reason"], r["detail"]) for r in rejects(dropped, "it")] == [
        (31 + n, "contaminated", f"1.00 of quiz.jsonl:{n + 1}") for n in range(10)
    ]
    assert [reject["position"] for reject in rejects(dropped, "en")] == [1]
    for made in (marked, dropped):  # rejected ones count
        sealed = made.shards_dir / "contamination" / "it.json"
        shutil.copy(sealed, sealed.with_name("it.1.json"))  # left by an append that was not sealed
        counts = found_items(load_manifest(made.shards_dir), made.sources)
        assert [(item.item, item.documents) for item in counts] == expected
        assert not (made.shards_dir / ".state").exists()
    with pytest.raises(MismatchError, match=r"benchmark was '.* and is None"):
        run(recipe(tmp_path / "marked", vocab_dir, inputs), here)
