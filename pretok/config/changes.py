"""What has changed since a result was made: settings and input files, by name.

Input: the settings or inputs of a result on disk, and those of this run. Output: a MismatchError that names every
difference, so that results of different settings are never mixed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from itertools import chain
from pathlib import Path

from pretok.base.console import Console
from pretok.base.errors import MismatchError, UsageError
from pretok.base.failures import LeftOut
from pretok.base.records import read_record
from pretok.base.units import listed, plural
from pretok.config.recipes import located
from pretok.config.settings import Recipe
from pretok.read.files import InputFile
from pretok.read.paths import TWO_URLS, FileKey, is_remote
from pretok.read.probe import choose_fields
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
    """Raises MismatchError if `what`, which is in `folder` and was made with settings `old`, differs from `new`
    (JSON). left_out: see `input_changes`."""
    refuse(what, folder, differences(old, new, left_out))


def differences(
    old: Mapping[str, object], new: Mapping[str, object], left_out: Sequence[LeftOut] = ()
) -> list[str]:
    """A sentence for each difference of `new` (JSON) from `old`."""
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
    """A setting as a person writes it: a fraction as a decimal number, if that is exact."""
    if isinstance(value, str) and re.fullmatch(r"[0-9]+(/[0-9]+)?", value):
        short = f"{float(Fraction(value)):g}"
        return short if Fraction(short) == Fraction(value) else value
    return repr(value)


def refuse(what: str, folder: Path, changes: Sequence[str]) -> None:
    """Raises MismatchError that names the changes, if there are any."""
    if changes:
        raise MismatchError(
            f"{what} in {folder} were made with other settings or inputs: {listed(changes, SHOWN, '; ')}. "
            f"Change that back, use another --out folder, or delete {folder} to start over"
        )


def input_changes(
    before: Sequence[InputFile], now: Sequence[InputFile], left_out: Sequence[LeftOut] = ()
) -> list[str]:
    """A sentence for each file that is gone, is new or has other contents. left_out: damaged files of which the result
    has nothing, so that it does not matter what became of them."""
    skipped = {one.file for one in left_out}
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
    """A sentence for each change of sources, of how they are read, and of their files."""
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
            first, *appends = (list_inputs(patterns, source.format, source.exclude) for patterns in every)
        if source.skip_damaged:
            first = first.without({path for append in appends for path in append.names.values()})
        listed[name] = [first, *appends] if appended else [first]
        if len(fields := source.record_format().fields) > 1:
            listed[name] = [
                listing._replace(files=choose_fields(listing.files, fields)) for listing in listed[name]
            ]
            console.notice(f"{name}: {_by_field(chain(*(listing.files for listing in listed[name])))}")
    for text in chain(*(listing.notices for listing in chain(*listed.values())), shared_inputs(listed)):
        console.notice(text)
    return listed


def _by_field(files: Iterable[InputFile]) -> str:
    """Which files have their text in which field, in words."""
    held: dict[str, list[str]] = {}
    for file in files:
        held.setdefault(file.field or "", []).append(file.path)
    return "; ".join(
        f"{f'the text is in {field!r}' if field else 'no field with text'} in {plural(len(paths), 'file')} "
        f"({listed(paths, 1)})"
        for field, paths in sorted(held.items())
    )


def shared_inputs(sources: Mapping[str, Sequence[Listing]]) -> list[str]:
    """A notice for each source, and each pair of them, with two files of the same size, beginning and end: their text
    counts twice.

    sources: the inputs of each, then those of its appends. Raises UsageError if an append names a file that its source
    has already, whatever its name, or if two files have the same name, as URLs that differ only in their secrets do
    (`paths.name_url`).
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
                if file.size and file.format != "unreadable":
                    other, path = seen.setdefault((file.size, file.identity), (name, file.path))
                    if (other, path) != (name, file.path):
                        shared.setdefault((other, name), []).append(_pair(path, file.path))
    return [
        f"warning: source {a} seems to read copies, files of the same size, beginning and end: {listed(pairs, SHOWN)}"
        if a == b
        else f"warning: sources {a} and {b} read the same text: {listed(pairs, SHOWN)}"
        for (a, b), pairs in shared.items()
    ]


def _pair(first: str, second: str) -> str:
    """Two names of a text, once if they are the same."""
    return first if first == second else f"{first} = {second}"
