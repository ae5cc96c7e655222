"""Texts -> token ids by `tokenizers`, the reference for every faster way.

Input: batches of texts and a tokenizer.json. Output: ids, where special tokens in the text are ordinary text; or an
EngineError for a text that the library gives up on. pretok's scanner splits long texts into words, which the library
encodes one by one: its regular expression engine gives up after ten million steps, which one long run of spaces takes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from tokenizers import Tokenizer

from pretok.base.errors import PretokError, UsageError
from pretok.base.tokens import Ids, Ints
from pretok.kernels.pretokenize import PATTERNS, word_ends
from pretok.read.batches import buffers
from pretok.tokenizer.tokenizer_file import decoded

Cutter = Callable[[npt.NDArray[np.uint8]], npt.NDArray[np.int64]]
"""One document as bytes -> the ends of its words, which are encoded one by one."""

LONG = 1 << 20
"""Longer documents, in bytes, are split into words first. A pattern takes a few steps per byte, so shorter ones do not
reach the library's ten million. The library takes about 200 bytes of memory per token of a text."""

WORDS = 1 << 17
"""Bytes of words that are encoded at a time: the library takes a kilobyte of memory per word."""


class EngineError(Exception):
    """A tokenizer library gave up."""


class Unencodable(PretokError):
    """No engine encodes these documents of a batch exactly. documents: their numbers in the batch, from 0."""

    def __init__(self, documents: list[int], reason: str) -> None:
        super().__init__(documents, reason)  # its arguments, so that it can be pickled
        self.documents = documents
        self.reason = reason

    def __str__(self) -> str:
        return f"{len(self.documents)} documents cannot be encoded: {self.reason}"


@contextmanager
def guarded() -> Iterator[None]:
    """Turn what the Rust libraries raise into an EngineError.

    A panic in Rust arrives as pyo3's PanicException, which is not an Exception, so nothing else would catch it; each
    library has its own class of that name. Other errors are of several types.
    """
    try:
        yield
    except BaseException as error:
        foreseen = isinstance(error, Exception) and not isinstance(error, MemoryError)
        if not foreseen and type(error).__name__ != "PanicException":
            raise
        raise EngineError(" ".join(str(error).split())[:300]) from None


class ReferenceEngine:
    """`tokenizers`, special tokens in the text treated as plain text.

    name: of the tokenizer in messages, its path if it has one. Raises UsageError for a tokenizer that the library does
    not read.
    """

    def __init__(self, tokenizer_json: str, name: str = "tokenizer.json") -> None:
        self._tokenizer = _tokenizer(tokenizer_json, name)
        self._cutter = _cutter(decoded(tokenizer_json))
        self._json, self._name = tokenizer_json, name

    @cached_property
    def _of_words(self) -> Tokenizer:
        """The tokenizer without its Split, for words that are split already. Made when first needed, which is rare."""
        data = decoded(self._json)
        steps = data["pre_tokenizer"]["pretokenizers"]
        return _tokenizer(json.dumps({**data, "pre_tokenizer": steps[1]}), self._name)

    def encode(self, texts: pa.LargeStringArray) -> tuple[Ids, Ints]:
        """(ids of all documents in a row, offsets (documents + 1,)). Raises Unencodable with those it gave up on."""
        cut = np.diff(buffers(texts)[1]) > LONG if self._cutter else np.zeros(len(texts), np.bool_)
        parts: list[Ids] = [np.empty(0, np.uint32)] * len(texts)
        failed = {}
        for document in np.flatnonzero(cut).tolist():
            parts[document] = self._encode_words(buffers(texts.slice(document, 1))[0])
        others = np.flatnonzero(~cut)
        plain = texts.take(pa.array(others)).to_pylist() if cut.any() else texts.to_pylist()
        try:
            encoded = _encode(self._tokenizer, plain)
        except EngineError:  # find out for which document
            encoded = []
            for document, text in zip(others.tolist(), plain, strict=True):
                try:
                    encoded += _encode(self._tokenizer, [text])
                except EngineError as error:
                    encoded.append(np.empty(0, np.uint32))
                    failed[document] = str(error)
        if failed:
            raise Unencodable(list(failed), f"tokenizers gave up: {next(iter(failed.values()))}")
        for document, ids in zip(others.tolist(), encoded, strict=True):
            parts[document] = ids
        return join_parts(parts)

    def places(self, text: str) -> tuple[Ids, list[tuple[int, int]]]:
        """(ids of a text, the start and end of each in characters). Raises EngineError."""
        with guarded():
            encoding = self._tokenizer.encode(text, add_special_tokens=False)
        return np.array(encoding.ids, np.uint32), encoding.offsets

    def _encode_words(self, data: npt.NDArray[np.uint8]) -> Ids:
        """Ids of one document, about WORDS bytes of words at a time."""
        assert self._cutter is not None
        ends = self._cutter(data)
        whole = data.tobytes()
        parts, start, first = [np.empty(0, np.uint32)], 0, 0
        while first < len(ends):
            last = max(first + 1, int(np.searchsorted(ends, start + WORDS, "right")))
            words = []
            for end in ends[first:last].tolist():
                words.append(whole[start:end].decode())
                start = end
            parts.append(np.concatenate(_encode(self._of_words, words)))  # one array: each takes 120 bytes
            first = last
        return np.concatenate(parts)


def _encode(tokenizer: Tokenizer, texts: list[str]) -> list[Ids]:
    with guarded():
        encodings = tokenizer.encode_batch_fast(texts, add_special_tokens=False)
    return [np.array(encoding.ids, np.uint32) for encoding in encodings]


def join_parts(parts: list[Ids]) -> tuple[Ids, Ints]:
    """(the ids of all documents in a row, offsets (documents + 1,))."""
    offsets = np.zeros(len(parts) + 1, np.int64)
    np.cumsum([len(part) for part in parts], out=offsets[1:])
    return np.concatenate([np.empty(0, np.uint32), *parts]), offsets


def _tokenizer(tokenizer_json: str, name: str) -> Tokenizer:
    try:
        with guarded():
            tokenizer = Tokenizer.from_str(tokenizer_json)
    except EngineError as error:
        raise UsageError(f"{name} is not a tokenizer.json that tokenizers reads: {error}") from None
    tokenizer.encode_special_tokens = True
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _cutter(tokenizer: dict[str, Any]) -> Cutter | None:
    """What splits a document into words as this tokenizer does, None if the scanner cannot.

    It can if only a known Split does it: without a normalizer and without added tokens other than special ones, which
    are ordinary text.
    """
    pattern = split_of(tokenizer)
    added = tokenizer.get("added_tokens", [])
    if pattern is None or tokenizer.get("normalizer") or not all(token["special"] for token in added):
        return None
    for name, regex in PATTERNS.items():
        if pattern == regex:
            return lambda data: word_ends(data, np.array([0, len(data)]), name)
    return None


def split_of(tokenizer: dict[str, Any]) -> str | None:
    """The regular expression of its Split, None if another step splits words too."""
    steps = (tokenizer.get("pre_tokenizer") or {}).get("pretokenizers") or []
    if len(steps) != 2:
        return None
    split, level = steps
    if (split["type"], split.get("behavior"), split.get("invert")) != ("Split", "Isolated", False):
        return None
    if level["type"] != "ByteLevel" or level.get("add_prefix_space", True) or level.get("use_regex", True):
        return None
    pattern: str | None = split["pattern"].get("Regex")
    return pattern
