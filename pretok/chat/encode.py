"""Documents with spans -> token ids, and the kind of each token.

Input: texts with their spans, and an `Encoder` for which the markers are special: a text never becomes one. Output: the
ids of all documents, a marker's own where a span is one, BOS and EOD around each as in any document (but never twice:
a template may put them itself), and the kind of each token.

The text between two markers is encoded as one, template and content together, as their merges do not stop at the border
of a message. A token of bytes of several kinds is of the last of them in the order of KINDS.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from numba import types

from pretok.base.tokens import Bytes, Ids, Ints, Tokens
from pretok.chat.spans import spans_of, unpack
from pretok.kernels.compile import I64, njit
from pretok.read.batches import buffers, from_buffers
from pretok.tokenizer.encoder import Encoder
from pretok.tokenizer.reference import Unencodable


def encode_spans(
    encoder: Encoder, texts: pa.LargeStringArray, column: pa.LargeListArray
) -> tuple[Tokens, npt.NDArray[np.int32], Bytes]:
    """(ids of all documents in a row, tokens of each, (tokens,) uint8 the kind of each token).

    Raises Unencodable, which names documents of the batch.
    """
    data, _ = buffers(texts)
    spans, offsets = spans_of(column)
    sizes, kinds, markers = unpack(spans)
    ends = np.cumsum(sizes)
    document = np.repeat(np.arange(len(texts)), np.diff(offsets))
    begins = np.ones(
        len(spans) + 1, np.bool_
    )  # of segments: a marker, or the text between two, within a document
    if len(spans):
        begins[1:-1] = (document[1:] != document[:-1]) | (markers[1:] >= 0) | (markers[:-1] >= 0)
    firsts = np.flatnonzero(begins)  # spans at which segments begin, and one more
    borders: Ints = np.concatenate([np.zeros(1, np.int64), ends])[firsts]
    whose = document[firsts[:-1]]
    try:
        ids, tokens_at = encoder.ids(from_buffers(data, borders))
    except Unencodable as error:
        raise Unencodable(np.unique(whose[error.documents]).tolist(), error.reason) from None
    of_text = np.zeros(len(ids), np.uint8)
    wrong = np.zeros(len(firsts) - 1, np.bool_)
    _kinds(ids, tokens_at, firsts, sizes, kinds, markers, encoder.token_sizes, of_text, wrong)
    failed = []
    for segment in np.flatnonzero(wrong).tolist():
        low, high = int(tokens_at[segment]), int(tokens_at[segment + 1])
        row = slice(int(firsts[segment]), int(firsts[segment + 1]))
        text = data[borders[segment] : borders[segment + 1]].tobytes().decode()
        found = _by_offsets(encoder, text, ids[low:high], sizes[row], kinds[row])
        if found is None:
            failed.append(int(whose[segment]))
        else:
            of_text[low:high] = found
    if failed:
        raise Unencodable(sorted(set(failed)), "normalizing changes where its tokens begin")
    segments: Ints = np.searchsorted(whose, np.arange(len(texts) + 1))
    out = np.empty(len(ids) + 2 * len(texts), encoder.dtype)
    out_kinds = np.zeros(len(out), np.uint8)
    lengths = np.empty(len(texts), np.int32)
    of_segment = markers[firsts[:-1]], kinds[firsts[:-1]].astype(np.uint8)
    bos = -1 if encoder.bos is None else encoder.bos
    size = _JOIN[encoder.dtype](
        ids, tokens_at, of_text, *of_segment, segments, bos, encoder.eod, out, out_kinds, lengths
    )
    out, out_kinds = out[:size], out_kinds[:size]
    last: Ints = np.cumsum(lengths, dtype=np.int64) - 1
    if (inside := np.setdiff1d(np.flatnonzero(out == encoder.eod), last)).size:
        documents = np.unique(np.searchsorted(last, inside)).tolist()
        raise Unencodable(documents, "the template puts the end-of-document token inside of it")
    return out, lengths, out_kinds


def _by_offsets(encoder: Encoder, text: str, ids: Ids, sizes: Ints, kinds: Ints) -> Bytes | None:
    """Kinds of the tokens of a text that a normalizer changes, by the characters that `tokenizers` says each is of;
    None where its ids are others."""
    found, places = encoder.places(text)
    if not np.array_equal(found, ids):
        return None
    of_character = np.repeat(kinds, sizes)[
        np.cumsum([0, *(len(character.encode()) for character in text)])[:-1]
    ]
    best = [of_character[start : max(end, start + 1)].max(initial=0) for start, end in places]
    return np.array(best, np.uint8)


_U32 = types.Array(types.uint32, 1, "C", readonly=True)
_U8 = types.Array(types.uint8, 1, "C", readonly=True)
_NEW_U8, _NEW_I32 = (types.Array(kind, 1, "C") for kind in (types.uint8, types.int32))


@njit(types.void(_U32, I64, I64, I64, I64, I64, I64, _NEW_U8, types.Array(types.boolean, 1, "C")))
def _kinds(
    ids: Any,
    tokens_at: Any,
    firsts: Any,
    sizes: Any,
    kinds: Any,
    markers: Any,
    token_sizes: Any,
    of_text: Any,
    wrong: Any,
) -> Any:
    """The kind of each token of each segment of text; which segments have other bytes than their tokens."""
    for segment in range(len(firsts) - 1):
        span = firsts[segment]
        if markers[span] >= 0:
            continue
        stop = firsts[segment + 1]
        left = sizes[span]  # bytes of the span that no token has yet
        for token in range(tokens_at[segment], tokens_at[segment + 1]):
            size = token_sizes[ids[token]]
            best = np.int64(0)
            while size > 0:
                while left == 0 and span + 1 < stop:
                    span += 1
                    left = sizes[span]
                if left == 0:
                    wrong[segment] = True
                    break
                best = max(best, kinds[span])
                taken = min(size, left)
                size -= taken
                left -= taken
            of_text[token] = best
        while left == 0 and span + 1 < stop:
            span += 1
            left = sizes[span]
        if left:
            wrong[segment] = True


def _join(
    ids: Any,
    tokens_at: Any,
    of_text: Any,
    markers: Any,
    kinds: Any,
    segments: Any,
    bos: Any,
    eod: Any,
    out: Any,
    out_kinds: Any,
    lengths: Any,
) -> Any:
    """Ids and kinds of all documents in a row; the number of tokens. What a marker's name encodes to is passed over."""
    at = 0
    for document in range(len(segments) - 1):
        start = at
        if bos >= 0:
            out[at] = bos
            out_kinds[at] = 0
            at += 1
        for segment in range(segments[document], segments[document + 1]):
            if markers[segment] >= 0:
                if markers[segment] == bos and at == start + 1 and out[start] == bos:
                    continue  # the template's own
                out[at] = markers[segment]
                out_kinds[at] = kinds[segment]
                at += 1
                continue
            for token in range(tokens_at[segment], tokens_at[segment + 1]):
                out[at] = ids[token]
                out_kinds[at] = of_text[token]
                at += 1
        if at == start or out[at - 1] != eod:
            out[at] = eod
            out_kinds[at] = 0
            at += 1
        lengths[document] = at - start
    return at


_JOIN = {
    np.dtype(dtype): njit(
        types.int64(_U32, I64, _U8, I64, _U8, I64, types.int64, types.int64, out[::1], _NEW_U8, _NEW_I32)
    )(_join)
    for dtype, out in (("<u2", types.uint16), ("<i4", types.int32))
}
