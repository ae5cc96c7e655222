"""What changed since a result was made: settings and input files by name, or nothing.

Enters: the settings or inputs a result on disk was made from, and those of this run. Leaves: a MismatchError that names
every difference; results of other settings are never mixed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pretok.base.errors import MismatchError
from pretok.read.files import InputFile, shorten

SHOWN = 5
INPUTS = "inputs"
"""Key of settings that holds {source: {..., files: [InputFile as a mapping]}}; its changes are named file by file."""


def refuse_changes(what: str, folder: Path, old: dict[str, Any], new: dict[str, Any]) -> None:
    """MismatchError when `what`, which is in `folder`, was made with settings `old`, and `new` differs."""
    changes = []
    for key, value in new.items():
        if old.get(key) == value:
            continue
        if key == INPUTS:
            changes += _source_changes(old.get(key) or {}, value)
        else:
            changes.append(f"{key} was {old.get(key)!r} and is {value!r}")
    refuse(what, folder, changes)


def refuse(what: str, folder: Path, changes: Sequence[str]) -> None:
    """MismatchError that names the changes, if there are any."""
    if changes:
        more = f"; and {len(changes) - SHOWN} more" if len(changes) > SHOWN else ""
        raise MismatchError(
            f"{what} in {folder} were made from something else: {'; '.join(changes[:SHOWN])}{more}. "
            "Restore that, use another --out folder, or delete this one to make them again"
        )


def input_changes(before: Sequence[InputFile], now: Sequence[InputFile]) -> list[str]:
    """A sentence for each file that is gone, new or has other contents."""
    old, new = ({file.path: file for file in files} for files in (before, now))
    return [
        *(f"{path} is gone" for path in sorted(old.keys() - new.keys())),
        *(f"{path} is new (name it as a source of its own)" for path in sorted(new.keys() - old.keys())),
        *(
            f"{path} has other contents ({old[path].size} -> {new[path].size} bytes)"
            for path in sorted(old.keys() & new.keys())
            if old[path] != new[path]
        ),
    ]


def _source_changes(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    """Changes of whole sources, of how they are read, and of their files."""
    changes = [f"source {name} is gone" for name in sorted(old.keys() - new.keys())]
    changes += [f"source {name} is new" for name in sorted(new.keys() - old.keys())]
    for name in sorted(old.keys() & new.keys()):
        changes += input_changes(
            *([InputFile(**file) for file in side[name]["files"]] for side in (old, new))
        )
        changes += [
            f"{key} of source {name} was {old[name].get(key)!r} and is {value!r}"
            for key, value in new[name].items()
            if key != "files" and old[name].get(key) != value
        ]
    return changes


def shared_inputs(sources: Mapping[str, Sequence[InputFile]]) -> list[str]:
    """A notice for each pair of sources that read a file of equal size, beginning and end: its text counts in both."""
    seen: dict[tuple[int, str], tuple[str, str]] = {}
    shared: dict[tuple[str, str], list[str]] = {}
    for name, files in sources.items():
        for file in files:
            if file.size and file.identity and file.format != "unreadable":
                other, path = seen.setdefault((file.size, file.identity), (name, file.path))
                if other != name:
                    shared.setdefault((other, name), []).append(
                        file.path if path == file.path else f"{path} = {file.path}"
                    )
    return [f"sources {a} and {b} read the same text: {shorten(paths)}" for (a, b), paths in shared.items()]
