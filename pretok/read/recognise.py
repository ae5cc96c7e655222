"""Inputs as a user named them -> input files, with the format recognised by content.

Input: paths, globs and fsspec URLs. Output: InputFiles, sorted, each once, and notices.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections import Counter, defaultdict
from collections.abc import Callable, Container, Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from pretok.base.errors import UsageError
from pretok.base.reads import map_reads
from pretok.base.storage import tried
from pretok.base.units import listed
from pretok.base.visible import masked
from pretok.read.damage import too_many
from pretok.read.files import (
    IDENTITY_BYTES,
    INDEX,
    REFUSED,
    SHOWN,
    UNREADABLE,
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
_CONVERT = "convert it to Parquet or JSON Lines"
_EXTRACT = "extract the text first, to JSON Lines or to .txt files"
_OTHER_SUFFIXES = {
    ".csv": _CSV, ".tsv": _CSV, ".safetensors": "a file of tensors, not of text",
    ".br": "compressed by brotli; compress it by zstd or gzip", ".msgpack": f"MessagePack; {_CONVERT}",
}  # fmt: skip
"""Suffixes of files without documents -> what they are, and what to do."""
_POINTER = {
    rb"version https://git-lfs\.github\.com/spec/": "a Git LFS pointer in place of the file; run git lfs pull"
}
_CONTAINERS = {
    rb"\xfd7zXZ": "compressed by xz; compress it by zstd or gzip",
    rb"BZh[1-9]1AY&SY": "compressed by bzip2; compress it by zstd or gzip",
    rb"[\x02\x04][\x21\x22][\x4c\x4d]\x18": "compressed by lz4; compress it by zstd or gzip",
    rb"PK\x03\x04": "a zip archive; unpack it",
    rb"7z\xbc\xaf\x27\x1c": "a 7z archive; unpack it",
    rb"(?s:.{257})ustar": "a tar archive; unpack it",
    rb"%PDF-": f"PDF; {_EXTRACT}",
    rb"PARE": "encrypted Parquet; decrypt it",
    rb"\xff\xfe\0\0|\0\0\xfe\xff": "UTF-32; convert it: iconv -f UTF-32 -t UTF-8",
    rb"\xff\xfe|\xfe\xff": "UTF-16; convert it: iconv -f UTF-16 -t UTF-8",
    rb"WARC/": f"WARC of other records than text (WET); {_EXTRACT}",
}
_MARKUP = {
    rb"\s*(?i:<!doctype html|<html)": f"an HTML page; {_EXTRACT}",
    rb"\s*(?i:<\?xml|<!doctype|<mediawiki)": f"XML; {_EXTRACT}",
}
"""How other such files begin. A pointer is never text, markup may be, and the others are if the source says so."""
_ANY_OTHER = re.compile(b"|".join((*_POINTER, *_CONTAINERS, *_MARKUP)))
_BINARY = 'binary: neither JSON Lines, Parquet nor text; leave it out, or declare format = "text"'
_UNKNOWN = (
    "of no known format: neither JSON Lines, Parquet, Arrow nor WET; if it is plain text, name it .txt or declare "
    'format = "text"'
)
_ARRAY = re.compile(rb'\s*\[\s*[{"]')
_CONTROL = bytes({*range(32)} - {*b"\b\t\n\v\f\r\x1b"})
_SHORT_HOLE = bytes(64)
_HOLE = re.compile(_SHORT_HOLE + rb"\0*")
"""A part of a file that was never written: damage, and no sign of binary data."""
_MOST_CONTROL, _FEW = 32, 128
"""A file with more than one control character in this many bytes is binary, a short one as if it had at least so many
bytes; a damaged line has fewer."""


class _Look(NamedTuple):
    """A recognised path."""

    path: str
    file: InputFile | None
    """None if `notice` says why it is no input."""
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
    patterns: Sequence[str],
    declared_format: str,
    exclude: Sequence[str] = (),
    out: Path | None = None,
    most_damaged: Callable[[int], int] = lambda _files: 0,
) -> Listing:
    """Return every input that the patterns match.

    A folder stands for the files below it whose names have the ending of a format. exclude: globs of files that are
    left out; out: the folder of results, whose files are none of a folder around it; most_damaged: how many of some
    files may be REFUSED, to be left out later as damaged.

    Notices name files whose content differs from their suffix, empty files, what of a folder is left out, and matches
    of a glob that are not files. Raises UsageError for an input that does not exist or is not a regular file, for a
    file with two paths, and for files that hold no documents as they are, if they are too many.
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
    refused = [f"{file.path} is {file.identity}" for file in files if file.format == REFUSED]
    if refused and len(refused) > (most := most_damaged(len(files))):
        many = f"; {too_many(len(refused), len(files), most)}" if most else ""
        raise UsageError(listed(refused, SHOWN, "; ") + many)
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
        return _Look(path, InputFile(path, UNREADABLE, "", 0, problem), f"cannot be read, {problem}", key)


