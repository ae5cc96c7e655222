"""What the failure of a task means: try again, refuse, or a bug of ours.

Input: whatever a task raised, panics of Rust libraries included, or the death of its worker. Output: a TaskError, which
travels from worker to driver; at the end of a step one exception for all of them, with the exit code of the worst. It
names the log, which holds the tracebacks.

    PretokError                                    refused, with its own message; another try would end the same way
    OSError that may pass, of a file or a server   tried again; then exit code 3, or 75 if it ends a command
    disk full, a file that cannot be opened        refused
    out of memory, a worker or node lost           tried again
    anything else                                  a bug
"""

from __future__ import annotations

import os
import traceback
from dataclasses import dataclass
from pathlib import Path

from pretok.base.errors import InternalError, PartitionsFailed, PretokError, UsageError
from pretok.base.records import Count, Record
from pretok.base.storage import FULL, REMEDIES, output_error, passes
from pretok.base.units import listed

SHOWN = 20
"""Failures that a message lists."""


class LeftOut(Record, frozen=True):
    """A damaged input of which no document counts."""

    file: str
    bytes: Count
    """Its size."""
    reason: str
    """What is wrong with it."""


@dataclass(frozen=True, slots=True)
class TaskError:
    """Why an item failed."""

    message: str
    """One line, or the whole text of a PretokError."""
    trace: str
    raises: type[PretokError]
    """What a job raises that cannot continue without the item."""
    again: bool = False
    """Whether another try may succeed."""


Failures = list[tuple[str, TaskError]]
"""Names of the items that failed, and why."""


def task_error(error: BaseException) -> TaskError:
    """Classify an exception raised by a task."""
    trace = "".join(traceback.format_exception(error))
    if isinstance(error, OSError) and error.errno in FULL:
        error = output_error(error)
    if isinstance(error, PretokError):
        return TaskError(str(error), trace, type(error))
    if isinstance(error, OSError) and (error.errno is None or passes(error)):
        # Libraries raise OSErrors without a number when a server does not answer.
        message = _one_line(error) if error.filename is None else _describe(error)
        return TaskError(message, trace, PartitionsFailed, again=True)
    if isinstance(error, OSError) and (error.filename is not None or error.errno in REMEDIES):
        return TaskError(_describe(error), trace, UsageError)
    if isinstance(error, MemoryError):
        message = f"out of memory ({_one_line(error)}); with fewer --workers each has more"
        return TaskError(message, trace, PartitionsFailed, again=True)
    return TaskError(_one_line(error), trace, InternalError)


def lost(error: BaseException) -> TaskError:
    """Return the error of a task whose worker or node died, as `error` says."""
    return TaskError(_one_line(error), "", PartitionsFailed, again=True)


def _describe(error: OSError) -> str:
    """Return the path, the reason and what to do, in one line."""
    paths = [os.fsdecode(path) for path in (error.filename, error.filename2) if isinstance(path, str | bytes)]
    remedy = REMEDIES.get(error.errno or 0)
    where = " -> ".join(paths) or "a file"
    return f"{where}: {error.strerror}" + (f"; {remedy}" if remedy else "")


def _one_line(error: BaseException) -> str:
    message = str(error).strip().splitlines()
    return f"{type(error).__name__}: {message[0] if message else ''}"


def raise_failures(
    failures: Failures, log: Path | None, what: str = "partitions", *, kept: bool = True
) -> None:
    """Raise one exception for the failures of a step, if there are any.

    log: the file that has their tracebacks, if any; what: the items, in the plural; kept: everything else is done and
    stays on disk.
    """
    if not failures:
        return
    # Worst first: bugs, what was refused, what failed however often it was tried.
    ordered = sorted(failures, key=lambda failure: (failure[1].raises is not InternalError, failure[1].again))
    lines = [f"{name}: {error.message}" for name, error in ordered]
    parts = [f"{len(failures)} {what} failed:\n  " + listed(lines, SHOWN, "\n  ")]
    if bugs := [f"{name}\n{error.trace}" for name, error in failures if error.raises is InternalError]:
        parts.append(
            f"{len(bugs)} of them failed because of a bug: please report it with {log or 'these tracebacks:'}"
        )
        parts += [] if log else bugs
    if kept:
        parts.append("everything else is done and kept; run the same command again for the rest")
    else:
        parts.append("nothing was changed: run the same command again")
    raise ordered[0][1].raises("\n".join(parts))
