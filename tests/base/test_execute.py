"""The engine: every item once, retries, stops, alike in this process, in processes of this node and on Ray."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest
from support import TASK_PATH, children, until

from pretok.base import execute as engine_module
from pretok.base.errors import InternalError, MismatchError, PartitionsFailed, Stopped
from pretok.base.execute import WORKER_ENVIRONMENT, Engine, Report
from pretok.base.failures import TaskError
from pretok.base.stop import StopFlag


def square(item: int, report: Report) -> int:
    report({"items": 1})
    return item * item


def fail_twice(path: Path, report: Report) -> str:
    """Fails until two marks are there."""
    marks = len(list(path.parent.glob(f"{path.name}.*")))
    if marks < 2:
        path.with_name(f"{path.name}.{marks}").touch()
        raise OSError(errno.EIO, f"mark {marks}")
    return path.name


def die_once(path: Path, report: Report) -> str:
    """Takes its whole process with it, the first time."""
    if not path.exists():
        path.touch()
        os._exit(1)
    return path.name


class Panic(BaseException):
    """As pyo3 raises for a panic: no Exception, and not made again from its arguments."""

    def __init__(self, text: str, code: int) -> None:
        super().__init__(text)
        self.code = code


def fails(case: tuple[str, Path], report: Report) -> int:
    """Fails for good in one of several ways; counts its tries."""
    kind, folder = case
    (folder / f"{kind}.{len(list(folder.iterdir()))}").touch()
    if kind == "bug":
        raise ValueError("cannot do it\nsecond line")
    if kind == "panic":
        raise Panic("regex gave up", 3)
    if kind == "handles":
        raise OSError(errno.EMFILE, "Too many open files", str(folder))
    if kind == "refused":
        raise MismatchError("made from\nsomething else")
    raise OSError(errno.ESTALE, "stale file handle")


def touch_and_wait(path: Path, report: Report) -> None:
    """Says that it runs, and does so for long."""
    path.touch()
    for _ in range(600):
        time.sleep(0.1)
        report({"items": 1})


def touch_or_square(item: int | Path, report: Report) -> int | None:
    return touch_and_wait(item, report) if isinstance(item, Path) else square(item, report)


def environment(item: int, report: Report) -> dict[str, str]:
    return {name: os.environ.get(name, "") for name in WORKER_ENVIRONMENT}


def give_back_a_lambda(item: int, report: Report) -> object:
    return lambda: item


def preload() -> None:
    """What the parent of the workers calls."""
    os.environ["PRELOADED"] = str(os.getpid())


def process(item: int, report: Report) -> str:
    assert os.environ["PRELOADED"] == str(os.getppid())
    return str(os.getpid())


def touch_own(folder: Path, report: Report) -> None:
    (folder / str(os.getpid())).touch()
    time.sleep(0.2)


WHERE = ["here", "processes", "ray"]


@pytest.fixture(params=WHERE)
def engine(request):
    address = request.getfixturevalue("ray_address") if request.param == "ray" else None
    with StopFlag() as stop, Engine(0 if request.param == "here" else 2, address, stop) as made:
        yield made


def test_every_item_once_with_its_index_and_reports(engine):
    seen: Counter[str] = Counter()
    outcomes = list(engine.map(square, list(range(20)), seen.update))
    assert sorted((o.index, o.result) for o in outcomes) == [(i, i * i) for i in range(20)]
    assert all(o.node and 0 <= o.seconds < 60 and 1 << 20 < o.peak < 1 << 34 for o in outcomes)
    assert seen == {"items": 20}


def test_what_fails_twice_is_tried_again(engine, tmp_path):
    items = [tmp_path / name for name in ("a", "b")]
    outcomes = {o.index: (o.result, o.tries) for o in engine.map(fail_twice, items)}
    assert outcomes == {0: ("a", 3), 1: ("b", 3)}


FAILURES = {
    "bug": (InternalError, "ValueError: cannot do it", 1),
    "panic": (InternalError, "Panic: regex gave up", 1),
    "refused": (MismatchError, "made from\nsomething else", 1),
    "handles": (PartitionsFailed, None, 4),
    "passing": (PartitionsFailed, "OSError: [Errno 116] stale file handle", 4),
}
"""Kind -> what a job raises, the message, how often it is tried."""


def test_a_failure_is_a_result_of_its_kind_tried_again_only_where_it_may_pass(engine, tmp_path):
    outcomes = {o.index: o.result for o in engine.map(fails, [(kind, tmp_path) for kind in FAILURES])}
    for index, (kind, (raises, message, tries)) in enumerate(FAILURES.items()):
        error = outcomes[index]
        assert isinstance(error, TaskError)
        message = message or f"{tmp_path}: Too many open files"
        assert (error.raises, error.message) == (raises, message)
        assert "in fails" in error.trace
        assert len(list(tmp_path.glob(f"{kind}.*"))) == tries, kind
    assert [o.result for o in engine.map(square, [3])] == [9]


@pytest.mark.parametrize("where", WHERE[1:])
def test_a_dead_worker_is_replaced(request, where, tmp_path, caplog):
    address = request.getfixturevalue("ray_address") if where == "ray" else None
    with StopFlag() as stop, Engine(1, address, stop) as engine:
        assert [o.result for o in engine.map(die_once, [tmp_path / "a"])] == ["a"]
        (variables,) = [o.result for o in engine.map(environment, [0])]
    assert variables == WORKER_ENVIRONMENT
    assert "trying again: " in caplog.text


def test_a_result_that_cannot_be_pickled_is_an_error_and_workers_go_on():
    with StopFlag() as stop, Engine(1, None, stop) as engine:
        (outcome,) = engine.map(give_back_a_lambda, [1])
        # Python 3.13 says "Can't get local object", others "Can't pickle".
        assert "give_back_a_lambda" in outcome.result.message
        assert [o.result for o in engine.map(square, [3])] == [9]


def test_a_signal_or_the_end_of_the_job_stops(engine, monkeypatch):
    outcomes = engine.map(square, list(range(100)))
    next(outcomes)
    os.kill(os.getpid(), signal.SIGUSR1)
    with pytest.raises(Stopped, match="received SIGUSR1"):
        list(outcomes)
    monkeypatch.setenv("SLURM_JOB_END_TIME", "1000")
    with StopFlag() as stop, pytest.raises(Stopped, match="the job ends in 0 s"):
        list(Engine(0, None, stop).map(square, [1]))


@pytest.mark.parametrize(
    ("workers", "address", "size", "cpus", "here"),
    [
        (0, None, 1 << 40, 8, True),
        (2, None, 0, 8, False),
        (None, "auto", 0, 8, False),
        (None, None, 15_000_000, 8, True),
        (None, None, 10_000_000_000, 8, False),
        (None, None, 10_000_000_000, 1, True),
    ],
)
def test_small_work_stays_in_this_process(monkeypatch, workers, address, size, cpus, here):
    monkeypatch.setattr(
        engine_module, "_Ray", lambda workers, address: SimpleNamespace(workers=cpus, close=int)
    )
    monkeypatch.setattr(engine_module, "_cpus", lambda: cpus)
    with StopFlag() as stop, Engine(workers, address, stop, __name__) as made:
        made.choose(size)
        made.warm(1, square, 3)
        assert made.parallel == (1 if here else workers or cpus)
        if not address:
            assert [o.result for o in made.map(square, [3])] == [9]


def test_workers_load_what_they_are_told_to_before_their_tasks(tmp_path):
    def touched() -> set[str]:
        return {path.name for path in tmp_path.iterdir()}

    with StopFlag() as stop, Engine(2, None, stop, __name__) as engine:
        engine.warm(9, touch_own, tmp_path)
        assert {o.result for o in engine.map(process, range(20))} <= {*touched()}
        assert len(touched()) == 2
        engine.warm(1, touch_own, tmp_path / "nowhere")  # what fails is left to the tasks
        assert [o.result for o in engine.map(square, [3])] == [9]


DRIVER = """
import sys
from pathlib import Path
from pretok.base.execute import Engine
from pretok.base.stop import StopFlag
from test_execute import touch_and_wait
if __name__ == "__main__":
    with StopFlag() as stop, Engine(1, None, stop) as engine:
        list(engine.map(touch_and_wait, [Path(sys.argv[1])]))
