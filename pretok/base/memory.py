"""Memory that this process uses, and may still use.

Input: /proc and the control groups into which Slurm and containers put processes. Output: bytes.
"""

from __future__ import annotations

import ctypes
import resource
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path


def resident_bytes() -> int:
    """Return the bytes of this process in memory now."""
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * resource.getpagesize()


def give_back_memory() -> None:
    """Return to the system what this process has freed. A C library other than glibc does so by itself, or cannot."""
    with suppress(AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def free_memory(proc: Path = Path("/proc"), groups: Path = Path("/sys/fs/cgroup")) -> int:
    """Return the bytes free on this machine, or fewer if a control group has a lower limit.

    The page cache counts as free.

    See proc(5), and the kernel's documentation of cgroup-v2.
    """
    line = (proc / "meminfo").read_text(encoding="ascii").partition("MemAvailable:")[2]
    group = (proc / "self" / "cgroup").read_text(encoding="utf-8").partition("0::/")[2].partition("\n")[0]
    # A limit of any group above holds, too.
    inside = [Path(group), *Path(group).parents]
    return min([int(line.split()[0]) * 1024, *(left for at in inside for left in _left(groups / at))])


def _left(group: Path) -> Iterator[int]:
    """Yield the bytes left in a control group, if it has a limit."""
    try:
        most, used = ((group / f"memory.{name}").read_text().strip() for name in ("max", "current"))
        # The kernel counts cached pages of files as used, but gives them up before it refuses memory.
        cached = (group / "memory.stat").read_text().partition("\ninactive_file ")[2]
    except OSError:  # not mounted here, or without this controller
        return
    if most != "max":
        yield max(0, int(most) - int(used) + int(cached.split()[0] if cached else 0))
