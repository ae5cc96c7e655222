"""Files of ours on disk: atomic writes, canonical JSON, fingerprints, checksums.

Everything is written under a temporary name in the target's folder, flushed to disk and renamed, so a reader sees
the old file, the new file or none. An OSError that may pass leaves every reader and writer as it is: whoever can do the
work again does so (`tried`, a task of the engine, a whole command). `pretok.stream` and `train` use this module:
msgspec beside the standard library, and xxhash where a checksum is asked for.
"""

from __future__ import annotations

import errno
import glob
import hashlib
import json
import logging
import os
import time
from collections.abc import Callable, Container, Iterator
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import IO, Any, Self, TypeVar

import msgspec

from pretok.base.errors import IntegrityError, NoSpace, OutputError

logger = logging.getLogger(__name__)

TEMPORARY_SUFFIX = ".tmp"
"""Ends the name of every unfinished file; such files are never read and may be deleted when no job runs."""

FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
"""Errors that only writing gives and that waiting does not fix."""
PASSING = {
    errno.EAGAIN,
    errno.EBUSY,
    errno.ECONNABORTED,
    errno.ECONNREFUSED,
    errno.ECONNRESET,
    errno.EHOSTDOWN,
    errno.EHOSTUNREACH,
    errno.EINTR,
    errno.EIO,
    errno.EMFILE,
    errno.ENETDOWN,
    errno.ENETUNREACH,
    errno.ENFILE,
    errno.ENOMEM,
    errno.ENOTCONN,
    errno.EPIPE,
    errno.ESHUTDOWN,
    errno.ESTALE,
    errno.ETIMEDOUT,
}
"""Errors of file systems, networks and full tables of the kernel that may be gone at the next try."""
WAITS = (0.2, 2.0, 20.0)
"""Seconds before each further try of what failed with an error that may pass."""
Result = TypeVar("Result")

LOCK_FILE = ".lock"
"""What the lock of a folder is called (see `pretok.base.lock`), and what ends the name of one beside what it is of."""

REMEDIES = {
    errno.EACCES: "choose a path that you may write or read, or ask its owner",
    errno.EPERM: "choose a path that you may write or read, or ask its owner",
    errno.EROFS: "choose a path on a file system that can be written",
    errno.ENOSPC: "make room there and run the same command again, what is sealed is kept",
    errno.EDQUOT: "make room in your quota and run the same command again, what is sealed is kept",
    errno.EEXIST: "a file stands where a folder must go; choose another name",
    errno.ENOTDIR: "a file stands where a folder must go; choose another name",
    errno.EISDIR: "a folder stands where a file must go; choose the name of a file",
    errno.ENAMETOOLONG: "choose a shorter name",
}
"""What to do about a file that cannot be read or written."""


def output_error(error: OSError, path: Path | None = None) -> OutputError:
    """What to tell a user who cannot write `path`, or the file that `error` names."""
    where = path or error.filename or "the output"
    remedy = REMEDIES.get(error.errno or 0, "fix that or choose another folder")
    kind = NoSpace if error.errno in FULL else OutputError
    return kind(f"cannot write {where}: {error.strerror or error}; {remedy}")


def name_path(error: OSError, path: Path | str) -> OSError:
    """`error`, which names `path` where it named no file."""
    if error.filename is None:
        error.filename = os.fspath(path)
    return error


class Tries:
    """How often a piece of work may still be done again."""

    def __init__(self) -> None:
        self._waits = iter(WAITS)

    def again(self, error: BaseException | None) -> bool:
        """Whether to do it again, after the wait that this takes: `error` may pass, and it was not tried too often."""
        if not passes(error) or (wait := next(self._waits, None)) is None:
            return False
        logger.warning("trying again in %g s: %s", wait, error)
        time.sleep(wait)
        return True


def passes(error: BaseException | None) -> bool:
    """Whether an error of a file or a connection may be gone at the next try."""
    return isinstance(error, OSError) and error.errno in PASSING


def tried(work: Callable[[], Result]) -> Result:
    """What `work` gives, which is done again while its OSError may pass."""
    tries = Tries()
    while True:
        try:
            return work()
        except OSError as error:
            if not tries.again(error):
                raise


