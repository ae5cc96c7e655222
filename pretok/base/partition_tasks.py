"""One task per partition: what counting and tokenizing have in common.

Input: tasks with a partition each, and which of them are not done. Output: the result of each as it completes, the
failures, and the progress: what is to do, what earlier runs did, and each finished partition.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol, TypeVar

from pretok.base.errors import DamagedInput
from pretok.base.execute import Task
from pretok.base.failures import Failures
from pretok.base.pool import Result
from pretok.base.tasks import Step
from pretok.base.units import plural


class Named(Protocol):
    """What a step asks of a partition: its name, and the bytes of text to expect."""

    @property
    def name(self) -> str: ...

    @property
    def estimate(self) -> int: ...


class PartitionTask(Protocol):
    """A task of one partition."""

    @property
    def partition(self) -> Named: ...

    @property
    def skip_damaged(self) -> bool: ...


Work = TypeVar("Work", bound=PartitionTask)


def run_partitions(
    function: Task[Work, Result],
    tasks: Sequence[Work],
    todo: Sequence[Work],
    doing: str,
    before: Mapping[str, int],
    step: Step,
    failures: Failures,
) -> Iterator[tuple[Work, Result]]:
    """Run `todo`, the tasks that are not done, the largest first; yields each with its result, as `Step.map` does.

    doing: such as `to count`; before: the counts of earlier runs; failures: partitions that fail are added to it.
    Damaged inputs that are to be skipped are left to the caller to show.
    """
    done = len(tasks) - len(todo)
    size = sum(task.partition.estimate for task in tasks)
    # Of all tasks, also those of earlier runs: after a restart the bar goes on where it was.
    step.progress.expect(size, {**before, "partitions": done})
    text = f"{plural(len(tasks), 'partition')} {doing}"
    if kept := ", ".join(f"{before[key]:,} {key}" for key in ("documents", "tokens") if before.get(key)):
        text += f", {done} of them done by an earlier run, which left {kept}"
    (step.console.notice if kept else step.console.detail)(text)
    step.engine.choose(sum(task.partition.estimate for task in todo))
    # The largest first, so that none is alone at the end while the other workers idle; equal ones by name, so
    # that each run takes the same order.
    ordered = sorted(todo, key=lambda task: (-task.partition.estimate, task.partition.name))
    with contextlib.closing(
        step.map(
            function,
            ordered,
            "partition",
            lambda task: task.partition.name,
            size=lambda task: task.partition.estimate,
            done=done,
            failures=failures,
            expected=lambda task, error: task.skip_damaged and issubclass(error.raises, DamagedInput),
        )
    ) as results:
        for task, result in results:
            step.progress({"partitions": 1})
            yield task, result
