"""A Console that notes what it is told."""

from __future__ import annotations

from collections import Counter
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from pretok.base.console import Counts, Progress, Silent, Table


class Told(Silent, Progress):
    """notices; shown: tables and texts; details: those for the log; events: (name, details); of all progress: counts,
    before, expected."""

    def __init__(self) -> None:
        self.notices: list[str] = []
        self.shown: list[Table | str] = []
        self.details: list[Table | str] = []
        self.events: list[tuple[str, dict[str, Any]]] = []
        self.counts: Counter[str] = Counter()
        self.before: dict[str, int] = {}
        self.expected: tuple[int, int] = (0, 0)

    def progress(self, title: str) -> AbstractContextManager[Progress]:  # noqa: ARG002
        return nullcontext(self)

    def notice(self, text: str) -> None:
        self.notices.append(text)

    def show(self, made: Table | str, *, result: bool = False) -> None:  # noqa: ARG002
        self.shown.append(made)

    def detail(self, made: Table | str) -> None:
        self.details.append(made)

    def event(self, name: str, /, **details: object) -> None:
        self.events.append((name, details))

    def __call__(self, counts: Counts, /) -> None:
        self.counts.update(counts)

    def expect(self, bytes: int, partitions: int, before: Counts) -> None:
        self.expected, self.before = (bytes, partitions), before
