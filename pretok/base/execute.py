"""Run one function over many items: on a Ray cluster, in processes of this node, or in this process.

Input: a top-level function `task(item, report)` and a list of items. Output: each item's result or TaskError as it
completes. This is the only module that imports ray. Tasks must leave their results on disk whole or not at all, because
any of them may run twice.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import itertools
import logging
import os
import pickle
import threading
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from pretok.base import storage
from pretok.base.compiling import listeners
from pretok.base.console import Counts
from pretok.base.errors import EngineLost, Stopped, UsageError
from pretok.base.failures import TaskError, lost, task_error
from pretok.base.pool import Pool
from pretok.base.records import replace
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
"""What workers of this node cost before their first document."""
BYTES_PER_SECOND = 60e6
"""Text that one worker takes in, about: counting 65 MB/s, encoding 70 MB/s and more."""
POLL_SECONDS = 1.0
"""How often a driver that waits looks whether it was told to stop."""
TOGETHER = 256
"""Tasks of a cluster in flight for each that the driver waits for at once: looking at them takes time with their
number, which a task of a thousand workers would pay for all others."""
NO_INDEX = -1
AGAIN = "run the same command again to continue"
REPORT_SECONDS = 1.0
"""How often a worker sends its increments: one actor takes those of all workers of a cluster."""
M_ARENA_MAX = -8
"""How `mallopt` calls MALLOC_ARENA_MAX."""
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
class Outcome(Generic[Result]):
    """What the engine yields: an item's index in the list, its result or error, and what the last try took.

    node: its host name; began: when, in seconds since 1970 by the node's clock; seconds: how long it ran; peak: most
    bytes of memory its process held so far; tries: how often the item was tried. All but the last are empty where the
    worker died.
    """

    index: int
    result: Result | TaskError
    node: str = ""
    began: float = 0.0
    seconds: float = 0.0
    peak: int = 0
    tries: int = 1


class Engine:
    """Context manager around the workers.

    workers: tasks that run at once at most; 0 runs everything in this process; None: one per CPU. address: a Ray
    cluster (`auto` inside an allocation); without one, workers are processes of this node. With neither, `choose` keeps
    small work in this process. Workers are started when they are first needed; module: what the first tasks of workers
    of this node need, which is loaded while the driver still plans. Raises Stopped out of `map` when `stop` has a
    reason, after the tasks in flight were told to end, and EngineLost when what the workers hang on has died.
    """

    def __init__(self, workers: int | None, address: str | None, stop: StopFlag, module: str = "") -> None:
        self.workers = workers
        self.address = address
        self.stop = stop
        self._module = module
        self._here = workers == 0
        self._started: _Ray | _Processes | None = None

    def __enter__(self) -> Engine:
        if self._module and not self._here and self.address is None and _cpus() > 1:
            workers = self.start()
            assert isinstance(workers, _Processes)
            workers.load(self._module)
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

    def warm(self, tasks: int, function: Callable[[Item], object], item: Item) -> None:
        """Have the workers of this node that so many tasks need call `function(item)`, which loads what these work
        with. It is not waited for."""
        if not self._here and self.address is None:
            workers = self.start()
            assert isinstance(workers, _Processes)
            workers.warm(tasks, function.__module__, _warmed, function, item)

    @property
    def parallel(self) -> int:
        """Tasks that run at once; starts the workers unless the work stays here."""
        return 1 if self._here else self.start().workers

    def start(self) -> _Ray | _Processes:
        """The workers, which are started by the first call."""
        if self._started is None:
            if self.address is None:
                self._started = _Processes(self.workers or _cpus(), WORKER_ENVIRONMENT)
            else:
                self._started = _Ray(self.workers, self.address)
                self.stop.install()
        return self._started

    def map(
        self, task: Task[Item, Result], items: Sequence[Item], on_report: Report | None = None
    ) -> Generator[Outcome[Result], None, None]:
        """Run `task` over `items`, started in the order given, yielded as they complete.

        A task whose error may pass is tried RETRIES times more, on whatever worker is free, before its TaskError is
        yielded. `on_report` gets the tasks' increments, about once a second.
        """
        if not items:
            return
        gc.freeze()  # what is loaded by now stays: collections would visit its 200,000 objects again and again
        run = self._map_here if self._here else self._map_workers
        yield from run(task, items, on_report or (lambda counts: None))

    def _check_stop(self) -> None:
        if reason := self.stop.reason:
            raise Stopped(f"{reason}: stopped before the end; {AGAIN}")

    def _pause(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            self._check_stop()
            time.sleep(min(left, POLL_SECONDS))

    def _map_here(
        self, task: Task[Item, Result], items: Sequence[Item], on_report: Report
    ) -> Generator[Outcome[Result], None, None]:
        def report(counts: Counts) -> None:
            self._check_stop()
            on_report(counts)

        for index, item in enumerate(items):
            for tries in itertools.count(1):
                self._check_stop()
                outcome = replace(_measured(task, item, report), index=index, tries=tries)
                if not _try_again(outcome):
                    break
                self._pause(_wait(tries))
            yield outcome

    def _map_workers(
        self, task: Task[Item, Result], items: Sequence[Item], on_report: Report
    ) -> Generator[Outcome[Result], None, None]:
        workers = self.start()
        waiting = list(enumerate(items))[::-1]
        failed = [0] * len(items)
        running: dict[Any, int] = {}
        finished: list[Outcome[Result]] = []
        looked = -REPORT_SECONDS
        try:
            while True:
                self._check_stop()
                while waiting and len(running) < workers.in_flight:
                    index, item = waiting.pop()
                    running[workers.submit_task(task, item, _wait(failed[index]), on_report)] = index
                if not running or time.monotonic() - looked >= REPORT_SECONDS:
                    on_report(workers.take_reports())
                    looked = time.monotonic()
                yield from finished  # only now, when the workers have their next tasks
                if not running:
                    return
                finished = []
                for future in workers.wait(list(running), POLL_SECONDS):
                    index = running.pop(future)
                    try:
                        measured, unsent = workers.get(future)
                        on_report(unsent)
                    except workers.failed as error:
                        measured = Outcome(NO_INDEX, task_error(error))
                    except workers.died as error:
                        measured = Outcome(NO_INDEX, lost(error))
                    outcome = replace(measured, index=index, tries=failed[index] + 1)
                    if _try_again(outcome):
                        failed[index] += 1
                        waiting.append((index, items[index]))
                    else:
                        finished.append(outcome)
        finally:
            if running:
                workers.cancel(list(running))


def _wait(failed: int) -> float:
    """Seconds to wait before the next try of what has failed so often."""
    return (0.0, *storage.WAITS)[min(failed, len(storage.WAITS))]


def _try_again(outcome: Outcome[Any]) -> bool:
    error = outcome.result
    if not isinstance(error, TaskError) or not error.again or outcome.tries > RETRIES:
        return False
    logger.warning("trying again: %s", error.message)
    return True


class _Processes(Pool):
    """Workers of this node. Raises EngineLost when their parent has died.

    failed: what a job raises that does not cross from process to process; died: what it raises where its worker did.
    """

    failed, died = RuntimeError, EOFError

    def submit_task(self, task: Task[Any, Any], item: Any, wait: float, on_report: Report) -> Future[Any]:
        """Start a task, whose worker waits so many seconds first."""
        module = getattr(task, "func", task).__module__  # of a `partial` too
        return self.submit(module, _on_worker, task, item, wait, on_report=on_report)

    def take_reports(self) -> Counts:
        """Nothing: each report comes by itself."""
        return {}

    def get(self, future: Future[Any]) -> Any:
        """What `_on_worker` returned; else EngineLost, or one of `failed` and `died`."""
        return future.result()

    def wait(self, futures: list[Future[Any]], seconds: float) -> set[Future[Any]]:
        """Those that are done, after `seconds` at most."""
        return wait(futures, seconds, FIRST_COMPLETED).done

    def cancel(self, futures: Sequence[Future[Any]]) -> None:  # noqa: ARG002
        """End what runs: all workers, as they end together."""
        self.close()


class _Ray:
    """A connection to a Ray cluster.

    Raises UsageError where none answers. Every later call raises EngineLost when what Ray needs on this node has died;
    the death of a worker or of another node is the result of the tasks that ran there.
    """

    def __init__(self, workers: int | None, address: str) -> None:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        if ray.is_initialized():
            raise UsageError(
                "this program uses a Ray of its own: call ray.shutdown() before, or work on this node without --address"
            )
        self._ray = ray
        self.failed, self.died = ray.exceptions.RayTaskError, ray.exceptions.RayError
        try:
            # No runtime_env: for its variables Ray starts a second set of workers, 2 s later. `_on_ray` sets them, and
            # workers find this package where `ray start` did, or in the folder where the command is typed.
            ray.init(address=address, logging_level=logging.ERROR, log_to_driver=False)
        except ConnectionError as error:
            raise UsageError(f"no Ray cluster answers at {address}: {error}") from None
        # On the driver's own node: the loss of any other node must not end the job. One for all calls of `map`, as its
        # process takes a second of CPU time to start.
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        self._board: Any = ray.remote(num_cpus=0, scheduling_strategy=here)(_Board).remote()
        self._remote = ray.remote(max_retries=0, num_cpus=1)(_on_ray)
        cpus = int(ray.cluster_resources().get("CPU", 1))
        self.workers = workers or cpus
        # Where Ray itself lets no more tasks run at once than wanted, as many more wait in its queue: a worker then
        # has its next task without asking the driver, 5 ms earlier.
        self.in_flight = 2 * self.workers if self.workers == cpus else self.workers

    def close(self) -> None:
        """Leave the cluster."""
        self._ray.shutdown()

    @contextlib.contextmanager
    def _watched(self) -> Iterator[None]:
        """Turn Ray's errors into EngineLost."""
        try:
            yield
        except (self._ray.exceptions.RayError, ConnectionError) as error:
            what = f"{type(error).__name__}: {error}".strip().splitlines()[0]
            raise EngineLost(f"Ray died on {os.uname().nodename}: {what}; {AGAIN}") from error

    def submit_task(self, task: Task[Any, Any], item: Any, wait: float, _: Report) -> Any:
        """Start a task, whose worker waits so many seconds first; its reference."""
        with self._watched():
            return self._remote.remote(pickle.dumps((task, item)), self._board, wait)

    def take_reports(self) -> Counts:
        """What the tasks reported since the last call."""
        with self._watched():
            counts: Counts = self._ray.get(self._board.take.remote())
            return counts

    def wait(self, references: list[Any], seconds: float) -> list[Any]:
        """The references of tasks that are done, one in TOGETHER of them at most, waiting `seconds` for so many."""
        with self._watched():
            wanted = -(-len(references) // TOGETHER)
            done: list[Any] = self._ray.wait(references, num_returns=wanted, timeout=seconds)[0]
            return done

    def get(self, reference: Any) -> Any:
        """What `_on_worker` returned; else EngineLost, or one of `failed` and `died`."""
        try:
            return self._ray.get(reference)
        except self._ray.exceptions.LocalRayletDiedError:
            with self._watched():
                raise

    def cancel(self, references: Sequence[Any]) -> None:
        """Stop tasks."""
        for reference in references:
            with contextlib.suppress(Exception):
                self._ray.cancel(reference, force=True)


class _Board:
    """Ray actor that adds up what tasks report until the driver takes it."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()

    def add(self, counts: Counts) -> None:
        self._counts.update(counts)

    def take(self) -> Counts:
        counts, self._counts = dict(self._counts), Counter()
        return counts


def _warmed(function: Callable[[Any], object], item: Any, _send: Report) -> None:
    collect_seldom()
    without_pandas()
    function(item)


def _on_ray(job: bytes, board: Any, wait: float) -> tuple[Outcome[Any], Counts]:
    os.environ.update(WORKER_ENVIRONMENT)  # before the module of the task loads what reads them
    ctypes.CDLL(None).mallopt(
        M_ARENA_MAX, int(WORKER_ENVIRONMENT["MALLOC_ARENA_MAX"])
    )  # read at a process's start
    task, item = pickle.loads(job)
    return _on_worker(task, item, wait, board.add.remote)


def _on_worker(task: Task[Any, Any], item: Any, wait: float, send: Report) -> tuple[Outcome[Any], Counts]:
    """Runs on a worker: sends its reports every REPORT_SECONDS, the last ones with the result."""
    time.sleep(wait)
    collect_seldom()
    without_pandas()
    pending: Counter[str] = Counter()
    sent = time.monotonic()
    sending = threading.Lock()

    def tell(counts: Counts) -> None:
        with sending:  # a thread that reads ahead may compile meanwhile, and after the task
            if tell in listeners:
                send(counts)

    def report(counts: Counts) -> None:
        nonlocal sent
        pending.update(counts)
        if time.monotonic() - sent > REPORT_SECONDS:
            tell(dict(pending))
            pending.clear()
            sent = time.monotonic()

    listeners.append(tell)
    try:
        measured = _measured(task, item, report)
    finally:
        with sending:
            listeners.remove(tell)
    return measured, dict(pending)


def _measured(task: Callable[[Any, Report], Any], item: Any, report: Report) -> Outcome[Any]:
    """One run of a task; whose index and how many tries only the driver knows."""
    at, began = time.time(), time.monotonic()
    try:
        result = task(item, report)
    except (Stopped, KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except BaseException as error:  # panics of Rust libraries are no Exceptions
        result = task_error(error)
    return Outcome(NO_INDEX, result, os.uname().nodename, at, time.monotonic() - began, peak_bytes())


def peak_bytes() -> int:
    """Peak resident memory of this program. (`ru_maxrss` would count what the parent held when it forked, too.)"""
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024


def _cpus() -> int:
    return len(os.sched_getaffinity(0))
