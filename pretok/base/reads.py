"""Many small reads in a row: by the thread that asks while they are at hand, by several where each makes it wait.

Input: a function that reads little and the things it is called with. Output: its results, in their order.

On a parallel file system or a server an answer takes longer than all that is done with it, and threads wait together.
From memory they only take the interpreter lock from each other at every call of the system: 100,000 small files took
16 threads three times as long as one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

THREADS = 16
LOOK_SECONDS = 0.01
"""How long one thread works before it looks whether it waited."""
WAITING = 0.75
"""Share of that time above which the rest is for several threads. A process beside it on the same core takes half."""
TOGETHER = 64
"""Items that a thread takes at once: handing over each by itself took as long as a read from memory."""

Item = TypeVar("Item")
Result = TypeVar("Result")


def map_reads(read: Callable[[Item], Result], items: Sequence[Item], *, far: bool = False) -> list[Result]:
    """`read` of each item. far: each is known to wait, as what is on a server does. Raises what `read` raises."""
    found: list[Result] = []
    if not far:
        began, used = time.perf_counter(), time.thread_time()
        for item in items:
            found.append(read(item))
            if (passed := time.perf_counter() - began) < LOOK_SECONDS:
                continue
            if passed - (time.thread_time() - used) > WAITING * passed:
                break
            began, used = time.perf_counter(), time.thread_time()
    rest = items[len(found) :]
    step = max(1, min(TOGETHER, len(rest) // (4 * THREADS)))
    with ThreadPoolExecutor(THREADS) as pool:
        some = pool.map(lambda at: [read(item) for item in rest[at : at + step]], range(0, len(rest), step))
        return found + [result for results in some for result in results]
