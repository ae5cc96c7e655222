"""Logs of jobs and the records of a training run -> what happened.

Input: WORK/logs/*.jsonl (`base.joblog` says what a line holds) and the folder of a run. Output: `LoggedJob`s, the
oldest first, with their steps, tasks and failures; `RunHistory`. A last line that a kill cut short is left out.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import msgspec

from pretok.base.errors import PretokError
from pretok.base.gauge import Gauge
from pretok.base.joblog import LOGS
from pretok.base.records import Count, Record, read_record
from pretok.base.storage import read_lines

Amount = Annotated[float, msgspec.Meta(ge=0, le=1e18)]
"""Of seconds, or tokens a second."""


class LogLine(Gauge, frozen=True, kw_only=True):
    """What is needed of a line of a log; see `base.joblog`. A line of a step is a Gauge too, all others have none of
    its fields."""

    time: datetime
    event: str
    command: str
    host: str
    job: str = ""
    argv: list[str] = msgspec.field(default_factory=list)
    directory: str = ""
    settings: dict[str, Any] = msgspec.field(default_factory=dict)
    message: str = ""
    title: str = ""
    seconds: Amount = 0.0
    item: str = ""
    node: str = ""
    began: datetime | None = None
    ended: datetime | None = None
    tries: Count = 1
    idle: Amount | None = None
    peak_bytes: Count = 0
    exit_code: int | None = None


class RunLine(Record, frozen=True, forbid_unknown_fields=False):
    """What is needed of a line of metrics or validation."""

    step: Count
    time: datetime | None = None
    tokens: Count = 0
    skipped: Count = 0
    seconds: Amount = 0.0
    tokens_per_second: Amount = 0.0
    data_wait: Amount = 0.0
    loss: float | None = None
    val_loss: float | None = None


@dataclass(slots=True)
class LoggedJob:
    """One command. began, ended: seconds since 1970; exit_code: None when it was killed; problems: notices of failures
    and errors, as (time, message); directory: where it was typed; settings: the recipe it had; step: the one it is in,
    and how far, as a line."""

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
    step: str = ""
    idle: float | None = None
    peak_bytes: int = 0

    @property
    def refused(self) -> bool:
        """Whether it was refused, with exit code 2: the same command would be again."""
        return self.exit_code == PretokError.exit_code


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
    for line in read_log(path):
        now = line.time.timestamp()
        if job is None:
            job = LoggedJob(line.command, line.argv, line.host, line.job, now, now)
        job.ended = now
        match line.event:
            case "start":
                job.directory, job.settings = line.directory, line.settings
            case "step" | "progress":
                job.step = line.line()
            case "task":
                if line.began and line.ended:
                    ran = (line.began.timestamp(), line.ended.timestamp())
                    job.tasks.append(TaskRun(line.item, line.node, *ran, line.tries))
            case "task_failed":
                job.problems.append((now, f"{line.item}: {line.message}"))
            case "warning" | "error":
                job.problems.append((now, line.message))
            case "step_end":
                job.step = ""
                job.steps.append((line.title, line.seconds, line.counts))
            case "workers":
                job.idle, job.peak_bytes = line.idle, max(job.peak_bytes, line.peak_bytes)
            case "end":
                job.exit_code = line.exit_code
    return job


def read_log(path: Path) -> list[LogLine]:
    """The lines of a log. Raises IntegrityError."""
    return [read_record(LogLine, line, path) for line in read_lines(path)]


def read_run(folder: Path) -> RunHistory:
    """What a run wrote, however far it came. Raises IntegrityError."""
    metrics, validation = (_checked(folder / f"{name}.jsonl") for name in ("metrics", "validation"))
    return RunHistory(
        folder,
        metrics=metrics,
        validation=validation,
        attempts=read_lines(folder / "goodput.jsonl"),
        done=(folder / "done.json").exists(),
    )


def _checked(path: Path) -> list[dict[str, Any]]:
    """The lines of metrics or validation, whole: who shows them knows columns that RunLine has not."""
    lines = read_lines(path)
    for line in lines:
        read_record(RunLine, line, path)
    return lines
