"""What was removed does not come back: in the same source, in another one, in another project."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from mixing import write_segment
from support import needs
from test_golden import GOLDEN
from test_remove import copy_of, remove, removed_tokens, rows_of
from tokenizing import run

import pretok.stream
from pretok.audit.verify_job import run_verify
from pretok.base.console import Silent
from pretok.base.errors import IntegrityError
from pretok.base.execute import Engine
from pretok.cli import run_command
from pretok.config import Recipe, make_recipe
from pretok.removal.job import Request, run_remove
from pretok.shards.manifest import load_manifest
from pretok.stream import audit

GONE = ("a3", "b9", "b5")
"""Of the last the text stands in `a` and in what was appended to it too."""


def recipe(inputs: Path, out: Path, new: list[str], **shards: Any) -> Recipe:
    """The sources of the folder, and what is new: an append to `b`, and a source `c`."""
    sources: dict[str, Any] = {
        name: {"inputs": [str(inputs / f"{name}.jsonl")], "keep": ["id", "url"]} for name in ("a", "b")
    }
    sources["a"]["append"] = [{"inputs": [str(inputs / "more.jsonl")]}]
    if "append" in new:
        sources["b"]["append"] = [{"inputs": [str(out / "again.jsonl")]}]
    if "source" in new:
        sources["c"] = {"inputs": [str(out / "again.jsonl")], "keep": ["id"]}
    common = {"size": 1500, "val_fraction": "0.2", "max_reject_share": "0.5"}
    vocab = {"path": GOLDEN / "tokenizer.json"}
    return make_recipe({"out": out, "sources": sources, "vocab": vocab, "shards": common | shards}, "test")


@pytest.mark.parametrize("new", ["append", "source"])
def test_the_same_texts_are_rejected(removable: Path, tmp_path: Path, here: Engine, new: str) -> None:
    work = copy_of(removable, tmp_path / "work")
    rows = [
        json.loads(line)
        for name in ("b", "a")
        for line in (removable / f"{name}.jsonl").read_text().splitlines()
    ]
    (work / "again.jsonl").write_text(
        "".join(json.dumps({**row, "id": f"new{row['id']}"}) + "\n" for row in rows)
    )
    gone = {row["hash"] for row in rows_of(removable) if row["id"] in GONE}
    remove(work, where=f"id in {GONE}")
    run(recipe(removable, work, [new]), here)
    manifest = load_manifest(work / "shards")
    assert [event.removal is not None for event in manifest.history] == [False, True, False]
    assert manifest.sources["c" if new == "source" else "b"].rejected == {"removed": 4}
    came = [row for row in rows_of(work) if str(row["id"]).startswith("new")]
    assert len(came) == len(rows) - 4
    assert gone.isdisjoint(row["hash"] for row in came)
    rejects = (work / "shards" / "rejects").glob("*.jsonl")
    told = [json.loads(line) for path in rejects for line in path.read_text().splitlines()]
    assert [line["detail"].partition(": ")[2] for line in told] == ["perché sì"] * 4
    assert run_verify(work / "shards", None, here, Silent())[1] == []
    assert manifest.as_of(load_manifest(removable / "shards").fingerprint) is not None


@pytest.mark.parametrize("new", ["append", "source"])
def test_a_list_that_is_gone_lets_nothing_in(removable: Path, tmp_path: Path, here: Engine, new: str) -> None:
    """The manifest says that it is there: neither tokenize nor another removal goes on without it."""
    work = copy_of(removable, tmp_path / "work")
    shutil.copy(removable / "b.jsonl", work / "again.jsonl")
    remove(work, where=f"id in {GONE}")
    before = load_manifest(work / "shards").fingerprint
    kept = (work / "shards" / "removed.parquet").rename(tmp_path / "removed.parquet")
    with pytest.raises(IntegrityError, match=r"removed\.parquet"):
        remove(work, where="id = 'a7'")
    with pytest.raises(IntegrityError, match=r"removed\.parquet"):
        run(recipe(removable, work, [new]), here)
    assert load_manifest(work / "shards").fingerprint == before
    kept.rename(work / "shards" / "removed.parquet")
    run(recipe(removable, work, [new]), here)
    assert load_manifest(work / "shards").sources["c" if new == "source" else "b"].rejected == {"removed": 2}


@pytest.mark.parametrize("duplicates", ["keep", "drop"])
def test_another_project_is_given_the_list(
    removable: Path, tmp_path: Path, here: Engine, duplicates: str
) -> None:
    work = copy_of(removable, tmp_path / "work")
    remove(work, where=f"id in {GONE}")
    other = recipe(
        removable, tmp_path / "other", [], removed=work / "shards" / "removed.parquet", duplicates=duplicates
    )
    run(other, here)
    assert {name: counts.rejected for name, counts in load_manifest(other.shards_dir).sources.items()} == {
        "a": {"removed": 3},
        "b": {"removed": 2},
    }
    missing = recipe(removable, tmp_path / "third", [], removed=tmp_path / "nothing.parquet")
    with pytest.raises(IntegrityError, match=r"nothing\.parquet"):
        run(missing, here)
    missing = recipe(removable, tmp_path / "third", [], removed=work / "shards" / "a" / "a.files.parquet")
    with pytest.raises(IntegrityError, match="no list of removed texts"):
        run(missing, here)


def test_disclose_joins_removals_with_a_register(
    removable: Path, tmp_path: Path, here: Engine, capsys: pytest.CaptureFixture[str]
) -> None:
    """By the domain that a reason names; one that names none, or two, is of none."""
    needs("publicsuffixlist")
    work = copy_of(removable, tmp_path / "work")
    reasons = {"letter 3, www.y.org": ("a7", "b14"), "x.org and y.org": ("a8",), "perché sì": ("a9", "b9")}
    for reason, ids in reasons.items():
        run_remove(Request(work / "shards", reason, where=f"id in {ids}".replace(",)", ")")), Silent())
    shutil.copy(removable / "b.jsonl", work / "again.jsonl")
    run(recipe(removable, work, ["append"]), here)
    (work / "reserved.csv").write_text("domain,reserved_from\ny.org,2024-01-01\nx.org,2025-01-01\n")
    (work / "disclosure.toml").write_text('reservations = "reserved.csv"')
    old = pretok.stream.open(removable / "shards", removable / "mix.json")
    trained = tmp_path / "run"
    trained.mkdir()
    (trained / "config.json").write_text(
        json.dumps({"resolved": {"model": {}, "steps": 20}, "model": "tiny"})
    )
    write_segment(trained, work / "shards", old, 8, mix=str(work / "mix.json"))
    line = {"step": 20, "tokens": 20 * 128, "time": "2026-01-01T00:00:00Z"}
    (trained / "metrics.jsonl").write_text(json.dumps(line) + "\n")
    capsys.readouterr()
    assert run_command(["disclose", str(work), "--run", str(trained), "--format", "json"]) == 0
    told = json.loads(capsys.readouterr().out)["processing"]["reservations"]
    found = {one["name"]: one for one in told["domains"]}
    gone = [row for row in rows_of(removable) if row["id"] in ("a7", "b14")]
    tokens = removed_tokens(
        load_manifest(removable / "shards"), rows_of(removable), {row["hash"] for row in gone}
    )
    read = 0
    for position in range(160):
        left = 16  # the last token of a sequence is only predicted
        for path, first, count in audit.pieces(old, position):
            taken = min(count, left)
            read += int(tokens[str(path.relative_to(removable))][first : first + taken].sum())
            left -= taken
    y = found["y.org"]
    assert (y["removed_documents"], y["removed_tokens"]) == (2, sum(row["tokens"] for row in gone))
    assert (y["removed_read_tokens"], y["refused"]) == (read, 1)
    assert read
    assert (found["x.org"]["removed_documents"], found["x.org"]["refused"]) == (0, 0)
    assert told["removed_for_others"] == 3
    left = [row for row in rows_of(work) if row["url"] and row["url"].startswith("https://y.org")]
    assert (y["documents"], y["tokens"]) == (len(left), sum(row["tokens"] for row in left))
    assert told["no_address_documents"] == 0
