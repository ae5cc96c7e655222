"""Input files: list them, recognise their format by content, open and decompress them, notice when they changed.

Enters: paths, globs and fsspec URLs. Leaves: InputFile descriptions (sorted, each once) and streams of bytes.
Local paths go through the operating system; anything with `://` goes through fsspec.
"""

from __future__ import annotations

import errno
import json
import os
import re
import stat
import zlib
from collections import defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Protocol

import xxhash

from pretok.base.errors import UsageError
from pretok.read.paths import HUB, expand, is_dataset, is_glob, is_remote
from pretok.read.servers import blocks_ahead, size_on_server
from pretok.read.zstd_frames import FrameWalk

IDENTITY_BYTES = 1 << 16
"""Bytes hashed at both ends of a file: two reads, however large it is."""
COMPRESSED_STEP = 1 << 15
"""Bytes of compressed input per step: 100 KB of text as a rule, 30 MB at most (zlib shrinks text a thousandfold)."""
READ_SIZE = 1 << 22
"""Bytes per read from the file system."""

_PARQUET = b"PAR1"
"""Begins and ends a Parquet file; a truncated one is recognised by its name and fails by name."""
# Magic numbers: RFC 8878 (zstd), RFC 1952 (gzip).
_COMPRESSIONS = {b"\x28\xb5\x2f\xfd": "zstd", b"\x1f\x8b": "gzip"}
_SUFFIX_COMPRESSION = {".zst": "zstd", ".zstd": "zstd", ".gz": "gzip"}
_SUFFIX_FORMAT = {
    ".jsonl": "jsonl", ".json": "jsonl", ".ndjson": "jsonl", ".parquet": "parquet", ".txt": "text", ".text": "text",
}  # fmt: skip
_TABLE = (
    'CSV; convert it to Parquet or JSON Lines, or declare format = "text" to take all of it as one document'
)
_OTHER_SUFFIXES = {
    ".arrow": "a bare Arrow file; give the folder that datasets.save_to_disk wrote",
    ".csv": _TABLE,
    ".tsv": _TABLE,
    ".safetensors": "a file of tensors, not of text",
}
"""What the names of files say that hold no documents, and what to do."""
_OTHER_BEGINNINGS = {
    b"\xfd7zXZ": "compressed by xz; compress it by zstd or gzip",
    b"BZh": "compressed by bzip2; compress it by zstd or gzip",
    b"\x04\x22\x4d\x18": "compressed by lz4; compress it by zstd or gzip",
    b"PK\3\4": "a zip archive; unpack it",
    b"ARROW1": "a bare Arrow file; convert it to Parquet",
    b"Obj\1": "Avro; convert it to Parquet",
}
_ARRAY = re.compile(rb'\s*\[\s*[{"]')
_KINDS = ((stat.S_ISDIR, "a folder"), (stat.S_ISFIFO, "a named pipe"), (stat.S_ISSOCK, "a socket"))
SHOWN = 5
"""Names in one notice."""
LOOKED_AT = 64
"""Files that a thread looks at in a row: handing it each by itself took as long as looking."""


class CorruptInputError(Exception):
    """The rest of an input file cannot be read; what came before it can."""


@dataclass(frozen=True, slots=True)
class InputFile:
    """One input as the plan records it.

    format: jsonl, parquet, text, dataset (a Hugging Face dataset saved to disk) or hub; compression: "", zstd, gzip;
    size in bytes; identity: hash of the first and last 64 KiB, which tells a changed file from the planned one.
    """

    path: str
    format: str
    compression: str
    size: int
    identity: str


def open_input(path: str, buffering: int = IDENTITY_BYTES) -> IO[bytes]:
    """Open an input for reading bytes, so many at a time at least: a request to a server asks for that many."""
    if not is_remote(path):
        return Path(path).open("rb", buffering=buffering)
    import fsspec

    server, name = fsspec.url_to_fs(path)
    file: IO[bytes] = server.open(name, "rb", block_size=buffering)
    return file


def open_parquet(path: str) -> Any:
    """Open a Parquet file for Arrow, which reads a local one itself, without the interpreter lock."""
    import pyarrow as pa

    return open_input(path, READ_SIZE) if is_remote(path) else pa.OSFile(path)


