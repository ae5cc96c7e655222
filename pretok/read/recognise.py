"""Inputs as a user named them -> input files, with the format recognised by content.

Input: paths, globs and fsspec URLs. Output: InputFiles, sorted, each once, and notices.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections import Counter, defaultdict
from collections.abc import Container, Sequence
from pathlib import Path
from typing import NamedTuple

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
    without_bom,
)
from pretok.read.formats import FORMATS
from pretok.read.paths import (
    TWO_URLS,
    FileKey,
    excluded,
    expand,
    file_key,
    is_folder,
    is_glob,
    is_passed_over,
    is_remote,
    name_url,
    walk,
)
from pretok.read.record_format import RecordFormat

_SUFFIX_COMPRESSION = {".zst": "zstd", ".zstd": "zstd", ".gz": "gzip"}
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


FILE, FOLDER, GLOB = "file", "folder", "glob"
"""How a path was named: itself, by a folder above it, or by a glob."""
A_FOLDER, UNKNOWN = "a folder", "of no kind that pretok reads"
"""Why a path is no input."""


class _Look(NamedTuple):
    """A recognised path: an input and its identity, or None and the reason."""

    path: str
    file: InputFile | None
    notice: str
    key: FileKey | None = None


class SourceInputs(RecordFormat, frozen=True, kw_only=True):
    """The files of a source, and how their records are read."""

    files: tuple[InputFile, ...]


class Listing(NamedTuple):
    """The inputs that some patterns match."""

    files: list[InputFile]
    """Each once, sorted by path."""
    notices: list[str]
    names: dict[FileKey, str]
    """Identity -> path of each, but for those of which it cannot be found out."""

    def without(self, paths: Container[str]) -> Listing:
        """The listing without some paths."""
        names = {key: path for key, path in self.names.items() if path not in paths}
        return Listing([file for file in self.files if file.path not in paths], self.notices, names)


def list_inputs(patterns: Sequence[str], declared_format: str, exclude: Sequence[str] = ()) -> Listing:
    """Every input that the patterns match, but for paths that a pattern of `exclude` matches.

    Notices name files whose content differs from their suffix, empty files, and matches of a glob that are not files.
    Raises UsageError for an input that does not exist, is not a regular file or has another format, and for a file with
    two paths.
    """
    named: dict[str, str] = {}
    urls: dict[str, str] = {}
    for pattern in patterns:
        how = GLOB if is_glob(pattern) else FOLDER if is_folder(pattern) else FILE
        for url in expand(pattern):
            path = name_url(url)
            named[path] = FILE if how == FILE else named.get(path, how)
            if urls.setdefault(path, url) != url:
                raise UsageError(f"{path} {TWO_URLS}")
    if not (paths := sorted(path for path in named if not excluded(path, exclude))):
        raise UsageError(f"exclude = {list(exclude)} leaves no input of {', '.join(patterns)}")
    looks = map_reads(lambda path: _look(path, named[path], declared_format), paths)
    names: dict[FileKey, str] = {}
    notices = defaultdict[str, list[str]](list)
    unknown = Counter(_suffixes(look.path)[-1:] for look in looks if look.notice == UNKNOWN)
    if unknown:
        notices[f"left out, {UNKNOWN}, by ending"] = [
            f"{number:,} {suffix[0] if suffix else 'without one'}" for suffix, number in unknown.most_common()
        ]
    for look in looks:
        if look.notice and look.notice != UNKNOWN:
            notices[look.notice if look.file else f"left out, {look.notice}"].append(look.path)
        if look.file and look.key and (other := names.setdefault(look.key, look.path)) != look.path:
            # Its documents would be read twice.
            raise UsageError(f"{other} and {look.path} are the same file; name it once")
    files = [look.file for look in looks if look.file]
    if not files and all(look.notice == A_FOLDER for look in looks):
        below = next((found for path in paths for found in walk(path)), "x.jsonl.zst")
        every = f"{patterns[0].rpartition('/')[0] or '.'}/**/*{''.join(_suffixes(below)[-2:])}"
        raise UsageError(
            f"{', '.join(patterns)} matches folders alone; for the files in them write {every!r}"
        )
    if not files:
        raise UsageError(f"{', '.join(patterns)}: {'; '.join(look.notice for look in looks[:SHOWN])}")
    texts = [f"{what}: {listed(paths, SHOWN)}" for what, paths in sorted(notices.items())]
    return Listing(files, texts, names)


def _look(path: str, how: str, declared_format: str) -> _Look:
    """Look at a path. how: whether the user named it, or what matches it. Raises UsageError if it is not an input, but
    the user named it or its ending promises one."""
    key, explicit = None, how == FILE
    if how == GLOB and is_passed_over(os.path.basename(path)):  # noqa: PTH119
        return _Look(path, None, "as its name begins with _")
    try:
        what, key = tried(lambda: _kind(path))
        if what and explicit:
            raise UsageError(f"{path} is {what}, not an input file{_hint(path)}")
        if what:
            return _Look(path, None, what)
        if how == FOLDER and not _format_of(path) and declared_format != "text":
            return _known(path, declared_format, key)
        return _Look(path, *tried(lambda: _describe(path, declared_format)), key)
    except OSError as error:  # its partition will fail and name it; the rest of the job continues
        problem = masked(str(error.strerror or error))
        return _Look(path, InputFile(path, "unreadable", "", 0, problem), f"cannot be read, {problem}", key)


def _known(path: str, declared_format: str, key: FileKey | None) -> _Look:
    """Look at a file below a folder whose ending says nothing: it is an input if its content is that of one."""
    try:
        file, notice = tried(lambda: _describe(path, declared_format))
    except UsageError:
        return _Look(path, None, UNKNOWN)
    return _Look(path, file, notice, key) if file.format != "text" else _Look(path, None, UNKNOWN)


def _suffixes(path: str) -> tuple[str, ...]:
    """The endings of a name, in lower case: `.jsonl` and `.zst`."""
    return tuple(f".{suffix}" for suffix in os.path.basename(path).lower().split(".")[1:])  # noqa: PTH119


def _format_of(path: str) -> str:
    """The format that the name of a file says, "" for none."""
    suffixes = [suffix for suffix in _suffixes(path) if suffix not in _SUFFIX_COMPRESSION][-1:]
    return next((name for name, known in FORMATS.items() if {*suffixes} & {*known.SUFFIXES}), "")


def _kind(path: str) -> tuple[str, FileKey | None]:
    """(the kind of a path, "" for a regular file or a URL; its identity). It does not open the file: opening a named
    pipe would block."""
    if is_remote(path):
        return "", file_key(path, None)
    try:
        status = os.stat(path)  # noqa: PTH116
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ELOOP) and os.path.islink(path):  # noqa: PTH114
            return "a link that leads nowhere", None
        raise
    folder, file = stat.S_ISDIR(status.st_mode), stat.S_ISREG(status.st_mode)
    return "" if file else A_FOLDER if folder else "a pipe or device", file_key(path, status)


def _hint(path: str) -> str:
    if not Path(path).is_dir():
        return ""
    splits = (Path(path) / "dataset_dict.json").exists()
    return f": {'name one of its splits' if splits else 'give a glob such as'} {path}/*"


def _describe(path: str, declared_format: str) -> tuple[InputFile, str]:
    """(the input, a notice or ""). The content of a file decides its format, then its source, then its name.

    A file that is not the table or compressed file that these say is damaged: reading it fails, unless it is obviously
    JSON Lines.
    """
    head, tail, size, identity = identify(path)
    suffixes = _suffixes(path)
    packed = _SUFFIX_COMPRESSION.get(suffixes[-1], "") if suffixes else ""
    suffix = next(iter((suffixes[:-1] if packed else suffixes)[-1:]), "")
    compression = compression_of(head)
    begins = _beginning(head, compression)
    found = next(name for name, known in FORMATS.items() if known.recognise(begins, tail))
    if FORMATS[found].BINARY and declared_format not in ("auto", found):
        raise UsageError(f"{path} is {found.title()}, but the source declares format {declared_format}")
    if size and packed and not compression and found == "text":
        compression, begins = packed, b""
    by_name = next((name for name, known in FORMATS.items() if suffix in known.SUFFIXES), "")
    file_format = by_name if declared_format == "auto" else declared_format
    if FORMATS[found].BINARY or not file_format:
        file_format = found
    if not FORMATS[file_format].BINARY and declared_format != "text":
        lines = "jsonl" in (declared_format, by_name)
        if other := _other(begins, suffix, declared_format == "auto", lines, lines or not by_name):
            raise UsageError(f"{path} is {other}")
    notice = "" if size else "empty"
    if size and (compression != packed or by_name not in ("", file_format)):
        real = f"{file_format}{'.' + compression if compression else ''}"
        notice = f"read as {real}, which is not what its name says"
    return InputFile(path, file_format, compression, size, identity), notice


def _beginning(head: bytes, compression: str) -> bytes:
    """The first bytes of a file, decompressed, without a byte order mark; b"" if they are damaged."""
    try:
        head = next(unpack(head, compression, partial=True), b"")
    except CorruptInputError:  # reported when it is read
        head = b""
    return without_bom(head[:IDENTITY_BYTES])


def _other(begins: bytes, suffix: str, auto: bool, lines: bool, array: bool) -> str:
    """The kind of a file that cannot be JSON Lines or text, "" if it can. auto: whether no format is declared; lines:
    whether it should be JSON Lines; array: whether it may be an array of JSON."""
    if auto and suffix in _OTHER_SUFFIXES:
        return _OTHER_SUFFIXES[suffix]
    if auto and array and _ARRAY.match(begins):
        return "one JSON array, not JSON Lines; write an object a line, as jq -c '.[]' does"
    for magic, what in _OTHER_BEGINNINGS.items():
        if begins.startswith(magic):
            return what
    if len(_CONTROL.findall(begins)) * _MOST_CONTROL > len(begins) if lines else b"\0" in begins:
        return 'binary: neither JSON Lines, Parquet nor text; leave it out, or declare format = "text"'
    return ""
