"""Texts -> token ids by `tokenizers`, the reference for every faster way.

Input: batches of texts and a Vocabulary. Output: ids, where special tokens in the text are ordinary text; or
Unencodable for the texts that the library gives up on. Long texts are encoded in pieces, because the library takes
about 200 bytes of memory per token of a text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
from tokenizers import Tokenizer

from pretok.base.errors import PretokError, UsageError
from pretok.base.tokens import Ids, Ints
from pretok.kernels.pretokenize import PATTERNS
from pretok.tokenizer.vocabulary import Vocabulary

LONG = 1 << 20
"""Longer documents, in characters, are encoded in pieces of about this size."""


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
    """Turn exceptions of the Rust libraries into an EngineError.

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

    Raises UsageError for a tokenizer that the library does not read.
    """

    def __init__(self, vocab: Vocabulary) -> None:
        try:
            with guarded():
                self._tokenizer = Tokenizer.from_str(msgspec.json.encode(vocab.data).decode())
        except EngineError as error:
            raise UsageError(f"{vocab.path} is not a tokenizer.json that tokenizers reads: {error}") from None
        # Else a text that spells a special token would become it.
        self._tokenizer.encode_special_tokens = True
        # A tokenizer.json may ask for either, and both would change the ids of a document.
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        # A normalizer may compose characters across a cut, and an added token may lie across one.
        whole = vocab.data.get("normalizer") or not all(token["special"] for token in vocab.added)
        self._cuts = pattern_of(vocab.data) is not None and not whole

    def encode(self, texts: pa.LargeStringArray) -> tuple[Ids, Ints]:
        """Encode texts as (ids of all documents in a row, offsets (documents + 1,)).

        Raises Unencodable with those that it cannot encode.
        """
        # All texts are tried, so that the error names every document that must become a reject, not only the first.
        parts, failed = [], dict[int, str]()
        for document, text in enumerate(texts.to_pylist()):
            try:
                parts.append(np.concatenate([self._ids(piece) for piece in self._pieces(text)]))
            except EngineError as error:
                failed[document] = str(error)
        if failed:
            raise Unencodable(list(failed), f"tokenizers gave up: {next(iter(failed.values()))}")
        return join_parts(parts)

    def _ids(self, text: str) -> Ids:
        with guarded():  # one text of a batch, because `encode` also finds the place of each token
            (encoding,) = self._tokenizer.encode_batch_fast([text], add_special_tokens=False)
        return np.array(encoding.ids, np.uint32)

    def _pieces(self, text: str) -> list[str]:
        """Cut a text into pieces of LONG characters or a little more, the words of which are those of the whole.

        All patterns end a word between a letter or digit and what follows here. None looks at what is before a word, or
        beyond its end unless it is white space.
        """
        if len(text) <= LONG or not self._cuts:
            return [text]
        return re.findall(rf"(?s).{{{LONG},}}?[^\W_](?=[\s.,。，、])|.+", text)


def join_parts(parts: list[Ids]) -> tuple[Ids, Ints]:
    """Return (the ids of all documents in a row, offsets (documents + 1,))."""
    offsets = np.zeros(len(parts) + 1, np.int64)
    np.cumsum([len(part) for part in parts], out=offsets[1:])
    return np.concatenate([np.empty(0, np.uint32), *parts]), offsets


def pattern_of(tokenizer: dict[str, Any]) -> str | None:
    """Return the name in PATTERNS of the pattern that alone splits texts into words.

    None if another or a second one does. GPT-2's is built into ByteLevel.
    """
    match tokenizer["pre_tokenizer"]:
        case {"type": "ByteLevel", "add_prefix_space": False, **others} if others.get("use_regex", True):
            return "gpt2"
        case {
            "type": "Sequence",
            "pretokenizers": [
                {"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": False},
                {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False},
            ],
        }:
            return next((name for name in PATTERNS if PATTERNS[name] == regex), None)
    return None
