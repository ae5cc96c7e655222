"""The arrays that stages exchange: texts as bytes with offsets, token ids, and their types."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]
"""Concatenated texts, UTF-8."""
Ints = npt.NDArray[np.int64]
"""Offsets, positions, counts."""
Hashes = npt.NDArray[np.uint64]
"""Hashes of documents, from `kernels.hashing`."""
Ids = npt.NDArray[np.uint32]
"""Token ids from tokenizers."""
Tokens = npt.NDArray[np.uint16] | npt.NDArray[np.int32]
"""Token ids in shards."""
IGNORE = -100
"""A target without loss, as in torch's cross_entropy."""

INDEX_MAGIC, INDEX_VERSION = b"MMIDIDX\0\0", 1
INDEX_HEADER = struct.Struct("<9sQBQQ")
"""Of an index of Megatron-LM: magic, version, code of the dtype, sequences, documents + 1."""
DTYPE_CODES: dict[int, np.dtype[Any]] = {8: np.dtype("<u2"), 4: np.dtype("<i4")}
"""Megatron-LM's code -> dtype; the two that token ids need."""


def token_dtype(vocab_size: int) -> np.dtype[np.uint16] | np.dtype[np.int32]:
    """Return uint16 for at most 65,536 entries (ids 0 to 65,535), else int32; both little-endian."""
    return np.dtype("<u2") if vocab_size <= 1 << 16 else np.dtype("<i4")


def removed_documents(tokens: Tokens, offsets: npt.NDArray[np.int64], eod_id: int) -> npt.NDArray[np.bool_]:
    """Return which documents were removed, shape (documents,): those that have several tokens, the first of them EOD.

    offsets: (documents + 1,), where each document begins in `tokens`, and the end of the last one.
    """
    starts, lengths = offsets[:-1], np.diff(offsets)
    removed = lengths > 1
    removed[removed] = tokens[starts[removed]] == eod_id
    return removed


def padded_targets(tokens: Any, eod_id: int) -> Any:
    """Return which tokens of sequences but the first are padding, an EOD after an EOD: (..., L + 1) -> (..., L) bool.

    tokens: of NumPy or of torch, as is what is returned.
    """
    ends = tokens == eod_id
    return ends[..., 1:] & ends[..., :-1]


def document_starts(tokens: npt.NDArray[Any], eod_id: int) -> npt.NDArray[np.bool_]:
    """Return which tokens of sequences, shape (..., L), begin a document.

    These are the first of each sequence, and every token after an EOD that is not EOD itself. An EOD after an EOD is
    padding: it is never a target and belongs to the preceding document.
    """
    ends = tokens == eod_id
    starts = np.zeros(tokens.shape, np.bool_)
    starts[..., :1] = True
    starts[..., 1:] = ends[..., :-1] & ~ends[..., 1:]
    return starts
