"""How a job reports to a person: through one object that it is given, never a global.

Input: notices, progress, tables and events. Output: depends on the object: commands pass a `terminal.Terminal`,
programs that use the library the silent Console of this module. The progress of a step is a Gauge, which makes one line
of its counts for a log, a terminal or the end:

    tokenize: 30 partitions, 2 GB of text, 120 MB/s in 16.7 s (11 partitions done before); 38 %, ETA 41 s
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from pretok.base.units import duration, human_bytes, plural

Counts = dict[str, int]
"""Increments of documents, tokens, bytes (of text), rejected, partitions and others. For display only: a task that is
tried again counts again."""
NEARLY = 99
"""Highest percentage before the end: the estimate of the whole may be too low."""
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
    """A table whose first column is text and whose other columns are numbers."""
    return Table(title, columns, list(rows))


class Gauge:
    """The counts of a step, which several threads report.

    counts: of this run; before: of earlier runs; expected_bytes: text of the whole step, earlier runs included, 0 while
    unknown. Speed and time left are those of this run.
    """

    def __init__(self, title: str) -> None:
        self.title = title
        self.counts: Counter[str] = Counter()
        self.before: Counts = {}
        self.expected_bytes = 0
        self._began = time.monotonic()
        self._lock = threading.Lock()

    def __call__(self, counts: Counts, /) -> None:
        """Add what was done since the last call."""
        with self._lock:  # a new object, so that a thread that reads the old one is not disturbed
            self.counts = self.counts + Counter(counts)

    def expect(self, bytes: int, before: Counts) -> None:
        """Set the size of the whole step, and how much of it earlier runs did."""
        self.expected_bytes, self.before = bytes, before

    def fields(self) -> dict[str, object]:
        """The state of the step, for the log."""
        return {
            name: getattr(self, name) for name in ("title", "seconds", "counts", "before", "expected_bytes")
        }

    @property
    def seconds(self) -> float:
        """Seconds since the step began."""
        return round(time.monotonic() - self._began, 6)

    def line(self) -> str:
        """What this run did, how much of the whole is done, and the time left."""
        done, left = _read(self.counts), self.expected_bytes - _read(self.before) - _read(self.counts)
        if not self.expected_bytes:
            return self.summary()
        percent = min(NEARLY, 100 * (self.expected_bytes - left) // self.expected_bytes)
        rest = f", ETA {duration(left * self.seconds / done)}" if done and left > 0 else ""
        return f"{self.summary()}; {percent} %{rest}"

    def summary(self) -> str:
        """What this run did; empty if it did nothing in no time."""
        seconds, counts = self.seconds, list(_counted(self.counts))
        if size := _read(self.counts):
            counts.append(f"{human_bytes(size)} of text, {human_bytes(size / max(seconds, 1e-9))}/s")
        partitions = self.before.get("partitions", 0)
        if not counts and not partitions and seconds < 0.1:
            return ""
        before = f" ({plural(partitions, 'partition')} done before)" if partitions else ""
        return f"{self.title}: {', '.join(counts)}{' in ' if counts else ''}{seconds:.1f} s{before}"


def _read(counts: Mapping[str, int]) -> int:
    """Bytes of text, refused ones included."""
    return sum(counts.get(key, 0) for key in TEXT)


def _counted(counts: Mapping[str, int]) -> Iterator[str]:
    """Each count but those of text. Their keys are plurals, except `rejected`."""
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
