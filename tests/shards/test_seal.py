"""A manifest that stands is true at every moment: killed at each step that changes a file, looked at, resumed."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

import pytest
import zstandard
from test_golden import GOLDEN
from tokenizing import contents, recipe, run

import pretok.stream
from pretok.audit.totals import stats_of
from pretok.audit.verify_job import run_verify
from pretok.base.console import Silent
from pretok.base.errors import IntegrityError, InternalError, PartitionsFailed
from pretok.base.execute import Engine
from pretok.cli import run_command
from pretok.config import Recipe
from pretok.shards.manifest import FILE_NAME, has_manifest, load_manifest
from pretok.shards.unfinished import unfinished


class Killed(BaseException):
    """The process is gone: from here on it changes nothing more."""


@contextmanager
def killed_after(steps: int) -> Iterator[None]:
    """A process that dies at the step after so many removals and renames."""
    done = 0
    real = {name: getattr(os, name) for name in ("unlink", "replace", "rename", "rmdir")}

    def dying(act: Callable[..., None]) -> Callable[..., None]:
        def step(*args: Any, **options: Any) -> None:
            nonlocal done
            if done >= steps:
                raise Killed
            act(*args, **options)
            done += 1

        return step

    with pytest.MonkeyPatch.context() as patch:
        for name, act in real.items():
            patch.setattr(os, name, dying(act))
        # The lock of a process that died is void; this one lives on, so its lock would not be.
        patch.setattr("pretok.shards.job.hold", lambda folder, what: nullcontext())
        try:
            yield
        except InternalError as error:  # inside of a task, which does not end the process
            raise (Killed if "Killed" in str(error) else error) from None


@pytest.fixture
def inputs(tmp_path: Path) -> tuple[Path, Callable[[], None]]:
    """A folder with a good source and one whose file is cut; and what fixes that, with other documents in it."""
    lines = [json.dumps({"text": f"documento {i} " * 30}).encode() for i in range(400)]
    lines[3] = b"{"
    (tmp_path / "good.jsonl").write_bytes(b"\n".join(lines[:60]))
    packed = zstandard.ZstdCompressor().compress(b"\n".join(lines))
    (tmp_path / "cut.jsonl.zst").write_bytes(packed[:-20])

    def fix() -> None:
        other = b"\n".join([b'{"text": "nuovo"}', *lines[5:200]])  # also fewer: it fills fewer shards
        (tmp_path / "cut.jsonl.zst").write_bytes(zstandard.ZstdCompressor().compress(other))

    return tmp_path, fix


def both(folder: Path, out: Path) -> Recipe:
    sources = {"good": [folder / "good.jsonl"], "it": [folder / "good.jsonl", folder / "cut.jsonl.zst"]}
    return recipe(out, GOLDEN, sources)


def look(shards: Path, here: Engine) -> None:
    """What stands is true, to the last byte; or nothing stands, and that is said."""
    if has_manifest(shards):
        problems = run_verify(shards, 0, here, Silent())[1]
        assert [problem for problem in problems if "not in the manifest" not in problem] == []
        view = pretok.stream.open(shards, seq_len=8)
        assert len(view[:]) == len(view)
    else:
        with pytest.raises(IntegrityError, match="no finished shards"):
            pretok.stream.open(shards, seq_len=8)


def without_manifest(made: Recipe) -> dict[str, bytes]:
    """Every file but the manifest, of which one says that `good` was there alone."""
    found = contents(made.shards_dir)
    del found[FILE_NAME]
    return found


def test_partitions_done_again(tmp_path: Path, inputs: tuple[Path, Callable[[], None]], here: Engine) -> None:
    """The input was fixed, by other documents: at no step does anybody see shards that are not all there."""
    folder, fix = inputs
    made = both(folder, tmp_path / "out")
    with pytest.raises(PartitionsFailed):
        run(made, here)
    look(made.shards_dir, here)
    fix()
    steps = alone = 0
    while True:
        try:
            with killed_after(steps):
                run(made, here)
            break
        except Killed:
            look(made.shards_dir, here)
            alone += list(load_manifest(made.shards_dir).sources) == ["good"]
        steps += 1  # the next process gets one step further than this one got
    assert alone > 3
    fresh = both(folder, tmp_path / "fresh")
    run(fresh, here)
    assert without_manifest(made) == without_manifest(fresh)
    assert load_manifest(made.shards_dir).fingerprint == load_manifest(fresh.shards_dir).fingerprint
    assert run_verify(made.shards_dir, None, here, Silent())[1] == []


@pytest.mark.slow
def test_killed_once_anywhere(tmp_path: Path, inputs: tuple[Path, Callable[[], None]], here: Engine) -> None:
    """As above, but the second process finishes: no part of the old input is taken for one of the new."""
    folder, fix = inputs
    start = both(folder, tmp_path / "start")
    with pytest.raises(PartitionsFailed):
        run(start, here)
    broken = (folder / "cut.jsonl.zst").read_bytes()
    fix()
    fresh = both(folder, tmp_path / "fresh")
    run(fresh, here)
    for steps in range(1, 200, 4):
        (folder / "cut.jsonl.zst").write_bytes(broken)
        made = both(folder, tmp_path / f"out-{steps}")
        with suppress(PartitionsFailed):
            run(made, here)
        fix()
        died = False
        try:
            with killed_after(steps):
                run(made, here)
        except Killed:
            died = True
            look(made.shards_dir, here)
            run(made, here)
        assert without_manifest(made) == without_manifest(fresh), steps
        if not died:
            assert steps > 20
            return


def test_adding_a_source(tmp_path: Path, inputs: tuple[Path, Callable[[], None]], here: Engine) -> None:
    """What was sealed before can be streamed at every step."""
    folder, _ = inputs
    first = recipe(tmp_path / "out", GOLDEN, {"good": [folder / "good.jsonl"]})
    run(first, here)
    before = load_manifest(first.shards_dir)
    written = {path: path.stat().st_mtime_ns for path in before.roots}
    # Written in another way, which leaves the sealed one as it is.
    other = tmp_path / "vocab" / "tokenizer.json"
    other.parent.mkdir()
    other.write_text(json.dumps(json.loads((GOLDEN / "tokenizer.json").read_text()), indent=3))
    sources: Any = {name: [folder / "good.jsonl"] for name in ("good", "more")}
    made = recipe(tmp_path / "out", other.parent, sources)
    for steps in range(100):
        try:
            with killed_after(steps):
                run(made, here)
            break
        except Killed:
            assert has_manifest(made.shards_dir)
            look(made.shards_dir, here)
    assert steps > 5
    manifest = load_manifest(made.shards_dir)
    assert list(manifest.sources) == ["good", "more"]
    assert (manifest.history, manifest.was(before.fingerprint)) == ((before.event(),), before.shards)
    assert {path: path.stat().st_mtime_ns for path in written} == written
    at_once = recipe(tmp_path / "once", other.parent, sources)
    run(at_once, here)
    ours, theirs = (contents(one.shards_dir) for one in (made, at_once))
    different = {name for name in ours.keys() | theirs if ours.get(name) != theirs.get(name)}
    assert different == {FILE_NAME, "tokenizer.json"}
    assert run_verify(made.shards_dir, None, here, Silent())[1] == []


def test_another_source_is_sealed_while_one_is_unfinished(
    tmp_path: Path, inputs: tuple[Path, Callable[[], None]], here: Engine
) -> None:
    folder, fix = inputs
    made = both(folder, tmp_path / "out")
    with pytest.raises(PartitionsFailed):
        run(made, here)
    fix()
    with pytest.raises(Killed), killed_after(12):
        run(made, here)
    run(recipe(tmp_path / "out", GOLDEN, {name: [folder / "good.jsonl"] for name in ("good", "new")}), here)
    manifest = load_manifest(made.shards_dir)
    assert list(manifest.sources) == ["good", "new"]
    look(made.shards_dir, here)
    assert list(unfinished(made.shards_dir)) == ["it"]
    run(made, here)
    assert list(load_manifest(made.shards_dir).sources) == ["good", "it", "new"]
    assert run_verify(made.shards_dir, None, here, Silent())[1] == []


def test_incomplete_does_not_look_complete(
    tmp_path: Path,
    inputs: tuple[Path, Callable[[], None]],
    here: Engine,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder, _ = inputs
    made = both(folder, tmp_path / "out")
    shards = str(made.shards_dir)
    with pytest.raises(PartitionsFailed):
        run(made, here)
    capsys.readouterr()
    for command in (
        ["status", shards],
        ["mix", shards, "--seq-len", "8"],
        ["verify", shards, "--workers", "0"],
    ):
        assert run_command(command) == 0
        told = capsys.readouterr().err
        assert "source it is unfinished" in told
        assert "missing from source it" in told
    assert run_command(["status", shards, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)["shards"]
    assert "it is unfinished" in told["incomplete"][0]
    assert "cut.jsonl.zst" in told["incomplete"][1]
    alone = recipe(tmp_path / "alone", GOLDEN, {"it": [folder / "good.jsonl", folder / "cut.jsonl.zst"]})
    with pytest.raises(PartitionsFailed):
        run(alone, here)
    with pytest.raises(
        IntegrityError, match=r"is unfinished: .* partitions are done; run the same command again"
    ):
        stats_of(alone.shards_dir)
