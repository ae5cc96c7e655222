"""An input as a user wrote it -> the paths it stands for.

Input: a path, a folder, a glob (`**` too), an fsspec URL or URL glob, or `sample:it`. Output: paths, sorted. No file is
opened: `pretok.read.recognise` finds out whether a path is a regular file.
"""

from __future__ import annotations

import fnmatch
import glob
import json
import os
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urljoin, urlsplit

from pretok.base.errors import UsageError
from pretok.base.storage import passes
from pretok.base.visible import masked
from pretok.read.sample import sample_path

SAMPLE = "sample:"
"""Prefix of an input that is shipped with the package, such as `sample:it`."""
PLACEHOLDER = "PUT/YOUR"
"""Part of the paths in recipe templates that the user must replace."""


def is_remote(path: str) -> bool:
    """Whether `path` is an fsspec URL rather than a local path."""
    return "://" in path


TWO_URLS = "stands for two URLs that differ in password or query alone, which are not kept: give one, or a path to each"
_urls: dict[str, str] = {}
"""The name of each URL with secrets -> the URL, in this process."""


def name_url(url: str) -> str:
    """Return the name of an input: its path, or its URL without user, password and query.

    So a URL with another access token names the same input. `url_of` gives the last URL with this name.
    """
    name: str = masked(url) if is_remote(url) else url
    if name == url:
        return url
    _urls[name] = url
    return name


def url_of(name: str) -> str:
    """Return the inverse of `name_url` in this process."""
    return _urls.get(name, name)


def server_of(name: str) -> tuple[Any, str]:
    """Return (the fsspec file system of a URL or of the name of one, the file's name there).

    Raises OSError that names the URL, and the errors of fsspec for an unknown protocol or a missing package.
    """
    import fsspec

    try:
        server, inner = fsspec.url_to_fs(url_of(name))
    except OSError as error:  # some protocols connect at once
        error.filename = error.filename or name_url(name)
        raise
    return server, inner


FileKey = tuple[int, int] | str
"""What all names of a file share, see `file_key`."""


def file_key(name: str, status: os.stat_result | None) -> FileKey:
    """Return the identity of a file: device and inode, its path without links, or one spelling of its URL.

    The path stands in where there are no inodes. status: of a local path; None for a URL, which may be that of a local
    file. Raises what `server_of` raises.
    """
    path = name
    if status is None:
        from fsspec.implementations.local import LocalFileSystem

        server, path = server_of(name)
        if not isinstance(server, LocalFileSystem):
            return _one_spelling(server.unstrip_protocol(path))
        status = os.stat(path)  # noqa: PTH116
    return (status.st_dev, status.st_ino) if status.st_ino else os.path.realpath(path)


def _one_spelling(url: str) -> str:
    """Return a URL without dots in its path and the usual port (RFC 3986, 6.2).

    In the keys of object stores dots count.
    """
    parts = urlsplit(url)
    usual = {"http": 80, "https": 443}.get(parts.scheme)
    if usual is None:
        return url
    port = "" if parts.port in (None, usual) else f":{parts.port}"
    site = f"{parts.scheme}://{parts.hostname}{port}"
    return urljoin(site, parts.path or "/") + f"?{parts.query}"


def is_dataset(path: str) -> bool:
    """Whether `path` is a folder of `datasets.save_to_disk`, which stands for its tables."""
    return not is_remote(path) and os.path.isfile(os.path.join(path, "state.json"))  # noqa: PTH113, PTH118


def dataset_files(path: str) -> list[str]:
    """Return the tables of a saved dataset. Raises UsageError if there is none, or if its state.json is wrong."""
    try:
        files = json.loads((Path(path) / "state.json").read_bytes())["_data_files"]
        tables = [str(Path(path) / file["filename"]) for file in files]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise UsageError(f"{path}/state.json is not what datasets.save_to_disk writes") from None
    if not tables:
        raise UsageError(f"{path} is a saved dataset without rows; leave it out")
    return tables


def is_glob(pattern: str) -> bool:
    """Whether `pattern` is a glob. A pattern that is also the name of an existing path is that path."""
    special = pattern.startswith(SAMPLE)
    return not special and glob.has_magic(pattern) and (is_remote(pattern) or not os.path.lexists(pattern))


def is_folder(pattern: str) -> bool:
    """Whether `pattern` is a folder, which stands for the files below it; of URLs, those that end with a slash."""
    if is_remote(pattern):
        return pattern.endswith("/")
    saved = is_dataset(pattern) or os.path.isfile(os.path.join(pattern, "dataset_dict.json"))  # noqa: PTH113, PTH118
    return os.path.isdir(pattern) and not saved  # noqa: PTH112


def excluded_by(patterns: Sequence[str]) -> Callable[[str], str]:
    """Return a function: path -> the first of the patterns that excludes it, "" if none does.

    A pattern is a glob for the end of a path: `*` stays inside of a name, `**/` is any number of folders.
    """
    parts = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    rules = []
    for text in patterns:
        pieces = re.findall(r"\*\*/|\*\*|.", text, re.DOTALL)
        rule = "".join(parts.get(piece) or re.escape(piece) for piece in pieces)
        rules.append((text, re.compile(f"(?:.*/)?{rule}", re.DOTALL)))
    return lambda path: next((text for text, rule in rules if rule.fullmatch(path)), "")


