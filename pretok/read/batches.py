"""Batches of documents as they flow from readers to counting and encoding.

A batch holds texts as one Arrow array (no Python object per document), where each stood in its input, and the records
that were refused. `buffers` shows an Arrow string array as the two numpy arrays that Numba and the engine take.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pretok.read.kept import Mismatch


@dataclass(frozen=True, slots=True)
class Reject:
    """A record that is no document: `record` counts from 0 within the piece; reason is a short fixed word."""

    record: int
    reason: str
    detail: str = ""


@dataclass(frozen=True, slots=True)
class TextBatch:
    """Documents read from one piece.

    piece: its index in the partition; first: number of the batch's first record, from 0 within the piece; records: how
    many it covers, refused ones included; numbers: (documents,) int64, the record each document was, from 0 within the
    piece; texts: (documents,) large_string; kept: a (documents,) array for each column that is kept; mismatches: what
    of these is null because it was of another type.
    """

    piece: int
    first: int
    records: int
    texts: pa.LargeStringArray
    numbers: npt.NDArray[np.int64]
    rejects: list[Reject] = field(default_factory=list)
    kept: tuple[pa.Array, ...] = ()
    mismatches: tuple[Mismatch, ...] = ()


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
    """Inverse of `buffers`, without a copy. The bytes are not checked for UTF-8."""
    array: Any = pa.LargeStringArray.from_buffers(len(offsets) - 1, pa.py_buffer(offsets), pa.py_buffer(data))
    return array
