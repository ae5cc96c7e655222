"""Logs of jobs and the records of a run -> what happened when.

Enters: WORK/logs/*.jsonl (`pretok.base.joblog` says what a line holds) and the folder of a run. Leaves: `LoggedJob`s,
the oldest first, with their steps, tasks and failures; the throughput of the tasks over time; and of a run its curves.
A last line that a kill cut short is left out.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from pretok.base.joblog import LOGS
from pretok.base.storage import read_lines

POINTS = 400
"""Points of a curve: more than a page is wide are not seen."""


@dataclass(slots=True)
class LoggedJob:
    """One command. began, ended: seconds since 1970; exit_code: None when it was killed; problems: notices of failures
    and errors, as (time, message); directory: where it was typed; settings: the recipe it had."""

    command: str
    argv: list[str]
    host: str
    slurm_job: str
    began: float
    ended: float
    exit_code: int | None = None
    tasks: list[TaskRun] = field(default_factory=list)
    steps: list[tuple[str, float, dict[str, int]]] = field(default_factory=list)
    problems: list[tuple[float, str]] = field(default_factory=list)
    directory: str = ""
    settings: dict[str, Any] = field(default_factory=dict)
    idle: float | None = None
    peak_bytes: int = 0


@dataclass(slots=True)
class TaskRun:
    """A task that was done. began, ended: seconds since 1970."""

    item: str
    node: str
    began: float
    ended: float
    tries: int


@dataclass(slots=True)
class NodeRow:
    """What a node did in all jobs; busy: seconds of its tasks; slowest: (task, seconds)."""

    node: str
    tasks: int = 0
    busy: float = 0.0
    tries: int = 0
    slowest: tuple[str, float] = ("", 0.0)


@dataclass(slots=True)
class RunHistory:
    """What a training run wrote. metrics, validation, segments: lines of its files; done: whether it is at its end."""

    folder: Path
    metrics: list[dict[str, Any]]
    validation: list[dict[str, Any]]
    segments: list[dict[str, Any]]
    done: bool


def read_jobs(work: Path) -> list[LoggedJob]:
    """All jobs that left a log, oldest first."""
    jobs = [job for path in sorted((work / LOGS).glob("*.jsonl")) if (job := _job(path))]
    return sorted(jobs, key=lambda job: job.began)


def _job(path: Path) -> LoggedJob | None:
    job = None
    for line in read_lines(path):
        now = _seconds(line["time"])
        if job is None:
            job = LoggedJob(
                line["command"], line.get("argv", []), line["host"], line.get("job", ""), now, now
            )
        job.ended = now
        match line["event"]:
            case "start":
                job.directory, job.settings = line.get("directory", ""), line.get("settings", {})
            case "task":
                if "began" in line:
                    ran = (_seconds(line["began"]), _seconds(line["ended"]))
                    job.tasks.append(TaskRun(line["item"], line["node"], *ran, line["tries"]))
            case "task_failed":
                job.problems.append((now, f"{line['item']}: {line['message']}"))
            case "warning" | "error":
                job.problems.append((now, line["message"]))
            case "step_end":
                job.steps.append((line.get("title", ""), line.get("seconds", 0.0), line.get("counts", {})))
            case "workers":
                job.idle, job.peak_bytes = line["idle"], max(job.peak_bytes, line["peak_bytes"])
            case "end":
                job.exit_code = line["exit_code"]
    return job


def _seconds(time: str) -> float:
    return datetime.fromisoformat(time).timestamp()


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


def read_run(folder: Path) -> RunHistory:
    """What a run wrote, however far it came."""
    return RunHistory(
        folder,
        metrics=read_lines(folder / "metrics.jsonl"),
        validation=read_lines(folder / "validation.jsonl"),
        segments=read_lines(folder / "goodput.jsonl"),
        done=(folder / "done.json").exists(),
    )


def thinned(values: list[Any]) -> list[Any]:
    """At most about POINTS of them, evenly spread, the last one included."""
    step = max(1, len(values) // POINTS)
    return values[::-1][::step][::-1]
