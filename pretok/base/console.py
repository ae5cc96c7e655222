"""How a job reports to a person: through one object that it is given, never a global.

Input: notices, progress, tables and events. Output: depends on the object: commands pass a `terminal.Terminal`,
programs that use the library the silent Console of this module.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path

Counts = dict[str, int]
"""Increments of documents, tokens, bytes (of text), rejected, partitions and others. For display only: a task that is
tried again counts again."""


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of texts under column names."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    """A table whose first column is text and whose other columns are numbers."""
    return Table(title, columns, list(rows))


class Progress:
    """Takes the reports of a step. This one shows nothing."""

    def __call__(self, counts: Counts, /) -> None:
        """Increments since the last call."""

    def expect(self, bytes: int, partitions: int) -> None:
        """The size of the whole step, set once: estimated bytes of text, number of partitions."""

    def start_from(self, counts: Counts) -> None:
        """What earlier runs did of the step; it does not count for the speed of this run."""


class Console:
    """Takes what a job reports. This one shows nothing."""

    @property
    def log(self) -> Path | None:
        """The log file; None where none is kept."""
        return None

    def notice(self, text: str) -> None:
        """Show a line."""

    def progress(self, title: str) -> AbstractContextManager[Progress]:  # noqa: ARG002
        """Show a step while the context is open."""
        return nullcontext(Progress())

    def show(self, made: Table | str, *, result: bool = False) -> None:
        """Show a table or a text; result: it is the result of the command."""

    def detail(self, made: Table | str) -> None:
        """Write a table or a line to the log only."""

    def event(self, name: str, /, **details: object) -> None:
        """Write an event to the log only. details: JSON values."""


Silent = Console
SILENT = Console()
