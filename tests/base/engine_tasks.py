"""What the engine's tests give to workers: tasks, in a module that a worker imports in no time."""

from __future__ import annotations

import errno
import os
import time
from pathlib import Path

from pretok.base.errors import MismatchError
from pretok.base.execute import WORKER_ENVIRONMENT, Report


class Panic(BaseException):
    """As pyo3 raises for a panic: not an Exception, and cannot be made again from its arguments."""

    def __init__(self, text: str, code: int) -> None:
        super().__init__(text)
        self.code = code


ERRORS = {
    "bug": ValueError("cannot do it\nsecond line"),
    "panic": Panic("regex gave up", 3),
    "refused": MismatchError("made from\nsomething else"),
    "handles": OSError(errno.EMFILE, "Too many open files", "a.jsonl"),
    "passes": OSError(errno.ESTALE, "stale file handle"),
}


def square(item: int, report: Report) -> int:
    report({"items": 1})
    return item * item


def give_back(case: tuple[str, Path], report: Report) -> object:
    kind, folder = case
    (folder / f"{kind}.{time.time_ns()}").touch()
    report({"items": 1})
    tries = len(list(folder.glob(f"{kind}.*")))
    if kind in ERRORS:
        raise ERRORS[kind]
    if kind == "fails twice" and tries <= 2:
        raise OSError(errno.EIO, "Input/output error")
    if kind == "always dies" or (kind == "dies once" and tries == 1):
        os._exit(1)
    return (lambda: kind) if kind == "no pickle" else kind


def environment(item: int, report: Report) -> dict[str, str]:
    return {name: os.environ.get(name, "") for name in WORKER_ENVIRONMENT}


def square_or_wait(item: int | Path, report: Report) -> int | None:
    if isinstance(item, int):
        return square(item, report)
    item.touch()
    time.sleep(60)
    return None


def preload() -> None:
    """What the parent of the workers calls."""
    os.environ["PRELOADED"] = str(os.getpid())


def load_once(item: str, report: Report) -> int:
    os.environ["LOADED"] = str(os.getpid())
    return os.getpid()


def cannot_load(error: Exception | None, report: Report) -> None:
    if error is None:
        os._exit(1)
    raise error


def touch_own(folder: Path, report: Report) -> tuple[str, str]:
    """The process of a worker and the one that has loaded for it."""
    assert os.environ["PRELOADED"] == str(os.getppid())
    (folder / str(os.getpid())).touch()
    time.sleep(0.1)
    return str(os.getpid()), os.environ["LOADED"]