def _kind(path: str) -> tuple[str, FileKey | None]:
    """Return (the kind of a path, "" for a regular file or a URL; its identity).

    It does not open the file: opening a named pipe would block.
    """
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
    found = _named_format(_endings(path)[0])
    return found if declared_format in ("auto", found) else ""


@lru_cache
def _named_format(suffix: str) -> str:
    """Return the format of files with this suffix, "" if there is none."""
    return next((name for name, known in FORMATS.items() if suffix in known.SUFFIXES), "")


def _endings(path: str) -> tuple[str, str]:
    """Return (the suffix of a name before that of a compression, the compression), each "" if there is none."""
    suffixes = [f".{suffix}" for suffix in os.path.basename(path).lower().split(".")[1:]]  # noqa: PTH119
    packed = _SUFFIX_COMPRESSION.get(suffixes[-1], "") if suffixes else ""
    return next(iter((suffixes[:-1] if packed else suffixes)[-1:]), ""), packed


def _describe(path: str, declared_format: str) -> tuple[InputFile, str]:
    """Return (the input, a notice or "").

    The content of a file decides its format, then its source, then its name; a file is plain text by its name or its
    source alone.

    A file that is not the table or compressed file that these say is damaged: reading it fails, unless it is obviously
    something else. That is REFUSED.
    """
    head, tail, size, identity = identify_input(path, declared_format)

    def refused(what: str) -> tuple[InputFile, str]:
        return InputFile(path, REFUSED, "", size, what), ""

    if declared_format == "tokens":  # any bytes are ids, also those that would begin a compressed file
        return InputFile(path, "tokens", "", size, identity), "" if size else "empty"
    suffix, packed = _endings(path)
    compression = compression_of(head)
    begins = _beginning(head, compression)
    found = next((name for name, known in FORMATS.items() if known.recognise(begins, tail)), "")
    by_name = _named_format(suffix)
    auto, certain = declared_format == "auto", bool(found) and FORMATS[found].CERTAIN
    if certain and declared_format not in ("auto", found):
        return refused(f"of the format {found}, but the source declares format {declared_format}")
    file_format = found if certain else (by_name if auto else declared_format) or found
    if size and not certain:
        other = _other(begins, compression, suffix, file_format, auto)
        if packed and not compression and not found and declared_format != "text":
            compression = packed  # and damaged
        elif not other and declared_format != "text":
            other = _BINARY if _is_binary(begins, file_format) else "" if file_format else _UNKNOWN
        if other:
            return refused(other)
    file_format = file_format or "text"
    if compression and FORMATS[file_format].TABLE:
        return refused(f"{file_format.title()} compressed by {compression}; decompress it")
    notice = "" if size else "empty"
    if size and (compression != packed or by_name not in ("", file_format)):
        real = f"{file_format}{'.' + compression if compression else ''}"
        notice = f"read as {real}, which is not what its name says"
    return InputFile(path, file_format, compression, size, identity), notice


def _beginning(head: bytes, compression: str) -> bytes:
    """Return the first 64 KiB of a file, decompressed, without a byte order mark.

    They are there as far as they are not damaged and `head` holds them.
    """
    begins = bytearray()
    with suppress(CorruptInputError):  # reported when it is read
        for text in unpack(head, compression, partial=True):
            begins += text
            if len(begins) >= IDENTITY_BYTES:
                break
    return without_bom(bytes(begins[:IDENTITY_BYTES]))


def _other(begins: bytes, compression: str, suffix: str, file_format: str, auto: bool) -> str:
    """Return the kind of a file that holds no documents as it is, and what to do; "" if it may.

    auto: whether no format is declared.
    """
    kinds = dict(_POINTER)
    if auto or file_format != "text":
        kinds |= _CONTAINERS
        if compression and (inner := compression_of(begins)):
            return f"compressed twice, by {inner} and then by {compression}; decompress it once"
    if file_format != "text":
        kinds |= _MARKUP
    for beginning, what in (
        kinds.items() if _ANY_OTHER.match(begins) else ()
    ):  # asked one by one takes 10 us a file
        if re.match(beginning, begins):
            return what
    if auto and suffix in _OTHER_SUFFIXES:
        return _OTHER_SUFFIXES[suffix]
    if auto and file_format != "text" and _ARRAY.match(begins):
        return "one JSON array, not JSON Lines; write an object a line, as jq -c '.[]' does"
    return ""


def _is_binary(begins: bytes, file_format: str) -> bool:
    """Whether a file that should be lines or text is neither, by the share of its control characters."""
    if file_format and FORMATS[file_format].TABLE:
        return False
    text = _HOLE.sub(b"", begins) if _SHORT_HOLE in begins else begins  # the search alone takes 12 ns a byte
    controls = len(text) - len(text.translate(None, _CONTROL))
    return (not text and bool(begins)) or controls * _MOST_CONTROL > max(len(text), _FEW)
