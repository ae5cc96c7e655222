"""Documents with spans -> token ids, and the kind of each token.

Input: texts with their spans, and an `Encoder` to which the markers are special tokens, so that no text becomes one.
Output: the ids of all documents, with the id of the marker where a span is one; BOS and EOD around each document unless
the template has put them there; and the kind of each token.

The text between two markers is encoded as a whole, template and content together, because merges cross the border of a
message. A token with bytes of several kinds has the last of them in the order of KINDS.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from numba import types

from pretok.base.texts import buffers, from_buffers
from pretok.base.tokens import Bytes, Ints, Tokens
from pretok.chat.spans import spans_of, unpack
from pretok.kernels.compile import I64, njit
from pretok.tokenizer.encoder import Encoder
from pretok.tokenizer.reference import Unencodable


def encode_spans(
    encoder: Encoder, texts: pa.LargeStringArray, column: pa.LargeListArray
) -> tuple[Tokens, npt.NDArray[np.int32], Bytes]:
    """Encode as (ids of all documents in a row, tokens per document, (tokens,) uint8 the kind of each token).

    Raises Unencodable with the documents of the batch that cannot be encoded.
    """
    packed, offsets = spans_of(column)
    documents = np.arange(len(texts))
    spans = np.stack([*unpack(packed), np.repeat(documents, np.diff(offsets))])
    # Empty spans are dropped: no token could belong to one.
    spans = _surrounded(spans.compress(spans[0] > 0, axis=1), documents, encoder)
    sizes, _, markers, document = spans
    # A unit is a marker, or all text between two; each document ends with a marker. `firsts`: the first span of each
    # unit, and one more.
    text = markers < 0
    # A unit begins at each marker, and at each text that follows one or is the first. One more place ends the last
    # unit.
    firsts = np.flatnonzero(np.append(~text | np.append(True, ~text[:-1])[: len(text)], True))
    whose, borders = document[firsts[:-1]], _starts(sizes)[firsts]
    data = buffers(texts)[0]
    try:
        ids, tokens_at = encoder.ids(from_buffers(data, borders))
    except Unencodable as error:
        raise Unencodable(np.unique(whose[error.documents]).tolist(), error.reason) from None
    # A marker is one token, whatever its name would encode to: its id comes from the span, not from text.
    counts = np.where(text[firsts[:-1]], np.diff(tokens_at), 1)
    joined, of_token = np.empty(counts.sum(), np.uint32), np.empty(counts.sum(), np.uint8)
    # Spans say which bytes are of a kind, so the bytes of the tokens must be those of the text.
    changed = np.zeros(len(counts), np.bool_)
    _join(ids, tokens_at, encoder.token_sizes, spans, joined, of_token, changed)
    if changed.any():
        what = 'the normalizer of the tokenizer changes this text; set unicode = "nfc" under [normalize]'
        raise Unencodable(np.unique(whose[changed]).tolist(), what)
    # Units lie in the order of their documents, so a search finds where each document's first one is.
    ends = _starts(counts)[np.searchsorted(whose, np.append(documents, len(texts)))]
    # Readers find the end of a document by EOD: another one inside would divide it.
    if len(inside := np.setdiff1d(np.flatnonzero(joined == encoder.vocab.eod_id), ends[1:] - 1)):
        refused = np.unique(np.searchsorted(ends, inside, "right") - 1)
        raise Unencodable(refused.tolist(), "the template puts the end-of-document token inside of it")
    tokens: Any = joined.astype(encoder.dtype)
    return tokens, np.diff(ends).astype(np.int32), of_token


def _surrounded(spans: Ints, documents: Ints, encoder: Encoder) -> Ints:
    """Add BOS and EOD to spans, as markers without bytes, for each document to which the template did not."""
    firsts, behind = (np.searchsorted(spans[3], documents, side) for side in ("left", "right"))
    eod, bos = encoder.vocab.eod_id, -1 if encoder.vocab.bos_id is None else encoder.vocab.bos_id
    front = documents[(spans[2, firsts] != bos) & (bos >= 0)]
    back = documents[spans[2, behind - 1] != eod]
    new = np.zeros((4, len(back) + len(front)), np.int64)
    new[2] = np.repeat([eod, bos], [len(back), len(front)])
    new[3] = np.concatenate([back, front])
    # `insert` keeps this order at equal places: EOD of one document, then BOS of the next.
    return np.insert(spans, np.concatenate([behind[back], firsts[front]]), new, axis=1)


def _starts(sizes: Ints) -> Ints:
    """Return (n + 1,) int64: where each of n things in a row begins, and where the last ends."""
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes, dtype=np.int64)])


@njit(
    types.void(
        types.Array(types.uint32, 1, "C", readonly=True), I64, I64, types.Array(types.int64, 2, "C", readonly=True),
        types.Array(types.uint32, 1, "C"), types.Array(types.uint8, 1, "C"), types.Array(types.boolean, 1, "C"),
    )
)  # fmt: skip
def _join(
    ids: Any, tokens_at: Any, token_sizes: Any, spans: Any, joined: Any, of_token: Any, changed: Any
) -> None:
    """Write the tokens of all units in a row to `joined`, and the kind of each to `of_token`.

    A marker is written as its id instead of what its name encodes to. Sets `changed` of a unit whose tokens have other
    bytes than its text.
    """
    sizes, kinds, markers = spans[0], spans[1], spans[2]
    unit = token = out = at = end = 0  # at: the byte where the next token begins; end: where the span ends
    for span in range(len(sizes)):
        start, end, stop = end, end + sizes[span], tokens_at[unit + 1]
        last = markers[span] >= 0
        if last:
            joined[out], of_token[out] = markers[span], kinds[span]
            token, at, out = stop, end, out + 1
        else:
            if at > start:  # a token crosses the border of two spans: the higher kind wins
                of_token[out - 1] = max(of_token[out - 1], kinds[span])
            last = markers[span + 1] >= 0
            while token < stop and (at < end or last):
                joined[out], of_token[out] = ids[token], kinds[span]
                at += token_sizes[ids[token]]
                token, out = token + 1, out + 1
        if last:
            if at != end:
                changed[unit] = True
            unit, at = unit + 1, end
