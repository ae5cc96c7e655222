"""What has changed since a result was made: settings and input files, by name.

Input: the settings or inputs of a result on disk, and those of this run. Output: a MismatchError that names every
difference, so that results of different settings are never mixed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from fractions import Fraction
from itertools import chain
from pathlib import Path

from pretok.base.console import Console
from pretok.base.errors import MismatchError, UsageError
from pretok.base.failures import LeftOut
from pretok.base.records import read_record
from pretok.base.units import listed
from pretok.config.recipes import located
from pretok.config.settings import Recipe
from pretok.read.files import REFUSED, UNREADABLE, InputFile
from pretok.read.paths import TWO_URLS, FileKey, is_remote
from pretok.read.recognise import Listing, SourceInputs, list_inputs
from pretok.read.record_format import RecordFormat

SHOWN = 5
INPUTS = "inputs"
"""Key of the settings with {source: SourceInputs}, whose changes are named file by file."""


def refuse_changes(
    what: str,
    folder: Path,
    old: Mapping[str, object],
    new: Mapping[str, object],
    left_out: Sequence[LeftOut] = (),
) -> None:
    """Refuse another result in the place of `what`, which is in `folder` and was made with settings `old`.

    Raises MismatchError if they differ from `new` (JSON). left_out: see `input_changes`.
    """
    refuse(what, folder, differences(old, new, left_out))


def differences(
    old: Mapping[str, object], new: Mapping[str, object], left_out: Sequence[LeftOut] = ()
) -> list[str]:
    """Return a sentence for each difference of `new` (JSON) from `old`."""
    found = []
    for key, value in new.items():
        if old.get(key) == value:
            continue
        if key == INPUTS:
            found += _source_changes(old.get(key) or {}, value, left_out)
        else:
            found.append(f"{key} was {_written(old.get(key))} and is {_written(value)}")
    return found


def _written(value: object) -> str:
    """Write a setting as a person does: a fraction as a decimal number, if that is exact."""
    if isinstance(value, str) and re.fullmatch(r"[0-9]+(/[0-9]+)?", value):
        short = f"{float(Fraction(value)):g}"
        return short if Fraction(short) == Fraction(value) else value
    return repr(value)


def refuse(what: str, folder: Path, changes: Sequence[str]) -> None:
    """Raise MismatchError that names the changes, if there are any."""
    if changes:
        raise MismatchError(
            f"{what} in {folder} were made with other settings or inputs: {listed(changes, SHOWN, '; ')}. "
            f"Change that back, use another --out folder, or delete {folder} to start over"
        )


def input_changes(
    before: Sequence[InputFile], now: Sequence[InputFile], left_out: Sequence[LeftOut] = ()
) -> list[str]:
    """Return a sentence for each file that is gone, is new or has other contents.

    left_out: damaged files of which the result has nothing, so that it does not matter what became of them.
    """
    skipped = {damaged.file for damaged in left_out}
    old, new = ({file.path: file for file in files if file.path not in skipped} for files in (before, now))
    return [
        *(f"{path} is gone" for path in sorted(old.keys() - new.keys())),
        *(
            f"{path} is new (append it, or name it as a source of its own)"
            for path in sorted(new.keys() - old.keys())
        ),
        *(
            f"{path} has other contents ({old[path].size} -> {new[path].size} bytes)"
            for path in sorted(old.keys() & new.keys())
            if old[path] != new[path]
        ),
    ]


def _source_changes(before: object, now: object, left_out: Sequence[LeftOut]) -> list[str]:
    """Return a sentence for each change of sources, of how they are read, and of their files."""
    old, new = (read_record(dict[str, SourceInputs], side, INPUTS) for side in (before, now))
    changes = [f"source {name} is gone" for name in sorted(old.keys() - new.keys())]
    changes += [f"source {name} is new" for name in sorted(new.keys() - old.keys())]
    for name in sorted(old.keys() & new.keys()):
        changes += input_changes(old[name].files, new[name].files, left_out)
        changes += [
            f"{key} of source {name} was {getattr(old[name], key)!r} and is {getattr(new[name], key)!r}"
            for key in RecordFormat.__struct_fields__
            if getattr(old[name], key) != getattr(new[name], key)
        ]
    return changes


def list_sources(recipe: Recipe, console: Console, *, appended: bool = True) -> dict[str, list[Listing]]:
    """List the input files of each source, then those of its appends. `console` gets the notices on them."""
    listed = {}
    for name, source in recipe.sources.items():
        # A damaged file that was skipped and is repaired later is appended, though a glob of its source matches it.
        every = source.inputs_by_append if appended or source.skip_damaged else (source.inputs,)
        with located(recipe, "sources", name, "inputs"):
            first, *appends = (
                list_inputs(patterns, source.declared_format, source.exclude, recipe.out, source.most_damaged)
                for patterns in every
            )
        if source.skip_damaged:
            first = first.without({path for append in appends for path in append.names.values()})
        listed[name] = [first, *appends] if appended else [first]
    for text in chain(*(listing.notices for listing in chain(*listed.values())), shared_inputs(listed)):
        console.notice(text)
    return listed


def shared_inputs(sources: Mapping[str, Sequence[Listing]]) -> list[str]:
    """Return a notice for each source, and each pair of them, of which two files have the same text, counted twice.

    Such files have the same size, beginning and end. sources: the inputs of each, then those of its appends. Raises
    UsageError if an append names a file that its source has already, whatever its name, or if two files have the same
    name, as URLs that differ only in their secrets do (`paths.name_url`).
    """
    seen: dict[tuple[int, str], tuple[str, str]] = {}
    named: dict[str, InputFile] = {}
    shared: dict[tuple[str, str], list[str]] = {}
    for name, listings in sources.items():
        held: dict[FileKey, str] = {}
        for append, listing in enumerate(listings):
            if again := [_pair(held[key], path) for key, path in listing.names.items() if key in held]:
                raise UsageError(
                    f"append {append} of {name} names files that it contains already: {listed(again, SHOWN)}; "
                    "name new ones"
                )
            held |= listing.names
            for file in listing.files:
                if named.setdefault(file.path, file) != file and is_remote(file.path):
                    raise UsageError(f"{file.path} {TWO_URLS}")
                if file.size and file.format not in (UNREADABLE, REFUSED):
                    other, path = seen.setdefault((file.size, file.identity), (name, file.path))
                    if (other, path) != (name, file.path):
                        shared.setdefault((other, name), []).append(_pair(path, file.path))
    found = []
    for (a, b), pairs in shared.items():
        what = f"sources {a} and {b} read the same text"
        if a == b:
            what = f"source {a} seems to read copies, files of the same size, beginning and end"
        found.append(f"warning: {what}: {listed(pairs, SHOWN)}")
    return found


def _pair(first: str, second: str) -> str:
    """Return two names of a text, once if they are the same."""
    return first if first == second else f"{first} = {second}"
