"""The files of lines that a run leaves, and what its time was spent on.

Input: numbers of finished steps, segments as they begin, what the run is doing now. Output: RUN/metrics.jsonl and
RUN/validation.jsonl, and the same numbers in Weights & Biases when asked; RUN/segments.jsonl, what the steps read
(`pretok.stream.segments`); RUN/goodput.jsonl, one line for each start, kept up to date so that a kill leaves one too.
Each line has the time, the host and the Slurm job. Only rank 0 writes; what a run did again after a kill is there once.
"""

from __future__ import annotations

import json
import math
import os
import platform
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any

import torch

from pretok.base.errors import UsageError
from pretok.base.joblog import when_and_where
from pretok.base.records import to_json
from pretok.base.storage import FULL, atomic_open, name_path, read_lines, tried
from pretok.base.units import duration
from pretok.stream.segments import RunSegment, written_segments
from train.config import TrainConfig
from train.report import Reporter, clock


@cache
def provenance() -> dict[str, Any]:
    """Code version, software and machine of this process, as JSON values. The version is that of the start, and null on
    ranks above 0, whose word nobody asks for: a thousand of git at a time would be a load on the file system."""
    describe = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty", "--abbrev=40"]
    commit = ""
    if os.environ.get("RANK", "0") == "0":
        with suppress(OSError):  # no git on this node
            commit = subprocess.run(describe, capture_output=True, text=True, check=False).stdout.strip()
    names = ("SLURM_JOB_ID", "SLURM_JOB_NODELIST", "WORLD_SIZE", "HOSTNAME", "CUDA_VISIBLE_DEVICES")
    return {
        "commit": commit or None,
        "torch": torch.__version__,
        "python": sys.version.split()[0],
        "cuda": torch.version.cuda,
        "hip": torch.version.hip,
        "host": platform.node(),
        "command": sys.argv,
        "environment": {name: os.environ[name] for name in names if name in os.environ},
    }


class Lines:
    """Adds to the lines that are there, or to those of them that `keep` says yes to: the others were not saved and will
    be done again. full: gets a warning, once, where the disk has no space for a line; such lines are dropped. Without
    it a full disk is an error."""

    def __init__(
        self,
        path: Path,
        keep: Callable[[Any], bool] = lambda _record: True,
        full: Callable[[str], None] | None = None,
    ) -> None:
        found = read_lines(path)
        self.kept = [record for record in found if keep(record)]
        self.dropped = [record for record in found if not keep(record)]
        self._path, self._end, self._full = path, 0, full
        if path.exists():  # written anew even if all stay: a kill may have cut the last line short
            with atomic_open(path) as file:
                file.write(b"".join(json.dumps(record).encode() + b"\n" for record in self.kept))
                self._end = file.tell()

    def add(self, record: dict[str, Any], *, for_now: bool = False) -> None:
        """One more line; for_now: the next one comes in its place."""
        line = json.dumps(record | when_and_where()).encode() + b"\n"
        try:
            tried(lambda: self._put(line))
        except OSError as error:
            if self._full is None or error.errno not in FULL:
                raise name_path(error, self._path) from None
            self._full(f"warning: {self._path}: {error.strerror}: lines are dropped until there is space")
            self._full = lambda _text: None  # said once
        else:
            self._end += 0 if for_now else len(line)

    def _put(self, line: bytes) -> None:
        with os.fdopen(os.open(self._path, os.O_WRONLY | os.O_CREAT, 0o666), "wb") as file:
            file.seek(self._end)  # where a try that failed may have left half a line
            file.write(line)
            file.truncate()


