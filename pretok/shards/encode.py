"""Encode: batches of documents -> the token ids of the documents of each split, and a check of a sample of them.

Small batches are joined first, because calling the encoder costs more than encoding the few documents of a small file.
The results do not depend on which batches are joined.

In every job `tokenizers` encodes a sample of the documents of a shard again before it is sealed; `Differs` is raised at
the first document for which it gives other tokens: ids, BOS and EOD, and for conversations the kind of each token.

The sample is the documents whose hash is in the lowest SHARE of all hashes, so that it costs less than a hundredth of
encoding. If a shard has none of these, it is the document with the lowest hash, of the short ones if there are any. So
the sample does not depend on batches and is the same in every run. A document that `tokenizers` cannot encode, such as
some of more than a megabyte, is skipped and not counted; one that only the fast engine cannot encode differs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pretok.base.texts import buffers
from pretok.base.tokens import Bytes, Hashes, Ints, Tokens
from pretok.chat.encode import encode_spans
from pretok.kernels.hashing import hash_documents, select
from pretok.read.batches import TextBatch, hash_column, hash_texts
from pretok.shards.ledger import hex_digits
from pretok.tokenizer.encoder import MOST_PER_BYTE, Encoder
from pretok.tokenizer.reference import Unencodable

MOST_TOKENS, MOST_BATCHES = 1 << 22, 4096
"""Batches are joined up to these limits."""
SHARE = 5e-5
"""Share of the documents that is compared: `tokenizers` takes some 75 times as long for one."""
SHORT = 4096
"""Most bytes of a short document."""


@dataclass(frozen=True, slots=True)
class JoinedBatches:
    """The documents of several batches in a row, with fields as in `TextBatch`."""

    batches: list[TextBatch]
    texts: pa.LargeStringArray
    pieces: Ints
    """(documents,) int64, the piece of the partition of each."""
    numbers: Ints
    kept: tuple[pa.Array, ...]
    mismatches: tuple[npt.NDArray[np.bool_], ...]
    spans: pa.LargeListArray | None = None
    before: npt.NDArray[np.uint64] | None = None


@dataclass(frozen=True, slots=True)
class EncodedSplit:
    """The documents of one split."""

    split: str
    rows: Ints
    """Their indices in the joined batches."""
    tokens: Tokens
    """All ids in a row, with BOS and EOD."""
    lengths: npt.NDArray[np.int32]
    """Tokens of each."""
    sizes: npt.NDArray[np.int64]
    """Bytes of text of each."""
    hashes: Hashes
    kinds: Bytes | None = None
    """For conversations, (tokens,) uint8, the kind of each."""

    def ids(self, bos: bool) -> tuple[Tokens, Ints]:
        """Return the ids of the texts alone, and where each begins. bos: whether each document begins with one."""
        ends = np.cumsum(self.lengths, dtype=np.int64)
        inside = np.ones(len(self.tokens), np.bool_)
        inside[ends - 1] = False
        if bos:
            inside[ends - self.lengths] = False
        lengths = self.lengths.astype(np.int64) - 1 - bos
        return self.tokens[inside], np.concatenate([[0], np.cumsum(lengths)])


def join(batches: list[TextBatch]) -> JoinedBatches:
    """Join batches, at least one. A single one is not copied."""
    return JoinedBatches(
        batches,
        _one([batch.texts for batch in batches]),
        np.repeat([batch.piece for batch in batches], [len(batch.texts) for batch in batches]),
        np.concatenate([batch.numbers for batch in batches]),
        tuple(_one(columns) for columns in zip(*(batch.kept for batch in batches), strict=True)),
        tuple(map(np.concatenate, zip(*(batch.mismatches for batch in batches), strict=True))),
        None if batches[0].spans is None else _one([batch.spans for batch in batches]),
        None if batches[0].before is None else np.concatenate([batch.before for batch in batches]),
    )


def _one(arrays: Sequence[pa.Array]) -> pa.Array:
    return arrays[0] if len(arrays) == 1 else pa.concat_arrays(arrays)


def group(batches: Iterable[TextBatch], is_full: Callable[[int], bool]) -> Iterator[JoinedBatches]:
    """Join batches that are encoded together. is_full: see `PartitionWriter.is_full`.

    A shard ends with the batch that fills it. So batches that could fill it do not wait for more: where shards end does
    not depend on which batches are encoded together.
    """
    waiting: list[TextBatch] = []
    most = size = 0  # the tokens that they can be at most, and their bytes
    for batch in batches:
        waiting.append(batch)
        most += _most_tokens(batch)
        size += batch.nbytes
        # By count too: batches of a few rejects add hardly any tokens or bytes, and what is rejected must not wait
        # without end.
        if max(most, size) >= MOST_TOKENS or len(waiting) >= MOST_BATCHES or is_full(most):
            yield join(waiting)
            waiting, most, size = [], 0, 0
    if waiting:
        yield join(waiting)


def _most_tokens(batch: TextBatch) -> int:
    """Return an upper bound of the tokens of a batch."""
    return MOST_PER_BYTE * len(buffers(batch.texts)[0]) + 2 * len(batch.texts)


def encode_splits(
    joined: JoinedBatches, encoder: Encoder, val_fraction: Fraction, val_seed: int
) -> tuple[list[EncodedSplit], list[tuple[int, str]]]:
    """Encode documents.

    Returns the splits that have documents; and the documents that no engine can encode, ascending, each with the
    reason.
    """
    encoded, refused = [], list[tuple[int, str]]()
    hashes = hash_texts(joined.texts)
    for split, rows in _split(joined.texts, hashes, val_fraction, val_seed):
        while len(rows):
            texts, spans = joined.texts, joined.spans
            if len(rows) < len(texts):
                texts = texts.take(pa.array(rows))
                spans = None if spans is None else spans.take(pa.array(rows))
            try:
                tokens, lengths, kinds = encode_documents(encoder, texts, spans)
            except Unencodable as error:  # one reason at a time: others may follow
                refused += [(row, error.reason) for row in rows[error.documents].tolist()]
                rows = np.delete(rows, error.documents)
                continue
            sizes = np.diff(buffers(texts)[1])
            encoded.append(EncodedSplit(split, rows, tokens, lengths, sizes, hashes[rows], kinds))
            break
    return encoded, sorted(refused)


def encode_documents(
    encoder: Encoder, texts: pa.LargeStringArray, spans: pa.LargeListArray | None
) -> tuple[Tokens, npt.NDArray[np.int32], Bytes | None]:
    """Return (tokens, tokens per document, for conversations the kind of each token)."""
    return (*encoder.encode(texts), None) if spans is None else encode_spans(encoder, texts, spans)


def _split(
    texts: pa.LargeStringArray, hashes: Hashes, fraction: Fraction, seed: int
) -> Iterator[tuple[str, Ints]]:
    """Yield (split, indices of its texts) of each split."""
    if not fraction:
        yield "train", np.arange(len(texts))
        return
    deciding = hashes[:, 0] if seed == 0 else hash_documents(*buffers(texts), seed)
    val = select(deciding, fraction)
    yield "train", np.flatnonzero(~val)
    yield "val", np.flatnonzero(val)


class Differs(Exception):
    """`tokenizers` gives other tokens for a document.

    piece: its piece of the partition; digest: the hash of its text, in hexadecimal.
    """

    def __init__(self, joined: JoinedBatches, document: int) -> None:
        self.piece = int(joined.pieces[document])
        self.digest = hex_digits(hash_column(hash_texts(joined.texts.slice(document, 1))))[0].as_py()
        super().__init__(self.digest)


class ShardSamples:
    """The samples of the shards of a partition. compared: the number of documents compared."""

    def __init__(self, encoder: Encoder) -> None:
        self.compared = 0
        self._encoder, self._exact = encoder, encoder.exact
        self._before = 0  # compared in earlier shards
        self._lowest: tuple[tuple[bool, int], JoinedBatches, EncodedSplit, int] | None = None

    def add(
        self, joined: JoinedBatches, encoded: Sequence[EncodedSplit], refused: Sequence[tuple[int, str]]
    ) -> None:
        """Compare the documents of a batch that are in the sample.

        refused: those that the engine cannot encode; they differ if `tokenizers` can. Raises Differs.
        """
        # A document that only the fast engine refuses must not become a reject.
        for document, _ in refused if self._exact is not self._encoder else ():
            with suppress(Unencodable):
                self._encode(joined, document)
                raise Differs(joined, document)
        for split in encoded:
            # Of both hashes: the first alone chooses the validation split, and the lowest of it would be of that split
            # only. A document's own bytes decide, so the sample is the same however batches were joined.
            keys = split.hashes[:, 0] ^ split.hashes[:, 1]
            for row in np.flatnonzero(keys < np.uint64(SHARE * 2**64)).tolist():
                self._compare(joined, split, row)
            # The lowest key among short documents, or among all: one comparison must not take a minute for a book.
            row = int(np.lexsort((keys, split.sizes > SHORT))[0])
            rank = bool(split.sizes[row] > SHORT), int(keys[row])
            if self._lowest is None or rank < self._lowest[0]:
                self._lowest = rank, joined, split, row  # keeps the batch, some megabytes

    def finish_shard(self) -> None:
        """Compare one document if none of the shard was. Raises Differs."""
        # A shard of few documents may have none in the sample; each shard has one that was compared.
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
