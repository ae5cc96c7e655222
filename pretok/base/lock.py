"""One job at a time in an output folder, on file systems that several nodes share.

Input: a folder that a job is about to write to, or to read for long. Output: FOLDER/.lock while the job runs, or
FolderInUse, which names the job that is there. Kernel locks would not do: on many clusters `flock` is off, or local to
one node. The lock is a file that is linked into its place, which only one job can do on Lustre, GPFS and NFS. It names
its holder, and a thread of the holder touches it every HEARTBEAT seconds.

A job takes over a lock when its holder is gone: its process is dead (seen from the same node), Slurm no longer knows
its job or has requeued it, or the lock has not been touched for STALE seconds, nor while this job watches it. The
clocks of nodes may differ, so no lock is taken because of its age alone. `train` uses this module.
"""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
import secrets
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from glob import escape
from pathlib import Path

from pretok.base.errors import FolderInUse, IntegrityError, OutputError
from pretok.base.records import Record, read_record, to_json
from pretok.base.storage import LOCK_FILE, TEMPORARY_SUFFIX, digest, remove_leftovers, writing

logger = logging.getLogger(__name__)

READERS = ".reading-"
"""Prefix of the locks of jobs that only read."""
HEARTBEAT = 15.0
"""Seconds between touches of the lock."""
STALE = 300.0
"""Seconds without a touch after which the holder may be gone."""
MACHINE = ("/proc/sys/kernel/random/boot_id", "/proc/self/ns/pid")
"""If two processes see the same in both, a process id means the same to both."""
NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)
"""Errors of file systems without hard links. There a kill between two calls may leave an empty lock."""


class Holder(Record, frozen=True):
    """Who holds a folder."""

    what: str
    """The job, as it names itself."""
    host: str
    pid: int
    machine: str
    """What the files of MACHINE hold there."""
    started: str
    """When the process started, in ticks since boot, as ids are reused."""
    job: str
    """Its Slurm job, "" outside of one."""
    restarts: int
    """How often Slurm had requeued the job."""
    since: str
    token: str
    """Unique for each lock."""

    def __str__(self) -> str:
        job = f", Slurm job {self.job}" if self.job else ""
        return f"{self.what} (host {self.host}, process {self.pid}{job}, since {self.since})"


_ours: dict[str, tuple[Path, int, threading.Event] | None] = {}
"""The locks of this process by their tokens: path, id of the thread, and the event that says that the lock was lost;
None while it waits for the lock."""


@contextmanager
def hold(target: Path, what: str, *, beside: bool = False) -> Iterator[threading.Event]:
    """Keep other jobs out of the folder `target`, which is created if missing; `what` names this job to them.

    beside: the lock is next to `target`, which is a file, or a folder inside one that others may write to. Unfinished
    files that killed jobs left there are removed. A thread may hold the same lock again.

    Raises FolderInUse, OutputError. Taking over a lock is logged as a warning. If the lock is lost while it is held
    (someone deleted it), this process gets SIGTERM, which ends a job in good order; the yielded event is then set, for
    a body that must not write even at its end. A process that was suspended until another job took its lock gets
    KeyboardInterrupt in the main thread as soon as it continues.
    """
    path = (target.with_name(f".{target.name}{LOCK_FILE}") if beside else target / LOCK_FILE).absolute()
    # A copy, as other threads may take and release locks meanwhile.
    for ours in list(_ours.values()):
        if ours and ours[:2] == (path, threading.get_ident()):
            yield ours[2]
            return
    new = not path.parent.exists()
    try:
        with _locked(path, target, what) as lost:
            # Under the lock no other job writes here, so what is unfinished was left by one that is gone. A
            # lock that another job is just trying to create may go, too: `_take` tries again.
            remove_leftovers(target)
            for claim in path.parent.glob(f"{escape(path.name)}-*"):  # of takeovers that were killed
                claim.unlink(missing_ok=True)
            yield lost
    finally:
        if new:
            with contextlib.suppress(OSError):  # not empty: the job wrote something
                path.parent.rmdir()


@contextmanager
def share(folder: Path, what: str) -> Iterator[None]:
    """Register this job as a reader of `folder`, so that `refuse_readers` names it to others.

    A folder that cannot be written to is read all the same, unregistered. A reader whose registration is lost is
    stopped as `hold` says: what it reads may change.
    """
    with contextlib.ExitStack() as stack:
        if folder.is_dir() and os.access(folder, os.W_OK):
            try:
                with contextlib.suppress(FolderInUse):
                    refuse_readers(folder)  # removes the registrations of killed readers
                stack.enter_context(_locked(folder / f"{READERS}{secrets.token_hex(8)}", folder, what))
            except (OutputError, OSError) as error:  # a full disk does not prevent reading
                logger.warning(
                    "cannot register as a reader of %s (other jobs will not know): %s", folder, error
                )
        yield


