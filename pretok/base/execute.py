"""Run one function over many items: on a Ray cluster, in processes of this node, or in this process.

Input: a top-level function `task(item, report)` and a list of items. Output: each item's result or TaskError as it
completes. This is the only module that imports ray. Tasks must leave their results on disk whole or not at all, because
any of them may run twice.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import logging
import os
import pickle
import threading
import time
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, Generic, TypeVar

from pretok.base import storage
from pretok.base.compiling import listeners
from pretok.base.console import Counts
from pretok.base.errors import EngineLost, Stopped, UsageError
from pretok.base.failures import TaskError, lost, task_error
from pretok.base.pool import Processes
from pretok.base.startup import collect_seldom, without_pandas
from pretok.base.stop import StopFlag

logger = logging.getLogger(__name__)

Item = TypeVar("Item")
Result = TypeVar("Result")
Report = Callable[[Counts], None]
"""What a task calls with increments (documents, bytes, ...) while it runs; for display only, retries count again."""
Task = Callable[[Item, Report], Result]

RETRIES = 3
"""How often an item is tried again, after the waits of `storage.WAITS`, when an error may pass or its worker died."""
START_SECONDS = 1.5
"""Seconds until a worker of this node has its first document."""
BYTES_PER_SECOND = 60e6
"""Bytes of text per second that one worker processes, roughly: counting 65 MB/s, encoding 70 MB/s and more."""
POLL_SECONDS = 1.0
"""Seconds between two looks at the stop flag while the driver waits."""
AGAIN = "run the same command again to continue"
REPORT_SECONDS = 1.0
"""Seconds between two reports of a task."""
M_ARENA_MAX = -8
"""The number of MALLOC_ARENA_MAX for `mallopt`."""
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


@dataclass(slots=True)
class Outcome(Generic[Result]):
    """The result or error of one task, and what its last try took.

    node: host name; began: seconds since 1970 by the node's clock; seconds: how long it ran; peak: highest memory of
    its process so far, in bytes; counts: increments that were not reported before the end. All of these are empty where
    the worker died. The driver adds index, that of the item in the list, and tries, how often it was tried.
    """

    result: Result | TaskError
    node: str = ""
    began: float = 0.0
    seconds: float = 0.0
    peak: int = 0
    counts: Counts = field(default_factory=dict)
    index: int = -1
    tries: int = 1


class Engine:
    """Context manager around the workers.

    workers: at most so many tasks run at once; 0 runs everything in this process; None: one per CPU. address: a Ray
    cluster (`auto` inside an allocation); without one, workers are processes of this node. With neither, `choose` keeps
    small work in this process. Workers start when they are first needed; module: what workers of this node load for
    their first tasks, while the driver still plans. `map` raises Stopped when `stop` has a reason, after cancelling the
    tasks that run, and EngineLost when the parent of the workers or this node's Ray has died.
    """

    def __init__(self, workers: int | None, address: str | None, stop: StopFlag, module: str = "") -> None:
        self.workers = workers
        self.address = address
        self.stop = stop
        self._module = module
        self._here = workers == 0
        self._started: _Ray | Processes | None = None

    def __enter__(self) -> Engine:
        if self._module and not self._here and self.address is None and _cpus() > 1:
            self._processes().load(self._module)
        return self

    def __exit__(self, *error: object) -> None:
        gc.unfreeze()
        if self._started is not None:
            self._started.close()
            self._started = None

    def choose(self, size: int) -> None:
        """Decide where the next `map` works, for about `size` bytes of text: a small job is done in this process before
        the workers would have started."""
        if self.workers is None and self.address is None:
            alone = size / BYTES_PER_SECOND
            self._here = alone <= START_SECONDS + alone / _cpus()

    def warm(self, tasks: int, function: Task[Item, object], item: Item) -> None:
        """Have as many workers of this node as `tasks` need run `function` over `item`, in the background, to load what
        the tasks work with."""
        if not self._here and self.address is None:
            processes = self._processes()
            for _ in range(min(tasks, processes.workers)):
                processes.submit(function, item, 0.0, lambda _: None)

    @property
    def parallel(self) -> int:
        """Tasks that run at once; starts the workers unless the work stays in this process."""
        return self._pool().workers

    def _pool(self) -> _Here | _Ray | Processes:
        if self._here:
            return _Here(self._check_stop)
        if self.address is None:
            return self._processes()
        if self._started is None:
            self._started = _Ray(self.workers, self.address)
            self.stop.install()
        return self._started

    def _processes(self) -> Processes:
        if self._started is None:
            self._started = Processes(self.workers or _cpus(), WORKER_ENVIRONMENT, _on_worker)
        assert isinstance(self._started, Processes)
        return self._started

    def map(
        self, task: Task[Item, Result], items: Sequence[Item], on_report: Report = lambda counts: None
    ) -> Generator[Outcome[Result], None, None]:
        """Run `task` over `items`, started in the order given, yielded as they complete.

        A task whose error may pass is tried RETRIES times more, on whatever worker is free, before its TaskError is
        yielded. `on_report` gets the tasks' increments: about once a second, on Ray at the end of each task.
        """
        if not items:
            return
        gc.freeze()  # what is loaded by now stays: collections would visit its 200,000 objects again and again
        pool = self._pool()
        waiting = list(range(len(items)))[::-1]
        failed = [0] * len(items)
        answers: SimpleQueue[tuple[int, Future[Any]]] = SimpleQueue()
        running = 0
        try:
            while waiting or running:
                self._check_stop()
                while waiting and running < pool.in_flight:
                    index = waiting.pop()
                    wait = (0.0, *storage.WAITS)[min(failed[index], len(storage.WAITS))]
                    future = pool.submit(task, items[index], wait, on_report)
                    future.add_done_callback(lambda done, index=index: answers.put((index, done)))
                    running += 1
                try:
                    index, future = answers.get(timeout=POLL_SECONDS)
                except Empty:
                    continue
                running -= 1
                try:
                    outcome = future.result()
                except Exception as error:
                    outcome = Outcome(pool.failure(error))
                on_report(outcome.counts)
                if isinstance(outcome.result, TaskError) and outcome.result.again and failed[index] < RETRIES:
                    logger.warning("trying again: %s", outcome.result.message)
                    failed[index] += 1
                    waiting.append(index)
                    continue
                outcome.index, outcome.tries = index, failed[index] + 1
                yield outcome
        finally:
            if running:
                pool.cancel()

    def _check_stop(self) -> None:
        if reason := self.stop.reason:
            raise Stopped(f"{reason}: stopped before the end; {AGAIN}")


class _Here:
    """This process as a pool of one worker, whose tasks are done when they are submitted."""

    workers = in_flight = 1

    def __init__(self, check_stop: Callable[[], None]) -> None:
        self._check_stop = check_stop

    def submit(self, task: Task[Any, Any], item: Any, wait: float, on_report: Report) -> Future[Any]:
        """Do a task after so many seconds. Raises Stopped out of the wait and of the task's reports."""

        def report(counts: Counts) -> None:
            self._check_stop()
            on_report(counts)

        end = time.monotonic() + wait
        while (left := end - time.monotonic()) > 0:
            self._check_stop()
            time.sleep(min(left, POLL_SECONDS))
        future: Future[Any] = Future()
        future.set_result(_run(task, item, report, every=0.0))
        return future

    def failure(self, error: Exception) -> TaskError:
        """What an error of the way to a worker means; there is no way here."""
        raise error

    def cancel(self) -> None:
        """Nothing runs."""


