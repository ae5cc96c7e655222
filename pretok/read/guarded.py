"""A function over items in a process that a library may end: of a damaged footer pyarrow does so (seen with 23).

Input: a top-level function and items. Output: its results in order, and None for each item that ended the process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from typing import TypeVar

from pretok.base.console import Counts
from pretok.base.pool import Pool
from pretok.base.reads import map_reads

Item = TypeVar("Item")
Result = TypeVar("Result")
TOGETHER = 1024
"""Items that are asked for at once."""
LOADED = "pyarrow.parquet"
"""What each worker has loaded when it is forked."""
_shared: Pool | None = None
"""That of `one_child`."""


@contextmanager
def one_child() -> Iterator[Pool]:
    """Let all calls of `in_child` inside share one process, which starts with the first item and ends with the block.

    To start one is to read hundreds of small files, which a parallel file system is slow at; one that stayed would take
    memory beside the workers.
    """
    global _shared
    if _shared is not None:
        yield _shared
        return
    with closing(Pool(1, {})) as pool:  # of no process, where there are no items
        _shared = pool
        try:
            yield pool
        finally:
            _shared = None


def in_child(function: Callable[[Item], Result], items: Sequence[Item]) -> list[Result | None]:
    """`function` of every item. Raises RuntimeError with the child's words when the function fails."""
    results: list[Result | None] = []
    with one_child() as pool:
        for at in range(0, len(items), TOGETHER):
            some = list(items[at : at + TOGETHER])
            answers = _ask(pool, function, some)
            # One of them has ended the process. The next one is a fork of some ms: each is asked for by itself.
            if answers is None:
                alone = (_ask(pool, function, [item]) for item in some)
                results += [answer[0] if answer else None for answer in alone]
            else:
                results += answers
    return results


def _ask(pool: Pool, function: Callable[[Item], Result], items: list[Item]) -> list[Result] | None:
    """The results, or None where the process has ended."""
    try:
        found: list[Result] = pool.submit(LOADED, _answer, function, items).result()
        return found
    except EOFError:
        return None


def _answer(
    function: Callable[[Item], Result], items: list[Item], _: Callable[[Counts], None]
) -> list[Result]:
    return map_reads(function, items)
