"""Run one function over many items: on a Ray cluster, in processes of this node, or in this process.

Input: a top-level function `task(item, report)` and a list of items. Output: each item's result or TaskError as it
completes. Tasks must leave their results on disk whole or not at all, because any of them may run twice. This is the
only module that imports ray.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import pickle
import socket
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future
from functools import partial
from heapq import heappop, heappush
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from pretok.base import storage
from pretok.base.console import Counts
from pretok.base.errors import EngineLost, Stopped, UsageError
from pretok.base.failures import TaskError, lost, task_error
from pretok.base.pool import Outcome, Processes, Result
from pretok.base.startup import collect_seldom, without_pandas
from pretok.base.stop import AGAIN, StopFlag

logger = logging.getLogger(__name__)

Item = TypeVar("Item")
Report = Callable[[Counts], None]
"""What a task calls with increments (documents, bytes, ...) while it runs; for display only, retries count again."""
NO_REPORT: Report = lambda counts: None  # noqa: E731
Task = Callable[[Item, Report], Result]

START_SECONDS = 1.5
"""Seconds until a worker of this node has its first document."""
BYTES_PER_SECOND = 60e6
"""Bytes of text per second that one worker processes, roughly: counting 65 MB/s, encoding 70 MB/s and more."""
CONNECT_SECONDS = 30.0
"""Seconds within which the address of a Ray cluster must accept a connection."""
PATIENCE_SECONDS = 20.0
"""Seconds without a free CPU of a Ray cluster after which the driver says what it waits for."""
POLL_SECONDS = 1.0
"""Seconds between two looks at the stop flag while the driver waits."""
REPORT_SECONDS = 1.0
"""Seconds between two reports of a task."""
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


class Engine:
    """Context manager around the workers.

    workers: at most so many tasks run at once; 0 runs everything in this process; None: one per CPU. address: a Ray
    cluster (`auto` inside an allocation); without one, workers are processes of this node. With neither, `choose` keeps
    small work in this process. Workers start when they are first needed; module: what workers of this node load for
    their first tasks, while the driver still plans. `map` raises Stopped when `stop` has a reason, and EngineLost when
    the parent of the workers or this node's Ray has died.
    """

    def __init__(self, workers: int | None, address: str | None, stop: StopFlag, module: str = "") -> None:
        self.workers = workers
        self.address = address
        self.stop = stop
        self._module = module
        self._here = workers == 0
        self._workers: _Ray | Processes | None = None

    def __enter__(self) -> Engine:
        # On one CPU the imports would only hold up the driver, which plans meanwhile.
        if self._module and not self._here and self.address is None and _cpus() > 1:
            self._processes().load(self._module)
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """End the workers; a later `map` starts new ones."""
        # What `map` froze may become garbage once it is over.
        gc.unfreeze()
        if self._workers is not None:
            self._workers.close()
            self._workers = None

    def choose(self, size: int) -> None:
        """Decide where the next `map` works, for about `size` bytes of text.

        A small job is done in this process before the workers would have started, unless they load already.
        """
        if self.workers is None and self.address is None and self._workers is None:
            alone = size / BYTES_PER_SECOND
            # Alone, or shared by all CPUs after the time that it takes workers to start.
            self._here = alone <= START_SECONDS + alone / _cpus()

    def prepare(self, function: Task[Item, Result], item: Item) -> Result:
        """Load by `function(item)` what tasks use and workers can share: in their parent, before it forks them.

        On a cluster it runs in this process, as each worker of a node loads its own.

        Raises what the function raises, and EngineLost.
        """
        if self._here or self.address is not None:
            return function(item, NO_REPORT)
        result: Result | TaskError = self._processes().prepare(function, item).result().result
        if isinstance(result, TaskError):
            raise result.raises(result.message)
        return result

    @property
    def parallel(self) -> int:
        """Tasks that run at once; starts the workers unless the work stays in this process."""
        return self._pool().workers

    def _pool(self) -> _Here | _Ray | Processes:
        if self._here:
            return _Here(self.stop)
        if self.address is None:
            return self._processes()
        if self._workers is None:
            self._workers = _Ray(self.workers, self.address)
            # Ray has put its own signal handlers in their place.
            self.stop.install()
        return self._workers

    def _processes(self) -> Processes:
        if self._workers is None:
            self._workers = Processes(self.workers or _cpus(), WORKER_ENVIRONMENT, _on_worker)
        assert isinstance(self._workers, Processes)
        return self._workers

    def map(
        self,
        task: Task[Item, Result],
        items: Sequence[Item],
        on_report: Callable[[int, Counts], None] = lambda _index, _counts: None,
    ) -> Generator[Outcome[Result], None, None]:
        """Run `task` over `items`, started in the order given, yielded as they complete.

        A task whose error may pass is tried again after each of `storage.WAITS`, behind those that were not tried yet,
        on whatever worker is free, before its TaskError is yielded. `on_report` gets the index of an item and the
        increments of its task: about once a second, on Ray at the end of each task; and of a try that failed what takes
        them back. If the map is left before its end, the workers are killed.
        """
        if not items:
            return
        gc.freeze()  # what is loaded now stays loaded: each collection would visit its 200,000 objects
        pool = self._pool()
        counted: defaultdict[int, Counter[str]] = defaultdict(Counter)

        def report(index: int, counts: Counts) -> None:
            counted[index].update(counts)
            on_report(index, counts)

        # A heap of the items, each with the time from which on it may begin.
        waiting = [(0.0, index) for index in range(len(items))]
        failed: Counter[int] = Counter()
        running: dict[Future[Outcome[Any]], int] = {}
        done: SimpleQueue[Future[Outcome[Any]]] = SimpleQueue()
        try:
            while waiting or running:
                self.stop.check()
                pause = POLL_SECONDS
                while waiting and len(running) < pool.in_flight:
                    begin, index = waiting[0]
                    if (left := begin - time.monotonic()) > 0:
                        # It waits in this list and not in a worker, which does other items meanwhile.
                        pause = min(left, POLL_SECONDS)
                        break
                    heappop(waiting)
                    future = pool.submit(task, items[index], partial(report, index))
                    running[future] = index
                    # A queue gives the futures as they end; `concurrent.futures.wait` would visit all that
                    # run, each time.
                    future.add_done_callback(done.put)
                try:
                    future = done.get(timeout=pause)
                except Empty:
                    if isinstance(pool, _Ray):
                        pool.say_what_it_waits_for()
                    continue
                index = running.pop(future)
                try:
                    outcome = future.result()
                except EngineLost:
                    raise
                except Exception as error:  # the worker died
                    outcome = Outcome(lost(error))
                # A node has another pretok or Python: a person must mend that, so no task is tried elsewhere.
                if isinstance(outcome, str):
                    raise UsageError(outcome)
                report(index, outcome.counts)
                failure, reported = outcome.result, counted.pop(index)
                if isinstance(failure, TaskError):  # the next try counts it all again
                    on_report(index, {key: -number for key, number in reported.items()})
                    if failure.again and failed[index] < len(storage.WAITS):
                        logger.warning("trying again: %s", failure.message)
                        # The time puts it behind the items that were not tried yet, which have 0.
                        heappush(waiting, (time.monotonic() + storage.WAITS[failed[index]], index))
                        failed[index] += 1
                        continue
                outcome.index, outcome.tries = index, failed[index] + 1
                yield outcome
        finally:
            # The consumer or this loop has given up. The tasks that are killed leave no result, or a whole
            # one that a restart finds, and unfinished files, which the next job removes.
            if running:
                self.close()


class _Here:
    """This process as a pool of one worker, whose tasks are done when they are submitted."""

    workers = in_flight = 1

    def __init__(self, stop: StopFlag) -> None:
        self._stop = stop

    def submit(self, task: Task[Any, Any], item: Any, on_report: Report) -> Future[Outcome[Any]]:
        """Do a task. Raises Stopped out of the task's reports."""

        def report(counts: Counts) -> None:
            self._stop.check()
            on_report(counts)

        future: Future[Outcome[Any]] = Future()
        future.set_result(_run(task, item, report, every=0.0))
        return future


