"""Read the logs of jobs and the records of a training run.

Input: WORK/logs/*.jsonl (see `base.joblog`) and the folder of a run. Output: `LoggedJob`s, oldest first, with their
steps, tasks and failures; `RunHistory`. A last line that a kill cut short is left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import msgspec

from pretok.base.errors import PretokError
from pretok.base.joblog import LOGS
from pretok.base.records import Count, Record, read_record
from pretok.base.storage import read_lines

Amount = Annotated[float, msgspec.Meta(ge=0, le=1e18)]
"""Seconds, or tokens per second."""


class LogLine(Record, frozen=True, forbid_unknown_fields=False):
    """The fields used here of a line of a log; see `base.joblog`."""

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
    tries: Count = 1
    idle: Amount | None = None
    peak_bytes: Count = 0
    exit_code: int | None = None


class RunLine(Record, frozen=True, forbid_unknown_fields=False):
    """The fields used here of a line of metrics or validation."""

    step: Count
    time: datetime | None = None
    tokens: Count = 0
    skipped: Count = 0
    seconds: Amount = 0.0
    tokens_per_second: Amount = 0.0
    data_wait: Amount = 0.0
    loss: float | None = None
    val_loss: float | None = None


class LoggedJob:
    """One command, from the lines of its log.

    began, ended: seconds since 1970; exit_code: None if it was killed; tasks: those that succeeded; problems: warnings,
    failures and errors, as (time, message); directory: where it was started; settings: its recipe; step: the
    progress of the current step, as a line.
    """

    def __init__(self, lines: Sequence[LogLine]) -> None:
        def of(*events: str) -> list[LogLine]:
            return [line for line in lines if line.event in events]

        first = lines[0]
        self.command, self.argv, self.host, self.slurm_job = first.command, first.argv, first.host, first.job
        self.directory, self.settings = first.directory, first.settings
        self.began, self.ended = first.time.timestamp(), lines[-1].time.timestamp()
        self.exit_code = next((line.exit_code for line in of("end")), None)
        self.tasks = of("task")
        self.problems = [
            (line.time.timestamp(), f"{line.item}: {line.message}" if line.item else line.message)
            for line in of("task_failed", "warning", "error")
        ]
        latest = of("step", "progress", "step_end")[-1:]
        self.step = "".join(line.message or line.title for line in latest if line.event != "step_end")
        self.idle = next((line.idle for line in reversed(lines) if line.event == "workers"), None)
        self.peak_bytes = max(line.peak_bytes for line in lines)

    @property
    def refused(self) -> bool:
        """Whether it was refused with exit code 2, as the same command would be again."""
        return self.exit_code == PretokError.exit_code


@dataclass(slots=True)
class RunHistory:
    """The records of a training run, as lines of its files."""

    folder: Path
    metrics: list[dict[str, Any]]
    validation: list[dict[str, Any]]
    attempts: list[dict[str, Any]]
    done: bool
    """Whether the run is complete."""

    @property
    def energy(self) -> dict[str, float | None]:
        """MWh at the devices, PUE, kg CO2e per kWh (of the last start) and t CO2e; None what a start did not say."""
        last = self.attempts[-1] if self.attempts else {}
        result: dict[str, float | None] = {"pue": last.get("pue"), "carbon": last.get("carbon")}
        for name in ("mwh", "tco2e"):
            known = [attempt[name] for attempt in self.attempts if attempt.get(name) is not None]
            result[name] = sum(known) if known and len(known) == len(self.attempts) else None
        return result


def read_jobs(work: Path) -> list[LoggedJob]:
    """Read the logs of all jobs, oldest first. Raises IntegrityError."""
    logs = [
        [read_record(LogLine, line, path) for line in read_lines(path)]
        for path in sorted((work / LOGS).glob("*.jsonl"))
    ]
    return sorted((LoggedJob(lines) for lines in logs if lines), key=lambda job: job.began)


def read_run(folder: Path) -> RunHistory:
    """Read the records of a run, finished or not. Raises IntegrityError."""
    metrics, validation = (_checked(folder / f"{name}.jsonl") for name in ("metrics", "validation"))
    return RunHistory(
        folder,
        metrics=metrics,
        validation=validation,
        attempts=read_lines(folder / "goodput.jsonl"),
        done=(folder / "done.json").exists(),
    )


def _checked(path: Path) -> list[dict[str, Any]]:
    """Read the lines of metrics or validation with all fields, and check those of RunLine."""
    lines = read_lines(path)
    for line in lines:
        read_record(RunLine, line, path)
    return lines
