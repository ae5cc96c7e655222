"""What a person sees: bars on a terminal, a line at intervals in a file, tables at the end.

Progress and notices go to standard error, results to standard output, and all of it to the log.
"""

from __future__ import annotations

import logging
import os
import platform
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rich.cells import cell_len
from rich.console import Console as RichConsole
from rich.console import Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table as RichTable
from rich.text import Text

from pretok.base.console import Console, Gauge, Table, percent, share_of
from pretok.base.joblog import JobLog
from pretok.base.records import to_json
from pretok.base.units import duration
from pretok.base.version import PRETOK_VERSION
from pretok.base.visible import masked, visible, visible_json

FIRST_LINE = 3.0
"""Seconds from the start of a step to its first line of progress; to the next one it is twice as long."""
LINES_APART = 60.0
"""Most seconds between two lines."""
BORDER = 3
"""Columns between two cells of a table."""
WIDE = 80
"""Columns from which on a bar has the amount and the time passed beside it."""
UNBOUNDED = 1_000_000
"""Columns if the output is not a terminal."""
PACKAGES = ("numpy", "numba", "pyarrow", "tokenizers", "gigatoken", "ray")
"""Packages whose versions the log has."""


class _Console(RichConsole):
    """Prints names, paths and tokens literally: `[x]` and `:x:` are not markup, and control characters are visible."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings, highlight=False, soft_wrap=True, markup=False, emoji=False)
        if not self.is_terminal:
            self.width = UNBOUNDED

    def print(self, *objects: Any, **settings: Any) -> None:
        """Print a text that a command shows. On standard error, secrets in URLs are masked."""
        shown = []
        for value in objects:
            if isinstance(value, str):
                value = visible(masked(value) if self.stderr else value)
            shown.append(value)
        super().print(*shown, **settings)

    def on_broken_pipe(self) -> None:
        """Raise BrokenPipeError for the handler of all errors; Rich would exit with code 1, the code of a bug."""
        raise  # the BrokenPipeError


class Terminal(Console):
    """The Console of a command. There is no log before `keep_log`.

    arguments: the command line; error: where notices and progress go. quiet: show only results and errors; the log has
    everything all the same.
    """

    def __init__(self, arguments: Sequence[str] = (), error: RichConsole | None = None) -> None:
        self.quiet = False
        self.arguments = arguments
        self._error = error or _Console(stderr=True)
        self._output = _Console()
        self._log: JobLog | None = None

    @property
    def log(self) -> Path | None:
        """The log file; None if none is kept."""
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

    def error(self, text: str, trace: str = "") -> None:
        """Show why the command ends: in red on a terminal, after the traceback if it is a bug."""
        self.event("error", message=text, traceback=trace)
        if trace:
            self._error.print(trace)
        self._error.print(text, style="red")

    @contextmanager
    def progress(self, title: str) -> Iterator[Gauge]:
        """Show a step while the context is open, and a summary at its end.

        On a terminal bars move, elsewhere lines come at growing intervals, at most LINES_APART seconds apart,
        even if nothing is reported. The log gets the counts at the same times.
        """
        gauge, ended = Gauge(title), threading.Event()
        live: Live | None = None
        if self._error.is_interactive and not self.quiet:
            live = Live(
                get_renderable=lambda: _bars(gauge, *self._error.size), console=self._error, transient=True
            )

        def print_lines() -> None:
            gap = FIRST_LINE
            while not ended.wait(gap):
                self.event("progress", message=gauge.line(), **gauge.fields())
                if live is None:
                    self._print(f"{time.strftime('%H:%M')} {gauge.line()}")
                gap = min(2 * gap, LINES_APART)

        # A thread, so that lines come even while the job waits and reports nothing.
        lines = threading.Thread(target=print_lines, name=f"progress of {title}", daemon=True)
        self.event("step", title=title)
        lines.start()
        ended_by = None
        try:
            with live or nullcontext():
                yield gauge
        except BaseException as error:
            ended_by = type(error).__name__
            raise
        finally:
            ended.set()
            # Before the last event: no line of progress may come after the end of its step.
            lines.join()
            summary = "" if ended_by else gauge.summary()
            self.event("step_end", message=summary, ended_by=ended_by, **gauge.fields())
            if summary:
                self._print(summary)

    def show(self, shown: Table | str, *, result: bool = False) -> None:
        """Show a table or a text; result: it is the result of the command."""
        super().show(shown)
        if result or not self.quiet:
            _print(shown, self._output if result else self._error)

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

    def handle(self, record: logging.LogRecord) -> bool:
        """Show a record.

        A signal that raises here frees the lock; in logging of Python 3.11 one that comes between `acquire` and `try`
        leaves it taken, and other threads wait for it for ever.
        """
        with self.lock or nullcontext():
            self.emit(record)
        return True

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record to the log and the terminal."""
        text = self.format(record)
        self._console.event("warning", message=text)
        self._console._print(text)


