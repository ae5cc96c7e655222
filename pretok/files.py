"""Input files: list them, recognise their format by content, open and decompress them.

Enters: paths, globs and fsspec URLs. Leaves: InputFile descriptions (sorted, each once) and streams of bytes.
Local paths go through the operating system; anything with `://` goes through fsspec.
"""

from __future__ import annotations

import glob
import json
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Protocol

import xxhash

from pretok.errors import UsageError
from pretok.sample import sample_path
from pretok.zstd_frames import FrameWalk

SAMPLE = "sample:"
"""Starts an input that is the text shipped with the package: `sample:it`."""
HUB = "hub:"
"""Starts the name of a dataset on a hub: `hub:ID[:CONFIG[:SPLIT]]`."""
IDENTITY_BYTES = 1 << 16
COMPRESSED_STEP = 1 << 15
"""Bytes of compressed input per step: 100 KB of text as a rule, 30 MB at most (zlib shrinks text a thousandfold)."""
READ_SIZE = 1 << 22
"""Bytes per read from the file system."""

_PARQUET = b"PAR1"
"""Begins and ends a Parquet file; a truncated one is recognised by its name and fails by name."""
_COMPRESSIONS = {b"\x28\xb5\x2f\xfd": "zstd", b"\x1f\x8b": "gzip"}
_SUFFIX_COMPRESSION = {".zst": "zstd", ".zstd": "zstd", ".gz": "gzip"}
_SUFFIX_FORMAT = {
    ".jsonl": "jsonl", ".json": "jsonl", ".ndjson": "jsonl", ".parquet": "parquet", ".txt": "text", ".text": "text",
    ".arrow": "arrow",
}  # fmt: skip


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


def is_remote(path: str) -> bool:
    """Whether `path` is an fsspec URL rather than a local path."""
    return "://" in path


def open_input(path: str, buffering: int = IDENTITY_BYTES) -> IO[bytes]:
    """Open an input for reading bytes, from a local file so many at a time at least."""
    if not is_remote(path):
        return Path(path).open("rb", buffering=buffering)
    import fsspec

    file: IO[bytes] = fsspec.open(path, "rb").open()
    return file


def open_parquet(path: str) -> Any:
    """Open a Parquet file for Arrow, which reads a local one itself, without the interpreter lock."""
    import pyarrow as pa

    return open_input(path) if is_remote(path) else pa.OSFile(path)


def expand(pattern: str) -> list[str]:
    """Paths that a path, a glob (`**` too) or a URL glob stands for, sorted. UsageError when it matches nothing."""
    if pattern.startswith(HUB):
        return [pattern]
    if pattern.startswith(SAMPLE):
        return [sample_path(pattern.removeprefix(SAMPLE))]
    if is_remote(pattern):
        import fsspec

        fs, inner = fsspec.core.url_to_fs(pattern)
        paths = [fs.unstrip_protocol(path) for path in (fs.glob(inner) if glob.has_magic(inner) else [inner])]
    elif glob.has_magic(pattern):
        paths = [
            p
            for p in glob.glob(pattern, recursive=True)  # noqa: PTH207 - patterns may be absolute
            if Path(p).is_file() or is_dataset(p)
        ]
    else:
        paths = [pattern] if Path(pattern).exists() else []
    if not paths:
        raise UsageError(f"no input matches {pattern!r} (relative paths start at {Path.cwd()})")
    return sorted(paths)


def is_dataset(path: str) -> bool:
    """Whether `path` is a folder that `datasets` saved with `save_to_disk`."""
    return not is_remote(path) and (Path(path) / "state.json").is_file()


def list_inputs(patterns: list[str], declared_format: str) -> tuple[list[InputFile], list[str]]:
    """Every input the patterns match, once, sorted by path; and notices worth telling (a name that lies)."""
    paths = sorted({path for pattern in patterns for path in expand(pattern)})
    with ThreadPoolExecutor(16) as pool:
        described = list(pool.map(lambda path: _describe(path, declared_format), paths))
    return [file for file, _ in described], [notice for _, notice in described if notice]


