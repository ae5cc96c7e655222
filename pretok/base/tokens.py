"""The arrays that stages hand to each other: texts as bytes with offsets, token ids, and the types of these."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]
"""Texts in a row, UTF-8."""
Ints = npt.NDArray[np.int64]
"""Offsets, positions, counts."""
Hashes = npt.NDArray[np.uint64]
"""Of documents, as `kernels.hashing` gives them."""
Ids = npt.NDArray[np.uint32]
"""Token ids as tokenizers give them."""
Tokens = npt.NDArray[np.uint16] | npt.NDArray[np.int32]
"""Token ids as shards keep them."""


def token_dtype(vocab_size: int) -> np.dtype[np.uint16] | np.dtype[np.int32]:
    """uint16 for at most 65,536 entries (ids 0 to 65,535), else int32; both little-endian."""
    return np.dtype("<u2") if vocab_size <= 1 << 16 else np.dtype("<i4")


def removed_documents(tokens: Tokens, offsets: npt.NDArray[np.int64], eod_id: int) -> npt.NDArray[np.bool_]:
    """(documents,): which documents were removed: all their tokens are EOD, where a document has text before its own.

    offsets: (documents + 1,), where each begins in `tokens`, and the last one ends."""
    starts, lengths = offsets[:-1], np.diff(offsets)
    found = lengths > 1
    found[found] = tokens[starts[found]] == eod_id
    return found


def document_starts(tokens: npt.NDArray[Any], eod_id: int) -> npt.NDArray[np.bool_]:
    """Which of the tokens of sequences (..., L) begin a document, the first ones always: what follows an EOD and is
    none. An EOD whose input is EOD fills a sequence up: no target, and of one document with the run it is in (the rule
    of the stream)."""
    ends = tokens == eod_id
    starts = np.zeros(tokens.shape, np.bool_)
    starts[..., :1] = True
    starts[..., 1:] = ends[..., :-1] & ~ends[..., 1:]
    return starts