def refuse_readers(folder: Path) -> None:
    """Raise FolderInUse naming a job that reads `folder`; registrations of jobs that are gone are removed."""
    for path in folder.glob(f"{READERS}*"):
        if (text := _read(path)) is not None:
            _refuse_living(path, text, folder, "must not change what another reads")
            path.unlink(missing_ok=True)


def is_lock(path: Path) -> bool:
    """Return whether this module created a file."""
    return path.name[0] == "." and (LOCK_FILE in path.name or path.name.startswith(READERS))


def holder_of(folder: Path) -> Holder | None:
    """Return the holder of a folder, as far as this node can see; None without one, or if its job is gone."""
    path = folder / LOCK_FILE
    with contextlib.suppress(OSError):
        holder = _parse(_read(path) or "")
        if holder and not _why_gone(holder):
            seen = holder.machine == _machine()  # its process lives, whatever the clock says
            return holder if seen or abs(time.time() - path.stat().st_mtime) < STALE else None
    return None


@contextmanager
def _locked(path: Path, target: Path, what: str) -> Iterator[threading.Event]:
    holder = _this_process(what)
    ended, lost = threading.Event(), threading.Event()

    def beat() -> None:
        """Touch the lock until the job ends; if it is another's, set `lost` and stop this process."""
        while not ended.wait(HEARTBEAT):
            with contextlib.suppress(OSError):  # the next touch may succeed
                if not _is_of(holder.token, path):
                    # Logged at the end, by the thread that holds the lock: the signal may raise in it while it has the
                    # lock of a log, and this thread would then wait for that lock for ever.
                    lost.set()
                    os.kill(os.getpid(), signal.SIGTERM)
                    return
                os.utime(path)

    # A daemon: it must not keep alive a process whose main thread has ended.
    thread = threading.Thread(target=beat, daemon=True, name="folder-lock")
    # Before the lock exists: to another thread it would look as if this process had given it back.
    _ours[holder.token] = None
    try:
        with writing(target):
            _take(path, holder, target)
        _ours[holder.token] = path, threading.get_ident(), lost
        thread.start()
        if threading.current_thread() is threading.main_thread():  # others cannot set handlers
            signal.signal(signal.SIGCONT, _look)
        try:
            yield lost
        finally:
            ended.set()
            if os.getpid() == holder.pid:  # a forked child leaves its parent's lock alone
                # Before the lock goes: the thread would take that for a lost lock and stop this process. A
                # kill until then leaves the lock of a dead process, which the next job takes over.
                thread.join()
                if lost.is_set():
                    logger.error("%s is gone or another job's: the folder was no longer ours", path)
                try:
                    # A job that took the lock over keeps it.
                    if _is_of(holder.token, path):
                        path.unlink(missing_ok=True)
                except OSError as error:  # must not hide what ended the job
                    logger.warning("%s stays: %s; the next job takes it over", path, error.strerror)
    finally:
        del _ours[holder.token]


def _look(*_: object) -> None:
    """Check all locks when this process continues after it was suspended (`scontrol suspend`, Ctrl-Z).

    Another job may have taken them. The thread that touches them would see it only after this process has written some
    files.
    """
    for token, ours in list(_ours.items()):
        if ours and not _is_of(token, ours[0]):
            ours[2].set()
            raise KeyboardInterrupt  # no code handles this as a failure to retry


def _take(path: Path, holder: Holder, target: Path) -> None:
    """Create the lock `path`, after removing one whose holder is gone; FolderInUse if that holder lives."""
    while True:
        path.parent.mkdir(parents=True, exist_ok=True)  # whoever created it may just have removed it, empty
        # 1. Create: of many that try at once, one succeeds.
        if _create(path, holder):
            # 2. A kill from here on leaves the lock of a dead process, which the next job takes over.
            return
        if (text := _read(path)) is None:  # given back in the meantime
            continue
        why = _refuse_living(path, text, target, "must not write to one place")
        # 3. Two jobs may find the same dead lock. The slower one must not remove the lock of the faster, so the right
        #    to remove a lock of this text is a lock too. A kill here leaves that one, to be taken over like any other.
        claim = path.with_name(f"{path.name}-{digest(text.encode())[:16]}")
        _take(claim, holder, target)
        try:
            # Read again under the claim: a faster job may have put its own lock there by now.
            if _read(path) == text:
                path.unlink()
                # A kill before the claim goes leaves a file that hinders nobody: no later lock has the text
                # that it is named after. Whoever gets the lock removes it.
                logger.warning("%s: taking over the lock of %s: %s", target, _parse(text) or "a job", why)
        finally:
            claim.unlink(missing_ok=True)