class _Ray:
    """A connection to a Ray cluster.

    Raises UsageError if it cannot be used, EngineLost when Ray has died on this node; the death of a worker or of
    another node is the result of the tasks that ran there. The result of a task on a node with another pretok or Python
    is a sentence that says so.
    """

    def __init__(self, workers: int | None, address: str) -> None:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        if ray.is_initialized():
            raise UsageError(
                "this program already uses Ray: call ray.shutdown() first, or work on this node without --address"
            )
        try:
            _knock(address)
            # No runtime_env: for its variables Ray starts a second set of workers, 2 s later. `_on_ray` sets them, and
            # workers find this package where `ray start` did, or in the folder where the command is typed.
            ray.init(address=address, logging_level=logging.ERROR, log_to_driver=False)
        except UsageError:
            raise
        except Exception as error:  # of Ray, and of the libraries that it calls: there is no list of them
            reason = " ".join(str(error).split()) or type(error).__name__
            raise UsageError(f"cannot use the Ray cluster at {address}: {reason}") from error
        cpus = [int(node["Resources"].get("CPU", 0)) for node in ray.nodes() if node["Alive"]]
        if not any(cpus):
            ray.shutdown()
            raise UsageError(
                f"no node of the Ray cluster at {address} has a CPU for tasks ({len(cpus)} nodes), and each task takes "
                "one: add a node with `ray start --address HOST:PORT --num-cpus N`"
            )
        self._ray, self._address = ray, address
        # `ps` and Ray's dashboard show the name: a local function has none that says whose task it is.
        task = ray.remote(max_retries=0, num_cpus=1)(_where_it_is_the_same())
        self._run = task.options(name=_on_ray.__name__)
        # A task on this node that ends only when Ray does here. The loss of any other node must not end the job.
        node = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        on_this_node = ray.remote(max_retries=0, num_cpus=0, scheduling_strategy=node)
        self._alive = on_this_node(lambda: time.sleep(1e9)).remote()
        self._running: set[Any] = set()
        self.workers = workers or sum(cpus)
        # If Ray itself lets no more tasks run at once than wanted, as many more wait in its queue: a worker then has
        # its next task without asking the driver, 5 ms earlier.
        self.in_flight = self.workers if workers else 2 * self.workers
        # Asked for before all tasks, it ends as soon as one CPU is free.
        self._first, self._began = (
            ray.remote(max_retries=0, num_cpus=1)(lambda: None).remote(),
            time.monotonic(),
        )

    def say_what_it_waits_for(self) -> None:
        """Warn once if no CPU of the cluster was free for some time, as when others use all of them."""
        if self._began + PATIENCE_SECONDS < time.monotonic():
            self._began = float("inf")
            if not self._ray.wait([self._first], timeout=0)[0]:
                logger.warning(
                    "waiting for a free CPU of the Ray cluster at %s: other jobs use its %g; Ctrl-C stops, and the "
                    "same command again continues",
                    self._address,
                    self._ray.cluster_resources().get("CPU", 0),
                )

    def submit(self, task: Task[Any, Any], item: Any, _: Report) -> Future[Outcome[Any]]:
        """Start a task. The future raises what Ray raises for a worker or node that died."""
        try:
            # That task never ends, so any other answer than a timeout says that Ray is gone here.
            with contextlib.suppress(self._ray.exceptions.GetTimeoutError):
                self._ray.get(self._alive, timeout=0)
            # Pickled here, so that the worker sets its variables before it imports the module of the task.
            reference = self._run.remote(pickle.dumps((task, item)))
        except (self._ray.exceptions.RayError, ConnectionError) as error:
            what = f"{type(error).__name__}: {error}".splitlines()[0]
            raise EngineLost(f"Ray died on {os.uname().nodename}: {what}; {AGAIN}") from error
        future: Future[Outcome[Any]] = reference.future()
        self._running.add(future)
        future.add_done_callback(self._running.discard)
        return future

    def close(self) -> None:
        """Stop all tasks and leave the cluster."""
        for reference in [*(future.object_ref for future in list(self._running)), self._alive, self._first]:
            with contextlib.suppress(Exception):
                self._ray.cancel(reference, force=True)
        self._ray.shutdown()


