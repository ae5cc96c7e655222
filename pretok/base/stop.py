"""When to stop: a signal or the end of the Slurm job -> one flag that long loops check.

Input: SIGTERM, SIGUSR1, SIGINT; the end of the job in SLURM_JOB_END_TIME (seconds since 1970) or, where Slurm does not
export it, in PRETOK_JOB_END_TIME. Output: `StopFlag.reason`, a sentence once it is time to stop, else None; inside
`StopFlag.raising`, the exception Stopped.
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

from pretok.base.begin import SIGNALS
from pretok.base.errors import Stopped, UsageError

AGAIN = "run the same command again to continue"


def job_end_time() -> float | None:
    """End of the Slurm job in seconds since 1970, None if there is none or it is unknown. Raises UsageError."""
    for name in ("PRETOK_JOB_END_TIME", "SLURM_JOB_END_TIME"):
        if value := os.environ.get(name):
            try:
                return float(value)
            except ValueError:
                raise UsageError(
                    f"{name}={value} is not a time; set it to seconds since 1970, as date +%s prints, or unset it"
                ) from None
    return None


class StopFlag:
    """Context manager that turns signals and the end of the job into `reason`.

    margin: how many seconds before the end of the job the work must stop; it may be changed later, when the duration of
    a save is known. A second SIGINT ends the process at once, as a user at a terminal expects. Outside the main thread,
    where Python handles no signals, only the end of the job counts.
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
        """Install the signal handlers; again after a library (Ray) has replaced them."""
        if threading.current_thread() is not threading.main_thread():
            return
        for number in SIGNALS:
            previous = signal.signal(number, self._on_signal)
            # Only the first handlers are to be restored: a second `install` finds those of Ray.
            self._previous.setdefault(number, previous)

    def __exit__(self, *exc: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        # The first one asks for a stop in good order. Who presses Ctrl-C again does not want to wait for that.
        if self._signal is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        self._signal = signal.Signals(number).name
        if self._raising:
            self.check()

    @contextmanager
    def raising(self) -> Iterator[None]:
        """Let a signal raise Stopped at any point inside this context, even while a file system does not answer.

        Only for work that leaves nothing half done, such as listing inputs.
        """
        self._raising = True
        try:
            self.check()
            yield
        finally:
            self._raising = False

    def check(self) -> None:
        """Raise Stopped if there is a reason to stop."""
        if reason := self.reason:
            raise Stopped(f"{reason}: stopped before the end; {AGAIN}")

    @property
    def reason(self) -> str | None:
        """Why to stop now, or None to continue. Costs one clock read."""
        if self._signal is not None:
            return f"received {self._signal}"
        # The wall clock, which may be set: Slurm gives the end of the job by it.
        if self._end is not None and time.time() > self._end - self.margin:
            return f"the job ends in {max(0, round(self._end - time.time()))} s (margin {self.margin:.0f} s)"
        return None