def _print(shown: Table | str, where: RichConsole) -> None:
    """Print a table or a text.

    No number, name or head is cut or folded: a table that is wider than a terminal is turned on its side, and if that
    is too wide as well, each row becomes lines. In a file or a pipe it is as wide as it must be.
    """
    if isinstance(shown, str):
        where.print(shown)
        return
    grid = [[visible(cell, "") for cell in row] for row in (shown.columns, *shown.rows)]
    where.print(shown.title, style="bold")
    if sum(_widths(grid)) > where.width:
        grid = [list(column) for column in zip(*grid, strict=True)]
    if sum(_widths(grid)) > where.width:
        for row in shown.rows:
            pairs = zip(shown.columns, row, strict=True)
            where.print("\n".join(f"{head or 'note'}: {cell}" for head, cell in pairs if cell), end="\n\n")
        return
    table = RichTable()
    for at, (head, width) in enumerate(zip(grid[0], _widths(grid), strict=True)):
        table.add_column(Text(head), justify="left" if at == 0 else "right", min_width=width - BORDER)
    for row in grid[1:]:
        table.add_row(*map(Text, row))
    where.print(table)


def _widths(grid: Sequence[Sequence[str]]) -> list[int]:
    """Return the columns of a terminal that each column of a table takes: cells stay whole, heads break at spaces."""
    heads = [max(map(cell_len, head.split() or [""])) for head in grid[0]]
    cells = [max(map(cell_len, column)) for column in zip(*grid[1:], strict=True)] or heads
    return [max(pair) + BORDER for pair in zip(heads, cells, strict=True)]


def _bars(gauge: Gauge, width: int, height: int) -> Group:
    """Make the line of a step, and one for each task that is under way, in at most half of a terminal."""
    running = list(gauge.running.items())
    lines = [_bar(gauge, width)]
    if len(running) > 1:  # one task alone is the step
        for name, (done, expected) in running[: height // 2 - 1]:
            share = share_of(done, expected)
            lines.append(_line(f"  {visible(name)}", share, [*filter(None, [percent(share)])]))
    return Group(*lines)


def _bar(gauge: Gauge, width: int) -> RichTable:
    """Make the line of a step on a terminal of `width` columns: what does not fit is left out, nothing is cut."""
    parts, title, passed = gauge.parts(), visible(gauge.title), duration(gauge.seconds)
    if not gauge.expected:
        parts["amount"] = ", ".join(gauge.counted())
    if width < WIDE:
        parts.pop("amount", None)
    return _line(
        title, gauge.share, [*parts.values(), *([passed] if width >= WIDE or "left" not in parts else [])]
    )


def _line(title: str, share: float | None, texts: Sequence[str]) -> RichTable:
    """Make a line of a title, a bar and texts; a bar of an unknown share moves."""
    grid = RichTable.grid(padding=(0, 1), expand=True)
    grid.add_column(no_wrap=True)
    grid.add_column(ratio=1)
    for _ in texts:
        grid.add_column(no_wrap=True, justify="right")
    bar = ProgressBar(total=1.0, completed=share or 0.0, pulse=share is None)
    grid.add_row(Text(title), bar, *map(Text, texts))
    return grid


def print_json(value: object) -> None:
    """Print the result of a command, JSON or a record, to standard output."""
    import json

    sys.stdout.write(visible_json(json.dumps(to_json(value), ensure_ascii=False, indent=1)) + "\n")
