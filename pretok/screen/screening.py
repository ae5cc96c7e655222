"""Reject unwanted documents of a batch, and add columns to the others.

Input: batches as `read` gives them, and a `Screening`. Output: batches in which unwanted documents are rejects, with
the reasons `removed`, `duplicate` and `contaminated`, and the others have more kept columns, if asked for:

    duplicate_of        text   the first document with this text, as FILE:LINE; null if this is the first
    contaminated_share  float  the largest share of a benchmark item that the document holds, see `benchmark`
    contaminated_by     text   that item, as FILE:LINE of the benchmark's folder; null if it holds none
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pretok.base.records import replace
from pretok.base.texts import buffers
from pretok.chat.spans import content_of
from pretok.read.batches import TextBatch, hash_column, hash_texts
from pretok.read.kept import TYPES, KeptColumn
from pretok.screen.benchmark import ContaminationFinder, ItemCount, load_benchmark
from pretok.screen.copies import CopiesOfPartition
from pretok.screen.removed import COLUMNS, read_removed

DUPLICATE = (KeptColumn("duplicate_of", "", "text"),)
CONTAMINATED = (KeptColumn("contaminated_share", "", "float"), KeptColumn("contaminated_by", "", "text"))


@dataclass(frozen=True, slots=True)
class Screening:
    """What to look for."""

    benchmark: Path | None = None
    """The file of a `Benchmark`."""
    fingerprint: str = ""
    """That of the benchmark, "" for none."""
    reject: Fraction | None = None
    """Documents that hold at least this share of an item are rejected; None: none."""
    duplicates: Literal["keep", "mark", "drop"] = "keep"
    """Whether to keep, mark or drop copies of earlier documents."""
    removed: tuple[Path, ...] = ()
    """The files of removed texts."""

    @property
    def columns(self) -> tuple[KeptColumn, ...]:
        """The columns that are added."""
        marks = DUPLICATE if self.duplicates == "mark" else ()
        return (*marks, *(CONTAMINATED if self.benchmark else ()))


class Screen:
    """Apply a Screening to the batches of a partition, one after the other. copies: the file of its copies."""

    def __init__(self, screening: Screening, copies: Path) -> None:
        self._reject = screening.reject
        self._drop = screening.duplicates == "drop"
        self._finder: ContaminationFinder | None = None
        self._copies: CopiesOfPartition | None = None
        self._removed = read_removed(screening.removed) if screening.removed else None
        if screening.benchmark:
            self._finder = ContaminationFinder(load_benchmark(screening.benchmark, screening.fingerprint))
        if screening.duplicates != "keep":
            self._copies = CopiesOfPartition(copies)

    def __call__(self, batch: TextBatch) -> TextBatch:
        """Return the batch with rejects and added columns."""
        if self._removed is not None:  # first: a copy of a removed text is rejected as removed
            batch = self._without_removed(batch, self._removed)
        if self._copies is not None:
            batch = self._without_copies(batch, self._copies.of(batch.piece, batch.numbers))
        if self._finder is None:
            return batch
        # Without the template, whose words are in every document; line feeds keep the words of two messages apart.
        texts = batch.texts if batch.spans is None else content_of(batch.texts, batch.spans)
        shares, items = self._finder.search(*buffers(texts))
        names = self._finder.benchmark.names
        by = pa.array([names[item] if item >= 0 else None for item in items.tolist()], TYPES["text"])
        batch = replace(batch, kept=(*batch.kept, pa.array(shares), by))
        if self._reject is None:
            return batch
        refused_too = np.flatnonzero((items >= 0) & (shares >= float(self._reject))).tolist()
        return batch.without(
            [
                (int(batch.numbers[row]), "contaminated", f"{shares[row]:.2f} of {names[items[row]]}")
                for row in refused_too
            ]
        )

    def _without_removed(self, batch: TextBatch, removed: pa.Table) -> TextBatch:
        hashes = hash_column(hash_texts(batch.texts))
        at = pc.index_in(hashes, value_set=removed["hash"])
        # As a rule nothing is found, and the batch goes on as it is.
        if at.null_count == len(at):
            return batch
        rejects = []
        for row in np.flatnonzero(np.asarray(at.is_valid())).tolist():
            when, why = (removed[name][at[row].as_py()].as_py() for name in COLUMNS)
            rejects.append((int(batch.numbers[row]), "removed", f"{when}: {why}"))
        return batch.without(rejects)

    def _without_copies(self, batch: TextBatch, copies: list[tuple[int, str]]) -> TextBatch:
        if self._drop:
            rejects = [(record, "duplicate", f"the same text as {first}") for record, first in copies]
            return batch.without(rejects)
        firsts = dict(copies)
        column = pa.array([firsts.get(record) for record in batch.numbers.tolist()], TYPES["text"])
        return replace(batch, kept=(*batch.kept, column))

    def take(self) -> tuple[ItemCount, ...]:
        """Return the matches of each benchmark item since the last call."""
        return self._finder.take() if self._finder else ()
