"""What a task costs the driver, and how many workers one driver can therefore feed.

Input: nothing. Output: tasks a second and CPU milliseconds of the driver for each, log and report of progress
included, with tasks that do nothing: as many in flight as two workers get, and as many as 1,000 and 10,000 workers
would; the same with tasks of a tenth of a second on several nodes that Ray simulates on this machine.

Not in it: what ten thousand workers cost Ray's own servers, and connections to as many nodes.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.measure import fresh, medians
from pretok.base.console import Progress, Silent
from pretok.base.execute import Engine, Report
from pretok.base.joblog import JobLog
from pretok.base.memory import free_memory
from pretok.base.stop import StopFlag
from pretok.base.tasks import Step

EMPTY_TASKS = 3000
DEPTHS = {"2 workers": 4, "1,000 workers": 2_000, "10,000 workers": 20_000}
"""Tasks in flight: two a worker."""
PARTITION_SECONDS = 30
NODES, CPUS, SHORT_TASKS, SHORT_SECONDS = 64, 1, 10_000, 0.1
NODE_BYTES = CPUS * (200 << 20)
"""Memory that a simulated node takes, about: Ray's servers, and its workers."""


def _nothing(item: int, report: Report) -> int:
    report({"documents": 1})
    return item


def _short(item: int, report: Report) -> int:
    time.sleep(SHORT_SECONDS)
    return _nothing(item, report)


class _Logged(Silent):
    """Keeps the log that every command keeps."""

    def __init__(self, folder: Path) -> None:
        self._log = JobLog(folder, "benchmark", {"command": "benchmark"}, print)

    def event(self, name: str, /, **details: object) -> None:
        """Write a line."""
        self._log.write(name, details)


def _drive(engine: Engine, task: Any, count: int, console: Silent) -> dict[str, float]:
    """Tasks a second between the first result and the last; CPU milliseconds of this process a task."""
    began, used = time.perf_counter(), time.process_time()
    first = 0.0
    done = 0
    step = Step(engine, console, Progress())
    for _ in step.map(task, range(count), "partition", str):
        done += 1
        first = first or time.perf_counter()
    cpu = 1e3 * (time.process_time() - used) / done
    return {"rate": (done - 1) / (time.perf_counter() - first), "cpu": cpu, "first": first - began}


def _empty_tasks(depth: int, count: int) -> dict[str, float]:
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "include_dashboard": False})
    try:
        with (
            StopFlag() as stop,
            Engine(2, cluster.address, stop) as engine,
            tempfile.TemporaryDirectory() as folder,
        ):
            list(engine.map(_nothing, range(20)))
            engine.start().in_flight = depth  # as an engine of so many workers has it
            return _drive(engine, _nothing, count, _Logged(Path(folder)))
    finally:
        cluster.shutdown()


def _nodes() -> dict[str, float]:
    from ray.cluster_utils import Cluster

    cluster = Cluster()
    try:
        for _ in range(NODES):
            cluster.add_node(num_cpus=CPUS, object_store_memory=100 << 20, include_dashboard=False)
        with (
            StopFlag() as stop,
            Engine(None, cluster.address, stop) as engine,
            tempfile.TemporaryDirectory() as folder,
        ):
            console = _Logged(Path(folder))
            _drive(engine, _short, 8 * NODES * CPUS, console)  # every worker has started then
            return _drive(engine, _short, SHORT_TASKS, console)
    finally:
        cluster.shutdown()


def measure_ray(runs: int) -> dict[str, Any]:
    """By depth of the queue; and on simulated nodes, where there is memory for them."""
    found: dict[str, Any] = {}
    for name, depth in DEPTHS.items():
        done = medians(
            [fresh(_empty_tasks, depth, depth + EMPTY_TASKS) for _ in range(runs if depth < 10_000 else 1)]
        )
        if depth == min(DEPTHS.values()):
            found["empty_tasks_per_second"] = done["rate"]
        found[f"tasks in flight for {name}: empty tasks a second"] = done["rate"]
        found[f"tasks in flight for {name}: CPU ms of the driver a task"] = done["cpu"]
        found[f"tasks in flight for {name}: s until the first is done"] = done["first"]
        found[f"workers that keep a driver busy at that cost, tasks of {PARTITION_SECONDS} s ({name})"] = (
            PARTITION_SECONDS * 1e3 / done["cpu"]
        )
    what = f"{NODES} nodes of {CPUS} CPUs, tasks of {SHORT_SECONDS} s"
    if free_memory() < NODES * NODE_BYTES:
        found["skipped"] = f"{what}: less than {NODES * NODE_BYTES / 1e9:.0f} GB of memory are free"
        return found
    done = fresh(_nodes, quiet=True)
    found[f"{what}: tasks a second"] = done["rate"]
    found[f"{what}: CPU ms of the driver a task"] = done["cpu"]
    return found
