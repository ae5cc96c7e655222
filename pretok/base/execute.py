"""Run one function over many items: on a Ray cluster, on a Ray started here, or in this process.

Input: a top-level function `task(item, report)` and a list of items. Output: each item's result or TaskError as it
completes. This is the only module that imports ray. Tasks must leave their results on disk whole or not at all, because
any of them may run twice.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import logging
import os
import secrets
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Generic, TypeVar

from pretok.base import reaper, storage
from pretok.base.console import Counts
from pretok.base.errors import EngineLost, Stopped, UsageError
from pretok.base.failures import TaskError, lost, task_error
from pretok.base.records import replace
from pretok.base.startup import collect_seldom, without_pandas
from pretok.base.stop import StopFlag
from pretok.base.units import human

logger = logging.getLogger(__name__)

Item = TypeVar("Item")
Result = TypeVar("Result")
Report = Callable[[Counts], None]
"""What a task calls with increments (documents, bytes, ...) while it runs; for display only, retries count again."""
Task = Callable[[Item, Report], Result]

RETRIES = 3
"""How often an item is tried again, after the waits of `storage.WAITS`, when an error may pass or its worker died."""
RAY_START_SECONDS = 8.0
"""What a Ray started here costs, its workers' imports included: 5 to 14 s were measured."""
BYTES_PER_SECOND = 60e6
"""Text that one worker takes in, about: counting 65 MB/s, encoding 70 MB/s and more."""
POLL_SECONDS = 1.0
"""How often a driver that waits looks whether it was told to stop."""
TOGETHER = 256
"""Tasks in flight for each that the driver waits for at once: looking at them takes time with their number, which a
task of a thousand workers would pay for all others."""
NO_INDEX = -1
REPORT_SECONDS = 1.0
"""How often a worker sends its increments: one actor takes those of all workers of a cluster."""
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
    """Context manager around Ray.

    workers: tasks that run at once at most; 0 runs everything in this process without Ray; None: one per CPU of the
    cluster. address: a Ray cluster (`auto` inside an allocation), None starts a local Ray. With neither, `choose` keeps
    small work in this process. Ray is started when it is first needed. Raises Stopped out of `map` when `stop` has a
    reason, after the tasks in flight were told to end, and EngineLost when Ray died.
    """

    def __init__(self, workers: int | None, address: str | None, stop: StopFlag) -> None:
        self.workers = workers
        self.address = address
        self.stop = stop
        self._here = workers == 0
        self._ray: _Ray | None = None

    def __enter__(self) -> Engine:
        gc.freeze()  # what is loaded by now stays: collections would visit its 200,000 objects again and again
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        gc.unfreeze()
        if self._ray is not None:
            self._ray.close()
            self._ray = None

    def choose(self, size: int) -> str | None:
        """Decide where the next `map` works, for about `size` bytes of text; a sentence if that is in this process."""
        if self.workers is not None or self.address or self._ray:
            return None
        cpus = _cpus()
        alone = size / BYTES_PER_SECOND
        self._here = alone <= RAY_START_SECONDS + alone / cpus
        if not self._here:
            return None
        return (
            f"{human(size)}B of text: working in this process, done before {cpus} workers would have started "
            "(--workers N starts them)"
        )

    @property
    def parallel(self) -> int:
        """Tasks that run at once; starts Ray unless the work stays here."""
        return 1 if self._here else self._started().workers

    def _started(self) -> _Ray:
        if self._ray is None:
            self._ray = _Ray(self.workers, self.address)
            self.stop.install()
            gc.freeze()
        return self._ray

    def map(
        self, task: Task[Item, Result], items: Sequence[Item], on_report: Report | None = None
    ) -> Generator[Outcome[Result], None, None]:
        """Run `task` over `items`, started in the order given, yielded as they complete.

        A task whose error may pass is tried RETRIES times more, on whatever worker is free, before its TaskError is
        yielded. `on_report` gets the tasks' increments, about once a second.
        """
        if not items:
            return
        run = self._map_here if self._here else self._map_ray
        yield from run(task, items, on_report or (lambda counts: None))

    def _check_stop(self) -> None:
        if reason := self.stop.reason:
            raise Stopped(f"{reason}: stopped before the end; run the same command again to continue")

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

    def _map_ray(
        self, task: Task[Item, Result], items: Sequence[Item], on_report: Report
    ) -> Generator[Outcome[Result], None, None]:
        ray = self._started()
        waiting = list(enumerate(items))[::-1]
        failed = [0] * len(items)
        running: dict[Any, int] = {}
        finished: list[Outcome[Result]] = []
        looked = -REPORT_SECONDS
        try:
            while True:
                self._check_stop()
                while waiting and len(running) < ray.in_flight:
                    index, item = waiting.pop()
                    running[ray.submit(task, item, _wait(failed[index]))] = index
                if not running or time.monotonic() - looked >= REPORT_SECONDS:
                    on_report(ray.take_reports())
                    looked = time.monotonic()
                yield from finished  # only now, when the workers have their next tasks
                if not running:
                    return
                finished = []
                for reference in ray.wait(list(running)):
                    index = running.pop(reference)
                    measured, unsent = ray.get(reference)
                    outcome = replace(measured, index=index, tries=failed[index] + 1)
                    on_report(unsent)
                    if _try_again(outcome):
                        failed[index] += 1
                        waiting.append((index, items[index]))
                    else:
                        finished.append(outcome)
        finally:
            ray.cancel(running)


def _wait(failed: int) -> float:
    """Seconds to wait before the next try of what has failed so often."""
    return (0.0, *storage.WAITS)[min(failed, len(storage.WAITS))]