class _Ray:
    """A connection to a Ray cluster. Raises UsageError where none answers, EngineLost when Ray has died on this node;
    the death of a worker or of another node is the result of the tasks that ran there."""

    def __init__(self, workers: int | None, address: str) -> None:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        if ray.is_initialized():
            raise UsageError(
                "this program uses a Ray of its own: call ray.shutdown() before, or work on this node without --address"
            )
        self._ray = ray
        try:
            # No runtime_env: for its variables Ray starts a second set of workers, 2 s later. `_on_ray` sets them, and
            # workers find this package where `ray start` did, or in the folder where the command is typed.
            ray.init(address=address, logging_level=logging.ERROR, log_to_driver=False)
        except ConnectionError as error:
            raise UsageError(f"no Ray cluster answers at {address}: {error}") from None
        self._remote = ray.remote(max_retries=0, num_cpus=1)(_on_ray)
        # A task on this node that ends only when Ray does here. The loss of any other node must not end the job.
        node = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        self._alive = ray.remote(max_retries=0, num_cpus=0, scheduling_strategy=node)(_sleep).remote()
        self._running: dict[Future[Any], Any] = {}
        cpus = int(ray.cluster_resources().get("CPU", 1))
        self.workers = workers or cpus
        # Where Ray itself lets no more tasks run at once than wanted, as many more wait in its queue: a worker then
        # has its next task without asking the driver, 5 ms earlier.
        self.in_flight = 2 * self.workers if self.workers == cpus else self.workers

    def submit(self, task: Task[Any, Any], item: Any, wait: float, _: Report) -> Future[Any]:
        """Start a task, whose worker waits so many seconds first."""
        try:
            with contextlib.suppress(self._ray.exceptions.GetTimeoutError):
                self._ray.get(self._alive, timeout=0)
            reference = self._remote.remote(pickle.dumps((task, item, wait)))
        except (self._ray.exceptions.RayError, ConnectionError) as error:
            what = f"{type(error).__name__}: {error}".strip().splitlines()[0]
            raise EngineLost(f"Ray died on {os.uname().nodename}: {what}; {AGAIN}") from error
        future: Future[Any] = reference.future()
        self._running[future] = reference
        future.add_done_callback(self._running.pop)
        return future

    def failure(self, error: Exception) -> TaskError:
        """What it means that Ray has no outcome of a task."""
        return task_error(error) if isinstance(error, self._ray.exceptions.RayTaskError) else lost(error)

    def cancel(self) -> None:
        """Stop all tasks."""
        for reference in list(self._running.values()):
            with contextlib.suppress(Exception):
                self._ray.cancel(reference, force=True)

    def close(self) -> None:
        """Leave the cluster."""
        self._ray.cancel(self._alive, force=True)
        self._ray.shutdown()


