"""Forks of a process that reads from an object store: they wait until none of its requests is under way.

Input: a block that requests something. Output: the block runs at once, or after the fork that waits. Arrow holds a lock
as long as it reads from S3. A process that is forked meanwhile has the lock without the thread that would release it,
and hangs as soon as it connects: say a worker of a DataLoader, while its parent fetches what follows the sequence that
it has looked at.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

logger = logging.getLogger(__name__)

PATIENCE = 60.0
"""Seconds that a fork waits for requests."""


class _Requests:
    """The requests that are under way in this process."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Begin anew in a forked process, whose threads are gone."""
        self._changed = threading.Condition()
        self._running = self._forks = 0

    @contextmanager
    def no_fork(self) -> Iterator[None]:
        """Make a request in the block. None begins while a fork waits for those that did."""
        with self._changed:
            self._changed.wait_for(lambda: not self._forks)
            self._running += 1
        try:
            yield
        finally:
            with self._changed:
                self._running -= 1
                self._changed.notify_all()

    def await_end(self) -> None:
        """Wait for the requests under way, and hold up others until `go_on`."""
        self._changed.acquire()
        self._forks += 1
        if not self._changed.wait_for(lambda: not self._running, PATIENCE):
            logger.warning("an object store does not answer: the process that is forked now may hang")

    def go_on(self) -> None:
        """Let requests begin again."""
        self._forks -= 1
        self._changed.notify_all()
        self._changed.release()


_requests = _Requests()
no_fork = _requests.no_fork
os.register_at_fork(
    before=_requests.await_end, after_in_parent=_requests.go_on, after_in_child=_requests.reset
)