def _try_again(outcome: Outcome[Any]) -> bool:
    error = outcome.result
    if not isinstance(error, TaskError) or not error.again or outcome.tries > RETRIES:
        return False
    logger.warning("trying again: %s", error.message)
    return True


class _Ray:
    """A connection to Ray, started here unless there is an address.

    Raises UsageError where no cluster answers. Every later call raises EngineLost when what Ray needs on this node has
    died; the death of a worker or of another node is the result of the tasks that ran there.
    """

    def __init__(self, workers: int | None, address: str | None) -> None:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        if not address and "RAY_AUTH_MODE" not in os.environ:
            # Who reaches the ports of a Ray runs code in it, and a node has other users. Read when Ray is imported.
            os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        if ray.is_initialized():
            raise UsageError(
                "this program uses a Ray of its own: call ray.shutdown() before, or work in this process with workers=0"
            )
        self._ray = ray
        self._reaper: subprocess.Popen[bytes] | None = None
        self._servers: dict[int, str] = {}
        quiet: dict[str, object] = {"logging_level": logging.ERROR, "log_to_driver": False}
        variables = dict(WORKER_ENVIRONMENT)
        if "PYTHONPATH" in os.environ:  # a checkout that is not installed
            variables["PYTHONPATH"] = os.environ["PYTHONPATH"]
        environment = {"env_vars": variables}
        if address:
            try:
                ray.init(address=address, runtime_env=environment, **quiet)
            except ConnectionError as error:
                raise UsageError(f"no Ray cluster answers at {address}: {error}") from None
        else:
            made = ray.init(
                address="local",
                num_cpus=workers or _cpus(),
                include_dashboard=False,
                object_store_memory=100 << 20,  # tasks meet on disk; results are small records
                runtime_env=environment,
                **quiet,
            )
            self._guard(made.address_info["session_dir"])
        # On the driver's own node: the loss of any other node must not end the job. One for all calls of `map`, as its
        # process takes a second of CPU time to start.
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        self._board: Any = ray.remote(num_cpus=0, scheduling_strategy=here)(_Board).remote()
        self._remote = ray.remote(max_retries=0, num_cpus=1)(_on_worker)
        cpus = int(ray.cluster_resources().get("CPU", 1))
        self.workers = workers or cpus
        # Where Ray itself lets no more tasks run at once than wanted, as many more wait in its queue: a worker then
        # has its next task without asking the driver, 5 ms earlier.
        self.in_flight = 2 * self.workers if self.workers == cpus else self.workers

    def _guard(self, session: str) -> None:
        """Start the reaper of a Ray that was started here, and note its servers."""
        command = [sys.executable, "-I", "-S", reaper.__file__, session]
        self._reaper = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)
        processes = reaper.users(session)
        self._servers = {pid: name for pid, name in processes.items() if name in ("raylet", "gcs_server")}

    def _reap(self) -> None:
        if self._reaper is not None:
            self._reaper.communicate()  # the end of its input is what it waits for
            self._reaper = None

    def close(self) -> None:
        """Leave the cluster; end a Ray started here and whatever it left."""
        if self._dead():
            self._reap()  # first, as a Ray without its servers waits a minute for them
        self._ray.shutdown()
        self._reap()

    def _dead(self) -> str:
        """Which server of a Ray started here has died, or an empty string."""
        return ", ".join(
            f"{name} (process {pid})" for pid, name in self._servers.items() if not reaper.alive(pid)
        )

    @contextlib.contextmanager
    def _watched(self) -> Iterator[None]:
        """Turn Ray's errors into EngineLost."""
        try:
            yield
        except (self._ray.exceptions.RayError, ConnectionError) as error:
            what = self._dead() or f"{type(error).__name__}: {error}".strip().splitlines()[0]
            raise EngineLost(
                f"Ray died on {os.uname().nodename}: {what}; run the same command again to continue"
            ) from error

    def submit(self, task: Task[Any, Any], item: Any, wait: float) -> Any:
        """Start a task, whose worker waits so many seconds first; its reference."""
        with self._watched():
            return self._remote.remote(task, item, self._board, wait)

    def take_reports(self) -> Counts:
        """What the tasks reported since the last call."""
        with self._watched():
            if self._dead():
                raise ConnectionError
            counts: Counts = self._ray.get(self._board.take.remote())
            return counts

    def wait(self, references: list[Any]) -> list[Any]:
        """The references of tasks that are done, one in TOGETHER of them at most, waiting POLL_SECONDS for so many."""
        with self._watched():
            wanted = -(-len(references) // TOGETHER)
            done: list[Any] = self._ray.wait(references, num_returns=wanted, timeout=POLL_SECONDS)[0]
            return done

    def get(self, reference: Any) -> tuple[Outcome[Any], Counts]:
        """What `_on_worker` returned; where its process or node died, a TaskError as its result."""
        try:
            returned: tuple[Outcome[Any], Counts] = self._ray.get(reference)
            return returned
        except self._ray.exceptions.LocalRayletDiedError:
            with self._watched():
                raise
        except self._ray.exceptions.RayTaskError as error:
            # Outside of the task: what it is called with or returns does not cross from process to process.
            return Outcome(NO_INDEX, task_error(error)), {}
        except self._ray.exceptions.RayError as error:
            return Outcome(NO_INDEX, lost(error)), {}

    def cancel(self, references: Iterable[Any]) -> None:
        """Stop tasks."""
        if not self._dead():
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


def _on_worker(
    task: Callable[[Any, Report], Any], item: Any, board: Any, wait: float
) -> tuple[Outcome[Any], Counts]:
    """Runs on a worker: sends its reports to the board every REPORT_SECONDS, the last ones with the result."""
    time.sleep(wait)
    collect_seldom()
    without_pandas()
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
