"""A shard -> the texts of its documents, a few megabytes at a time.

Input: a shard of a manifest and a decoder of its vocabulary. Output: Arrow arrays of the texts as they were tokenized,
after normalization and without BOS and EOD. The text of a removed document is empty.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from pretok.base.errors import IntegrityError
from pretok.base.texts import from_buffers
from pretok.base.tokens import Ints, removed_documents
from pretok.chat.turns import Turns
from pretok.read.record_format import Conversation
from pretok.shards.inputs import load_inputs
from pretok.shards.manifest import Manifest, Shard, inputs_name
from pretok.shards.shard_file import ShardReader
from pretok.tokenizer.decode import TextDecoder
from pretok.tokenizer.vocabulary import TOKENIZER_FILE, Vocabulary, load_vocab

WINDOW_TOKENS = 1 << 20
"""Tokens that are decoded at a time, some 5 MB of text; more if one document has more."""


def load_vocabulary(manifest: Manifest) -> Vocabulary:
    """Return the vocabulary next to the shards. Raises UsageError if there is none."""
    return load_vocab(manifest.folder / TOKENIZER_FILE, manifest.tokenizer.eod_id, manifest.tokenizer.bos_id)


def load_decoder(manifest: Manifest) -> TextDecoder:
    """Return the decoder of the vocabulary next to the shards. Raises UsageError if there is none."""
    return TextDecoder(load_vocabulary(manifest))


def chat_of(manifest: Manifest, source: str) -> tuple[str, dict[str, str], int | None] | None:
    """Return the chat template of a source, its roles, and the id of the marker that ends an answer; None without one.

    The roles are the tokens that the template was given, such as bos_token.
    """
    names = {file.path for file in manifest.side_files}
    if source not in manifest.conversations or inputs_name(source) not in names:
        return None
    how = msgspec.convert(load_inputs(manifest, source).settings["conversation"], Conversation)
    return None if how.fields else (how.template, how.variables, how.markers.get(Turns(how).closer))


def shard_texts(
    shard: Shard, decoder: TextDecoder, start: int = 0, end: int | None = None
) -> Iterator[tuple[int, pa.LargeStringArray]]:
    """Yield (number of the first document, texts) for the documents start:end of a shard, in order.

    Raises IntegrityError for ids that are not text.
    """
    reader = shard.open()
    for low, high in _windows(reader.offsets, start, shard.documents if end is None else end):
        yield low, _decode(reader, decoder, shard, low, high)


def _windows(offsets: Ints, start: int, end: int) -> Iterator[tuple[int, int]]:
    """Ranges of documents with at most WINDOW_TOKENS, or of one document."""
    while start < end:
        last = int(np.searchsorted(offsets, offsets[start] + WINDOW_TOKENS, side="right")) - 1
        stop = min(end, max(start + 1, last))
        yield start, stop
        start = stop


def _decode(
    reader: ShardReader, decoder: TextDecoder, shard: Shard, low: int, high: int
) -> pa.LargeStringArray:
    ends = reader.offsets[low : high + 1] - reader.offsets[low]
    ids: Any = np.asarray(reader.tokens[reader.offsets[low] : reader.offsets[high]])
    if (np.diff(ends) <= decoder.head).any() or not decoder.vocab.holds(ids):
        raise IntegrityError(f"{shard.bin_path} has ids of no token; see pretok verify")
    text = np.ones(len(ids), np.bool_)
    text[ends[1:] - 1] = False  # the end-of-document tokens
    if decoder.head:
        text[ends[:-1]] = False
    around = np.full(high - low, 1 + decoder.head)
    if (gone := removed_documents(ids, ends, decoder.eod_id)).any():  # only EOD
        text[np.repeat(gone, np.diff(ends))] = False
        around[gone] = np.diff(ends)[gone]
    texts = from_buffers(*decoder.decode(ids[text], ends - np.concatenate([[0], np.cumsum(around)])))
    try:
        texts.validate(full=True)
    except pa.ArrowInvalid as error:
        raise IntegrityError(
            f"{shard.bin_path}: documents {low} to {high - 1} are not text ({error}); see pretok verify"
        ) from None
    return texts
