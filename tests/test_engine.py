"""The engine: every item once, retries, stops, in this process and on Ray alike."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from pretok.engine import WORKER_ENVIRONMENT, Engine, Report, TaskError
from pretok.errors import Stopped
from pretok.stop import StopFlag


def square(item: int, report: Report) -> int:
    report({"items": 1})
    return item * item


def fail_twice(path: Path, report: Report) -> str:
    """Fails until two marks are there."""
    marks = len(list(path.parent.glob(f"{path.name}.*")))
    if marks < 2:
        path.with_name(f"{path.name}.{marks}").touch()
        raise RuntimeError(f"mark {marks}")
    return path.name


def die_once(path: Path, report: Report) -> str:
    """Takes its whole process with it, the first time."""
    if not path.exists():
        path.touch()
        os._exit(1)
    return path.name


def always_fails(item: int, report: Report) -> int:
    raise ValueError(f"cannot do {item}\nsecond line")


def environment(item: int, report: Report) -> dict[str, str]:
    return {name: os.environ.get(name, "") for name in WORKER_ENVIRONMENT}


@pytest.fixture(params=["here", "ray"])
def engine(request):
    address = request.getfixturevalue("ray_address") if request.param == "ray" else None
    with StopFlag() as stop, Engine(2 if address else 0, address, stop) as made:
        yield made


def test_every_item_once_with_its_index_and_reports(engine):
    seen: dict[str, int] = {}

    def on_report(counts):
        for key, value in counts.items():
            seen[key] = seen.get(key, 0) + value

    outcomes = list(engine.map(square, list(range(20)), on_report))
    assert sorted((o.index, o.result) for o in outcomes) == [(i, i * i) for i in range(20)]
    assert all(o.node and 0 <= o.seconds < 60 and 1 << 20 < o.peak < 1 << 34 for o in outcomes)
    assert seen == {"items": 20}


def test_failures_are_tried_again(engine, tmp_path):
    items = [tmp_path / name for name in ("a", "b")]
    results = {o.index: o.result for o in engine.map(fail_twice, items)}
    assert results == {0: "a", 1: "b"}


def test_a_lasting_failure_is_a_result_and_the_others_go_on(engine):
    outcomes = list(engine.map(always_fails, [1, 2], retries=1))
    assert len(outcomes) == 2
    for outcome in outcomes:
        assert isinstance(outcome.result, TaskError)
        assert outcome.result.message == f"ValueError: cannot do {outcome.index + 1}"
        assert "always_fails" in outcome.result.trace
    assert [o.result for o in engine.map(square, [3])] == [9]


def test_a_dead_worker_is_replaced(ray_address, tmp_path):
    with StopFlag() as stop, Engine(1, ray_address, stop) as engine:
        assert [o.result for o in engine.map(die_once, [tmp_path / "a"])] == ["a"]
        (variables,) = [o.result for o in engine.map(environment, [0])]
    assert variables == WORKER_ENVIRONMENT


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_a_signal_stops_between_items(engine, number):
    outcomes = engine.map(square, list(range(100)))
    next(outcomes)
    os.kill(os.getpid(), number)
    with pytest.raises(Stopped, match=f"received {number.name}"):
        list(outcomes)


def test_the_end_of_the_job_stops(monkeypatch):
    monkeypatch.setenv("SLURM_JOB_END_TIME", "1000")
    with StopFlag() as stop, pytest.raises(Stopped, match="the job ends in 0 s"):
        list(Engine(0, None, stop).map(square, [1]))
