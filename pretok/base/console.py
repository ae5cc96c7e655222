"""What a person sees: a live bar on a terminal, a line every so often in a log, tables at the end.

Gauge and notices go to standard error; what a command was asked for goes to standard output.
"""

from __future__ import annotations

import itertools
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.measure import Measurement
from rich.table import Table as RichTable
from rich.text import Text

from pretok.base.gauge import Gauge
from pretok.base.tell import Table

FIRST_LINE = 3.0
LINES_APART = 60.0
"""Seconds from the start of a step to its first line in a log, and from line to line at most."""
UNBOUNDED = 1_000_000


class _Console(Console):
    """Prints names, paths and tokens, in which `[x]` and `:x:` mean themselves."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings, highlight=False, soft_wrap=True, markup=False, emoji=False)

    def on_broken_pipe(self) -> None:
        """Rich would end the process with code 1, which is that of a bug; the handler of all errors knows better."""
        raise  # what is being handled: BrokenPipeError


class Terminal:
    """The Teller of a command. error: where notices and progress go; output: where results go."""

    log: Path | None = None

    def __init__(self, error: Console | None = None, output: Console | None = None) -> None:
        self._error = error or _Console(stderr=True)
        self._output = output or _Console()

    def notice(self, text: str) -> None:
        """One plain line."""
        self._error.print(text)

    def progress(self, title: str) -> Meter:
        """Show a step while the context is open, and what it did at its end."""
        return Meter(title, self._error)

    def show(self, made: Table | str, *, result: bool = False) -> None:
        """Print a table or a text; `result`: it is what the command was asked for."""
        where = self._output if result else self._error
        if isinstance(made, str):
            where.print(made)
        else:
            _print_table(made, where)

    def event(self, name: str, **details: object) -> None:
        """Not for a terminal."""


def _print_table(made: Table, where: Console) -> None:
    """No cell is shortened: a file or a pipe gets the table as wide as it is, a terminal too narrow for it gets the
    rows as lines `name: value`."""
    grid = RichTable()
    for at, column in enumerate(made.columns):
        grid.add_column(Text(column), justify="left" if at == 0 else "right", no_wrap=True, overflow="ignore")
    for row in made.rows:
        grid.add_row(*map(Text, row))
    unbounded = where.options.update(width=UNBOUNDED, max_width=UNBOUNDED)
    width = Measurement.get(where, unbounded, grid).maximum
    where.print(made.title, style="bold")
    if where.is_terminal and width > where.width:
        where.print("\n".join(_as_lines(made)))
    else:  # `print(width=...)` takes no more than the console's own width, which is 80 where there is no terminal
        _Console(file=where.file, width=width).print(grid)


def _as_lines(made: Table) -> Iterator[str]:
    for row in made.rows:
        yield from (
            f"  {name}: {cell}" if name else f"  {cell}" for name, cell in zip(made.columns, row, strict=True)
        )
        yield ""


class Meter:
    """Gauge of one step, shown while the context is open; call it with increments (see `pretok.base.gauge`).

    On a terminal a bar; else a line after some seconds and then at growing intervals, at most LINES_APART seconds
    apart, whether or not anything is reported.
    """

    def __init__(self, title: str, where: Console, clock: Callable[[], float] = time.monotonic) -> None:
        self._where = where
        self._gauge = Gauge(title, clock)
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._lines = threading.Thread(target=self._print_lines, name=f"meter {title}", daemon=True)
        self._bar: Live | None = None
        if where.is_interactive:
            self._bar = Live(get_renderable=self._render, console=where, transient=True)

    def __enter__(self) -> Meter:
        if self._bar:
            self._bar.start()
        else:
            self._lines.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar:
            self._bar.stop()
        else:
            self._ended.set()
            self._lines.join()
        if kind is None and (text := self._gauge.summary()):
            self._where.print(text)

    @property
    def seconds(self) -> float:
        """Seconds since the step began."""
        return self._gauge.seconds

    def expect(self, bytes: int, partitions: int, sources: Mapping[str, int]) -> None:
        """The whole step, estimated: bytes of text, partitions, and bytes of text of each source. Called once."""
        with self._lock:
            gauge = self._gauge
            gauge.expected, gauge.partitions, gauge.sources = bytes, partitions, dict(sources)

    def start_from(self, counts: Mapping[str, int]) -> None:
        """What earlier runs did of the step: part of what is done, not of the rate."""
        with self._lock:
            self._gauge.earlier = Counter(counts)

    def __call__(self, counts: Mapping[str, int]) -> None:
        with self._lock:
            self._gauge.counts.update(counts)

    def _render(self) -> Text:
        with self._lock:
            return Text(self._gauge.bar(self._where.width - 1), no_wrap=True)

    def _print_lines(self) -> None:
        for gap in _gaps():
            if self._ended.wait(gap):
                return
            with self._lock:
                line = self._gauge.line()
            self._where.print(f"{time.strftime('%H:%M:%S')} {line}")


def _gaps() -> Iterator[float]:
    """Seconds to wait before each line of a log: doubling, so that a short step is seen and a long one is no flood."""
    for power in itertools.count():
        yield min(FIRST_LINE * 2.0 ** min(power, UNBOUNDED.bit_length()), LINES_APART)


def print_json(value: object) -> None:
    """A command's result on standard output."""
    import json

    json.dump(value, sys.stdout, ensure_ascii=False, indent=1)
    sys.stdout.write("\n")