@contextmanager
def reading(path: Path, *damage: type[Exception]) -> Iterator[None]:
    """Turn an OSError that will not pass by itself, and `damage`, into an IntegrityError that names `path`."""
    kinds: tuple[type[Exception], ...] = (OSError, *damage)
    try:
        yield
    except kinds as error:
        if isinstance(error, OSError) and error.errno in PASSING:
            raise name_path(error, path) from None
        told = error.strerror if isinstance(error, OSError) else None
        raise IntegrityError(f"cannot read {path}: {told or error}") from None


@contextmanager
def writing(path: Path, only: Container[int | None] | None = None) -> Iterator[None]:
    """Turn an OSError that will not pass by itself into an OutputError that names `path`.

    `only`: these errors alone, where the body may also read what is not ours.
    """
    try:
        yield
    except OSError as error:
        if only is not None and error.errno not in only:
            raise
        if error.errno in PASSING:
            raise name_path(error, path) from None
        raise output_error(error, path) from error


class NewFile:
    """A file that is being written: under a temporary name beside `path` until `seal`, gone where its context ends
    without. What goes through `write` is summed up in `size` and `checksum`; Arrow may write to it as to a file.

    The temporary name holds the host and the process id, so two attempts at one file never write into each other.
    Raises OutputError that names `path` where it cannot be written or the disk is full.
    """

    closed = False  # Arrow asks; what it writes after the end goes nowhere

    def __init__(self, path: Path, mode: str = "wb") -> None:
        self.path = path
        self.size = 0
        self._temporary = temporary_of(path)
        encoding = None if "b" in mode else "utf-8"
        with writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            self.file: IO[Any] = open(self._temporary, mode, encoding=encoding)  # noqa: PTH123, SIM115

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        with suppress(
            OSError
        ):  # a full disk is met again by what the file still holds: the first error is told
            self.file.close()
        with suppress(OSError):
            self._temporary.unlink(missing_ok=True)

    @cached_property
    def _digest(self) -> Any:
        import xxhash  # not needed by the readers that only stream

        return xxhash.xxh3_128()

    @property
    def checksum(self) -> str:
        """Of all that was written, as `checksum` of the file gives it."""
        return f"xxh3:{self._digest.hexdigest()}"

    def write(self, data: Any) -> int:
        """Add bytes; how many. Arrow's writers end with a write whatever happened: after the end it goes nowhere."""
        if not self.file.closed:
            self._digest.update(data)
            self.size += len(data)
            with writing(self.path):
                self.file.write(data)
        return len(data)

    def flush(self) -> None:
        """Done by `seal`, as `close`, which Arrow calls too."""

    close = flush

    def tell(self) -> int:
        """Bytes so far."""
        return self.size

    def seal(self) -> None:
        """Flush to disk, then rename: a reader sees the old file, the whole new one or none."""
        with writing(self.path):
            # Killed before the rename, it leaves the temporary file, which `remove_leftovers` takes. The bytes come
            # first: a host that dies must not leave a name without them. The rename is one step for all nodes.
            self.file.flush()
            os.fsync(self.file.fileno())
            self.file.close()
            self._temporary.replace(self.path)


@contextmanager
def atomic_open(path: Path, mode: str = "wb") -> Iterator[IO[Any]]:
    """The file of a `NewFile`, sealed at the end. On an exception `path` stays as it was."""
    with NewFile(path, mode) as new:
        with writing(path, FULL):
            yield new.file
        new.seal()


def write_bytes(path: Path, data: bytes) -> str:
    """Write a whole file atomically; its checksum."""
    with NewFile(path) as file:
        file.write(data)
        file.seal()
    return file.checksum


def temporary_of(path: Path, part: str = "") -> Path:
    """Name of the unfinished file that becomes `path`, or of a `part` that it is made from: this process's own."""
    return path.with_name(f".{path.name}{part}.{os.uname().nodename}-{os.getpid()}{TEMPORARY_SUFFIX}")


def copy_file(source: Path, target: Path) -> None:
    """Copy a small file atomically; one with the same contents is left alone."""
    data = source.read_bytes()
    if not target.exists() or target.read_bytes() != data:
        write_bytes(target, data)


