"""Facts and history -> one HTML file: styles, script and pictures inside, no address outside of it.

Input: `Facts`, jobs, and a run or None. Output: the text of the page, from the template beside this module.
"""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pretok.base.errors import Stopped
from pretok.base.history import LoggedJob, RunHistory, read_jobs, read_run
from pretok.base.html import page_environment
from pretok.base.lock import hold
from pretok.base.storage import atomic_open
from pretok.base.units import duration, human, human_bytes
from pretok.report import charts
from pretok.report.gather import Facts, gather
from pretok.stream.segments import check_run

POINTS = 400
"""Points of a curve: more than a page is wide are not seen."""
DAY = 86_400
STEPS = (1, 2, 5, 10, 15, 20, 30, 60, 120, 300, 600, 900, 1200, 1800, 3600, 7200, 10_800, 21_600, 43_200, DAY)
"""Seconds between two times on an axis."""
STOPS = ("received ", "the job ends in ", "interrupted")
"""How messages of jobs begin that a signal or the end of their time stopped."""


@dataclass(slots=True)
class NodeRow:
    """What a node did in all jobs; busy: seconds of its tasks; slowest: (task, seconds)."""

    node: str
    tasks: int = 0
    busy: float = 0.0
    tries: int = 0
    slowest: tuple[str, float] = ("", 0.0)


def run_report(work: Path, out: Path, run: Path | None = None) -> None:
    """Write the page of a WORK folder, and of a run. Raises IntegrityError, UsageError, OutputError."""
    if run:
        check_run(run)
    jobs = [job for job in read_jobs(work) if not job.refused]
    page = fill_page(gather(work), jobs, read_run(run) if run else None)
    with hold(out, "report", beside=True), atomic_open(out, "w") as file:
        file.write(page)


def fill_page(facts: Facts, jobs: list[LoggedJob], run: RunHistory | None) -> str:
    """The page. Every text from outside is escaped by the template."""
    environment = page_environment()
    environment.filters |= {
        "n": "{:,}".format,
        "short": human,
        "bytes": human_bytes,
        "span": duration,
        "when": _when,
        "noun": _noun,
    }
    template = environment.from_string(files("pretok.report").joinpath("page.html").read_text("utf-8"))
    return template.render(
        facts=facts,
        manifest=facts.manifest,
        lengths={source.name: _powers(source.lengths, "documents by tokens") for source in facts.sources},
        sizes={source.name: _powers(source.sizes, "documents by bytes of text") for source in facts.sources},
        ranks=charts.lines(
            {use.name: use.curve() for use in facts.uses},
            "rank",
            "share of tokens, log10",
            _power_of_ten,
            whole=True,
        ),
        jobs=jobs,
        problems=[
            (at, job.command, text) for job in jobs for at, text in job.problems if not _is_stop(job, text)
        ],
        nodes=nodes(jobs),
        workers=_workers(jobs),
        run=run,
        curves=_curves(run) if run else {},
        markup=_Markup,
        made=f"{_when(time.time())} UTC",
    )


class _Markup(str):
    """SVG of our own, which the template shows as it is."""

    __slots__ = ()

    def __html__(self) -> str:
        return self


