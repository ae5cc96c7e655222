"""Input files: open and decompress them, and notice whether they have changed since the plan.

Input: an InputFile, or the path of one. Output: streams of bytes; the identity of a file; how it has changed. Local
paths are opened by the operating system, anything with `://` by fsspec.
"""

from __future__ import annotations

import errno
import os
import re
import zlib
from codecs import BOM_UTF8
from collections.abc import Callable, Iterator, Sequence
from typing import IO, Any, TypeVar

import xxhash

from pretok.base.reads import map_reads
from pretok.base.records import Count, Record
from pretok.base.storage import Tries, passes, tried
from pretok.base.visible import masked
from pretok.read.paths import is_remote, name_url, server_of, url_of

IDENTITY_BYTES = 1 << 16
"""Bytes hashed at both ends of a file: two reads, however large it is."""
SMALL = 1 << 20
"""Most bytes of a file that is read at once, ahead of its turn: opening a larger one takes little of its time."""
COMPRESSED_STEP = 1 << 10
"""Bytes of compressed input per step, which bounds the text of a step: 3 kB as a rule, 1 MB of gzip at most, 32 MiB
of zstd, where 4 bytes may stand for a block of 128 KiB (RFC 8878, 3.1.1.2). Larger steps are no faster."""
READ_SIZE = 1 << 22
"""Bytes per read from the file system."""
REMOTE_BLOCK, BLOCKS = 2 * READ_SIZE, 8
"""Bytes of a request to a server, each of which costs the latency of the network, and the blocks kept of a file: Arrow
reads that many of its columns side by side."""

SHOWN = 5
"""Names in one notice."""
Beginning = TypeVar("Beginning", bytes, memoryview)


class CorruptInputError(Exception):
    """The rest of an input file cannot be read, but all before it can. The message is stored, so it is `masked`."""

    def __init__(self, message: str) -> None:
        super().__init__(masked(message))


UNREADABLE, REFUSED = "unreadable", "refused"
"""In the place of a format: of a file that cannot be opened, and of one that holds no documents as it is."""


class InputFile(Record, frozen=True):
    """One input as the plan records it."""

    path: str
    """Of a URL with secrets, its name without them (`paths.name_url`), so that no file stores them; they are passed on
    when it is sent to another process."""
    format: str
    """A name of FORMATS, UNREADABLE or REFUSED."""
    compression: str
    """"", zstd, gzip."""
    size: Count
    """Bytes."""
    identity: str
    """Hash of the first and last 64 KiB, by which a changed file is noticed; why a file is UNREADABLE or REFUSED."""

    def __reduce__(self) -> Any:
        return _received, (url_of(self.path), self.format, self.compression, self.size, self.identity)


def _received(url: str, *rest: Any) -> InputFile:
    return InputFile(name_url(url), *rest)


def open_input(path: str, buffering: int = IDENTITY_BYTES) -> IO[bytes]:
    """Open an input for reading bytes.

    buffering: bytes of a request to a server. With READ_SIZE, the next block is requested while one is being processed.
    """
    if not is_remote(path):
        return open(path, "rb", buffering=buffering)  # noqa: PTH123 - a Path takes as long as opening it
    server, name = server_of(path)
    ahead: dict[str, Any] = {}
    # Protocols that are not asynchronous, such as FTP, have one connection.
    if buffering == READ_SIZE and getattr(server, "async_impl", False):
        ahead = {"cache_type": "background", "cache_options": {"maxblocks": BLOCKS}}
        buffering = REMOTE_BLOCK
    file: IO[bytes] = server.open(name, "rb", block_size=buffering, **ahead)
    return file


def open_parquet(path: str) -> Any:
    """Open a Parquet file for Arrow, which reads a local file itself, without the interpreter lock."""
    import pyarrow as pa

    return open_input(path, READ_SIZE) if is_remote(path) else pa.OSFile(path)


INDEX = {".bin": ".idx", ".ds": ".ds.index"}
"""Suffix of a file of tokens -> that of the file next to it that says where its documents are."""


def index_of(path: str) -> str:
    """Return the path of the index of a file of tokens, "" for a file without one."""
    stem, dot, suffix = path.rpartition(".")
    return f"{stem}{INDEX[dot + suffix]}" if dot + suffix in INDEX else ""


def identify_input(path: str, file_format: str) -> tuple[bytes, bytes, int, str]:
    """`identify` of an input. The identity of a file of tokens is also that of its index."""
    head, tail, size, identity = identify(path)
    if file_format == "tokens" and (index := index_of(path)):
        try:
            _, _, index_size, beside = identify(index)
        except FileNotFoundError:
            raise OSError(errno.ENOENT, f"its index {index} does not exist") from None
        identity = xxhash.xxh3_64(f"{identity} {index_size} {beside}".encode()).hexdigest()
    return head, tail, size, identity


