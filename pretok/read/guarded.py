"""A function over items in a process of its own, for libraries that end their process on a damaged file.

Enters: a top-level function and items. Leaves: its results in order, and None for each item that ended the process: the
ones that have no answer yet are asked again, half of them at a time, until the guilty one stands alone.
"""

from __future__ import annotations

import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from typing import Any, TypeVar

from pretok.base.children import child_environment

Item = TypeVar("Item")
Result = TypeVar("Result")
THREADS = 16
"""Items at once: each waits for a file system more than it computes."""
SERVE = "from pretok.read.guarded import serve; serve()"
CRASHES = (signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGSEGV)
"""How a library ends its process; any other end is not the item's fault."""


def in_child(function: Callable[[Item], Result], items: Sequence[Item]) -> list[Result | None]:
    """`function` of every item, THREADS at a time. Raises RuntimeError with the child's words when it fails."""
    results: list[Result | None] = [None] * len(items)
    asked = [list(enumerate(items))] if items else []
    while asked:
        part = asked.pop()
        answers = _ask(function, part)
        for index, result in answers.items():
            results[index] = result
        left = [(index, item) for index, item in part if index not in answers]
        if len(part) > 1 and left:
            half = (len(left) + 1) // 2
            asked += [half_of for half_of in (left[:half], left[half:]) if half_of]
    return results


def _ask(function: Callable[[Item], Result], part: list[tuple[int, Item]]) -> dict[int, Result]:
    """The answers that a child gave before it ended."""
    child = subprocess.run(
        [sys.executable, "-c", SERVE],
        input=pickle.dumps((function, part)),
        capture_output=True,
        check=False,
        env=child_environment(),
    )
    if child.returncode and -child.returncode not in CRASHES:
        raise RuntimeError(
            f"a helper process ended with {child.returncode}: {child.stderr.decode(errors='replace')}"
        )
    return dict(_answers(child.stdout))


def _answers(data: bytes) -> Iterator[tuple[int, Any]]:
    """The pickles in a row; the last may be cut."""
    stream = BytesIO(data)
    while stream.tell() < len(data):
        try:
            yield pickle.load(stream)
        except (EOFError, pickle.UnpicklingError):
            return


def serve() -> None:
    """The child: answers each item as soon as it is done."""
    function, part = pickle.load(sys.stdin.buffer)
    lock = threading.Lock()

    def answer(numbered: tuple[int, Any]) -> None:
        data = pickle.dumps((numbered[0], function(numbered[1])))
        with lock:
            sys.stdout.buffer.write(data)
            sys.stdout.buffer.flush()

    with ThreadPoolExecutor(THREADS) as pool:
        for _ in pool.map(answer, part):  # raises what an item raised
            pass
