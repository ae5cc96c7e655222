"""What a run's time was spent on, through kills and restarts."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from support import needs

torch = needs("torch")
from pretok.base.storage import read_lines
from tests.train_support import tiny_config
from train.run import loop
from train.run.goodput import Goodput, Restart


def test_goodput_adds_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([10.0, 40.0, 45.0, 95.0])
    monkeypatch.setattr("train.run.goodput.time.monotonic", lambda: next(clock))
    path = tmp_path / "goodput.jsonl"
    goodput = Goodput(0.0, path, lost=(7.2, 7.2))
    goodput.enter("training")  # at 10
    with goodput.spent("saving"):  # from 40 to 45
        pass
    said = goodput.write(10, 8.0)
    spent = {"initialisation": 10.0, "training": 72.0, "validation": 0.0, "saving": 5.0, "data": 8.0}
    [line] = read_lines(path)
    assert line == line | spent | {"steps": 10, "lost_steps": 2, "lost_seconds": 14.4}
    # 72 s of training less 14.4 s done twice, of 95 s.
    assert said.startswith("goodput: 60.6% of 0.03 h in 1 segments")


def test_goodput_of_killed_segments(shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A killed segment leaves its line, and what was lost is taken off in seconds: never less than nothing."""
    original = loop.train_step

    def killed(*arguments: Any, **named: Any) -> Any:
        if arguments[2] == 7:
            raise KeyboardInterrupt
        return original(*arguments, **named)

    config = tiny_config(shards, tmp_path, steps=8, save_every="100", log_every=2)
    path = tmp_path / "run/goodput.jsonl"
    monkeypatch.setattr(loop, "train_step", killed)
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            loop.train(config)
        with path.open("a") as file:
            file.write('{"initialisation": 3')  # a line that the kill cut short
    monkeypatch.setattr(loop, "train_step", original)
    loop.train(config)
    first, second, third = read_lines(path)
    assert (first["steps"], second["steps"], third["steps"]) == (5, 5, 8)  # the line before the kill
    assert (first["lost_steps"], second["lost_steps"], third["lost_steps"]) == (0, 5, 5)
    assert 0 < second["lost_seconds"] < 60


def test_goodput_of_a_restart_inside_a_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the last line of the segment before to the start of the process nothing useful was done."""
    path = tmp_path / "goodput.jsonl"
    began = time.monotonic()
    Goodput(began, path, Restart(1, "exit code 137")).write(1, 0.0)
    (line,) = read_lines(path)
    assert (line["restart"], line["restarting"]) == ("exit code 137", 0.0)  # nothing went before
    path.write_text(json.dumps(line | {"time": "2026-01-01T00:00:00Z", "training": 50.0}) + "\n")
    monkeypatch.setattr("train.run.goodput.time.time", lambda: 1767225600.0 + 50)  # 50 s after
    said = Goodput(time.monotonic() - 10, path, Restart(2, "lost node7")).write(1, 0.0)
    assert read_lines(path)[1]["restarting"] == pytest.approx(40, abs=1)
    assert "restarting 40.0%" in said
    assert Goodput(time.monotonic(), path).write(1, 0.0)
    assert read_lines(path)[2]["restarting"] == 0.0  # the next job; the queue is not counted