def _describe(path: str, declared_format: str) -> tuple[InputFile, str]:
    if path.startswith(HUB):
        return InputFile(path, "hub", "", 0, ""), ""
    if is_dataset(path):
        return _describe_dataset(path), ""
    if not is_remote(path) and Path(path).is_dir():
        hint = (
            "name one of its splits" if (Path(path) / "dataset_dict.json").exists() else "give a glob such as"
        )
        raise UsageError(f"{path} is a folder, not an input file: {hint} {path}/*")
    try:
        head, tail, size, identity = _identify(path)
    except OSError as error:  # the partition that holds it fails by name; the rest of the job goes on
        return InputFile(
            path, "unreadable", "", 0, str(error.strerror or error)
        ), f"{path} cannot be read: {error}"
    suffixes = Path(path).suffixes
    by_name = next((_SUFFIX_COMPRESSION[s] for s in suffixes[-1:] if s in _SUFFIX_COMPRESSION), "")
    compression = next((c for magic, c in _COMPRESSIONS.items() if head.startswith(magic)), "")
    stem = suffixes[:-1] if by_name else suffixes
    named_format = next((_SUFFIX_FORMAT[s] for s in stem[-1:] if s in _SUFFIX_FORMAT), "")
    if head.startswith(_PARQUET) and tail.endswith(_PARQUET):
        file_format = "parquet"
    elif declared_format != "auto":
        file_format = declared_format
    elif named_format:
        file_format = named_format
    else:
        file_format = "jsonl" if _starts_an_object(head, compression) else "text"
    if file_format == "arrow":
        raise UsageError(f"{path} is a bare Arrow file; give the folder that datasets.save_to_disk wrote")
    if file_format == "parquet" and declared_format not in ("auto", "parquet"):
        raise UsageError(f"{path} is Parquet, but the source declares format {declared_format}")
    notice = ""
    if size and (compression != by_name or (named_format and file_format != named_format)):
        real = f"{file_format}{'.' + compression if compression else ''}"
        notice = f"{path} is {real} by its content, not what its name says; read as {real}"
    return InputFile(path, file_format, compression, size, identity), notice


def _identify(path: str) -> tuple[bytes, bytes, int, str]:
    """First and last bytes, size and identity of a file, by two reads."""
    with open_input(path) as file:
        head = file.read(IDENTITY_BYTES)
        size = file.seek(0, 2)
        file.seek(max(0, size - IDENTITY_BYTES))
        tail = file.read(IDENTITY_BYTES)
    return head, tail, size, xxhash.xxh3_64_hexdigest(head + tail)


def _describe_dataset(path: str) -> InputFile:
    files = json.loads((Path(path) / "state.json").read_bytes())["_data_files"]
    shards = [_identify(str(Path(path) / file["filename"])) for file in files]
    identity = xxhash.xxh3_64_hexdigest("".join(identity for *_, identity in shards).encode())
    return InputFile(path, "dataset", "", sum(size for _, _, size, _ in shards), identity)


def _starts_an_object(head: bytes, compression: str) -> bool:
    if compression:
        head = next(decompress(iter([head]), compression, partial=True), b"")
    return head.removeprefix(b"\xef\xbb\xbf").lstrip()[:1] == b"{"


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
                file.seek(start)
                left = stop - start if stop is not None else None
                while left is None or left > 0:
                    data = file.read(size if left is None else min(size, left))
                    if not data:
                        if left:
                            raise CorruptInputError(
                                f"the file is {left} bytes shorter than when it was planned"
                            )
                        return
                    if left is not None:
                        left -= len(data)
                    yield data
        except OSError as error:
            raise CorruptInputError(f"reading failed: {error}") from None

    return decompress(blocks(COMPRESSED_STEP), compression) if compression else blocks(READ_SIZE)
