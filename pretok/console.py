"""What a person sees: a live bar on a terminal, a line every so often in a log, tables at the end.

Progress and notices go to standard error; what a command was asked for goes to standard output.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from pretok.units import short

LOG_SECONDS = 30.0
console = Console(stderr=True, highlight=False, soft_wrap=True)
output = Console(highlight=False, soft_wrap=True)


def notice(text: str) -> None:
    """One plain line."""
    console.print(text, markup=False)


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    """A table whose first column is text and whose other columns are numbers."""
    made = Table(title=title, title_justify="left", title_style="bold")
    for at, column in enumerate(columns):
        made.add_column(column, justify="left" if at == 0 else "right")
    for row in rows:
        made.add_row(*row)
    return made


def show(made: Table | str, *, result: bool = False) -> None:
    """Print a table or a text; `result`: it is what the command was asked for."""
    (output if result else console).print(made, markup=False)


class Meter:
    """Progress of one step; call it with increments (documents, bytes, tokens, ...).

    total: bytes of text expected, an estimate; None hides bar and remaining time.
    """

    def __init__(self, title: str, total: int | None = None) -> None:
        self._title = title
        self._total = total
        self._counts: Counter[str] = Counter()
        self._began = self._logged = time.monotonic()
        self._bar: Progress | None = None
        if console.is_terminal:
            self._bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                TextColumn("{task.fields[state]}"),
                TimeElapsedColumn(),
                TimeRemainingColumn(),
                console=console,
                transient=True,
            )
            self._task = self._bar.add_task(title, total=total, state="")

    def expect(self, bytes: int, partitions: int, sources: dict[str, int]) -> None:  # noqa: ARG002
        """The whole work, as `pretok.progress` says."""
        self._total = bytes
        if self._bar:
            self._bar.update(self._task, total=bytes)

    def start_from(self, counts: dict[str, int]) -> None:
        """What an earlier run did."""
        self(counts)

    def __enter__(self) -> Meter:
        if self._bar:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar:
            self._bar.stop()
        if kind is None:
            notice(f"{self._title}: {self._state()} in {self.seconds:.1f} s")

    @property
    def seconds(self) -> float:
        """Seconds since the step began."""
        return time.monotonic() - self._began

    def __call__(self, counts: dict[str, int]) -> None:
        self._counts.update(counts)
        if self._bar:
            self._bar.update(self._task, completed=self._counts["bytes"], state=self._state())
        elif time.monotonic() - self._logged > LOG_SECONDS:
            self._logged = time.monotonic()
            notice(f"{self._title}: {self._state()}{self._remaining()}")

    def _state(self) -> str:
        parts = [
            f"{short(self._counts[key])} {key}"
            for key in self._counts
            if key != "bytes" and self._counts[key]
        ]
        if size := self._counts["bytes"]:
            parts.append(f"{short(size)}B of text, {size / 1e6 / max(self.seconds, 1e-9):.1f} MB/s")
        return ", ".join(parts)

    def _remaining(self) -> str:
        done = self._counts["bytes"]
        if not self._total or not done:
            return ""
        left = max(0.0, (self._total - done) * self.seconds / done)
        return f", about {left / 60:.0f} min left"


def print_json(value: object) -> None:
    """A command's result on standard output."""
    import json

    json.dump(value, sys.stdout, ensure_ascii=False, indent=1)
    sys.stdout.write("\n")
