"""Run one function over many items: on a Ray cluster, on a Ray started here, or in this process.

Enters: a top-level function `task(item, report)` and a list of items. Leaves: each item's result or TaskError as it
completes. This is the only module that imports ray. Tasks must leave their results on disk whole or not at all, because
any of them may run twice.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Generic, TypeVar

from pretok.errors import Stopped, UsageError
from pretok.stop import StopFlag

logger = logging.getLogger(__name__)

Item = TypeVar("Item")
Result = TypeVar("Result")
Counts = dict[str, int]
Report = Callable[[Counts], None]
"""What a task calls with increments (documents, bytes, ...) while it runs; for display only, retries count again."""
Task = Callable[[Item, Report], Result]

RETRIES = 3
"""How often an item is tried again after its task raised or its worker or node died."""
POLL_SECONDS = 1.0
REPORT_SECONDS = 1.0
WORKER_ENVIRONMENT = {
    # One task, one core: the libraries inside must not start a thread per core of the node.
    "OMP_NUM_THREADS": "1",
    "RAYON_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "NUMBA_NUM_THREADS": "1",
    # Each task's reading thread would leave 40 MB in another of glibc's arenas, of which there are 8 per core.
    "MALLOC_ARENA_MAX": "2",
    # Batches are allocated in one thread and freed in another: from Parquet, Arrow's own choice took a tenth longer.
    "ARROW_DEFAULT_MEMORY_POOL": "jemalloc",
}


@dataclass(frozen=True, slots=True)
class TaskError:
    """Why an item failed for good: one line for the user, and the last traceback."""

    message: str
    trace: str


@dataclass(frozen=True, slots=True)
class Outcome(Generic[Result]):
    """What the engine yields: an item's index in the list, its result or error, and what the last try took.

    node: its host name; seconds: how long it ran; peak: most bytes of memory its process held so far.
    """

    index: int
    result: Result | TaskError
    node: str = ""
    seconds: float = 0.0
    peak: int = 0


class Engine:
    """Context manager around Ray.

    workers: tasks that run at once at most; 0 runs everything in this process without Ray; None: one per CPU of the
    cluster. address: a Ray cluster (`auto` inside an allocation), None starts a local Ray. Raises Stopped out of `map`
    when `stop` has a reason, after the tasks in flight were told to end.
    """

    def __init__(self, workers: int | None, address: str | None, stop: StopFlag) -> None:
        self.workers = workers
        self.address = address
        self.stop = stop
        self.local = workers == 0
        self._board: Any = None
        self._in_flight = 1

    def __enter__(self) -> Engine:
        if not self.local:
            self._start_ray()
        gc.freeze()  # what is loaded by now stays: collections would visit its 200,000 objects again and again
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        gc.unfreeze()
        if not self.local:
            import ray

            ray.shutdown()

    def _start_ray(self) -> None:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        quiet: dict[str, Any] = {"logging_level": logging.ERROR, "log_to_driver": False}
        variables = dict(WORKER_ENVIRONMENT)
        if "PYTHONPATH" in os.environ:  # a checkout that is not installed
            variables["PYTHONPATH"] = os.environ["PYTHONPATH"]
        environment = {"env_vars": variables}
        try:
            if self.address:
                ray.init(address=self.address, runtime_env=environment, **quiet)
            else:
                ray.init(
                    address="local",
                    num_cpus=self.workers or _cpus(),
                    include_dashboard=False,
                    object_store_memory=100 << 20,  # tasks meet on disk; results are small records
                    runtime_env=environment,
                    **quiet,
                )
        except ConnectionError as error:
            raise UsageError(f"no Ray cluster answers at {self.address}: {error}") from None
        self.stop.install()
        # On the driver's own node: the loss of any other node must not end the job. One for all calls of `map`, as its
        # process takes a second of CPU time to start.
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        self._board = ray.remote(num_cpus=0, scheduling_strategy=here)(_Board).remote()
        cpus = int(ray.cluster_resources().get("CPU", 1))
        self.workers = self.workers or cpus
        # Where Ray itself lets no more tasks run at once than wanted, as many more wait in its queue: a worker then
        # has its next task without asking the driver, 5 ms earlier.
        self._in_flight = 2 * self.workers if self.workers == cpus else self.workers

    def map(
        self,
        task: Task[Item, Result],
        items: Sequence[Item],
        on_report: Report | None = None,
        retries: int = RETRIES,
    ) -> Iterator[Outcome[Result]]:
        """Run `task` over `items`, started in the order given, yielded as they complete.

        A task that raises is tried `retries` times more, on whatever worker is free, before its TaskError is yielded.
        `on_report` gets the tasks' increments, about once a second.
        """
        run = self._map_here if self.local else self._map_ray
        yield from run(task, items, on_report or (lambda counts: None), retries)

    def _check_stop(self) -> None:
        if reason := self.stop.reason:
            raise Stopped(f"{reason}: stopped before the end; run the same command again to continue")

    def _map_here(
        self, task: Task[Item, Result], items: Sequence[Item], on_report: Report, retries: int
    ) -> Iterator[Outcome[Result]]:
        def report(counts: Counts) -> None:
            self._check_stop()
            on_report(counts)

        for index, item in enumerate(items):
            for attempt in range(retries + 1):
                self._check_stop()
                try:
                    outcome: Outcome[Result] = Outcome(index, *_measured(task, item, report))
                    break
                except Stopped:
                    raise
                except Exception as error:
                    failure = _task_error(error)
                    outcome = Outcome(index, failure)
                    if attempt < retries:
                        logger.warning("trying again: %s", failure.message)
            yield outcome

    def _map_ray(
        self, task: Task[Item, Result], items: Sequence[Item], on_report: Report, retries: int
    ) -> Iterator[Outcome[Result]]:
        import ray

        remote = ray.remote(max_retries=0, num_cpus=1)(_on_worker)
        board = self._board
        waiting = list(enumerate(items))[::-1]
        tries = [0] * len(items)
        running: dict[Any, int] = {}
        finished: list[Outcome[Result]] = []
        try:
            while True:
                self._check_stop()
                while waiting and len(running) < self._in_flight:
                    index, item = waiting.pop()
                    running[remote.remote(task, item, board)] = index
                on_report(ray.get(board.take.remote()))
                yield from finished  # only now, when the workers have their next tasks
                if not running:
                    return
                done, _ = ray.wait(list(running), num_returns=1, timeout=POLL_SECONDS)
                finished = []
                for reference in done:
                    index = running.pop(reference)
                    try:
                        measured, unsent = ray.get(reference)
                        finished.append(Outcome(index, *measured))
                        on_report(unsent)
                    except Exception as error:  # the task raised, or its worker or node died
                        tries[index] += 1
                        failure = _task_error(error)
                        if tries[index] <= retries:
                            logger.warning("trying again: %s", failure.message)
                            waiting.append((index, items[index]))
                        else:
                            finished.append(Outcome(index, failure))
        finally:
            for reference in running:
                with contextlib.suppress(Exception):
                    ray.cancel(reference, force=True)


class _Board:
    """Ray actor that adds up what tasks report until the driver takes it."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()

    def add(self, counts: Counts) -> None:
        self._counts.update(counts)

    def take(self) -> Counts:
        counts, self._counts = dict(self._counts), Counter()
        return counts


