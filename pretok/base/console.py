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
        """Add what was done since the last call."""

    def expect(self, bytes: int, partitions: int, before: Counts) -> None:
        """Set the size of the whole step, once: estimated bytes of text, number of partitions. before: what earlier
        runs did of them; it does not count for the speed of this run."""


class Console:
    """Takes what a job reports. This one shows nothing."""

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

    def progress(self, title: str) -> AbstractContextManager[Progress]:  # noqa: ARG002
        """Show a step while the context is open."""
        return nullcontext(Progress())


Silent = Console
SILENT = Console()
