"""What a process of ours does without: pandas, and most of Python's searches for garbage.

Input: a process at its start. Output: the same, with the answer to what Arrow asks at its first array: whether it was
given something of pandas, which it imports to see. That takes 0.3 s and 400 files, which every worker of a cluster
would read from one file system.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterable

from pretok.base.errors import UsageError

ALLOCATIONS = 100_000
"""Between two searches for garbage. At Python's own 700, modules and a vocabulary of 50,000 entries that are being
loaded are searched again and again: a quarter of the time until the first document."""


def refuse_to_start(arguments: Iterable[str]) -> None:
    """UsageError for what no command can work with: a closed standard output, a current folder that is gone, arguments
    that are no text."""
    if sys.stdout is None:
        raise UsageError("standard output is closed; send it to a file, or to /dev/null")
    try:
        os.getcwd()  # noqa: PTH109
    except FileNotFoundError:
        raise UsageError("the current folder was deleted; go to one that exists (cd)") from None
    for argument in arguments:
        if argument.encode(errors="replace").decode() != argument:
            raise UsageError(
                f"{argument!r} is not UTF-8; if the terminal shows it right, the locale is wrong: export LC_ALL=C.UTF-8"
            )


class _NoPandas:
    """A finder of modules that knows pandas not to be there."""

    def find_spec(self, name: str, *_: object) -> None:
        if name == "pandas":
            raise ImportError(name)


def without_pandas() -> None:
    """Let Arrow take pandas for absent, unless it is loaded; `to_pandas` asks again and loads it."""
    if "pandas" in sys.modules:
        return
    import pyarrow as pa

    finder = _NoPandas()
    sys.meta_path.insert(0, finder)
    try:
        pa.array([])
    finally:
        sys.meta_path.remove(finder)


def collect_seldom() -> None:
    """Let Python search for garbage in circles less often; all else is freed at once in any case."""
    gc.set_threshold(ALLOCATIONS, *gc.get_threshold()[1:])
