"""Memory that this process uses, and may still use.

Input: /proc and the control groups into which Slurm and containers put processes. Output: bytes.
"""

from __future__ import annotations

import resource
from collections.abc import Iterator
from pathlib import Path


def resident_bytes() -> int:
    """Bytes of this process in memory now."""
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * resource.getpagesize()


def free_memory(proc: Path = Path("/proc"), groups: Path = Path("/sys/fs/cgroup")) -> int:
    """Bytes free on this machine, or fewer if a control group has a lower limit. The page cache counts as free.

    See proc(5), and the kernel's documentation of cgroup-v2.
    """
    line = (proc / "meminfo").read_text(encoding="ascii").partition("MemAvailable:")[2]
    return min([int(line.split()[0]) * 1024, *_left_in_groups(proc / "self" / "cgroup", groups)])


def _left_in_groups(listed: Path, groups: Path) -> Iterator[int]:
    """Bytes left in each control group of this process that has a limit, including the enclosing ones."""
    for line in listed.read_text(encoding="utf-8").splitlines():
        if line.startswith("0::"):
            folder = groups / line.removeprefix("0::").lstrip("/")
            for group in (folder, *(above for above in folder.parents if above.is_relative_to(groups))):
                yield from _left(group)


def _left(group: Path) -> Iterator[int]:
    try:
        most, used = ((group / f"memory.{name}").read_text().strip() for name in ("max", "current"))
        cached = (group / "memory.stat").read_text().partition("\ninactive_file ")[2]
    except OSError:  # not mounted here, or without this controller
        return
    if most != "max":
        yield max(0, int(most) - int(used) + int(cached.split()[0] if cached else 0))
