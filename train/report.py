"""The lines a person reads while a run goes on, never silent for longer than a minute, and the last one of a failure.

Input: texts, what the run is doing now, the exception that ends it. Output: lines on standard output, from rank 0
alone; in RUN/logs the same as lines of JSON (`pretok.base.joblog`), and why the run ended, from every rank that ended
otherwise than well; for what machines do to a run (a missing package, no memory, no space, no rights) a PretokError
that says what to do.
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
"""Seconds after which a line says that the run lives, when nothing else was said."""


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
    """Prints lines on rank 0, and as a context one line a minute of silence that says what `doing` gives.

    out: folder of the run, whose logs/ gets the lines of rank 0, and why the run ended on any rank.
    """

    def __init__(self, rank: int, out: Path) -> None:
        self.doing: Callable[[], str] = lambda: "starting"
        self._rank = rank
        name = f"train-rank{rank}" if rank else "train"
        self._log = JobLog(out / LOGS, name, {"command": "train", "rank": rank}, self._complain)
        self._last = time.monotonic()
        self._ended = threading.Event()
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
        if error is not None and not (self._rank and isinstance(error, Stopped)):  # all ranks stop together
            told = str(error) or type(error).__name__
            self.event("error", message=told, traceback="".join(traceback.format_exception(error)))
        self._log.end(_exit_code(error))

    def _complain(self, text: str) -> None:
        print(f"train: {text}", file=sys.stderr)

    def _watch(self) -> None:
        began = time.monotonic()
        while not self._ended.wait(max(0.01, self._last + SILENCE - time.monotonic())):
            if time.monotonic() - self._last >= SILENCE:
                self(f"{clock()} still {self.doing()}, {duration(time.monotonic() - began)} after the start")


PACKAGES = ("torch", "numpy", "safetensors", "xxhash")
_PLACE = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EISDIR)


def explain(error: BaseException, config: TrainConfig | None = None) -> PretokError | None:
    """The error a person can fix that is behind an exception, if there is one; config: of a run, which may have run out
    of memory."""
    if isinstance(error, ModuleNotFoundError):
        package = (error.name or "").partition(".")[0]
        if package in PACKAGES:
            return UsageError(
                f"the package {package} is not installed for this Python: pip install '.[train]' in the folder of "
                "pretok brings what train needs (on a machine without a GPU install the CPU build of torch first)"
            )
    if isinstance(error, OSError):
        where = f"{error.filename}: " if error.filename else ""
        if error.errno in FULL | PASSING:
            remedy = "free some, then run" if error.errno in FULL else "run"
            return Stopped(
                f"{where}{error.strerror}: {remedy} the same command to go on from the last checkpoint"
            )
        if error.errno in _PLACE:
            return PretokError(f"{where}{error.strerror}")
    return None if config is None else _out_of_memory(error, config)


def _out_of_memory(error: BaseException, config: TrainConfig) -> PretokError | None:
    """The same for memory, of a GPU or of the host, when that is what ran out."""
    text = str(error)
    signs = ("out of memory", "can't allocate memory", "bad_alloc")
    if not isinstance(error, MemoryError) and not any(sign in text for sign in signs):
        return None
    micro = "not given" if config.micro_batch is None else str(config.micro_batch)
    found = text.strip().splitlines()
    return UsageError(
        f"out of memory on rank {os.environ.get('RANK', '0')} of {os.uname().nodename}: lower --micro-batch (now "
        f"{micro}), which makes more passes of a step, or recompute activations with --checkpointing ops or full "
        f"(now {config.checkpointing}); `train plan` says what fits ({found[0] if found else 'MemoryError'})"
    )
