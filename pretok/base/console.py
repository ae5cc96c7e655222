"""How a job reports to a person: through one object that it is given, never a global.

Input: notices, progress, tables and events. Output: depends on the object: commands pass a `terminal.Terminal`,
programs that use the library the silent Console of this module. The progress of a step is a Gauge, which makes one line
of its counts for a log, a terminal or the end:

    tokenize 42 % · 1.31 TB of 3.1 TB · 11.2 GB/s · 2 h 5 min left
"""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from pretok.base.units import duration, human, human_bytes, plural

Counts = dict[str, int]
"""Increments of documents, tokens, bytes (of text), rejected, partitions and others; below 0 to take back what a task
counted that failed."""
NEARLY = 99
"""Highest percentage before the end: the estimate of the whole may be too low."""
WINDOW = 10.0
"""Seconds over which the speed of a step is measured."""
ORDER = ("partitions", "documents", "tokens", "rejected")
TEXT = ("bytes", "refused bytes")
"""Counts of text that was read; the second is that of rejected records."""


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of texts under column names."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    """Return a table whose first column is text and whose other columns are numbers."""
    return Table(title, columns, list(rows))


class Gauge:
    """The counts of a step, which several threads report.

    counts: of this run; before: of earlier runs; expected: the whole step in `unit`, earlier runs included, 0 while
    unknown; unit: the count that says how far the step is, of which `bytes` takes refused text too; note: what the step
    does before its first count, such as compiling; running: name of a task that is under way -> how much of `unit` it
    did, and will do, 0 if unknown.
    """

    def __init__(self, title: str) -> None:
        self.title = title
        self.counts: Counter[str] = Counter()
        self.before: Counts = {}
        self.expected, self.unit, self.note = 0, "bytes", ""
        self.running: dict[str, tuple[int, int]] = {}
        self._began = self._worked = time.monotonic()
        self._latest: deque[tuple[float, int]] = deque()
        self._lock = threading.Lock()

    def __call__(self, counts: Counts, /) -> None:
        """Add what was done since the last call."""
        with self._lock:  # a new object, so that a thread that reads the old one is not disturbed
            now = time.monotonic()
            if not self.counts:  # what came before it is start-up: tasks report about once a second
                self._worked = max(self._began, now - 1.0)
            if min(counts.values(), default=0) < 0:
                self._latest.clear()  # the speed is that of what counts
            self.counts = self.counts + Counter(counts)
            self._latest.append((now, self.done))
            while len(self._latest) > 2 and now - self._latest[1][0] > WINDOW:
                self._latest.popleft()

    def of_task(self, name: str, expected: int, counts: Counts) -> None:
        """Add what a task did since its last report. expected: the whole task in `unit`, 0 if unknown."""
        self(counts)
        with self._lock:
            done, _ = self.running.get(name, (0, 0))
            self.running = {**self.running, name: (done + _amount(counts, self.unit), expected)}

    def end_task(self, name: str) -> None:
        """Forget a task that is no longer under way."""
        with self._lock:
            self.running = {other: task for other, task in self.running.items() if other != name}

    def expect(self, size: int, before: Counts | None = None, unit: str = "bytes") -> None:
        """Set the size of the whole step, and how much of it earlier runs did."""
        self.expected, self.before, self.unit = size, before or {}, unit
        if size:
            self.note = self.note or "starting"

    def fields(self) -> dict[str, object]:
        """Return the state of the step, for the log."""
        names = ("title", "seconds", "counts", "before", "expected", "unit")
        return {name: getattr(self, name) for name in names}

    @property
    def seconds(self) -> float:
        """Seconds since the step began."""
        return round(time.monotonic() - self._began, 6)

    @property
    def done(self) -> int:
        """How much of `unit` this run did."""
        return _amount(self.counts, self.unit)

    @property
    def share(self) -> float | None:
        """The share of the whole that is done, 0 to 1; None while the whole is unknown."""
        return share_of(_amount(self.before, self.unit) + self.done, self.expected)

    @property
    def rate(self) -> float:
        """What the last WINDOW seconds did of `unit`, a second."""
        with self._lock:
            if not self._latest:
                return 0.0
            began, done = self._latest[0] if len(self._latest) > 1 else (self._worked, 0)
            return (self.done - done) / max(time.monotonic() - began, 1e-3)

    @property
    def left(self) -> float | None:
        """Seconds to the end at the mean speed of this run; None while unknown."""
        rest = self.expected - _amount(self.before, self.unit) - self.done
        if not self.done or rest <= 0:
            return None
        return rest * (time.monotonic() - self._worked) / self.done

    def parts(self) -> dict[str, str]:
        """Return what is known of how far the step is, for a line or a bar: percent, amount, rate, left."""
        done, share, left, rate = self.done, self.share, self.left, self.rate
        before = _amount(self.before, self.unit)
        size = human_bytes if self.unit == "bytes" else human
        # The size of text in a compressed file is a guess, which the text may exceed.
        whole = f" of {size(self.expected)}" if self.expected >= before + done else ""
        unit = "" if self.unit == "bytes" else f" {self.unit}"
        speed = "" if self.counts else self.note
        if rate:
            speed = f"{size(rate)}{unit}/s"
        found = {
            "percent": percent(share),
            "amount": f"{size(before + done)}{whole}{unit}" if done or before else "",
            "rate": speed,
            "left": "" if left is None else f"{duration(left)} left",
        }
        return {name: text for name, text in found.items() if text}

    def counted(self) -> list[str]:
        """Return each count but those of text, as words."""
        return list(_counted(self.counts))

    def line(self) -> str:
        """Return how far the step is, in a line for a log."""
        rejected = self.counts["rejected"]
        rest = [f"{rejected:,} rejected"] if rejected else []
        if not self.expected:
            rest = [*self.counted(), duration(self.seconds)]
        parts = self.parts()
        title = " ".join(filter(None, (self.title, parts.pop("percent", ""))))
        return " · ".join([title, *parts.values(), *rest])

    def summary(self) -> str:
        """Return what this run did; "" if it did nothing in no time."""
        seconds, counts = self.seconds, self.counted()
        start = self._worked - self._began
        if size := _amount(self.counts, "bytes"):
            rate = size / max(seconds - start, 1e-9)
            counts.append(f"{human_bytes(size)} of text, {human_bytes(rate)}/s")
        partitions = self.before.get("partitions", 0)
        if not counts and not partitions and seconds < 0.1:
            return ""
        notes = [f"{plural(partitions, 'partition')} done before"] if partitions else []
        notes += [f"{start:.1f} s to start"] if size and start >= 1 else []
        more = f" ({', '.join(notes)})" if notes else ""
        return f"{self.title}: {', '.join(counts)}{' in ' if counts else ''}{seconds:.1f} s{more}"


def share_of(done: int, expected: int) -> float | None:
    """Return the share of the expected that is done, 0 to 1; None if nothing is known of it."""
    return min(NEARLY / 100, done / expected) if expected else None


def percent(share: float | None) -> str:
    """Return a share as words, "" for None."""
    return "" if share is None else f"{int(share * 100)} %"


def _amount(counts: Mapping[str, int], unit: str) -> int:
    """Return the count of a unit; of bytes those of refused text too."""
    return sum(counts.get(key, 0) for key in (TEXT if unit == "bytes" else (unit,)))


def _counted(counts: Mapping[str, int]) -> Iterator[str]:
    """Yield each count but those of text. Their keys are plurals, except `rejected`."""
    for key in dict.fromkeys([*ORDER, *counts]):
        if (number := counts.get(key, 0)) and key not in TEXT:
            yield f"{number:,} {key.removesuffix('s') if number == 1 else key}"


class Console:
    """Receives the reports of a job. This one shows nothing."""

    @property
    def log(self) -> Path | None:
        """The log file; None if none is kept."""
        return None

    def event(self, name: str, /, **details: object) -> None:
        """Write an event to the log only. details: JSON values."""

    def detail(self, shown: Table | str) -> None:
        """Write a table or a line to the log only."""
        if isinstance(shown, str):
            self.event("notice", message=shown)
        else:
            self.event("table", title=shown.title, columns=shown.columns, rows=shown.rows)

    def show(self, shown: Table | str, *, result: bool = False) -> None:  # noqa: ARG002
        """Show a table or a text; result: it is the result of the command."""
        self.detail(shown)

    def notice(self, text: str) -> None:
        """Show a line."""
        self.show(text)

    def progress(self, title: str) -> AbstractContextManager[Gauge]:
        """Show a step while the context is open."""
        return nullcontext(Gauge(title))


NO_CONSOLE = Console()
