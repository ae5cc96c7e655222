"""Batches of documents -> the token ids of the documents of each split.

Small batches are joined first, because calling the encoder costs more than encoding the few documents of a small file.
The results do not depend on which batches are joined.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pretok.base.tokens import Bytes, Hashes, Ints, Tokens
from pretok.chat.encode import encode_spans
from pretok.kernels.hashing import hash_documents, select
from pretok.read.batches import TextBatch, buffers, hash_texts
from pretok.tokenizer.encoder import MOST_PER_BYTE, Encoder
from pretok.tokenizer.reference import Unencodable

MOST_TOKENS, MOST_BATCHES = 1 << 22, 4096
"""Batches are joined up to these limits."""


@dataclass(frozen=True, slots=True)
class JoinedBatches:
    """The documents of several batches in a row. pieces: (documents,) int64, the piece of the partition of each; the
    other fields are as in `TextBatch`."""

    batches: list[TextBatch]
    texts: pa.LargeStringArray
    pieces: Ints
    numbers: Ints
    kept: tuple[pa.Array, ...]
    spans: pa.LargeListArray | None = None

    def place(self, document: int) -> tuple[int, int]:
        """(piece, number in the piece) of a document."""
        return int(self.pieces[document]), int(self.numbers[document])


@dataclass(frozen=True, slots=True)
class EncodedSplit:
    """The documents of one split. rows: their indices in the joined batches; tokens: all ids in a row, with BOS and
    EOD; lengths, sizes: tokens and bytes of text of each; kinds: for conversations, (tokens,) uint8, the kind of
    each."""

    split: str
    rows: Ints
    tokens: Tokens
    lengths: npt.NDArray[np.int32]
    sizes: npt.NDArray[np.int64]
    hashes: Hashes
    kinds: Bytes | None = None


def join(batches: list[TextBatch]) -> JoinedBatches:
    """Join batches, at least one. A single one is not copied."""
    return JoinedBatches(
        batches,
        _one([batch.texts for batch in batches]),
        np.repeat([batch.piece for batch in batches], [len(batch.texts) for batch in batches]),
        np.concatenate([batch.numbers for batch in batches]),
        tuple(_one(columns) for columns in zip(*(batch.kept for batch in batches), strict=True)),
        None if batches[0].spans is None else _one([batch.spans for batch in batches]),
    )


def _one(arrays: Sequence[pa.Array]) -> pa.Array:
    return arrays[0] if len(arrays) == 1 else pa.concat_arrays(arrays)


def most_tokens(batch: TextBatch) -> int:
    """An upper bound of the tokens of a batch."""
    return MOST_PER_BYTE * len(buffers(batch.texts)[0]) + 2 * len(batch.texts)


def encode_splits(
    joined: JoinedBatches, encoder: Encoder, val_fraction: Fraction, val_seed: int
) -> tuple[list[EncodedSplit], list[tuple[int, str]]]:
    """Encode documents. Returns the splits that have documents; and the documents that no engine can encode, ascending,
    each with the reason."""
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
    """(tokens, tokens per document, for conversations the kind of each token)."""
    return (*encoder.encode(texts), None) if spans is None else encode_spans(encoder, texts, spans)


def _split(
    texts: pa.LargeStringArray, hashes: Hashes, fraction: Fraction, seed: int
) -> Iterator[tuple[str, Ints]]:
    """(split, indices of its texts) of each split."""
    if not fraction:
        yield "train", np.arange(len(texts))
        return
    deciding = hashes[:, 0] if seed == 0 else hash_documents(*buffers(texts), seed)
    val = select(deciding, fraction)
    yield "train", np.flatnonzero(~val)
    yield "val", np.flatnonzero(val)
