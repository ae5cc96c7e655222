"""Files of ours on disk: atomic writes, canonical JSON, fingerprints, checksums.

Everything is written under a temporary name in the target's folder, flushed to disk and renamed, so a reader sees
the old file, the new file or none. `pretok.stream` and `train` use this module: standard library only, and xxhash
where a checksum is asked for.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from pretok.errors import IntegrityError

TEMPORARY_SUFFIX = ".tmp"
"""Ends the name of every unfinished file; such files are never read and may be deleted when no job runs."""


@contextmanager
def atomic_open(path: Path, mode: str = "wb") -> Iterator[IO[Any]]:
    """Open a temporary file beside `path` for writing; on success flush, fsync and rename it to `path`.

    On an exception the temporary file is removed and `path` stays as it was. The temporary name holds the host
    and the process id, so two attempts at one file never write into each other.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.uname().nodename}-{os.getpid()}{TEMPORARY_SUFFIX}")
    encoding = None if "b" in mode else "utf-8"
    try:
        with open(temporary, mode, encoding=encoding) as file:  # noqa: PTH123 - mode is a parameter
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def copy_file(source: Path, target: Path) -> None:
    """Copy a small file atomically; one with the same contents is left alone."""
    data = source.read_bytes()
    if not target.exists() or target.read_bytes() != data:
        with atomic_open(target) as file:
            file.write(data)


def remove_leftovers(folder: Path) -> None:
    """Delete what killed tasks left unfinished below `folder`; one job at a time may write to an output folder."""
    for path in folder.rglob(f".*{TEMPORARY_SUFFIX}"):
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
    with atomic_open(path, "w") as file:
        json.dump(value, file, ensure_ascii=False, indent=1, allow_nan=False)
        file.write("\n")


def read_json(path: Path) -> Any:
    """Read a JSON file. Raises IntegrityError that names the file when it is missing or not JSON."""
    try:
        return json.loads(path.read_bytes())
    except FileNotFoundError:
        raise IntegrityError(f"{path} does not exist") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise IntegrityError(f"{path} is not valid JSON ({error}); it was damaged or edited") from None


def checksum(path: Path, block: int = 1 << 22) -> str:
    """XXH3-128 of a whole file as 'xxh3:' and 32 hexadecimal digits, read in blocks of `block` bytes."""
    import xxhash  # not needed by the readers that only stream

    digest = xxhash.xxh3_128()
    with path.open("rb", buffering=0) as file:
        while data := file.read(block):
            digest.update(data)
    return f"xxh3:{digest.hexdigest()}"


def read_json_lines(path: Path) -> Iterator[Any]:
    """The objects of a JSON Lines file of ours."""
    with path.open(encoding="utf-8") as file:
        for line in file:
            yield json.loads(line)
