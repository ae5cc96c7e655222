"""One job at a time in an output folder, on file systems that several nodes share.

Input: a folder a job is about to write to, or to read for long. Output: FOLDER/.lock while the job runs, or
FolderInUse, which names the job that is there. No lock of the kernel: on many clusters `flock` is off, or local to a
node. The file is made whole under another name and linked into its place, which Lustre, GPFS and NFS do at once for all
nodes; it says who holds the folder, and a thread touches it every HEARTBEAT seconds.

The lock of a job that is gone is taken over: its process is dead (seen from the same node), Slurm knows its job no
more or has requeued it, or it was not touched for STALE seconds, nor while this job looks at it: by clocks alone, which
may differ, nobody loses a lock. `train` uses this module.
"""

from __future__ import annotations

import contextlib
import errno
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
from pathlib import Path
from types import FrameType

from pretok.base.errors import FolderInUse, IntegrityError, OutputError
from pretok.base.records import Record, read_record, to_json
from pretok.base.storage import LOCK_FILE, TEMPORARY_SUFFIX, digest, remove_leftovers, temporary_of, writing

logger = logging.getLogger(__name__)

READERS = ".reading-"
"""Begins the names of the locks of jobs that only read."""
HEARTBEAT = 15.0
"""Seconds between touches of the lock."""
STALE = 300.0
"""Seconds without a touch after which the holder may be gone."""
MACHINE = ("/proc/sys/kernel/random/boot_id", "/proc/self/ns/pid")
"""Where two processes see the same in both, a process id means the same to both."""
NO_LINKS = {errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK}
"""What `link` says on a file system without hard links."""


class Holder(Record, frozen=True):
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


_ours: dict[tuple[int, Path], threading.Event] = {}
"""The locks that threads of this process hold, each with its event: what a thread does inside may hold them too."""
_tokens: set[str] = set()
"""Of the locks that this process holds."""


@contextmanager
def hold(target: Path, what: str, *, beside: bool = False) -> Iterator[threading.Event]:
    """Keep other jobs out of the folder `target`, which is made if it is not there; `what` names this job to them.

    beside: the lock stands beside `target`, a file or a folder inside one that others may write to. What killed jobs
    left unfinished there is removed. A thread that holds it already goes on under the same lock.

    Raises FolderInUse, OutputError. A lock taken over is logged as a warning. Should the lock be lost while it is held
    (someone deleted it), this process gets SIGTERM, which ends a job in good order; the event that is yielded is then
    set, for a body that must not write even at its end. A main thread that stood still for so long that another job
    took the lock gets KeyboardInterrupt, wherever it is.
    """
    path = (target.with_name(f".{target.name}{LOCK_FILE}") if beside else target / LOCK_FILE).absolute()
    mine = threading.get_ident(), path
    if mine in _ours:
        yield _ours[mine]
        return
    new = not path.parent.exists()
    try:
        with _locked(path, target, what) as lost:
            _ours[mine] = lost
            try:
                remove_leftovers(target)
                yield lost
            finally:
                del _ours[mine]
    finally:
        if new:
            with contextlib.suppress(OSError):  # what was written stays
                path.parent.rmdir()


@contextmanager
def share(folder: Path, what: str) -> Iterator[None]:
    """Say to other jobs that this one reads `folder` for long: `refuse_readers` names it to them. Where nothing may be
    written, they are not told; a job whose word is deleted goes on."""
    with contextlib.ExitStack() as stack:
        if folder.is_dir() and os.access(folder, os.W_OK):
            with contextlib.suppress(FolderInUse):
                refuse_readers(folder)  # what readers that were killed left there goes
            try:
                path = folder / f"{READERS}{secrets.token_hex(8)}"
                stack.enter_context(_locked(path, folder, what, writes=False))
            except (OutputError, OSError) as error:  # a full disk keeps nobody from reading
                logger.warning("other jobs are not told that this one reads %s: %s", folder, error)
        yield


def refuse_readers(folder: Path) -> None:
    """FolderInUse that names a job that reads `folder`; what jobs that are gone left of theirs is removed."""
    for path in folder.glob(f".{READERS}*{TEMPORARY_SUFFIX}"):  # who lives makes it again, see `_take`
        path.unlink(missing_ok=True)
    for path in folder.glob(f"{READERS}*"):
        if found := _read(path):
            _refuse_living(path, found, folder, "must not change what another reads")
            path.unlink(missing_ok=True)


def is_lock(path: Path) -> bool:
    """Whether a file is one that this module makes."""
    return path.name[0] == "." and (LOCK_FILE in path.name or path.name.startswith(READERS))


def holder_of(folder: Path) -> Holder | None:
    """Who holds a folder, as far as one can see from here; None where nobody does, or only a job that is gone."""
    path = folder / LOCK_FILE
    with contextlib.suppress(OSError):
        found = _read(path)
        holder = None if found is None else _parse(found)
        if holder and not _why_gone(holder) and abs(time.time() - path.stat().st_mtime) < STALE:
            return holder
    return None


@contextmanager
def _locked(path: Path, target: Path, what: str, *, writes: bool = True) -> Iterator[threading.Event]:
    holder = _this_process(what)
    text = json.dumps(to_json(holder))
    with writing(target):
        path.parent.mkdir(parents=True, exist_ok=True)
        _tokens.add(holder.token)
        try:
            _take(path, text, target)
        except BaseException:
            _tokens.discard(holder.token)
            raise
    ended, lost = threading.Event(), threading.Event()
    thread = threading.Thread(
        target=_beat, args=(path, text, ended, lost, writes), daemon=True, name="folder-lock"
    )
    thread.start()
    try:
        with _looking_when_continued(path, text, lost) if writes else contextlib.nullcontext():
            yield lost
    finally:
        ended.set()
        if os.getpid() == holder.pid:  # not in a forked child
            thread.join()
            _tokens.discard(holder.token)
            try:
                if _read(path) == text:
                    path.unlink(missing_ok=True)
            except OSError as error:  # not what ended the job
                logger.warning("%s stays: %s; the next job takes it over", path, error.strerror)


