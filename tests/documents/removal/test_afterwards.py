"""After a removal: verify shows that nothing is left, trace and disclose know who had read it, runs go on."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mixing import write_segment
from removal_recipe import recipe
from test_remove import command, remove, rows_of
from tokenizing import run

import pretok
import pretok.stream
import pretok.stream.materialize
from pretok.base.console import Console
from pretok.base.errors import PartitionsFailed
from pretok.base.execute import Engine, Report
from pretok.base.storage import write_json
from pretok.cli import run_command
from pretok.documents.audit.trace import open_traced
from pretok.documents.audit.verify_job import run_verify
from pretok.shards.manifest import load_manifest
from pretok.stream.continued import same_until
from pretok.stream.materialize import MaterializeTask, run_materialize, write_shard
from pretok.stream.mix_file import load_mix

GONE = ("a3", "b9", "b5")


@pytest.fixture
def after(work: Path) -> Path:
    """A copy from which documents were removed."""
    remove(work, where=f"id in {GONE}")
    return work


def pretok_line(line: str, code: int = 0) -> None:
    assert run_command(line.split()) == code, line


def test_verify_shows_that_no_text_is_left(after: Path, removable: Path, here: Engine, capsys: Any) -> None:
    """And finds it where somebody brings it back: tokens, a row of a ledger, of annotations; a text that stands again
    under another name."""
    assert run_command(["verify", str(after / "shards"), "--removed", "--workers", "0"]) == 0
    assert "no document has the text of one of the " in capsys.readouterr().err
    assert run_command(["status", str(after)]) == 0
    assert "5 documents of" in (said := " ".join(capsys.readouterr().err.split()))
    assert ": perché sì (fingerprint before" in said
    manifest = load_manifest(after / "shards")
    [removal] = manifest.removals
    brought = {".bin": "holds a text that was removed", ".docs.parquet": "is not marked as removed"}
    for name, (suffix, wanted) in zip(removal.former, brought.items(), strict=False):
        path = (after / "shards" / name).with_suffix(suffix)
        now = path.read_bytes()
        path.write_bytes((removable / path.relative_to(after)).read_bytes())
        problems = run_verify(after / "shards", 0, here, Console(), removed=True)[1]
        assert any(wanted in problem for problem in problems)
        path.write_bytes(now)
    assert run_verify(after / "shards", 0, here, Console(), removed=True)[1] == []


def test_trace_says_which_steps_had_read_it(
    after: Path, removable: Path, tmp_path: Path, capsys: Any
) -> None:
    """A run of two segments: the first before the removal, the second after."""
    rows = rows_of(removable)
    view = pretok.stream.open(after / "shards", after / "mix.json")
    run, mix = tmp_path / "run", str(after / "mix.json")
    write_json(run / "config.json", {"resolved": {"model": {}, "steps": 20}, "model": "tiny"})
    meta = {"step": 20, "progress": {"position": 160}}
    write_json(run / "checkpoints" / "step-00000020" / "meta.json", meta)
    later = {"step": 10, "position": 80, "tokens": 80 * 16, "removals": 1}
    for more in ({}, later):
        lines = (run / "segments.jsonl").read_text() if more else ""
        write_segment(run, after / "shards", view, 8, mix=mix, **more)
        (run / "segments.jsonl").write_text(lines + (run / "segments.jsonl").read_text())
    logged = ({"step": n, "tokens": n * 128, "time": "2026-01-01T00:00:00Z"} for n in (1, 20))
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in logged))
    assert [traced.removals for traced in open_traced(run, None)] == [0, 1]
    gone = {row["hash"]: row for row in rows if row["id"] in GONE}
    readings = []
    for digits in gone:
        capsys.readouterr()
        pretok_line(f"trace {run} --doc {digits} --json")
        readings += json.loads(capsys.readouterr().out)
    assert all(row["removed"] is (row["step"] > 10) for row in readings)
    before = [row for row in readings if not row["removed"]]
    assert 0 < len(before) < len(readings)

    pretok_line(f"disclose {after} {run} --out {tmp_path}/summary.json")
    removed = json.loads((tmp_path / "summary.json").read_text())["processing"]["removed"]
    for source in ("a", "b"):
        tokens = [row["tokens"] for row in rows if row["source"] == source and row["hash"] in gone]
        assert (removed[source]["documents"], removed[source]["tokens"]) == (len(tokens), sum(tokens))
    read = [part["read_before"] for part in removed.values()]
    assert 0 < sum(part["tokens"] for part in read) <= sum(row["tokens"] for row in before)
    documents = {(row["source"], row["document"]) for row in before}
    assert 0 < sum(part["documents"] for part in read) <= len(documents)


def test_a_mix_goes_on_after_a_removal(after: Path) -> None:
    """Mixes prove what they have in common along the chain, a new one reads EOD there, and the same again stays."""
    shards, new = after / "shards", after / "on.json"
    written = (after / "mix.json").read_bytes()
    pretok_line(f"mix {shards} --out {after}/mix.json --weights a=0.5,b=0.5 --seq-len 16")
    assert (after / "mix.json").read_bytes() == written
    for name in ("mix.json", "classes.json"):
        pretok_line(f"mix {shards} --continue {after / name} --at 40 --out {new} --tokens 800")
        earlier, later = load_mix(after / name), load_mix(new)
        assert later.manifest == load_manifest(shards).fingerprint != earlier.manifest
        assert same_until(earlier, later) == 40
        views = [pretok.stream.open(shards, mix) for mix in (after / name, new)]
        np.testing.assert_array_equal(views[0][:40], views[1][:40])
        new.unlink()


def test_mixes_made_before_and_after_prove_that_they_are_the_same(after: Path, removable: Path) -> None:
    """With the chain, not without; and only what was removed may differ."""
    shards = after / "shards"
    before = pretok.stream.open(removable / "shards", seq_len=16)
    then = pretok.stream.open(shards, seq_len=16)
    remove(after, where="id = 'b40'")
    last = pretok.stream.open(shards, seq_len=16)
    assert len({view.fingerprint for view in (before, then, last)}) == 3
    for one in (before, then):
        assert same_until(one.mix, last.mix) == 0
        assert same_until(one.mix, last.mix, last.but_for_removals) == len(last)
    assert same_until(then.mix, last.mix, before.but_for_removals) == 0
    earlier = load_manifest(removable / "shards").history[0].fingerprint
    assert last.but_for_removals[earlier] == earlier  # it grew since: that is another stream


def stopped_after(shards: int) -> Callable[[MaterializeTask, Report], None]:
    left = iter(range(shards))

    def write(task: MaterializeTask, report: Report) -> None:
        if next(left, None) is None:
            raise OSError("disk full")
        write_shard(task, report)

    return write


def test_a_materialized_mix_of_before_is_refused(
    work: Path, tmp_path: Path, here: Engine, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """Finished or not; one of a mix that reads other shards stays, and no folder is said to hold none of the texts."""
    shards, flat, begun = work / "shards", work / "flat", tmp_path / "begun"
    both = f"mix {shards} --weights a=0.5,b=0.5 --seq-len 16 --out {work}/mix.json --workers 0 --materialize"
    only_b = f"mix {shards} --weights b=1 --seq-len 16 --out {work}/b.json --workers 0 --materialize {work}/b"
    pretok_line(f"{both} {flat}")
    pretok_line(only_b)
    monkeypatch.setattr(pretok.stream.materialize, "write_shard", stopped_after(1))
    with pytest.raises(PartitionsFailed):
        run_materialize(shards, work / "mix.json", begun, here, Console(), shard_bytes=1000)
    monkeypatch.undo()
    remove(work, where="id = 'a3'")
    for line, message in (
        (f"{both} {flat}", f"holds this mix with tokens of documents that were since removed from {shards}"),
        (f"{both} {begun}", f"{begun} holds unfinished shards of another plan"),
        (f"verify {flat} --removed --workers 0", "without documents"),
    ):
        capsys.readouterr()
        pretok_line(line, 2)
        assert message in " ".join(capsys.readouterr().err.split())
    pretok_line(only_b)
    mixed = pretok.stream.open(shards, work / "mix.json")[:]
    assert (pretok.stream.open(flat)[:] != mixed).any()
    shutil.rmtree(flat)
    pretok_line(f"{both} {flat}")
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
    removable: Path, work: Path, here: Engine, first: bool
) -> None:
    """Whether something was removed before the mix is made, or after; the shards that are new know nothing of it."""
    shards, old, new = str(work / "shards"), str(work / "old.json"), str(work / "new.json")
    wish = ["--class", "y=b where url like 'https://y%' and removed is null", "--seq-len", "16"]
    wish += ["--weights", "a=0.5,y=0.2,b=0.3"]
    if first:
        remove(work, where="id = 'b9'")
    assert run_command(["mix", shards, "--out", old, *wish]) == 0
    if not first:
        remove(work, where="id = 'b9'")
    shutil.copy(removable / "b.jsonl", work / "again.jsonl")
    run(recipe(removable, work, ("more", "append")), here)
    again = ["--continue", old, "--at", "20", "--tokens", "800"]
    assert run_command(["mix", shards, "--out", new, *again, *wish]) == 0
    held = {path: {entry.name: entry.tokens for entry in load_mix(Path(path)).sources} for path in (old, new)}
    rows = [row for row in rows_of(work) if row["split"] == "train" and row["file"].endswith("again.jsonl")]
    more = sum(row["tokens"] for row in rows if row["url"].startswith("https://y"))
    assert held[old]["y"] == held[new]["y"]
    assert held[new]["y+1"] == more > 0


def test_files_that_hold_texts_too_are_named(removable: Path, work: Path, capsys: Any) -> None:
    (work / "recipe.toml").write_text(
        f'out = "{work}"\n[vocab]\nholdout = "0.9"\n[sources.a]\ninputs = ["{removable}/a.jsonl"]\n'
    )
    pretok_line(f"count {work}/recipe.toml --workers 0")
    pretok_line(f"export {work}/shards --to olmo --out {work}/export --workers 0")
    mix = f"mix {work}/shards --weights a=0.5,b=0.5 --seq-len 16 --out {work}/more.json"
    pretok_line(f"{mix} --materialize {work}/flat --workers 0")
    capsys.readouterr()
    assert command(work, "--where", "source = 'a' and doc < 40", "--dry-run") == 0
    printed = capsys.readouterr().err
    for wanted in ("pretok export again", "--materialize again", "keeps texts", "counted their words"):
        assert wanted in printed
