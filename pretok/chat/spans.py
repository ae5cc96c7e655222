"""The kinds of text in a conversation, and the spans of a batch of documents.

A span is one 64-bit number. The spans of a document cover it from its first byte to its last. In a batch they are a
large_list<int64> column beside the texts, so that documents are dropped, taken and joined together with their spans.

    bits 0 to 3    the kind, an index of CHAT_KINDS
    bits 4 to 27   0, or the id of the marker that the span is, plus 1
    bits 28 to 62  bytes
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from pretok.base.texts import buffers, from_buffers
from pretok.base.tokens import Ints
from pretok.tokenizer.kinds import CHAT_KINDS

TEMPLATE, SYSTEM, USER, RESULT, THINKING, CALL, ANSWER = range(len(CHAT_KINDS))
"""A token of several kinds has the last of them: kinds that are learned come after those that are not."""
MARKER_BITS = 24
_KIND_BITS = 4


def pack(size: int, kind: int, marker: int = -1) -> int:
    """Pack a span of `size` bytes; marker: the id of an added token, -1 for text."""
    return (size << (_KIND_BITS + MARKER_BITS)) | ((marker + 1) << _KIND_BITS) | kind


def unpack(spans: Ints) -> tuple[Ints, Ints, Ints]:
    """Unpack spans to (bytes, kinds, markers); a marker is -1 where the span is text."""
    sizes = spans >> (_KIND_BITS + MARKER_BITS)
    return sizes, spans & ((1 << _KIND_BITS) - 1), ((spans >> _KIND_BITS) & ((1 << MARKER_BITS) - 1)) - 1


def spans_of(column: pa.LargeListArray) -> tuple[Ints, Ints]:
    """Return (spans of all documents in a row, where those of each document begin: (documents + 1,) int64 from 0)."""
    offsets = np.asarray(column.offsets)
    return np.asarray(column.values)[offsets[0] : offsets[-1]], offsets - offsets[0]


def column_of(spans: list[int], counts: list[int]) -> pa.LargeListArray:
    """Make the column of a batch. spans: of all documents in a row; counts: how many each has."""
    offsets = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=offsets[1:])
    return pa.LargeListArray.from_arrays(pa.array(offsets), pa.array(spans, pa.int64()))


def content_ends(column: pa.LargeListArray) -> tuple[Ints, Ints]:
    """Return (where each span begins in the bytes of the batch and where the last ends, the document of each span)."""
    spans, offsets = spans_of(column)
    ends = np.zeros(len(spans) + 1, np.int64)
    np.cumsum(unpack(spans)[0], out=ends[1:])
    return ends, np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))


def content_of(texts: pa.LargeStringArray, column: pa.LargeListArray) -> pa.LargeStringArray:
    """Return the content of each document, with line feeds in place of the template."""
    sizes, kinds, _ = unpack(spans_of(column)[0])
    data = buffers(texts)[0].copy()
    data[np.repeat(kinds == TEMPLATE, sizes)] = ord("\n")
    return from_buffers(data, buffers(texts)[1])
