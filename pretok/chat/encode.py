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
    packed, offsets = spans_of(column)
    document = np.repeat(np.arange(len(texts)), np.diff(offsets))
    sizes, kinds, markers = spans = np.stack(unpack(packed))
    # A segment is a marker, or the text between two within a document; `firsts`: the span each begins with, and one
    # more; `borders`: its first byte.
    begins = np.ones(len(packed) + 1, np.bool_)
    if len(packed):
        begins[1:-1] = (document[1:] != document[:-1]) | (markers[1:] >= 0) | (markers[:-1] >= 0)
    firsts = np.flatnonzero(begins)
    borders: Ints = _starts(sizes)[firsts]
    whose = document[firsts[:-1]]
    try:
        ids, tokens_at = encoder.ids(from_buffers(data, borders))
    except Unencodable as error:
        raise Unencodable(np.unique(whose[error.documents]).tolist(), error.reason) from None
    segments: Ints = np.searchsorted(whose, np.arange(len(texts) + 1))
    made = np.zeros((2, len(ids) + 2 * len(texts)), np.int32)
    lengths = np.empty(len(texts), np.int32)
    changed = np.full(len(whose), -1, np.int64)
    bos = -1 if encoder.bos is None else encoder.bos
    size = _join(
        ids, tokens_at, spans, firsts, segments, encoder.token_sizes, bos, encoder.eod, made, lengths, changed
    )
    out: Any = made[0, :size].astype(encoder.dtype)
    of_token = made[1, :size].astype(np.uint8)
    failed = set()
    for number in np.flatnonzero(changed >= 0).tolist():  # where a normalizer changed the text
        ours, row = slice(*tokens_at[number : number + 2]), slice(*firsts[number : number + 2])
        text = data[slice(*borders[number : number + 2])].tobytes().decode()
        found = _by_offsets(encoder, text, ids[ours], sizes[row], kinds[row])
        if found is None:
            failed.add(int(whose[number]))
        else:
            of_token[changed[number] : changed[number] + len(found)] = found
    if failed:
        raise Unencodable(sorted(failed), "normalizing changes where its tokens begin")
    last: Ints = np.cumsum(lengths, dtype=np.int64) - 1
    if (inside := np.setdiff1d(np.flatnonzero(out == encoder.eod), last)).size:
        documents = np.unique(np.searchsorted(last, inside)).tolist()
        raise Unencodable(documents, "the template puts the end-of-document token inside of it")
    return out, lengths, of_token


def _starts(sizes: Ints) -> Ints:
    """Where each of some sizes in a row begins, and where the last ends: (n + 1,) int64."""
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes, dtype=np.int64)])


def _by_offsets(encoder: Encoder, text: str, ids: Ids, sizes: Ints, kinds: Ints) -> Bytes | None:
    """Kinds of the tokens of a text that a normalizer changes, by the characters that `tokenizers` says each is of;
    None where its ids are others."""
    found, places = encoder.places(text)
    if not np.array_equal(found, ids):
        return None
    of_character = np.repeat(kinds, sizes)[_starts(np.array([len(one.encode()) for one in text]))[:-1]]
    best = [of_character[start : max(end, start + 1)].max(initial=0) for start, end in places]
    return np.array(best, np.uint8)


_NEW_I32 = types.Array(types.int32, 1, "C")
_TABLE = types.Array(types.int64, 2, "C", readonly=True)


@njit(
    types.int64(
        types.Array(types.uint32, 1, "C", readonly=True), I64, _TABLE, I64, I64, I64, types.int64, types.int64,
        types.Array(types.int32, 2, "C"), _NEW_I32, types.Array(types.int64, 1, "C"),
    )
)  # fmt: skip
def _join(
    ids: Any,
    tokens_at: Any,
    spans: Any,
    firsts: Any,
    segments: Any,
    token_sizes: Any,
    bos: Any,
    eod: Any,
    made: Any,
    lengths: Any,
    changed: Any,
) -> Any:
    """Ids, and below them the kind of each, of all documents in a row into `made`; returns the number of tokens.

    spans: sizes, kinds and markers. changed: where the tokens of a segment begin that have other bytes than its text.
    """
    sizes, kinds, markers = spans[0], spans[1], spans[2]
    at = 0
    for document in range(len(segments) - 1):
        start = at
        if bos >= 0:
            made[0, at] = bos
            at += 1
        for segment in range(segments[document], segments[document + 1]):
            span, stop = firsts[segment], firsts[segment + 1]
            if markers[span] >= 0:  # what its name encodes to is passed over
                if not (
                    markers[span] == bos and at == start + 1 and made[0, start] == bos
                ):  # the template's own
                    made[0, at], made[1, at] = markers[span], kinds[span]
                    at += 1
                continue
            begin, left = at, sizes[span]  # left: bytes of the span that no token has yet
            for token in range(tokens_at[segment], tokens_at[segment + 1]):
                size, best = token_sizes[ids[token]], np.int64(0)
                while size > 0:
                    while left == 0 and span + 1 < stop:
                        span += 1
                        left = sizes[span]
                    if left == 0:
                        changed[segment] = begin
                        break
                    best = max(best, kinds[span])
                    taken = min(size, left)
                    size -= taken
                    left -= taken
                made[0, at], made[1, at] = ids[token], best
                at += 1
            while left == 0 and span + 1 < stop:
                span += 1
                left = sizes[span]
            if left:
                changed[segment] = begin
        if at == start or made[0, at - 1] != eod:
            made[0, at], made[1, at] = eod, 0
            at += 1
        lengths[document] = at - start
    return at
