"""Documents by what they are called.

Enters: a manifest, and a column of the ledgers with a value. Leaves: (source, split, number) of the documents that
match, in the order of the shards. A column is read as a whole, of all shards of the sources.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pretok.base.errors import UsageError
from pretok.shards.contents import SPLITS
from pretok.shards.ledger import HASH, ledger_path, ledger_schema, ledger_windows
from pretok.shards.manifest import Manifest, Shard
from pretok.shards.positions import PLACE_IN_FILE, lines_of_source

Place = tuple[str, str, int]
"""(source, split, number of the document in it)"""


def find_documents(manifest: Manifest, source: str | None, column: str, value: str, most: int) -> list[Place]:
    """The first `most` documents, of one source or of all, whose `column` of the ledger has a value. Raises UsageError
    for a column that no ledger has, or a value that it cannot have."""
    return list(islice(_by_column(chosen_shards(manifest, source), column, value), most))


def find_named(manifest: Manifest, name: str, most: int) -> list[Place]:
    """The first `most` documents of a name: 32 hexadecimal digits, the hash of the text; FILE:LINE, an input (or the
    end of its path) and the line or row from 1; anything else is a value of the kept column `id`. Raises UsageError
    where it names none."""
    shards = chosen_shards(manifest)
    if re.fullmatch("[0-9a-fA-F]{32}", name):
        matches, what = _by_column(shards, "hash", name), "the hash of no text"
    elif places := _places(manifest, name):
        matches, what = _by_place(shards, places), "a record that was rejected, or a line that is not there"
    else:
        matches, what = _by_column(shards, "id", name), "no hash, no input with a line, and no kept id"
    try:
        found = list(islice(matches, most))
    except UsageError as problem:  # no ledger has ids
        what = f"no hash, no input with a line, and {problem}"
        found = []
    if not found:
        raise UsageError(f"{manifest.folder} has no document {name!r}: it is {what}")
    return found


def find_in(manifests: Sequence[Manifest], name: str, most: int) -> list[list[Place]]:
    """`find_named` in each of several manifests; UsageError where none has the document."""
    found: dict[str, list[Place]] = {}
    problems: list[UsageError] = []
    for manifest in manifests:
        if manifest.fingerprint not in found:
            try:
                found[manifest.fingerprint] = find_named(manifest, name, most)
            except UsageError as problem:
                found[manifest.fingerprint] = []
                problems.append(problem)
    if not any(found.values()):
        raise problems[0]
    return [found[manifest.fingerprint] for manifest in manifests]


def _places(manifest: Manifest, name: str) -> set[tuple[str, int, int]]:
    """What FILE:LINE is in a ledger: file, start and record, one for each start of the file that is before the line."""
    file, _, line = name.rpartition(":")
    places = set()
    for source in manifest.tokenized if file and line.isdecimal() else ():
        for (path, start), lines in lines_of_source(manifest, source).items():
            if (path == file or path.endswith(f"/{file}")) and lines < int(line):
                places.add((path, start, int(line) - 1 - lines))
    return places


def _by_place(shards: list[tuple[Shard, int]], places: set[tuple[str, int, int]]) -> Iterator[Place]:
    for shard, before in shards:
        at = before
        for rows in ledger_windows(ledger_path(shard.prefix), list(PLACE_IN_FILE)):
            for path, start, record in sorted(places):
                here = np.flatnonzero(np.asarray(pc.equal(rows["record"], record)))
                for row in here.tolist():
                    if (rows["file"][row].as_py(), rows["start"][row].as_py()) == (path, start):
                        yield shard.source, shard.split, at + row
            at += len(rows)


def check_place(manifest: Manifest, source: str | None, split: str | None) -> None:
    """UsageError for a source or a split that is not there."""
    if source is not None and source not in manifest.sources:
        raise UsageError(f"no source {source!r}; there is {', '.join(manifest.sources)}")
    if split is not None and split not in SPLITS:
        raise UsageError(f"no split {split!r}; there are {' and '.join(SPLITS)}")


def chosen_shards(
    manifest: Manifest, source: str | None = None, split: str | None = None
) -> list[tuple[Shard, int]]:
    """The shards of a source and a split, or of all, each with the documents of its split before it. UsageError where
    there is no such place, or the shards hold a mix."""
    check_place(manifest, source, split)
    if manifest.contents.materialized is not None:
        raise UsageError(
            f"{manifest.folder} holds a mix in its order; its documents are in the shards it was made of"
        )
    return [
        (shard, before)
        for shard, before in manifest.numbered
        if source in (None, shard.source) and split in (None, shard.split)
    ]


def _by_column(shards: list[tuple[Shard, int]], column: str, value: str) -> Iterator[Place]:
    known: set[str] = set()
    found = False
    for shard, before in shards:
        path = ledger_path(shard.prefix)
        schema = ledger_schema(path)
        known |= set(schema.names)
        if column not in schema.names:
            continue
        found = True
        scalar = _scalar(schema.field(column).type, column, value)
        at = before
        for rows in ledger_windows(path, [column]):
            for row in np.flatnonzero(np.asarray(pc.fill_null(pc.equal(rows[column], scalar), False))):
                yield shard.source, shard.split, at + int(row)
            at += len(rows)
    if not found:
        raise UsageError(f"no ledger has a column {column!r}; there are {', '.join(sorted(known))}")


def _scalar(kind: pa.DataType, column: str, value: str) -> Any:
    """The value as one of the column."""
    try:
        return pa.scalar(bytes.fromhex(value), HASH) if kind == HASH else pa.scalar(value).cast(kind)
    except (ValueError, pa.ArrowException):
        what = "32 hexadecimal digits" if kind == HASH else str(kind)
        raise UsageError(f"{column} is {what}, not {value!r}") from None