def _create(path: Path, holder: Holder) -> bool:
    """Create the lock with all of its text at once, so that no kill leaves an empty one; False if it is there."""
    # A kill before the link leaves a `.tmp` file, which the next job removes: `remove_leftovers`, or `refuse_readers`.
    unfinished = path.with_name(f"{path.name}-{secrets.token_hex(8)}{TEMPORARY_SUFFIX}")
    text = json.dumps(to_json(holder))
    try:
        unfinished.write_text(text, encoding="utf-8")
        # A link fails where the name exists. A rename would replace the lock of another job.
        os.link(unfinished, path)
        return True
    except FileExistsError:
        return _is_of(holder.token, path)  # true if the server of the files was asked twice
    except FileNotFoundError:  # another job took `unfinished` for a leftover, or removed an empty folder
        return False
    except OSError as error:
        if error.errno not in NO_LINKS:
            raise
        with contextlib.suppress(FileExistsError), path.open("x", encoding="utf-8") as file:
            file.write(text)
        return _is_of(holder.token, path)
    finally:
        with contextlib.suppress(OSError):
            unfinished.unlink(missing_ok=True)


def _refuse_living(path: Path, text: str, target: Path, why: str) -> str:
    """Return why the holder of a lock with `text` is gone. Raise FolderInUse if it is alive."""
    holder = _parse(text)
    if holder and (gone := _why_gone(holder)):
        return gone
    try:
        touched = path.stat().st_mtime
        if abs(age := time.time() - touched) >= STALE:
            # The clocks of nodes differ, and some file systems set file times by them: old does not mean dead. After a
            # clock was set back, a dead lock is of the future.
            logger.warning("%s is %.0f s old: watching for %g s if it is touched", path, age, 2 * HEARTBEAT)
            time.sleep(2 * HEARTBEAT)
            if path.stat().st_mtime == touched:
                return f"not touched for {age if age > 0 else 2 * HEARTBEAT:.0f} s"
    except FileNotFoundError:
        return "its job has just ended"
    raise FolderInUse(
        f"{target} is in use by {holder or 'a job'}: two jobs {why}. Wait for it or stop it; if it is dead, "
        f"delete {path}"
    )


def _parse(text: str) -> Holder | None:
    """Return the holder, or None for a text that is not a lock's."""
    try:
        return read_record(Holder, json.loads(text), "a lock")
    except (ValueError, RecursionError, IntegrityError):
        return None


def _read(path: Path) -> str | None:
    """Return the text of a lock; None if there is none."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return None


def _is_of(token: str, path: Path) -> bool:
    """Return whether a lock is there and has this token."""
    return token in (_read(path) or "")


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
    """Return when a process of this machine started, in ticks since boot.

    None if it is dead (or only not yet reaped).
    """
    try:
        # The program's name, in parentheses, may hold any character: fields are counted after the last `)`.
        fields = (
            Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        )
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] in "ZX" else fields[19]


def _why_gone(holder: Holder) -> str:
    """Return why the holder is surely gone, or an empty string."""
    # Only where process ids mean the same does a missing process prove anything.
    if holder.machine == _machine():
        if holder.pid == os.getpid() and holder.token not in _ours:
            return "this process has released it"
        # Ids are used again: a process that started at another time is another one.
        if _started(holder.pid) != holder.started:
            return "its process is dead"
    # Slurm would say that the job runs, and it does: this is it, perhaps started again.
    if holder.job and holder.job == os.environ.get("SLURM_JOB_ID"):
        if holder.restarts < int(os.environ.get("SLURM_RESTART_COUNT", "0")):
            return "Slurm has requeued its job"
    elif holder.job and _job_ended(holder.job):
        return "its Slurm job has ended"
    return ""


def _job_ended(job: str) -> bool:
    """Return whether Slurm says that a job has ended; False if there is no Slurm to ask, or it does not answer."""
    try:
        command = ["squeue", "--noheader", "--jobs", job]
        answer = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return False
    # Slurm soon forgets a job that ended and then calls its id invalid. Any other error proves nothing.
    return not answer.stdout.strip() if answer.returncode == 0 else "Invalid job id" in answer.stderr
