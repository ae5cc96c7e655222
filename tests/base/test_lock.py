"""The lock of an output folder: one job at a time, taken over from a job that is gone, from no other."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support import ROOT, until

from pretok.base import lock
from pretok.base.errors import FolderInUse
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


@pytest.fixture
def dead(tmp_path, elsewhere):
    """`tmp_path` with the lock of a killed process."""
    elsewhere.kill()
    until(lambda: lock._started(elsewhere.pid) is None)  # a zombie counts as dead: nobody has waited for it
    return tmp_path


@pytest.mark.parametrize("links", [True, False])
def test_a_thread_may_hold_a_lock_twice_and_nothing_is_left(tmp_path, monkeypatch, links):
    """Also on a file system without hard links."""

    def link(*_: object) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    if not links:
        monkeypatch.setattr(os, "link", link)
    for _ in range(2):
        with pytest.raises(KeyError), hold(tmp_path, "run") as outer, hold(tmp_path, "tokenize") as inner:  # noqa: PT012
            assert inner is outer
            assert lock.holder_of(tmp_path).what == "run"
            raise KeyError
    assert list(tmp_path.iterdir()) == []


ANOTHER = {"machine": "another", "pid": 1 << 22, "started": "1"}
OLD = STALE + 1
HOLDERS = {
    "alive": ({}, 0, {}, None),
    "a process id used again": ({"started": "1"}, 0, {}, "its process is dead"),
    "on another machine": (ANOTHER, 0, {}, None),
    "touched long ago": (ANOTHER, OLD, {}, "not touched for 30"),
    "touched in the future, before a clock was set back": (ANOTHER, -OLD, {}, "not touched for 30 s"),
    "touched in the future, while watched": (ANOTHER | {"since": "touched"}, -OLD, {}, None),
    "touched while watched": (ANOTHER | {"since": "touched"}, OLD, {}, None),
    "of a Slurm job that ended": (ANOTHER | {"job": "77"}, 0, {}, "its Slurm job has ended"),
    "of this Slurm job": (ANOTHER | {"job": "78"}, 0, {"SLURM_JOB_ID": "78"}, None),
    "before a requeue": (
        ANOTHER | {"job": "78"}, 0, {"SLURM_JOB_ID": "78", "SLURM_RESTART_COUNT": "1"},
        "Slurm has requeued its job",
    ),
}  # fmt: skip
"""What a lock says; seconds since it was touched; the environment of who finds it; why its holder is gone, if it is."""


def test_a_lock_is_taken_over_only_from_a_holder_that_is_gone(tmp_path, elsewhere, monkeypatch, caplog):
    path = tmp_path / LOCK_FILE
    text = path.read_text()
    monkeypatch.setattr(lock, "_job_ended", lambda job: job == "77")
    for case, (changes, age, environment, gone) in HOLDERS.items():
        path.write_text(json.dumps({**json.loads(text), **changes}))
        then = time.time() - age
        os.utime(path, (then, then))

        def sleep(_seconds: float, changes=changes, then=then) -> None:
            if "touched" in changes.values():
                os.utime(path, (then + 15, then + 15))

        with monkeypatch.context() as patched:
            patched.setattr(lock.time, "sleep", sleep)
            for name, value in environment.items():
                patched.setenv(name, value)
            if gone is None:
                with pytest.raises(FolderInUse) as refusal, hold(tmp_path, "tokenize"):
                    pass
                for part in (f"{tmp_path} is in use by tokenize (host {os.uname().nodename}", ", since 2"):
                    assert part in str(refusal.value) or changes.get("since"), case
            else:
                with hold(tmp_path, "tokenize"):
                    assert gone in caplog.text, case
                    assert lock.holder_of(tmp_path).pid == os.getpid()


def test_a_clock_that_is_set_hides_no_job_of_this_machine(tmp_path, elsewhere, monkeypatch):
    path, now = tmp_path / LOCK_FILE, time.time()
    for changes in ({}, {"started": "1"}):
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))
        for step in (-86_400, 86_400):
            monkeypatch.setattr(lock.time, "time", lambda step=step: now + step)
            assert (lock.holder_of(tmp_path) is None) == bool(changes), step


@pytest.mark.parametrize(
    ("answer", "ended"),
    [
        ("echo '77 R'", False),
        ("true", True),
        ("echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1", True),
        ("echo 'Unable to contact slurm controller' >&2; exit 1", False),
        ("", False),
    ],
)
def test_slurm_is_believed_only_when_it_answers(tmp_path, monkeypatch, answer, ended):
    if answer:
        (tmp_path / "squeue").write_text(f"#!/bin/sh\n{answer}\n")
        (tmp_path / "squeue").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}" if answer else "")
    assert lock._job_ended("77") is ended


def test_a_holder_touches_its_lock_and_stops_when_it_is_lost(tmp_path, monkeypatch):
    monkeypatch.setattr(lock, "HEARTBEAT", 0.02)
    path = tmp_path / LOCK_FILE
    with StopFlag() as stop, hold(tmp_path, "tokenize"):
        os.utime(path, (0, 0))
        until(lambda: path.stat().st_mtime > 0)
        assert stop.reason is None
        path.unlink()
        until(lambda: stop.reason == "received SIGTERM")


def test_a_suspended_process_looks_before_it_continues(tmp_path, caplog):
    with hold(tmp_path, "tokenize") as lost:
        os.kill(os.getpid(), signal.SIGCONT)
        (tmp_path / LOCK_FILE).write_text("another job's")
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGCONT)
        assert lost.is_set()
    assert f"{tmp_path / LOCK_FILE} is gone or another job's" in caplog.text
    assert (tmp_path / LOCK_FILE).exists()


def test_a_reader_is_named_to_who_would_change_the_folder_and_stops_when_that_is_lost(
    tmp_path, monkeypatch, caplog
):
    monkeypatch.setattr(lock, "HEARTBEAT", 0.02)
    with StopFlag() as stop, share(tmp_path, "export"):
        with pytest.raises(FolderInUse, match="in use by export"):
            refuse_readers(tmp_path)
        [registration] = tmp_path.iterdir()
        registration.unlink()
        until(lambda: stop.reason == "received SIGTERM")


def test_a_reader_works_unregistered_where_it_cannot_write(tmp_path, monkeypatch, caplog):
    def no_space(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "open", no_space)
    with share(tmp_path, "train"):
        assert not list(tmp_path.iterdir())
    assert "cannot register as a reader of" in caplog.text


def test_a_dead_lock_that_another_job_took_meanwhile_is_left_to_it(dead, monkeypatch):
    path, original = dead / LOCK_FILE, lock._refuse_living
    another = json.dumps(json.loads(path.read_text()) | ANOTHER | {"token": "another"})

    def slow(*arguments: object) -> str:
        why = original(*arguments)
        path.write_text(another)
        return why

    monkeypatch.setattr(lock, "_refuse_living", slow)
    with pytest.raises(FolderInUse), hold(dead, "tokenize"):
        pass
    assert path.read_text() == another
    assert list(dead.iterdir()) == [path]


def test_a_lock_that_goes_while_it_is_looked_at_is_free(dead, monkeypatch):
    path, original = dead / LOCK_FILE, lock._why_gone

    def ends(holder: lock.Holder) -> str:
        path.unlink()
        return ""

    monkeypatch.setattr(lock, "_why_gone", ends)
    with hold(dead, "tokenize"):
        monkeypatch.setattr(lock, "_why_gone", original)
    assert not path.exists()


def test_the_error_that_ended_a_job_is_raised_although_its_lock_cannot_be_removed(
    tmp_path, monkeypatch, caplog
):
    def stale(path):
        raise OSError(errno.ESTALE, "Stale file handle")

    with pytest.raises(KeyError), hold(tmp_path, "tokenize"):  # noqa: PT012
        monkeypatch.setattr(lock, "_read", stale)
        raise KeyError
    assert f"{tmp_path / LOCK_FILE} stays: Stale file handle" in caplog.text
    monkeypatch.undo()
    with hold(tmp_path, "tokenize"):  # as the same process may try again
        assert "this process has released it" in caplog.text


@pytest.mark.parametrize("when", ["link", "unlink", "unlink claim"])
def test_a_job_killed_while_it_takes_a_lock_blocks_no_other(dead, monkeypatch, when):
    """Before the lock is in its place, and before and after a dead one is removed; nothing of it stays."""
    call, lock_path = when.split()[0], dead / LOCK_FILE
    original = getattr(os, call)

    def kill(path: Path, *others: Path) -> None:
        if lock_path in (path, *others) if when != "unlink claim" else not lock_path.exists():
            os._exit(9)
        original(path, *others)

    monkeypatch.setattr(os, call, kill)
    if call == "link":
        lock_path.unlink()
    if (child := os.fork()) == 0:
        with hold(dead, "killed"):
            pass
    assert os.waitpid(child, 0)[1] == 9 << 8
    monkeypatch.undo()
    assert list(dead.iterdir())
    monkeypatch.setattr(lock.time, "sleep", lambda _: pytest.fail("it waits for the dead"))
    with hold(dead, "tokenize"):
        assert [path.name for path in dead.iterdir() if path.suffix == ".tmp"] == []
    assert list(dead.iterdir()) == []
