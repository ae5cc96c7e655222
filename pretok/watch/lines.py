"""How far jobs and runs are -> lines for a terminal or a pipe.

Input: WORK or RUN, and the time. Output: lines; nothing is kept between two calls, so that what watches may be ended
and begun at any time. A job adds a line to its log at least every minute (`pretok.base.joblog`), a run one a step to
metrics.jsonl. A file that vanishes while it is read is left out.
"""

from __future__ import annotations

import contextlib
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

from pretok.base.errors import IntegrityError
from pretok.base.gauge import OF_SOURCE
from pretok.base.history import LogLine, RunLine, read_log
from pretok.base.joblog import LOGS
from pretok.base.records import read_record
from pretok.base.storage import parse_line
from pretok.base.units import duration, human, human_bytes, plural
from pretok.stream.segments import CONFIG, read_settings

SILENT_SECONDS = 150.0
"""Without a sign for longer a job or a run is no longer said to be at work."""
BLOCKS = "▁▂▃▄▅▆▇█"
LOSSES = 60
"""Newest steps that are drawn and that rates are of."""
TAIL_BYTES = 1 << 17
"""Of the end of metrics.jsonl: some hundred steps."""
BAR = 20
SHOWN = 5
SQUEUE_SECONDS = 20.0


def finished(target: Path) -> bool:
    """Whether nothing more will come: a run that has taken its last step. Jobs may come to WORK at any time."""
    return (target / "done.json").exists()


def watch_lines(target: Path, now: float) -> list[str]:
    """All there is to say of WORK or RUN at a time (seconds since 1970)."""
    if (target / CONFIG).exists():
        return list(_run(target, now))
    logs = sorted((target / LOGS).glob("*.jsonl"), key=lambda path: path.stem)
    newest = {re.sub(r"-\d{8}-\d{6}(-\d+)?$", "", path.stem): path for path in logs}
    lines = [line for path in newest.values() for line in _job(path, now)]
    lines = lines or ["no job is in a step here; pretok status says what is finished"]
    chains = sorted((target / "slurm").glob("*/chain.tsv"), key=lambda path: path.stat().st_mtime)
    return lines + [line for path in chains[-1:] for line in _chain(path)]


def _job(path: Path, now: float) -> Iterator[str]:
    """What the log of a job says while it is in a step: its newest `progress`, and its tasks."""
    try:
        events = read_log(path)
    except (OSError, IntegrityError):  # not a log, or gone
        return
    steps = [at for at, event in enumerate(events) if event.event in ("step", "step_end", "end")]
    if not steps or events[steps[-1]].event != "step":
        return
    events = events[steps[-1] :]
    step, last = next(event for event in reversed(events) if event.event in ("step", "progress")), events[-1]
    where = f"{last.host}, Slurm job {last.job}" if last.job else last.host
    yield f"{last.command} on {where}: {_age(last.time.timestamp(), now)}"
    yield f"  {step.line()}"
    for name, size in step.sources.items():
        done = step.done(OF_SOURCE + name)
        share = min(1.0, done / size) if size else 0.0
        yield f"  {name}: {_bar(share)} {human_bytes(done)} of about {human_bytes(size)}"
    yield from _tasks(events)


def _tasks(events: Sequence[LogLine]) -> Iterator[str]:
    """Of the tasks of a step: workers, and how many are done or failed, these by name."""
    begins = [at for at, event in enumerate(events) if event.event == "tasks"]
    if not begins:
        return
    step, since = events[begins[-1]], events[begins[-1] :]
    done = [event for event in since if event.event == "task"]
    failed = [event for event in since if event.event == "task_failed"]
    again = sum(event.tries - 1 for event in [*done, *failed])
    told = f"  {plural(step.workers, 'worker')}; {step.what}s: {len(done):,} of {step.tasks:,} done"
    yield told + f", {len(failed):,} failed, {again:,} tried again"
    for event in failed[-SHOWN:]:
        yield f"  failed: {event.item}: {event.message}"


def _age(time: float, now: float, silent: float = SILENT_SECONDS) -> str:
    """How long ago a sign of life was, of what gives one more often than every `silent` seconds."""
    seconds = max(0.0, now - time)
    if seconds > silent:
        return f"no sign for {duration(seconds)}; killed, or its file system hangs"
    return f"{seconds:.0f} s ago"


