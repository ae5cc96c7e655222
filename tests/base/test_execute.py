"""The engine: every item once, retries, stops, alike in this process, in processes of this node and on Ray.

Of workers and their parent that are killed, and of SIGTERM in the middle of the work, tests/test_faults.py and
tests/test_cli.py have tests.
"""

from __future__ import annotations

import itertools
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from pathlib import Path

import engine_tasks
import pytest
import ray
from engine_tasks import (
    cannot_load,
    environment,
    give_back,
    load_once,
    square,
    square_or_wait,
    touch_own,
)
from ray.exceptions import AuthenticationError
from support import TASK_PATH, children, until

import pretok
from pretok.base import execute as engine_module
from pretok.base.errors import EngineLost, InternalError, MismatchError, PartitionsFailed, Stopped, UsageError
from pretok.base.execute import WORKER_ENVIRONMENT, Engine
from pretok.base.failures import TaskError
from pretok.base.stop import StopFlag

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


@pytest.fixture(params=ELSEWHERE)
def engine(request):
    address = request.getfixturevalue("ray_address") if request.param == "ray" else None
    with StopFlag() as stop, Engine(0 if request.param == "here" else 2, address, stop) as engine:
        yield engine


def test_every_item_has_its_outcome_only_what_may_pass_is_tried_again_and_a_signal_stops(
    request, engine, tmp_path
):
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
    stopped = engine.map(square, list(range(100)))
    next(stopped)
    os.kill(os.getpid(), signal.SIGUSR1)
    with pytest.raises(Stopped, match="received SIGUSR1"):
        list(stopped)


def test_an_item_waits_before_it_is_tried_again_behind_the_others(monkeypatch, here, tmp_path):
    monkeypatch.setattr("pretok.base.storage.WAITS", (0.1, 0.1))
    cases = [("fails twice", tmp_path), ("other", tmp_path)]
    assert [o.result for o in here.map(give_back, cases)] == ["other", "fails twice"]
    times = sorted(int(path.suffix[1:]) for path in tmp_path.glob("fails twice.*"))
    assert all(later - earlier > 0.09e9 for earlier, later in itertools.pairwise(times))


def test_the_end_of_the_job_stops(monkeypatch):
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


NODES = {"ray.init": lambda **_: None, "ray.shutdown": lambda: None}
"""A cluster to which a program connects, which `ray.nodes` tells about."""


@pytest.mark.parametrize(
    ("address", "patched", "message"),
    [
        ("node1", {}, "cannot use the Ray cluster at node1: Invalid address format"),
        ("127.0.0.1:1", {}, "no Ray cluster answers at 127.0.0.1:1: .*refused"),
        ("ray://node1:10001", {}, "client server.* such as node1:6379"),
        ("local", {}, "leave it out to use processes of this node"),
        ("", {"ray._raylet.GcsClient": fail(AuthenticationError("wrong"))}, "wants a token: set RAY_AUTH"),
        ("", {"ray.init": fail(RuntimeError("Version mismatch:\n  Ray 2"))}, "Version mismatch: Ray 2$"),
        ("", {"ray.nodes": lambda: [{"Alive": True, "Resources": {"CPU": 0.5}}]}, r"no node .*\(1 nodes\)"),
        ("", {"ray.nodes": lambda: [{"Alive": False, "Resources": {"CPU": 8}}]}, r"no node .*\(0 nodes\)"),
    ],
)
def test_a_cluster_that_cannot_be_used_is_refused_with_the_reason(monkeypatch, address, patched, message):
    monkeypatch.setattr("pretok.base.execute.CONNECT_SECONDS", 0.1)
    monkeypatch.setattr("ray.is_initialized", lambda: False)  # the connection of all tests
    if not address:
        patched = NODES | {"ray._raylet.GcsClient": lambda **_: None} | patched
    for name, value in patched.items():
        monkeypatch.setattr(name, value)
    with socket.create_server(("", 0)) as listener:  # Ray finds 127.0.0.1 at another address of this node
        outcomes = Engine(None, address or f"127.0.0.1:{listener.getsockname()[1]}", StopFlag()).map(
            square, [1]
        )
        with pytest.raises(UsageError, match=message):
            next(outcomes)


