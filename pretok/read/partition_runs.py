"""One task a partition: what counting and tokenizing have in common.

Enters: tasks that hold a Partition each, and those of them that are not done. Leaves: each one's result as it
completes, and which failed; progress with what an earlier run did, the estimates of the whole, each finished partition;
at a stop how far the work came.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Protocol, TypeVar

from pretok.base.errors import OutputError, Stopped
from pretok.base.execute import Engine, Result, Task
from pretok.base.failures import TaskError, raise_failures
from pretok.base.tasks import Usage, run_tasks
from pretok.base.tell import Progress, Teller
from pretok.read.partition import Partition


class PartitionTask(Protocol):
    """A task of one partition."""

    @property
    def partition(self) -> Partition:
        """The partition."""


Work = TypeVar("Work", bound=PartitionTask)
Failures = list[tuple[Partition, TaskError]]
"""Partitions that could not be done, and why."""


def expect(tasks: Sequence[PartitionTask], progress: Progress) -> int:
    """Tell progress of the whole work; the bytes of text expected in all."""
    sources: Counter[str] = Counter()
    for task in tasks:
        sources[task.partition.source] += task.partition.estimate
    progress.expect(sources.total(), len(tasks), dict(sources))
    return sources.total()


def raise_partitions(failures: Failures, tell: Teller) -> None:
    """Raise what they mean; nothing if there are none."""
    raise_failures([(partition.name, error) for partition, error in failures], tell)


def run_partitions(
    function: Task[Work, Result],
    tasks: Sequence[Work],
    done: int,
    failures: Failures,
    engine: Engine,
    progress: Progress,
    tell: Teller,
    usage: Usage | None = None,
) -> Iterator[tuple[Work, Result]]:
    """Run the tasks that are left, largest first, after `done` others; each with its result. The others go to
    `failures`.

    Raises Stopped and EngineLost, which then say how many partitions are done; OutputError at once where results cannot
    be written, as all others would fail in the same way.
    """
    ordered = sorted(tasks, key=lambda task: (-task.partition.estimate, task.partition.name))
    names = [task.partition.name for task in ordered]
    total = done + len(ordered)
    try:
        with contextlib.closing(
            run_tasks(function, ordered, names, "partition", engine, tell, progress, usage)
        ) as outcomes:
            for outcome in outcomes:
                task, result = ordered[outcome.index], outcome.result
                if not isinstance(result, TaskError):
                    done += 1
                    progress({"partitions": 1})
                    yield task, result
                elif issubclass(result.raises, OutputError):
                    raise result.raises(result.message)
                else:
                    tell.notice(f"partition {task.partition.name} failed: {result.message}")
                    failures.append((task.partition, result))
    except Stopped as stopped:
        raise type(stopped)(f"{stopped}; {done} of {total} partitions are done and kept") from None
