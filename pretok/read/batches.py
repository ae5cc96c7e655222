"""Batches of documents as they flow from readers to counting and encoding.

A batch holds texts as one Arrow array (no Python object per document), the place of each in its input, and the rejected
records. `buffers` gives an Arrow string array as the two numpy arrays that Numba and the engine take.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pretok.base.records import replace
from pretok.base.tokens import Hashes
from pretok.kernels.hashing import hash_documents

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
    """Documents read from one piece.

    piece: its index in the partition; end: lines or rows of the piece up to the end of the batch; records: how many the
    batch covers, rejected ones included; numbers: (documents,) int64, the line or row of each document, from 0 within
    the piece; texts: (documents,) large_string; refused: bytes of rejected records; kept: a (documents,) array for each
    kept column; mismatches: for each, a (documents,) array of which values are null because they had another type;
    spans: of conversations, see `pretok.chat.spans`.
    """

    piece: int
    end: int
    records: int
    texts: pa.LargeStringArray
    numbers: npt.NDArray[np.int64]
    rejects: pa.Table = field(default_factory=lambda: NO_REJECTS)
    refused: int = 0
    kept: tuple[pa.Array, ...] = ()
    mismatches: tuple[npt.NDArray[np.bool_], ...] = ()
    spans: pa.LargeListArray | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of memory, without those of the kept columns."""
        return int(self.texts.nbytes + self.rejects.nbytes)

    def without(self, rejects: Sequence[Reject]) -> TextBatch:
        """The batch without the documents of these rejects, which are added to its rejects."""
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
        )


def buffers(texts: pa.LargeStringArray) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """(data, offsets) of a large_string array, without a copy: text i is data[offsets[i]:offsets[i + 1]].

    data: uint8, from the first text to the end of the last; offsets: (documents + 1,) int64, starting at 0.
    """
    if len(texts) == 0:
        return np.empty(0, np.uint8), np.zeros(1, np.int64)
    _, offset_buffer, data_buffer = texts.buffers()
    offsets = np.frombuffer(offset_buffer, np.int64)[texts.offset : texts.offset + len(texts) + 1]
    if data_buffer is None or offsets[-1] == offsets[0]:
        return np.empty(0, np.uint8), np.zeros(len(texts) + 1, np.int64)
    data = np.frombuffer(data_buffer, np.uint8)[offsets[0] : offsets[-1]]
    return data, offsets if offsets[0] == 0 else offsets - offsets[0]


def from_buffers(data: npt.NDArray[np.uint8], offsets: npt.NDArray[np.int64]) -> pa.LargeStringArray:
    """Inverse of `buffers`, without a copy. It does not check that the bytes are UTF-8."""
    array: Any = pa.LargeStringArray.from_buffers(len(offsets) - 1, pa.py_buffer(offsets), pa.py_buffer(data))
    return array


def hash_texts(texts: pa.LargeStringArray) -> Hashes:
    """The hashes of texts: (texts, 2) uint64, XXH64 with seeds 0 and 1.

    Two 64-bit hashes in compiled code: a call of the library's 128-bit XXH3 takes 0.4 us per document, which would cost
    a third of the speed for documents of 100 bytes.
    """
    return np.stack([hash_documents(*buffers(texts), seed) for seed in (0, 1)], axis=1)


def hash_column(hashes: Hashes) -> pa.Array:
    """The result of `hash_texts` as a column of a ledger."""
    return pa.FixedSizeBinaryArray.from_buffers(HASH, len(hashes), [None, pa.py_buffer(hashes.astype(">u8"))])
