"""The start of our processes: refuse what no command can work with, hide pandas, collect garbage less often.

Arrow imports pandas, where it is installed, at its first array, to see whether it was given something of pandas. That
takes 0.2 s and 400 files, which every worker of a cluster would read from one file system.
"""

from __future__ import annotations

import gc
import os
import resource
import sys
from collections.abc import Iterable

from pretok.base.errors import UsageError
from pretok.base.units import human_bytes

ALLOCATIONS = 100_000
"""Allocations between two garbage collections. With Python's default of 700, modules and a vocabulary of 50,000 entries
are visited again and again while they load: a quarter of the time until the first document."""
ADDRESSES, ADDRESSES_PER_CPU = 3 << 30, 32 << 20
"""Bytes of address space that a command needs, most of it for libraries and the stacks of their threads. With less,
they end the process by an abort or a wrong access. No command used more than 2.4 GB on 2 CPUs."""


def refuse_to_start(arguments: Iterable[str]) -> None:
    """Raise UsageError if nothing can work in this process.

    The limits of the process leave no room for our libraries, standard output is closed, the current folder was
    deleted, or arguments are not UTF-8.
    """
    needed = ADDRESSES + ADDRESSES_PER_CPU * len(os.sched_getaffinity(0))
    for option, name in (("v", resource.RLIMIT_AS), ("d", resource.RLIMIT_DATA)):
        limit = resource.getrlimit(name)[0]
        if limit != resource.RLIM_INFINITY and limit < needed:
            raise UsageError(
                f"`ulimit -{option}` limits this process to {human_bytes(limit)}, and the libraries need "
                f"{human_bytes(needed)} on this machine: ulimit -{option} unlimited"
            )
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
    """A module finder for which pandas does not exist."""

    def find_spec(self, name: str, *_: object) -> None:
        if name == "pandas":
            raise ImportError(name)


def without_pandas() -> None:
    """Make Arrow believe that pandas is not installed, unless it is loaded already. `to_pandas` still loads it."""
    if "pandas" in sys.modules:
        return
    import pyarrow as pa

    finder = _NoPandas()
    sys.meta_path.insert(0, finder)
    try:
        # With the first array Arrow looks for pandas, and remembers the answer.
        pa.array([])
    finally:
        sys.meta_path.remove(finder)


def collect_seldom() -> None:
    """Make Python collect cyclic garbage less often; all other objects are freed at once anyway."""
    gc.set_threshold(ALLOCATIONS, *gc.get_threshold()[1:])
