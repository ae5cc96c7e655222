"""status: what is finished, unfinished, failed or running in WORK, and the next command.

Input: WORK, or the folder of a run. Output: a row for each result that exists or was begun. It reads only files that
jobs leave: results, plans and states, locks and logs.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from msgspec import field

from pretok.base.errors import PretokError
from pretok.base.failures import LeftOut
from pretok.base.lock import Holder, holder_of
from pretok.base.records import Record, read_record, replace
from pretok.base.storage import read_json
from pretok.base.units import duration, human, listed, plural, unit_words
from pretok.overview.history import LoggedJob, read_jobs, read_run
from pretok.read.recognise import RESULTS
from pretok.read.rejects import DAMAGED
from pretok.shards.annotations import find_annotations, outdated_parts, unknown_sources
from pretok.shards.manifest import STATE, UNFINISHED_REMOVAL, Manifest, has_manifest, load_manifest
from pretok.shards.unfinished import unfinished
from pretok.stream.mix_file import load_mix
from pretok.stream.segments import CONFIG, read_settings
from pretok.stream.tapes import FOLDER, SideTape

NEWEST = 60
"""Latest steps of a run, from which its speed is computed."""
STEPS = ("count", "build-vocab", "tokenize", "mix", "run")
"""Commands that produce a result in WORK."""
COUNTS, REPORT = "counts.json", "report.json"
"""Files that say that counts and a vocabulary are complete."""
SHOWN = 5
"""Names in a row."""
RUN = "run"
"""Folder in WORK of the training run that `pretok run` and `pretok submit` name."""
FINISHED, UNFINISHED, FAILED, RUNNING = "finished", "unfinished", "failed", "in work"


class _Source(Record, frozen=True, forbid_unknown_fields=False):
    """The fields used here of a source in the settings of a log."""

    field: tuple[str, ...]
    inputs: tuple[str, ...]


class _Part(Record, frozen=True, forbid_unknown_fields=False):
    """The field used here of a source of counts."""

    left_out: tuple[LeftOut, ...] = ()


class _Made(Record, frozen=True, forbid_unknown_fields=False):
    """The fields used here of counts and of the report of a vocabulary."""

    left_out: tuple[LeftOut, ...] = ()
    sources: dict[str, _Part] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StepStatus:
    """A result of a job, or a part of one."""

    what: str
    state: str
    done: int | None = None
    """Partitions, or steps of a run; None if neither is counted."""
    planned: int | None = None
    """The same, of the whole."""
    detail: str = ""
    next: str = ""
    """The command to type, "" for none."""


def status_of(target: Path) -> list[StepStatus]:
    """List the results of WORK in the order of the steps, or that of a run.

    A damaged one counts as failed, with the reason.
    """
    if (target / CONFIG).exists():
        return [_run(target)]
    logs = _Logs(target, [])
    rows: list[StepStatus] = []
    try:
        logs = _Logs(target, [job for job in read_jobs(target) if not job.refused])
    except PretokError as error:
        rows.append(StepStatus("logs", FAILED, detail=f"{error}; delete that file"))
    rows += [
        *_simple("words", target / "counts", COUNTS, logs, "count", "build-vocab", "run"),
        *_vocabulary(target, logs),
        *_shards(target / "shards", logs),
        *_mix(target / "mix.json", target / "shards", logs),
    ]
    if (logs.run / CONFIG).exists():
        rows.append(_run(logs.run))
    rows += _whole_run(logs, rows)
    if all(row.state == FINISHED for row in rows):
        last = rows.pop() if rows else StepStatus(str(target), UNFINISHED, detail="no results yet")
        rows.append(replace(last, next=_after(logs)))
    return rows


def work_around(folder: Path) -> Path | None:
    """Find the WORK of which a folder is a part, such as WORK/shards/it; None if there is none."""
    inner = folder.absolute()
    for outer in inner.parents:
        if inner.name in RESULTS and any(row.what != str(outer) for row in status_of(outer)):
            return outer
        inner = outer
    return None


def next_of(rows: Sequence[StepStatus]) -> str:
    """Return the next command: that of the first unfinished step; empty while a job is running."""
    if any(row.state == RUNNING for row in rows):
        return ""
    return next((row.next for row in rows if row.next), "")


@dataclass(frozen=True, slots=True)
class _Logs:
    """The jobs of WORK that were not refused, oldest first."""

    work: Path
    jobs: Sequence[LoggedJob]

    def newest(self, *commands: str) -> LoggedJob | None:
        """Find the newest job of any of the commands."""
        return next((job for job in reversed(self.jobs) if job.command in commands), None)

    @property
    def run(self) -> Path:
        """RUN: in WORK, or in `fast` of the recipe of the newest job that names one (`pretok submit`)."""
        if (self.work / RUN / CONFIG).exists():
            return self.work / RUN
        for job in reversed(self.jobs):
            if fast := job.settings.get("slurm", {}).get("fast"):
                return Path(job.directory, fast, RUN)
        return self.work / RUN

    def at_work(self, holder: Holder, *commands: str) -> str:
        """Say who holds a folder, and the progress of its latest step."""
        job = self.newest(*commands)
        if job is None or not job.step or job.exit_code is not None:
            return str(holder)
        return f"{holder}; {job.step}, {duration(max(0.0, time.time() - job.ended))} ago"

    def again(self, *commands: str) -> str:
        """Return the command line of the newest job of these commands.

        If there is none, the first command with the inputs of another job, if it is a step.
        """
        if (job := self.newest(*commands)) and job.argv:
            return _typed(job, job.argv)
        if commands[0] not in STEPS:
            return ""
        job = self.newest(*STEPS)
        inputs = _inputs(job) if job else []
        if job is None or not inputs:
            return f"pretok {commands[0]} RECIPE.toml | NAME=GLOB ... --out {shlex.quote(str(self.work))}"
        return _typed(job, [commands[0], *inputs, "--out", str(self.work.absolute())])


def _whole_run(logs: _Logs, rows: Sequence[StepStatus]) -> Iterator[StepStatus]:
    """Yield a row for `pretok run` if it is between two steps or ended before its last one.

    rows: those of its steps.
    """
    job = logs.newest(*STEPS)
    if job is None or job.command != "run" or job.exit_code == 0 or any(row.state == RUNNING for row in rows):
        return
    if holder := holder_of(logs.work / "shards"):  # `run` holds it from its first step to its last
        yield StepStatus("run", RUNNING, detail=logs.at_work(holder, "run"))
    else:
        yield StepStatus("run", UNFINISHED, detail=_ended(job), next=logs.again("run"))


def _after(logs: _Logs) -> str:
    """Return the command to type when everything that exists is finished: the next step, with the same inputs."""
    shards, mix = logs.work / "shards", logs.work / "mix.json"
    run = logs.run
    if (run / CONFIG).exists():
        return ""
    if mix.exists():
        train = ["train", "--shards", str(shards), "--mix", str(mix), "--out", str(run), "--model", "debug"]
        return shlex.join(train)
    if has_manifest(shards):
        return _first_mix(shards, mix)
    if (logs.work / "vocab").exists() or logs.newest("tokenize", "run"):
        return logs.again("tokenize", "run")
    return logs.again("build-vocab")


def _first_mix(shards: Path, mix: Path) -> str:
    return shlex.join(["pretok", "mix", str(shards), "--out", str(mix)]) + " --weights natural"


def _inputs(job: LoggedJob) -> list[str]:
    """Return the recipe of a job, or its inputs as NAME=GLOB."""
    if recipe := [word for word in job.argv if word.endswith(".toml") and "=" not in word]:
        return recipe[:1]
    sources = read_record(dict[str, _Source], job.settings.get("sources", {}), f"the log of {job.command}")
    chosen = {name: source.field for name, source in sources.items() if source.field != ("text",)}
    fields = [f"{name}={field}" for name, fields in chosen.items() for field in fields]
    inputs = [f"{name}={path}" for name, source in sources.items() for path in source.inputs]
    return [*inputs, *(word for name in fields for word in ("--field", name))]


def _typed(job: LoggedJob, argv: Sequence[str]) -> str:
    """Write a command line, after a `cd` to the folder where the job was started."""
    there = f"cd {shlex.quote(job.directory)} && " if job.directory not in ("", str(Path.cwd())) else ""
    return f"{there}pretok {shlex.join(argv)}"


def _ended(job: LoggedJob | None) -> str:
    """Say how a job ended, if it did not succeed."""
    if job is None or job.exit_code == 0:
        return ""
    reason = f": {job.problems[-1][1].splitlines()[0]}" if job.problems else ""
    return ("killed" if job.exit_code is None else f"ended with exit code {job.exit_code}") + reason


def _simple(what: str, folder: Path, file: str, logs: _Logs, *commands: str) -> Iterator[StepStatus]:
    """Yield the row of a folder that the commands write, which is complete when it has `file`."""
    # The lock first: a running job has unfinished files, which would look like those of a killed one.
    if holder := holder_of(folder):
        yield StepStatus(what, RUNNING, detail=logs.at_work(holder, *commands))
    elif (folder / file).exists():
        left_out = _left_out(folder / file) if file in (COUNTS, REPORT) else []
        yield StepStatus(what, FINISHED, detail=f"{folder}{_without(left_out)}")
    elif folder.exists():
        detail = _in_part(folder / STATE) or _ended(logs.newest(*commands))
        yield StepStatus(what, UNFINISHED, detail=detail, next=logs.again(*commands))


def _left_out(file: Path) -> list[str]:
    """Return the damaged files that counts or a vocabulary were made without."""
    try:
        made = read_record(_Made, read_json(file), file)
    except PretokError:  # who reads the result says so
        return []
    left_out = [*made.left_out, *(damaged for part in made.sources.values() for damaged in part.left_out)]
    return [damaged.file for damaged in left_out]


def _without(files: Sequence[str]) -> str:
    return f"; left out, damaged: {listed([Path(file).name for file in files], SHOWN)}" if files else ""


def _in_part(state: Path) -> str:
    """List the files that unfinished work could not read to their end, in words."""
    names = [Path(file).name for path in sorted(state.glob(f"*{DAMAGED}")) for file in read_json(path)]
    return f"read in part: {listed(names, SHOWN)}" if names else ""


def _vocabulary(target: Path, logs: _Logs) -> Iterator[StepStatus]:
    """Yield the row of the vocabulary.

    Our own is complete when it has its report; a tokenizer that was copied has none.
    """
    commands = ("build-vocab", "run")
    ours = logs.newest(*commands) is not None and (target / "counts").exists()
    file = REPORT if ours else "tokenizer.json"
    yield from _simple("vocabulary", target / "vocab", file, logs, *commands)


def _shards(folder: Path, logs: _Logs) -> Iterator[StepStatus]:
    holder = holder_of(folder)
    ended, again = _ended(logs.newest("tokenize", "run")), logs.again("tokenize", "run")
    if not holder and (folder / UNFINISHED_REMOVAL).exists():
        yield StepStatus("shards", UNFINISHED, detail="a removal was stopped", next=logs.again("remove"))
        return
    try:
        manifest = load_manifest(folder).sized() if has_manifest(folder) else None
        planned = unfinished(folder)
    except PretokError as error:
        look = shlex.join(["pretok", "verify", str(folder)])
        yield StepStatus("shards", FAILED, detail=str(error), next=look)
        return
    sealed = set(manifest.sources) if manifest else set()
    for unit in sorted(sealed | planned.keys()):
        name = unit_words(unit)
        done, partitions = planned.get(unit, (None, None))
        if holder and (unit in planned or not sealed):
            detail = logs.at_work(holder, "tokenize", "run")
            yield StepStatus(f"shards of {name}", RUNNING, done, partitions, detail)
        elif unit in planned:
            detail = _in_part(folder / STATE / unit) or ended
            yield StepStatus(f"shards of {name}", UNFINISHED, done, partitions, detail, again)
        elif manifest:
            counts, appends = manifest.sources[unit], manifest.appends(unit)
            detail = f"{counts.tokens:,} tokens in {plural(counts.documents, 'document')}"
            detail += f", appended to {plural(appends, 'time')}" if appends else ""
            detail += _without([damaged.file for damaged in counts.left_out])
            yield StepStatus(f"shards of {name}", FINISHED, detail=detail)
    if not sealed and not planned and folder.exists():
        state = RUNNING if holder else UNFINISHED
        yield StepStatus("shards", state, detail=str(holder or ended), next="" if holder else again)
    if manifest:
        yield from _annotations(manifest, logs)


def _annotations(manifest: Manifest, logs: _Logs) -> Iterator[StepStatus]:
    again = logs.again("annotate")
    try:
        found = find_annotations(manifest.folder)
    except PretokError as error:
        yield StepStatus("annotations", FAILED, detail=str(error), next=again)
        return
    for notes in found:
        what = f"annotations {notes.name}"
        problems, unknown = outdated_parts(manifest, notes), unknown_sources(manifest, notes)
        if problems:
            yield StepStatus(what, FAILED, detail=problems[0], next=again)
        elif unknown:
            yield StepStatus(what, UNFINISHED, detail=f"not for {', '.join(unknown)}", next=again)
        else:
            detail = f"{notes.matched:,} of {plural(notes.documents, 'document')}"
            yield StepStatus(what, FINISHED, detail=detail)


def _mix(path: Path, shards: Path, logs: _Logs) -> Iterator[StepStatus]:
    if not path.exists():
        return
    other = next(other for n in count(2) if not (other := path.with_stem(f"{path.stem}-{n}")).exists())
    try:
        mix = load_mix(path)
        for source in mix.sources:
            if source.tape:
                SideTape(path.parent / FOLDER, source.tape)
        manifest = load_manifest(shards) if has_manifest(shards) else None
    except PretokError as error:
        yield StepStatus("mix", FAILED, detail=str(error), next=_first_mix(shards, other))
        return
    if manifest is None or manifest.was(mix.manifest) is None:
        detail = f"made for shards with fingerprint {mix.manifest}, not for {shards}"
        again = _first_mix(shards, other) if manifest else logs.again("tokenize", "run")
        yield StepStatus("mix", FAILED, detail=detail, next=again)
    else:
        detail = f"{mix.predicted:,} tokens in {plural(mix.length, 'sequence')}"
        yield StepStatus("mix", FINISHED, detail=detail + (", packed" if mix.packs else ""))


def _run(run: Path) -> StepStatus:
    """Return the row of a training run; `done` counts the steps in its metrics."""
    what = f"run {run.name}"
    try:
        planned = read_settings(run).resolved.steps
        history = read_run(run)
    except PretokError as error:
        return StepStatus(what, FAILED, detail=str(error))
    newest = history.metrics[-NEWEST:]
    done = newest[-1]["step"] if newest else 0
    if holder := holder_of(run):
        detail = f"{holder}; {_pace(newest, planned - done)}" if newest else str(holder)
        return StepStatus(what, RUNNING, done, planned, detail)
    if history.done:
        return StepStatus(what, FINISHED, done, planned)
    saved = sorted((run / "checkpoints").glob("step-*/meta.json"))
    detail = f"newest checkpoint {saved[-1].parent.name}" if saved else "no checkpoint"
    return StepStatus(what, UNFINISHED, done, planned, f"{detail}; run the same train command again")


def _pace(newest: Sequence[Mapping[str, Any]], left: int) -> str:
    """Say the loss of the last step, the speed of the latest ones, and the time left."""
    spent = sum(step.get("seconds", 0.0) for step in newest) or 1e-9
    rate = sum(step.get("tokens_per_second", 0.0) * step.get("seconds", 0.0) for step in newest) / spent
    wait = sum(step.get("data_wait", 0.0) for step in newest) / spent
    loss = newest[-1].get("loss")
    shown = "none" if loss is None else f"{loss:.4f}"
    pace = f"loss {shown}, {human(rate)} tokens/s, {wait:.1%} of the time waiting for data"
    return pace + (f", ETA {duration(left * spent / len(newest))}" if left > 0 else "")
