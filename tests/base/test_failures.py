"""What a failure means, where our own files cannot be written, and what a job raises at its end."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pyarrow as pa
import pytest

from pretok.base.errors import (
    IntegrityError,
    InternalError,
    MismatchError,
    NoSpace,
    OutputError,
    PartitionsFailed,
    PretokError,
    UsageError,
)
from pretok.base.failures import TaskError, raise_failures, task_error
from pretok.base.storage import atomic_open, write_bytes

CASES: list[tuple[BaseException, type[PretokError], bool, str]] = [
    (IntegrityError("it-00000.bin is damaged"), IntegrityError, False, "it-00000.bin is damaged"),
    (OSError(errno.EIO, "Input/output error", "a.jsonl"), PartitionsFailed, True, "Input/output error"),
    (OSError(errno.ESTALE, "Stale file handle"), PartitionsFailed, True, "Stale file handle"),
    (ConnectionResetError(errno.ECONNRESET, "reset by peer"), PartitionsFailed, True, "reset by peer"),
    (TimeoutError("no answer of the hub"), PartitionsFailed, True, "no answer of the hub"),
    (MemoryError(), PartitionsFailed, True, "fewer --workers"),
    (pa.ArrowMemoryError("malloc of size 64 failed"), PartitionsFailed, True, "malloc of size 64 failed"),
    (OSError(errno.ENOSPC, "No space left"), NoSpace, False, "No space left; free some space"),
    (OSError(errno.EROFS, "Read-only", "x.bin"), UsageError, False, "x.bin: Read-only"),
    (OSError(errno.EDQUOT, "Quota exceeded", "x.bin"), NoSpace, False, "x.bin: Quota exceeded"),
    (FileNotFoundError(errno.ENOENT, "No such file", "a.jsonl"), UsageError, False, "a.jsonl: No such file"),
    (OSError(errno.EBADF, "Bad file descriptor"), InternalError, False, "Bad file descriptor"),
    (KeyError("piece"), InternalError, False, "KeyError: 'piece'"),
    (AssertionError(), InternalError, False, "AssertionError: "),
]


@pytest.mark.parametrize(("error", "raises", "again", "message"), CASES, ids=lambda value: repr(value)[:30])
def test_what_an_exception_means(error, raises, again, message):
    found = task_error(error)
    assert (found.raises, found.again) == (raises, again)
    assert message in found.message
    assert type(error).__name__ in found.trace or again


def test_the_worst_failure_decides_and_all_are_named():
    lost = ("it-00000", TaskError("worker died", "", PartitionsFailed, again=True))
    refused = ("it-00001", TaskError("made by another version", "", MismatchError))
    bug = ("it-00002", TaskError("KeyError: 'x'", "Traceback: line 7", InternalError))
    raise_failures([], None)
    for failures, kind in (([lost], PartitionsFailed), ([lost, refused], MismatchError)):
        with pytest.raises(kind, match="everything else is done and kept") as error:
            raise_failures(failures, None)
        assert all(f"  {name}: {one.message}\n" in str(error.value) for name, one in failures)
    for log, where in (
        (Path("a.jsonl"), "a.jsonl"),
        (None, "these tracebacks:\nit-00002\nTraceback: line 7"),
    ):
        with pytest.raises(InternalError, match=f"please report it with {where}\n"):
            raise_failures([lost, refused, bug], log)


def test_a_file_that_cannot_be_written_is_named_and_nothing_of_it_stays(tmp_path):
    (tmp_path / "file").touch()
    for path in (tmp_path / "file" / "below.json", tmp_path / ("n" * 250 + ".json")):
        with pytest.raises(OutputError, match=str(path)), atomic_open(path):
            pass
    reading = PermissionError(errno.EACCES, "Permission denied", "input.parquet")
    for error, kind in (
        (OSError(errno.ENOSPC, "No space left on device"), NoSpace),
        (OSError(errno.EIO, "Input/output error"), OSError),
        (reading, PermissionError),
    ):
        with pytest.raises(kind) as found, atomic_open(tmp_path / "unfinished"):
            raise error
        assert type(found.value) is kind
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_sealed_file_is_on_disk_before_and_after_it_has_its_name(tmp_path, monkeypatch):
    path, calls = tmp_path / "sealed", []

    def fsync(descriptor: int) -> None:
        calls.append((Path(f"/proc/self/fd/{descriptor}").resolve(), path.exists()))

    monkeypatch.setattr(os, "fsync", fsync)
    write_bytes(path, b"bytes")
    assert [(where.parent, named) for where, named in calls] == [(tmp_path, False), (tmp_path.parent, True)]
    assert calls[1][0] == tmp_path
