"""The files of lines that a run leaves: metrics, what its time was spent on, what was changed, what its steps read.

Input: records, the phases of a run, what it is doing now. Output: a line for each record with the time, the host and
the Slurm job (`Lines`); RUN/goodput.jsonl, one line for each start, kept up to date so that a kill leaves one too;
RUN/changes.jsonl and RUN/segments.jsonl, what was changed between two starts or by a phase, and what the steps read
(`pretok.stream.segments`). Only rank 0 writes; what a run did again after a kill is there once.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import IO, Any

from pretok.base.joblog import when_and_where
from pretok.base.records import Count, Record, read_record, to_json
from pretok.base.storage import FULL, atomic_open, name_path, read_lines, tried
from pretok.stream.mix_file import mix_json
from pretok.stream.segments import SEGMENTS, RunSegment, written_segments
from train.checkpoint.meta import Meta
from train.config import TrainConfig
from train.phases import Segment, differences
from train.report import Reporter


class Lines:
    """Adds to the lines that are there, or to those of them that `keep` says yes to: the others were not saved and will
    be done again. stays_open: for a line a step, until `close`. full: gets a warning, once, where the disk has no space
    for a line; such lines are dropped. Without it a full disk is an error."""

    def __init__(
        self,
        path: Path,
        keep: Callable[[Any], bool] = lambda _record: True,
        *,
        stays_open: bool = False,
        full: Callable[[str], None] | None = None,
    ) -> None:
        found = read_lines(path)
        self.kept = [record for record in found if keep(record)]
        self.dropped = [record for record in found if not keep(record)]
        self._path, self._end, self._size = path, 0, 0
        self._file: IO[bytes] | None = None
        self._stays_open, self._full = stays_open, full
        self._told = False
        if path.exists():  # written anew even if all stay: a kill may have cut the last line short
            with atomic_open(path) as file:
                file.write(b"".join(json.dumps(record).encode() + b"\n" for record in self.kept))
                self._end = self._size = file.tell()

    def add(self, record: dict[str, Any]) -> None:
        """One more line."""
        self._end = self._write(record)

    def add_for_now(self, record: dict[str, Any]) -> None:
        """One more line, in whose place the next one comes."""
        self._write(record)

    def _write(self, record: dict[str, Any]) -> int:
        line = json.dumps(record | when_and_where()).encode() + b"\n"
        end = self._end + len(line)

        def write() -> None:
            try:
                if self._file is None:
                    opened = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o666)
                    self._file = os.fdopen(opened, "r+b", buffering=0)
                self._file.seek(self._end)  # where a try that failed has left half a line
                rest = line
                while rest:
                    rest = rest[self._file.write(rest) :]
                if end < self._size:
                    self._file.truncate()
            except OSError as error:
                with suppress(OSError):
                    self.close()
                raise name_path(error, self._path) from None

        try:
            tried(write)
        except OSError as error:
            if self._full is None or error.errno not in FULL:
                raise
            if not self._told:
                self._told = True
                self._full(f"warning: {self._path}: {error.strerror}: lines are dropped until there is space")
            self._size = max(self._size, end)  # half a line may lie there; the next one cuts it off
            return self._end
        self._size = end
        if not self._stays_open:
            self.close()
        return end

    def close(self) -> None:
        """Close the file; another line opens it again."""
        file, self._file = self._file, None
        if file is not None:
            file.close()


KINDS = ("initialisation", "training", "validation", "saving", "data", "restarting")


@dataclass(frozen=True, slots=True)
class Restart:
    """A start of the trainer inside a job after a failure, as the job script tells it (slurm/train.sbatch).

    number: of restarts in this job, 0 for its first start.
    """

    number: int = 0
    why: str = ""

    @classmethod
    def here(cls) -> Restart:
        """That of this process."""
        return cls(int(os.environ.get("PRETOK_RESTART_NUMBER", "0")), os.environ.get("PRETOK_RESTART", ""))


class Attempt(Record, frozen=True):
    """Seconds by kind, without overlap, from one start of the run to its end; data: training waited for it.

    steps: done; lost_steps, lost_seconds: of the attempts before, not saved and done again in this one.
    restart: why the job started it again after a failure, empty for the first start in a job; restarting: seconds that
    took since the line of the attempt before was written, hanging ranks included.
    """

    initialisation: float
    training: float
    validation: float
    saving: float
    data: float
    steps: Count
    lost_steps: Count
    lost_seconds: float
    restart: str
    restarting: float

    @property
    def seconds(self) -> float:
        """All of it."""
        return sum((getattr(self, kind) for kind in KINDS), 0.0)


class Goodput:
    """Seconds by kind since `started`, on the clock of `time.monotonic`; on rank 0 with a file, in which the line of
    this attempt is written again and again in its place, behind those of earlier ones."""

    def __init__(
        self,
        started: float,
        path: Path | None = None,
        restart: Restart = Restart(),
        lost: Sequence[float] = (),
        full: Callable[[str], None] | None = None,
    ) -> None:
        """path: None on other ranks; lost: seconds of each step of the attempt before that is done again; full: as in
        `Lines`."""
        self._seconds = dict.fromkeys(("initialisation", "training", "validation", "saving"), 0.0)
        self._since = started
        self.kind = "initialisation"
        self._lost, self._restart, self._restarting = lost, restart.why, 0.0
        self._lines: Lines | None = None
        if path is None:
            return
        self._lines = Lines(path, full=full)
        names = set(Attempt.__struct_fields__)  # and when and where the line was written
        self._earlier = [
            read_record(Attempt, {name: line[name] for name in names & line.keys()}, path)
            for line in self._lines.kept
        ]
        if restart.number and self._lines.kept:
            since = datetime.fromisoformat(self._lines.kept[-1]["time"]).timestamp()
            self._restarting = round(max(0.0, time.time() - (time.monotonic() - started) - since), 3)

    def enter(self, kind: str) -> None:
        """From now on time counts as `kind`."""
        now = time.monotonic()
        self._seconds[self.kind] += now - self._since
        self._since, self.kind = now, kind

    @contextmanager
    def spent(self, kind: str) -> Iterator[None]:
        """Count the body as `kind`, then return to what was before."""
        before = self.kind
        self.enter(kind)
        try:
            yield
        finally:
            self.enter(before)

    def write(self, steps: int, waited: float) -> str:
        """Bring the file up to date: `steps` were done, `waited` seconds of the training went by waiting for data.
        Returns the sum over all attempts in words; on other ranks nothing is done."""
        if self._lines is None:
            return ""
        self.enter(self.kind)
        seconds = self._seconds | {"training": self._seconds["training"] - waited, "data": waited}
        attempt = Attempt(
            steps=steps,
            lost_steps=len(self._lost),
            lost_seconds=round(sum(self._lost, 0.0), 3),
            restart=self._restart,
            restarting=self._restarting,
            **{kind: round(value, 3) for kind, value in seconds.items()},
        )
        self._lines.add_for_now(to_json(attempt))
        return summarize([*self._earlier, attempt])


def summarize(attempts: list[Attempt]) -> str:
    """All attempts of a run in one line: hours, and the part of them spent on steps that counted."""
    whole = sum(attempt.seconds for attempt in attempts)
    total = {kind: sum(getattr(attempt, kind) for attempt in attempts) for kind in KINDS}
    # A line may be a few steps older than the kill that ended its attempt.
    useful = max(0.0, total["training"] - sum(attempt.lost_seconds for attempt in attempts))
    parts = ", ".join(f"{kind} {value / whole:.1%}" for kind, value in total.items()) if whole else ""
    return (
        f"goodput: {useful / whole if whole else 0:.1%} of {whole / 3600:.2f} h in {len(attempts)} attempts; "
        f"{parts}; {sum(attempt.lost_steps for attempt in attempts)} steps done twice"
    )


class Changes:
    """The files of a run whose next step is `step` (from 0)."""

    def __init__(self, out: Path, rank: int, step: int, report: Reporter) -> None:
        self._report = report
        self._changes: Lines | None = None
        if rank == 0:  # what is in force from this step on is told now

            def before(record: Any) -> bool:
                return bool(record["step"] < step)

            self._changes, self._segments = (
                Lines(out / "changes.jsonl", before),
                Lines(out / SEGMENTS, before),
            )
            self._segment = next(reversed(written_segments(out)), None)

    def by_hand(self, meta: Meta, config: TrainConfig, segment: Segment) -> None:
        """Settings that are others than those the checkpoint was saved with."""
        found = differences(meta.config, config.as_dict())
        sizes = differences(to_json(meta.identity.model), to_json(segment.phase.model))
        if "rope_theta" not in found and meta.progress.phase == segment.phase.at and "rope_theta" in sizes:
            found["rope_theta"] = sizes["rope_theta"]  # of a file of sizes
        for name, (was, now) in found.items():
            self._report(f"setting {name} was {was}, is {now}")
        self._write("hand", segment, found)

    def by_phase(self, before: TrainConfig, segment: Segment) -> None:
        """A phase that begins."""
        found = differences(before.as_dict(), segment.phase.config.as_dict())
        told = ", ".join(f"{name} was {was}, is {now}" for name, (was, now) in found.items())
        where = f"reads its stream from sequence {segment.position} on"
        self._report(f"phase at {segment.phase.at:,} tokens: {told or 'nothing changes'}; {where}")
        self._write("phase", segment, found)

    def reads(self, segment: Segment) -> None:
        """A segment begins, or goes on after a start."""
        view, config = segment.phase.view, segment.phase.config
        now = RunSegment(
            step=segment.step,
            tokens=segment.tokens,
            position=segment.position,
            global_batch=segment.phase.batch.global_batch,
            seq_len=view.seq_len,
            seed=config.seed,
            stream=view.fingerprint,
            shards=str(Path(config.shards).absolute()),
            mix=str(Path(config.mix).absolute()) if config.mix else None,
            order=mix_json(view.mix),
            removals=view.removals,
        )
        if self._changes is not None and not (self._segment and self._segment.goes_on_with(now)):
            self._segments.add(to_json(now))
            self._segment = now

    def _write(self, by: str, segment: Segment, found: dict[str, tuple[Any, Any]]) -> None:
        if self._changes is not None and (found or by == "phase"):
            place = {"step": segment.step, "tokens": segment.tokens, "position": segment.position, "by": by}
            self._changes.add(place | {"changes": {name: list(pair) for name, pair in found.items()}})
