"""One `train` at a time in RUN; two would delete each other's files and mix their metrics.

Enters: RUN. Leaves: RUN/lock while this run lives: host, process, job, and a count that grows every BEAT seconds.

A lock outlives a job that was killed. On the machine that took it, its process tells: it is there, begun at the same
moment, or the lock is void. From another machine a newcomer watches the file: the count grows, so the run lives and
the newcomer is refused; it stands still for PATIENCE seconds, so the run is dead and the lock is taken over. Neither
are clocks of two machines compared nor is flock used, which parallel file systems often lack between nodes. A run that
hung for longer than that finds another's name in the file and ends without saving.
"""

from __future__ import annotations

import json
import os
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from pretok.base.errors import MismatchError, PretokError, UsageError
from pretok.base.storage import TEMPORARY_SUFFIX
from train.parallel import first_problem

BEAT = 5.0
PATIENCE = 60.0
SETTLE = 0.5
"""Seconds after taking a void lock over before looking whether another newcomer did so too."""


@dataclass(frozen=True, slots=True)
class Holder:
    """Who has the lock. machine: this boot of it and the namespace of `pid`; begun: of the process, in ticks."""

    token: str
    host: str
    pid: int
    machine: str
    begun: str | None
    since: str
    job: str | None

    @classmethod
    def this_process(cls) -> Holder:
        """A new holder in this process."""
        return cls(
            token=uuid.uuid4().hex,
            host=os.uname().nodename,
            pid=os.getpid(),
            machine=_machine(),
            begun=_begun(os.getpid()),
            since=time.strftime("%Y-%m-%d %H:%M:%S"),
            job=os.environ.get("SLURM_JOB_ID"),
        )

    def __str__(self) -> str:
        job = f", Slurm job {self.job}" if self.job else ""
        return f"process {self.pid} on {self.host}, since {self.since}{job}"

    def ended(self) -> bool | None:
        """Whether its process is gone; None where this machine cannot tell."""
        if not self.machine or self.machine != _machine():
            return None
        return _begun(self.pid) != self.begun


def _machine() -> str:
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return ""


def _begun(pid: int) -> str | None:
    """When a process began, in ticks since boot; None when there is none, or what is left of one."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else fields[19]


def _parse(data: bytes) -> Holder | None:
    try:
        return Holder(**json.loads(data)["holder"])
    except (ValueError, KeyError, TypeError):  # just being made
        return None


class RunLock:
    """Holds RUN/lock from `acquire` to `release`. report: prints a line."""

    def __init__(self, out: Path, report: Callable[[str], None]) -> None:
        self._path = out / "lock"
        self._report = report
        self._holder = Holder.this_process()
        self._lost = False
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._keep, daemon=True)

    def acquire(self) -> None:
        """Take the lock. UsageError that names the holder when another run lives."""
        data = self._text(0)
        try:
            with self._path.open("xb") as file:
                file.write(data)
        except FileExistsError:
            self._take_over()
        self._thread.start()

    def release(self) -> None:
        """Give the lock back, if it is still ours."""
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()
        with suppress(OSError):
            if self._is_ours(self._path.read_bytes()):
                self._path.unlink()

    def check(self) -> None:
        """MismatchError when another run has taken the folder, because this one hung or its lock was deleted."""
        if self._lost:
            raise MismatchError(
                f"{self._path} was deleted or taken by another run, which now owns the folder; this one ends "
                "without saving"
            )

    def _text(self, count: int) -> bytes:
        return json.dumps({"holder": asdict(self._holder), "count": count}).encode()

    def _is_ours(self, data: bytes) -> bool:
        holder = _parse(data)
        return holder is not None and holder.token == self._holder.token

    def _read(self) -> bytes:
        try:
            return self._path.read_bytes()
        except FileNotFoundError:
            return b""

    def _take_over(self) -> None:
        """Put our name into a lock whose run is dead."""
        seen = self._read()
        if not self._void(seen):
            holder = _parse(self._read())
            raise UsageError(
                f"{self._path.parent} is in use by another train: {holder or 'not known which'}. Wait for it, stop "
                f"it, or give another --out; if it is surely gone, delete {self._path}"
            )
        temporary = self._path.with_name(f".lock.{self._holder.token}{TEMPORARY_SUFFIX}")
        temporary.write_bytes(self._text(0))
        temporary.replace(self._path)
        time.sleep(SETTLE)
        if not self._is_ours(winner := self._read()):
            raise UsageError(f"{self._path.parent} was taken at the same moment by {_parse(winner)}")
        self._report(f"the lock of a run that is gone was taken over ({_parse(seen)})")

    def _void(self, seen: bytes) -> bool:
        """Whether the lock's run is dead; waits and watches where only waiting can tell."""
        holder = _parse(seen)
        if holder is not None and (ended := holder.ended()) is not None:
            return ended
        self._report(
            f"{self._path} was left by another train ({holder}): waiting up to {PATIENCE:.0f} s for a sign of life"
        )
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            time.sleep(min(1.0, BEAT))
            if (now := self._read()) != seen:
                return now == b""  # given back meanwhile
        return True

    def _keep(self) -> None:
        """Let the count grow, in place: whoever has replaced the file is seen and not overwritten."""
        count = 0
        while not self._ended.wait(BEAT):
            count += 1
            try:
                with self._path.open("r+b") as file:
                    if not self._is_ours(file.read()):
                        self._lost = True
                        return
                    file.seek(0)
                    file.write(self._text(count))
            except FileNotFoundError:
                self._lost = True
                return
            except OSError:  # the file server has a bad moment; the next beat will tell
                continue


@contextmanager
def locked(out: Path, report: Callable[[str], None], rank: int) -> Iterator[RunLock]:
    """Hold RUN/lock on rank 0 while the body runs on all. UsageError on all when it is not to be had."""
    lock = RunLock(out, report)
    problem = None
    if rank == 0:
        try:
            lock.acquire()
        except PretokError as error:
            problem = f"{error}"
        except OSError as error:
            problem = f"{error.filename}: {error.strerror}; --out must name a folder that may be written"
    if problem := first_problem(problem):
        raise UsageError(problem)
    try:
        yield lock
    finally:
        if rank == 0:
            lock.release()
