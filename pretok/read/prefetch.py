"""Prefetching: an iterator runs in a thread, one step ahead of its consumer.

Reading, decompressing and parsing release the interpreter lock, so they run while the consumer encodes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

Item = TypeVar("Item")

HANDED_OVER, SECONDS = 256, 0.1
"""Small items are handed over together, so many at most and so often at least: a thread that wakes the other for each
of a thousand small files waits for the interpreter lock at each."""


def ahead(items: Iterator[Item], size: Callable[[Item], int], enough: int) -> Iterator[Item]:
    """Yield what `items` yields, produced by a thread; its exception is raised here, of whatever kind.

    The thread works on the next items while the consumer works on those before: on one, or on small ones that have
    `enough` together by `size`. When the consumer stops early, or forgets this generator, the thread ends with them.
    """
    thread = ThreadPoolExecutor(1, "read-ahead")
    try:
        next_items = thread.submit(_take, items, size, enough)
        end: BaseException | None = None
        while end is None:
            taken, end = next_items.result()
            if end is None:
                next_items = thread.submit(_take, items, size, enough)
            taken.reverse()
            while taken:
                yield taken.pop()  # nothing here holds it while the consumer works on it
        if not isinstance(end, StopIteration):
            raise end
    finally:
        thread.shutdown(wait=False, cancel_futures=True)


def _take(
    items: Iterator[Item], size: Callable[[Item], int], enough: int
) -> tuple[list[Item], BaseException | None]:
    """The next item, or small ones together; and what ended `items` after them, StopIteration where nothing failed."""
    taken: list[Item] = []
    total, until = 0, time.monotonic() + SECONDS
    try:
        while not taken or (total < enough and len(taken) < HANDED_OVER and time.monotonic() < until):
            taken.append(next(items))
            total += size(taken[-1])
    except BaseException as error:
        return taken, error
    return taken, None
