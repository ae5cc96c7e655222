"""Limits of what a chat template takes: it comes from anyone, with a downloaded tokenizer.

Input: a block that runs a template, and its limits. Output: OverLimit, with the line of the template, if it takes more.
The limits are those of the kernel for this process, set for the time of the block: whatever the template calls, they
hold. They are far above what a template needs, so no document depends on the speed of a machine.
"""

from __future__ import annotations

import os
import resource
import signal
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from pretok.base.errors import UsageError
from pretok.base.units import human_bytes


class TemplateLimits(NamedTuple):
    """What a chat template may take. They change no document, so they are no part of a Conversation."""

    seconds: int = 60
    """Processor time to find out what the template does."""
    memory: int = 2 << 30
    """Bytes, then and for a conversation."""
    conversation_seconds: int = 10
    """Processor time for a conversation."""


LIMITS = TemplateLimits()


class OverLimit(UsageError):
    """A template takes more than it may."""


@contextmanager
def limited(seconds: int, memory: int) -> Iterator[None]:
    """Raise OverLimit once the block has taken `seconds` of processor time or `memory` more bytes.

    Outside of the main thread, where Python handles no signals, only the memory is limited.
    """
    what = f"more than {seconds} s of processor time"

    def out_of_time(*_: object) -> None:
        raise OverLimit(what)

    timed = threading.current_thread() is threading.main_thread()
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    # Address space, as the kernel has no limit for resident memory.
    most = _addresses() + memory
    handler = signal.getsignal(signal.SIGPROF)
    try:
        # Only ever lowered: a limit that the user or Slurm has set stays in force.
        if soft == resource.RLIM_INFINITY or most < soft:
            resource.setrlimit(resource.RLIMIT_AS, (most, hard))
        if timed:
            signal.signal(signal.SIGPROF, out_of_time)
            # Again each second: a callback of C may have dropped the exception.
            signal.setitimer(signal.ITIMER_PROF, seconds, 1)
        yield
    except (OverLimit, MemoryError) as error:
        if isinstance(error, MemoryError):
            what = f"more than {human_bytes(memory)} of memory"
        raise OverLimit(f"{_place(error)} takes {what}") from None
    finally:
        if timed:
            signal.setitimer(signal.ITIMER_PROF, 0)
            signal.signal(signal.SIGPROF, handler)
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def _addresses() -> int:
    """Return the bytes of address space that this process has.

    Without Path, which takes half of the time of `limited`.
    """
    descriptor = os.open("/proc/self/statm", os.O_RDONLY)
    try:
        return int(os.read(descriptor, 64).split()[0]) * resource.getpagesize()
    finally:
        os.close(descriptor)


def _place(error: BaseException) -> str:
    """Return `line 3`, of the template that an exception comes from."""
    place = "its compilation"
    for frame, line in traceback.walk_tb(error.__traceback__):
        if template := frame.f_globals.get("__jinja_template__"):
            place = f"line {template.get_corresponding_lineno(line)}"
    return place