def _knock(address: str) -> None:
    """Raise for an address at which no Ray cluster answers to this user.

    `ray.init` takes minutes for some of them, and does not say why.
    """
    from ray._private.services import canonicalize_bootstrap_address
    from ray._raylet import GcsClient  # type: ignore[attr-defined]
    from ray.exceptions import AuthenticationError

    given = os.environ.get("RAY_ADDRESS", address) if address == "auto" else address
    if given.startswith("ray://"):
        raise UsageError(
            f"{given} is the address of a Ray client server, whose tasks do not see the end of this command: give that "
            f"of the cluster itself, such as {given[len('ray://') :].rpartition(':')[0] or 'HOST'}:6379, on one of its "
            "nodes"
        )
    if given == "local":
        raise UsageError(
            "--address local would start a Ray cluster here: leave it out to use processes of this node"
        )
    found = canonicalize_bootstrap_address(address)
    if found is None:  # `auto`, and none runs here: `ray.init` says so
        return
    host, _, port = found.rpartition(":")
    end = time.monotonic() + CONNECT_SECONDS  # it may be starting
    while True:
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_SECONDS).close()
            break
        except OSError as error:
            if time.monotonic() > end:
                raise UsageError(f"no Ray cluster answers at {given}: {error}") from None
            time.sleep(min(POLL_SECONDS, CONNECT_SECONDS))
    try:
        GcsClient(address=found)
    except AuthenticationError:
        raise UsageError(
            f"the Ray cluster at {given} wants a token: set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN, or "
            "RAY_AUTH_TOKEN_PATH, to those it was started with"
        ) from None