def expand(pattern: str) -> list[str]:
    """Return the paths that a path, a folder, a glob or a URL glob stands for, sorted.

    Raises UsageError if it matches nothing, if a folder cannot be listed, if a name is not UTF-8, which a ledger or
    manifest cannot store, or if it has more than one line, which a message would show as its own.
    """
    if pattern.startswith(SAMPLE):
        return [sample_path(pattern.removeprefix(SAMPLE))]
    if is_remote(pattern):
        try:
            fs, inner = server_of(pattern)
        except (ImportError, ValueError) as error:
            raise UsageError(f"{name_url(pattern)} cannot be opened: {error}") from None
        below = fs.find(inner) if is_folder(pattern) else fs.glob(inner) if is_glob(pattern) else [inner]
        paths = [fs.unstrip_protocol(path) for path in below]
    elif is_folder(pattern):
        paths = list(_matches(os.path.join(pattern, ""), ["**"]))  # noqa: PTH118 - keeps `./`
    elif is_glob(pattern):
        paths = _glob(pattern)
    else:
        try:
            os.lstat(pattern)
            paths = dataset_files(pattern) if is_dataset(pattern) else [pattern]
        except PermissionError:
            raise UsageError(
                f"{pattern} is in a folder that may not be entered: Permission denied; ask its owner for access"
            ) from None
        except (OSError, ValueError):  # ValueError: a NUL
            paths = []
    if not paths:
        hint = (
            "" if is_remote(pattern) or Path(pattern).is_absolute() else f" (no {Path(pattern).absolute()})"
        )
        hint = "; pretok reads files, not a pipe" if pattern == "-" else hint
        hint += "; replace the placeholder by the path of your text" if PLACEHOLDER in pattern else ""
        raise UsageError(f"no input matches {pattern!r}{hint}")
    for path in paths:
        _check_name(path)
    return sorted(set(paths))


def _check_name(path: str) -> None:
    if not path.isascii() and (name := os.fsencode(path)).decode(errors="ignore") != path:
        raise UsageError(f"the name of input {str(name)[1:]} is not UTF-8; rename the file or its folder")
    if "\n" in path:
        raise UsageError(f"the name of input {path!r} has more than one line; rename the file or its folder")


def _glob(pattern: str) -> list[str]:
    """Return the paths that a glob matches.

    `glob.glob` gives the same, but it silently skips folders that it may not list, and follows a circle of links until
    the system refuses.
    """
    first = re.search(r"[^/]*[*?[]", pattern)
    at = first.start() if first else 0
    parts = [part for part in pattern[at:].split("/") if part]
    if parts[-2:] == ["**", "*"]:
        parts.pop()  # `**` alone matches the same
    return list(_matches(pattern[:at], parts))


def _matches(folder: str, parts: list[str]) -> Iterator[str]:
    """Yield the paths that `parts` of a glob match in `folder`, and the tables of a saved dataset that they match."""
    head, rest = parts[0], parts[1:]
    if head == "**" and rest:
        yield from _matches(folder, rest)
    for path, is_folder in _entries(folder, "*" if head == "**" else head):
        saved = is_folder and (head == "**" or not rest) and is_dataset(path)
        if head == "**" and is_folder and not saved:
            yield from _matches(path, parts)
        elif not rest:
            yield from dataset_files(path) if saved else (path,)
        elif head != "**" and is_folder:
            yield from _matches(path, rest)


def _entries(folder: str, pattern: str) -> Iterator[tuple[str, bool]]:
    """Yield (path, whether to descend into it) of the entries of a folder that match.

    Names that begin with a dot or, as the _metadata and _SUCCESS of other programs, with an underscore, match only a
    pattern that begins alike.
    """
    try:
        with os.scandir(folder or ".") as found:
            entries = list(found)
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as error:
        if passes(error):
            raise
        raise UsageError(
            f"folder {folder} cannot be listed: {error.strerror}; its files would be missing. Make it readable, or "
            "name inputs outside of it"
        ) from None
    for entry in entries:
        if fnmatch.fnmatchcase(entry.name, pattern) and (
            entry.name[0] not in "._" or pattern[0] == entry.name[0]
        ):
            yield os.path.join(folder, entry.name), _is_folder(entry)  # noqa: PTH118 - keeps `./`


def _is_folder(entry: os.DirEntry[str]) -> bool:
    """Whether an entry is a folder, but not a link to a folder above it, which would give the same files again."""
    try:
        if not entry.is_dir():
            return False
    except OSError as error:
        if passes(error):
            raise
        return False  # a link that leads to itself
    here = Path(entry.path)
    return not (entry.is_symlink() and here.parent.resolve().is_relative_to(here.resolve()))
