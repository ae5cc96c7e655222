"""Overlap: run an iterator in a thread, a few items ahead of its consumer.

Reading, decompressing and parsing release the interpreter lock, so they run while the consumer encodes.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from typing import TypeVar, cast

Item = TypeVar("Item")


def ahead(items: Iterator[Item], depth: int = 2) -> Iterator[Item]:
    """Yield what `items` yields, produced by a thread at most `depth` items ahead; its exception is raised here.

    When the consumer stops early the thread ends at its next item.
    """
    ready: queue.Queue[tuple[Item | None, BaseException | None]] = queue.Queue(depth)
    stopped = threading.Event()

    def put(item: Item | None, error: BaseException | None) -> bool:
        while not stopped.is_set():
            try:
                ready.put((item, error), timeout=0.1)
                return True
            except queue.Full:
                continue
        return False

    def produce() -> None:
        try:
            for item in items:
                if not put(item, None):
                    return
            put(None, StopIteration())
        except BaseException as error:
            put(None, error)

    thread = threading.Thread(target=produce, daemon=True, name="read-ahead")
    thread.start()
    try:
        while True:
            item, error = ready.get()
            if isinstance(error, StopIteration):
                return
            if error is not None:
                raise error
            yield cast(Item, item)
    finally:
        stopped.set()
