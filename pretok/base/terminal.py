"""What a person sees: a live bar on a terminal, a line at intervals in a file, tables at the end.

Progress and notices go to standard error, results to standard output, and all of it to the log.
"""

from __future__ import annotations

import logging
import os
import platform
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rich.console import Console as RichConsole
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table as RichTable
from rich.text import Text

from pretok.base.console import Console, Counts, Progress, Table
from pretok.base.gauge import Gauge
from pretok.base.joblog import JobLog
from pretok.base.records import replace, to_json
from pretok.base.version import PRETOK_VERSION
from pretok.base.visible import masked, visible, visible_json

FIRST_LINE = 3.0
LINES_APART = 60.0
"""Seconds from the start of a step to its first line of progress, and from line to line at most."""
UNBOUNDED = 1_000_000
"""Columns where the output is not a terminal."""
PACKAGES = ("numpy", "numba", "pyarrow", "tokenizers", "gigatoken", "ray")
"""Packages whose versions the log has."""


class _Console(RichConsole):
    """Prints names, paths and tokens literally: `[x]` and `:x:` are not markup, and control characters are visible."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings, highlight=False, soft_wrap=True, markup=False, emoji=False)

    def print(self, *objects: Any, **settings: Any) -> None:
        """Every text that a command shows goes through here. On standard error, secrets in URLs are masked."""
        shown = [
            visible(masked(one) if self.stderr else one) if isinstance(one, str) else one for one in objects
        ]
        super().print(*shown, **settings)

    def on_broken_pipe(self) -> None:
        """Rich would exit with code 1, the code of a bug; the handler of all errors handles it."""
        raise  # the BrokenPipeError


class Terminal(Console):
    """The Console of a command. There is no log before `keep_log`.

    arguments: the command line; error: where notices and progress go; output: where results go. quiet: show only
    results and errors; the log has everything all the same.
    """

    def __init__(
        self,
        arguments: Sequence[str] = (),
        error: RichConsole | None = None,
        output: RichConsole | None = None,
    ) -> None:
        self.quiet = False
        self.arguments = arguments
        self._error = error or _Console(stderr=True)
        self._output = output or _Console()
        self._log: JobLog | None = None

    @property
    def log(self) -> Path | None:
        """The log file; None where none is kept."""
        return self._log.path if self._log else None

    def keep_log(self, folder: Path, command: str, **start: object) -> None:
        """Keep a log in `folder` from now on, if there is none yet. start: details of its first line."""
        if self._log:
            return
        self._log = JobLog(folder, command, {"command": command}, self._print)
        versions = {"pretok": PRETOK_VERSION, "python": platform.python_version()}
        versions |= {name: version(name) for name in PACKAGES}
        job = {"argv": list(self.arguments), "directory": str(Path.cwd()), "pid": os.getpid()}
        self.event("start", **job, versions=versions, **start)

    def notice(self, text: str) -> None:
        """Show a line."""
        self.event("notice", message=text)
        self._print(text)

    def error(self, text: str, trace: str = "") -> None:
        """Show why the command ends: in red on a terminal, after the traceback if it is a bug."""
        self.event("error", message=text, traceback=trace)
        if trace:
            self._error.print(trace)
        self._error.print(text, style="red")

    def progress(self, title: str) -> Meter:
        """Show a step while the context is open, and a summary at its end."""
        return Meter(title, self)

    def show(self, made: Table | str, *, result: bool = False) -> None:
        """Show a table or a text; result: it is the result of the command."""
        self.detail(made)
        if result or not self.quiet:
            _print(made, self._output if result else self._error)

    def detail(self, made: Table | str) -> None:
        """Write a table or a line to the log only."""
        if isinstance(made, str):
            self.event("notice", message=made)
        else:
            self.event("table", title=made.title, columns=made.columns, rows=made.rows)

    def event(self, name: str, /, **details: object) -> None:
        """Write an event to the log only."""
        if self._log:
            self._log.write(name, details)

    def end(self, code: int) -> None:
        """End the log with the exit code of the command."""
        if self._log:
            self._log.end(code)

    def _print(self, text: str) -> None:
        if not self.quiet:
            self._error.print(text)


class ConsoleWarnings(logging.Handler):
    """Shows the warnings of libraries, and of modules of ours that have no Console, on a Terminal."""

    def __init__(self, console: Terminal) -> None:
        super().__init__()
        self._console = console

    def emit(self, record: logging.LogRecord) -> None:
        """Show a record."""
        text = self.format(record)
        self._console.event("warning", message=text)
        self._console._print(text)


def _print(made: Table | str, where: RichConsole) -> None:
    """Print a table or a text. No cell is cut: in a file or a pipe a table is as wide as it must be, on a terminal long
    cells fold."""
    if isinstance(made, str):
        where.print(made)
        return
    grid = RichTable()
    for at, column in enumerate(made.columns):
        grid.add_column(Text(visible(column, "")), justify="left" if at == 0 else "right", overflow="fold")
    for row in made.rows:
        grid.add_row(*(Text(visible(cell, "")) for cell in row))
    where.print(made.title, style="bold")
    # `print(width=...)` takes no more than the console's own width, which is 80 where there is no terminal.
    (where if where.is_terminal else _Console(file=where.file, width=UNBOUNDED)).print(grid)


class Meter(Progress):
    """Shows the gauge of a step while the context is open; call it with increments (see `pretok.base.gauge`).

    On a terminal it is a bar, elsewhere lines at growing intervals, at most LINES_APART seconds apart, even if nothing
    is reported. The log gets the counts at the same times.
    """

    def __init__(self, title: str, console: Terminal) -> None:
        self._console = console
        self._began = time.monotonic()
        self._gauge = Gauge(title)
        self._counts = Counter[str]()
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._lines = threading.Thread(target=self._print_lines, name=f"meter {title}", daemon=True)
        self._bar: Live | None = None
        if console._error.is_interactive and not console.quiet:
            self._bar = Live(get_renderable=self._render, console=console._error, transient=True)

    def __enter__(self) -> Meter:
        self._console.event("step", title=self._gauge.title)
        if self._bar:
            self._bar.start()
        self._lines.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        self._ended.set()
        self._lines.join()
        if self._bar:
            self._bar.stop()
        gauge = self._now()
        text = gauge.summary() if kind is None else ""
        self._console.event("step_end", message=text, ended_by=kind and kind.__name__, **to_json(gauge))
        if text:
            self._console._print(text)

    def expect(self, bytes: int, partitions: int) -> None:
        """The estimated size of the whole step: bytes of text, and partitions."""
        with self._lock:
            self._gauge = replace(self._gauge, expected_bytes=bytes, partitions=partitions)

    def start_from(self, counts: Counts) -> None:
        """What earlier runs did of the step; it does not count for the speed of this run."""
        with self._lock:
            self._gauge = replace(self._gauge, before=dict(counts))

    def __call__(self, counts: Counts, /) -> None:
        with self._lock:
            self._counts.update(counts)

    def _render(self) -> RichTable:
        """Title, bar and figures in one line; on a narrow terminal the bar shrinks first."""
        gauge = self._now()
        grid = RichTable.grid(padding=(0, 1, 0, 0), expand=True)
        grid.add_column(no_wrap=True)
        grid.add_column(ratio=1)
        grid.add_column(no_wrap=True)
        bar = ProgressBar(completed=gauge.percent) if gauge.percent is not None else ""
        grid.add_row(Text(visible(gauge.title)), bar, Text(" ".join(gauge.short())))
        return grid

    def _now(self) -> Gauge:
        with self._lock:
            seconds = round(time.monotonic() - self._began, 6)
            return replace(self._gauge, seconds=seconds, counts=dict(self._counts))

    def _print_lines(self) -> None:
        for gap in _gaps():
            if self._ended.wait(gap):
                return
            gauge = self._now()
            self._console.event("progress", **to_json(gauge))
            if not self._bar:
                self._console._print(f"{time.strftime('%H:%M:%S')} {gauge.line()}")


def _gaps() -> Iterator[float]:
    """Seconds to wait before each line of progress, doubling up to LINES_APART."""
    gap = FIRST_LINE
    while True:
        yield gap
        gap = min(2 * gap, LINES_APART)


def print_json(value: object) -> None:
    """Print the result of a command, JSON or a record, to standard output."""
    import json

    sys.stdout.write(visible_json(json.dumps(to_json(value), ensure_ascii=False, indent=1)) + "\n")
