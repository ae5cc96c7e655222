"""Formats of token files: what each reader wants beside the ids, which all take as they lie in our shards.

Input: the number of tokens of a file and the lengths of its documents. Output: the bytes before the tokens, and those
of the files beside it. Ids are uint16 or int32 in every one; a reader that calls the latter uint32 sees the same bytes.

    megatron  .bin, .idx                        as `shards.format`
    olmo      .npy without a header, .csv.gz    start,end of each document in tokens; OLMo-core, olmo_core/data/utils.py
    nanotron  .ds, .ds.index, .ds.metadata      the end of each document as u64; tokenizer|bytes of an id, tokens; as
                                                datatrove writes it, datatrove/pipeline/tokens/tokenizer.py
    litdata   .bin, index.json in the folder    one item a chunk: u32 1 | u32 start | u32 end | ids; litdata,
                                                litdata/streaming/writer.py

Which tokens are learned has a place in two: a byte a token, 1 or 0, in `.mask` for OLMo-core (`label_mask_paths`, one
for each path, olmo_core/data/numpy_dataset.py) and in `.ds.loss` as datatrove writes it. It is that of the token, not
of the one before.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

import numpy as np
import numpy.typing as npt

from pretok.base.records import Count, Record
from pretok.base.tokens import Ints
from pretok.base.units import human
from pretok.shards.format import index_bytes

_CHUNK = struct.Struct("<III")
_LEAF = '[1, {"type": null, "context": null, "children_spec": []}]'
"""A sample that is one tensor, as torch.utils._pytree writes the structure of it."""
_TORCH_CODES = {2: 20, 4: 16}
"""Bytes of an id -> litdata's number of torch.uint16 and torch.int32, litdata/constants.py."""


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
    """A format. suffix: of the token files; most: bytes of ids that fit into one; head: what stands before so many
    bytes of ids; mask: suffix of the file that says which tokens are learned, empty where the reader has no place for
    it; beside: {suffix: bytes} of the files that go with each, from the lengths of its documents, the bytes of an id
    and the name of the tokenizer; index: {name: JSON} of the files that go with a folder of them."""

    suffix: str
    beside: Callable[[npt.NDArray[np.int32], int, str], dict[str, bytes]]
    most: int = 1 << 62
    mask: str = ""
    head: Callable[[int], bytes] = lambda size: b""
    index: Callable[[Sequence[ExportedFile], int], dict[str, Any]] = lambda files, width: {}


def _ends(lengths: npt.NDArray[np.int32]) -> Ints:
    return np.cumsum(lengths, dtype=np.int64)


def _megatron(lengths: npt.NDArray[np.int32], width: int, _: str) -> dict[str, bytes]:
    return {".idx": index_bytes(lengths, np.dtype("<u2" if width == 2 else "<i4"))}


def _olmo(lengths: npt.NDArray[np.int32], _: int, __: str) -> dict[str, bytes]:
    import pyarrow as pa
    from pyarrow import csv

    ends = _ends(lengths)
    table = pa.table({"start": ends - lengths, "end": ends})
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "gzip") as packed:
        csv.write_csv(table, packed, csv.WriteOptions(include_header=False))
    return {".csv.gz": sink.getvalue().to_pybytes()}


def _nanotron(lengths: npt.NDArray[np.int32], width: int, tokenizer: str) -> dict[str, bytes]:
    ends = _ends(lengths)
    tokens = int(ends[-1]) if len(ends) else 0
    about = f"{tokenizer}|{width}\n{tokens}\n{human(tokens)}T"
    return {".ds.index": ends.astype("<u8").tobytes(), ".ds.metadata": about.encode()}


def _litdata_index(files: Sequence[ExportedFile], width: int) -> dict[str, Any]:
    chunks = [
        {
            "chunk_bytes": file.sizes[".bin"],
            "chunk_size": 1,
            "dim": file.tokens,
            "filename": PurePath(file.path).name,
        }
        for file in files
    ]
    config = {
        "chunk_bytes": max(file.sizes[".bin"] for file in files),
        "chunk_size": None,
        "compression": None,
        "data_format": [f"no_header_tensor:{_TORCH_CODES[width]}"],
        "data_spec": _LEAF,
        "encryption": None,
        "item_loader": "TokensLoader",
    }
    return {"index.json": {"chunks": chunks, "config": config}}


FORMATS = {
    "megatron": Format(".bin", _megatron),
    "olmo": Format(".npy", _olmo, mask=".mask"),
    "nanotron": Format(".ds", _nanotron, mask=".ds.loss"),
    "litdata": Format(
        ".bin",
        lambda lengths, width, tokenizer: {},
        most=(1 << 32) - 1 - _CHUNK.size,
        head=lambda size: _CHUNK.pack(1, _CHUNK.size, _CHUNK.size + size),
        index=_litdata_index,
    ),
}
"""By the name of who reads it."""