def remove_leftovers(target: Path) -> None:
    """Delete what killed tasks left unfinished of a file or below a folder, which this job holds and none of its tasks
    writes to. A folder in it beside which another job's lock stands is left alone."""
    if not target.is_dir():
        left = target.parent.glob(f".{glob.escape(target.name)}.*{TEMPORARY_SUFFIX}")
    else:
        left = target.rglob(f".*{TEMPORARY_SUFFIX}")
    others = {target / lock.name[1:].removesuffix(LOCK_FILE) for lock in target.glob(f".?*{LOCK_FILE}")}
    for path in left:
        if others.isdisjoint(path.parents) and not path.is_dir():  # of a checkpoint, which `train` takes away
            path.unlink(missing_ok=True)


def canonical_json(value: Any) -> bytes:
    """The one byte form of a JSON value that fingerprints are taken of: sorted keys, no spaces, UTF-8."""
    return json.dumps(
        value, sort_keys=True, ensure_ascii=False, separators=(",", ":"), allow_nan=False
    ).encode()


def digest(data: bytes) -> str:
    """128-bit BLAKE2b of `data`, as 32 hexadecimal digits."""
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def fingerprint(value: Any) -> str:
    """`digest` of the canonical JSON of `value`."""
    return digest(canonical_json(value))


def write_json(path: Path, value: Any) -> None:
    """Write `value` as readable JSON (keys in the order given), atomically."""
    # The library's own indentation is a chain of generators, ten times as slow.
    text = json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    with atomic_open(path) as file:
        file.write(msgspec.json.format(text, indent=1) + b"\n")


def read_json(path: Path) -> Any:
    """Read a JSON file. Raises IntegrityError that names the file when it cannot be read or is not JSON as we write it:
    NaN, numbers of thousands of digits, lists nested without end and lone surrogates come from another hand."""
    with reading(path):
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            raise IntegrityError(f"{path} does not exist") from None
    try:
        return msgspec.json.decode(data)
    except (ValueError, RecursionError) as error:
        raise IntegrityError(f"{path} is not valid JSON ({error}); it was damaged or edited") from None


def checksum(path: Path, block: int = 1 << 22) -> str:
    """XXH3-128 of a whole file as 'xxh3:' and 32 hexadecimal digits, read in blocks of `block` bytes."""
    import xxhash  # not needed by the readers that only stream

    digest = xxhash.xxh3_128()
    with path.open("rb", buffering=0) as file:
        while data := file.read(block):
            digest.update(data)
    return f"xxh3:{digest.hexdigest()}"


def compare_checksum(path: Path, sealed: str) -> None:
    """Raises IntegrityError where a file is missing or has another checksum than it was sealed with."""
    with reading(path):
        found = checksum(path)
    if found != sealed:
        raise damaged(path)


def damaged(path: Path) -> IntegrityError:
    """What to tell of a file whose checksum is another than it was sealed with."""
    return IntegrityError(
        f"{path} is damaged: its checksum is not that with which it was sealed; run pretok verify"
    )


def read_json_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The objects of a JSON Lines file of ours. Raises IntegrityError that names the line."""
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            yield parse_line(line, f"{path}, line {number}")


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The objects of a JSON Lines file that others may be adding to, such as a log or metrics. Raises IntegrityError
    that names the line.

    A last line that is not ended, by a writer at work or killed, is left out; empty where there is no file.
    """
    if not path.exists():
        return []
    with path.open("rb") as lines:
        return [
            parse_line(line, f"{path}, line {number}")
            for number, line in enumerate(lines, 1)
            if line.endswith(b"\n")
        ]


def parse_line(line: bytes, where: str) -> dict[str, Any]:
    """The object that a line of JSON Lines of ours holds. Raises IntegrityError that says `where` it stands."""
    try:
        found = msgspec.json.decode(line)
    except (ValueError, RecursionError) as error:
        raise IntegrityError(f"{where} is not valid JSON ({error}); it was damaged or edited") from None
    if not isinstance(found, dict):
        raise IntegrityError(f"{where} holds no object; it was damaged or edited")
    return found