def _bar(share: float) -> str:
    full = round(BAR * share)
    return "█" * full + "░" * (BAR - full)


def _chain(record: Path) -> Iterator[str]:
    """The jobs of the newest chain, as the queue has them; without Slurm the stages that are marked as done."""
    links = [line.split("\t") for line in record.read_text(encoding="utf-8").splitlines()]
    links = [link for link in links if len(link) == 3]
    queue = _queue([link[0] for link in links])
    done = {path.name.removeprefix("done-") for path in record.parent.glob("done-*")}
    yield f"chain {record.parent.name}:"
    for job, stage, link in links:
        state = (
            "done" if stage in done else (queue or {}).get(job, "" if queue is None else "not in the queue")
        )
        yield f"  {stage} {link} (job {job}){f': {state}' if state else ''}"


def _queue(jobs: Sequence[str]) -> dict[str, str] | None:
    """Job -> its state, time left and reason; None where there is no Slurm, or it does not answer."""
    if not jobs or shutil.which("squeue") is None:
        return None
    command = ["squeue", "--noheader", "--format=%i|%T|%L|%r", f"--jobs={','.join(jobs)}"]
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        answer = subprocess.run(command, capture_output=True, text=True, timeout=SQUEUE_SECONDS, check=False)
        fields = [line.strip().split("|") for line in answer.stdout.splitlines()]
        return {
            job: f"{state.lower()}, {left} left" if state == "RUNNING" else f"{state.lower()} ({reason})"
            for job, state, left, reason in (line for line in fields if len(line) == 4)
        }
    return None


def _run(run: Path, now: float) -> Iterator[str]:
    """Step, rate, time left, and the newest losses."""
    steps, records = read_settings(run).resolved.steps, _tail(run / "metrics.jsonl")
    if not records:
        yield f"run {run.name}: no step of {steps:,} is done yet"
        return
    last, newest = records[-1], records[-LOSSES:]
    spent = sum(record.seconds for record in newest) or 1e-9
    seconds = spent / len(newest)
    rate = sum(record.tokens_per_second * record.seconds for record in newest) / spent
    age = _age(last.time.timestamp() if last.time else 0.0, now, max(SILENT_SECONDS, 10 * seconds))
    sign = "finished" if finished(run) else age
    left = f", ETA {duration((steps - last.step) * seconds)}" if last.step < steps else ""
    share = 100 * last.step // steps if steps else 0
    yield f"run {run.name}: step {last.step:,} of {steps:,} ({share}%), {sign}"
    yield f"  {seconds:.3g} s a step, {human(rate)} tokens/s{left}; {human(last.tokens)} tokens done"
    losses = [record.loss for record in newest if record.loss is not None]
    if losses:
        span = f"{min(losses):.4f} to {max(losses):.4f} over {plural(len(losses), 'step')}"
        yield f"  loss {losses[-1]:.4f} {blocks(losses)} {span}"
    waited = sum(record.data_wait for record in newest)
    yield f"  skipped {last.skipped:,}; data wait {waited / spent:.1%} of the time"
    for record in _tail(run / "validation.jsonl")[-1:]:
        if record.val_loss is not None:
            yield f"  validation loss {record.val_loss:.4f} at step {record.step:,}"


def _tail(path: Path) -> list[RunLine]:
    """The newest lines of a file that a run adds to; empty where there is none. Half lines at its ends are left out.
    Raises IntegrityError."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - TAIL_BYTES))
            data = file.read()
    except OSError:
        return []
    lines = data.split(b"\n")[0 if size <= TAIL_BYTES else 1 : -1]
    return [read_record(RunLine, parse_line(line, f"a line of {path}"), path) for line in lines]


def blocks(values: Sequence[float]) -> str:
    """A line of blocks, the lowest value the lowest."""
    low, high = min(values), max(values)
    width = (high - low) or 1.0
    return "".join(BLOCKS[min(len(BLOCKS) - 1, int((value - low) / width * len(BLOCKS)))] for value in values)
