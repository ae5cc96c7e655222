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
    INDEX,
    SHOWN,
    CorruptInputError,
    InputFile,
    compression_of,
    identify_input,
    unpack,
    without_bom,
)
from pretok.read.formats import FORMATS
from pretok.read.paths import (
    TWO_URLS,
    FileKey,
    excluded_by,
    expand,
    file_key,
    is_folder,
    is_glob,
    is_remote,
    name_url,
)
from pretok.read.record_format import RecordFormat

_SUFFIX_COMPRESSION = {".zst": "zstd", ".zstd": "zstd", ".gz": "gzip"}
FOLDER = "a folder"
RESULTS = ("counts", "vocab", "shards", "logs", "slurm", "run")
"""Folders of results in OUT."""
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
        """Return the listing without some paths."""
        names = {key: path for key, path in self.names.items() if path not in paths}
        return Listing([file for file in self.files if file.path not in paths], self.notices, names)


def list_inputs(
    patterns: Sequence[str], declared_format: str, exclude: Sequence[str] = (), out: Path | None = None
) -> Listing:
    """Every input that the patterns match. A folder stands for the files below it whose names have the ending of a
    format. exclude: globs of files that are left out; out: the folder of results, whose files are none of a folder
    around it.

    Notices name files whose content differs from their suffix, empty files, what of a folder is left out, and matches
    of a glob that are not files.
    Raises UsageError for an input that does not exist, is not a regular file or has another format, and for a file with
    two paths.
    """
    named: dict[str, bool] = {}
    urls: dict[str, str] = {}
    unread: Counter[str] = Counter()
    left: dict[str, list[str]] = {rule: [] for rule in exclude}
    excluding = excluded_by(exclude)
    for pattern in patterns:
        folder = is_folder(pattern)
        explicit = not folder and not is_glob(pattern)
        results = _results_in(pattern, out) if folder and out else ()
        for url in expand(pattern):
            path = name_url(url)
            if path.startswith(results):
                continue
            if rule := excluding(path):
                left[rule].append(path)
                continue
            if folder and not _format_of(path, declared_format):
                unread["".join(Path(path).suffixes[-2:]) or "no ending"] += 1
                continue
            named[path] = explicit or named.get(path, False)
            if urls.setdefault(path, url) != url:
                raise UsageError(f"{path} {TWO_URLS}")
    paths = sorted(named)
    looks = map_reads(lambda path: _look(path, named[path], declared_format), paths)
    names: dict[FileKey, str] = {}
    notices = defaultdict[str, list[str]](list)
    if unread:
        endings = ", ".join(f"{ending} ({number:,})" for ending, number in sorted(unread.items()))
        notices["left out, as their endings are of no format that is read"] = [endings]
    for rule, paths_left in left.items():
        what = f"left out by exclude = {rule!r}" if paths_left else f"exclude = {rule!r} matches no file"
        notices[what] = paths_left or [", ".join(patterns)]
    for look in looks:
        if look.notice:
            notices[look.notice if look.file else f"left out, {look.notice}"].append(look.path)
        if look.file and look.key and (other := names.setdefault(look.key, look.path)) != look.path:
            # Its documents would be read twice.
            raise UsageError(f"{other} and {look.path} are the same file; name it once")
    files = [look.file for look in looks if look.file]
    texts = [f"{what}: {listed(paths, SHOWN)}" for what, paths in sorted(notices.items())]
    if not files:
        wanted = ", ".join(patterns)
        if looks and all(look.notice == FOLDER for look in looks):
            above = patterns[0].partition("*")[0].rpartition("/")[0] or "."
            below = next((path for path in expand(above) if _format_of(path, declared_format)), "x.jsonl.zst")
            files_below = f"{above}/**/*{''.join(Path(below).suffixes[-2:])}"
            raise UsageError(f"{wanted} matches folders alone; name {above} itself, or {files_below!r}")
        raise UsageError(
            f"{wanted}: {'; '.join(texts or dict.fromkeys(look.notice for look in looks)) or 'no file'}"
        )
    return Listing(files, texts, names)


def _results_in(folder: str, out: Path) -> tuple[str, ...]:
    """Return how the paths of results begin that lie in a folder of inputs."""
    inside = os.path.relpath(os.path.realpath(out), os.path.realpath(folder))
    if is_remote(folder) or inside.startswith(".."):
        return ()
    parts = RESULTS if inside == "." else (inside,)
    return tuple(os.path.join(folder, part, "") for part in parts)  # noqa: PTH118


def _look(path: str, explicit: bool, declared_format: str) -> _Look:
    """Look at a path. Raises UsageError if it is not an input and the user named it (`explicit`)."""
    key = None
    try:
        what, key = tried(lambda: _kind(path))
        if declared_format == "tokens" and path.endswith((*INDEX.values(), ".ds.metadata")):
            what = "next to a file of tokens"
        if what and explicit:
            raise UsageError(f"{path} is {what}, not an input file{_hint(path)}")
        if what:
            return _Look(path, None, what)
        return _Look(path, *tried(lambda: _describe(path, declared_format)), key)
    except OSError as error:  # its partition will fail and name it; the rest of the job continues
        problem = masked(str(error.strerror or error))
        return _Look(path, InputFile(path, "unreadable", "", 0, problem), f"cannot be read, {problem}", key)


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
    return "" if file else FOLDER if folder else "a pipe or device", file_key(path, status)


def _hint(path: str) -> str:
    """Say what to name instead of a folder that `datasets` saved with several splits."""
    return f": name one of its splits {path}/*" if Path(path).is_dir() else ""


def _format_of(path: str, declared_format: str) -> str:
    """Return the format that the name of a file says it has, "" if none or not the declared one."""
    suffix = _endings(path)[0]
    found = next((name for name, known in FORMATS.items() if suffix in known.SUFFIXES), "")
    return found if declared_format in ("auto", found) else ""


def _endings(path: str) -> tuple[str, str]:
    """Return (the suffix of a name before that of a compression, the compression), each "" if there is none."""
    suffixes = [f".{suffix}" for suffix in os.path.basename(path).lower().split(".")[1:]]  # noqa: PTH119
    packed = _SUFFIX_COMPRESSION.get(suffixes[-1], "") if suffixes else ""
    return next(iter((suffixes[:-1] if packed else suffixes)[-1:]), ""), packed


def _describe(path: str, declared_format: str) -> tuple[InputFile, str]:
    """(the input, a notice or ""). The content of a file decides its format, then its source, then its name.

    A file that is not the table or compressed file that these say is damaged: reading it fails, unless it is obviously
    JSON Lines.
    """
    head, tail, size, identity = identify_input(path, declared_format)
    if declared_format == "tokens":  # any bytes are ids, also those that would begin a compressed file
        return InputFile(path, "tokens", "", size, identity), "" if size else "empty"
    suffix, packed = _endings(path)
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
