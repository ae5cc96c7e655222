"""Where a run's numbers go, what its time was spent on, and which rank is slow."""

from __future__ import annotations

import errno
import json
import os
import sys
import types
from pathlib import Path
from typing import Any

import pytest
from support import needs

torch = needs("torch")
from pretok.base.errors import UsageError
from pretok.base.storage import read_lines
from tests.train_support import Ranks, tiny_config, tiny_flags
from train import loop
from train.metrics import Goodput, Lines
from train.stragglers import NOTABLE, slowest


def test_lines_that_were_not_saved_go_and_half_a_line_is_written_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "metrics.jsonl"
    lines = Lines(path)
    for step in range(1, 6):
        lines.add({"step": step})
    with path.open("a") as file:
        file.write('{"step": 6')  # a kill
    lines = Lines(path, lambda record: bool(record["step"] <= 3))
    assert [record["step"] for record in lines.dropped] == [4, 5]

    error, tries = errno.ESTALE, list[int]()
    original = os.fdopen

    def broken(*rest: Any, **named: Any) -> Any:
        """A file system that takes half of the line and is gone for a moment."""
        if len(tries) < 3:
            with original(*rest, **named) as file:
                file.seek(0, os.SEEK_END)
                tries.append(file.write(b'{"half'))
            raise OSError(error, os.strerror(error))
        return original(*rest, **named)

    monkeypatch.setattr(os, "fdopen", broken)
    lines.add({"step": 4})
    assert [record["step"] for record in read_lines(path)] == [1, 2, 3, 4]
    assert len(tries) == 3
    error = errno.ENOSPC
    tries.clear()
    with pytest.raises(OSError, match="No space left") as caught:
        lines.add({"step": 5})
    assert (caught.value.filename, len(tries)) == (str(path), 1)


