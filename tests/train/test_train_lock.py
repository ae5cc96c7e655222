"""One run at a time in a folder; a run that lost it writes there no more."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from support import needs

needs("torch")
from pretok.base import lock
from pretok.base.errors import FolderInUse, MismatchError
from tests.train_support import Ranks, random_shards, tiny_config, tiny_flags
from train import loop


def test_a_second_run_is_refused_on_all_ranks_and_told_of_the_first(shards: Path, tmp_path: Path) -> None:
    command = tiny_flags(shards, tmp_path, steps=2)
    with lock.hold(tmp_path / "run", "train"):
        second = Ranks(2, command, tmp_path)
        assert second.wait() == [75, 75]
    assert f"run is in use by train (host {os.uname().nodename}, process {os.getpid()}" in second.text()
    assert not (tmp_path / "run" / "checkpoints").exists()
    third = Ranks(2, command, tmp_path)
    assert third.wait() == [0, 0], third.text()
    assert not (tmp_path / "run" / lock.LOCK_FILE).exists()


def test_shards_that_are_trained_on_are_not_taken_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shards = random_shards(tmp_path / "shards")
    refused = []

    def look(*_: object) -> None:
        with pytest.raises(FolderInUse, match="in use by train") as caught:
            lock.refuse_readers(shards)
        refused.append(caught)
        raise KeyboardInterrupt

    monkeypatch.setattr(loop, "_one_step", look)
    with pytest.raises(KeyboardInterrupt):
        loop.train(tiny_config(shards, tmp_path, steps=2))
    assert refused
    lock.refuse_readers(shards)
    assert not list(shards.glob(f"{lock.READERS}*"))


def test_a_run_that_lost_its_folder_ends_without_saving(
    shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another run took the folder over while this one hung: nothing of this one is written any more."""
    monkeypatch.setattr(lock, "HEARTBEAT", 0.02)
    one_step = loop._one_step

    def taken_over(run, batches):
        (tmp_path / "run" / lock.LOCK_FILE).write_text("another's")
        assert run.lost.wait(20)
        one_step(run, batches)

    monkeypatch.setattr(loop, "_one_step", taken_over)
    with pytest.raises(MismatchError, match="another run, which now owns the folder"):
        loop.train(tiny_config(shards, tmp_path, steps=4))
    assert list((tmp_path / "run" / "checkpoints").iterdir()) == []
    assert (tmp_path / "run" / lock.LOCK_FILE).read_text() == "another's"
