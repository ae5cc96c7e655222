"""Which documents are meant: by a predicate or by ids, and all that have the text of one of these.

Input: a manifest, and a condition over the columns of `docs` (`pretok query`) or a file of names: hashes of texts,
kept ids, FILE:LINE. Output: `Selection`. Documents that are removed already are passed over. The ledgers are read
twice: for what is meant, and for the copies of it in other sources and in validation.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pretok.base.errors import UsageError
from pretok.base.sql import database
from pretok.base.tokens import Ints
from pretok.base.units import listed
from pretok.read.batches import HASH
from pretok.shards.documents import PLACE_IN_FILE, Numbered, chosen_shards, lines_of_source, scan
from pretok.shards.ledger import ledger_schema
from pretok.shards.manifest import Manifest, Shard
from pretok.stream.classes import SCRATCH, evaluated

SHOWN = 20
"""Names that a message lists."""


@dataclass(frozen=True, slots=True)
class Chosen:
    """Documents of one shard: `rows` (n,), rising; before: documents of its split before it; sizes (n,): bytes of their
    texts; copies: how many of them are here only as copies of others."""

    shard: Shard
    before: int
    rows: Ints
    sizes: Ints
    copies: int


@dataclass(frozen=True, slots=True)
class Selection:
    """hashes: of the texts, each once; already: documents that are meant and removed; missing: names of none."""

    chosen: tuple[Chosen, ...]
    hashes: pa.Array
    already: int = 0
    missing: tuple[str, ...] = ()


def read_names(path: Path) -> tuple[str, ...]:
    """The lines of a file of ids, without blank ones, each once. Raises UsageError."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read {path}: {error}") from None
    names = tuple(dict.fromkeys(line.strip() for line in lines if line.strip()))
    if not names:
        raise UsageError(f"{path} names no document: it wants a hash, an id or FILE:LINE on each line")
    return names


def select(manifest: Manifest, where: str | None, names: Sequence[str]) -> Selection:
    """The documents for which `where` is true, or which have one of the names, and all copies of them. Raises
    UsageError for what is no condition, MismatchError, IntegrityError."""
    shards = tuple(one for one in chosen_shards(manifest) if one[0].documents)
    missing: tuple[str, ...] = ()
    if where is not None:
        meant = _by_predicate(manifest, shards, where)
    else:
        meant, missing = _by_name(manifest, shards, names)
    found, already = [pa.array([], HASH)], 0
    for shard, rows in _hashes(manifest, shards):
        here, gone = pa.array(meant[shard.path]), np.asarray(rows["removed"].is_valid())
        already += int((meant[shard.path] & gone).sum())
        found.append(rows["hash"].filter(here).filter(pa.array(~gone[meant[shard.path]])))
    hashes = pa.chunked_array(found).unique()
    before, chosen = {shard.path: first for shard, first in shards}, []
    for shard, rows in _hashes(manifest, shards) if len(hashes) else ():
        same = np.asarray(pc.is_in(rows["hash"], value_set=hashes)) & ~np.asarray(rows["removed"].is_valid())
        if len(at := np.flatnonzero(same)):
            sizes = np.asarray(rows["bytes"])[at]
            copies = int((~meant[shard.path][at]).sum())
            chosen.append(Chosen(shard, before[shard.path], at, sizes, copies))
    return Selection(tuple(chosen), hashes, already, missing)


def _hashes(manifest: Manifest, shards: Sequence[Numbered]) -> Iterator[tuple[Shard, pa.Table]]:
    """Hash, bytes and `removed` of all documents of each shard, whose ledger must be as it was sealed."""
    for one in shards:
        manifest.check(one[0].ledger_path)
        windows = [rows for _, _, rows in scan(manifest, ["hash", "bytes", "removed"], [one])]
        columns = [
            pa.concat_arrays([window[n].cast(kind) for window in windows])
            for n, kind in enumerate((HASH, pa.int64(), pa.string()))
        ]
        yield one[0], pa.table(columns, names=["hash", "bytes", "removed"]).combine_chunks()