def test_lines_without_space_are_dropped_and_said_once(
    shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of metrics and goodput; what had space before and after is there, and no half line between them."""
    original = Lines._put

    def put(lines: Lines, line: bytes) -> None:
        record = json.loads(line)
        if ("loss" in record and record["step"] in (3, 4)) or "restart" in record:
            original(lines, line[:20])  # half of it still fits
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        original(lines, line)

    monkeypatch.setattr(Lines, "_put", put)
    loop.train(tiny_config(shards, tmp_path, steps=6, log_every=3, lr=0.0))
    assert [record["step"] for record in read_lines(tmp_path / "run/metrics.jsonl")] == [1, 2, 5, 6]
    said = capsys.readouterr().out
    assert said.count("metrics.jsonl: No space left on device: lines are dropped until there is space\n") == 1
    assert said.count("goodput.jsonl: No space left on device: lines are dropped until there is space\n") == 1


def test_wandb_is_offline_with_one_id_for_the_chain(
    shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[dict[str, Any]] = []
    logged: list[int] = []

    class _Run:
        def log(self, numbers: dict[str, float], step: int) -> None:
            assert "loss" in numbers
            logged.append(step)

        def finish(self) -> None:
            logged.append(-1)

    def init(**options: Any) -> _Run:
        calls.append(options)
        return _Run()

    monkeypatch.setitem(sys.modules, "wandb", types.SimpleNamespace(init=init))
    for steps in (2, 4):
        loop.train(tiny_config(shards, tmp_path, wandb="p", steps=steps, schedule="constant"))
    assert [call["mode"] for call in calls] == ["offline", "offline"]
    assert calls[0]["id"] == calls[1]["id"]
    assert logged == [1, 2, -1, 3, 4, -1]
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(UsageError, match="needs the package wandb"):
        loop.train(tiny_config(shards, tmp_path, wandb="p", steps=4, schedule="constant"))


def test_profile(shards: Path, tmp_path: Path) -> None:
    loop.train(tiny_config(shards, tmp_path, profile=1, steps=5))
    assert json.loads((tmp_path / "run/profile.json").read_text())["traceEvents"]


def test_goodput_adds_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([10.0, 40.0, 45.0, 95.0])
    monkeypatch.setattr("train.metrics.time.monotonic", lambda: next(clock))
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
    assert said.startswith("goodput: 60.6% of 0.03 h in 1 attempts")


def test_goodput_of_killed_attempts(shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A killed attempt leaves its line, and what was lost is taken off in seconds: never less than nothing."""
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
    """From the last line of the attempt before to the start of the process nothing useful was done."""
    path = tmp_path / "goodput.jsonl"
    monkeypatch.setattr("train.metrics.time.monotonic", lambda: 100.0)
    monkeypatch.setenv("PRETOK_RESTART", "exit code 137")
    Goodput(100.0, path).write(1, 0.0)
    (line,) = read_lines(path)
    assert (line["restart"], line["restarting"]) == ("exit code 137", 0.0)  # nothing went before
    path.write_text(json.dumps(line | {"time": "2026-01-01T00:00:00Z", "training": 50.0}) + "\n")
    monkeypatch.setattr("train.metrics.time.time", lambda: 1767225600.0 + 50)  # 50 s after
    said = Goodput(90.0, path).write(1, 0.0)
    assert read_lines(path)[1]["restarting"] == 40
    assert "restarting 40.0%" in said
    monkeypatch.delenv("PRETOK_RESTART")
    assert Goodput(100.0, path).write(1, 0.0)
    assert read_lines(path)[2]["restarting"] == 0.0  # the next job; the queue is not counted


def test_the_rank_that_costs_most_is_the_slowest() -> None:
    hosts = ["a", "b", "c"]
    found = slowest([(0.0, 0.2, 1e-3), (0.1, 0.2, 1.5e-3), (0.0, 0.2, 1e-3)], hosts, 1.0)
    assert (found["rank"], found["host"], found["kind"]) == (1, "b", "device")
    # A device that is half slower, and not the tenth of a second of data.
    assert found["behind"] == pytest.approx(0.5)
    found = slowest([(0.0, 0.2, 1e-3), (0.1, 0.2, 1e-3), (0.0, 0.5, 1e-3)], hosts, 2.0)
    assert (found["rank"], found["kind"], found["behind"]) == (2, "host", pytest.approx(0.15))
    assert slowest([(0.1, 0.1, 0.1)] * 3, hosts, 1.0)["behind"] == 0.0


class _Steady:
    """A mark beside a matrix product that takes a millisecond on every rank, however busy the machine is."""

    def __init__(self, device: object) -> None: ...

    def seconds_since(self, _begin: object) -> float:
        return 1e-3


def _slow_data_on_rank_1() -> None:
    from train import stragglers
    from train.data import Feed

    stragglers.EVERY = 4
    stragglers.Mark = _Steady  # type: ignore[assignment,misc]
    if os.environ["RANK"] != "1":
        return
    original = Feed.__iter__

    def slow(feed: Feed) -> Any:
        for fetched in original(feed):
            feed.waited += 30.0  # far longer than a step may take
            yield fetched

    Feed.__iter__ = slow  # type: ignore[method-assign]


def test_a_slow_rank_is_named_in_metrics_and_on_the_terminal(shards: Path, tmp_path: Path) -> None:
    flags = tiny_flags(shards, tmp_path, global_batch=6, steps=12, save_every="never")
    ranks = Ranks(3, flags, tmp_path, _slow_data_on_rank_1)
    assert ranks.wait() == [0, 0, 0], ranks.text()
    looks = [line["slowest"] for line in read_lines(tmp_path / "run/metrics.jsonl") if line["slowest"]]
    assert len(looks) == 3
    for look in looks:
        assert (look["rank"], look["kind"]) == (1, "data")
        assert (
            20 < look["seconds"] < 40
        )  # one more fetched than steps done at the first look, one less at the last
        assert look["behind"] > NOTABLE
    assert f"slow: rank 1 on {os.uname().nodename}: waiting for data takes 3" in ranks.text()