def _sleep() -> None:
    while True:
        time.sleep(1e6)


def _on_ray(job: bytes) -> Outcome[Any]:
    os.environ.update(WORKER_ENVIRONMENT)  # before the module of the task loads what reads them
    # This one is read at the start of a process only.
    ctypes.CDLL(None).mallopt(M_ARENA_MAX, int(WORKER_ENVIRONMENT["MALLOC_ARENA_MAX"]))
    return _on_worker(*pickle.loads(job))


def _on_worker(task: Task[Any, Any], item: Any, wait: float, send: Report | None = None) -> Outcome[Any]:
    time.sleep(wait)
    collect_seldom()
    without_pandas()
    return _run(task, item, send)


def _run(task: Task[Any, Any], item: Any, send: Report | None, every: float = REPORT_SECONDS) -> Outcome[Any]:
    """One try of a task. Its reports are sent `every` so many seconds, that something compiles at once."""
    at, began = time.time(), time.monotonic()
    pending: Counter[str] = Counter()
    sent = began
    sending = threading.Lock()

    def tell(counts: Counts) -> None:
        with sending:  # a thread that reads ahead may compile meanwhile, and after the task
            if send and tell in listeners:
                send(counts)

    def report(counts: Counts) -> None:
        nonlocal sent
        pending.update(counts)
        if send and time.monotonic() - sent >= every:
            tell(dict(pending))
            pending.clear()
            sent = time.monotonic()

    listeners.append(tell)
    try:
        result = task(item, report)
    except (Stopped, KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except BaseException as error:  # panics of Rust libraries are no Exceptions
        result = task_error(error)
    finally:
        with sending:
            listeners.remove(tell)
    seconds = time.monotonic() - began
    return Outcome(result, os.uname().nodename, at, seconds, peak_bytes(), dict(pending))


def peak_bytes() -> int:
    """Peak resident memory of this program. (`ru_maxrss` would count what the parent held when it forked, too.)"""
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024


def _cpus() -> int:
    return len(os.sched_getaffinity(0))
