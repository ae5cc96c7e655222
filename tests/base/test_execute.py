"""The engine: every item once, retries, stops, alike in this process, in processes of this node and on Ray.

Of workers and their parent that are killed, and of SIGTERM in the middle of the work, tests/test_faults.py and
tests/test_cli.py have tests.
"""

from __future__ import annotations

import errno
import importlib.util
import itertools
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
import ray
from ray.exceptions import AuthenticationError
from support import TASK_PATH, children, until

import pretok
from pretok.base import execute as engine_module
from pretok.base.errors import EngineLost, InternalError, MismatchError, PartitionsFailed, Stopped, UsageError
from pretok.base.execute import WORKER_ENVIRONMENT, Engine, Report
from pretok.base.failures import TaskError
from pretok.base.stop import StopFlag


def square(item: int, report: Report) -> int:
    report({"items": 1})
    return item * item


class Panic(BaseException):
    """As pyo3 raises for a panic: not an Exception, and cannot be made again from its arguments."""

    def __init__(self, text: str, code: int) -> None:
        super().__init__(text)
        self.code = code


ERRORS = {
    "bug": ValueError("cannot do it\nsecond line"),
    "panic": Panic("regex gave up", 3),
    "refused": MismatchError("made from\nsomething else"),
    "handles": OSError(errno.EMFILE, "Too many open files", "a.jsonl"),
    "passes": OSError(errno.ESTALE, "stale file handle"),
}
OUTCOMES = {
    "bug": (InternalError, "ValueError: cannot do it", 1),
    "panic": (InternalError, "Panic: regex gave up", 1),
    "refused": (MismatchError, "made from\nsomething else", 1),
    "handles": (PartitionsFailed, "a.jsonl: Too many open files", 4),
    "passes": (PartitionsFailed, "OSError: [Errno 116] stale file handle", 4),
    "fails twice": ("fails twice", "", 3),
    "dies once": ("dies once", "", 2),
    "always dies": (PartitionsFailed, "", 4),
    "no pickle": (InternalError, "give_back", 1),
}
"""Task -> its result, or what a job raises; the message; how often it is tried."""
ELSEWHERE = {
    "here": {"dies once", "always dies", "no pickle"},
    "processes": set(),
    "ray": {"always dies", "no pickle"},
}
"""Tasks that an engine does not get: Ray's own pickle knows functions."""


def give_back(case: tuple[str, Path], report: Report) -> object:
    kind, folder = case
    (folder / f"{kind}.{time.time_ns()}").touch()
    report({"items": 1})
    tries = len(list(folder.glob(f"{kind}.*")))
    if kind in ERRORS:
        raise ERRORS[kind]
    if kind == "fails twice" and tries <= 2:
        raise OSError(errno.EIO, "Input/output error")
    if kind == "always dies" or (kind == "dies once" and tries == 1):
        os._exit(1)
    return (lambda: kind) if kind == "no pickle" else kind


def environment(item: int, report: Report) -> dict[str, str]:
    return {name: os.environ.get(name, "") for name in WORKER_ENVIRONMENT}


def square_or_wait(item: int | Path, report: Report) -> int | None:
    if isinstance(item, int):
        return square(item, report)
    item.touch()
    for _ in range(600):
        time.sleep(0.1)
    return None


def preload() -> None:
    """What the parent of the workers calls."""
    os.environ["PRELOADED"] = str(os.getpid())


def load_once(item: str, report: Report) -> int:
    os.environ["LOADED"] = str(os.getpid())
    return os.getpid()


def loaded_in(item: int, report: Report) -> int:
    return int(os.environ["LOADED"])


def cannot_load(error: Exception | None, report: Report) -> None:
    if error is None:
        os._exit(1)
    raise error


def touch_own(folder: Path, report: Report) -> str:
    assert os.environ["PRELOADED"] == str(os.getppid())
    (folder / str(os.getpid())).touch()
    time.sleep(0.1)
    return str(os.getpid())


@pytest.fixture(params=ELSEWHERE)
def engine(request):
    address = request.getfixturevalue("ray_address") if request.param == "ray" else None
    with StopFlag() as stop, Engine(0 if request.param == "here" else 2, address, stop) as engine:
        yield engine


