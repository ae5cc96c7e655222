"""A function over items in a process of its own, for libraries that end their process on a damaged file.

Input: a top-level function and items. Output: its results in order, and None for each item that ended the process: the
ones that have no answer yet are asked again, half of them at a time, until the guilty one stands alone.
"""

from __future__ import annotations

import pickle
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

from pretok.base.children import child_environment

Item = TypeVar("Item")
Result = TypeVar("Result")
THREADS = 16
"""Items at once: each waits for a file system more than it computes."""
SERVE = "from pretok.read.guarded import serve; serve()"
CRASHES = (signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGSEGV)
"""How a library ends its process; any other end is not the item's fault."""


class _Child:
    """The process, started when it is first asked and again after it was ended."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `end`

    def ask(self, function: Callable[[Item], Result], part: list[tuple[int, Item]]) -> dict[int, Result]:
        """The answers that it gave before it ended, all of them if it did not. Raises RuntimeError with its words when
        the function failed."""
        process = self._process = self._process or subprocess.Popen(
            [sys.executable, "-c", SERVE],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env=child_environment(),
        )
        asking: Any = process.stdin
        answering: Any = process.stdout
        answers: dict[int, Result] = {}
        try:
            pickle.dump((function, part), asking)
            asking.flush()
            while len(answers) < len(part):
                index, result = pickle.load(answering)
                answers[index] = result
        except (BrokenPipeError, EOFError, pickle.UnpicklingError):  # the last answer may be cut
            self._process = None
            process.communicate()
            if -process.returncode not in CRASHES:
                self._errors.seek(0)
                words = self._errors.read().decode(errors="replace")
                raise RuntimeError(f"a helper process ended with {process.returncode}: {words}") from None
        return answers

    def end(self) -> None:
        """End the process, whatever it does."""
        if self._process:
            self._process.kill()
            self._process.communicate()
        self._errors.close()


_shared: list[_Child] = []


@contextmanager
def one_child() -> Iterator[None]:
    """Calls of `in_child` in this block ask the same process, whose start takes longer than most calls."""
    child = _Child()
    _shared.append(child)
    try:
        yield
    finally:
        _shared.remove(child)
        child.end()


def in_child(function: Callable[[Item], Result], items: Sequence[Item]) -> list[Result | None]:
    """`function` of every item, THREADS at a time. Raises RuntimeError with the child's words when it fails."""
    if not _shared:
        with one_child():
            return in_child(function, items)
    results: list[Result | None] = [None] * len(items)
    asked = [list(enumerate(items))] if items else []
    while asked:
        part = asked.pop()
        answers = _shared[-1].ask(function, part)
        for index, result in answers.items():
            results[index] = result
        left = [(index, item) for index, item in part if index not in answers]
        if len(part) > 1 and left:
            half = (len(left) + 1) // 2
            asked += [half_of for half_of in (left[:half], left[half:]) if half_of]
    return results


def serve() -> None:
    """The child: answers each item as soon as it is done, until nobody asks any more."""
    lock = threading.Lock()

    def answer(function: Callable[[Any], Any], numbered: tuple[int, Any]) -> None:
        data = pickle.dumps((numbered[0], function(numbered[1])))
        with lock:
            sys.stdout.buffer.write(data)
            sys.stdout.buffer.flush()

    with ThreadPoolExecutor(THREADS) as pool:
        while True:
            try:
                function, part = pickle.load(sys.stdin.buffer)
            except EOFError:
                return
            for _ in pool.map(partial(answer, function), part):  # raises what an item raised
                pass
