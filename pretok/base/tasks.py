"""A step of a job: runs its tasks, shows how far they are, and logs one event per task.

Input: an engine, a console, a function and its items. Output: each item with its result. The log says where and when
each task ran, how often it was tried, how much memory it took and why it failed, and has one event for all workers
together. At the end of a step, all failures are raised as one error.
"""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from pretok.base.console import Console, Counts, Gauge
from pretok.base.errors import OutputError, Stopped
from pretok.base.execute import Engine, Item, Task
from pretok.base.failures import Failures, TaskError, raise_failures
from pretok.base.joblog import utc
from pretok.base.pool import Outcome, Result
from pretok.base.storage import remove_leftovers


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a job, opened by `open_step`."""

    engine: Engine
    console: Console
    progress: Gauge

    def map(
        self,
        function: Task[Item, Result],
        items: Sequence[Item],
        what: str,
        name: Callable[[Item], str],
        *,
        size: Callable[[Item], int] = lambda _: 0,
        done: int = 0,
        kept: bool = True,
        folder: Path | None = None,
        failures: Failures | None = None,
        expected: Callable[[Item, TaskError], bool] = lambda _item, _error: False,
    ) -> Generator[tuple[Item, Result], None, None]:
        """Run `function` over the items, started in their order; yield each with its result as it completes.

        what: one item, such as `partition`; size: how much of the step an item is, 0 if unknown; done: how many others
        earlier runs did; kept: results stay on disk, and the same command does only the rest; folder: where killed
        tasks leave unfinished files, which are removed at the end. Failures are added to `failures`, or raised together
        when all else is done; the caller shows those that are `expected`. Raises OutputError at once, as all other
        results could not be written either; Stopped and EngineLost, which say how much is done and kept.
        """
        collected: Failures = [] if failures is None else failures
        total = done + len(items)
        workers = self.engine.parallel if items else 0
        began, busy, peak = time.monotonic(), 0.0, 0
        nodes: Counter[str] = Counter()

        def on_report(index: int, counts: Counts) -> None:
            self.progress.of_task(name(items[index]), size(items[index]), counts)

        try:
            # Closed as soon as this generator is, so that the workers end then and not when garbage is
            # collected.
            with contextlib.closing(self.engine.map(function, items, on_report)) as outcomes:
                for outcome in outcomes:
                    item, result = items[outcome.index], outcome.result
                    self.progress.end_task(name(item))
                    busy, peak = busy + outcome.seconds, max(peak, outcome.peak)
                    # Before the yield: the consumer may stop there, and the task is done all the same.
                    self._log(outcome, what, name(item))
                    if not isinstance(result, TaskError):
                        done, nodes[outcome.node] = done + 1, nodes[outcome.node] + 1
                        yield item, result
                    elif issubclass(result.raises, OutputError):
                        raise result.raises(result.message)
                    else:
                        if not expected(item, result):
                            self.console.notice(f"{what} {name(item)} failed: {result.message}")
                        collected.append((name(item), result))
        except Stopped as stopped:
            if not kept:
                raise
            raise type(stopped)(f"{stopped}; {done} of {total} {what}s are done and kept") from None
        finally:
            if items:
                # Below 0 if workers came after the start: nodes that joined the Ray cluster late.
                idle = max(0.0, 1 - busy / (workers * (time.monotonic() - began)))
                self._log_workers(what, workers, nodes, idle, peak)
        # Only now, when no task of the step writes there any more.
        if folder is not None:
            remove_leftovers(folder)
        if failures is None:
            raise_failures(collected, self.console.log, f"{what}s", kept=kept)

    def _log_workers(self, what: str, workers: int, nodes: Counter[str], idle: float, peak: int) -> None:
        by_node = dict(sorted(nodes.items()))
        self.console.event(
            "workers", what=what, workers=workers, nodes=by_node, idle=round(idle, 4), peak_bytes=peak
        )
        if len(by_node) > 1:
            shares = ", ".join(f"{node} {count}" for node, count in by_node.items())
            self.console.notice(f"{what}s per node: {shares}")

    def _log(self, outcome: Outcome[Result], what: str, name: str) -> None:
        details: dict[str, object] = {"what": what, "item": name, "tries": outcome.tries}
        if outcome.node:  # else its worker died
            details |= {
                "node": outcome.node,
                "began": utc(outcome.began),
                "seconds": round(outcome.seconds, 3),
                "peak_bytes": outcome.peak,
            }
        if isinstance(error := outcome.result, TaskError):
            self.console.event("task_failed", **details, message=error.message, traceback=error.trace)
        else:
            self.console.event("task", **details)


@contextlib.contextmanager
def open_step(title: str, engine: Engine, console: Console) -> Iterator[Step]:
    """Show a step under its title while the context is open."""
    with console.progress(title) as progress:
        yield Step(engine, console, progress)
