"""What one `pretok tokenize` asks of a file system: how much a write holds, and how often it waits for the disk.

Enters: the corpus. Leaves: of one process under strace(1), by the kind of file: calls of write, KiB in each; calls that
make, rename and remove, and how often a shard with what belongs to it waits for the disk. The speed
of that run says nothing.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from benchmarks.inputs import Inputs

CALLS = ("write", "fsync", "fdatasync", "rename", "renameat2", "unlink", "unlinkat", "openat")
_CALL = re.compile(r"(?:\d+ +)?(\w+)\((?:\d+<([^>]*)>)?(?:.*, (\d+)(?:\)| <unfinished))?")
"""Name, the file of a descriptor, the last argument: a call that another thread's interrupts stands on two lines, of
which the first tells all."""


def measure_writes(inputs: Inputs, runs: int) -> dict[str, Any]:  # noqa: ARG001
    """Of the corpus once; the calls do not depend on chance."""
    if shutil.which("strace") is None:
        return {"skipped": "strace is not installed"}
    out, trace = inputs.folder / "traced", inputs.folder / "trace.txt"
    shutil.rmtree(out, ignore_errors=True)
    sources = [f"{name}={path}" for name, paths in inputs.zst.items() for path in paths]
    command = ["strace", "-f", "-y", "-qq", "-s", "0", "-e", "trace=" + ",".join(CALLS), "-o", str(trace)]
    pretok = [sys.executable, "-m", "pretok", "tokenize", *sources, "--vocab", str(inputs.vocab)]
    subprocess.run(
        [*command, *pretok, "--out", str(out), "--workers", "0"],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    found = count_calls(trace.read_text(encoding="utf-8", errors="replace").splitlines(), out.resolve())
    shutil.rmtree(out)
    trace.unlink()
    return found


def count_calls(lines: list[str], folder: Path) -> dict[str, float]:
    """Of a trace of strace -f -y, what concerns files in `folder`."""
    calls: Counter[str] = Counter()
    sizes: Counter[str] = Counter()
    for line in lines:
        call = _CALL.match(line)
        if call is None or str(folder) not in line or " = -1 " in line:
            continue
        name, path, last = call.groups()
        if name == "write":
            kind = _kind(path)
            calls[kind] += 1
            sizes[kind] += int(last)
        elif name == "openat":
            calls["made"] += "O_CREAT" in line
            calls["shards made"] += "O_CREAT" in line and ".bin" in line
        else:
            calls[name.removesuffix("at").removesuffix("at2")] += 1
    found: dict[str, float] = {}
    for kind in ("shards", "indexes", "others"):
        found[f"{kind}: writes"] = calls[kind]
        found[f"{kind}: KiB a write"] = sizes[kind] / max(1, calls[kind]) / 1024
    return found | {
        "files made": calls["made"],
        "renamed": calls["rename"],
        "removed": calls["unlink"],
        "flushes a shard": (calls["fsync"] + calls["fdatasync"]) / max(1, calls["shards made"]),
    }


def _kind(path: str) -> str:
    if ".bin" in path:
        return "shards"
    return "indexes" if ".idx" in path else "others"
