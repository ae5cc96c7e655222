"""Files of ours on disk: atomic writes, canonical JSON, fingerprints, checksums.

Files are written under a temporary name in the folder of the target, flushed to disk and renamed, so a reader sees the
old file, the new file or none. Readers and writers raise an OSError that may pass unchanged: the code that can repeat
the work does so (`tried`, a task of the engine). `pretok.stream` and `train` use this module, which needs only msgspec,
and xxhash for checksums.
"""

from __future__ import annotations

import errno
import glob
import hashlib
import json
import logging
import os
import time
from collections.abc import Callable, Collection, Container, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import IO, Any, Self, TypeVar

import msgspec

from pretok.base.errors import IntegrityError, NoSpace, OutputError

logger = logging.getLogger(__name__)

TEMPORARY_SUFFIX = ".tmp"
"""Suffix of unfinished files: no job reads them, and they may be deleted when no job runs."""

FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
"""Errors of writing that waiting does not fix."""
PASSING = {
    errno.EAGAIN, errno.EBUSY, errno.EINTR, errno.EIO, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ESTALE,
    errno.ECONNABORTED, errno.ECONNREFUSED, errno.ECONNRESET, errno.EHOSTDOWN, errno.EHOSTUNREACH, errno.ENETDOWN,
    errno.ENETUNREACH, errno.ENOTCONN, errno.EPIPE, errno.ESHUTDOWN, errno.ETIMEDOUT,
}  # fmt: skip
"""Errors of file systems, full kernel tables (first line) and networks that may be gone at the next try."""
WAITS = (0.2, 2.0, 20.0)
"""Seconds before each retry after an error that may pass."""
Result = TypeVar("Result")

LOCK_FILE = ".lock"
"""Name of the lock of a folder (see `pretok.base.lock`), and suffix of a lock that is next to its target."""

REMEDIES = {
    errno.EACCES: "choose a path that you may write or read, or ask its owner",
    errno.EPERM: "choose a path that you may write or read, or ask its owner",
    errno.EROFS: "choose a path on a file system that can be written",
    errno.ENOSPC: "free some space there and run the same command again; what is complete is kept",
    errno.EDQUOT: "free some of your quota and run the same command again; what is complete is kept",
    errno.EEXIST: "a file has the name of a folder that is needed; choose another name",
    errno.ENOTDIR: "a file has the name of a folder that is needed; choose another name",
    errno.EISDIR: "this is a folder; choose the name of a file",
    errno.ENAMETOOLONG: "choose a shorter name",
}
"""Advice for a file that cannot be read or written."""


def output_error(error: OSError, path: Path | None = None) -> OutputError:
    """Return the error for a file that cannot be written: `path`, or the file that `error` names."""
    where = path or error.filename or "the output"
    remedy = REMEDIES.get(error.errno or 0, "fix that or choose another folder")
    kind = NoSpace if error.errno in FULL else OutputError
    return kind(f"cannot write {where}: {error.strerror or error}; {remedy}")


def name_path(error: OSError, path: Path | str) -> OSError:
    """Give `error` the file `path` if it names none, and return it."""
    if error.filename is None:
        error.filename = os.fspath(path)
    return error


class Tries:
    """The retries that are left for a piece of work."""

    def __init__(self) -> None:
        self._waits = iter(WAITS)

    def again(self, error: BaseException | None) -> bool:
        """Return whether to try again: `error` may pass, and retries are left. Waits before it returns True."""
        if not passes(error) or (wait := next(self._waits, None)) is None:
            return False
        logger.warning("trying again in %g s: %s", wait, error)
        time.sleep(wait)
        return True


def passes(error: BaseException | None) -> bool:
    """Return whether the error of a file or a connection may be gone at the next try."""
    return isinstance(error, OSError) and error.errno in PASSING


def tried(work: Callable[[], Result]) -> Result:
    """Do `work` and return its result, retrying after an OSError that may pass."""
    tries = Tries()
    while True:
        try:
            return work()
        except OSError as error:
            if not tries.again(error):
                raise


def await_files(paths: Collection[Path]) -> None:
    """Return once this node sees the files, which others have written: on a network file system one may appear late.

    Raises IntegrityError if one does not.
    """
    missing = list(paths)
    for wait in (0.0, *WAITS):
        time.sleep(wait)
        for folder in {path.parent for path in missing}:
            os.listdir(folder)  # noqa: PTH208 - such a file system then forgets which names it did not find
        missing = [path for path in missing if not path.exists()]
        if not missing:
            return
    raise IntegrityError(
        f"{missing[0]} is written, but this node does not see it; run the same command again"
    )


