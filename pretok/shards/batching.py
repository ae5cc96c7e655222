"""Small batches of documents that are handled as one: a call costs more than the three documents of a small file.

Input: batches in their order. Output: their documents in a row, each with the batch that it came from; and the tokens
of the documents of each split. What is made of documents does not depend on which were handled together.
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
"""Up to which batches wait for each other."""


@dataclass(frozen=True, slots=True)
class JoinedBatches:
    """The documents of batches. pieces: (documents,) int64, the piece of the partition that each is of; the others: as
    in each batch, one after the other."""

    batches: list[TextBatch]
    texts: pa.LargeStringArray
    pieces: Ints
    numbers: Ints
    kept: tuple[pa.Array, ...]
    spans: pa.LargeListArray | None = None

    def place(self, document: int) -> tuple[int, int]:
        """(piece, number there) of a document."""
        return int(self.pieces[document]), int(self.numbers[document])


@dataclass(frozen=True, slots=True)
class EncodedSplit:
    """Documents of one split. rows: which of the joined ones; tokens: all their ids, with BOS and EOD; lengths, sizes:
    tokens and bytes of text of each; kinds: (tokens,) uint8 of conversations, what each token is."""

    split: str
    rows: Ints
    tokens: Tokens
    lengths: npt.NDArray[np.int32]
    sizes: npt.NDArray[np.int64]
    hashes: Hashes
    kinds: Bytes | None = None


def join(batches: list[TextBatch]) -> JoinedBatches:
    """At least one batch; of a single one nothing is copied."""
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
    """No tokenizer makes more tokens of a batch."""
    return MOST_PER_BYTE * len(buffers(batch.texts)[0]) + 2 * len(batch.texts)


def encode_splits(
    joined: JoinedBatches, encoder: Encoder, val_fraction: Fraction, val_seed: int
) -> tuple[list[EncodedSplit], list[tuple[int, str]]]:
    """The documents of each split that has any; and those that no engine can encode, rising, with the reason."""
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
            except Unencodable as error:  # those that one reason names: the others may have another
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
    """(tokens, tokens per document, of conversations the kind of each token)."""
    return (*encoder.encode(texts), None) if spans is None else encode_spans(encoder, texts, spans)


def _split(
    texts: pa.LargeStringArray, hashes: Hashes, fraction: Fraction, seed: int
) -> Iterator[tuple[str, Ints]]:
    """Which of the texts go to which split."""
    if not fraction:
        yield "train", np.arange(len(texts))
        return
    deciding = hashes[:, 0] if seed == 0 else hash_documents(*buffers(texts), seed)
    val = select(deciding, fraction)
    yield "train", np.flatnonzero(~val)
    yield "val", np.flatnonzero(val)
