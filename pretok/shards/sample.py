"""Checks exactness in every job: `tokenizers` encodes a sample of the documents of a shard before it is sealed.

Input: encoded batches. Output: the number of documents compared, or `Differs` at the first document for which
`tokenizers` gives other tokens: ids, BOS and EOD, and for conversations the kind of each token.

The sample is the documents whose hash is in the lowest SHARE of all hashes, so that it costs less than a hundredth of
encoding. If a shard has none of these, it is the document with the lowest hash, of the short ones if there are any. So
the sample does not depend on batches and is the same in every run. A document that `tokenizers` cannot encode, such as
some of more than a megabyte, is skipped and not counted; one that only the fast engine cannot encode differs.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

import numpy as np
import numpy.typing as npt

from pretok.base.tokens import Bytes, Tokens
from pretok.read.batches import hash_column, hash_texts
from pretok.shards.batching import EncodedSplit, JoinedBatches, encode_documents
from pretok.shards.ledger import hex_digits
from pretok.tokenizer.encoder import Encoder
from pretok.tokenizer.reference import Unencodable

SHARE = 5e-5
"""Share of the documents that is compared: `tokenizers` takes some 75 times as long for one."""
SHORT = 4096
"""Most bytes of a short document."""


class Differs(Exception):
    """`tokenizers` gives other tokens for a document. piece: its piece of the partition; digest: the hash of its text,
    in hexadecimal."""

    def __init__(self, joined: JoinedBatches, document: int) -> None:
        self.piece = int(joined.pieces[document])
        self.digest = hex_digits(hash_column(hash_texts(joined.texts.slice(document, 1))))[0].as_py()
        super().__init__(self.digest)


class Sample:
    """The samples of the shards of a partition. compared: the number of documents compared."""

    def __init__(self, encoder: Encoder) -> None:
        self.compared = 0
        self._encoder, self._exact = encoder, encoder.exact
        self._before = 0  # compared in earlier shards
        self._lowest: tuple[tuple[bool, int], JoinedBatches, EncodedSplit, int] | None = None

    def add(
        self, joined: JoinedBatches, encoded: Sequence[EncodedSplit], refused: Sequence[tuple[int, str]]
    ) -> None:
        """Compare the documents of a batch that are in the sample. refused: those that the engine cannot encode; they
        differ if `tokenizers` can. Raises Differs."""
        for document, _ in refused if self._exact is not self._encoder else ():
            with suppress(Unencodable):
                self._encode(joined, document)
                raise Differs(joined, document)
        for split in encoded:
            keys = split.hashes[:, 0] ^ split.hashes[:, 1]
            for row in np.flatnonzero(keys < np.uint64(SHARE * 2**64)).tolist():
                self._compare(joined, split, row)
            row = int(np.lexsort((keys, split.sizes > SHORT))[0])
            rank = bool(split.sizes[row] > SHORT), int(keys[row])
            if self._lowest is None or rank < self._lowest[0]:
                self._lowest = rank, joined, split, row  # keeps the batch, some megabytes

    def finish_shard(self) -> None:
        """Compare one document if none of the shard was. Raises Differs."""
        if self._lowest is not None and self.compared == self._before:
            self._compare(*self._lowest[1:])
        self._before, self._lowest = self.compared, None

    def _compare(self, joined: JoinedBatches, split: EncodedSplit, row: int) -> None:
        start = int(split.lengths[:row].sum(dtype=np.int64))
        tokens_of_row, document = slice(start, start + int(split.lengths[row])), int(split.rows[row])
        try:
            tokens, _, kinds = self._encode(joined, document)
        except Unencodable:
            return
        same_kinds = kinds is None or split.kinds is None or np.array_equal(kinds, split.kinds[tokens_of_row])
        if not (same_kinds and np.array_equal(tokens, split.tokens[tokens_of_row])):
            raise Differs(joined, document)
        self.compared += 1

    def _encode(
        self, joined: JoinedBatches, document: int
    ) -> tuple[Tokens, npt.NDArray[np.int32], Bytes | None]:
        spans = None if joined.spans is None else joined.spans.slice(document, 1)
        return encode_documents(self._exact, joined.texts.slice(document, 1), spans)
