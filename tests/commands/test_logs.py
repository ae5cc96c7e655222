"""What a command leaves in WORK/logs, and what --quiet shows."""

from __future__ import annotations

import json
import logging
import re
from pathlib import Path
from typing import Any

import pytest
from counting import write_lines

from pretok.base.terminal import ConsoleWarnings, Terminal
from pretok.cli import run_command
from pretok.vocab.counts import count_task as counting


@pytest.fixture
def command(tmp_path: Path) -> list[str]:
    """Counts two sources of a few documents."""
    for name in ("it", "en"):
        write_lines(tmp_path / f"{name}.jsonl", [f"{name} documento {n}" for n in range(30)])
    inputs = [f"{name}={tmp_path}/{name}.jsonl" for name in ("it", "en")]
    return ["count", *inputs, "--out", str(tmp_path / "work"), "--workers", "0"]


def read_logs(work: Path) -> list[list[dict[str, Any]]]:
    """The lines of each log, in the order of the jobs."""
    paths = sorted((work / "logs").glob("*.jsonl"), key=lambda path: path.stat().st_mtime_ns)
    return [[json.loads(line) for line in path.read_text("utf-8").splitlines()] for path in paths]


def of(log: list[dict[str, Any]], event: str) -> list[dict[str, Any]]:
    return [line for line in log if line["event"] == event]


def test_a_log_holds_the_whole_job(tmp_path, command, capsys):
    assert run_command(command) == 0
    [log] = read_logs(tmp_path / "work")
    start, end = log[0], log[-1]
    assert (start["event"], start["argv"], end["event"], end["exit_code"]) == ("start", command, "end", 0)
    assert start["settings"]["sources"]["it"]["inputs"] == [f"{tmp_path}/it.jsonl"]
    assert start["versions"].keys() >= {"pretok", "python", "numba"}
    partitions = [line for line in of(log, "task") if line["what"] == "partition"]
    assert {line["item"] for line in partitions} == {"it-00000", "en-00000"}
    [step] = of(log, "step_end")
    assert (step["title"], step["ended_by"], step["counts"]["documents"]) == ("count", None, 60)
    assert of(log, "workers")[0]["nodes"] == {start["host"]: 2}
    lines = capsys.readouterr().err.splitlines()
    progress = re.compile(r"\d\d:\d\d:\d\d count\b(?!: .*documents,)")  # of a slow machine
    shown = [line for line in lines if not progress.match(line)]
    assert set(shown) < {line["message"] for line in of(log, "notice") + of(log, "step_end")}


def test_a_failing_partition_leaves_its_traceback_at_once(tmp_path, command, capsys, monkeypatch):
    real = counting._Counter._add

    def add(self: Any, batch: Any) -> Any:
        if self._task.partition.name == "it-00000":
            raise ZeroDivisionError("no such thing")
        return real(self, batch)

    monkeypatch.setattr(counting._Counter, "_add", add)
    assert run_command(command) == 1
    [log] = read_logs(tmp_path / "work")
    [failed], [error], [step] = of(log, "task_failed"), of(log, "error"), of(log, "step_end")
    assert (failed["item"], failed["message"]) == ("it-00000", "ZeroDivisionError: no such thing")
    assert "in add" in failed["traceback"]
    assert "1 partitions failed" in error["message"]
    assert (log[-1]["exit_code"], step["ended_by"]) == (1, "InternalError")
    [path] = (tmp_path / "work" / "logs").iterdir()
    shown = capsys.readouterr().err
    assert f"please report it with {path}" in shown
    assert "in add" not in shown


@pytest.mark.parametrize("place", [0, 1, 99])
def test_quiet_shows_results_and_errors_only(tmp_path, command, capsys, place):
    quiet = [*command[:place], "--quiet", *command[place:]]
    assert run_command([*quiet, "--json"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert json.loads(out)["sources"].keys() == {"it", "en"}
    assert run_command([*quiet, "--field", "body"]) == 2
    assert capsys.readouterr().err.startswith("pretok: ")
    first, second = read_logs(tmp_path / "work")
    assert of(first, "notice")
    assert of(second, "error")[0]["message"].startswith("pretok: ")


def test_verify_keeps_a_log_where_there_are_logs_and_nowhere_else(tmp_path, vocab_dir, command):
    work = tmp_path / "work"
    assert run_command(["tokenize", *command[1:], "--vocab", str(vocab_dir)]) == 0
    check = ["verify", str(work / "shards"), "--workers", "0"]
    assert run_command(check) == 0
    assert [log[0]["command"] for log in read_logs(work)] == ["tokenize", "verify"]
    (work / "logs").rename(tmp_path / "elsewhere")
    assert run_command(check) == 0
    assert not (work / "logs").exists()


def test_warnings_of_libraries_are_shown_and_kept(tmp_path, capsys):
    console = Terminal()
    console.keep_log(tmp_path / "logs", "count")
    record = logging.makeLogRecord({"msg": "trying again: %s", "args": ("[it]",), "levelno": logging.WARNING})
    ConsoleWarnings(console).handle(record)
    console.end(0)
    assert "trying again: [it]" in capsys.readouterr().err
    [log] = read_logs(tmp_path)
    assert of(log, "warning")[0]["message"] == "trying again: [it]"
