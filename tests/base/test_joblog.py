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
    monkeypatch.setenv("SLURM_JOB_ID", "4711")
    log = make(tmp_path / "logs", rank=3)
    assert log.path is None  # nothing said, no file
    assert not (tmp_path / "logs").exists()
    log.write("notice", {"message": "perché \udcff\n2"})
    log.write("start", {"share": Fraction(1, 3), "path": tmp_path, "host": "forged", "event": "forged"})
    log.end(3)
    lines = read(log.path)
    for line in lines:
        assert (line["command"], line["rank"], line["job"], line["host"]) == (
            "count",
            3,
            "4711",
            os.uname().nodename,
        )
        assert abs((datetime.now(UTC) - datetime.fromisoformat(str(line["time"]))).total_seconds()) < 60
    assert [line["event"] for line in lines] == ["notice", "start", "end"]
    assert lines[0]["message"] == "perché \udcff\n2"
    assert (lines[1]["share"], lines[1]["path"]) == ("1/3", str(tmp_path))
    assert lines[2]["exit_code"] == 3


def test_outside_of_slurm_no_job_is_named(monkeypatch):
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    assert when_and_where().keys() == {"time", "host"}


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


def test_a_log_that_cannot_be_written_is_told_once_and_ends_nothing(tmp_path):
    (tmp_path / "logs").touch()
    told: list[str] = []
    log = make(tmp_path / "logs", told)
    for _ in range(3):
        log.write("notice", {"message": "a"})
    log.end(0)
    assert log.path is None
    assert told == [f"no log is kept in {tmp_path}/logs: File exists; the job goes on without"]


def test_a_disk_that_fills_up_is_told_once_and_ends_nothing(tmp_path):
    told: list[str] = []
    log = make(tmp_path, told)
    log.write("notice", {"message": "a"})
    path = log.path
    log._file.close()
    log._file = Path("/dev/full").open("wb", buffering=0)  # noqa: SIM115
    log.write("notice", {"message": "b"})
    log.write("notice", {"message": "c"})
    log.close()
    assert told == [f"no log is kept in {path}: No space left on device; the job goes on without"]
    assert log.path is None
    assert [line["message"] for line in read(path)] == ["a"]


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


@pytest.mark.parametrize("code", [0, 75])
def test_a_job_that_said_nothing_has_no_end(tmp_path, code):
    make(tmp_path / "logs").end(code)
    assert not (tmp_path / "logs").exists()
