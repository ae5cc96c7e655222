"""status: what of WORK is finished, unfinished, failed or in work, and what to do next.

Input: WORK, or the folder of a run. Output: a row for each result that is there or was begun. Only files are read that
jobs leave: results, plans and states, locks and logs. What another job changes meanwhile is read as it is found.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from pretok.base.errors import PretokError
from pretok.base.history import LoggedJob, read_jobs, read_run
from pretok.base.joblog import LOGS, NOW
from pretok.base.lock import holder_of
from pretok.base.records import Record, read_record, replace
from pretok.base.units import plural
from pretok.shards.annotations import find_annotations, outdated_parts, unknown_sources
from pretok.shards.manifest import Manifest, has_manifest, load_manifest, unit_words
from pretok.shards.unfinished import unfinished
from pretok.stream.mix_file import load_mix
from pretok.stream.segments import CONFIG, read_settings
from pretok.stream.side_file import FOLDER, SideFile
from pretok.watch.lines import SILENT_SECONDS

TRIES, APART = 3, 0.1
"""How often, and how many seconds apart, what another job changes is read before it counts as damaged."""
T = TypeVar("T")
STEPS = ("count", "build-vocab", "tokenize", "mix", "run")
"""Commands that bring WORK further."""
FINISHED, UNFINISHED, FAILED, RUNNING = "finished", "unfinished", "failed", "in work"


class _Source(Record, frozen=True, forbid_unknown_fields=False):
    """What is needed of a source in the settings that a log has."""

    field: str
    inputs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class StepStatus:
    """A result of a job, or a part of one. done, planned: partitions, or steps of a run, None where nobody counts them;
    next: what to do, "" for nothing."""

    what: str
    state: str
    done: int | None = None
    planned: int | None = None
    detail: str = ""
    next: str = ""


def status_of(target: Path) -> list[StepStatus]:
    """Results of WORK in the order of the steps, or that of a run. What is damaged is failed, and says why."""
    if (target / CONFIG).exists():
        return [_run(target)]
    jobs: list[LoggedJob] = []
    found: list[StepStatus] = []
    try:
        jobs = settled(lambda: read_jobs(target))
    except PretokError as error:
        found.append(StepStatus("logs", FAILED, detail=str(error), next="delete that file"))
    found += [
        *_simple("words", target / "counts", "counts.json", _newest(jobs, "count", "build-vocab", "run")),
        *_vocabulary(target, _newest(jobs, "build-vocab", "run")),
        *_shards(target / "shards", _newest(jobs, "tokenize", "run")),
        *_mix(target / "mix.json", target / "shards", _newest(jobs, "mix")),
    ]
    found += _whole_run(target, jobs, found)
    if found and all(one.state == FINISHED for one in found):
        found[-1] = replace(found[-1], next=_after(target, jobs))
    return found or [
        StepStatus(str(target), UNFINISHED, next="nothing is here yet; pretok plan, then pretok run")
    ]


def _newest(jobs: Sequence[LoggedJob], *commands: str) -> LoggedJob | None:
    """The newest job of any of the commands."""
    return next((job for job in reversed(jobs) if job.command in commands), None)


def _whole_run(target: Path, jobs: Sequence[LoggedJob], found: Sequence[StepStatus]) -> Iterator[StepStatus]:
    """`pretok run` where it is between two steps, or ended before its last one; its steps say the rest."""
    job = _newest(jobs, *STEPS)
    if (
        job is None
        or job.command != "run"
        or job.exit_code == 0
        or any(one.state == RUNNING for one in found)
    ):
        return
    signs = [path.stat().st_mtime for path in (target / LOGS).glob(f"run-*{NOW}")]
    if job.exit_code is None and signs and time.time() - max(signs) < SILENT_SECONDS:
        yield StepStatus("run", RUNNING, detail=f"on {job.host}")
    else:
        yield StepStatus(
            "run", UNFINISHED, detail=_ended(job), next=_again(job, "run the same command again")
        )


def _after(target: Path, jobs: Sequence[LoggedJob]) -> str:
    """What to type when all that is there is finished: the next step over the same inputs."""
    shards, mix = target / "shards", target / "mix.json"
    if mix.exists():
        return (
            shlex.join(["train", "--shards", str(shards), "--mix", str(mix), "--out", "RUN"])
            + " --model debug"
        )
    if has_manifest(shards):
        return shlex.join(["pretok", "mix", str(shards), "--out", str(mix)]) + " --weights natural"
    step = "tokenize" if (target / "vocab").exists() else "build-vocab"
    job = _newest(jobs, *STEPS)
    inputs = _inputs(job) if job else []
    if job is None or not inputs:
        return f"pretok {step} RECIPE.toml | NAME=GLOB ... --out {shlex.quote(str(target))}"
    return _typed(job, [step, *inputs, "--out", str(target.absolute())])


def _inputs(job: LoggedJob) -> list[str]:
    """The recipe of a job, or what it read as NAME=GLOB."""
    if recipe := [word for word in job.argv if word.endswith(".toml") and "=" not in word]:
        return recipe[:1]
    sources = read_record(dict[str, _Source], job.settings.get("sources", {}), f"the log of {job.command}")
    fields = {source.field for source in sources.values()} - {"text"}
    inputs = [f"{name}={path}" for name, source in sources.items() for path in source.inputs]
    return [*inputs, *(word for name in fields for word in ("--field", name))]


def settled(read: Callable[[], T]) -> T:
    """What `read` gives, which is tried again where a job has just put a file in the place of another, or taken it."""
    for _ in range(TRIES):
        try:
            return read()
        except (PretokError, OSError):
            time.sleep(APART)
    return read()


def _again(job: LoggedJob | None, otherwise: str) -> str:
    """The command to run again, as it was typed."""
    return _typed(job, job.argv) if job and job.argv else otherwise


def _typed(job: LoggedJob, argv: Sequence[str]) -> str:
    """A command whose paths start where the job was typed."""
    there = f"cd {shlex.quote(job.directory)} && " if job.directory not in ("", str(Path.cwd())) else ""
    return f"{there}pretok {shlex.join(argv)}"


def _ended(job: LoggedJob | None) -> str:
    """How the newest job of a command ended, if not well."""
    if job is None or job.exit_code == 0:
        return ""
    told = f": {job.problems[-1][1].splitlines()[0]}" if job.problems else ""
    return ("killed" if job.exit_code is None else f"ended with exit code {job.exit_code}") + told


def _simple(what: str, folder: Path, file: str, job: LoggedJob | None) -> Iterator[StepStatus]:
    """A folder that one file makes complete."""
    if holder := holder_of(folder):
        yield StepStatus(what, RUNNING, detail=str(holder))
    elif (folder / file).exists():
        yield StepStatus(what, FINISHED, detail=str(folder))
    elif folder.exists():
        yield StepStatus(what, UNFINISHED, detail=_ended(job), next=_again(job, "run the same command again"))


def _vocabulary(target: Path, job: LoggedJob | None) -> Iterator[StepStatus]:
    """A vocabulary of ours ends with its report; a tokenizer that was put there has none."""
    ours = job is not None and (target / "counts").exists()
    yield from _simple("vocabulary", target / "vocab", "report.json" if ours else "tokenizer.json", job)


def _shards(folder: Path, job: LoggedJob | None) -> Iterator[StepStatus]:
    holder = holder_of(folder)
    again = _again(job, "run pretok tokenize again")
    try:
        manifest = settled(lambda: load_manifest(folder) if has_manifest(folder) else None)
        planned = settled(lambda: unfinished(folder))
    except PretokError as error:
        yield StepStatus("shards", FAILED, detail=str(error), next="pretok verify says what is wrong")
        return
    sealed = set(manifest.sources) if manifest else set()
    for unit in sorted(sealed | planned.keys()):
        name = unit_words(unit)
        done, partitions = planned.get(unit, (None, None))
        failures = [f for f in manifest.failed if f.source == unit] if manifest else []
        if holder and (unit in planned or not sealed):
            yield StepStatus(f"shards of {name}", RUNNING, done, partitions, str(holder))
        elif failures:
            first = f"{failures[0].file}: {failures[0].error}"
            detail = f"{plural(len(failures), 'input')} not read to the end; {first}"
            yield StepStatus(f"shards of {name}", FAILED, done, partitions, detail, f"fix them, then {again}")
        elif unit in planned:
            yield StepStatus(f"shards of {name}", UNFINISHED, done, partitions, _ended(job), again)
        elif manifest:
            counts, appends = manifest.sources[unit], manifest.appends(unit)
            told = f"{counts.tokens:,} tokens in {plural(counts.documents, 'document')}"
            told += f", appended to {plural(appends, 'time')}" if appends else ""
            yield StepStatus(f"shards of {name}", FINISHED, detail=told)
    if not sealed and not planned and folder.exists():
        state = RUNNING if holder else UNFINISHED
        yield StepStatus("shards", state, detail=str(holder or _ended(job)), next="" if holder else again)
    if manifest:
        yield from _annotations(manifest)


def _annotations(manifest: Manifest) -> Iterator[StepStatus]:
    try:
        found = find_annotations(manifest.folder)
    except PretokError as error:
        yield StepStatus("annotations", FAILED, detail=str(error), next="pretok annotate again")
        return
    for one in found:
        what = f"annotations {one.name}"
        problems, unknown = outdated_parts(manifest, one), unknown_sources(manifest, one)
        counts = one.record.counts
        if problems:
            yield StepStatus(what, FAILED, detail=problems[0], next="pretok annotate again")
        elif unknown:
            told = f"know nothing of {', '.join(unknown)}"
            yield StepStatus(what, UNFINISHED, detail=told, next="pretok annotate again")
        else:
            told = f"{counts.documents_matched:,} of {plural(counts.documents, 'document')}"
            yield StepStatus(what, FINISHED, detail=told)


def _mix(path: Path, shards: Path, job: LoggedJob | None) -> Iterator[StepStatus]:
    if not path.exists():
        return
    try:
        mix = settled(lambda: load_mix(path))
        for digest in {one for source in mix.sources for one in (*source.members, *source.packed)}:
            SideFile(path.parent / FOLDER, digest)
        manifest = settled(lambda: load_manifest(shards) if has_manifest(shards) else None)
    except PretokError as error:
        yield StepStatus("mix", FAILED, detail=str(error), next=_again(job, "make it again with pretok mix"))
        return
    if manifest is None or manifest.was(mix.manifest) is None:
        detail = f"made for shards with fingerprint {mix.manifest}, which {shards} has not"
        yield StepStatus(
            "mix", FAILED, detail=detail, next=_again(job, "make it again, or pretok mix --continue")
        )
    else:
        yield StepStatus(
            "mix",
            FINISHED,
            detail=f"{mix.predicted:,} tokens in {plural(mix.length, 'sequence')}{', packed' if mix.packs else ''}"
            + (f", {mix.learned:,} of them learned" if mix.learned < mix.predicted else ""),
        )


def _run(run: Path) -> StepStatus:
    """A training run. done: steps on record."""
    what = f"run {run.name}"
    try:
        planned = settled(lambda: read_settings(run)).resolved.steps
    except PretokError as error:
        return StepStatus(what, FAILED, detail=str(error))
    try:
        history = settled(lambda: read_run(run))
    except PretokError as error:
        return StepStatus(what, FAILED, detail=str(error))
    done = history.metrics[-1]["step"] if history.metrics else 0
    if holder := holder_of(run):
        return StepStatus(what, RUNNING, done, planned, str(holder))
    if history.done:
        return StepStatus(what, FINISHED, done, planned)
    saved = sorted((run / "checkpoints").glob("step-*/meta.json"))
    detail = f"newest checkpoint {saved[-1].parent.name}" if saved else "no checkpoint"
    return StepStatus(what, UNFINISHED, done, planned, detail, "run the same train command again")
