"""A manifest that stands is true at every moment: killed at each step that changes a file, looked at, resumed."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest
import zstandard
from test_golden import GOLDEN
from tokenizing import contents, recipe, run

import pretok.stream
from pretok.base.console import Console
from pretok.base.errors import IntegrityError, InternalError, PartitionsFailed
from pretok.base.execute import Engine
from pretok.cli import run_command
from pretok.config import Recipe
from pretok.documents.audit.totals import stats_of
from pretok.documents.audit.verify_job import run_verify
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
        patch.setattr("pretok.shards.tokenize_job.hold", lambda folder, what: nullcontext())
        try:
            yield
        except InternalError as error:  # inside of a task, which does not end the process
            raise (Killed if "Killed" in str(error) else error) from None


@pytest.fixture
def inputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], None]:
    """A folder with a good file and one that is cut; and what cuts that again or fixes it, with other documents."""
    monkeypatch.setattr("pretok.read.readers.BATCH_BYTES", 30_000)  # the cut file fills several shards
    lines = [json.dumps({"text": f"documento {i} " * 30}).encode() for i in range(400)]
    lines[3] = b"{"
    (tmp_path / "good.jsonl").write_bytes(b"\n".join(lines[:60]))
    pack = zstandard.ZstdCompressor().compress
    # Also fewer documents, which fill fewer shards.
    whole = pack(b"\n".join([b'{"text": "nuovo"}', *lines[5:200]]))
    cut = pack(b"\n".join(lines) + b"\n") + pack(lines[0])[:-5]

    def write(fixed: bool) -> None:
        (tmp_path / "cut.jsonl.zst").write_bytes(whole if fixed else cut)

    write(False)
    return write


def both(folder: Path, out: str) -> Recipe:
    sources = {"good": [folder / "good.jsonl"], "it": [folder / "good.jsonl", folder / "cut.jsonl.zst"]}
    return recipe(folder / out, GOLDEN, sources, size=4000)


def look(shards: Path, here: Engine) -> None:
    """What stands is true, to the last byte; or nothing stands, and that is said."""
    if has_manifest(shards):
        problems = run_verify(shards, 0, here, Console())[1]
        assert [problem for problem in problems if "not in the manifest" not in problem] == []
        view = pretok.stream.open(shards, seq_len=8)
        assert len(view[:]) == len(view)
    else:
        with pytest.raises(IntegrityError, match="no finished shards"):
            pretok.stream.open(shards, seq_len=8)


def without_manifest(made: Recipe) -> dict[str, bytes]:
    """Every file but the manifest, whose history says that `good` was there alone."""
    files = contents(made.shards_dir)
    del files[FILE_NAME]
    return files


def test_partitions_done_again(tmp_path: Path, inputs: Callable[[bool], None], here: Engine) -> None:
    """The input was fixed, by other documents: at no step does anybody see shards that are not all there."""
    made, fresh = both(tmp_path, "out"), both(tmp_path, "fresh")
    with pytest.raises(PartitionsFailed):
        run(made, here)
    look(made.shards_dir, here)
    shards = len(list((made.shards_dir / "it").glob("*.bin")))
    inputs(True)
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
    run(fresh, here)
    assert without_manifest(made) == without_manifest(fresh)
    assert load_manifest(made.shards_dir).fingerprint == load_manifest(fresh.shards_dir).fingerprint
    assert shards > len(load_manifest(made.shards_dir).of("it"))
    assert run_verify(made.shards_dir, None, here, Console())[1] == []


def test_incomplete_does_not_look_complete(
    tmp_path: Path, inputs: Callable[[bool], None], here: Engine, capsys: pytest.CaptureFixture[str]
) -> None:
    """And another source can be sealed meanwhile, also after a kill."""
    made, alone = (
        both(tmp_path, "out"),
        recipe(tmp_path / "alone", GOLDEN, {"it": [tmp_path / "cut.jsonl.zst"]}),
    )
    for one in (made, alone):
        with pytest.raises(PartitionsFailed):
            run(one, here)
    with pytest.raises(
        IntegrityError, match=r"is unfinished: .* partitions are done; run the same command again"
    ):
        stats_of(alone.shards_dir)
    shards = str(made.shards_dir)
    capsys.readouterr()
    for command in (
        ["status"],
        ["mix", "--seq-len", "8"],
        ["verify", "--workers", "0"],
        ["status", "--json"],
    ):
        assert run_command([command[0], shards, *command[1:]]) == 0
        said = "".join(capsys.readouterr())
        assert re.search(r"source it is unfinished: [0-9]+ of [0-9]+ partitions are done", said)
    inputs(True)
    with pytest.raises(Killed), killed_after(12):
        run(made, here)
    good = [tmp_path / "good.jsonl"]
    run(recipe(tmp_path / "out", GOLDEN, {"good": good, "new": good}, size=4000), here)
    assert list(load_manifest(made.shards_dir).sources) == ["good", "new"]
    look(made.shards_dir, here)
    assert list(unfinished(made.shards_dir)) == ["it"]
    run(made, here)
    assert list(load_manifest(made.shards_dir).sources) == ["good", "it", "new"]
    assert run_verify(made.shards_dir, None, here, Console())[1] == []