"""


@pytest.mark.parametrize("ended", ["driver", "nursery", "stopped"])
def test_no_worker_outlives_the_driver(tmp_path, ended):
    """While a task runs its driver or the parent of the workers gets a SIGKILL, or the driver is told to stop."""
    driver = subprocess.Popen(
        [sys.executable, "-c", DRIVER, str(tmp_path / "mark")],
        env={**os.environ, "PYTHONPATH": TASK_PATH},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        until(lambda: (tmp_path / "mark").exists())
        (nursery,) = children(driver.pid)
        (worker,) = children(nursery)
        if ended == "nursery":
            os.kill(nursery, signal.SIGKILL)
        else:
            driver.send_signal(signal.SIGTERM if ended == "stopped" else signal.SIGKILL)
        _, errors = driver.communicate(timeout=60)
        said = {"driver": "", "nursery": "EngineLost: the parent of the workers died", "stopped": "Stopped: "}
        assert said[ended] in errors
        until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in (worker, nursery)))
    finally:
        driver.kill()
        driver.wait()


def test_a_map_that_is_left_ends_its_tasks_and_the_next_one_works(tmp_path):
    before = children(os.getpid())
    with StopFlag() as stop, Engine(2, None, stop) as engine:
        outcomes = engine.map(touch_or_square, [3, tmp_path / "mark"])
        assert next(outcomes).result == 9
        until(lambda: (tmp_path / "mark").exists())
        (nursery,) = {*children(os.getpid())} - {*before}
        workers = children(nursery)
        outcomes.close()
        until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in workers))
        assert [o.result for o in engine.map(square, [3])] == [9]


def test_signals_are_for_the_driver_though_its_workers_only_begin():
    before = children(os.getpid())
    with StopFlag() as stop, Engine(1, None, stop, __name__) as engine:
        (nursery,) = {*children(os.getpid())} - {*before}
        for number in (signal.SIGINT, signal.SIGTERM):
            os.kill(nursery, number)
        assert [o.result for o in engine.map(square, [3])] == [9]
