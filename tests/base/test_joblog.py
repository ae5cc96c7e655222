"""The log of a job: whole lines whatever happens, a file for each job, and no job that ends for its log."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from datetime import UTC, datetime
from fractions import Fraction
from pathlib import Path

import pytest
from support import ROOT, until

from pretok.base.joblog import JobLog, when_and_where
from pretok.base.storage import read_lines


def make(folder: Path, told: list[str] | None = None, **always: object) -> JobLog:
    return JobLog(folder, "count", {"command": "count", **always}, (told if told is not None else []).append)


def read(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text(encoding="ascii").splitlines()]


def test_every_line_says_when_where_and_what(tmp_path, monkeypatch):
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    assert when_and_where().keys() == {"time", "host"}
    monkeypatch.setenv("SLURM_JOB_ID", "4711")
    log = make(tmp_path / "logs", rank=3)
    make(tmp_path / "logs").end(0)
    assert log.path is None  # nothing said, no file
    assert not (tmp_path / "logs").exists()
    log.write("notice", {"message": "perché \udcff\n2"})
    log.write("start", {"share": Fraction(1, 3), "path": tmp_path, "host": "forged", "event": "forged"})
    log.end(3)
    lines = read(log.path)
    for line in lines:
        where = [line[key] for key in ("command", "rank", "job", "host")]
        assert where == ["count", 3, "4711", os.uname().nodename]
        assert abs((datetime.now(UTC) - datetime.fromisoformat(str(line["time"]))).total_seconds()) < 60
    assert [line["event"] for line in lines] == ["notice", "start", "end"]
    assert lines[0]["message"] == "perché \udcff\n2"
    assert (lines[1]["share"], lines[1]["path"]) == ("1/3", str(tmp_path))
    assert lines[2]["exit_code"] == 3


def test_two_jobs_of_one_second_have_two_files(tmp_path, monkeypatch):
    monkeypatch.setattr(time, "strftime", lambda _: "20260301-120000")
    logs = [make(tmp_path) for _ in range(3)]
    for number, log in enumerate(logs):
        log.write("notice", {"number": number})
        log.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "count-20260301-120000-2.jsonl", "count-20260301-120000-3.jsonl", "count-20260301-120000.jsonl",
    ]  # fmt: skip
    assert [read(log.path)[0]["number"] for log in logs] == [0, 1, 2]


@pytest.mark.parametrize("when", ["at once", "later"])
def test_a_log_that_cannot_be_written_is_said_once_and_ends_nothing(tmp_path, when):
    told: list[str] = []
    log = make(tmp_path / "logs", told)
    if when == "at once":
        where, why = tmp_path / "logs", "File exists"
        where.touch()
    else:
        log.write("notice", {"message": "before"})
        where, why = log.path, "No space left on device"
        log._file.close()
        log._file = Path("/dev/full").open("wb", buffering=0)  # noqa: SIM115
    for _ in range(3):
        log.write("notice", {"message": "a"})
    log.end(0)
    assert log.path is None
    assert told == [f"no log is kept in {where}: {why}; the job goes on without"]
    assert when == "at once" or [line["message"] for line in read(where)] == ["before"]


def test_a_killed_job_leaves_whole_lines(tmp_path):
    """The last may lack its end: the kernel looks for a fatal signal between the pages of one write."""
    code = f"""
from pathlib import Path
from threading import Thread
from pretok.base.joblog import JobLog
log = JobLog(Path({str(tmp_path)!r}), "count", {{"command": "count"}}, print)
def write():
    for number in range(10**9):
        log.write("task", {{"number": number, "text": "x" * (number * 7919 % 30_000)}})
for _ in range(3):
    Thread(target=write, daemon=True).start()
write()
"""
    process = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT)
    try:
        until(lambda: any(path.stat().st_size > 1_000_000 for path in tmp_path.iterdir()))
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    (path,) = tmp_path.iterdir()
    assert len(read_lines(path)) > 50  # raises where a line that has its end is not whole
