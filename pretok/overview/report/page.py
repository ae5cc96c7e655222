"""Facts and history -> one HTML file with its styles, script and curves, which links to nothing outside.

Input: `Facts`, jobs, and a run or None. Output: the text of the page, from the template next to this module.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pretok.base.errors import Stopped
from pretok.base.html import page_environment
from pretok.base.lock import hold
from pretok.base.storage import atomic_open
from pretok.base.units import duration, human, human_bytes
from pretok.overview.history import LoggedJob, RunHistory, read_jobs, read_run
from pretok.overview.report.gather import VALUES, Facts, gather
from pretok.shards.manifest import FILE_NAME, Manifest
from pretok.stream.segments import check_run

POINTS = 400
"""Most points of a curve; a page is not wide enough to show more."""
STOPS = ("received ", "the job ends in ", "interrupted")
"""Beginnings of the messages of jobs that were stopped by a signal or the end of their time."""


@dataclass(slots=True)
class NodeRow:
    """The work of a node in all jobs."""

    node: str
    tasks: int = 0
    busy: float = 0.0
    """Seconds of its tasks."""
    tries: int = 0
    slowest: tuple[str, float] = ("", 0.0)
    """(task, seconds)."""


def run_report(work: Path, out: Path, run: Path | None = None) -> None:
    """Write the page of a WORK folder, and of a run if one is given. Raises IntegrityError, UsageError, OutputError."""
    if run:
        check_run(run)
    jobs = [job for job in read_jobs(work) if not job.refused]
    page = fill_page(gather(work), jobs, read_run(run) if run else None)
    with hold(out, "report", beside=True), atomic_open(out, "w") as file:
        file.write(page)


def fill_page(facts: Facts, jobs: list[LoggedJob], run: RunHistory | None) -> str:
    """Fill the template, which escapes every text."""
    environment = page_environment()
    environment.filters |= {
        "n": "{:,}".format,
        "short": human,
        "bytes": human_bytes,
        "span": duration,
        "when": _when,
        "noun": _noun,
    }
    template = environment.from_string(
        files("pretok.overview.report").joinpath("page.html").read_text("utf-8")
    )
    return template.render(
        facts=facts,
        manifest=facts.manifest,
        most=VALUES,
        powers=powers,
        ranks=chart({use.name: use.curve() for use in facts.uses}, lambda x: human(round(10**x))),
        jobs=jobs,
        verified=verified_at(facts.manifest, jobs),
        problems=[
            (at, job.command, text) for job in jobs for at, text in job.problems if not _is_stop(job, text)
        ],
        nodes=nodes(jobs),
        run=run,
        curves=_curves(run) if run else {},
        made=f"{_when(time.time())} UTC",
    )


def _when(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S")


def _noun(number: int, noun: str) -> str:
    """Return the noun that follows a number."""
    return noun if number == 1 else f"{noun}s"


def _is_stop(job: LoggedJob, text: str) -> bool:
    """Return whether a message says that the job was asked to stop, which is not a problem."""
    return job.exit_code == Stopped.exit_code and text.removeprefix("pretok: ").startswith(STOPS)


def chart(
    series: Mapping[str, Sequence[tuple[float, float]]],
    label: Callable[[float], str] = human,
    *,
    zero: bool = False,
) -> dict[str, Any] | None:
    """Scale curves for the template; None if there is no point.

    Points are in a square of 100 by 100 with the origin at the top left, with the numbers at the ends of both axes.
    """
    curves = {name: curve for name, curve in series.items() if curve}
    if not curves:
        return None
    xs, ys = zip(*(point for curve in curves.values() for point in curve), strict=True)
    left, right, low, high = min(xs), max(xs), 0.0 if zero else min(ys), max(ys)
    wide, tall = (right - left) or 1, (high - low) or 1
    return {
        "curves": {
            name: " ".join(f"{100 * (x - left) / wide:.2f},{100 * (high - y) / tall:.2f}" for x, y in curve)
            for name, curve in curves.items()
        },
        "x": (label(left), label(right)),
        "y": (human(low), human(high)),
    }


def powers(counts: npt.NDArray[np.int64]) -> list[tuple[str, int]]:
    """Return (lower edge, documents) of each power of two, from the first that has documents to the last."""
    used = np.flatnonzero(counts).tolist()
    if not used:
        return []
    return [(f"{2**power // 2:,}", int(counts[power])) for power in range(used[0], used[-1] + 1)]


def verified_at(manifest: Manifest, jobs: Sequence[LoggedJob]) -> float | None:
    """Return when a job last verified the shards as they are now, in seconds since 1970; None if none did."""
    sealed = (manifest.folder / FILE_NAME).stat().st_mtime
    ends = [job.ended for job in jobs if job.command in ("verify", "run") and job.exit_code == 0]
    return max((end for end in ends if end >= sealed), default=None)


def nodes(jobs: list[LoggedJob]) -> list[NodeRow]:
    """Return one row for each node, by name."""
    rows: dict[str, NodeRow] = {}
    for task in (task for job in jobs for task in job.tasks):
        row = rows.setdefault(task.node, NodeRow(task.node))
        row.tasks, row.busy, row.tries = row.tasks + 1, row.busy + task.seconds, row.tries + task.tries
        row.slowest = max(row.slowest, (task.item, task.seconds), key=lambda entry: entry[1])
    return [rows[name] for name in sorted(rows)]


def _curves(run: RunHistory) -> dict[str, dict[str, Any] | None]:
    """Return the charts of a run, by title."""
    metrics = _thinned(run.metrics)
    checks = [(r["step"], r.get("sources") or {}, r.get("bits_per_byte") or {}) for r in run.validation]
    names = sorted({name for _, losses, _ in checks for name in losses})
    losses = {
        f"validation, {name}": [(step, losses[name]) for step, losses, _ in checks if name in losses]
        for name in names
    }
    per_byte = {name: [(step, bits[name]) for step, _, bits in checks if name in bits] for name in names}
    return {
        "loss": chart({"training": _curve(metrics, "loss")} | losses),
        "bits per byte": chart(per_byte),
        "tokens per second and device": chart(
            {"": _curve(metrics, "tokens_per_second_per_device")}, zero=True
        ),
        "model FLOP utilisation": chart({"": _curve(metrics, "mfu")}, zero=True),
        "gradient norm": chart({"": _curve(metrics, "grad_norm")}, zero=True),
    }


def _curve(records: list[dict[str, Any]], key: str) -> list[tuple[float, float]]:
    return [(record["step"], record[key]) for record in records if record.get(key) is not None]


def _thinned(values: list[Any]) -> list[Any]:
    """Thin values to about POINTS at most, evenly spread, with the last one."""
    step = max(1, len(values) // POINTS)
    return values[::-1][::step][::-1]
