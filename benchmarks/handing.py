"""Tasks that do nothing, handed to two workers: for `benchmarks.versus`, which runs it by two checkouts.

    python benchmarks/handing.py TASKS

Input: the pretok that PYTHONPATH leads to. Output: nothing; what the driver took is measured from outside.
"""

from __future__ import annotations

import sys
from typing import Any

try:
    from pretok.base.execute import Engine
    from pretok.base.stop import StopFlag
except ImportError:  # the first version
    from pretok.engine import Engine  # type: ignore[import-not-found, no-redef]
    from pretok.stop import StopFlag  # type: ignore[import-not-found, no-redef]


def nothing(item: int, report: Any) -> int:
    """A task."""
    report({"documents": 1})
    return item


def main(tasks: int) -> None:
    """Hand them out and take their results."""
    with StopFlag() as stop, Engine(2, None, stop) as engine:
        for _ in engine.map(nothing, range(tasks)):
            pass


if __name__ == "__main__":
    main(int(sys.argv[1]))