def identify(path: str) -> tuple[bytes, bytes, int, str]:
    """Return (first bytes, last bytes, size, identity) of a file, by at most two reads."""
    with _open_bare(path) as file:
        head = tail = file.read(IDENTITY_BYTES)
        size = file.seek(0, os.SEEK_END)
        if size > IDENTITY_BYTES:
            file.seek(size - IDENTITY_BYTES)
            tail = file.read(IDENTITY_BYTES)
    return head, tail, size, _identity(head, tail)


def _open_bare(path: str) -> IO[bytes]:
    """Open an input for few reads, which a buffer would only copy."""
    return open_input(path) if is_remote(path) else open(path, "rb", 0)  # noqa: PTH123 - as in `open_input`


def _identity(head: bytes, tail: bytes) -> str:
    both = xxhash.xxh3_64(head)
    both.update(tail)
    return both.hexdigest()


Stamp = tuple[int, int] | None
"""Size and modification time of a local file; None for any other input."""


def stamp(file: InputFile) -> Stamp:
    """Return the Stamp of an input; two calls compare them."""
    if is_remote(file.path):
        return None
    try:
        status = os.stat(file.path)  # noqa: PTH116
    except OSError:  # reported when it is read
        return None
    return status.st_size, status.st_mtime_ns


def stamps_of(inputs: Sequence[InputFile]) -> dict[str, Stamp]:
    """Return the stamp of each input, by path."""
    return dict(zip((file.path for file in inputs), map_reads(stamp, inputs), strict=True))


def _forget_listing(path: str) -> None:
    """Let the next request of a URL ask its server: fsspec may have cached a listing."""
    if is_remote(path):
        server_of(path)[0].invalidate_cache()


def what_changed(file: InputFile, before: Stamp) -> str:
    """Say how a file differs from the planned one, or that it was written to in the meantime; "" if neither.

    before: what `stamp` gave. A change of equal size in the middle of a file, before `before`, is not noticed.
    """
    if file.format in (UNREADABLE, REFUSED):
        return ""
    try:
        _forget_listing(file.path)
        _, _, size, identity = tried(lambda: identify_input(file.path, file.format))
    except OSError as error:
        problem: str = masked(f"changed since it was planned: {error}")
        return problem
    if size != file.size:
        return f"changed since it was planned: it had {file.size:,} bytes and has {size:,}"
    if identity != file.identity:
        return "changed since it was planned: it begins or ends otherwise"
    return "" if stamp(file) == before else "changed since it was planned: it was written to"


def read_small(file: InputFile, planned: Stamp) -> bytes | None:
    """Read a file of at most SMALL, if its bytes are the planned ones; None for any other file.

    Later changes of the file do not matter. planned: its stamp, None if it is unknown.
    """
    # The identity of tokens is also that of their index.
    if file.size > SMALL or file.format in ("tokens", UNREADABLE, REFUSED):
        return None
    try:
        whole = file.size <= IDENTITY_BYTES  # then the identity covers all bytes
        before = None if whole else planned or stamp(file)
        _forget_listing(file.path)
        with _open_bare(file.path) as opened:
            data = opened.read(file.size + 1)
        same = whole or stamp(file) == before
    except OSError:  # reported when it is read again
        return None
    identity = _identity(data[:IDENTITY_BYTES], data[-IDENTITY_BYTES:])
    return data if same and (len(data), identity) == (file.size, file.identity) else None


# Magic numbers: RFC 8878 (zstd frames, and skippable frames, which pzstd writes first), RFC 1952 (gzip).
_COMPRESSIONS = {
    re.compile(rb"\x28\xb5\x2f\xfd|[\x50-\x5f]\x2a\x4d\x18"): "zstd",
    re.compile(rb"\x1f\x8b"): "gzip",
}


def compression_of(beginning: bytes) -> str:
    """Return the compression of a file or frame with these first bytes, "" for none."""
    return next((name for magic, name in _COMPRESSIONS.items() if magic.match(beginning)), "")


_BEGINNINGS = {"zstd": (b"\x28\xb5\x2f\xfd", b"\x50\x2a\x4d\x18"), "gzip": (b"\x1f\x8b\x08\x00",)}


def _may_begin(beginning: bytes, compression: str) -> bool:
    """Whether these, at most four, bytes may begin a frame."""
    wholes = (beginning + known[len(beginning) :] for known in _BEGINNINGS[compression])
    return any(compression_of(whole) == compression for whole in wholes)


def _decompressor(compression: str) -> Any:
    """Return a decompressor of one frame, with `decompress(data)`, `eof` and `unused_data`."""
    if compression == "gzip":
        return zlib.decompressobj(16 + zlib.MAX_WBITS)
    return zstd_frames().decompressobj()


