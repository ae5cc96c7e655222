"""Lines on the terminal while a run is active, at least one a minute, and the last one after a failure.

Input: texts, the run's current activity, the exception that ends it. Output: lines on standard output from rank 0; the
same as JSON lines in RUN/logs (`pretok.base.joblog`), and why the run ended, from every rank that failed. For problems
of the machine (a missing package, no memory, no space, no permission) a PretokError that says what to do.
"""

from __future__ import annotations

import errno
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from pretok.base.errors import PretokError, Stopped, UsageError
from pretok.base.joblog import LOGS, JobLog
from pretok.base.storage import FULL, PASSING
from pretok.base.units import duration
from train.config import TrainConfig

SILENCE = 60.0
"""Seconds without output after which a line says that the run is alive."""


def clock() -> str:
    """Return the time of day."""
    return time.strftime("%H:%M:%S")


def complain(text: object) -> None:
    """Print a line on standard error. A full disk behind it changes neither the run nor its exit code."""
    try:
        print("train:", text, file=sys.stderr)
    except OSError:
        sys.stderr = None  # Python would flush it at the end, fail again, and exit with 120


class Reporter:
    """Prints lines on rank 0, and as a context manager reports `doing()` after every minute of silence.

    out: folder of the run. Its logs/ contain the lines of rank 0 and, from every rank that failed, the error.
    """

    def __init__(self, rank: int, out: Path) -> None:
        self.doing: Callable[[], str] = lambda: "starting"
        self._rank = rank
        name = f"train-rank{rank}" if rank else "train"
        self._log = JobLog(out / LOGS, name, {"command": "train", "rank": rank}, complain)
        self._last = time.monotonic()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __call__(self, text: str) -> None:
        """Print and log one line."""
        self._last = time.monotonic()
        if self._rank == 0:
            self._log.write("notice", {"message": text})
            try:
                print(text, flush=True)
            except OSError:  # a full disk or a closed pipe; RUN/logs has the line
                sys.stdout = None  # from now on print does nothing

    def event(self, name: str, /, **details: object) -> None:
        """Write a line to the log only, on any rank."""
        self._log.write(name, details)

    def __enter__(self) -> Reporter:
        if self._rank == 0:
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        if self._rank == 0:
            self._thread.join()
        if error is None:
            self._log.end(0)
            return
        if not (self._rank and isinstance(error, Stopped)):  # all ranks stop together: one entry is enough
            message = str(error) or type(error).__name__
            self.event("error", message=message, traceback="".join(traceback.format_exception(error)))
        known = error if isinstance(error, PretokError) else explain(error)
        # None: the caller decides, because the error may be a lack of memory, which `explain` finds with the settings.
        self._log.end(known.exit_code if known else None)

    def _watch(self) -> None:
        began = time.monotonic()
        while not self._ended.wait(max(0.01, self._last + SILENCE - time.monotonic())):
            if time.monotonic() - self._last >= SILENCE:
                self(f"{clock()} still {self.doing()}, {duration(time.monotonic() - began)} after the start")


PACKAGES = ("torch", "numpy", "safetensors", "xxhash")
_PLACE = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EISDIR)


def explain(error: BaseException, config: TrainConfig | None = None) -> PretokError | None:
    """Return the error that a user can fix behind an exception, or None if there is none.

    config: settings of the run, to recognize that it ran out of memory.
    """
    if isinstance(error, ModuleNotFoundError):
        package = (error.name or "").partition(".")[0]
        if package in PACKAGES:
            return UsageError(
                f"the package {package} is not installed for this Python: run pip install '.[train]' in the folder of "
                "pretok (on a machine without a GPU install the CPU build of torch first)"
            )
    if isinstance(error, OSError):
        where = f"{error.filename}: " if error.filename else ""
        if error.errno in FULL | PASSING:
            remedy = "free some space, then run" if error.errno in FULL else "run"
            return Stopped(
                f"{where}{error.strerror}: {remedy} the same command to resume from the last checkpoint"
            )
        if error.errno in _PLACE:
            return PretokError(f"{where}{error.strerror}")
    return None if config is None else _out_of_memory(error, config)


def _out_of_memory(error: BaseException, config: TrainConfig) -> PretokError | None:
    """Return the error to show if a GPU or the host ran out of memory, else None."""
    text = str(error)
    signs = ("out of memory", "can't allocate memory", "bad_alloc")
    if not isinstance(error, MemoryError) and not any(sign in text for sign in signs):
        return None
    micro = "not given" if config.micro_batch is None else str(config.micro_batch)
    lines = text.strip().splitlines()
    return UsageError(
        f"out of memory on rank {os.environ.get('RANK', '0')} of {os.uname().nodename}: lower --micro-batch (now "
        f"{micro}), which splits a step into more passes, or recompute activations with --checkpointing ops or full "
        f"(now {config.checkpointing}); `train plan` computes what fits ({lines[0] if lines else 'MemoryError'})"
    )