def list_inputs(patterns: Sequence[str], declared_format: str) -> tuple[list[InputFile], list[str]]:
    """Every input the patterns match, once, sorted by path; and notices worth telling: a name that lies, an empty file,
    what a glob matches that is no file.

    UsageError names an input that is not there, is no regular file or has no format that is read, and a file that two
    paths lead to.
    """
    explicit: dict[str, bool] = {}
    for pattern in patterns:
        for path in expand(pattern):
            explicit[path] = explicit.get(path, False) or not is_glob(pattern)
    paths = sorted(explicit)
    step = max(1, min(LOOKED_AT, len(paths) // 64))

    def look_at(start: int) -> list[_Look]:
        return [_look(path, explicit[path], declared_format) for path in paths[start : start + step]]

    with ThreadPoolExecutor(16) as pool:
        looks = [found for some in pool.map(look_at, range(0, len(paths), step)) for found in some]
    _refuse_twice([look for look in looks if look.file])
    files = [look.file for look in looks if look.file]
    if not files:
        raise UsageError(f"{', '.join(patterns)}: {'; '.join(look.notice for look in looks[:SHOWN])}")
    left_out = defaultdict(list)
    for look in looks:
        if not look.file:
            left_out[look.notice].append(look.path)
    notices = [f"left out, {what}: {shorten(paths)}" for what, paths in sorted(left_out.items())]
    if empty := [file.path for file in files if file.size == 0 and file.format not in ("hub", "unreadable")]:
        notices.append(f"empty: {shorten(empty)}")
    return files, notices + [look.notice for look in looks if look.file and look.notice]


def shorten(paths: Sequence[str]) -> str:
    """A list of paths as a message shows it: the first few, and how many more."""
    more = f" and {len(paths) - SHOWN} more" if len(paths) > SHOWN else ""
    return ", ".join(paths[:SHOWN]) + more


@dataclass(frozen=True, slots=True)
class _Look:
    """What a look at a path found: an input, with its device and inode where it has any, or None and why not."""

    path: str
    file: InputFile | None
    notice: str = ""
    inode: tuple[int, int] | None = None


def _look(path: str, explicit: bool, declared_format: str) -> _Look:
    """Describe a path. UsageError where the user named it (`explicit`) and it is no input."""
    if path.startswith(HUB):
        return _Look(path, InputFile(path, "hub", "", 0, ""))
    inode = None
    try:
        if not is_remote(path):
            what, inode = _kind(path)
            if what and explicit:
                raise UsageError(f"{path} is {what}, not an input file{_hint(path)}")
            if what:
                return _Look(path, None, what)
        if is_dataset(path):
            return _Look(path, _describe_dataset(path), "", inode)
        file, notice = _describe(path, declared_format)
    except OSError as error:  # the partition that holds it fails by name; the rest of the job goes on
        file = InputFile(path, "unreadable", "", 0, str(error.strerror or error))
        notice = f"{path} cannot be read: {error.strerror or error}"
    return _Look(path, file, notice, inode)


def _kind(path: str) -> tuple[str, tuple[int, int]]:
    """What a local path is, "" for a regular file or a saved dataset; device and inode. Opens nothing: opening a named
    pipe waits for ever."""
    try:
        found = os.stat(path)  # noqa: PTH116
    except OSError as error:
        link = os.path.islink(path)  # noqa: PTH114
        if link and error.errno in (errno.ENOENT, errno.ELOOP):
            return "a link that leads to itself" if error.errno == errno.ELOOP else "a link to nothing", (
                0,
                0,
            )
        raise
    if stat.S_ISREG(found.st_mode) or is_dataset(path):
        what = ""
    else:
        what = next((name for test, name in _KINDS if test(found.st_mode)), "a device")
    return what, (found.st_dev, found.st_ino)


def _hint(path: str) -> str:
    if not Path(path).is_dir():
        return ""
    splits = (Path(path) / "dataset_dict.json").exists()
    return f": {'name one of its splits' if splits else 'give a glob such as'} {path}/*"


def _refuse_twice(looks: Sequence[_Look]) -> None:
    """UsageError when two paths lead to one file: its documents would be there twice."""
    seen: dict[tuple[int, int], str] = {}
    for look in looks:
        if look.inode is not None:
            other = seen.setdefault(look.inode, look.path)
            if other != look.path:
                raise UsageError(f"{other} and {look.path} are the same file; name it once")


def _describe(path: str, declared_format: str) -> tuple[InputFile, str]:
    head, tail, size, identity = _identify(path)
    suffixes = [suffix.lower() for suffix in Path(path).suffixes]
    by_name = next((_SUFFIX_COMPRESSION[s] for s in suffixes[-1:] if s in _SUFFIX_COMPRESSION), "")
    compression = next((c for magic, c in _COMPRESSIONS.items() if head.startswith(magic)), "")
    suffix = next(iter((suffixes[:-1] if by_name else suffixes)[-1:]), "")
    named_format = _SUFFIX_FORMAT.get(suffix, "")
    if head.startswith(_PARQUET) and tail.endswith(_PARQUET):
        file_format = "parquet"
    elif declared_format != "auto":
        file_format = declared_format
    else:
        begins = _beginning(head, compression)
        _refuse_other(path, begins, suffix)
        file_format = named_format or ("jsonl" if begins.lstrip()[:1] == b"{" else "text")
    if file_format == "parquet" and declared_format not in ("auto", "parquet"):
        raise UsageError(f"{path} is Parquet, but the source declares format {declared_format}")
    notice = ""
    if size and (compression != by_name or (named_format and file_format != named_format)):
        real = f"{file_format}{'.' + compression if compression else ''}"
        notice = f"{path} is {real} by its content, not what its name says; read as {real}"
    return InputFile(path, file_format, compression, size, identity), notice


def _beginning(head: bytes, compression: str) -> bytes:
    """The first bytes of a file, decompressed, without a BOM; none where they are damaged."""
    if compression:
        blocks = (head[at : at + COMPRESSED_STEP] for at in range(0, len(head), COMPRESSED_STEP))
        try:
            head = next(decompress(blocks, compression, partial=True), b"")
        except CorruptInputError:  # told when it is read
            head = b""
    return head[:IDENTITY_BYTES].removeprefix(b"\xef\xbb\xbf")


def _refuse_other(path: str, begins: bytes, suffix: str) -> None:
    """UsageError for a file that cannot hold documents in a format that is read, whatever it is read as."""
    other = _OTHER_SUFFIXES.get(suffix)
    if _SUFFIX_FORMAT.get(suffix, "jsonl") == "jsonl" and _ARRAY.match(begins):
        other = "one JSON array, not JSON Lines; write an object a line, as jq -c '.[]' does"
    if suffix not in _SUFFIX_FORMAT and not other:
        other = next((what for magic, what in _OTHER_BEGINNINGS.items() if begins.startswith(magic)), None)
        if not other and b"\0" in begins:
            other = "binary: neither JSON Lines, Parquet nor text"
    if other:
        raise UsageError(f"{path} is {other}")


def _identify(path: str) -> tuple[bytes, bytes, int, str]:
    """First and last bytes, size and identity of a file, by two reads."""
    with open_input(path) as file:
        head = file.read(IDENTITY_BYTES)
        size = file.seek(0, 2)
        file.seek(max(0, size - IDENTITY_BYTES))
        tail = file.read(IDENTITY_BYTES)
    return head, tail, size, xxhash.xxh3_64_hexdigest(head + tail)


def _describe_dataset(path: str) -> InputFile:
    try:
        files = json.loads((Path(path) / "state.json").read_bytes())["_data_files"]
        names = [str(Path(path) / file["filename"]) for file in files]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise UsageError(f"{path}/state.json is not what datasets.save_to_disk writes") from None
    shards = [_identify(name) for name in names]
    identity = xxhash.xxh3_64_hexdigest("".join(identity for *_, identity in shards).encode())
    return InputFile(path, "dataset", "", sum(size for _, _, size, _ in shards), identity)


def stamp(file: InputFile) -> tuple[int, int] | None:
    """Size and time of the last change of a local file, which two calls compare; None for any other input."""
    if is_remote(file.path) or file.format in ("hub", "dataset"):
        return None
    try:
        found = os.stat(file.path)  # noqa: PTH116
    except OSError:  # told when it is read
        return None
    return found.st_size, found.st_mtime_ns


def what_changed(file: InputFile, before: tuple[int, int] | None) -> str:
    """What tells that a file is no longer the one that was planned, or was written to since `stamp` gave `before`; ""
    if nothing does.

    A change of equal size in the middle of a file, between planning and reading, is not seen.
    """
    if file.format in ("hub", "unreadable"):
        return ""
    try:
        if file.format == "dataset":
            now = _describe_dataset(file.path)
            size, identity = now.size, now.identity
        else:
            _, _, size, identity = _identify(file.path)
    except (OSError, UsageError) as error:
        return f"changed since it was planned: {error}"
    if size != file.size:
        return f"changed since it was planned: it had {file.size:,} bytes and has {size:,}"
    if identity != file.identity:
        return "changed since it was planned: it begins or ends otherwise"
    return "" if stamp(file) == before else "changed while it was read"


class _Decompressor(Protocol):
    eof: bool
    unused_data: bytes

    def decompress(self, data: bytes, /) -> bytes: ...


def _decompressor(compression: str) -> _Decompressor:
    if compression == "gzip":
        return zlib.decompressobj(16 + zlib.MAX_WBITS)  # type: ignore[return-value]
    import zstandard

    # Windows of up to 2 GiB, as `zstd --long=31` writes them.
    decompressor: Any = zstandard.ZstdDecompressor(max_window_size=1 << 31).decompressobj()
    return decompressor  # type: ignore[no-any-return]


def decompress(blocks: Iterator[bytes], compression: str, *, partial: bool = False) -> Iterator[bytes]:
    """Decompress blocks of a file of any number of zstd frames or gzip members.

    Everything decodable is yielded before CorruptInputError tells of a truncated or damaged frame, or of other bytes
    after the last one (gzip: except zeros); `partial` says that the blocks are known to end early.
    """
    import zstandard

    slices = FrameWalk().slices if compression == "zstd" else lambda block: iter((block,))
    state = _decompressor(compression)
    began = False  # whether the current frame has seen any byte
    padding = False  # whether zeros may come: tape padding after a gzip member, of any length
    for data in (data for block in blocks for data in slices(block)):
        if padding:
            data = data.lstrip(b"\0")
        while data:
            try:
                text = state.decompress(data)
            except (zlib.error, zstandard.ZstdError) as error:
                raise CorruptInputError(f"damaged {compression} data: {error}") from None
            began, padding = True, False
            if text:
                yield text
            data = b""
            if state.eof:
                data = state.unused_data
                state, began = _decompressor(compression), False
                if compression == "gzip":
                    data, padding = data.lstrip(b"\0"), True
    if began and not partial:
        raise CorruptInputError(
            f"the {compression} stream ends in the middle of a frame: the file is truncated"
        )


def read_bytes(path: str, compression: str, start: int = 0, stop: int | None = None) -> Iterator[bytes]:
    """The file's bytes, decompressed; `start` and `stop` cut an uncompressed one.

    Raises CorruptInputError after the last readable byte: the file is damaged, shorter than `stop`, or a read failed.
    """

    def blocks(size: int) -> Iterator[bytes]:
        try:
            with open_input(path, READ_SIZE) as file:
                there = size_on_server(file) if is_remote(path) else None
                if there is None:
                    yield from _in_order(file, start, stop, size)
                else:
                    end = there if stop is None else min(stop, there)
                    for block in blocks_ahead(file, start, end, READ_SIZE):
                        yield from (block[at : at + size] for at in range(0, len(block), size))
                    _check_end(end, stop)
        except OSError as error:
            raise CorruptInputError(f"reading failed: {error}") from None

    return decompress(blocks(COMPRESSED_STEP), compression) if compression else blocks(READ_SIZE)


def _in_order(file: IO[bytes], start: int, stop: int | None, size: int) -> Iterator[bytes]:
    file.seek(start)
    at = start
    while stop is None or at < stop:
        data = file.read(size if stop is None else min(size, stop - at))
        if not data:
            break
        at += len(data)
        yield data
    _check_end(at, stop)


def _check_end(end: int, stop: int | None) -> None:
    if stop is not None and end < stop:
        raise CorruptInputError(f"the file is {stop - end} bytes shorter than when it was planned")
