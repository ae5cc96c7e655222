"""The JSON Lines files that a run writes, and the account of its time.

Input: numbers of finished steps, segments as they begin, the run's current activity. Output: RUN/metrics.jsonl and
RUN/validation.jsonl (and the same numbers in Weights & Biases if configured); RUN/segments.jsonl, what the steps read
(`pretok.stream.segments`); RUN/goodput.jsonl, one line per start, updated during the run so that a killed run leaves
one too. Each line has the time, the host and the Slurm job. Only rank 0 writes. Steps that are repeated after a kill
are listed once.
"""

from __future__ import annotations

import json
import math
import os
import platform
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from functools import cache
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import torch

from pretok.base.errors import UsageError
from pretok.base.joblog import when_and_where
from pretok.base.records import to_json
from pretok.base.storage import FULL, atomic_open, name_path, read_lines, tried
from pretok.base.units import duration
from pretok.stream.segments import RunSegment, written_segments
from train.config import TrainConfig
from train.monitor import energy_text
from train.report import Reporter, clock


@cache
def provenance() -> dict[str, Any]:
    """Return the code version, software and machine of this process as JSON values.

    The version is that at the start, and None on ranks above 0: a thousand `git describe` at a time would load the file
    system for nothing.
    """
    describe = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty", "--abbrev=40"]
    commit = ""
    if os.environ.get("RANK", "0") == "0":
        with suppress(OSError):  # git is not installed on this node
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


FLUSH_SECONDS = 1.0
"""Seconds whose lines are written together."""


class Background:
    """Writes lines in a thread, so that a slow disk delays no step."""

    def __init__(self) -> None:
        self._queue: SimpleQueue[tuple[Lines, bytes, bool] | None] = SimpleQueue()
        self._hurry, self._written = threading.Event(), threading.Condition()
        self._given = self._done = 0
        self._error: OSError | None = None
        # A daemon: a disk that hangs must not keep a failed run from ending. `close` waits for it.
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def give(self, lines: Lines, line: bytes, for_now: bool) -> None:
        """Have a line written. Raises the OSError with which an earlier one failed."""
        if self._error is not None:
            raise self._error
        self._given += 1
        self._queue.put((lines, line, for_now))

    def flush(self) -> None:
        """Wait until all lines that were given are written. Raises as `give`."""
        given = self._given
        self._hurry.set()
        with self._written:
            self._written.wait_for(lambda: self._done >= given)
        if self._error is not None:
            raise self._error

    def close(self) -> None:
        """Write what was given and end the thread."""
        self._queue.put(None)
        self._hurry.set()
        self._thread.join()

    def _work(self) -> None:
        more = True
        while more:
            items = [self._queue.get()]
            # After the first line, wait for more: one write for all of a second.
            self._hurry.wait(FLUSH_SECONDS)
            self._hurry.clear()
            items += [self._queue.get() for _ in range(self._queue.qsize())]
            more = None not in items
            batches: dict[Lines, list[tuple[bytes, bool]]] = {}
            for lines, line, for_now in filter(None, items):
                batches.setdefault(lines, []).append((line, for_now))
            try:
                for lines, batch in batches.items():
                    lines.write(batch)
            except OSError as error:
                self._error = error
            with self._written:
                self._done += len(items)
                self._written.notify_all()


