"""Logs of jobs and the records of a training run -> what happened.

Input: WORK/logs/*.jsonl (`base.joblog` says what a line holds) and the folder of a run. Output: `LoggedJob`s, the
oldest first, with their steps, tasks and failures; `RunHistory`. A last line that a kill cut short is left out.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from pretok.base.joblog import LOGS
from pretok.base.storage import read_lines


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
class RunHistory:
    """What a training run wrote. metrics, validation, attempts: lines of its files; done: whether it is at its end."""

    folder: Path
    metrics: list[dict[str, Any]]
    validation: list[dict[str, Any]]
    attempts: list[dict[str, Any]]
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


def read_run(folder: Path) -> RunHistory:
    """What a run wrote, however far it came."""
    return RunHistory(
        folder,
        metrics=read_lines(folder / "metrics.jsonl"),
        validation=read_lines(folder / "validation.jsonl"),
        attempts=read_lines(folder / "goodput.jsonl"),
        done=(folder / "done.json").exists(),
    )
