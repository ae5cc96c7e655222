"""Inputs as a user named them -> input files, with the format recognised by content.

Input: paths, globs and fsspec URLs. Output: InputFiles, sorted, each once, and notices.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pretok.base.errors import UsageError
from pretok.base.reads import map_reads
from pretok.base.storage import tried
from pretok.base.units import listed
from pretok.base.visible import masked
from pretok.read.files import (
    IDENTITY_BYTES,
    SHOWN,
    CorruptInputError,
    InputFile,
    compression_of,
    identify,
    unpack,
)
from pretok.read.paths import TWO_URLS, expand, is_glob, is_remote, name_url

_PARQUET = b"PAR1"
"""First and last bytes of a Parquet file. A truncated one is recognised by its name, and reading it fails."""
_ARROW = (b"ARROW1\0\0", b"\xff\xff\xff\xff")
"""First bytes of an Arrow file, and of an Arrow stream, as `datasets` saves it."""
_TABLES = ("parquet", "arrow")
_SUFFIX_COMPRESSION = {".zst": "zstd", ".zstd": "zstd", ".gz": "gzip"}
_SUFFIX_FORMAT = {
    ".jsonl": "jsonl", ".json": "jsonl", ".ndjson": "jsonl", ".parquet": "parquet", ".arrow": "arrow",
    ".txt": "text", ".text": "text",
}  # fmt: skip
_CSV = (
    'CSV; convert it to Parquet or JSON Lines, or declare format = "text" to take all of it as one document'
)
_OTHER_SUFFIXES = {".csv": _CSV, ".tsv": _CSV, ".safetensors": "a file of tensors, not of text"}
"""Suffixes of files without documents -> what they are, and what to do."""
_OTHER_BEGINNINGS = {
    b"\xfd7zXZ": "compressed by xz; compress it by zstd or gzip",
    b"BZh91AY&SY": "compressed by bzip2; compress it by zstd or gzip",
    b"PK\3\4": "a zip archive; unpack it",
    b"\xff\xfe": "UTF-16; convert it: iconv -f UTF-16 -t UTF-8",
    b"\xfe\xff": "UTF-16; convert it: iconv -f UTF-16 -t UTF-8",
}
"""First bytes of other such files."""
_ARRAY = re.compile(rb'\s*\[\s*[{"]')
_CONTROL = re.compile(rb"[\0-\x07\x0e-\x1a\x1c-\x1f]")
_MOST_CONTROL = 32
"""JSON Lines with more than one control character in this many bytes are binary; a damaged line has fewer."""


def list_inputs(patterns: Sequence[str], declared_format: str) -> tuple[list[InputFile], list[str]]:
    """(every input that the patterns match, once, sorted by path; notices).

    Notices name files whose content differs from their suffix, empty files, and matches of a glob that are not files.
    Raises UsageError for an input that does not exist, is not a regular file or has another format, and for a file with
    two paths.
    """
    named: dict[str, bool] = {}
    urls: dict[str, str] = {}
    for pattern in patterns:
        explicit = not is_glob(pattern)
        for url in expand(pattern):
            path = name_url(url)
            named[path] = explicit or named.get(path, False)
            if urls.setdefault(path, url) != url:
                raise UsageError(f"{path} {TWO_URLS}")
    paths = sorted(named)
    looks = map_reads(
        lambda path: _look(path, named[path], declared_format), paths, far=any(map(is_remote, paths))
    )
    _refuse_twice([look for look in looks if look.file])
    files = [look.file for look in looks if look.file]
    if not files:
        raise UsageError(f"{', '.join(patterns)}: {'; '.join(look.notice for look in looks[:SHOWN])}")
    told = defaultdict[str, list[str]](list)
    for look in looks:
        if not look.file:
            told[f"left out, {look.notice}"].append(look.path)
        elif look.notice:
            told[look.notice].append(look.path)
        elif not look.file.size:
            told["empty"].append(look.path)
    return files, [f"{what}: {listed(paths, SHOWN)}" for what, paths in sorted(told.items())]


@dataclass(frozen=True, slots=True)
class _Look:
    """The result for a path: an input, with device and inode if it is local, or None and the reason."""

    path: str
    file: InputFile | None
    notice: str = ""
    inode: tuple[int, int] | None = None


def _look(path: str, explicit: bool, declared_format: str) -> _Look:
    """Look at a path. Raises UsageError if it is not an input and the user named it (`explicit`)."""
    inode = None
    try:
        if not is_remote(path):
            what, inode = tried(lambda: _kind(path))
            if what and explicit:
                raise UsageError(f"{path} is {what}, not an input file{_hint(path)}")
            if what:
                return _Look(path, None, what)
        file, notice = tried(lambda: _describe(path, declared_format))
    except OSError as error:  # its partition will fail and name it; the rest of the job continues
        told = masked(str(error.strerror or error))
        file, notice = InputFile(path, "unreadable", "", 0, told), f"cannot be read, {told}"
    return _Look(path, file, notice, inode)


def _kind(path: str) -> tuple[str, tuple[int, int] | None]:
    """(what a local path is, "" for a regular file; device and inode). It does not open the file: opening a named pipe
    would block."""
    try:
        found = os.stat(path)  # noqa: PTH116
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ELOOP) and os.path.islink(path):  # noqa: PTH114
            return "a link that leads nowhere", None
        raise
    folder, file = stat.S_ISDIR(found.st_mode), stat.S_ISREG(found.st_mode)
    return "" if file else "a folder" if folder else "a pipe or device", (found.st_dev, found.st_ino)


def _hint(path: str) -> str:
    if not Path(path).is_dir():
        return ""
    splits = (Path(path) / "dataset_dict.json").exists()
    return f": {'name one of its splits' if splits else 'give a glob such as'} {path}/*"


def _refuse_twice(looks: Sequence[_Look]) -> None:
    """Raises UsageError if two paths lead to one file, whose documents would be read twice."""
    seen: dict[tuple[int, int], str] = {}
    for look in looks:
        if look.inode is not None:
            other = seen.setdefault(look.inode, look.path)
            if other != look.path:
                raise UsageError(f"{other} and {look.path} are the same file; name it once")


def _describe(path: str, declared_format: str) -> tuple[InputFile, str]:
    """(the input, a notice or ""). The content of a file decides its format, then its source, then its name.

    A file that is not the table or compressed file that these say is damaged: reading it fails, unless it is obviously
    JSON Lines.
    """
    head, tail, size, identity = identify(path)
    suffixes = [f".{suffix}" for suffix in os.path.basename(path).lower().split(".")[1:]]  # noqa: PTH119
    packed = _SUFFIX_COMPRESSION.get(suffixes[-1], "") if suffixes else ""
    suffix = next(iter((suffixes[:-1] if packed else suffixes)[-1:]), "")
    parquet = head.startswith(_PARQUET) and tail.endswith(_PARQUET)
    table = "parquet" if parquet else "arrow" if head.startswith(_ARROW) else ""
    if table and declared_format not in ("auto", table):
        raise UsageError(f"{path} is {table.title()}, but the source declares format {declared_format}")
    compression = compression_of(head) or (packed if size and not table and not _begins_object(head) else "")
    by_name = _SUFFIX_FORMAT.get(suffix, "")
    file_format = table or (by_name if declared_format == "auto" else declared_format)
    if file_format not in _TABLES:
        begins = _beginning(head, compression)
        if declared_format != "text":
            _refuse_other(path, begins, suffix, declared_format)
        file_format = file_format or ("jsonl" if _begins_object(begins) else "text")
    notice = ""
    if size and (compression != packed or by_name not in ("", file_format)):
        real = f"{file_format}{'.' + compression if compression else ''}"
        notice = f"read as {real}, which is not what its name says"
    return InputFile(path, file_format, compression, size, identity), notice


def _beginning(head: bytes, compression: str) -> bytes:
    """The first bytes of a file, decompressed, without a BOM; b"" if they are damaged."""
    if compression:
        try:
            head = next(unpack(head, compression, partial=True), b"")
        except CorruptInputError:  # reported when it is read
            head = b""
    return head[:IDENTITY_BYTES].removeprefix(b"\xef\xbb\xbf")


def _begins_object(data: bytes) -> bool:
    return data.removeprefix(b"\xef\xbb\xbf").lstrip()[:1] == b"{"


def _refuse_other(path: str, begins: bytes, suffix: str, declared_format: str) -> None:
    """Raises UsageError for a file that cannot be JSON Lines or text."""
    lines = "jsonl" in (declared_format, _SUFFIX_FORMAT.get(suffix))
    other = None
    if declared_format == "auto":
        other = _OTHER_SUFFIXES.get(suffix)
        if (lines or suffix not in _SUFFIX_FORMAT) and _ARRAY.match(begins):
            other = "one JSON array, not JSON Lines; write an object a line, as jq -c '.[]' does"
    for magic, what in _OTHER_BEGINNINGS.items():
        other = other or (what if begins.startswith(magic) else None)
    control = len(_CONTROL.findall(begins)) * _MOST_CONTROL > len(begins) if lines else b"\0" in begins
    if not other and control:
        other = 'binary: neither JSON Lines, Parquet nor text; leave it out, or declare format = "text"'
    if other:
        raise UsageError(f"{path} is {other}")
