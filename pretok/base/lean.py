"""What a process of ours does not load: pandas, which Arrow imports to see whether it was given something of it.

Enters: a process at its start. Leaves: the same with Arrow's question answered. Arrow asks once, at its first array;
pandas takes 0.3 s and 400 files, which every worker of a cluster would read from one file system.
"""

from __future__ import annotations

import sys


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