class RunLog:
    """All lines of a run that has done `step` of `steps`, and what of them a person reads. On ranks other than 0 every
    method does nothing."""

    def __init__(
        self,
        out: Path,
        config: TrainConfig,
        report: Reporter,
        rank: int,
        step: int,
        steps: int,
        manifest: str,
    ) -> None:
        self.lost: tuple[float, ...] = ()  # seconds of each step of the attempt before that is done again
        self._config, self._report, self._steps = config, report, steps
        self._files: dict[str, Lines] = {}
        self._wandb: Any = None
        if rank:
            return
        if config.wandb is not None:  # what may be refused first: nothing is written yet
            self._wandb = _open_wandb(out, config, manifest)
        for name in ("metrics", "validation"):
            self._files[name] = Lines(out / f"{name}.jsonl", lambda record: record["step"] <= step, report)
        self.lost = tuple(record["seconds"] for record in self._files["metrics"].dropped)
        self._files["segments"] = Lines(out / "segments.jsonl", lambda record: record["step"] < step)
        self._segment = next(reversed(written_segments(out)), None)

    def segment(self, now: RunSegment) -> None:
        """A segment begins, or goes on after a start."""
        if self._files and not (self._segment and self._segment.goes_on_with(now)):
            self._files["segments"].add(to_json(now))
            self._segment = now

    def step(self, record: dict[str, Any]) -> None:
        """One optimizer step: a record of it, and a line every `log_every` steps, with the time to the last step at the
        speed of this one.

        Values that are not finite become null.
        """
        if not self._files:
            return
        self._write("metrics", record)
        step = record["step"]
        if step % self._config.log_every == 0 or step == self._steps:
            mfu = "n/a" if record["mfu"] is None else f"{record['mfu']:.1%}"
            left = duration((self._steps - step) * record["seconds"])
            self._report(
                f"{clock()} step {step}/{self._steps}  {step / self._steps:.0%}  ETA {left}  "
                f"loss {record['loss']:.4f}  norm {record['grad_norm']:.3f}  "
                f"lr {record['lr']:.2e}  {record['tokens_per_second_per_device']:,.0f} tokens/s/device  "
                f"MFU {mfu}  data wait {record['data_wait'] / record['seconds']:.2%}"
            )

    def validation(self, record: dict[str, Any]) -> None:
        """One evaluation."""
        if not self._files:
            return
        self._write("validation", record)
        bits = record["bits_per_byte"]
        losses = "  ".join(
            f"{name} {loss:.4f} ({bits[name]:.4f})" for name, loss in record["sources"].items()
        )
        self._report(
            f"{clock()} step {record['step']}/{self._steps}  validation loss {record['val_loss']:.4f} "
            f"({record['val_bits_per_byte']:.4f} bits per byte)  {losses}"
        )

    def close(self) -> None:
        """The end of this start."""
        if self._wandb is not None:
            self._wandb.finish()

    def _write(self, name: str, record: dict[str, Any]) -> None:
        clean = {
            key: None if isinstance(value, float) and not math.isfinite(value) else value
            for key, value in record.items()
        }
        self._files[name].add(clean)
        if self._wandb is not None:
            numbers = {key: value for key, value in clean.items() if isinstance(value, int | float | dict)}
            self._wandb.log(numbers, step=numbers.pop("step"))


def _open_wandb(out: Path, config: TrainConfig, manifest: str) -> Any:
    try:
        import wandb
    except ImportError:
        raise UsageError("--wandb needs the package wandb; metrics.jsonl is written without it") from None
    # One id for the whole chain of jobs.
    path = out / "wandb-id"
    if not path.exists():
        with atomic_open(path, "w") as file:
            file.write(uuid.uuid4().hex)
    return wandb.init(
        project=config.wandb,
        id=path.read_text(encoding="utf-8"),
        resume="allow",
        dir=str(out),
        mode=os.environ.get("WANDB_MODE", "offline"),
        config=config.as_dict() | {"provenance": provenance() | {"manifest": manifest}},
    )


KINDS = ("initialisation", "training", "validation", "saving", "data", "restarting")
"""What time is spent on. data: training waited for it; restarting: inside a job, from the last line of the attempt
before to this start, hanging ranks included."""


class Goodput:
    """Seconds by kind since `started`, on the clock of `time.monotonic`; on rank 0 with a file, in which the line of
    this attempt is written again and again in its place, behind those of earlier ones."""

    def __init__(
        self,
        started: float,
        path: Path | None = None,
        lost: Sequence[float] = (),
        full: Callable[[str], None] | None = None,
    ) -> None:
        """path: None on other ranks; lost: seconds of each step of the attempt before that is done again; full: as in
        `Lines`. PRETOK_RESTART: why the job has started it again after a failure (slurm/train.sbatch)."""
        self.kind = KINDS[0]
        self.restart = os.environ.get("PRETOK_RESTART", "")
        self._seconds, self._since, self._lost = dict.fromkeys(KINDS, 0.0), started, lost
        self._lines = None if path is None else Lines(path, full=full)
        if self.restart and self._lines is not None and self._lines.kept:
            last = datetime.fromisoformat(self._lines.kept[-1]["time"]).timestamp()
            now = time.time() - (time.monotonic() - started)
            self._seconds["restarting"] = max(0.0, now - last)

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
        line = {kind: round(value, 3) for kind, value in seconds.items()} | {
            "steps": steps,
            "lost_steps": len(self._lost),
            "lost_seconds": round(sum(self._lost, 0.0), 3),
            "restart": self.restart,
        }
        self._lines.add(line, for_now=True)
        return summarize([*self._lines.kept, line])


def summarize(attempts: Sequence[dict[str, Any]]) -> str:
    """All attempts of a run in one line: hours, and the part of them spent on steps that counted."""
    total = {kind: sum(attempt[kind] for attempt in attempts) for kind in KINDS}
    whole = sum(total.values())
    # A line may be a few steps older than the kill that ended its attempt.
    useful = max(0.0, total["training"] - sum(attempt["lost_seconds"] for attempt in attempts))
    parts = ", ".join(f"{kind} {value / whole:.1%}" for kind, value in total.items()) if whole else ""
    return (
        f"goodput: {useful / whole if whole else 0:.1%} of {whole / 3600:.2f} h in {len(attempts)} attempts; "
        f"{parts}; {sum(attempt['lost_steps'] for attempt in attempts)} steps done twice"
    )
