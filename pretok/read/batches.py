"""Batches of documents as they flow from readers to counting and encoding.

A batch holds texts as one Arrow array (no Python object per document), the place of each in its input, and the rejected
records.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pretok.base.records import replace
from pretok.base.texts import buffers
from pretok.base.tokens import Hashes
from pretok.kernels.hashing import hash_documents

NOT_CANONICAL = "encoded otherwise"
"""The remark on a document whose text its tokenizer encodes to other ids than those that were there."""
HASH = pa.binary(16)
"""Type of the hash of a text in ledgers."""


Reject = tuple[int, str, str]
"""A rejected record: (its line or row, from 0 within the piece; one of REASONS; details)."""
REJECTS = pa.schema([("record", pa.int64()), ("reason", pa.string()), ("detail", pa.string())])
"""Schema of a table of rejects, in the order of the records."""
# `pa.array` would load pandas while modules are loaded.
NO_REJECTS = pa.Table.from_arrays([pa.nulls(0, column.type) for column in REJECTS], schema=REJECTS)


@dataclass(frozen=True, slots=True)
class TextBatch:
    """Documents read from one piece."""

    piece: int
    """Its index in the partition."""
    end: int
    """Lines or rows of the piece up to the end of the batch."""
    records: int
    """How many the batch covers, rejected ones included."""
    texts: pa.LargeStringArray
    """(documents,) large_string."""
    numbers: npt.NDArray[np.int64]
    """(documents,) int64, the line or row of each document, from 0 within the piece."""
    rejects: pa.Table = field(default_factory=lambda: NO_REJECTS)
    refused: int = 0
    """Bytes of rejected records."""
    kept: tuple[pa.Array, ...] = ()
    """A (documents,) array for each kept column."""
    mismatches: tuple[npt.NDArray[np.bool_], ...] = ()
    """For each kept column, a (documents,) array of which values are null because they had another type."""
    spans: pa.LargeListArray | None = None
    """Of conversations, see `pretok.chat.spans`."""
    before: npt.NDArray[np.uint64] | None = None
    """Of a file of tokens, (documents,) uint64, the `hash_ids` of each."""
    remarks: Mapping[str, int] = field(default_factory=dict)
    """Of a file of tokens, what was found -> in how many of its documents."""

    @property
    def nbytes(self) -> int:
        """Bytes of memory, without those of the kept columns."""
        return int(self.texts.nbytes + self.rejects.nbytes)

    def without(self, rejects: Sequence[Reject]) -> TextBatch:
        """Return the batch without the documents of these rejects, which are added to its rejects."""
        if not rejects:
            return self
        columns = [
            pa.array(column, kind)
            for column, kind in zip(zip(*rejects, strict=True), REJECTS.types, strict=True)
        ]
        more = pa.Table.from_arrays(columns, schema=REJECTS)
        left: npt.NDArray[np.bool_] = ~np.isin(self.numbers, np.asarray(columns[0]))
        mask = pa.array(left)
        return replace(
            self,
            texts=self.texts.filter(mask),
            numbers=self.numbers[left],
            rejects=pa.concat_tables([self.rejects, more]).sort_by("record"),
            kept=tuple(column.filter(mask) for column in self.kept),
            mismatches=tuple(column[left] for column in self.mismatches),
            spans=None if self.spans is None else self.spans.filter(mask),
            before=None if self.before is None else self.before[left],
        )


def hash_texts(texts: pa.LargeStringArray) -> Hashes:
    """Return the hashes of texts: (texts, 2) uint64, XXH64 with seeds 0 and 1.

    Two 64-bit hashes in compiled code: a call of the library's 128-bit XXH3 takes 0.4 us per document, which would cost
    a third of the speed for documents of 100 bytes.
    """
    return np.stack([hash_documents(*buffers(texts), seed) for seed in (0, 1)], axis=1)


def hash_ids(tokens: npt.NDArray[Any], offsets: npt.NDArray[np.int64]) -> npt.NDArray[np.uint64]:
    """Return the hash of the ids of each text, without BOS and EOD, whatever their dtype: (documents,) uint64."""
    ids = np.ascontiguousarray(tokens, "<u4")
    return hash_documents(ids.view(np.uint8), 4 * offsets, 0)


def hash_column(hashes: Hashes) -> pa.Array:
    """Return the result of `hash_texts` as a column of a ledger."""
    return pa.FixedSizeBinaryArray.from_buffers(HASH, len(hashes), [None, pa.py_buffer(hashes.astype(">u8"))])
