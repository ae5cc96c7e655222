"""A Console that notes what it is told."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

from pretok.base.console import Console, Gauge, Table


class RecordingConsole(Console, Gauge):
    """notices; shown: tables and texts; details: those for the log; events: (name, details); of all progress: counts,
    before, expected."""

    def __init__(self) -> None:
        super().__init__("told")
        self.notices: list[str] = []
        self.shown: list[Table | str] = []
        self.details: list[Table | str] = []
        self.events: list[tuple[str, dict[str, Any]]] = []

    def progress(self, title: str) -> AbstractContextManager[Gauge]:  # noqa: ARG002
        return nullcontext(self)

    def notice(self, text: str) -> None:
        self.notices.append(text)

    def show(self, shown: Table | str, *, result: bool = False) -> None:  # noqa: ARG002
        self.shown.append(shown)

    def detail(self, shown: Table | str) -> None:
        self.details.append(shown)

    def event(self, name: str, /, **details: object) -> None:
        self.events.append((name, details))


class Gauges(Console):
    """Keeps the gauge of each step by its title."""

    def __init__(self) -> None:
        self.of: dict[str, Gauge] = {}

    def progress(self, title: str) -> AbstractContextManager[Gauge]:
        self.of[title] = Gauge(title)
        return nullcontext(self.of[title])

    def whole(self, title: str) -> tuple[int, int, str]:
        """How far a step came, how far it should, and the unit."""
        gauge = self.of[title]
        return gauge.done, gauge.expected, gauge.unit
