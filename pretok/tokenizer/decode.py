"""Token ids -> text, whole arrays at a time.

Input: a vocabulary, then ids in a row. Output: bytes in a row with offsets, as in `base.texts`. A token that ends
inside a character gives its bytes.
"""

from __future__ import annotations

import numpy as np

from pretok.base.tokens import Bytes, Ints, Tokens
from pretok.tokenizer.vocabulary import Vocabulary

BLOCK = 1 << 17
"""Tokens decoded at once: tables of 10 MB, which fit caches."""


class TextDecoder:
    """Decodes ids of one vocabulary. head: tokens before the text of a document, 0 or 1."""

    def __init__(self, vocab: Vocabulary) -> None:
        self.vocab = vocab
        self.head = int(vocab.bos_id is not None)
        self.eod_id = vocab.eod_id
        tokens = [vocab.token_bytes(token) for token in range(vocab.size)]
        self._bytes: Bytes = np.frombuffer(b"".join(tokens), np.uint8)
        self._lengths: Ints = np.array([len(token) for token in tokens], np.int64)
        self._starts: Ints = np.cumsum(self._lengths) - self._lengths

    def decode(self, ids: Tokens | Ints, ends: Ints) -> tuple[Bytes, Ints]:
        """Decode ids to (bytes, offsets): text i is bytes[offsets[i] : offsets[i + 1]].

        ids: (tokens,), all `holds` of the vocabulary; ends: (n + 1,) where texts begin and end in `ids`, from 0.
        """
        after: Ints = np.zeros(len(ids) + 1, np.int64)
        np.cumsum(self._lengths[ids], out=after[1:])
        text: Bytes = np.empty(after[-1], np.uint8)
        for low in range(0, len(ids), BLOCK):
            some, begins = ids[low : low + BLOCK], after[low : low + BLOCK + 1]
            # Byte j of a token that begins at `begins` of the text is byte `start` + j of the table.
            at = np.repeat(self._starts[some] - begins[:-1], np.diff(begins))
            at += np.arange(begins[0], begins[-1])
            text[begins[0] : begins[-1]] = self._bytes[at]
        return text, after[ends]
