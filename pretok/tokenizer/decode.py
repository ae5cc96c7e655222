"""Token ids -> text, whole arrays at a time.

Input: a vocabulary, then ids in a row. Output: bytes in a row with offsets, as in `base.texts`. A token that ends
inside a character gives its bytes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from numba import types

from pretok.base.tokens import Bytes, Ints, Tokens
from pretok.kernels.compile import I64, U8, njit
from pretok.kernels.eight_bytes import load64, store64
from pretok.tokenizer.vocabulary import Vocabulary

_I32 = types.Array(types.int32, 1, "C", readonly=True)
_LONGS = types.int64[::1]


class TextDecoder:
    """Decodes ids of one vocabulary. head: tokens before the text of a document, 0 or 1."""

    def __init__(self, vocab: Vocabulary) -> None:
        self.vocab = vocab
        self.head = int(vocab.bos_id is not None)
        self.eod_id = vocab.eod_id
        tokens = [vocab.token_bytes(token) for token in range(vocab.size)]
        # Eight more, as the kernel copies eight bytes at once.
        self._bytes: Bytes = np.frombuffer(b"".join(tokens) + bytes(8), np.uint8)
        self._places: Ints = np.cumsum([0, *map(len, tokens)], dtype=np.int64)

    def decode(self, ids: Tokens | npt.NDArray[np.int32], ends: Ints) -> tuple[Bytes, Ints]:
        """Decode ids to (bytes, offsets): text i is bytes[offsets[i] : offsets[i + 1]].

        ids: (tokens,), all `holds` of the vocabulary; ends: (n + 1,) where texts begin and end in `ids`, from 0.
        """
        ids = np.ascontiguousarray(ids, np.int32)
        text, offsets = np.empty(_size(ids, self._places) + 8, np.uint8), np.empty(len(ends), np.int64)
        _decode(ids, np.ascontiguousarray(ends), self._bytes, self._places, text, offsets)
        return text[:-8], offsets


@njit(types.int64(_I32, I64))
def _size(ids: Any, places: Any) -> Any:
    """Return the bytes of text of all ids."""
    total = 0
    for i in range(len(ids)):
        token = np.uint32(ids[i])
        total += places[token + np.uint32(1)] - places[token]
    return total


@njit(types.void(_I32, I64, U8, I64, types.uint8[::1], _LONGS))
def _decode(ids: Any, ends: Any, table: Any, places: Any, text: Any, offsets: Any) -> None:
    """Write the bytes of the ids to `text`, and where each text begins and the last ends to `offsets`.

    A token has three to five bytes as a rule, so eight are copied at once: what is too much is written over by the next
    token, or is behind the text, where there is room for it.
    """
    at = 0
    for document in range(len(ends) - 1):
        offsets[document] = at
        for i in range(ends[document], ends[document + 1]):
            token = np.uint32(ids[i])
            start, size = places[token], places[token + np.uint32(1)] - places[token]
            for k in range(0, size, 8):
                store64(text.ctypes, at + k, load64(table.ctypes, start + k))
            at += size
    offsets[len(ends) - 1] = at


@njit(types.void(_I32, I64, I64, U8, types.uint8[::1]))
def worst_kinds(ids: Any, starts: Any, ends: Any, kinds: Any, worst: Any) -> None:
    """Write the largest kind among ids[starts[d] : ends[d]] of each document to `worst`.

    kinds: of each id; the last is that of all ids outside of the vocabulary.
    """
    outside = np.uint32(len(kinds) - 1)
    for document in range(len(starts)):
        found = np.uint8(0)
        for i in range(starts[document], ends[document]):
            # As an unsigned number a negative id is a large one: it is outside, too.
            found = max(found, kinds[min(np.uint32(ids[i]), outside)])
        worst[document] = found


@njit(types.void(_I32, I64, I64, types.int32[::1], _LONGS))
def choose_ids(ids: Any, starts: Any, ends: Any, chosen: Any, offsets: Any) -> None:
    """Copy ids[starts[d] : ends[d]] of each document to `chosen`, and where each begins to `offsets`."""
    at = 0
    for document in range(len(starts)):
        offsets[document] = at
        for i in range(starts[document], ends[document]):
            chosen[at] = ids[i]
            at += 1
    offsets[len(starts)] = at
