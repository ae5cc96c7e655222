"""Formats of token files: what each reader wants beside the ids, which all take as they lie in our shards.

Input: the lengths of the documents of a file. Output: the bytes of the files beside it. Ids are uint16 or int32; a
reader that calls the latter uint32 sees the same bytes.

    megatron  .bin, .idx                        as `shards.format`
    olmo      .npy without a header, .csv.gz    start,end of each document in tokens; OLMo-core,
                                                olmo_core/data/utils.py

OLMo-core's format says which tokens are learned: a byte a token, 1 or 0, in `.mask` (`label_mask_paths`, one for each
path, olmo_core/data/numpy_dataset.py). A byte stands for its own token, not for the one before.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pretok.base.records import Count, Record
from pretok.shards.format import index_bytes


class ExportedFile(Record, frozen=True):
    """One file of tokens. path: relative to the folder; shards: their names, in order; sizes, checksums: by suffix, of
    it and of those beside it."""

    path: str
    source: str
    split: str
    tokens: Count
    documents: Count
    shards: tuple[str, ...]
    sizes: dict[str, Count]
    checksums: dict[str, str]


@dataclass(frozen=True, slots=True)
class Format:
    """What a reader wants. beside: {suffix: bytes} of the files beside each, from the lengths of its documents and the
    bytes of an id; mask: suffix of the file that says which tokens are learned, "" where the reader has no place for
    it."""

    suffix: str
    beside: Callable[[npt.NDArray[np.int32], int], dict[str, bytes]]
    mask: str = ""


def _megatron(lengths: npt.NDArray[np.int32], width: int) -> dict[str, bytes]:
    return {".idx": index_bytes(lengths, np.dtype("<u2" if width == 2 else "<i4"))}


def _olmo(lengths: npt.NDArray[np.int32], _: int) -> dict[str, bytes]:
    import pyarrow as pa
    from pyarrow import csv

    ends = np.cumsum(lengths, dtype=np.int64)
    table = pa.table({"start": ends - lengths, "end": ends})
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "gzip") as packed:
        csv.write_csv(table, packed, csv.WriteOptions(include_header=False))
    return {".csv.gz": sink.getvalue().to_pybytes()}


FORMATS = {"megatron": Format(".bin", _megatron), "olmo": Format(".npy", _olmo, mask=".mask")}
"""By the name of who reads it."""