def test_every_item_has_its_outcome_and_only_what_may_pass_is_tried_again(request, engine, tmp_path):
    where = request.node.callspec.params["engine"]
    seen: Counter[str] = Counter()
    outcomes = list(engine.map(square, list(range(20)), lambda _, counts: seen.update(counts)))
    assert sorted((o.index, o.result) for o in outcomes) == [(i, i * i) for i in range(20)]
    assert all(o.node and 0 <= o.seconds < 60 and 1 << 20 < o.peak < 1 << 34 for o in outcomes)
    assert seen == {"items": 20}
    kinds = [kind for kind in OUTCOMES if kind not in ELSEWHERE[where]]
    seen.clear()
    for outcome in engine.map(
        give_back, [(kind, tmp_path) for kind in kinds], lambda _, counts: seen.update(counts)
    ):
        result, (expected, message, tries) = outcome.result, OUTCOMES[kinds[outcome.index]]
        if isinstance(result, TaskError):
            assert message in result.message
            assert kinds[outcome.index] in ("no pickle", "always dies") or "in give_back" in result.trace
            result = result.raises
        assert (result, outcome.tries) == (expected, tries)
        assert len(list(tmp_path.glob(f"{kinds[outcome.index]}.*"))) == tries
    assert seen["items"] == sum(kind == OUTCOMES[kind][0] for kind in kinds)
    if where != "here":
        assert [o.result for o in engine.map(environment, [0])] == [WORKER_ENVIRONMENT]


def test_an_item_waits_before_it_is_tried_again_behind_the_others(monkeypatch, here, tmp_path):
    monkeypatch.setattr("pretok.base.storage.WAITS", (0.1, 0.1))
    cases = [("fails twice", tmp_path), ("other", tmp_path)]
    assert [o.result for o in here.map(give_back, cases)] == ["other", "fails twice"]
    times = sorted(int(path.suffix[1:]) for path in tmp_path.glob("fails twice.*"))
    assert all(later - earlier > 0.09e9 for earlier, later in itertools.pairwise(times))


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
    ("workers", "size", "cpus", "here"),
    [(0, 1 << 40, 8, 1), (2, 0, 8, 2), (None, 15e6, 8, 1), (None, 1e10, 8, 8), (None, 1e10, 1, 1)],
)
def test_small_work_stays_in_this_process(monkeypatch, workers, size, cpus, here):
    kind = type("Counted", (), {"__init__": lambda self, workers, *_: setattr(self, "workers", workers)})
    monkeypatch.setattr(engine_module, "Processes", kind)
    monkeypatch.setattr(engine_module, "_cpus", lambda: cpus)
    engine = Engine(workers, None, StopFlag())
    engine.choose(size)
    assert engine.parallel == here


def fail(error: Exception) -> Callable[..., None]:
    def raises(*_: object, **__: object) -> None:
        raise error

    return raises


@pytest.mark.parametrize(
    ("address", "patched", "message"),
    [
        ("node1", {}, "cannot use the Ray cluster at node1: Invalid address format"),
        ("127.0.0.1:1", {}, "no Ray cluster answers at 127.0.0.1:1: .*refused"),
        ("ray://node1:10001", {}, "client server.* such as node1:6379"),
        ("local", {}, "leave it out to use processes of this node"),
        (
            "CLUSTER",
            {"ray._raylet.GcsClient": fail(AuthenticationError("wrong"))},
            "wants a token: set RAY_AUTH",
        ),
        (
            "CLUSTER",
            {"ray.init": fail(RuntimeError("Version mismatch:\n  Ray 2"))},
            "Version mismatch: Ray 2$",
        ),
        (
            "CLUSTER",
            {"ray.nodes": lambda: [{"Alive": True, "Resources": {"CPU": 0.5}}]},
            r"no node .*\(1 nodes\)",
        ),
        (
            "CLUSTER",
            {"ray.nodes": lambda: [{"Alive": False, "Resources": {"CPU": 8}}]},
            r"no node .*\(0 nodes\)",
        ),
    ],
)
def test_a_cluster_that_cannot_be_used_is_refused_with_the_reason(
    request, monkeypatch, address, patched, message
):
    if address == "CLUSTER":
        address = request.getfixturevalue("ray_address")
        with StopFlag() as stop, Engine(2, address, stop) as engine:
            list(engine.map(square, [1]))  # it has started
    monkeypatch.setattr("pretok.base.execute.CONNECT_SECONDS", 0.1)
    for name, value in patched.items():
        monkeypatch.setattr(name, value)
    monkeypatch.setattr("ray.is_initialized", lambda: False)  # the connection of all tests
    with pytest.raises(UsageError, match=message):
        next(Engine(None, address, StopFlag()).map(square, [1]))