def _when(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S")


def time_ticks(low: float, high: float) -> list[float]:
    """Round times between two, all in seconds since 1970: full seconds, minutes, hours or days, in UTC."""
    least = (high - low) / 5
    if step := next((step for step in STEPS if step >= least), None):
        return charts.multiples(low, high, step) or [low]  # of less than a second there may be none
    return [DAY * day for day in charts.ticks(low / DAY, high / DAY)]


def _time(seconds: float) -> str:
    form = "%H:%M:%S" if seconds % 60 else "%H:%M" if seconds % DAY else "%d %b"
    return datetime.fromtimestamp(seconds, UTC).strftime(form)


def _noun(number: int, noun: str) -> str:
    """The noun as it follows a number."""
    return noun if number == 1 else f"{noun}s"


def _is_stop(job: LoggedJob, text: str) -> bool:
    """Whether a message says that the job was asked to stop, which is nothing that went wrong."""
    return job.exit_code == Stopped.exit_code and text.removeprefix("pretok: ").startswith(STOPS)


def _power_of_ten(x: float) -> str:
    return human(round(10**x))


def _powers(counts: npt.NDArray[np.int64], title: str) -> str:
    """Documents by powers of two; the bars begin and end where there are any."""
    used = [power for power, count in enumerate(counts) if count]
    if not used:
        return ""
    labelled = [
        (_power_of_two(2**power // 2), float(counts[power])) for power in range(used[0], used[-1] + 1)
    ]
    return charts.bars(labelled, f"{title}, each bar from its label to twice that")


def _power_of_two(number: int) -> str:
    return f"{number:,}" if number < 1 << 20 else f"{number >> 20:,} Mi"


def nodes(jobs: list[LoggedJob]) -> list[NodeRow]:
    """One row a node, by name."""
    rows: dict[str, NodeRow] = {}
    for task in (task for job in jobs for task in job.tasks):
        row = rows.setdefault(task.node, NodeRow(task.node))
        seconds = task.ended - task.began
        row.tasks, row.busy, row.tries = row.tasks + 1, row.busy + seconds, row.tries + task.tries
        row.slowest = max(row.slowest, (task.item, seconds), key=lambda entry: entry[1])
    return [rows[name] for name in sorted(rows)]


def workers_over_time(jobs: list[LoggedJob], bins: int = POINTS) -> tuple[list[float], list[float]]:
    """(times, mean number of tasks that ran) in `bins` equal spans over all jobs; empty without a task."""
    tasks = [task for job in jobs for task in job.tasks]
    if not tasks:
        return [], []
    first, last = min(task.began for task in tasks), max(task.ended for task in tasks)
    width = max((last - first) / bins, 1e-3)
    busy: Counter[int] = Counter()
    for task in tasks:
        low, high = (task.began - first) / width, (task.ended - first) / width
        for span in range(int(low), min(int(high), bins - 1) + 1):
            busy[span] += max(0.0, min(high, span + 1) - max(low, span))  # type: ignore[assignment]
    return [first + (span + 0.5) * width for span in range(bins)], [busy[span] for span in range(bins)]


def _workers(jobs: list[LoggedJob]) -> str:
    times, busy = workers_over_time(jobs)
    return charts.lines(
        {"tasks": list(zip(times, busy, strict=True))}, "time (UTC)", "tasks at work", _time, time_ticks,
        zero=True, whole=True,
    )  # fmt: skip


def _curves(run: RunHistory) -> dict[str, str]:
    """Title -> SVG, of what the run wrote."""
    metrics = _thinned(run.metrics)
    losses: dict[str, list[tuple[float, float]]] = {"training": _curve(metrics, "loss")}
    for name in sorted({name for record in run.validation for name in record.get("sources", {})}):
        losses[f"validation, {name}"] = [
            (record["step"], record["sources"][name])
            for record in run.validation
            if name in record["sources"]
        ]
    per_byte = {
        name: [
            (r["step"], r["bits_per_byte"][name])
            for r in run.validation
            if name in (r.get("bits_per_byte") or {})
        ]
        for name in sorted({name for r in run.validation for name in (r.get("bits_per_byte") or {})})
    }
    found = {
        "loss": charts.lines({name: curve for name, curve in losses.items() if curve}, "step", "loss"),
        "bits per byte": charts.lines(per_byte, "step", "bits per byte"),
        "tokens per second and device": charts.lines(
            {"": _curve(metrics, "tokens_per_second_per_device")}, "step", "tokens/s/device", zero=True
        ),
        "model FLOP utilisation": charts.lines({"": _curve(metrics, "mfu")}, "step", "MFU", zero=True),
        "gradient norm": charts.lines({"": _curve(metrics, "grad_norm")}, "step", "norm"),
    }
    return {title: drawn for title, drawn in found.items() if drawn}


def _curve(records: list[dict[str, Any]], key: str) -> list[tuple[float, float]]:
    return [(record["step"], record[key]) for record in records if record.get(key) is not None]


def _thinned(values: list[Any]) -> list[Any]:
    """At most about POINTS of them, evenly spread, the last one included."""
    step = max(1, len(values) // POINTS)
    return values[::-1][::step][::-1]