def _where_it_is_the_same() -> Callable[[bytes], Outcome[Any] | str]:
    """Return `_on_ray` for workers with the pretok and Python of this process; on others it is a sentence about them.

    Ray sends local functions as code. One of a module it would send by name, and another pretok would run its own.
    """

    def program() -> str:
        import hashlib
        import importlib.util
        import platform
        from pathlib import Path

        python, found = f"Python {platform.python_version()}", importlib.util.find_spec("pretok")
        if found is None or found.origin is None:
            return f"no pretok, {python}"
        folder, content = Path(found.origin).parent, hashlib.blake2b(digest_size=4)
        for path in sorted(folder.rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                content.update(f"{path.relative_to(folder)}\0".encode() + path.read_bytes())
        return f"pretok {importlib.import_module(found.name).__version__} ({content.hexdigest()}), {python}"

    here, driver, module = program(), os.uname().nodename, __name__
    same: list[str] = []  # a worker looks once

    def run(job: bytes) -> Outcome[Any] | str:
        if not same:
            if (found := program()) != here:
                return (
                    f"node {os.uname().nodename} of the Ray cluster has {found}, and {driver} has {here}: they could "
                    "write other bytes. Install the same on all nodes, and start Ray again on those that had another"
                )
            same.append(found)
        from importlib import import_module

        outcome: Outcome[Any] = import_module(module)._on_ray(job)
        return outcome

    return run


def _on_ray(job: bytes) -> Outcome[Any]:
    # Before the module of the task loads what reads them; slurm/ray.sh sets what is read when a process starts.
    os.environ.update(WORKER_ENVIRONMENT)
    try:
        return _on_worker(*pickle.loads(job))
    except Exception as error:  # of the import of its module
        return Outcome(task_error(error))


def _on_worker(task: Task[Any, Any], item: Any, send: Report | None = None) -> Outcome[Any]:
    collect_seldom()
    without_pandas()
    return _run(task, item, send)


def _run(task: Task[Any, Any], item: Any, send: Report | None, every: float = REPORT_SECONDS) -> Outcome[Any]:
    """Try a task once. send: gets its increments while it runs, `every` so many seconds."""
    at, began = time.time(), time.monotonic()
    pending: Counter[str] = Counter()
    sent = began

    def report(counts: Counts) -> None:
        nonlocal sent
        # Added up between reports, so that a task with many small batches sends few messages.
        pending.update(counts)
        if send and time.monotonic() - sent >= every:
            send(dict(pending))
            pending.clear()
            sent = time.monotonic()

    try:
        result = task(item, report)
    # These end the job, not the item: in the driver's process `report` raises Stopped.
    except (Stopped, KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except BaseException as error:  # panics of Rust libraries are no Exceptions
        result = task_error(error)
    seconds = time.monotonic() - began
    return Outcome(result, os.uname().nodename, at, seconds, peak_bytes(), dict(pending))


def peak_bytes() -> int:
    """Return the peak resident memory of this program.

    `ru_maxrss` would count what the parent held when it forked, too.
    """
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024


def _cpus() -> int:
    return len(os.sched_getaffinity(0))
