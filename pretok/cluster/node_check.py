"""Pre-flight checks: whether a node is fit for a long job, and which nodes of a job are bad.

Input: the folder that the job will write to, and what a node must have. Output: one `NodeReport` per node, one line of
JSON in a log. `train.preflight` writes lines of the same form, with a matrix product and an all-reduce; `judge` takes
both.
"""

from __future__ import annotations

import json
import os
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pretok.base.memory import free_memory
from pretok.base.records import Record, read_record, to_json
from pretok.base.storage import TEMPORARY_SUFFIX, parse_line

WRITE_BYTES = 64 << 20
"""Bytes written and flushed to measure the speed: three seconds at the required 20 MB/s."""
VISIBLE_DEVICES = ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")
SLOWEST = 0.5
"""A node slower than this share of the median of all nodes is bad."""
SKEW = 5.0
"""Most seconds between the clocks of a node and of the file system: locks compare them."""
SHARED = "all-reduce"
"""The check whose failure may be the fault of any node."""


class NodeCheck(Record, frozen=True):
    """One check of a node."""

    name: str
    value: str
    """As shown."""
    problem: str = ""
    """What is wrong, or empty."""
    number: float | None = None
    """To compare nodes by."""


class NodeReport(Record, frozen=True):
    """The checks of one node."""

    node: str
    checks: tuple[NodeCheck, ...]


UNITS = {"free": ("GB", 1e9), "write": ("MB/s", 1e6), "memory": ("GB", 1e9), "GPUs": ("", 1.0)}
"""What a node must have enough of -> its unit."""


def node_report(folder: Path, needed: Mapping[str, int]) -> NodeReport:
    """Check this node; writes and removes one file of 64 MiB in `folder`.

    needed: for each of UNITS the least amount, in bytes, bytes a second, or a number.
    """
    system = os.statvfs(folder)
    amounts = {"free": system.f_bavail * system.f_frsize, "memory": free_memory(), "GPUs": _gpus()}
    checks = []
    try:
        amounts["write"], skew = _write(folder)
        apart = f"{skew:.0f} s apart from {folder}'s" if skew > SKEW else ""
        checks = [NodeCheck("clock", f"{skew:.1f} s", apart)]
    except OSError as error:
        checks = [NodeCheck("write", "-", f"cannot write to {folder}: {error.strerror}")]
    for name, amount in amounts.items():
        unit, size = UNITS[name]
        shown, least = (f"{number / size:,.0f} {unit}".rstrip() for number in (amount, needed[name]))
        problem = f"{shown}, {least} are needed" if amount < needed[name] else ""
        checks.append(NodeCheck(name, shown, problem))
    return NodeReport(os.uname().nodename, tuple(checks))


def _write(folder: Path) -> tuple[int, float]:
    """Return (bytes a second of a flushed write, seconds between the clocks of this node and of the file system)."""
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
        # The server of the files sets this time, by its own clock.
        path.touch()
        return int(speed), abs(path.stat().st_mtime - time.time())
    finally:
        path.unlink(missing_ok=True)


def _gpus() -> int:
    """Count the GPUs that this job may use: those in its environment, else all of NVIDIA's driver."""
    # Slurm sets the variable for a job with some of a node's GPUs, while /dev still shows all of them.
    given = next((os.environ[name] for name in VISIBLE_DEVICES if name in os.environ), None)
    return len(
        list(Path("/dev").glob("nvidia[0-9]*")) if given is None else list(filter(None, given.split(",")))
    )


def report_line(report: NodeReport) -> str:
    """Write a report as one line, which `read_reports` finds among the other lines of a log."""
    return json.dumps(to_json(report)) + "\n"


def read_reports(folder: Path) -> list[NodeReport]:
    """Read the report lines of all .json files in `folder`. Raises IntegrityError."""
    texts = [path.read_text(encoding="utf-8", errors="replace") for path in sorted(folder.glob("*.json"))]
    lines = [line for text in texts for line in text.splitlines() if line.startswith('{"node"')]
    return [
        read_record(NodeReport, parse_line(line.encode(), f"a report in {folder}"), folder) for line in lines
    ]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the reports say of the nodes."""

    checks: dict[str, dict[str, NodeCheck]]
    """Node -> name -> check."""
    bad: dict[str, list[str]]
    """Node -> its problems."""
    shared: list[str]
    """Problems that may be of any node."""


def judge(reports: Sequence[NodeReport], nodes: list[str]) -> Verdict:
    """Find the bad nodes among `nodes` and all that reported.

    A node is bad if it has a problem, misses a check which others report, or is far slower than the others (`SLOWEST`).
    A problem of the check that all nodes share (`SHARED`) makes no node bad.
    """
    checks: dict[str, dict[str, NodeCheck]] = {node: {} for node in nodes}
    for report in reports:
        checks.setdefault(report.node, {}).update({check.name: check for check in report.checks})
    names = {name for own in checks.values() for name in own} - {SHARED}
    numbers: dict[str, list[float]] = {}
    for check in (check for own in checks.values() for check in own.values()):
        if check.number is not None:
            numbers.setdefault(check.name, []).append(check.number)
    bad: dict[str, list[str]] = {}
    shared: set[str] = set()
    for node, own in checks.items():
        problems: list[str] = []
        for name, check in own.items():
            if check.problem:
                (shared.add if name == SHARED else problems.append)(f"{name}: {check.problem}")
            # The median: one slow node, or a few, must not move what the others are held against.
            median = statistics.median(numbers.get(name, [0]))
            if check.number is not None and check.number < SLOWEST * median:
                problems.append(f"{name}: {check.value}, the median is {median:.3g}")
        if missing := sorted(names - set(own)) or ([] if own else ["everything"]):
            problems.append(f"no report of {', '.join(missing)}: the node or the check on it failed")
        if problems:
            bad[node] = problems
    return Verdict(checks, bad, sorted(shared))
