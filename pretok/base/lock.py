"""One job at a time in an output folder, on file systems that several nodes share.

Enters: a folder a job is about to write to. Leaves: FOLDER/.lock while the job runs, or FolderInUse, which names the
job that is there. The file is made by O_EXCL, which Lustre, GPFS and NFS keep, and says who holds the folder; a thread
touches it every HEARTBEAT seconds. No lock of the kernel: on many clusters `flock` is off, or local to a node.

The lock of a job that is gone is taken over: its process is dead (seen from the same node), Slurm knows its job no
more or has requeued it, or it was not touched for STALE seconds. Standard library only; `train` uses this module.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import secrets
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from pretok.base.errors import FolderInUse
from pretok.base.storage import writing

logger = logging.getLogger(__name__)

LOCK_FILE = ".lock"
HEARTBEAT = 15.0
"""Seconds between touches of the lock."""
STALE = 300.0
"""Seconds without a touch after which the holder counts as gone: far above what clocks of nodes differ by."""
MACHINE = ("/proc/sys/kernel/random/boot_id", "/proc/self/ns/pid")
"""Where two processes see the same in both, a process id means the same to both."""


@dataclass(frozen=True, slots=True)
class Holder:
    """Who holds a folder. started: of the process, in ticks since boot, as ids are used again; token: of this hold."""

    what: str
    host: str
    pid: int
    machine: str
    started: str
    job: str
    restarts: int
    since: str
    token: str

    def __str__(self) -> str:
        job = f", Slurm job {self.job}" if self.job else ""
        return f"{self.what} (host {self.host}, process {self.pid}{job}, since {self.since})"


@contextmanager
def hold(folder: Path, what: str) -> Iterator[threading.Event]:
    """Keep other jobs out of `folder`, which is made if it is not there; `what` names this job to them.

    Raises FolderInUse, OutputError. A lock taken over is logged as a warning. Should the lock be lost while it is held
    (someone deleted it), this process gets SIGTERM, which ends a job in good order; the event that is yielded is then
    set, for a body that must not write even at its end.
    """
    path, holder = folder / LOCK_FILE, _this_process(what)
    text = json.dumps(asdict(holder))
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        _take(path, text)
    ended, lost = threading.Event(), threading.Event()
    thread = threading.Thread(target=_beat, args=(path, text, ended, lost), daemon=True, name="folder-lock")
    thread.start()
    try:
        yield lost
    finally:
        ended.set()
        if os.getpid() == holder.pid:  # not in a forked child
            thread.join()
            if _read(path) == text:
                path.unlink(missing_ok=True)


def holder_of(folder: Path) -> Holder | None:
    """Who holds a folder, as far as one can see from here; None where nobody does, or only a job that is gone."""
    path = folder / LOCK_FILE
    with contextlib.suppress(OSError):
        found = _read(path)
        holder = None if found is None else _parse(found)
        if holder and not _why_gone(holder) and time.time() - path.stat().st_mtime < STALE:
            return holder
    return None


def _take(path: Path, text: str) -> None:
    while True:
        try:
            descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
        except FileExistsError:
            _clear_stale(path)
            continue
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        return


def _clear_stale(path: Path) -> None:
    """Remove the lock if its holder is gone; FolderInUse if it is not."""
    found = _read(path)
    if found is None:  # given back in the meantime
        return
    holder = _parse(found)
    why = _why_gone(holder) if holder else ""
    if not why:
        with contextlib.suppress(FileNotFoundError):
            age = time.time() - path.stat().st_mtime
            if age < STALE:
                raise FolderInUse(
                    f"{path.parent} is in use by {holder or 'a job that is just starting'}: two jobs must not write "
                    f"to one folder. Wait for it or stop it; if it is dead, delete {path}"
                )
            why = f"not touched for {age:.0f} s"
    if _remove(path, found):
        logger.warning("%s: taking over the lock of %s: %s", path.parent, holder or "an unknown job", why)


def _parse(text: str) -> Holder | None:
    """The holder, or None: a job was killed, or is just now busy, between making the file and writing it."""
    try:
        return Holder(**json.loads(text))
    except (ValueError, TypeError):
        return None


def _remove(path: Path, found: str) -> bool:
    """Delete the lock if it still holds `found`. One job at a time looks and deletes: of two that take over at once,
    the slower one would delete the lock of the faster."""
    guard = path.with_name(f"{path.name}-taking")
    try:
        guard.touch(exist_ok=False)
    except FileExistsError:
        time.sleep(0.05)
        with contextlib.suppress(FileNotFoundError):
            if time.time() - guard.stat().st_mtime > STALE:  # its maker was killed in this very moment
                guard.unlink()
        return False
    try:
        if _read(path) != found:
            return False
        path.unlink(missing_ok=True)
        return True
    finally:
        guard.unlink(missing_ok=True)


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return None


def _beat(path: Path, text: str, ended: threading.Event, lost: threading.Event) -> None:
    """Touch the lock until `ended`; set `lost` and stop this process when it is another's.

    An error of the file system is passed over: the next touch may succeed.
    """
    while not ended.wait(HEARTBEAT):
        with contextlib.suppress(OSError):
            if _read(path) != text:
                logger.error(
                    "%s is gone or another job's: stopping, as this job no longer has the folder", path
                )
                lost.set()
                os.kill(os.getpid(), signal.SIGTERM)
                return
            os.utime(path)


def _this_process(what: str) -> Holder:
    return Holder(
        what=what,
        host=os.uname().nodename,
        pid=os.getpid(),
        machine=_machine(),
        started=_started(os.getpid()) or "",
        job=os.environ.get("SLURM_JOB_ID", ""),
        restarts=int(os.environ.get("SLURM_RESTART_COUNT", "0")),
        since=time.strftime("%Y-%m-%d %H:%M:%S %z"),
        token=secrets.token_hex(8),
    )


def _machine() -> str:
    boot, namespace = MACHINE
    return f"{Path(boot).read_text(encoding='ascii').strip()} {os.readlink(namespace)}"  # noqa: PTH115 - not a path


def _started(pid: int) -> str | None:
    """When a process of this machine started, in ticks since boot; None if it is dead (or only not yet reaped)."""
    try:
        fields = (
            Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        )
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] in "ZX" else fields[19]


def _why_gone(holder: Holder) -> str:
    """Why the holder surely is no more, or an empty string."""
    if holder.machine == _machine() and _started(holder.pid) != holder.started:
        return "its process is dead"
    if holder.job and holder.job == os.environ.get("SLURM_JOB_ID"):
        if holder.restarts < int(os.environ.get("SLURM_RESTART_COUNT", "0")):
            return "Slurm has requeued its job"
    elif holder.job and _job_ended(holder.job):
        return "its Slurm job has ended"
    return ""


def _job_ended(job: str) -> bool:
    """Whether Slurm says so; False where it cannot be asked."""
    if shutil.which("squeue") is None:
        return False
    try:
        command = ["squeue", "--noheader", "--jobs", job]
        answer = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return not answer.stdout.strip() if answer.returncode == 0 else "Invalid job id" in answer.stderr