def _by_predicate(
    manifest: Manifest, shards: Sequence[Numbered], where: str
) -> dict[str, npt.NDArray[np.bool_]]:
    # DuckDB makes the folder when it needs it: a dry run may look at shards on a disk that cannot be written.
    with database(manifest.folder.parent / f".remove-{os.getpid()}", 1, SCRATCH) as connection:
        windows = [mask[0] for mask, _ in evaluated(connection, manifest, shards, {"where": where}, "--")]
    every = np.concatenate([np.zeros(0, np.bool_), *windows])
    ends = np.cumsum([shard.documents for shard, _ in shards])[:-1]
    return {shard.path: part for (shard, _), part in zip(shards, np.split(every, ends), strict=True)}


def _by_name(
    manifest: Manifest, shards: Sequence[Numbered], names: Sequence[str]
) -> tuple[dict[str, npt.NDArray[np.bool_]], tuple[str, ...]]:
    """(which documents of each shard have one of the names, names of none)."""
    digits = {name for name in names if re.fullmatch("[0-9a-fA-F]{32}", name)}
    hashes = pa.array([bytes.fromhex(name) for name in sorted(digits)], HASH)
    ids = pa.array([name for name in names if name not in digits], pa.large_string())
    seen: set[str] = set()
    places = _places(manifest, ids.to_pylist())
    meant: dict[str, npt.NDArray[np.bool_]] = {}
    for shard, before in shards:
        known = [name for name in ("id",) if name in ledger_schema(shard.ledger_path).names]
        columns = ["hash", *known, *(PLACE_IN_FILE if places else ())]
        mask = np.zeros(shard.documents, np.bool_)
        for _, first, rows in scan(manifest, columns, [(shard, before)]):
            here = mask[first - before : first - before + len(rows)]
            at = pc.is_in(rows["hash"], value_set=hashes)
            seen.update(value.hex() for value in rows["hash"].filter(at).unique().to_pylist())
            here |= np.asarray(at)
            if known:
                values = rows["id"].cast(pa.large_string())
                at = pc.is_in(values, value_set=ids)
                seen.update(values.filter(at).unique().to_pylist())
                here |= np.asarray(at)
            if places:
                _mark_places(rows, places, here, seen)
        meant[shard.path] = mask
    missing = tuple(name for name in names if name not in seen and name.lower() not in seen)
    return meant, missing


def _places(manifest: Manifest, names: Sequence[str]) -> dict[tuple[str, int, int], str]:
    """(file, start, record) of a ledger -> the name, of those that are FILE:LINE, by the whole path or its end."""
    lines: dict[str, list[tuple[int, str]]] = {}
    for name in names:
        file, _, line = name.rpartition(":")
        if file and line.isdecimal():
            lines.setdefault(file, []).append((int(line), name))
    found = {}
    for source in manifest.tokenized if lines else ():
        for (path, start), before in lines_of_source(manifest, source).items():
            parts = path.split("/")
            for end in range(len(parts)):
                for number, name in lines.get("/".join(parts[end:]), ()):
                    if number > before:
                        found[path, start, number - 1 - before] = name
    return found


def _mark_places(
    rows: pa.RecordBatch, places: dict[tuple[str, int, int], str], here: npt.NDArray[np.bool_], seen: set[str]
) -> None:
    records = pa.array({record for _, _, record in places}, pa.int64())
    for row in np.flatnonzero(np.asarray(pc.is_in(rows["record"], value_set=records))).tolist():
        place = tuple(rows[name][row].as_py() for name in PLACE_IN_FILE)
        if place in places:
            here[row] = True
            seen.add(places[place])


def refuse_missing(missing: Sequence[str], where: Path, folder: Path) -> None:
    """UsageError that lists names of no document."""
    if missing:
        raise UsageError(
            f"{folder} has no document of {len(missing)} of the names in {where}, and nothing was removed: "
            f"{listed(missing, SHOWN)}; a name is a hash, a kept id or FILE:LINE; with --missing-ok the others go"
        )


def refuse_whole(manifest: Manifest, selection: Selection) -> None:
    """UsageError that names sources of which nothing would be left."""
    going = dict.fromkeys(manifest.sources, 0)
    for one in selection.chosen:
        going[one.shard.source] += len(one.rows)
    whole = []
    for name, counts in manifest.sources.items():
        left = counts.documents - (counts.removed.documents if counts.removed else 0)
        if left and going[name] == left:
            whole.append(f"{name} ({left:,} documents)")
    if whole:
        raise UsageError(
            f"this removes all that is left of {', '.join(whole)}, and nothing was removed: look at the condition; if "
            "it is meant, say --all"
        )
