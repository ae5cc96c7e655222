"""Whether this process compiles, for whoever shows how far a step is.

Input: what the kernels tell. Output: increments of the count `compiling`, to the newest listener of the process: the
progress that is shown here, or the driver of this worker.
"""

from __future__ import annotations

from collections.abc import Callable

from pretok.base.console import Counts

COMPILING = "compiling"
"""How many processes compile at this moment: a count that is no part of what was done."""
listeners: list[Callable[[Counts], object]] = []
"""Who is told, the newest last."""


def tell(change: int) -> None:
    """1 where compilation begins, -1 where it ends."""
    if listeners:
        listeners[-1]({COMPILING: change})
