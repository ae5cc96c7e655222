"""The log of a job: whole lines whatever happens, a file for each job, and no job that ends for its log."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from fractions import Fraction
from types import SimpleNamespace

import pytest

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
    assert not (tmp_path / "logs").exists()  # a log begins with its first line
    log.write("notice", {"message": "perché \udcff\n2"})
    # A line that is written is in the file, whole, if the job is killed.
    assert len(read_lines(log.path)) == 1
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
    notices: list[str] = []
    log = JobLog(tmp_path / "logs", "count", {}, notices.append)
    if when == "at once":
        where, why = tmp_path / "logs", "File exists"
        where.touch()
    else:
        log.write("notice", {"message": "before"})
        where, why = log.path, "No space left on device"
        log._file.close()
        log._file = SimpleNamespace(write=lambda line: len(line) - 1, close=int)  # the last page of the disk
    for _ in range(3):
        log.write("notice", {"message": "a"})
    log.end(0)
    assert log.path is None
    assert notices == [f"cannot write the log {where}: {why}; the job continues without it"]
    assert when == "at once" or [line["message"] for line in read_lines(where)] == ["before"]
