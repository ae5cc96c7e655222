"""How a job tells a person something: one object it receives, never a global.

Input: notices, progress, tables, and events with numbers. Output: what the object makes of them, which whoever starts
the job chooses: a command a `console.Terminal`, a program that uses the library the silent one that stands here.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path

Counts = dict[str, int]
"""Increments: documents, tokens, bytes (of text), rejected; `partitions` when one is done. For
display only: a task that is tried again counts again."""


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of texts below names of columns."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    """A table whose first column is text and whose other columns are numbers."""
    return Table(title, columns, list(rows))


class Progress:
    """Where a step reports to. This one shows nobody."""

    def __call__(self, counts: Counts, /) -> None:
        """Increments since the last call."""

    def expect(self, bytes: int, partitions: int) -> None:
        """The whole work, told once: estimated bytes of text, number of partitions."""

    def start_from(self, counts: Counts) -> None:
        """What an earlier run did of it, which says nothing of this run's speed."""


class Console:
    """What a job tells to. This one tells nobody."""

    @property
    def log(self) -> Path | None:
        """The file that keeps what is told; None where there is none."""
        return None

    def notice(self, text: str) -> None:
        """One plain line."""

    def progress(self, title: str) -> AbstractContextManager[Progress]:  # noqa: ARG002
        """One step, shown while the context is open."""
        return nullcontext(Progress())

    def show(self, made: Table | str, *, result: bool = False) -> None:
        """A table or a text; `result`: it is what the command was asked for."""

    def detail(self, made: Table | str) -> None:
        """A table or a line for the log alone, as most people skip it."""

    def event(self, name: str, /, **details: object) -> None:
        """What nobody waits for but may look up afterwards: only for the log. details: JSON values."""


Silent = Console
SILENT = Console()
