"""Whole or not: killed at every operation on a file, a removal leaves the state before, the state after, or one that
readers refuse and that the same command finishes."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from test_remove import copy_of, remove, snapshot

import pretok.stream
from pretok.base.console import Console
from pretok.base.errors import FolderInUse, IntegrityError
from pretok.base.execute import Engine
from pretok.base.lock import share
from pretok.documents.audit.verify_job import run_verify
from pretok.documents.removal import remove_job
from pretok.shards.manifest import UNFINISHED_REMOVAL, load_manifest

OPERATIONS = ("unlink", "replace", "rename", "rmdir", "mkdir", "fsync", "pwrite")
WHERE = "id in ('a3', 'b9', 'b5') or url = 'https://y.org/more7'"


class Killed(BaseException):
    """The process is gone: from here on it changes nothing more."""


@contextmanager
def killed_after(steps: int) -> Iterator[list[str]]:
    """A process that dies at the operation after so many; a write that it dies in is cut, in an id. Yields what it
    did."""
    done: list[str] = []

    def dying(name: str, act: Callable[..., Any]) -> Callable[..., Any]:
        def step(*args: Any, **options: Any) -> Any:
            if len(done) == steps and name == "pwrite":
                act(args[0], args[1][:1], args[2])
            if len(done) >= steps:
                raise Killed
            done.append(name)
            return act(*args, **options)

        return step

    with pytest.MonkeyPatch.context() as patch:
        for name in OPERATIONS:
            patch.setattr(os, name, dying(name, getattr(os, name)))
        # The lock of a process that died is void; this one lives on, so its lock would not be.
        patch.setattr(remove_job, "hold", lambda *_, **__: nullcontext())
        yield done


def look(work: Path, before: str, after: str, here: Engine) -> str:
    """The state of a folder: refused, before or after; what is read is true."""
    if (work / "shards" / UNFINISHED_REMOVAL).exists():
        for reader in (load_manifest, lambda shards: pretok.stream.open(shards, work / "mix.json")):
            with pytest.raises(IntegrityError, match="same pretok remove again"):
                reader(work / "shards")
        return "refused"
    problems = run_verify(work / "shards", 0, here, Console())[1]
    assert [problem for problem in problems if "not in the manifest" not in problem] == []
    state = load_manifest(work / "shards").fingerprint
    assert state in (before, after)
    return "before" if state == before else "after"


@pytest.mark.parametrize("again", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_killed_at_every_operation(
    removable: Path, tmp_path: Path, here: Engine, again: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """again: killed again and again in one folder, each time one operation later; else each time in a fresh one."""
    monkeypatch.setattr(remove_job, "_now", lambda manifest: "2026-01-01T00:00:00.000Z")
    fresh = shutil.copytree(removable / "shards", tmp_path / "fresh")
    work = copy_of(removable, tmp_path / "work")
    before, where = load_manifest(fresh).fingerprint, "id = 'a3'" if again else WHERE
    after = remove(work, where=where).fingerprint
    expected, seen, steps = snapshot(work), set(), 0
    for steps in range(300):
        if not again or not steps:
            shutil.rmtree(work / "shards")
            shutil.copytree(fresh, work / "shards")
        try:
            with killed_after(steps) as done:
                remove(work, where=where)
            break
        except Killed:
            seen.add(look(work, before, after, here))
            if not again:
                remove(work, where=where)
                assert snapshot(work) == expected, done
    assert steps > (15 if again else 40)
    assert seen == {"before", "refused"} | ({"after"} if not again else set())
    assert snapshot(work) == expected


def test_an_open_stream_reads_old_tokens_or_eod(removable: Path, work: Path, tmp_path: Path) -> None:
    """While it is written, before and after; no id is torn."""
    view = pretok.stream.open(work / "shards", work / "mix.json")
    old = view[:].copy()
    seen = []
    with pytest.MonkeyPatch.context() as patch:
        real = os.pwrite

        def looked(*args: Any) -> int:
            seen.append(view[:].copy())
            return real(*args)

        patch.setattr(os, "pwrite", looked)
        remove(work, where=WHERE)
    seen.append(view[:].copy())
    for tokens in seen:
        assert ((tokens == old) | (tokens == view.eod_id)).all()
    np.testing.assert_array_equal(seen[0], old)
    assert (seen[-1] != old).any()


def test_another_removal_finishes_the_first(
    removable: Path, work: Path, tmp_path: Path, here: Engine
) -> None:
    """Once nobody reads the old tokens any more. Its time is later, though the clock of this node is not."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(remove_job, "_now", lambda manifest: "2126-01-01T00:00:00.000Z")
        patch.setattr(remove_job, "_overwrite", Mock(side_effect=Killed))
        with pytest.raises(Killed):
            remove(work, where=WHERE)
    assert not (work / "shards" / "removed.parquet").exists()
    with share(work / "shards", "export"), pytest.raises(FolderInUse):  # it came before the log
        remove(work, where="id = 'b20'")
    assert not (work / "shards" / "removed.parquet").exists()
    remove(work, where="id = 'b20'")
    removals = load_manifest(work / "shards").removals
    assert [removal.at for removal in removals] == ["2126-01-01T00:00:00.000Z", "2126-01-01T00:00:00.001Z"]
    assert run_verify(work / "shards", None, here, Console())[1] == []
