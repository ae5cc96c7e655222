"""`pretok.open` gives what the inputs held: texts, places and counts are compared with what was tokenized."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from counting import write_lines
from support import ROOT
from texts import HARD

import pretok
import pretok.stream
from pretok.base.errors import IntegrityError, UsageError
from pretok.cli import run_command
from pretok.documents.work import Work

TEXTS = {"it": [f"Il mare numero {n}, {HARD[n % len(HARD)]} è salato. " * (1 + n % 7) for n in range(120)]}
TEXTS["en"] = [f"The sea number {n} is salt. " * (1 + n % 5) for n in range(50)]
LICENCES = ("CC0", None, "<script>alert(1)</script>")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, vocab_dir: Path) -> Path:
    """WORK of two sources; `it` keeps a licence, and one of its files is cut in parts that several tasks read."""
    made = tmp_path_factory.mktemp("opened")
    lines = [json.dumps({"text": text, "license": LICENCES[n % 3]}) for n, text in enumerate(TEXTS["it"])]
    lines.insert(7, "{broken")
    (made / "it.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    for part in range(5):
        write_lines(made / "en" / f"{part}.jsonl", TEXTS["en"][10 * part : 10 * part + 10])
    it = {"inputs": made / "it.jsonl", "keep": ["license"]}
    sources, sizes = {"it": it, "en": str(made / "en" / "*.jsonl")}, {"size": 4_000, "val_fraction": "0.1"}
    pretok.tokenize(sources, made / "work", vocab=vocab_dir, workers=0, **sizes)
    pretok.mix(made / "work", seq_len=16)
    return made / "work"


@pytest.fixture
def work(folder: Path) -> Work:
    return pretok.open(folder)


def test_every_text_comes_back_with_its_place(work: Work) -> None:
    columns = ["source", "file", "position", "bytes", "license"]
    rows = work.texts(columns=columns).read_all().to_pylist()
    assert len(rows) == sum(map(len, TEXTS.values())) == work.manifest.totals.documents
    for row in rows:
        italian, number = row["source"] == "it", row["position"] - 1
        number += -(number > 6) if italian else 10 * int(Path(row["file"]).stem)
        assert row["license"] == (LICENCES[number % 3] if italian else None)
        assert row["text"] == TEXTS[row["source"]][number]
        assert row["bytes"] == len(row["text"].encode())
    assert len({(row["source"], row["file"], row["position"]) for row in rows}) == len(rows)


def test_documents_are_numbered_as_inspect_numbers_them(
    work: Work, capsys: pytest.CaptureFixture[str]
) -> None:
    for row in work.documents(source="it", split="val").read_all().to_pylist()[::3]:
        shown = ["inspect", str(work.manifest.folder), "--source", "it", "--split", "val", "--json"]
        assert run_command([*shown, "--doc", str(row["doc"])]) == 0
        found = json.loads(capsys.readouterr().out)
        assert found["file"] == row["file"]
        assert (found["position"], len(found["ids"])) == (row["position"], row["tokens"])


def test_counts_and_rejects_are_those_of_the_manifest(work: Work) -> None:
    table = work.documents().read_pandas()
    for row in work.counts().to_pylist():
        some = table[(table.source == row["source"]) & (table.split == row["split"])]
        sums = (len(some), some.tokens.sum(), some.bytes.sum())
        assert (row["documents"], row["tokens"], row["bytes"]) == sums
    (reject,) = work.rejects().read_all().to_pylist()
    assert (reject["source"], reject["position"], reject["reason"]) == ("it", 8, "malformed_json")
    assert work.rejects("en").read_all().num_rows == 0


def test_the_columns_are_those_of_query(work: Work, capsys: pytest.CaptureFixture[str]) -> None:
    sql = "select * from documents order by source, split, doc"
    assert run_command(["query", str(work.folder), sql, "--format", "json"]) == 0
    asked = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    rows = work.documents().read_all().sort_by([(name, "ascending") for name in ("source", "split", "doc")])
    assert rows.to_pylist() == [{name: row[name] for name in rows.column_names} for row in asked]


def test_joined_columns_stand_beside_the_documents(
    work: Work, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(work.folder, tmp_path / "work")
    hashes = work.documents("it", columns=["hash"]).read_all()["hash"].to_pylist()
    scores = {name: number / 8 for number, name in enumerate(hashes) if number % 3}
    lines = [json.dumps({"hash": name, "score": score}) for name, score in scores.items()]
    (tmp_path / "scores.jsonl").write_text("\n".join(lines) + "\n")
    folder, rows = str(tmp_path / "work"), str(tmp_path / "scores.jsonl")
    assert run_command(["annotate", folder, rows, "--by", "hash", "--name", "quality"]) == 0
    again = pretok.open(tmp_path / "work")
    for row in again.texts("it", columns=["hash", "score", "quality_matched"]).read_all().to_pylist():
        assert (row["score"], row["quality_matched"]) == (scores.get(row["hash"]), row["hash"] in scores)
    test_the_columns_are_those_of_query(again, capsys)


def test_what_is_not_there_is_said_by_name(work: Work) -> None:
    with pytest.raises(UsageError, match="no source 'fr'; the sources are en, it"):
        work.texts("fr")
    with pytest.raises(UsageError, match="no split 'test'"):
        work.documents(split="test")
    with pytest.raises(UsageError, match=r"no column 'x'; the columns are source, .*license"):
        work.documents(columns=["x"])
    with pytest.raises(IntegrityError, match="nowhere does not exist"):
        pretok.open("nowhere")


def test_damaged_tokens_are_named(work: Work, tmp_path: Path) -> None:
    shutil.copytree(work.folder, tmp_path / "work")
    copied = pretok.open(tmp_path / "work")
    shard = copied.manifest.of("en")[0]
    shard.bin_path.write_bytes(b"\xff\xff" + shard.bin_path.read_bytes()[2:])
    with pytest.raises(IntegrityError, match=rf"{shard.bin_path.name} has ids of no token"):
        copied.texts("en").read_all()


def test_importing_pretok_loads_nothing_until_open_is_asked_for() -> None:
    code = "import sys, pretok; assert 'numpy' not in sys.modules; pretok.open; sys.modules['pyarrow']"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)