def zstd_frames() -> Any:
    """Return a ZstdDecompressor for windows of up to 2 GiB, as `zstd --long=31` writes them."""
    import zstandard

    return zstandard.ZstdDecompressor(max_window_size=1 << 31)


def raise_passing(damage: CorruptInputError) -> None:
    """Raise the OSError behind `damage` if it may be temporary, for a caller that cannot use part of an input."""
    if isinstance(damage.__cause__, OSError) and passes(damage.__cause__):
        raise damage.__cause__


def decompress(blocks: Iterator[bytes], compression: str, *, partial: bool = False) -> Iterator[bytes]:
    """Decompress blocks of a file of any number of zstd frames or gzip members.

    Yields everything that can be decoded, then raises CorruptInputError for a truncated or damaged frame, or for other
    bytes after the last one (gzip: except zeros). partial: the blocks may end early.
    """
    import zstandard

    state = _decompressor(compression)
    follows = f"other bytes follow the last frame of {compression}"
    whole = 0  # frames that have ended
    beginning = b""  # the first bytes of the current frame
    padding = False  # whether zeros may follow: tape padding after a gzip member, of any length
    for data in blocks:
        if padding:
            data = data.lstrip(b"\0")
        while data:
            beginning += data[: 4 - len(beginning)]
            try:
                text = state.decompress(data)
            except (zlib.error, zstandard.ZstdError) as error:
                if whole and not _may_begin(beginning, compression):
                    raise CorruptInputError(follows) from None
                raise CorruptInputError(f"damaged {compression} data: {error}") from None
            padding = False
            if text:
                yield text
            data = b""
            if state.eof:
                data = state.unused_data
                state, beginning, whole = _decompressor(compression), b"", whole + 1
                if compression == "gzip":
                    data, padding = data.lstrip(b"\0"), True
    if beginning and not partial:
        if whole and not _may_begin(beginning, compression):
            raise CorruptInputError(follows)
        raise CorruptInputError(
            f"the {compression} stream ends in the middle of a frame: the file is truncated"
        )


def without_bom(beginning: Beginning) -> Beginning:
    """Drop a byte order mark from the beginning of a file.

    It is not part of the text (RFC 8259, 8.1; Unicode, 23.8).
    """
    return beginning[len(BOM_UTF8) :] if bytes(beginning[: len(BOM_UTF8)]) == BOM_UTF8 else beginning


Blocks = Callable[[int], Iterator[bytes]]
"""Yields the bytes of a file in blocks of this size; may raise CorruptInputError. A second call reads it again."""


def in_memory(data: bytes) -> Blocks:
    """Return the Blocks of a file whose bytes are in memory."""
    return lambda size: (data[at : at + size] for at in range(0, len(data), size))


def in_file(path: str, start: int = 0, stop: int | None = None) -> Blocks:
    """Return the Blocks of a file from `start` to `stop`."""

    def blocks(size: int) -> Iterator[bytes]:
        try:
            yield from _in_order(path, start, stop, size)
        except OSError as error:
            raise CorruptInputError(f"reading failed: {error}") from error

    return blocks


def unpacked(blocks: Blocks, compression: str, *, partial: bool = False) -> Iterator[bytes]:
    """Yield the decompressed bytes of a file; without compression, its bytes."""
    if not compression:
        return blocks(READ_SIZE)
    return decompress(blocks(COMPRESSED_STEP), compression, partial=partial)


def unpack(data: bytes, compression: str, *, partial: bool = False) -> Iterator[bytes]:
    """Yield the decompressed bytes of a file whose bytes are in memory."""
    return unpacked(in_memory(data), compression, partial=partial)


def read_bytes(path: str, compression: str, start: int = 0, stop: int | None = None) -> Iterator[bytes]:
    """Yield the file's bytes, decompressed; of an uncompressed file, those from `start` to `stop`.

    Raises CorruptInputError after the last readable byte if the file is damaged, shorter than `stop`, or a read failed.
    """
    return unpacked(in_file(path, start, stop), compression)


def _in_order(path: str, start: int, stop: int | None, size: int) -> Iterator[bytes]:
    """After an error that may be temporary, the file is opened again and reading continues."""
    at, tries = start, Tries()
    while True:
        try:
            with open_input(path, READ_SIZE) as file:
                file.seek(at)
                while stop is None or at < stop:
                    data = file.read(size if stop is None else min(size, stop - at))
                    if not data:
                        break
                    at += len(data)
                    yield data
            break
        except OSError as error:
            if not tries.again(error):
                raise
    if stop is not None and at < stop:
        raise CorruptInputError(f"the file is {stop - at} bytes shorter than when it was planned")
