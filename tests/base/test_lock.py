"""The lock of an output folder: one job at a time, taken over from a job that is gone, from no other."""

from __future__ import annotations

import errno
import json
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from support import ROOT, until

from pretok.base import lock
from pretok.base.errors import FolderInUse, OutputError
from pretok.base.lock import STALE, hold, refuse_readers, share
from pretok.base.stop import StopFlag
from pretok.base.storage import LOCK_FILE

HOLD = "import sys, time; from pathlib import Path; from pretok.base.lock import hold\n"
HOLD += "with hold(Path(sys.argv[1]), 'tokenize'): print('held', flush=True); time.sleep(60)"


@pytest.fixture
def elsewhere(tmp_path):
    """Another process that holds `tmp_path`."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True, cwd=ROOT
    )
    assert process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.wait()
    process.stdout.close()


def change(folder: Path, **values: object) -> None:
    """Change what the lock in a folder says."""
    path = folder / LOCK_FILE
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def test_a_second_job_is_refused_and_told_of_the_first(tmp_path, elsewhere):
    with pytest.raises(FolderInUse) as error, hold(tmp_path, "tokenize"):
        pass
    for part in (str(tmp_path), "tokenize", os.uname().nodename, f"process {elsewhere.pid}", "since 20"):
        assert part in str(error.value)
    assert (tmp_path / LOCK_FILE).exists()
    with hold(tmp_path / "other", "build-vocab"):
        pass


def test_nothing_is_left_and_the_next_job_may(tmp_path):
    for _ in range(2):
        with pytest.raises(KeyError), hold(tmp_path, "tokenize"):
            raise KeyError
    assert list(tmp_path.iterdir()) == []


def test_the_lock_of_a_killed_process_is_taken_over_at_once(tmp_path, elsewhere, caplog):
    os.kill(elsewhere.pid, signal.SIGKILL)
    until(lambda: lock._started(elsewhere.pid) is None)  # a zombie is dead: nobody has waited for it here
    with hold(tmp_path, "tokenize"):
        assert "its process is dead" in caplog.text
        assert lock.holder_of(tmp_path).pid == os.getpid()


def test_a_process_id_used_again_is_another_process(tmp_path, elsewhere, caplog):
    change(tmp_path, started="1")
    with hold(tmp_path, "tokenize"):
        assert "its process is dead" in caplog.text


def test_on_another_machine_touches_and_slurm_decide(tmp_path, elsewhere, caplog, monkeypatch):
    path = tmp_path / LOCK_FILE
    change(tmp_path, machine="another", pid=1 << 22, started="1")
    with pytest.raises(FolderInUse), hold(tmp_path, "tokenize"):
        pass
    old = path.read_text()
    os.utime(path, (time.time() - STALE - 1,) * 2)
    monkeypatch.setattr(lock.time, "sleep", lambda _: None)
    with hold(tmp_path, "tokenize"):
        assert "not touched for 30" in caplog.text
    path.write_text(old)
    change(tmp_path, job="77")
    monkeypatch.setattr(lock, "_job_ended", lambda job: job == "77")
    with hold(tmp_path, "tokenize"):
        assert "its Slurm job has ended" in caplog.text
    path.write_text(old)
    change(tmp_path, job="78", restarts=0)
    monkeypatch.setenv("SLURM_JOB_ID", "78")
    with pytest.raises(FolderInUse, match="Slurm job 78"), hold(tmp_path, "tokenize"):
        pass
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    with hold(tmp_path, "tokenize"):
        assert "Slurm has requeued its job" in caplog.text


@pytest.mark.parametrize(
    ("answer", "ended"),
    [
        ("echo '77 R'", False),
        ("true", True),
        ("echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1", True),
        ("echo 'Unable to contact slurm controller' >&2; exit 1", False),
    ],
)
def test_slurm_is_believed_only_when_it_answers(tmp_path, monkeypatch, answer, ended):
    program = tmp_path / "squeue"
    program.write_text(f"#!/bin/sh\n{answer}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert lock._job_ended("77") is ended


def test_a_holder_touches_its_lock_and_stops_when_it_is_lost(tmp_path, monkeypatch):
    monkeypatch.setattr(lock, "HEARTBEAT", 0.02)
    path = tmp_path / LOCK_FILE
    with StopFlag() as stop, hold(tmp_path, "tokenize"):
        os.utime(path, (0, 0))
        until(lambda: path.stat().st_mtime > 0)
        assert stop.reason is None
        path.unlink()
        until(lambda: stop.reason is not None)
        assert stop.reason == "received SIGTERM"


def test_a_suspended_process_looks_before_it_continues(tmp_path, caplog):
    with hold(tmp_path, "tokenize") as lost:
        os.kill(os.getpid(), signal.SIGCONT)
        (tmp_path / LOCK_FILE).write_text("another job's")
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGCONT)
        assert lost.is_set()
    assert f"{tmp_path / LOCK_FILE} was taken by another job" in caplog.text
    assert (tmp_path / LOCK_FILE).exists()


def test_a_reader_whose_word_is_deleted_goes_on(tmp_path, monkeypatch):
    monkeypatch.setattr(lock, "HEARTBEAT", 0.02)
    with StopFlag() as stop, share(tmp_path, "train"):
        [word] = tmp_path.iterdir()
        word.unlink()
        for thread in threading.enumerate():
            if thread.name == "folder-lock":
                thread.join(20)
        assert stop.reason is None


def test_a_full_disk_keeps_nobody_from_reading(tmp_path, monkeypatch, caplog):
    def no_space(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "open", no_space)
    with share(tmp_path, "train"):
        assert not list(tmp_path.iterdir())
    assert "cannot register as a reader of" in caplog.text


def test_of_many_that_find_a_stale_lock_one_gets_it(tmp_path, elsewhere):
    os.kill(elsewhere.pid, signal.SIGKILL)
    elsewhere.wait()
    inside, refused, gate, end = [], [], threading.Barrier(8), threading.Barrier(8)

    def attempt() -> None:
        gate.wait()
        try:
            with hold(tmp_path, "tokenize"):
                inside.append(1)
                end.wait()
        except FolderInUse:
            refused.append(1)
            end.wait()

    threads = [threading.Thread(target=attempt) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(inside), len(refused)) == (1, 7)


def test_a_job_goes_on_under_the_lock_it_holds(tmp_path):
    with hold(tmp_path, "run") as outer, hold(tmp_path, "tokenize") as inner:
        assert inner is outer
        assert lock.holder_of(tmp_path).what == "run"
    assert list(tmp_path.iterdir()) == []


def test_what_ended_a_job_is_told_although_its_lock_cannot_be_removed(tmp_path, monkeypatch, caplog):
    def stale(path):
        raise OSError(116, "Stale file handle")

    def work():
        with hold(tmp_path, "tokenize"):
            monkeypatch.setattr(lock, "_read", stale)
            raise KeyError

    with pytest.raises(KeyError):
        work()
    assert f"{tmp_path / LOCK_FILE} stays: Stale file handle" in caplog.text
    monkeypatch.undo()
    with hold(tmp_path, "tokenize"):  # as the same command is tried again in the same process
        assert "this process has given it back" in caplog.text


def test_a_full_disk_leaves_no_lock(tmp_path):
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, limit[1]))
    try:
        with pytest.raises(OutputError, match=str(tmp_path)), hold(tmp_path, "tokenize"):
            pass
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    assert list(tmp_path.iterdir()) == []


def test_a_job_killed_while_it_takes_over_is_no_hindrance(tmp_path, elsewhere, monkeypatch):
    os.kill(elsewhere.pid, signal.SIGKILL)
    elsewhere.wait()
    monkeypatch.setattr(Path, "unlink", lambda *_: os._exit(9))
    if (child := os.fork()) == 0:
        with hold(tmp_path, "killed while it takes over"):
            pass
    assert os.waitpid(child, 0)[1] == 9 << 8
    monkeypatch.undo()
    assert len(list(tmp_path.iterdir())) > 1
    monkeypatch.setattr(lock.time, "sleep", lambda _: pytest.fail("it waits for the dead"))
    with hold(tmp_path, "tokenize"):
        pass
    assert [path.name for path in tmp_path.iterdir()] == []


@pytest.mark.parametrize("touched", [False, True])
def test_an_old_lock_is_watched_before_it_is_taken(tmp_path, elsewhere, monkeypatch, caplog, touched):
    """A clock may be wrong, here or there: whether its holder lives is seen from its touches."""
    change(tmp_path, machine="another")
    path, then = tmp_path / LOCK_FILE, time.time() - 3600
    os.utime(path, (then, then))
    monkeypatch.setattr(lock.time, "sleep", lambda _: touched and os.utime(path, (then + 15, then + 15)))
    if touched:
        with pytest.raises(FolderInUse), hold(tmp_path, "tokenize"):
            pass
    else:
        with hold(tmp_path, "tokenize"):
            assert "not touched for 36" in caplog.text


@pytest.mark.parametrize("hours", [-1, 1])
def test_who_reads_is_not_passed_over_by_a_wrong_clock(tmp_path, monkeypatch, hours):
    with share(tmp_path, "export"):
        [word] = tmp_path.iterdir()
        word.write_text(json.dumps(json.loads(word.read_text()) | {"machine": "another"}))
        now = time.time()
        monkeypatch.setattr(lock.time, "time", lambda: now + 3600 * hours)
        monkeypatch.setattr(lock.time, "sleep", lambda _: os.utime(word, (now + 15, now + 15)))
        with pytest.raises(FolderInUse, match="in use by export"):
            refuse_readers(tmp_path)
        assert word.exists()
        word.unlink()


def test_who_changes_a_folder_is_told_who_reads_it(tmp_path, elsewhere):
    with share(tmp_path, "export"), pytest.raises(FolderInUse, match="in use by export"):
        refuse_readers(tmp_path)
    refuse_readers(tmp_path)
    assert list(tmp_path.glob(f"{lock.READERS}*")) == []