def test_a_node_with_another_program_is_refused_by_name(monkeypatch, ray_address, tmp_path):
    """Whichever differs; on a real cluster no task begins."""
    (tmp_path / "pretok").mkdir()
    (tmp_path / "pretok" / "__init__.py").write_text("changed")
    node, program = os.uname().nodename, rf"pretok {pretok.__version__} \((\w+)\), Python (\S+)"
    refusal = f"node {node} of the Ray cluster has {program}, and {node} has {program}: "
    other = ModuleSpec("pretok", None, origin=str(tmp_path / "pretok" / "__init__.py"))
    for name, value in (
        ("importlib.util.find_spec", lambda _: other),
        ("platform.python_version", lambda: "3.99.1"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(name, value)
            there = engine_module._where_it_is_the_same()
        found = re.match(refusal, there(b""))
        assert [found[1] != found[3], found[2] != found[4]] == ["find_spec" in name, "find_spec" not in name]
    monkeypatch.setattr("platform.python_version", lambda: "3.99.1")
    with StopFlag() as stop, Engine(1, ray_address, stop) as engine, pytest.raises(UsageError, match=refusal):
        list(engine.map(give_back, [("other", tmp_path)]))
    assert not list(tmp_path.glob("other.*"))  # it did not begin


def test_a_job_says_that_others_use_all_cpus(monkeypatch, ray_address, tmp_path):
    ray.init(address=ray_address, log_to_driver=False)

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
    with StopFlag() as stop, Engine(2, None, stop, engine_tasks.__name__) as engine:
        (nursery,) = {*children(os.getpid())} - {*before}
        for number in (signal.SIGINT, signal.SIGTERM):
            os.kill(nursery, number)
        assert engine.prepare(load_once, "what tasks use") == nursery
        # They were forked from the process that has loaded it, and once only.
        workers, loaders = zip(*(o.result for o in engine.map(touch_own, [tmp_path] * 6)), strict=True)
        assert {*workers} == {path.name for path in tmp_path.iterdir()}
        assert len({*workers}) == 2
        assert {*loaders} == {str(nursery)}


@pytest.mark.parametrize(("workers", "address"), [(0, None), (1, None), (1, "of a cluster")])
def test_what_cannot_be_loaded_ends_the_command(workers, address):
    with StopFlag() as stop, Engine(workers, address, stop) as engine:
        with pytest.raises(UsageError, match="no tokenizer"):
            engine.prepare(cannot_load, UsageError("no tokenizer"))
        if workers and not address:
            with pytest.raises(EngineLost, match="the parent process of the workers died"):
                engine.prepare(cannot_load, None)


def until_gone(*processes: int) -> None:
    until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in processes))


DRIVER = """
import sys
from pathlib import Path
from pretok.base.execute import Engine
from pretok.base.stop import StopFlag
from engine_tasks import square_or_wait
with StopFlag() as stop, Engine(1, None, stop) as engine:
    list(engine.map(square_or_wait, [Path(sys.argv[1])]))
"""


def test_no_worker_outlives_a_killed_driver(tmp_path):
    command = [sys.executable, "-c", DRIVER, str(tmp_path / "mark")]
    with subprocess.Popen(command, env={**os.environ, "PYTHONPATH": TASK_PATH}) as driver:
        try:
            until((tmp_path / "mark").exists)
            (nursery,) = children(driver.pid)
            (worker,) = children(nursery)
        finally:
            driver.kill()
    until_gone(worker, nursery)


def test_a_map_that_is_left_ends_its_tasks_and_the_next_one_works(tmp_path):
    before = children(os.getpid())
    with StopFlag() as stop, Engine(2, None, stop) as engine:
        outcomes = engine.map(square_or_wait, [3, tmp_path / "mark"])
        assert next(outcomes).result == 9
        until((tmp_path / "mark").exists)
        (nursery,) = {*children(os.getpid())} - {*before}
        workers = children(nursery)
        outcomes.close()
        until_gone(*workers)
        assert [o.result for o in engine.map(square, [3])] == [9]
