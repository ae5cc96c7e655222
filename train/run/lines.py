"""The one writer of a run's files of JSON lines: metrics, goodput, what was changed, what was tried.

Input: records. Output: a line for each, with the time, the host and the Slurm job. An error that may pass is tried
again by the rule of `pretok.base.storage`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from pretok.base.joblog import when_and_where
from pretok.base.storage import FULL, atomic_open, name_path, read_lines, tried


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
