"""Prefetching: an iterator runs in a thread, a few items ahead of its consumer.

Reading, decompressing and parsing release the interpreter lock, so they run while the consumer encodes.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import TypeVar

Item = TypeVar("Item")

SMALL, HANDED_OVER, SECONDS = 32, 256, 0.1
"""Items of less than a 32nd of the room are handed over together, so many at most and so often at least: a thread that
wakes the other for each of a thousand small files waits for the interpreter lock at each."""


def ahead(items: Iterator[Item], size: Callable[[Item], int], room: int, depth: int = 3) -> Iterator[Item]:
    """Yield what `items` yields, produced by a thread; its exception is raised here, of whatever kind.

    The thread works on the next item while fewer than `depth` wait that take less than `room` by `size`: a large one
    waits alone, small ones handed over together count as one. When the consumer stops early, or forgets this generator,
    the thread ends at its next item.
    """
    ready: deque[tuple[list[Item], int]] = deque()  # items handed over together, and their size
    changed = threading.Condition()
    held = 0
    done = stopped = False
    failure: BaseException | None = None

    def may_produce() -> bool:
        return stopped or (len(ready) < depth and held < room)

    def produce() -> None:
        nonlocal held, done, failure
        while failure is None:
            with changed:
                changed.wait_for(may_produce)
                if stopped:
                    break
            together, total, failure = _take(items, size, room)
            if not together:
                break
            with changed:
                ready.append((together, total))
                held += total
                changed.notify_all()
            del together
        with changed:
            done = True
            changed.notify_all()

    threading.Thread(target=produce, daemon=True, name="read-ahead").start()
    try:
        while True:
            with changed:
                changed.wait_for(lambda: ready or done)
                if not ready:
                    break
                taken, total = ready.popleft()
                held -= total
                changed.notify_all()
            taken.reverse()
            while taken:
                yield taken.pop()  # nothing here holds it while the consumer works on it
        if failure is not None:
            raise failure
    finally:
        with changed:
            stopped = True
            ready.clear()
            changed.notify_all()


def _take(
    items: Iterator[Item], size: Callable[[Item], int], room: int
) -> tuple[list[Item], int, BaseException | None]:
    """The next item, or small ones together; their size; what ended `items` after them, if not their end."""
    together: list[Item] = []
    total, until = 0, time.monotonic() + SECONDS
    try:
        for item in items:
            together.append(item)
            total += size(item)
            if total * SMALL >= room or len(together) == HANDED_OVER or time.monotonic() > until:
                break
    except BaseException as error:
        return together, total, error
    return together, total, None
