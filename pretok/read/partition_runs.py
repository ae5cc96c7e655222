"""One task a partition: what counting and tokenizing have in common.

Enters: tasks that hold a Partition each, and those of them that are not done. Leaves: each one's outcome as it
completes; progress with what an earlier run did, the estimates of the whole, each finished partition; at a stop how far
the work came.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Protocol, TypeVar

from pretok.base.errors import OutputError, Stopped
from pretok.base.execute import Engine, Outcome, Task
from pretok.base.failures import TaskError
from pretok.base.progress import Progress
from pretok.base.tasks import Usage, run_tasks
from pretok.base.tell import Teller
from pretok.read.partition import Partition


class PartitionTask(Protocol):
    """A task of one partition."""

    @property
    def partition(self) -> Partition:
        """The partition."""


Work = TypeVar("Work", bound=PartitionTask)
Result = TypeVar("Result")


def expect(tasks: Sequence[PartitionTask], progress: Progress) -> int:
    """Tell progress of the whole work; the bytes of text expected in all."""
    sources: Counter[str] = Counter()
    for task in tasks:
        sources[task.partition.source] += task.partition.estimate
    progress.expect(sources.total(), len(tasks), dict(sources))
    return sources.total()


def run_partitions(
    function: Task[Work, Result],
    tasks: Sequence[Work],
    done: int,
    engine: Engine,
    progress: Progress,
    tell: Teller,
    usage: Usage | None = None,
) -> Iterator[tuple[Work, Outcome[Result]]]:
    """Run the tasks that are left, largest first, after `done` others; each with its outcome, which may be a TaskError.

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
                task, error = ordered[outcome.index], outcome.result
                if not isinstance(error, TaskError):
                    done += 1
                    progress({"partitions": 1})
                elif issubclass(error.raises, OutputError):
                    raise error.raises(error.message)
                else:
                    tell.notice(f"partition {task.partition.name} failed: {error.message}")
                yield task, outcome
    except Stopped as stopped:
        raise type(stopped)(f"{stopped}; {done} of {total} partitions are done and kept") from None