@contextmanager
def reading(path: Path, *damage: type[Exception]) -> Iterator[None]:
    """Turn an OSError that will not pass, and the errors `damage`, into an IntegrityError that names `path`."""
    kinds: tuple[type[Exception], ...] = (OSError, *damage)
    try:
        yield
    except kinds as error:
        if isinstance(error, OSError) and passes(error):
            raise name_path(error, path) from None
        raise IntegrityError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from None


@contextmanager
def writing(path: Path, only: Container[int | None] | None = None) -> Iterator[None]:
    """Turn an OSError that will not pass into an OutputError that names `path`.

    only: convert only these errors, where the body may also read other files.
    """
    try:
        yield
    except OSError as error:
        if only is not None and error.errno not in only:
            raise
        if passes(error):
            raise name_path(error, path) from None
        raise output_error(error, path) from error


class NewFile:
    """A file that is being written.

    It has a temporary name next to `path` until `seal`, and is deleted if its context ends before. `size` and
    `checksum` are those of the bytes given to `write`. Arrow can write to it as to a file.

    The temporary name has the host and the process id, so two attempts at one file never share it. Raises OutputError
    that names `path` if it cannot be written or the disk is full.
    """

    closed = False  # Arrow reads this attribute

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
        # After `seal` both do nothing: the file is closed, and its temporary name is gone.
        with suppress(OSError):  # buffered bytes meet the full disk again: the first error is raised
            self.file.close()
        with suppress(OSError):
            self._temporary.unlink(missing_ok=True)

    @cached_property
    def _digest(self) -> Any:
        import xxhash  # not needed by the readers that only stream

        return xxhash.xxh3_128()

    @property
    def checksum(self) -> str:
        """The checksum of all bytes so far, as the function `checksum` gives it for the file."""
        return f"xxh3:{self._digest.hexdigest()}"

    def write(self, data: Any) -> int:
        """Add bytes; return their number. Arrow's writers go on writing after an error: those bytes are dropped."""
        if not self.file.closed:
            self._digest.update(data)
            self.size += len(data)
            with writing(self.path):
                self.file.write(data)
        return len(data)

    def flush(self) -> None:
        """Do nothing, like `close`: Arrow calls both, and `seal` does the work."""

    close = flush

    def tell(self) -> int:
        """Return the number of bytes so far."""
        return self.size

    def seal(self) -> None:
        """Flush to disk, rename, flush the folder: a reader sees the old file, the whole new one or none."""
        with writing(self.path):
            # A kill before the rename leaves the temporary file, which `remove_leftovers` deletes. The bytes go to disk
            # first: a host that dies must not leave a name without them. All nodes see the rename as one step.
            self.file.flush()
            os.fsync(self.file.fileno())
            self.file.close()
            self._temporary.replace(self.path)
            # A host that dies after this keeps the name, too: what is sealed later may rely on this file.
            try:
                folder = os.open(self.path.parent, os.O_DIRECTORY)
            except PermissionError:  # a folder that may be written, but not read, cannot be flushed
                return
            try:
                os.fsync(folder)
            except OSError as error:
                if error.errno != errno.EINVAL:  # a file system that has no such flush
                    raise
            finally:
                os.close(folder)


@contextmanager
def atomic_open(path: Path, mode: str = "wb") -> Iterator[IO[Any]]:
    """Open a `NewFile`, which is sealed at the end. After an exception `path` is unchanged."""
    with NewFile(path, mode) as new:
        with writing(path, FULL):
            yield new.file
        new.seal()


def write_bytes(path: Path, data: bytes) -> str:
    """Write a whole file atomically; return its checksum."""
    with NewFile(path) as file:
        file.write(data)
        file.seal()
    return file.checksum


def temporary_of(path: Path, part: str = "") -> Path:
    """Name of the unfinished file that becomes `path`, or of a `part` of it; no other process has the same."""
    # In the folder of `path`, as a rename is one step only inside one file system.
    return path.with_name(f".{path.name}{part}.{os.uname().nodename}-{os.getpid()}{TEMPORARY_SUFFIX}")


def copy_file(source: Path, target: Path) -> None:
    """Copy a small file atomically, unless the target has the same contents."""
    data = source.read_bytes()
    if not target.exists() or target.read_bytes() != data:
        write_bytes(target, data)