def _on_worker(
    task: Callable[[Any, Report], Any], item: Any, board: Any
) -> tuple[tuple[Any, str, float, int], Counts]:
    """Runs on a worker: sends its reports to the board every REPORT_SECONDS, the last ones with the result."""
    pending: Counter[str] = Counter()
    sent = time.monotonic()

    def report(counts: Counts) -> None:
        nonlocal sent
        pending.update(counts)
        if time.monotonic() - sent > REPORT_SECONDS:
            board.add.remote(dict(pending))
            pending.clear()
            sent = time.monotonic()

    measured = _measured(task, item, report)
    return measured, dict(pending)


def _measured(task: Callable[[Any, Report], Any], item: Any, report: Report) -> tuple[Any, str, float, int]:
    """Result, node, seconds and peak memory of one run of a task."""
    began = time.monotonic()
    result = task(item, report)
    return result, os.uname().nodename, time.monotonic() - began, peak_bytes()


def peak_bytes() -> int:
    """Peak resident memory of this program. (`ru_maxrss` would count what the parent held when it forked, too.)"""
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024


def _task_error(error: Exception) -> TaskError:
    cause = getattr(error, "cause", None) or error
    message = str(cause).strip().splitlines()
    return TaskError(
        f"{type(cause).__name__}: {message[0] if message else ''}",
        "".join(traceback.format_exception(error)),
    )


def _cpus() -> int:
    return len(os.sched_getaffinity(0))
