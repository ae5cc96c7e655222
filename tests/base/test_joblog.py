"""The log of a job: whole lines whatever happens, a file for each job, and no job that ends for its log."""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import UTC, datetime
from fractions import Fraction
from pathlib import Path

import pytest
from support import ROOT, until

from pretok.base.joblog import JobLog, when_and_where
from pretok.base.storage import read_lines


def test_every_line_says_when_where_and_what_and_two_jobs_have_two_files(tmp_path, monkeypatch):
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    assert when_and_where().keys() == {"time", "host"}
    monkeypatch.setenv("SLURM_JOB_ID", "4711")
    log, other, silent = (
        JobLog(tmp_path / "logs", "count", {"command": "count", "rank": 3}, print) for _ in "123"
    )
    silent.end(0)
    assert not (tmp_path / "logs").exists()
    log.write("notice", {"message": "perché \udcff\n2"})
    log.write("start", {"share": Fraction(1, 3), "path": tmp_path, "host": "forged", "event": "forged"})
    log.end(3)
    other.write("notice", {"message": "from another job"})
    other.end(0)
    lines = read_lines(log.path)
    for line in lines:
        where = [line[key] for key in ("command", "rank", "job", "host")]
        assert where == ["count", 3, "4711", os.uname().nodename]
        assert abs((datetime.now(UTC) - datetime.fromisoformat(line["time"])).total_seconds()) < 60
    assert [line["event"] for line in lines] == ["notice", "start", "end"]
    assert lines[0]["message"] == "perché ?\n2"  # which is JSON
    assert (lines[1]["share"], lines[1]["path"], lines[2]["exit_code"]) == ("1/3", str(tmp_path), 3)
    assert other.path != log.path


@pytest.mark.parametrize("when", ["at once", "later"])
def test_a_log_that_cannot_be_written_is_said_once_and_ends_nothing(tmp_path, when):
    told: list[str] = []
    log = JobLog(tmp_path / "logs", "count", {}, told.append)
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
    assert told == [f"cannot write the log {where}: {why}; the job continues without it"]
    assert when == "at once" or [line["message"] for line in read_lines(where)] == ["before"]


WRITE = """
import sys
from pathlib import Path
from threading import Thread
from pretok.base.joblog import JobLog
log = JobLog(Path(sys.argv[1]), "count", {}, print)
def write():
    for number in range(10**9):
        log.write("task", {"number": number, "text": "x" * (number * 7919 % 30_000)})
for _ in range(4):
    Thread(target=write).start()
"""


def test_a_killed_job_leaves_whole_lines(tmp_path):
    """The last may lack its end: the kernel looks for a fatal signal between the pages of one write."""
    process = subprocess.Popen([sys.executable, "-c", WRITE, str(tmp_path)], cwd=ROOT)
    try:
        until(lambda: any(path.stat().st_size > 1_000_000 for path in tmp_path.iterdir()))
    finally:
        process.kill()
        process.wait()
    (path,) = tmp_path.iterdir()
    assert len(read_lines(path)) > 50  # raises if a line that has its end is not whole
