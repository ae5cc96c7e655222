"""What the time of a run was spent on.

Input: what the run is doing now. Output: RUN/goodput.jsonl, one line for each time it was started, kept up to date
while it goes on, so that a run that is killed has left one too.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from pretok.base.records import Count, Record, read_record, to_json
from train.run.lines import Lines

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