@contextmanager
def _looking_when_continued(path: Path, text: str, lost: threading.Event) -> Iterator[None]:
    """Look for the lock before anything else when this process goes on after it stood still (`scontrol suspend`,
    Ctrl-Z): what it found in a folder, and is about to act on, may be another job's by now. The thread that touches the
    lock would see it too, some files later."""

    def look(number: int, frame: FrameType | None) -> None:
        if callable(before):  # of a lock that is held around this one
            before(number, frame)
        if _read(path) != text:
            lost.set()
            logger.error(
                "%s is gone or another job's, which took it while this one stood still: ending at once", path
            )
            raise KeyboardInterrupt  # which nobody takes for a failure to get over

    if threading.current_thread() is not threading.main_thread():  # no other handles signals
        yield
        return
    before = signal.signal(signal.SIGCONT, look)
    try:
        yield
    finally:
        signal.signal(signal.SIGCONT, before or signal.SIG_DFL)


def _take(path: Path, text: str, target: Path) -> None:
    """Put a lock that says `text` at `path`, in the place of one whose holder is gone; FolderInUse if it is not."""
    made = temporary_of(path, f"-{secrets.token_hex(4)}")
    try:
        while True:
            # 1. The whole lock under a name of our own. A kill leaves a `.tmp` file, which the next job removes.
            made.write_text(text, encoding="utf-8")
            try:
                # 2. Its place, which one of many gets. A kill after it leaves the lock of a dead process.
                if _link(made, path, text):
                    return
                if (found := _read(path)) is None:  # given back in the meantime
                    continue
                why = _refuse_living(path, found, target, "must not write to one place", made)
                if _replace(made, path, found, text, target):
                    logger.warning(
                        "%s: taking over the lock of %s: %s", target, _parse(found) or "a job", why
                    )
                    return
            except FileNotFoundError:  # `made` was taken for a leftover by who has just got the lock
                if not path.parent.exists():
                    raise
    finally:
        with contextlib.suppress(OSError):
            made.unlink(missing_ok=True)


def _replace(made: Path, path: Path, found: str, text: str, target: Path) -> bool:
    """Put `made` in the place of a lock that says `found`; False where it says so no more.

    Of two that take over at once, the slower one would replace the lock of the faster: the right to replace a lock of
    this text is a lock too.
    """
    claim = path.with_name(f"{path.name}-{digest(found.encode())[:16]}")
    _take(
        claim, text, target
    )  # killed from here on, we leave a claim, which the next job takes over like any lock
    try:
        if _read(path) != found:
            return False
        made.replace(path)  # at once: there is never a moment without a lock
        return True
    finally:
        claim.unlink(missing_ok=True)


def _link(made: Path, path: Path, text: str) -> bool:
    """Make `path` of the file `made`; False where there is one."""
    try:
        os.link(made, path)
    except FileExistsError:
        return made.stat().st_nlink > 1  # done, and the server was asked twice
    except OSError as error:
        if error.errno not in NO_LINKS:
            raise
        try:
            with path.open("x", encoding="utf-8") as file:
                file.write(text)
        except FileExistsError:
            return False
    return True


def _refuse_living(path: Path, found: str, target: Path, why: str, now: Path | None = None) -> str:
    """Why the holder of a lock that says `found` is gone; FolderInUse if it is not. now: a file made just now, by the
    clock of the same file system."""
    holder = _parse(found)
    if holder and (gone := _why_gone(holder)):
        return gone
    with contextlib.suppress(FileNotFoundError):
        touched = path.stat().st_mtime
        age = (now.stat().st_mtime if now else time.time()) - touched
        if age >= STALE:
            # Clocks of nodes may differ, and some file systems take the times of files from them: old is not yet dead.
            logger.warning(
                "%s was touched %.0f s ago by the clock here: looking for %g s whether it is touched",
                path,
                age,
                2 * HEARTBEAT,
            )
            time.sleep(2 * HEARTBEAT)
            if path.stat().st_mtime == touched:
                return f"not touched for {age:.0f} s"
    raise FolderInUse(
        f"{target} is in use by {holder or 'a job'}: two jobs {why}. Wait for it or stop it; if it is dead, "
        f"delete {path}"
    )


def _parse(text: str) -> Holder | None:
    """The holder, or None for a text that is no lock's."""
    try:
        return read_record(Holder, json.loads(text), "a lock")
    except (ValueError, RecursionError, IntegrityError):
        return None


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return None


def _beat(path: Path, text: str, ended: threading.Event, lost: threading.Event, writes: bool) -> None:
    """Touch the lock until `ended`; set `lost` when it is another's, and stop a process that `writes` under it.

    An error of the file system is passed over: the next touch may succeed.
    """
    while not ended.wait(HEARTBEAT):
        with contextlib.suppress(OSError):
            if _read(path) != text:
                lost.set()
                if writes:
                    logger.error(
                        "%s is gone or another job's: stopping, as this job no longer has the folder", path
                    )
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
    if holder.machine == _machine() and holder.pid == os.getpid() and holder.token not in _tokens:
        return "this process has given it back"
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
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return False
    return not answer.stdout.strip() if answer.returncode == 0 else "Invalid job id" in answer.stderr
