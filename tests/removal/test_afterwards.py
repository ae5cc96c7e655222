"""After a removal: verify shows that nothing is left, trace and disclose know who had read it, runs go on."""

from __future__ import annotations

import contextlib
import io
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from mixing import write_segment
from test_refused import recipe
from test_remove import command, copy_of, remove, rows_of
from tokenizing import run

import pretok
import pretok.stream
import pretok.stream.materialize
from pretok.audit.trace import open_traced
from pretok.audit.verify_job import run_verify
from pretok.base.console import Silent
from pretok.base.errors import PartitionsFailed
from pretok.base.execute import Engine, Report
from pretok.cli import run_command
from pretok.shards.manifest import load_manifest
from pretok.stream.continued import same_until
from pretok.stream.materialize import MaterializeTask, run_materialize, write_shard
from pretok.stream.mix_file import load_mix

GONE = ("a3", "b9", "b5")


@pytest.fixture
def work(removable: Path, tmp_path: Path) -> Path:
    work = copy_of(removable, tmp_path / "work")
    remove(work, where=f"id in {GONE}")
    return work


def test_verify_shows_that_no_text_is_left(work: Path, removable: Path, here: Engine, capsys: Any) -> None:
    """And finds it where somebody brings it back: tokens, a row of a ledger, of annotations; a text that stands again
    under another name."""
    assert run_command(["verify", str(work / "shards"), "--removed", "--workers", "0"]) == 0
    assert "no document has the text of one of the " in capsys.readouterr().err
    assert run_command(["status", str(work)]) == 0
    assert "5 documents of" in (said := " ".join(capsys.readouterr().err.split()))
    assert ": perché sì (fingerprint before" in said
    manifest = load_manifest(work / "shards")
    [removal] = manifest.removals
    for name in removal.former:
        for suffix in (".bin", ".docs.parquet"):
            path = (work / "shards" / name).with_suffix(suffix)
            now, old = path.read_bytes(), (removable / path.relative_to(work)).read_bytes()
            path.write_bytes(old)
            problems = run_verify(work / "shards", 0, here, Silent(), removed=True)[1]
            wanted = "holds a text that was removed" if suffix == ".bin" else "is not said to be"
            assert any(wanted in problem for problem in problems)
            path.write_bytes(now)
    assert run_verify(work / "shards", 0, here, Silent(), removed=True)[1] == []


def test_trace_says_which_steps_had_read_it(work: Path, removable: Path, tmp_path: Path) -> None:
    """A run of two segments: the first before the removal, the second after."""
    rows = rows_of(removable)
    view = pretok.stream.open(work / "shards", work / "mix.json")
    run = tmp_path / "run"
    (run / "checkpoints" / "step-00000020").mkdir(parents=True)
    (run / "config.json").write_text(json.dumps({"resolved": {"model": {}, "steps": 20}, "model": "tiny"}))
    (run / "checkpoints" / "step-00000020" / "meta.json").write_text(
        json.dumps({"step": 20, "progress": {"position": 160}})
    )
    write_segment(run, work / "shards", view, 8, mix=str(work / "mix.json"))
    first = (run / "segments.jsonl").read_text()
    write_segment(
        run,
        work / "shards",
        view,
        8,
        mix=str(work / "mix.json"),
        step=10,
        position=80,
        tokens=80 * 16,
        removals=1,
    )
    second = (run / "segments.jsonl").read_text()
    (run / "segments.jsonl").write_text(first + second)
    (run / "metrics.jsonl").write_text(
        "".join(
            json.dumps({"step": n, "tokens": n * 128, "time": "2026-01-01T00:00:00Z"}) + "\n" for n in (1, 20)
        )
    )
    assert [traced.removals for traced in open_traced(run, None)] == [0, 1]
    found: dict[str, list[dict[str, Any]]] = {}
    for name in GONE:
        digits = next(row["hash"] for row in rows if row["id"] == name)
        with contextlib.redirect_stdout(io.StringIO()) as out:
            assert run_command(["trace", str(run), "--doc", digits, "--json"]) == 0
        found[name] = json.loads(out.getvalue())
    told = [row for some in found.values() for row in some]
    assert told
    assert all(row["removed"] is (row["step"] > 10) for row in told)
    assert {row["removed"] for row in told} == {False, True}

    out_file = tmp_path / "summary.json"
    assert (
        run_command(["disclose", str(work), "--run", str(run), "--format", "json", "--out", str(out_file)])
        == 0
    )
    summary = json.loads(out_file.read_text())
    removed = summary["processing"]["removed"]
    before = [row for row in told if not row["removed"]]
    hashes = {row["hash"] for row in rows if row["id"] in GONE}
    for source in ("a", "b"):
        gone = [row for row in rows if row["source"] == source and row["hash"] in hashes]
        assert removed[source]["documents"] == len(gone)
        assert removed[source]["tokens"] == sum(row["tokens"] for row in gone)
    read = sum(part["read_before"]["tokens"] for part in removed.values())
    assert 0 < read <= sum(row["tokens"] for row in before)
    documents = {(row["source"], row["document"]) for row in before}
    assert 0 < sum(part["read_before"]["documents"] for part in removed.values()) <= len(documents)


