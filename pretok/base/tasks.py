"""The tasks of one step: run, told of, added up.

Enters: a function and its items, for the engine. Leaves: each outcome as it comes; in the log one event a task (where
and when it ran, how often it was tried, its memory, why it failed) and one for all workers together; a Usage.
"""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field

from pretok.base.execute import Engine, Item, Outcome, Report, Result, Task
from pretok.base.failures import TaskError
from pretok.base.joblog import utc
from pretok.base.tell import Teller


@dataclass(slots=True)
class Usage:
    """What the workers of a step did. nodes: tasks done on each; busy, available: seconds of all workers; peak: most
    bytes of memory that one held."""

    nodes: Counter[str] = field(default_factory=Counter)
    busy: float = 0.0
    available: float = 0.0
    peak: int = 0

    @property
    def idle(self) -> float:
        """Share of the workers' time in which they had no task, their start included."""
        return 1 - self.busy / self.available if self.available else 0.0


def run_tasks(
    function: Task[Item, Result],
    items: Sequence[Item],
    names: Sequence[str],
    what: str,
    engine: Engine,
    tell: Teller,
    progress: Report | None = None,
    usage: Usage | None = None,
) -> Generator[Outcome[Result], None, None]:
    """Run `function` over `items` as `Engine.map` does. names: of the items, in their order; what: one of them, such as
    `partition`; usage: filled while that goes on."""
    if not items:
        return
    usage = Usage() if usage is None else usage
    workers, began = engine.parallel, time.monotonic()
    tell.event("tasks", what=what, tasks=len(items), workers=workers)
    try:
        with contextlib.closing(engine.map(function, items, progress)) as outcomes:
            for outcome in outcomes:
                usage.busy, usage.peak = usage.busy + outcome.seconds, max(usage.peak, outcome.peak)
                if not isinstance(outcome.result, TaskError):
                    usage.nodes[outcome.node] += 1
                _log(outcome, names[outcome.index], what, tell)
                yield outcome
    finally:
        usage.available = workers * (time.monotonic() - began)
        tell.event(
            "workers",
            what=what,
            workers=workers,
            nodes=dict(sorted(usage.nodes.items())),
            idle=round(usage.idle, 4),
            peak_bytes=usage.peak,
        )


def _log(outcome: Outcome[Result], name: str, what: str, tell: Teller) -> None:
    details: dict[str, object] = {"what": what, "item": name, "node": outcome.node, "tries": outcome.tries}
    if outcome.began:  # else its worker died and told nothing
        details |= {
            "began": utc(outcome.began),
            "ended": utc(outcome.began + outcome.seconds),
            "seconds": round(outcome.seconds, 3),
            "peak_bytes": outcome.peak,
        }
    if isinstance(error := outcome.result, TaskError):
        details |= {"message": error.message, "kind": error.raises.__name__, "traceback": error.trace}
        tell.event("task_failed", **details)
    else:
        tell.event("task", **details)