class Lines:
    """Appends records to a JSON Lines file, after those existing ones for which `keep` is true.

    The others belong to steps after the last save, which will be repeated. full: called once with a warning if the disk
    is full, and lines are dropped until there is space; without it a full disk is an error. background: writes in place
    of the caller.
    """

    def __init__(
        self,
        path: Path,
        keep: Callable[[Any], bool] = lambda _record: True,
        full: Callable[[str], None] | None = None,
        background: Background | None = None,
    ) -> None:
        records = read_lines(path)
        self.dropped = [record for record in records if not keep(record)]
        self._path, self._end, self._full, self._background = path, 0, full, background
        if path.exists():  # rewritten even if all records stay: a kill may have cut the last line short
            with atomic_open(path) as file:
                file.writelines(json.dumps(record).encode() + b"\n" for record in records if keep(record))
                self._end = file.tell()

    def add(self, record: dict[str, Any], *, for_now: bool = False) -> None:
        """Append a record with time and host. for_now: the next record overwrites it."""
        line = json.dumps(record | when_and_where()).encode() + b"\n"
        if self._background is None:
            self.write([(line, for_now)])
        else:
            self._background.give(self, line, for_now)

    def write(self, batch: Sequence[tuple[bytes, bool]]) -> None:
        """Write lines, each with whether the next one overwrites it."""
        stay = b"".join(line for line, for_now in batch if not for_now)
        last, for_now = batch[-1]
        try:
            tried(lambda: self._put(stay + last if for_now else stay))
        except OSError as error:
            if self._full is None or error.errno not in FULL:
                raise name_path(error, self._path) from None
            self._full(f"warning: {self._path}: {error.strerror}: lines are dropped until there is space")
            self._full = lambda _text: None  # warn once
        else:
            # Only after they are written: a failed try is repeated from the same place.
            self._end += len(stay)

    def _put(self, line: bytes) -> None:
        with os.fdopen(os.open(self._path, os.O_WRONLY | os.O_CREAT, 0o666), "wb") as file:
            file.seek(self._end)  # overwrites half a line that a failed try may have left
            file.write(line)
            file.truncate()


class RunLog:
    """All files of a run that has done `step` of `steps` steps, and the lines about it on the terminal.

    read: version of the package, and fingerprints of what the run reads, for the config of Weights & Biases.
    On ranks other than 0 every method does nothing.
    """

    def __init__(
        self, config: TrainConfig, report: Reporter, rank: int, step: int, steps: int, read: dict[str, str]
    ) -> None:
        # Seconds of each step of the previous attempt that must be repeated.
        self.lost: tuple[float, ...] = ()
        self._config, self._report, self._steps = config, report, steps
        self._files: dict[str, Lines] = {}
        self._wandb: Any = None
        self.background: Background | None = None
        if rank:
            return
        out = Path(config.out)
        if config.wandb is not None:  # before anything is written, because it may fail
            self._wandb = _open_wandb(out, config, read)
        self.background = Background()
        for name in ("metrics", "validation"):
            path, done = out / f"{name}.jsonl", lambda record: bool(record["step"] <= step)
            self._files[name] = Lines(path, done, report, self.background)
        self.lost = tuple(record["seconds"] for record in self._files["metrics"].dropped)
        # Written at once and not in the background: what is read must be on record before it is trained on.
        self._files["segments"] = Lines(out / "segments.jsonl", lambda record: record["step"] < step)
        self._segment = next(reversed(written_segments(out)), None)

    def segment(self, now: RunSegment) -> None:
        """Record that a segment begins, unless it continues the one before a restart."""
        if self._files and not (self._segment and self._segment.continues(now)):
            self._files["segments"].add(to_json(now))
            self._segment = now

    def step(self, record: dict[str, Any]) -> None:
        """Record one step. Every `log_every` steps print a line, with the time to the end at the speed of this step.

        Non-finite values become null.
        """
        if not self._files:
            return
        self._write("metrics", record)
        step = record["step"]
        if step % self._config.log_every == 0 or step == self._steps:
            mfu = "n/a" if record["mfu"] is None else f"{record['mfu']:.1%}"
            busy = record.get("utilisation")
            drawn = "" if busy is None else f"  GPU {busy:.0f}% {record['watts'] or 0:.0f} W"
            left = duration((self._steps - step) * record["seconds"])
            self._report(
                f"{clock()} step {step}/{self._steps}  {step / self._steps:.0%}  ETA {left}  "
                f"loss {record['loss']:.4f}  norm {record['grad_norm']:.3f}  "
                f"lr {record['lr']:.2e}  {record['tokens_per_second_per_device']:,.0f} tokens/s/device  "
                f"MFU {mfu}  data wait {record['data_wait'] / record['seconds']:.2%}{drawn}"
            )

    def validation(self, record: dict[str, Any]) -> None:
        """Record and print one evaluation."""
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

    def flush(self) -> None:
        """Wait until all lines are on disk."""
        if self.background is not None:
            self.background.flush()

    def close(self) -> None:
        """Finish this start."""
        if self.background is not None:
            self.background.close()
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