def test_a_mix_goes_on_after_a_removal(work: Path, removable: Path) -> None:
    """Mixes prove what they have in common along the chain, and a new mix reads EOD there."""
    out = str(work / "on.json")
    shards = str(work / "shards")
    for name in ("mix.json", "classes.json"):
        line = ["mix", shards, "--continue", str(work / name), "--at", "40", "--out", out, "--tokens", "800"]
        assert run_command(line) == 0
        before, after = load_mix(work / name), load_mix(work / "on.json")
        assert after.manifest == load_manifest(work / "shards").fingerprint != before.manifest
        assert same_until(before, after) == 40
        old, new = (pretok.stream.open(shards, work / mix) for mix in (name, "on.json"))
        np.testing.assert_array_equal(old[:40], new[:40])
        (work / "on.json").unlink()


def test_mixes_made_before_and_after_prove_that_they_are_the_same(work: Path, removable: Path) -> None:
    """With the chain, not without; and only what was removed may differ."""
    shards = work / "shards"
    before = pretok.stream.open(removable / "shards", seq_len=16)
    after = pretok.stream.open(shards, seq_len=16)
    remove(work, where="id = 'b40'")
    last = pretok.stream.open(shards, seq_len=16)
    assert len({view.fingerprint for view in (before, after, last)}) == 3
    for one in (before, after):
        assert same_until(one.mix, last.mix) == 0
        assert same_until(one.mix, last.mix, last.but_for_removals) == len(last)
    assert same_until(after.mix, last.mix, before.but_for_removals) == 0
    earlier = load_manifest(removable / "shards").history[0].fingerprint
    assert last.but_for_removals[earlier] == earlier  # it grew since: that is another stream


def test_the_same_mix_again_is_left_as_it_is(work: Path) -> None:
    written = (work / "mix.json").read_bytes()
    line = [
        "mix",
        str(work / "shards"),
        "--out",
        str(work / "mix.json"),
        "--weights",
        "a=0.5,b=0.5",
        "--seq-len",
        "16",
    ]
    assert run_command(line) == 0
    assert (work / "mix.json").read_bytes() == written


def test_removed_texts_decode_to_nothing(work: Path) -> None:
    rows = pretok.open(work).texts(columns=["id", "removed"]).read_all().to_pylist()
    assert len(rows) == 180
    for row in rows:
        assert (row["text"] == "") is (row["removed"] is not None) is (row["id"] is None)
    table = pq.read_table(work / "shards" / "removed.parquet").to_pylist()
    assert [row["removed_reason"] for row in table] == ["perché sì"] * len(GONE)


def stopped_after(shards: int) -> Callable[[MaterializeTask, Report], None]:
    left = iter(range(shards))

    def write(task: MaterializeTask, report: Report) -> None:
        if next(left, None) is None:
            raise OSError("disk full")
        write_shard(task, report)

    return write


