"""Choose documents by a condition or by names, and all documents with the same text.

Input: a manifest, and a condition over the columns of `documents` (`pretok query`) or names (`shards.names`). Output:
`Selection`. Documents that were removed already are skipped. The ledgers are read twice: for the chosen documents, and
for their copies in other sources and in validation.
"""

from __future__ import annotations

import os
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
from pretok.shards.documents import Numbered, chosen_shards, scan
from pretok.shards.manifest import Manifest, Shard
from pretok.shards.names import SHOWN, find_names
from pretok.stream.classes import SCRATCH, evaluated


@dataclass(frozen=True, slots=True)
class Chosen:
    """Documents of one shard: `rows` (n,), rising; before: documents of its split before it; sizes (n,): bytes of their
    texts; copies: how many of them are only copies of chosen documents."""

    shard: Shard
    before: int
    rows: Ints
    sizes: Ints
    copies: int

    @property
    def mask(self) -> npt.NDArray[np.bool_]:
        """(documents of the shard,): which of them are chosen."""
        return np.isin(np.arange(self.shard.documents), self.rows)


@dataclass(frozen=True, slots=True)
class Selection:
    """hashes: of the texts, each once; already: documents that were removed before; missing: names of no document."""

    chosen: tuple[Chosen, ...]
    hashes: pa.Array
    already: int = 0
    missing: tuple[str, ...] = ()


def select(manifest: Manifest, where: str | None, names: Sequence[str]) -> Selection:
    """Return the documents for which `where` is true, or which have one of the names, and all copies of them. Raises
    UsageError for a wrong condition, MismatchError, IntegrityError."""
    shards = tuple(one for one in chosen_shards(manifest) if one[0].documents)
    missing: tuple[str, ...] = ()
    if where is not None:
        meant = _by_predicate(manifest, shards, where)
    else:
        meant, missing = find_names(manifest, shards, names)
    found, already = [pa.array([], HASH)], 0
    for shard, rows in _hashes(manifest, shards):
        at = meant[shard.path]
        gone = np.asarray(rows["removed"].is_valid())[at]
        already += int(gone.sum())
        found.append(rows["hash"].take(pa.array(at[~gone])))
    hashes = pa.chunked_array(found).unique()
    before, chosen = {shard.path: first for shard, first in shards}, []
    for shard, rows in _hashes(manifest, shards) if len(hashes) else ():
        same = np.asarray(pc.is_in(rows["hash"], value_set=hashes)) & ~np.asarray(rows["removed"].is_valid())
        if len(at := np.flatnonzero(same)):
            sizes = np.asarray(rows["bytes"])[at]
            copies = len(np.setdiff1d(at, meant[shard.path]))
            chosen.append(Chosen(shard, before[shard.path], at, sizes, copies))
    return Selection(tuple(chosen), hashes, already, missing)


def _hashes(manifest: Manifest, shards: Sequence[Numbered]) -> Iterator[tuple[Shard, pa.Table]]:
    """Yield hash, bytes and `removed` of all documents of each shard, after a check of its ledger."""
    for one in shards:
        manifest.check(one[0].ledger_path)
        windows = [rows for _, _, rows in scan(manifest, ["hash", "bytes", "removed"], [one])]
        columns = [
            pa.concat_arrays([window[n].cast(kind) for window in windows])
            for n, kind in enumerate((HASH, pa.int64(), pa.string()))
        ]
        yield one[0], pa.table(columns, names=["hash", "bytes", "removed"]).combine_chunks()


def _by_predicate(manifest: Manifest, shards: Sequence[Numbered], where: str) -> dict[str, Ints]:
    # DuckDB makes the folder when it needs it: a dry run may look at shards on a disk that cannot be written.
    with database(manifest.folder.parent / f".remove-{os.getpid()}", 1, SCRATCH) as connection:
        windows = [
            mask[0]
            for mask, _ in evaluated(connection, manifest, shards, {"where": where}, manifest.sources, "--")
        ]
    every = np.concatenate([np.zeros(0, np.bool_), *windows])
    ends = np.cumsum([shard.documents for shard, _ in shards])[:-1]
    return {
        shard.path: np.flatnonzero(part)
        for (shard, _), part in zip(shards, np.split(every, ends), strict=True)
    }


def refuse_missing(missing: Sequence[str], where: Path, folder: Path) -> None:
    """Raise UsageError if some names have no document."""
    if missing:
        raise UsageError(
            f"{folder} has no document of {len(missing)} of the names in {where}, and nothing was removed: "
            f"{listed(missing, SHOWN)}; a name is a hash, a kept id or FILE:LINE; --missing-ok removes the others"
        )


def refuse_whole(manifest: Manifest, selection: Selection) -> None:
    """Raise UsageError if nothing would be left of a source."""
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