def _open_wandb(out: Path, config: TrainConfig, read: dict[str, str]) -> Any:
    try:
        import wandb
    except ImportError:
        raise UsageError(
            "--wandb needs the package wandb: install it, or leave out --wandb (metrics.jsonl has the same numbers)"
        ) from None
    # One W&B run for the whole chain of jobs.
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
        config=config.as_dict() | {"provenance": provenance() | read},
    )


KINDS = ("initialisation", "training", "validation", "saving", "data", "restarting")
"""What time is spent on.

data: training waited for data. restarting: within a job, from the last line of the previous attempt to this start,
including the time in which ranks hung.
"""


class Goodput:
    """Seconds by kind since `started` (on the clock of `time.monotonic`), and on rank 0 their file.

    The file has one line per attempt; that of this attempt is overwritten with every update.
    """

    def __init__(
        self,
        started: float,
        path: Path | None = None,
        lost: Sequence[float] = (),
        full: Callable[[str], None] | None = None,
        background: Background | None = None,
    ) -> None:
        """path: the file, None on other ranks. lost: seconds of each step of the previous attempt that is repeated.

        full, background: as in `Lines`. The variable PRETOK_RESTART holds the reason why the job restarted the run
        (slurm/train.sbatch).
        """
        self.kind = KINDS[0]
        self.restart = os.environ.get("PRETOK_RESTART", "")
        self._seconds, self._since, self._lost = dict.fromkeys(KINDS, 0.0), started, lost
        self._earlier = [] if path is None else read_lines(path)
        self._lines = None if path is None else Lines(path, full=full, background=background)
        if self.restart and self._earlier:
            last = datetime.fromisoformat(self._earlier[-1]["time"]).timestamp()
            now = time.time() - (time.monotonic() - started)
            self._seconds["restarting"] = max(0.0, now - last)

    def enter(self, kind: str) -> None:
        """Count time as `kind` from now on."""
        now = time.monotonic()
        self._seconds[self.kind] += now - self._since
        self._since, self.kind = now, kind

    @contextmanager
    def spent(self, kind: str) -> Iterator[None]:
        """Count the body as `kind`, then return to the previous kind."""
        before = self.kind
        self.enter(kind)
        try:
            yield
        finally:
            self.enter(before)

    def write(
        self,
        steps: int,
        waited: float,
        energy: Callable[[float], dict[str, float | None]] = lambda _seconds: {},
        stop: float = 0.0,
    ) -> str:
        """Update the file: `steps` were done, and training waited `waited` seconds for data.

        energy: seconds of this start -> the fields of its energy. stop: seconds before the end of a job at which to
        stop; the next chain asks Slurm for its signal by it (`pretok.cluster.chain`). Returns the sum over all attempts
        as text; '' on other ranks.
        """
        if self._lines is None:
            return ""
        self.enter(self.kind)
        seconds = self._seconds | {"training": self._seconds["training"] - waited, "data": waited}
        line = {kind: round(value, 3) for kind, value in seconds.items()} | {
            "steps": steps,
            "lost_steps": len(self._lost),
            "lost_seconds": round(sum(self._lost, 0.0), 3),
            "restart": self.restart,
            "stop_seconds": round(stop, 3),
        }
        line |= energy(sum(self._seconds.values()) - self._seconds["restarting"])
        self._lines.add(line, for_now=True)
        return summarize([*self._earlier, line])


def summarize(attempts: Sequence[dict[str, Any]]) -> str:
    """Summarize all attempts of a run in one line: hours, and the fraction spent on steps that counted."""
    total = {kind: sum(attempt[kind] for attempt in attempts) for kind in KINDS}
    whole = sum(total.values())
    # The last line of a killed attempt may lack its last steps, so its lost seconds may exceed its training time.
    useful = max(0.0, total["training"] - sum(attempt["lost_seconds"] for attempt in attempts))
    parts = ", ".join(f"{kind} {value / whole:.1%}" for kind, value in total.items()) if whole else ""
    return (
        f"goodput: {useful / whole if whole else 0:.1%} of {whole / 3600:.2f} h in {len(attempts)} attempts; "
        f"{parts}; {sum(attempt['lost_steps'] for attempt in attempts)} steps done twice"
        + (f"; {spent}" if (spent := energy_text(attempts)) else "")
    )
