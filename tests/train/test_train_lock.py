"""One run at a time in a folder; the lock of a run that is gone stops nobody."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from support import needs

needs("torch")
from pretok.base.errors import MismatchError, UsageError
from tests.train_support import Ranks, model_file, random_shards
from train import lock
from train.lock import Holder, RunLock


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock, "BEAT", 0.05)
    monkeypatch.setattr(lock, "PATIENCE", 0.6)
    monkeypatch.setattr(lock, "SETTLE", 0.01)


def write(path: Path, holder: Holder, count: int = 0) -> None:
    path.write_text(json.dumps({"holder": asdict(holder), "count": count}))


def test_a_second_run_is_refused_and_told_of_the_first(tmp_path: Path) -> None:
    random_shards(tmp_path / "shards")
    out = tmp_path / "run"
    out.mkdir()
    first = RunLock(out, print)
    first.acquire()
    command = [
        "--shards",
        tmp_path / "shards",
        "--model",
        model_file(tmp_path),
        "--out",
        out,
        "--seq-len",
        16,
    ]
    command += ["--global-batch", 8, "--steps", 2, "--workers", 0]
    second = Ranks(2, command, tmp_path)
    assert second.wait() == [2, 2]
    assert (
        f"{out} is in use by another train: process {os.getpid()} on {os.uname().nodename}, since 20"
        in second.text()
    )
    assert not (out / "checkpoints").exists()
    first.release()
    third = Ranks(2, command, tmp_path)
    assert third.wait() == [0, 0], third.text()
    assert not (out / "lock").exists()


def test_the_lock_of_a_process_that_ended_is_taken_at_once(tmp_path: Path) -> None:
    code = "import sys; from pathlib import Path; from train.lock import RunLock\n"
    code += "import os; lock = RunLock(Path(sys.argv[1]), print); lock.acquire(); os._exit(1)"
    subprocess.run([sys.executable, "-c", code, tmp_path], check=False, cwd=Path(__file__).parents[2])
    assert (tmp_path / "lock").exists()
    said: list[str] = []
    taken = RunLock(tmp_path, said.append)
    taken.acquire()
    assert len(said) == 1
    assert said[0].startswith("the lock of a run that is gone was taken over (process ")
    taken.release()
    assert list(tmp_path.iterdir()) == []


def test_a_process_number_that_was_given_again_is_no_holder(tmp_path: Path) -> None:
    write(tmp_path / "lock", replace(Holder.this_process(), begun="1"))
    taken = RunLock(tmp_path, print)
    taken.acquire()
    taken.release()


def test_elsewhere_a_growing_count_is_a_sign_of_life(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    other = replace(Holder.this_process(), machine="another", host="n7", pid=5)
    write(path, other)
    ended = threading.Event()

    def beat() -> None:
        count = 0
        while not ended.wait(0.05):
            count += 1
            write(path, other, count)

    thread = threading.Thread(target=beat)
    thread.start()
    try:
        with pytest.raises(UsageError, match=r"in use by another train: (process 5 on n7|not known)"):
            RunLock(tmp_path, print).acquire()
    finally:
        ended.set()
        thread.join()
    write(path, other)
    said: list[str] = []
    taken = RunLock(tmp_path, said.append)
    taken.acquire()
    assert "waiting up to 1 s for a sign of life" in said[0]
    taken.release()


def test_a_run_whose_lock_was_taken_ends(tmp_path: Path) -> None:
    ours = RunLock(tmp_path, print)
    ours.acquire()
    ours.check()
    other = replace(Holder.this_process(), token="another")
    (tmp_path / "new").write_text("")
    write(tmp_path / "new", other)
    (tmp_path / "new").replace(tmp_path / "lock")
    ours._thread.join(10)
    with pytest.raises(MismatchError, match="taken by another run"):
        ours.check()
    ours.release()
    assert json.loads((tmp_path / "lock").read_text())["holder"]["token"] == "another"
