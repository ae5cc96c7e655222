"""Documents of a shard, encoded again by `tokenizers` before the shard counts: exactness is looked at in every job.

Input: batches as they were encoded. Output: how many documents were compared, or `Differs` at the first of which
`tokenizers` gives other tokens: ids, BOS and EOD, and of conversations the kind of each token.

SHARE of the text of each shard is compared, so that the cost stays below a hundredth of encoding, and at least one
document. Which documents these are follows from their hashes and their order, not from batches: the same in every run.
A chosen one waits until its bytes are due; the first gives way to a shorter one, as a shard may be a few books.
A document that `tokenizers` gives up on, as it does on some of more than a megabyte, is passed over and not counted;
one that the engine alone gives up on differs.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pretok.base.tokens import Bytes, Tokens
from pretok.shards.batching import EncodedSplit, JoinedBatches, encode_documents
from pretok.tokenizer.encoder import Encoder
from pretok.tokenizer.reference import Unencodable

SHARE = 5e-5
"""Bytes of text compared of each that is encoded: `tokenizers` takes some 75 times as long for one."""
CHOSEN = np.uint64(2**64 // 64)
"""Documents with hashes below may be compared."""
SHORT = 4096
"""Bytes of a document from which on the first to be compared gives way to a shorter one."""


class Differs(Exception):
    """The tokens of a document, of which `place` has piece and record, are not those of `tokenizers`."""

    def __init__(self, joined: JoinedBatches, document: int) -> None:
        self.place = joined.batches[joined.batch[document]].piece, int(joined.numbers[document])
        super().__init__(self.place)


@dataclass(frozen=True, slots=True)
class _Held:
    """A document that waits to be compared, its number in `joined`, and what the engine made of it."""

    joined: JoinedBatches
    document: int
    size: int
    tokens: Tokens
    kinds: Bytes | None


class Sample:
    """What was compared of one shard; documents, bytes: how many, and of how much text."""

    def __init__(self, encoder: Encoder) -> None:
        self.documents = self.bytes = 0
        self._encoder, self._exact = encoder, encoder.exact
        self._text = self._paid = (
            0  # bytes that were encoded, and of documents that were compared or passed over
        )
        self._held: _Held | None = None

    def add(
        self, joined: JoinedBatches, encoded: Sequence[EncodedSplit], refused: Sequence[tuple[int, str]]
    ) -> None:
        """Take a batch, and compare what is due. Raises Differs."""
        for row, _ in refused if self._exact is not self._encoder else ():  # the engine gave them up
            with suppress(Unencodable):
                self._encode(joined, row)
                raise Differs(joined, row)
        if not encoded:
            return
        rows = np.concatenate([split.rows for split in encoded])
        keys = np.concatenate([split.hashes[:, 0] ^ split.hashes[:, 1] for split in encoded])
        order = np.argsort(rows)
        ends = self._text + np.cumsum(np.concatenate([split.sizes for split in encoded])[order])
        chosen = keys[order] < CHOSEN
        chosen[0] |= self._text == 0
        self._text = int(ends[-1])
        for at in np.flatnonzero(chosen).tolist():
            held, due = self._held, SHARE * int(ends[at]) - self._paid
            if held is not None and held.size <= due:
                self._compare(held)
            split, row = _find(encoded, int(order[at]))
            held, size = self._held, int(split.sizes[row])
            if held is None or (not self.documents and SHORT < held.size > size):
                self._held = _hold(joined, split, row)

    def finish(self) -> None:
        """Compare what waits if nothing was compared. Raises Differs."""
        if self._held is not None and not self.documents:
            self._compare(self._held)

    def _compare(self, held: _Held) -> None:
        self._paid += held.size
        self._held = None
        try:
            tokens, _, kinds = self._encode(held.joined, held.document)
        except Unencodable:
            return
        same_kinds = kinds is None or held.kinds is None or np.array_equal(kinds, held.kinds)
        if not (same_kinds and np.array_equal(tokens, held.tokens)):
            raise Differs(held.joined, held.document)
        self.documents += 1
        self.bytes += held.size

    def _encode(self, joined: JoinedBatches, at: int) -> tuple[Tokens, npt.NDArray[np.int32], Bytes | None]:
        spans = None if joined.spans is None else joined.spans.slice(at, 1)
        return encode_documents(self._exact, joined.texts.slice(at, 1), spans)


def _find(encoded: Sequence[EncodedSplit], number: int) -> tuple[EncodedSplit, int]:
    """A document by its number in all splits: the split, and the row in it."""
    for split in encoded:
        if number < len(split.rows):
            break
        number -= len(split.rows)
    return split, number


def _hold(joined: JoinedBatches, split: EncodedSplit, row: int) -> _Held:
    """The batch stays in memory with it: some megabytes."""
    start = int(split.lengths[:row].sum(dtype=np.int64))
    mine = slice(start, start + int(split.lengths[row]))
    kinds = None if split.kinds is None else split.kinds[mine]
    return _Held(joined, int(split.rows[row]), int(split.sizes[row]), split.tokens[mine], kinds)
