"""Prefetching: work on what comes next beside the work on what is there.

Input: an iterator; the pieces of a partition, and what reads one. Output: the same in their order. `ahead` runs an
iterator in a thread, a few items ahead of its consumer: reading, decompressing and parsing release the interpreter
lock, so they run while the consumer encodes. `begun` opens the next pieces on a server while one is read, and reads
them up to their first batch: small files several at once, of large ones the next. Local ones wait for their turn.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from itertools import islice
from typing import TypeVar

from pretok.read.batches import TextBatch
from pretok.read.files import READ_SIZE
from pretok.read.partition import Piece
from pretok.read.paths import is_remote
from pretok.read.servers import REQUESTS

Item = TypeVar("Item")

SMALL, HANDED_OVER, SECONDS = 32, 256, 0.1
"""Items of less than a 32nd of the room are handed over together, so many at most and so often at least: a thread that
wakes the other for each of a thousand small files waits for the interpreter lock at each."""
PIECES = 8
"""Pieces begun before their turn at most."""
ROOM = REQUESTS * READ_SIZE
"""Bytes of a worker's memory for what they ask for; the batches made of that come to it."""

Batches = Iterator[TextBatch]


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


def begun(
    pieces: Sequence[Piece], read: Callable[[int, Piece], Batches], pool: Executor
) -> Iterator[tuple[int, Piece, Batches]]:
    """Number, piece and batches of each. What reading raises is raised by the batches."""
    waiting: deque[tuple[Batches, int]] = deque()
    for index, piece in enumerate(pieces):
        if not waiting:
            waiting.append((_begin(index, piece, read, pool), 0))
        batches, _ = waiting.popleft()
        held = sum(size for _, size in waiting)
        for ahead in range(index + 1 + len(waiting), min(index + 1 + PIECES, len(pieces))):
            held += (size := _held(pieces[ahead]))
            if held > ROOM or not is_remote(pieces[ahead].file.path):
                break
            waiting.append((_begin(ahead, pieces[ahead], read, pool), size))
        yield index, piece, batches


def _held(piece: Piece) -> int:
    """Bytes that are asked for before the first batch is used, at most."""
    return min(ROOM, piece.file.size)


def _begin(index: int, piece: Piece, read: Callable[[int, Piece], Batches], pool: Executor) -> Batches:
    """The batches of a piece, which the pool reads to the first one."""
    batches = read(index, piece)
    if not is_remote(piece.file.path):
        return batches
    first: list[TextBatch] = []
    done = pool.submit(lambda: first.extend(islice(batches, 1)))

    def rest() -> Batches:
        done.result()
        while first:
            yield first.pop()  # nothing here holds it while its consumer works on it
        yield from batches

    return rest()
