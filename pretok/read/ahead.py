"""Overlap: run an iterator in a thread, a few items ahead of its consumer.

Reading, decompressing and parsing release the interpreter lock, so they run while the consumer encodes.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import TypeVar

Item = TypeVar("Item")


def ahead(items: Iterator[Item], size: Callable[[Item], int], room: int, depth: int = 3) -> Iterator[Item]:
    """Yield what `items` yields, produced by a thread; its exception is raised here, of whatever kind.

    The thread works on the next item while fewer than `depth` wait that take less than `room` by `size`: a large one
    waits alone. When the consumer stops early, or forgets this generator, the thread ends at its next item.
    """
    ready: deque[Item] = deque()
    changed = threading.Condition()
    held = 0
    done = stopped = False
    failure: BaseException | None = None

    def may_produce() -> bool:
        return stopped or (len(ready) < depth and held < room)

    def produce() -> None:
        nonlocal held, done, failure
        try:
            while True:
                with changed:
                    changed.wait_for(may_produce)
                    if stopped:
                        break
                try:
                    item = next(items)
                except StopIteration:
                    break
                with changed:
                    ready.append(item)
                    held += size(item)
                    changed.notify_all()
                del item
        except BaseException as error:
            failure = error
        with changed:
            done = True
            changed.notify_all()

    threading.Thread(target=produce, daemon=True, name="read-ahead").start()
    taken: list[Item] = []
    try:
        while True:
            with changed:
                changed.wait_for(lambda: ready or done)
                if not ready:
                    break
                taken.append(ready.popleft())
                held -= size(taken[0])
                changed.notify_all()
            yield taken.pop()  # nothing here holds it while the consumer works on it
        if failure is not None:
            raise failure
    finally:
        with changed:
            stopped = True
            ready.clear()
            changed.notify_all()
