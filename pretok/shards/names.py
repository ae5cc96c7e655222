"""Names of documents -> the documents.

Input: a manifest, and names from a command line or a file. Output: rows of its shards. A name is

    HASH       32 hexadecimal digits: the hash of a text
    ID         a value of the kept column `id`
    FILE:LINE  an input, or the end of its path, and the line or row from 1

Every name is looked up in all of these ways. It may fit several documents, such as an id that occurs twice. If it fits
in several ways, or as a line of several files, all these documents must have the same text. Otherwise it is unclear
which one is meant, and the name is refused.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pretok.base.errors import UsageError
from pretok.base.tokens import Ints
from pretok.base.units import listed
from pretok.read.batches import HASH
from pretok.shards.document_table import Numbered, lines_of_source, scan
from pretok.shards.manifest import Manifest

SHOWN = 20
"""Names that a message lists at most."""
WAYS = {"hash": "the hash of a text", "id": "a kept id"}
Lines = dict[str, dict[int, list[str]]]
"""Path of an input -> line or row -> names of it."""


def read_names(path: Path) -> tuple[str, ...]:
    """Return the names in a file, one per line, each once. Lines end with LF or CR LF; empty lines are skipped.

    Raises UsageError if the file cannot be read or has no name.
    """
    try:
        lines = path.read_bytes().decode("utf-8").split("\n")  # text mode would end lines at a CR too
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read {path}: {error}") from None
    names = tuple(dict.fromkeys(name for line in lines if (name := line.removesuffix("\r"))))
    if not names:
        raise UsageError(f"{path} names no document: write one hash, id or FILE:LINE on each line")
    return names


def is_hash(name: str) -> bool:
    """Whether a name has the form of a hash."""
    return re.fullmatch("[0-9a-fA-F]{32}", name) is not None


def find_names(
    manifest: Manifest, shards: Sequence[Numbered], names: Sequence[str]
) -> tuple[dict[str, Ints], tuple[str, ...]]:
    """Return (path of each shard -> its documents with one of the names, rising; the names that fit no document).

    Raises UsageError for names that fit different documents in several ways, IntegrityError.
    """
    hashes: defaultdict[bytes, list[str]] = defaultdict(list)
    for name in filter(is_hash, names):
        hashes[bytes.fromhex(name)].append(name)
    lines = lines_named(manifest, names)
    wanted = pa.array(hashes, HASH), pa.array(names, pa.large_string())
    columns = ["hash", "id", *(("file", "position") if lines else ())]
    fits: defaultdict[str, defaultdict[str, set[bytes]]] = defaultdict(lambda: defaultdict(set))
    documents = {}
    for shard, before in shards:
        rows_found: set[int] = set()
        for _, first, rows in scan(manifest, columns, [(shard, before)]):
            for row, name, way in _matches(rows, wanted, hashes, lines):
                rows_found.add(first - before + row)
                fits[name][way].add(rows["hash"][row].as_py())
        documents[shard.path] = np.array(sorted(rows_found), np.int64)
    _refuse_unclear(manifest, fits)
    return documents, tuple(name for name in names if name not in fits)


def _matches(
    rows: pa.RecordBatch, wanted: tuple[pa.Array, pa.Array], hashes: dict[bytes, list[str]], lines: Lines
) -> Iterator[tuple[int, str, str]]:
    """Yield (row, name, way) for each name that fits a row. wanted: hashes and ids as Arrow arrays."""
    for row in pc.indices_nonzero(pc.is_in(rows["hash"], value_set=wanted[0])).to_pylist():
        yield from ((row, name, "hash") for name in hashes[rows["hash"][row].as_py()])
    ids = rows["id"].cast(pa.large_string())  # null if the ledger has no ids
    for row in pc.indices_nonzero(pc.is_in(ids, value_set=wanted[1])).to_pylist():
        yield row, ids[row].as_py(), "id"
    if not lines:
        return
    files = rows["file"].dictionary_encode()
    for number, path in enumerate(files.dictionary.to_pylist()):
        if here := lines.get(path):
            places = pc.is_in(rows["position"], value_set=pa.array(here, pa.int64()))
            for row in np.flatnonzero((np.asarray(files.indices) == number) & np.asarray(places)).tolist():
                yield from ((row, name, path) for name in here[rows["position"][row].as_py()])


def lines_named(manifest: Manifest, names: Sequence[str]) -> Lines:
    """Return the names of the form FILE:LINE. A whole path means that input only, even if another path ends with it."""
    asked: defaultdict[str, list[tuple[int, str]]] = defaultdict(list)
    for name in names:
        if place := re.fullmatch(r"(.+):([0-9]{1,18})", name, re.DOTALL):
            asked[place[1]].append((int(place[2]), name))
    sources = manifest.tokenized if asked else ()
    paths = {path for source in sources for path, _ in lines_of_source(manifest, source)}
    lines: Lines = {}
    for path in paths:
        parts = path.split("/")
        for end in range(len(parts)):
            file = "/".join(parts[end:])
            for line, name in asked.get(file, ()) if file == path or file not in paths else ():
                lines.setdefault(path, {}).setdefault(line, []).append(name)
    return lines


def _refuse_unclear(manifest: Manifest, fits: dict[str, defaultdict[str, set[bytes]]]) -> None:
    unclear = []
    for name, ways in fits.items():
        if len(ways) > 1 and len(set.union(*ways.values())) > 1:
            ways_text = " and ".join(WAYS.get(way, f"a line of {way}") for way in sorted(ways))
            unclear.append(f"{name} is {ways_text}")
    if unclear:
        raise UsageError(
            f"{manifest.folder}: {len(unclear)} of the names fit different documents in different ways: "
            f"{listed(unclear, SHOWN)}; name each by another of its hash, its id and FILE:LINE with the whole path"
        )