@pytest.mark.parametrize("differs", ["a file", "Python"])
def test_a_node_with_another_program_is_refused_by_name(monkeypatch, ray_address, tmp_path, differs):
    if differs == "Python":
        monkeypatch.setattr("platform.python_version", lambda: "3.99.1")
    else:
        spec = importlib.util.find_spec("pretok")
        copy = shutil.copytree(Path(spec.origin).parent, tmp_path / "pretok")
        (copy / "kernels" / "unicode.txt").write_text("changed")
        other = importlib.util.spec_from_file_location("pretok", copy / "__init__.py")
        monkeypatch.setattr("importlib.util.find_spec", lambda _: other)
    with StopFlag() as stop, Engine(1, ray_address, stop) as engine, pytest.raises(UsageError) as refused:
        list(engine.map(give_back, [("other", tmp_path)]))
    node, version = os.uname().nodename, rf"pretok {pretok.__version__} \((\w+)\), Python (\S+)"
    found = re.match(
        rf"node {node} of the Ray cluster has {version}, and {node} has {version}: ", str(refused.value)
    )
    assert [found[1] == found[3], found[2] == found[4]] == [differs == "Python", differs == "a file"]
    assert not list(tmp_path.glob("other.*"))  # it did not begin


def test_a_job_says_that_others_use_all_cpus(monkeypatch, ray_address, tmp_path):
    with StopFlag() as stop, Engine(1, ray_address, stop) as engine:
        assert [o.result for o in engine.map(square, [2])] == [4]

    @ray.remote(num_cpus=2)
    def other_job() -> None:
        (tmp_path / "begun").touch()
        while not (tmp_path / "end").exists():
            time.sleep(0.05)

    other_job.remote()
    ray.shutdown()  # of `one_connection`: the job goes on
    until((tmp_path / "begun").exists)
    said = []
    monkeypatch.setattr("pretok.base.execute.PATIENCE_SECONDS", 0.1)
    monkeypatch.setattr("pretok.base.execute.POLL_SECONDS", 0.2)

    def warning(text: str, *values: object) -> None:
        said.append(text % values)
        (tmp_path / "end").touch()

    monkeypatch.setattr(engine_module.logger, "warning", warning)
    with StopFlag() as stop, Engine(1, ray_address, stop) as engine:
        assert [o.result for o in engine.map(square, [3])] == [9]
    assert len(said) == 1
    assert f"free CPU of the Ray cluster at {ray_address}: other jobs use its 2" in said[0]


def test_workers_load_before_their_tasks_and_signals_are_for_the_driver(tmp_path):
    before = children(os.getpid())
    with StopFlag() as stop, Engine(2, None, stop, __name__) as engine:
        (nursery,) = {*children(os.getpid())} - {*before}
        for number in (signal.SIGINT, signal.SIGTERM):
            os.kill(nursery, number)
        assert engine.prepare(load_once, "what tasks use") == nursery
        workers = {o.result for o in engine.map(touch_own, [tmp_path] * 6)}
        assert workers == {path.name for path in tmp_path.iterdir()}
        assert len(workers) == 2
        # They were forked from the process that has loaded it, and once only.
        assert {o.result for o in engine.map(loaded_in, [0] * 6)} == {nursery}


@pytest.mark.parametrize(("workers", "address"), [(0, None), (1, None), (1, "of a cluster")])
def test_what_cannot_be_loaded_ends_the_command(workers, address):
    with StopFlag() as stop, Engine(workers, address, stop) as engine:
        with pytest.raises(UsageError, match="no tokenizer"):
            engine.prepare(cannot_load, UsageError("no tokenizer"))
        if workers and not address:
            with pytest.raises(EngineLost, match="the parent process of the workers died"):
                engine.prepare(cannot_load, None)


DRIVER = """
import sys
from pathlib import Path
from pretok.base.execute import Engine
from pretok.base.stop import StopFlag
from test_execute import square_or_wait
with StopFlag() as stop, Engine(1, None, stop) as engine:
    list(engine.map(square_or_wait, [Path(sys.argv[1])]))
"""


def test_no_worker_outlives_a_killed_driver(tmp_path):
    driver = subprocess.Popen(
        [sys.executable, "-c", DRIVER, str(tmp_path / "mark")], env={**os.environ, "PYTHONPATH": TASK_PATH}
    )
    try:
        until(lambda: (tmp_path / "mark").exists())
        (nursery,) = children(driver.pid)
        (worker,) = children(nursery)
    finally:
        driver.kill()
        driver.wait()
    until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in (worker, nursery)))


def test_a_map_that_is_left_ends_its_tasks_and_the_next_one_works(tmp_path):
    before = children(os.getpid())
    with StopFlag() as stop, Engine(2, None, stop) as engine:
        outcomes = engine.map(square_or_wait, [3, tmp_path / "mark"])
        assert next(outcomes).result == 9
        until(lambda: (tmp_path / "mark").exists())
        (nursery,) = {*children(os.getpid())} - {*before}
        workers = children(nursery)
        outcomes.close()
        until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in workers))
        assert [o.result for o in engine.map(square, [3])] == [9]