def remove_leftovers(target: Path) -> None:
    """Delete the unfinished files that killed tasks left next to a file or below a folder.

    This job must hold its lock, and none of its tasks may write to it. A folder inside that has the lock of another job
    next to it is left alone.
    """
    if not target.is_dir():
        left = target.parent.glob(f".{glob.escape(target.name)}.*{TEMPORARY_SUFFIX}")
    else:
        left = target.rglob(f".*{TEMPORARY_SUFFIX}")
    # `.NAME.lock` beside NAME: its holder may be writing an unfinished file in NAME just now.
    others = {target / lock.name[1:].removesuffix(LOCK_FILE) for lock in target.glob(f".?*{LOCK_FILE}")}
    for path in left:
        if others.isdisjoint(path.parents) and not path.is_dir():  # `train` removes folders of checkpoints
            path.unlink(missing_ok=True)


def canonical_json(value: Any) -> bytes:
    """Return the canonical form of a JSON value, for fingerprints: sorted keys, no spaces, UTF-8."""
    return json.dumps(
        value, sort_keys=True, ensure_ascii=False, separators=(",", ":"), allow_nan=False
    ).encode()


def digest(data: bytes | Iterable[bytes]) -> str:
    """Return the 128-bit BLAKE2b of `data`, which may come in parts, as 32 hexadecimal digits."""
    hasher = hashlib.blake2b(digest_size=16)
    for part in [data] if isinstance(data, bytes) else data:
        hasher.update(part)
    return hasher.hexdigest()


def fingerprint(value: Any) -> str:
    """`digest` of the canonical JSON of `value`."""
    return digest(canonical_json(value))


def write_json(path: Path, value: Any) -> None:
    """Write `value` as indented JSON, keys in the given order, atomically."""
    # The library's own indentation is a chain of generators, ten times as slow.
    text = json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    with atomic_open(path) as file:
        file.write(msgspec.json.format(text, indent=1) + b"\n")


def read_json(path: Path) -> Any:
    """Read a JSON file.

    Raises IntegrityError that names the file if it cannot be read or is not JSON as we write it, without NaN, numbers
    of thousands of digits, endless nesting and lone surrogates.
    """
    return _decoded(read_file(path), str(path))


def read_file(path: Path) -> bytes:
    """Read a whole file. Raises IntegrityError."""
    with reading(path):
        try:
            return path.read_bytes()
        except FileNotFoundError:
            raise IntegrityError(f"{path} does not exist") from None


def _decoded(data: bytes, where: str) -> Any:
    """Decode a JSON value. Raises IntegrityError with `where`, its place."""
    try:
        return msgspec.json.decode(data)
    except (ValueError, RecursionError) as error:
        raise not_json(where, error) from None


def not_json(where: Path | str, error: Exception) -> IntegrityError:
    """Return the error for a file that is not JSON as we write it."""
    return IntegrityError(f"{where} is not valid JSON ({error}); it was damaged or edited")


def hash_file(path: Path, hasher: Any, block: int = 1 << 22) -> str:
    """Return the hexadecimal digest of a whole file, read in blocks of `block` bytes."""
    # Unbuffered: the blocks are large, and a buffer would only copy them.
    with path.open("rb", buffering=0) as file:
        while data := file.read(block):
            hasher.update(data)
    return str(hasher.hexdigest())


def checksum(path: Path) -> str:
    """Return the XXH3-128 of a whole file as 'xxh3:' and 32 hexadecimal digits."""
    import xxhash  # not needed by the readers that only stream

    return f"xxh3:{hash_file(path, xxhash.xxh3_128())}"


def compare_checksum(path: Path, sealed: str, actual_of: Callable[[Path], str] = checksum) -> None:
    """Raise IntegrityError if a file is missing or does not have the checksum that it was sealed with."""
    with reading(path):
        actual = actual_of(path)
    if actual != sealed:
        raise damaged(path)


def damaged(path: Path) -> IntegrityError:
    """Return the error for a file whose checksum is not the sealed one."""
    return IntegrityError(
        f"{path} is damaged: its checksum is not the one it was sealed with; run pretok verify"
    )


def read_json_lines(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the objects of a finished JSON Lines file of ours. Raises IntegrityError that names the line."""
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            yield parse_line(line, f"{path}, line {number}")


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Return the objects of a JSON Lines file that is still being written, such as a log; none if it is missing.

    A last line without an end, from a writer at work or killed, is left out. Raises IntegrityError that names the line.
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
    """Parse the object in a line of JSON Lines. Raises IntegrityError with `where`, the place of the line."""
    value = _decoded(line, where)
    if not isinstance(value, dict):
        raise IntegrityError(f"{where} is not a JSON object; it was damaged or edited")
    return value
