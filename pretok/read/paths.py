"""What a user wrote for an input -> the paths it stands for.

Input: a path, a glob (`**` too), an fsspec URL or URL glob, or `sample:it`. Output: paths, sorted. Nothing is
looked into: whether a path is a regular file is for `pretok.read.recognise` to find out.
"""

from __future__ import annotations

import fnmatch
import glob
import json
import os
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
        paths = list(_matches("/" if pattern.startswith("/") else "", _parts(pattern)))
    else:
        paths = [pattern] if _exists(pattern) else []
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


def _parts(pattern: str) -> list[str]:
    parts = [part for part in pattern.split("/") if part]
    return parts[:-1] if parts[-2:] == ["**", "*"] else parts  # everything below a folder, in one way


def _matches(folder: str, parts: list[str]) -> Iterator[str]:
    """What `parts` of a glob match in `folder`, in the shell's way, as `glob.glob` finds it; but that leaves out what
    it may not list without a word, and goes around a circle of links until the system refuses."""
    head, rest = parts[0], parts[1:]
    if head == "**":
        if rest:
            yield from _matches(folder, rest)
        for path, entry in _entries(folder, "*"):
            inside = _is_folder(entry)
            saved = inside and is_dataset(path)
            if not rest and (not inside or saved):
                yield path
            if inside and not saved and not _leads_back(entry):
                yield from _matches(path, parts)
    elif glob.has_magic(head):
        for path, entry in _entries(folder, head):
            if not rest:
                yield path
            elif _is_folder(entry):
                yield from _matches(path, rest)
    else:
        path = os.path.join(folder, head)  # noqa: PTH118 - keeps `./`, as the user wrote it
        if _exists(path):
            yield from _matches(path, rest) if rest else [path]


def _entries(folder: str, pattern: str) -> Iterator[tuple[str, os.DirEntry[str]]]:
    """What in a folder has a name that matches; hidden names only where the pattern begins with a dot."""
    try:
        with os.scandir(folder or ".") as found:
            entries = list(found)
    except NotADirectoryError:
        return
    except OSError as error:
        if passes(error):
            raise
        raise _unlisted(folder, error) from None
    for entry in entries:
        if fnmatch.fnmatchcase(entry.name, pattern) and (entry.name[0] != "." or pattern[0] == "."):
            yield os.path.join(folder, entry.name), entry  # noqa: PTH118


def _exists(path: str) -> bool:
    try:
        os.lstat(path)
    except PermissionError as error:
        raise _unlisted(os.path.dirname(path), error) from None  # noqa: PTH120
    except OSError as error:
        if passes(error):
            raise
        return False
    return True


def _unlisted(folder: str, error: OSError) -> UsageError:
    return UsageError(
        f"folder {folder} cannot be listed: {error.strerror}; what is in it would be missing. Make it readable, or "
        "name inputs that go around it"
    )


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError as error:
        if passes(error):
            raise
        return False  # a link that leads to itself


def _leads_back(entry: os.DirEntry[str]) -> bool:
    """Whether a folder is a link to one above it: going on would find the same files again and again."""
    if not entry.is_symlink():
        return False
    here, target = Path(entry.path).parent.resolve(), Path(entry.path).resolve()
    return here.is_relative_to(target)
