"""The lines a person reads while a run goes on: never silent for longer than a minute.

Input: texts, what the run is doing now, how it ends. Output: lines on standard output, from rank 0 alone; in RUN/logs
the same as lines of JSON (`pretok.base.joblog`), and why the run ended, from every rank that ended otherwise than well.
"""

from __future__ import annotations

import select
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from pretok.base.errors import PretokError, Stopped
from pretok.base.joblog import LOGS, JobLog
from pretok.base.stop import SIGNALS
from pretok.base.units import duration
from train.run.failures import explain

SILENCE = 60.0
"""Seconds after which a line says that the run lives, when nothing else was said."""
STEP_SILENCE = 50.0
"""Seconds after which a finished step is told whatever --log-every says: before the other line would come."""


def clock() -> str:
    """The time of day."""
    return time.strftime("%H:%M:%S")


def _exit_code(error: BaseException | None) -> int | None:
    """What the command will end with; None where that is judged further up, as of what may be a lack of memory."""
    if error is None:
        return 0
    known = error if isinstance(error, PretokError) else explain(error)
    return known.exit_code if known else None


class Reporter:
    """Prints lines on rank 0, and as a context, in the main thread, one line a minute of silence that says what `doing`
    gives, and one for each signal to stop.

    out: folder of the run, whose logs/ gets the lines of rank 0, and why the run ended on any rank.
    """

    def __init__(self, rank: int, out: Path) -> None:
        self.doing: Callable[[], str] = lambda: "starting"
        self._rank = rank
        name = f"train-rank{rank}" if rank else "train"
        self._log = JobLog(out / LOGS, name, {"command": "train", "rank": rank}, self._complain)
        self._last = time.monotonic()
        self._heard, self._signals = socket.socketpair()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __call__(self, text: str) -> None:
        """One line."""
        self._last = time.monotonic()
        if self._rank == 0:
            self._log.write("notice", {"message": text})
            print(text, flush=True)

    def event(self, name: str, /, **details: object) -> None:
        """A line of the log alone, on whatever rank."""
        self._log.write(name, details)

    @property
    def silence(self) -> float:
        """Seconds since the last line."""
        return time.monotonic() - self._last

    def __enter__(self) -> Reporter:
        if self._rank == 0:
            self._signals.setblocking(False)
            self._previous = signal.set_wakeup_fd(self._signals.fileno(), warn_on_full_buffer=False)
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._rank == 0:
            signal.set_wakeup_fd(self._previous)
        self._signals.shutdown(
            socket.SHUT_RDWR
        )  # a loader process may still hold a copy, which closing leaves open
        self._signals.close()
        if self._rank == 0:
            self._thread.join()
        self._heard.close()
        if error is not None and not (self._rank and isinstance(error, Stopped)):  # all ranks stop together
            told = str(error) or type(error).__name__
            self.event("error", message=told, traceback="".join(traceback.format_exception(error)))
        self._log.end(_exit_code(error))

    def _complain(self, text: str) -> None:
        print(f"train: {text}", file=sys.stderr)

    def _watch(self) -> None:
        began = time.monotonic()
        while True:
            if select.select([self._heard], [], [], max(0.01, SILENCE - self.silence))[0]:
                if not (numbers := self._heard.recv(64)):
                    return
                # Python calls a handler when the operation in work is done; the wake-up comes at once.
                for name in (signal.Signals(number).name for number in numbers if number in SIGNALS):
                    self(
                        f"{clock()} received {name}: the run ends after the steps in work; Ctrl-C again ends it at once"
                    )
            elif self.silence >= SILENCE:
                self(f"{clock()} still {self.doing()}, {duration(time.monotonic() - began)} after the start")
