"""Run one function over many items: on a Ray cluster, on a Ray started here, or in this process.

Enters: a top-level function and a list of items. Leaves: (item, result or TaskError) as each completes. This is the
only module that imports ray. Tasks must leave their results on disk whole or not at all, because any of them may run
twice.
"""

from __future__ import annotations

import contextlib
import logging
import os
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Generic, TypeVar

from pretok.errors import Stopped, UsageError
from pretok.stop import StopFlag

Item = TypeVar("Item")
Result = TypeVar("Result")

RETRIES = 3
"""How often an item is tried again after its task raised or its worker or node died."""
POLL_SECONDS = 1.0
WORKER_ENVIRONMENT = {
    # One task, one core: the libraries inside must not start a thread per core of the node.
    "OMP_NUM_THREADS": "1",
    "RAYON_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "NUMBA_NUM_THREADS": "1",
}


@dataclass(frozen=True, slots=True)
class TaskError:
    """Why an item failed for good: one line for the user, and the last traceback."""

    message: str
    trace: str


@dataclass(frozen=True, slots=True)
class Progress(Generic[Result]):
    """What the engine yields: an item's index in the list, its result or error, and where it ran."""

    index: int
    result: Result | TaskError
    node: str


class Engine:
    """Context manager around Ray.

    workers: tasks in flight at most; 0 runs everything in this process without Ray; None: one per CPU of the cluster.
    address: a Ray cluster (`auto` inside an allocation), None starts a local Ray. Raises Stopped out of `map` when
    `stop` has a reason, after the tasks in flight were told to end.
    """

    def __init__(self, workers: int | None, address: str | None, stop: StopFlag) -> None:
        self.workers = workers
        self.address = address
        self.stop = stop
        self.local = workers == 0

    def __enter__(self) -> Engine:
        if not self.local:
            self._start_ray()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self.local:
            import ray

            ray.shutdown()

    def _start_ray(self) -> None:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
            import ray

        quiet: dict[str, Any] = {"logging_level": logging.ERROR, "log_to_driver": False}
        environment = {"env_vars": {**WORKER_ENVIRONMENT, "PYTHONPATH": os.environ.get("PYTHONPATH", "")}}
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
        self.workers = self.workers or int(ray.cluster_resources().get("CPU", 1))

    def map(
        self, task: Callable[[Item], Result], items: Sequence[Item], retries: int = RETRIES
    ) -> Iterator[Progress[Result]]:
        """Run `task` over `items`, started in the order given, yielded as they complete.

        A task that raises is tried `retries` times more, on whatever worker is free, before its TaskError is yielded.
        """
        run = self._map_here if self.local else self._map_ray
        yield from run(task, items, retries)

    def _check_stop(self) -> None:
        if reason := self.stop.reason:
            raise Stopped(f"{reason}; stopped before the end. Run the same command again to continue")

    def _map_here(
        self, task: Callable[[Item], Result], items: Sequence[Item], retries: int
    ) -> Iterator[Progress[Result]]:
        node = os.uname().nodename
        for index, item in enumerate(items):
            for attempt in range(retries + 1):
                self._check_stop()
                try:
                    result: Result | TaskError = task(item)
                    break
                except Exception as error:
                    result = _task_error(error)
                    if attempt < retries:
                        logging.getLogger(__name__).warning("trying again: %s", result.message)
            yield Progress(index, result, node)

    def _map_ray(
        self, task: Callable[[Item], Result], items: Sequence[Item], retries: int
    ) -> Iterator[Progress[Result]]:
        import ray

        remote = ray.remote(max_retries=0, num_cpus=1)(_on_worker)
        waiting = list(enumerate(items))[::-1]
        tries = [0] * len(items)
        running: dict[Any, int] = {}
        try:
            while waiting or running:
                self._check_stop()
                while waiting and len(running) < (self.workers or 1):
                    index, item = waiting.pop()
                    running[remote.remote(task, item)] = index
                done, _ = ray.wait(list(running), num_returns=1, timeout=POLL_SECONDS)
                for reference in done:
                    index = running.pop(reference)
                    try:
                        node, result = ray.get(reference)
                    except Exception as error:  # the task raised, or its worker or node died
                        tries[index] += 1
                        failure = _task_error(error)
                        if tries[index] <= retries:
                            logging.getLogger(__name__).warning("trying again: %s", failure.message)
                            waiting.append((index, items[index]))
                            continue
                        node, result = "", failure
                    yield Progress(index, result, node)
        finally:
            for reference in running:
                with contextlib.suppress(Exception):
                    ray.cancel(reference, force=True)


def _on_worker(task: Callable[[Any], Any], item: Any) -> tuple[str, Any]:
    return os.uname().nodename, task(item)


def _task_error(error: Exception) -> TaskError:
    cause = getattr(error, "cause", None) or error
    message = str(cause).strip().splitlines()
    return TaskError(
        f"{type(cause).__name__}: {message[0] if message else ''}",
        "".join(traceback.format_exception(error)),
    )


def _cpus() -> int:
    return len(os.sched_getaffinity(0))
