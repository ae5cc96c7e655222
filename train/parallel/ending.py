"""One rank fails: all end, with its words.

Enters: the store through which ranks found each other, and the exception that ends this rank. Leaves: the exception to
raise. A rank whose neighbour is gone fails in the middle of a collective, which says nothing of the cause; here it
learns it and ends with the same exit code.
"""

from __future__ import annotations

import json
import os
import socket
import stat
import time
from contextlib import suppress

from torch.distributed import Store  # type: ignore[attr-defined]

from pretok.base.errors import PretokError

GRACE = 10.0
"""Seconds for which the rank that failed stays, so that others can ask why: it may be the one who keeps the store. A
rank that was killed never comes, and torchrun kills those that are left, with what they have to say, after 30."""
_WHY, _ENDED = "train/why", "train/ended"


class EndedElsewhere(PretokError):
    """Another rank ended the run."""

    def __init__(self, text: str, exit_code: int) -> None:
        super().__init__(text)
        self.exit_code = exit_code


def cause(store: Store, error: Exception, rank: int) -> Exception:
    """The error itself, told to the other ranks; or, where it only follows from another rank's end, that one's.

    An error that a user can mend is always its own cause.
    """
    with suppress(Exception):  # the store may be gone with the rank that kept it
        if not isinstance(error, PretokError) and store.check([_WHY]):
            why = json.loads(store.get(_WHY))
            return EndedElsewhere(f"rank {why['rank']} ended the run: {why['text']}", why["exit_code"])
        if not store.check([_WHY]):
            text = f"{error}" if isinstance(error, PretokError) else f"{type(error).__name__}: {error}"
            code = error.exit_code if isinstance(error, PretokError) else 1
            store.set(_WHY, json.dumps({"rank": rank, "text": text, "exit_code": code}))
    return error


def hang_up() -> None:
    """Close this process's connections but those to the store, by which alone others notice that a rank has left.

    Destroying the group closes them only when nothing holds it, and torch's caches (of how tensors are redistributed
    over a mesh) may; gloo has no way to abort. Where there is no /proc the others notice when this process ends.
    """
    kept = int(os.environ.get("MASTER_PORT", 0))
    with suppress(OSError):
        for number in map(int, os.listdir("/proc/self/fd")):  # noqa: PTH208
            with suppress(OSError):
                if stat.S_ISSOCK(os.fstat(number).st_mode):
                    with socket.socket(fileno=os.dup(number)) as one:
                        _shut(one, kept)


def _shut(one: socket.socket, kept: int) -> None:
    """OSError for one without a peer, which only listens."""
    if one.family in (socket.AF_INET, socket.AF_INET6):
        ends = one.getsockname()[1], one.getpeername()[1]
        if kept not in ends:
            one.shutdown(socket.SHUT_RDWR)


def linger(store: Store, ranks: int) -> None:
    """Wait until all ranks have come here, GRACE seconds at most. Their connections are closed by now, so they notice
    soon."""
    end = time.monotonic() + GRACE
    with suppress(Exception):
        ended = store.add(_ENDED, 1)
        while ended < ranks and time.monotonic() < end:
            time.sleep(0.02)
            ended = store.add(_ENDED, 0)
