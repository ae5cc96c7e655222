"""Pre-flight: is this node fit for a long job? And over all nodes: a table, and the names of the bad ones.

Input: the folder the job will write to and what the node should have. Output: one `NodeReport` per node, in a log one
line of JSON. Lines of the same form come from `train.preflight`, which adds a matrix product and an all-reduce; `judge`
takes both.
"""

from __future__ import annotations

import getpass
import json
import os
import re
import shutil
import statistics
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pretok.base.memory import free_memory
from pretok.base.records import Record, read_record, to_json
from pretok.base.storage import TEMPORARY_SUFFIX, parse_line

WRITE_BYTES = 64 << 20
"""Written and flushed to measure the speed: three seconds at the 20 MB/s that are asked for."""
VISIBLE_DEVICES = ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")
SLOWEST = 0.5
"""A node whose speed is below this part of the median of all nodes is bad."""

SHARED = "all-reduce"
"""The check whose failure may be any node's fault."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What a node must have. free, memory in bytes; write in bytes a second; skew in seconds."""

    gpus: int = 0
    free: int = 10 << 30
    inodes: int = 10_000
    write: int = 20_000_000
    memory: int = 4 << 30
    skew: float = 5.0


class Check(Record, frozen=True):
    """One line of a report. value: as shown; problem: what is wrong, or empty; number: for comparing nodes."""

    name: str
    value: str
    problem: str = ""
    number: float | None = None


class NodeReport(Record, frozen=True):
    """What one node says of itself."""

    node: str
    checks: tuple[Check, ...]


def node_report(folder: Path, limits: Limits) -> NodeReport:
    """Check this node; writes and removes one file of 64 MiB in `folder`."""
    checks = [
        *_space(folder, limits),
        *_quota(folder, limits),
        *_write(folder, limits),
        _memory(limits),
        _gpus(limits),
    ]
    return NodeReport(os.uname().nodename, tuple(checks))


UNITS = {"GB": 1e9, "MB/s": 1e6, "": 1.0}


def _at_least(name: str, found: float, wanted: float, unit: str) -> Check:
    shown, needed = (f"{amount / UNITS[unit]:,.0f} {unit}".rstrip() for amount in (found, wanted))
    return Check(name, shown, f"{shown}, {needed} are needed" if found < wanted else "")


def _space(folder: Path, limits: Limits) -> list[Check]:
    system = os.statvfs(folder)
    checks = [_at_least("free", system.f_bavail * system.f_frsize, limits.free, "GB")]
    if system.f_files:  # some file systems count no inodes
        checks.append(_at_least("inodes", system.f_favail, limits.inodes, ""))
    return checks


def _quota(folder: Path, limits: Limits) -> list[Check]:
    """What the user's Lustre quota leaves; nothing on other file systems, whose refusal the write check meets."""
    if shutil.which("lfs") is None:
        return []
    command = ["lfs", "quota", "-q", "-u", getpass.getuser(), str(folder)]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    left = lustre_quota_left(answer.stdout) if answer.returncode == 0 else None
    if left is None:
        return []
    wanted = {"quota": (limits.free, "GB"), "file quota": (limits.inodes, "")}
    return [_at_least(name, left[name], *wanted[name]) for name in left]


def lustre_quota_left(text: str) -> dict[str, int] | None:
    """Bytes and files that `lfs quota -q` output leaves, where a limit is set; None when it is not of that form.

    The form, from the Lustre manual: path, then kbytes, quota, limit, grace, files, quota, limit, grace. An amount over
    its quota carries a star; a limit of 0 is none.
    """
    fields = text.split()[-8:]
    if len(text.split()) < 9 or not all(re.fullmatch(r"\d+\*?", fields[i]) for i in (0, 1, 2, 4, 5, 6)):
        return None
    numbers = [int(fields[i].rstrip("*")) for i in (0, 1, 2, 4, 5, 6)]
    left = {}
    for name, (used, soft, hard), unit in (("quota", numbers[:3], 1024), ("file quota", numbers[3:], 1)):
        if limit := soft or hard:
            left[name] = max(0, limit - used) * unit
    return left


