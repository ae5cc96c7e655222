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
"""Small items are handed over together, at most this many, after at most so many seconds: if each of a thousand small
files woke the other thread, that would wait for the interpreter lock each time."""


def ahead(items: Iterator[Item], size: Callable[[Item], int], enough: int) -> Iterator[Item]:
    """Yield the items of an iterator that runs in a thread. Any exception in it is raised here.

    While the consumer works on one item, the thread produces the next; of small items, as many as have the total size
    `enough`. If the consumer stops early or drops this generator, the thread ends after these.
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
                yield taken.pop()  # keep no reference while the consumer works on it
        if not isinstance(end, StopIteration):
            raise end
    finally:
        thread.shutdown(wait=False, cancel_futures=True)


def _take(
    items: Iterator[Item], size: Callable[[Item], int], enough: int
) -> tuple[list[Item], BaseException | None]:
    """Return (the next item or several small ones, the exception that ended `items` after them).

    The exception is StopIteration at its end.
    """
    taken: list[Item] = []
    total, until = 0, time.monotonic() + SECONDS
    try:
        while not taken or (total < enough and len(taken) < HANDED_OVER and time.monotonic() < until):
            taken.append(next(items))
            total += size(taken[-1])
    except BaseException as error:
        return taken, error
    return taken, None
