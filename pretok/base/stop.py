"""When to stop: a signal or the end of the Slurm job -> one flag that long loops look at.

Input: SIGTERM, SIGUSR1, SIGINT; the job's end in SLURM_JOB_END_TIME (seconds since 1970) or, where Slurm does
not export it, in PRETOK_JOB_END_TIME. Output: `StopFlag.reason`, a sentence once it is time to stop, else None; and,
for work that has nothing to bring to an end, `Stopped`.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from pretok.base.errors import Stopped, UsageError

SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)


def job_end_time() -> float | None:
    """End of the surrounding job in seconds since 1970, or None outside a job with a known end. Raises UsageError."""
    for name in ("PRETOK_JOB_END_TIME", "SLURM_JOB_END_TIME"):
        if value := os.environ.get(name):
            try:
                return float(value)
            except ValueError:
                raise UsageError(
                    f"{name}={value} is no time; set it to seconds since 1970, as date +%s prints, or unset it"
                ) from None
    return None


class StopFlag:
    """Context manager that turns signals and the job's end into `reason`.

    `margin` is how many seconds before the job's end the work must stop. It may be set again later, when the
    time a save takes has been measured. A second SIGINT ends the process at once, as a user at a terminal expects.
    Outside of the main thread, where Python takes no signals, only the job's end counts.
    """

    def __init__(self, margin: float = 60.0) -> None:
        self.margin = margin
        self._end = job_end_time()
        self._signal: str | None = None
        self._previous: dict[signal.Signals, Any] = {}
        self._raising = False

    def __enter__(self) -> StopFlag:
        self.install()
        return self

    def install(self) -> None:
        """Take the signals; again after a library (Ray does) has put handlers of its own in place."""
        if threading.current_thread() is not threading.main_thread():
            return
        for number in SIGNALS:
            previous = signal.signal(number, self._on_signal)
            self._previous.setdefault(number, previous)

    def __exit__(self, *exc: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        if self._signal is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        self._signal = signal.Signals(number).name
        self._raise()

    @contextmanager
    def raising(self) -> Iterator[None]:
        """Within, a signal raises Stopped wherever the program is, even waiting for a file system that does not answer:
        for work that leaves nothing half done, such as listing inputs."""
        self._raising = True
        try:
            self._raise()
            yield
        finally:
            self._raising = False

    def _raise(self) -> None:
        if self._raising and self.reason:
            raise Stopped(f"{self.reason}: stopped before the work began; run the same command again")

    @property
    def reason(self) -> str | None:
        """Why to stop now, or None to go on. Costs one clock read."""
        if self._signal is not None:
            return f"received {self._signal}"
        if self._end is not None and time.time() > self._end - self.margin:
            return f"the job ends in {max(0, round(self._end - time.time()))} s (margin {self.margin:.0f} s)"
        return None