def _write(folder: Path, limits: Limits) -> list[Check]:
    """Speed of a flushed write, and this node's clock against the time the file system gave the file."""
    path = folder / f".preflight-{os.uname().nodename}-{os.getpid()}{TEMPORARY_SUFFIX}"
    block = os.urandom(1 << 20)  # random: some file systems compress
    try:
        began = time.monotonic()
        with path.open("wb") as file:
            for _ in range(WRITE_BYTES // len(block)):
                file.write(block)
            file.flush()
            os.fsync(file.fileno())
        speed = WRITE_BYTES / (time.monotonic() - began)
        path.touch()
        skew = abs(path.stat().st_mtime - time.time())
    except OSError as error:
        return [Check("write", "-", f"cannot write to {folder}: {error.strerror}")]
    finally:
        path.unlink(missing_ok=True)
    apart = f"{skew:.0f} s apart from {folder}'s" if skew > limits.skew else ""
    return [_at_least("write", speed, limits.write, "MB/s"), Check("clock", f"{skew:.1f} s", apart)]


def _memory(limits: Limits) -> Check:
    return _at_least("memory", free_memory(), limits.memory, "GB")


def _gpus(limits: Limits) -> Check:
    """GPUs that this job may use here: by its environment, else all that NVIDIA's driver shows."""
    given = next((os.environ[name] for name in VISIBLE_DEVICES if name in os.environ), None)
    found = (
        len(list(Path("/dev").glob("nvidia[0-9]*")))
        if given is None
        else len([g for g in given.split(",") if g])
    )
    problem = f"{found}, {limits.gpus} are expected" if found < limits.gpus else ""
    return Check("GPUs", str(found), problem)


def report_line(report: NodeReport) -> str:
    """A report as the one line that `read_reports` finds among whatever else a log holds."""
    return json.dumps(to_json(report)) + "\n"


def read_reports(folder: Path) -> list[NodeReport]:
    """The report lines of all .json files in `folder`. Raises IntegrityError."""
    texts = [path.read_text(encoding="utf-8", errors="replace") for path in sorted(folder.glob("*.json"))]
    lines = [line for text in texts for line in text.splitlines() if line.startswith('{"node"')]
    return [
        read_record(NodeReport, parse_line(line.encode(), f"a report in {folder}"), folder) for line in lines
    ]


@dataclass(frozen=True, slots=True)
class Verdict:
    """checks: node -> name -> check; bad: node -> its problems; shared: problems that are no one node's."""

    checks: dict[str, dict[str, Check]]
    bad: dict[str, list[str]]
    shared: list[str]


def judge(reports: Sequence[NodeReport], nodes: list[str]) -> Verdict:
    """Which of `nodes`, and of all that reported, are bad.

    A node that misses a check which others report is bad, and so is one far slower than the others (`SLOWEST`). A
    problem of a check in common (`SHARED`) is held against no node.
    """
    checks: dict[str, dict[str, Check]] = {node: {} for node in nodes}
    for report in reports:
        checks.setdefault(report.node, {}).update({check.name: check for check in report.checks})
    bad = {
        node: [f"{c.name}: {c.problem}" for c in found.values() if c.problem]
        for node, found in checks.items()
    }
    shared = sorted({problem for found in bad.values() for problem in found if problem.startswith(SHARED)})
    names = {name for found in checks.values() for name in found} - {SHARED}
    medians = _medians(checks)
    for node, found in checks.items():
        bad[node] = [problem for problem in bad[node] if problem not in shared]
        if missing := sorted(names - set(found)) or ([] if found else ["everything"]):
            bad[node].append(f"no report of {', '.join(missing)}: the node or the check on it failed")
        for name, check in found.items():
            if check.number is not None and check.number < SLOWEST * medians[name]:
                bad[node].append(f"{name}: {check.value}, the median is {medians[name]:.3g}")
    return Verdict(checks, {node: found for node, found in bad.items() if found}, shared)


def _medians(checks: dict[str, dict[str, Check]]) -> dict[str, float]:
    numbers: dict[str, list[float]] = {}
    for found in checks.values():
        for check in found.values():
            if check.number is not None:
                numbers.setdefault(check.name, []).append(check.number)
    return {name: statistics.median(values) for name, values in numbers.items()}
