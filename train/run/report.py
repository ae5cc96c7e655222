"""The lines a person reads while a run goes on: never silent for longer than a minute.

Enters: texts, and what the run is doing now. Leaves: lines on standard output, from rank 0 alone.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from pretok.base.units import duration

SILENCE = 60.0
"""Seconds after which a line says that the run lives, when nothing else was said."""
STEP_SILENCE = 50.0
"""Seconds after which a finished step is told whatever --log-every says: before the other line would come."""


def clock() -> str:
    """The time of day."""
    return time.strftime("%H:%M:%S")


class Reporter:
    """Prints lines on rank 0, and as a context one line a minute of silence that says what `doing` gives."""

    def __init__(self, rank: int) -> None:
        self.doing: Callable[[], str] = lambda: "starting"
        self._rank = rank
        self._last = time.monotonic()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __call__(self, text: str) -> None:
        """One line."""
        self._last = time.monotonic()
        if self._rank == 0:
            print(text, flush=True)

    @property
    def silence(self) -> float:
        """Seconds since the last line."""
        return time.monotonic() - self._last

    def __enter__(self) -> Reporter:
        if self._rank == 0:
            self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._ended.set()
        if self._rank == 0:
            self._thread.join()

    def _watch(self) -> None:
        began = time.monotonic()
        while not self._ended.wait(max(0.01, SILENCE - self.silence)):
            if self.silence >= SILENCE:
                self(f"{clock()} still {self.doing()}, {duration(time.monotonic() - began)} after the start")
