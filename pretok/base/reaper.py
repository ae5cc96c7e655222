"""Ends what a Ray started by us leaves behind: `python reaper.py SESSION_DIR`, a process beside the driver.

Input: standard input, which ends when the driver closes it or dies, however it dies. Output: no other process that
has a file of the Ray session open, as each of Ray's has its log. Ray's own processes end with the driver only in part:
after a kill of the driver its two agents stay for ever, after one of the raylet or the GCS most others. Standard
library only, and no import of ours.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from pathlib import Path


def users(session: str) -> dict[int, str]:
    """The processes with an open file below the folder, without this one: process id -> name of the program."""
    found = {}
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit() or int(folder.name) == os.getpid():
            continue
        with contextlib.suppress(OSError):  # ended in the meantime, or another user's
            if any(os.readlink(file).startswith(f"{session}/") for file in (folder / "fd").iterdir()):  # noqa: PTH115
                found[int(folder.name)] = (
                    (folder / "comm").read_text(encoding="utf-8", errors="replace").strip()
                )
    return found


def alive(pid: int) -> bool:
    """Whether a process is there and not only waiting to be reaped by its parent."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def main(session: str) -> None:
    """Wait for the end of standard input, then kill until nothing of the session is left but the driver."""
    driver = os.getppid()
    for number in (
        signal.SIGINT,
        signal.SIGTERM,
        signal.SIGUSR1,
    ):  # meant for the driver, which may go on for a while
        signal.signal(number, signal.SIG_IGN)
    sys.stdin.buffer.read()
    while processes := users(session).keys() - {driver}:
        for pid in processes:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    main(sys.argv[1])
