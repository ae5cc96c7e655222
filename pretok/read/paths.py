"""What a user wrote for an input -> the paths it stands for.

Input: a path, a glob (`**` too), an fsspec URL or URL glob, or `sample:it`. Output: paths, sorted. Nothing is
looked into: whether a path is a regular file is for `pretok.read.recognise` to find out.
"""

from __future__ import annotations

import fnmatch
import glob
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pretok.base.errors import UsageError
from pretok.base.storage import passes
from pretok.base.visible import masked
from pretok.read.sample import sample_path

SAMPLE = "sample:"
"""Starts an input that is the text shipped with the package: `sample:it`."""
PLACEHOLDER = "PUT/YOUR"
"""In the paths of recipes that are to be filled in."""


def is_remote(path: str) -> bool:
    """Whether `path` is an fsspec URL rather than a local path."""
    return "://" in path


TWO_URLS = "stands for two URLs that differ in password or query alone, which are not kept: give one, or a path to each"
_urls: dict[str, str] = {}
"""The name of each URL with secrets that this process was given -> the URL."""


def name_url(url: str) -> str:
    """What an input is called: its path, of a URL without user, password and query. So another token in the query
    names the same input. `url_of` gives the URL that was named so last."""
    name: str = masked(url) if is_remote(url) else url
    if name == url:
        return url
    _urls[name] = url
    return name


def url_of(name: str) -> str:
    """The inverse of `name_url` in this process."""
    return _urls.get(name, name)


def server_of(name: str) -> tuple[Any, str]:
    """The fsspec file system of a URL, or of the name of one, and the file's name there. Raises OSError that names the
    URL, and what fsspec raises for a protocol that it does not know or has no package for."""
    import fsspec

    try:
        server, inner = fsspec.url_to_fs(url_of(name))
    except OSError as error:  # some protocols connect at once
        error.filename = error.filename or name_url(name)
        raise
    return server, inner


def is_dataset(path: str) -> bool:
    """Whether `path` is a folder that `datasets` saved with `save_to_disk`: it stands for its tables."""
    return not is_remote(path) and os.path.isfile(os.path.join(path, "state.json"))  # noqa: PTH113, PTH118


def dataset_files(path: str) -> list[str]:
    """The tables of a saved dataset. Raises UsageError, also where it has no rows and so no table."""
    try:
        files = json.loads((Path(path) / "state.json").read_bytes())["_data_files"]
        tables = [str(Path(path) / file["filename"]) for file in files]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise UsageError(f"{path}/state.json is not what datasets.save_to_disk writes") from None
    if not tables:
        raise UsageError(f"{path} is a saved dataset without rows; leave it out")
    return tables


def is_glob(pattern: str) -> bool:
    """Whether `pattern` stands for whatever it matches; the name of something that is there stands for that alone."""
    special = pattern.startswith(SAMPLE)
    return not special and glob.has_magic(pattern) and (is_remote(pattern) or not os.path.lexists(pattern))


def expand(pattern: str) -> list[str]:
    """Paths that a path, a glob or a URL glob stands for, sorted. UsageError when it matches nothing, when a folder on
    its way cannot be listed, or when a name is not UTF-8, as a ledger or a manifest could not hold it."""
    if pattern.startswith(SAMPLE):
        return [sample_path(pattern.removeprefix(SAMPLE))]
    if is_remote(pattern):
        try:
            fs, inner = server_of(pattern)
        except (ImportError, ValueError) as error:
            raise UsageError(f"{name_url(pattern)} cannot be opened: {error}") from None
        paths = [fs.unstrip_protocol(path) for path in (fs.glob(inner) if is_glob(pattern) else [inner])]
    elif is_glob(pattern):
        paths = _glob(pattern)
    else:
        paths = [pattern] if os.path.lexists(pattern) else []
    if not paths:
        told = (
            "" if is_remote(pattern) or Path(pattern).is_absolute() else f" (no {Path(pattern).absolute()})"
        )
        told = "; pretok reads files, not a pipe" if pattern == "-" else told
        told += "; replace the placeholder by the path of your text" if PLACEHOLDER in pattern else ""
        raise UsageError(f"no input matches {pattern!r}{told}")
    for path in paths:
        if not path.isascii() and (name := os.fsencode(path)).decode(errors="ignore") != path:
            raise UsageError(f"the name of input {str(name)[1:]} is not UTF-8; rename the file or its folder")
    saved = (dataset_files(path) if is_dataset(path) else [path] for path in paths)
    return sorted({file for files in saved for file in files})


def _glob(pattern: str) -> list[str]:
    """What a glob matches, as `glob.glob` finds it; but that leaves out what it may not list without a word, and goes
    around a circle of links until the system refuses."""
    first = re.search(r"[^/]*[*?[]", pattern)
    at = first.start() if first else 0
    parts = [part for part in pattern[at:].split("/") if part]
    if parts[-2:] == ["**", "*"]:
        parts.pop()  # everything below a folder, in one way
    return list(_matches(pattern[:at], parts))


def _matches(folder: str, parts: list[str]) -> Iterator[str]:
    """What `parts` of a glob match in `folder`."""
    head, rest = parts[0], parts[1:]
    if head == "**" and rest:
        yield from _matches(folder, rest)
    for path, is_folder in _entries(folder, "*" if head == "**" else head):
        if head == "**":
            enters = is_folder and not is_dataset(path)
            if enters:
                yield from _matches(path, parts)
            elif not rest:
                yield path
        elif not rest:
            yield path
        elif is_folder:
            yield from _matches(path, rest)


def _entries(folder: str, pattern: str) -> Iterator[tuple[str, bool]]:
    """What in a folder has a name that matches, and whether it is a folder to go into; hidden names only where the
    pattern begins with a dot."""
    try:
        with os.scandir(folder or ".") as found:
            entries = list(found)
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as error:
        if passes(error):
            raise
        raise UsageError(
            f"folder {folder} cannot be listed: {error.strerror}; what is in it would be missing. Make it readable, or "
            "name inputs that go around it"
        ) from None
    for entry in entries:
        if fnmatch.fnmatchcase(entry.name, pattern) and (entry.name[0] != "." or pattern[0] == "."):
            yield os.path.join(folder, entry.name), _is_folder(entry)  # noqa: PTH118 - keeps `./`


def _is_folder(entry: os.DirEntry[str]) -> bool:
    """Whether an entry is a folder, and no link to one above it, where the same files would be found again."""
    try:
        if not entry.is_dir():
            return False
    except OSError as error:
        if passes(error):
            raise
        return False  # a link that leads to itself
    here = Path(entry.path)
    return not (entry.is_symlink() and here.parent.resolve().is_relative_to(here.resolve()))
