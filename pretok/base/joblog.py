"""The log of a job: WORK/logs/COMMAND-TIME.jsonl, one JSON object per line.

Input: events with their details. Output: one file per job, one line per event. Each line is one write at once, so a job
killed at any moment leaves whole lines except perhaps the last: the kernel may cut a write between two pages of a file,
and readers skip a line without an end (`storage.read_lines`). Every line has

    time      when it was written, ISO 8601, UTC
    host      where
    job       the Slurm job, inside of one
    command   such as `tokenize`; `rank` beside it where several processes are one job
    event     one of the following, with its details

    start      argv, directory, pid, versions, settings
    notice     message: a line shown to the user; `table` the same with title, columns, rows
    warning    message of a library or of the engine, such as a task that is tried again
    step       title; then `progress` after 3, 9, 21 s and so on, at least every minute, and at last `step_end`:
               message, seconds, counts of this run, those of earlier runs, the estimate of the whole
    task       what (partition, bucket, ...), item, tries, node, began, seconds, peak_bytes of its process
    task_failed  the same with message and traceback; without node and what follows where the worker died
    workers    at the end of a step's tasks: workers, tasks done by node, idle (share of their time without a task),
               peak_bytes
    error      message, traceback: why the job ended
    end        exit_code, null where it is not known yet; seconds

A log that cannot be written does not end the job: that is said once, and nothing more is written.
"""

from __future__ import annotations

import errno
import json
import os
import threading
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import IO

from pretok.base.visible import masked

LOGS = "logs"
"""Folder of the logs below WORK or RUN."""


def utc(seconds: float) -> str:
    """Return `seconds` since 1970 as ISO 8601 with milliseconds, UTC."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")


def when_and_where() -> dict[str, str]:
    """Time and host of a line and, inside a Slurm job, its id as `job`."""
    job = os.environ.get("SLURM_JOB_ID")
    return {"time": utc(time.time()), "host": os.uname().nodename} | ({"job": job} if job else {})


class JobLog:
    """The log of this process, created with its first line.

    name: first part of the file name; always: fields of every line, such as `command`; complain: called once if the log
    cannot be written.
    """

    def __init__(
        self, folder: Path, name: str, always: Mapping[str, object], complain: Callable[[str], None]
    ) -> None:
        self._folder = folder
        self._name = name
        self._always = always
        self._complain = complain
        self._lock = threading.Lock()
        self._began = time.monotonic()
        self._file: IO[bytes] | None = None
        self._closed = False
        self.path: Path | None = None
        """The file; None before the first line, and once it cannot be written."""

    def write(self, event: str, details: Mapping[str, object]) -> None:
        """Add a line. Values in `details` that are not JSON become text; secrets in URLs are masked."""
        fields = {**when_and_where(), **self._always, "event": event}
        values = masked({**fields, **details, **fields})  # first and unchanged
        text = json.dumps(values, default=lambda value: masked(str(value)), skipkeys=True, ensure_ascii=False)
        line = text.encode(errors="replace") + b"\n"  # half a surrogate pair, of a file name, is not JSON
        # Any thread may log: two lines must not mix, and only the first opens the file.
        with self._lock:
            if self._closed:
                return
            try:
                if self._file is None:
                    self._file = self._create()
                if self._file.write(line) < len(line):  # the last page of a full disk
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            except OSError as error:
                self._closed = True
                where, self.path = self.path or self._folder, None
                self._complain(
                    f"cannot write the log {where}: {error.strerror or error}; the job continues without it"
                )

    def end(self, code: int | None) -> None:
        """Write the last line and close the file; nothing if no line was written.

        code: the exit code, None if unknown.
        """
        if self._file is not None:
            self.write("end", {"exit_code": code, "seconds": round(time.monotonic() - self._began, 3)})
        with self._lock:
            self._closed = True
            if self._file is not None:
                self._file.close()

    def _create(self) -> IO[bytes]:
        """Open a file that no other job has. Unbuffered: each line is one system call."""
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._folder / f"{self._name}-{datetime.now():%Y%m%d-%H%M%S.%f}.jsonl"
        file, self.path = path.open("xb", buffering=0), path
        return file