def test_a_materialized_mix_of_before_is_refused(
    removable: Path, tmp_path: Path, here: Engine, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """Finished or not; one of a mix that reads other shards stays, and no folder is said to hold none of the texts."""
    work = copy_of(removable, tmp_path / "work")
    shards, flat = work / "shards", work / "flat"
    line = [
        "mix",
        str(shards),
        "--weights",
        "a=0.5,b=0.5",
        "--seq-len",
        "16",
        "--out",
        str(work / "mix.json"),
    ]
    line += ["--workers", "0", "--materialize"]
    only_b = ["mix", str(shards), "--weights", "b=1", "--seq-len", "16", "--out", str(work / "b.json")]
    only_b += ["--workers", "0", "--materialize", str(work / "b")]
    assert run_command([*line, str(flat)]) == 0
    assert run_command(only_b) == 0
    begun = tmp_path / "begun"
    monkeypatch.setattr(pretok.stream.materialize, "write_shard", stopped_after(1))
    with pytest.raises(PartitionsFailed):
        run_materialize(shards, work / "mix.json", begun, here, Silent(), shard_bytes=1000)
    monkeypatch.undo()
    remove(work, where="id = 'a3'")
    assert run_command([*line, str(flat)]) == 2
    assert (
        f"{flat} holds this mix with tokens of documents that were since removed from {shards}"
        in " ".join(capsys.readouterr().err.split())
    )
    assert run_command([*line, str(begun)]) == 2
    assert f"{begun} holds unfinished shards of another plan" in " ".join(capsys.readouterr().err.split())
    assert run_command(only_b) == 0
    assert run_command(["verify", str(flat), "--removed", "--workers", "0"]) == 2
    assert "no document is told from another" in " ".join(capsys.readouterr().err.split())
    mixed = pretok.stream.open(shards, work / "mix.json")[:]
    assert (pretok.stream.open(flat)[:] != mixed).any()
    shutil.rmtree(flat)
    assert run_command([*line, str(flat)]) == 0
    np.testing.assert_array_equal(pretok.stream.open(flat)[:], mixed)


def test_what_was_removed_may_be_asked_for_before(removable: Path, capsys: Any) -> None:
    asked = "select count(*), count(removed), count(removed_reason) from documents"
    capsys.readouterr()
    assert run_command(["query", str(removable), asked, "--format", "csv"]) == 0
    assert capsys.readouterr().out.splitlines()[1] == "180,0,0"
    assert pretok.open(removable).documents(columns=["removed"]).read_all()["removed"].null_count == 180
    assert command(removable, "--where", "removed is not null", "--dry-run") == 0
    assert "nothing was removed" in capsys.readouterr().err


@pytest.mark.parametrize("first", [False, True])
def test_a_class_of_what_is_not_removed_goes_on_after_an_append(
    removable: Path, tmp_path: Path, here: Engine, capsys: Any, first: bool
) -> None:
    """Whether something was removed before the mix is made, or after; the shards that are new know nothing of it."""
    work = copy_of(removable, tmp_path / "work")
    shards, old, new = str(work / "shards"), str(work / "old.json"), str(work / "new.json")
    classes = ["--class", "y=b where url like 'https://y%' and removed is null", "--seq-len", "16"]
    weights = ["--weights", "a=0.5,y=0.2,b=0.3"]
    if first:
        remove(work, where="id = 'b9'")
    assert run_command(["mix", shards, "--out", old, *classes, *weights]) == 0
    if not first:
        remove(work, where="id = 'b9'")
    shutil.copy(removable / "b.jsonl", work / "again.jsonl")
    run(recipe(removable, work, ["append"]), here)
    again = ["--continue", old, "--at", "20", "--tokens", "800"]
    assert run_command(["mix", shards, "--out", new, *again, *classes, *weights]) == 0
    held = {path: {entry.name: entry.tokens for entry in load_mix(Path(path)).sources} for path in (old, new)}
    rows = [row for row in rows_of(work) if row["split"] == "train" and row["file"].endswith("again.jsonl")]
    more = sum(row["tokens"] for row in rows if row["url"].startswith("https://y"))
    assert more
    assert held[old]["y"] == held[new]["y"]
    assert held[new]["y+1"] == more
    assert run_command(["mix", shards, "--class", "y=b where nothing = 1", *weights]) == 2
    told = capsys.readouterr().err
    assert "class y: Referenced column" in told
    assert "Error" not in told


def test_files_that_hold_texts_too_are_named(removable: Path, tmp_path: Path, capsys: Any) -> None:
    work = copy_of(removable, tmp_path / "work")
    shards, here = str(work / "shards"), ["--workers", "0"]
    (work / "recipe.toml").write_text(
        f'out = "{work}"\n[vocab]\nholdout = "0.9"\n[sources.a]\ninputs = ["{removable}/a.jsonl"]\n'
    )
    assert run_command(["count", str(work / "recipe.toml"), *here]) == 0
    assert run_command(["export", shards, "--to", "olmo", "--out", str(work / "export"), *here]) == 0
    line = ["--weights", "a=0.5,b=0.5", "--seq-len", "16", "--out", str(work / "more.json")]
    assert run_command(["mix", shards, *line, "--materialize", str(work / "flat"), *here]) == 0
    capsys.readouterr()
    assert command(work, "--where", "source = 'a' and doc < 40", "--dry-run") == 0
    told = capsys.readouterr().err
    for wanted in (
        "pretok export again",
        "--materialize again",
        "keeps texts to compare tokenizers",
        "counted their words",
    ):
        assert wanted in told
