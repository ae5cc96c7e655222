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
from pretok.shards.document_table import Numbered, chosen_shards, scan
from pretok.shards.manifest import Manifest, Shard
from pretok.shards.names import SHOWN, find_names
from pretok.stream.classes import SCRATCH, evaluated


@dataclass(frozen=True, slots=True)
class Selected:
    """Chosen documents of one shard."""

    shard: Shard
    rows: Ints
    """(n,), rising."""
    tokens: Ints
    """(n,): of each document."""
    sizes: Ints
    """(n,): bytes of each text."""
    copies: int
    """How many of them are only copies of chosen documents."""

    @property
    def mask(self) -> npt.NDArray[np.bool_]:
        """(documents of the shard,): which of them are chosen."""
        return np.isin(np.arange(self.shard.documents), self.rows)


@dataclass(frozen=True, slots=True)
class Selection:
    """The documents that a request chooses."""

    chosen: tuple[Selected, ...]
    hashes: pa.Array
    """Of the texts, each once."""
    already: int = 0
    """Documents that were removed before."""
    missing: tuple[str, ...] = ()
    """Names of no document."""


def select(manifest: Manifest, where: str | None, names: Sequence[str]) -> Selection:
    """Return the documents for which `where` is true, or which have one of the names, and all copies of them.

    Raises UsageError for a wrong condition, MismatchError, IntegrityError.
    """
    shards = tuple(entry for entry in chosen_shards(manifest) if entry[0].documents)
    missing: tuple[str, ...] = ()
    if where is not None:
        meant = _by_predicate(manifest, shards, where)
    else:
        meant, missing = find_names(manifest, shards, names)
    chosen_hashes, already = [pa.array([], HASH)], 0
    for shard, rows in _rows(manifest, shards):
        at = meant[shard.path]
        gone = np.asarray(rows["removed"].is_valid())[at]
        already += int(gone.sum())
        # By hash and not by place: copies in other sources and in validation hold the same text.
        chosen_hashes.append(rows["hash"].take(pa.array(at[~gone])))
    # Only now is it known what to look for, hence the second pass over the ledgers.
    hashes = pa.chunked_array(chosen_hashes).unique()
    chosen = []
    for shard, rows in _rows(manifest, shards) if len(hashes) else ():
        same = np.asarray(pc.is_in(rows["hash"], value_set=hashes)) & ~np.asarray(rows["removed"].is_valid())
        if len(at := np.flatnonzero(same)):
            tokens, sizes = (np.asarray(rows[name])[at] for name in ("tokens", "bytes"))
            chosen.append(Selected(shard, at, tokens, sizes, len(np.setdiff1d(at, meant[shard.path]))))
    return Selection(tuple(chosen), hashes, already, missing)


COLUMNS = {"hash": HASH, "tokens": pa.int64(), "bytes": pa.int64(), "removed": pa.string()}


def _rows(manifest: Manifest, shards: Sequence[Numbered]) -> Iterator[tuple[Shard, pa.Table]]:
    """Yield COLUMNS of all documents of each shard, after a check of its ledger."""
    for numbered in shards:
        manifest.check(numbered[0].ledger_path)
        windows = [rows.cast(pa.schema(COLUMNS)) for _, _, rows in scan(manifest, list(COLUMNS), [numbered])]
        yield numbered[0], pa.Table.from_batches(windows).combine_chunks()


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
    for chosen in selection.chosen:
        going[chosen.shard.source] += len(chosen.rows)
    whole = []
    for name, counts in manifest.sources.items():
        left = counts.documents - (counts.removed.documents if counts.removed else 0)
        if left and going[name] == left:
            whole.append(f"{name} ({left:,} documents)")
    if whole:
        raise UsageError(
            f"this would remove all documents of {', '.join(whole)}; nothing was removed. Check the condition; to "
            "remove them all the same, add --all"
        )
