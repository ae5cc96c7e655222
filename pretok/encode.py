"""Texts -> token ids, exactly as `tokenizers` gives them, at the speed of `gigatoken`.

Enters: batches of texts and a tokenizer.json. Leaves: the ids of all documents in a row, EOD after each, in the dtype
of the shards, and the tokens per document. Text that spells a special token is text.

`gigatoken` encodes, and of a vocabulary with superwords its first stage, `joining` the second; `tokenizers` is the
reference. It takes over for documents with characters that the two engines class differently (`disputed`), and for
whole vocabularies whose pattern gigatoken lacks or, on a probe, encodes differently.
"""

from __future__ import annotations

import json
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from numba import types
from tokenizers import Tokenizer

from pretok._numba import I64, njit
from pretok.joining import Joiner
from pretok.pretokenize import disputed
from pretok.shard import Tokens, token_dtype
from pretok.superwords import Stages, split_stages
from pretok.texts import buffers

Ids = npt.NDArray[np.uint32]
Offsets = npt.NDArray[np.int64]

PROBE = (
    "L'acqua dell'anno 2024: perché no? «È così», disse; un po' d'olio.\n\n  It's 12,345.67 they've DON'T  \t x\r\n"
    "di un, che l’è; e\u0301 ǅ ß İstanbul 東京 नमस्ते 🙂🇮🇹 \u00a0\u2009\u0085 ½ ٣ <|endoftext|> aaaa'll 'S"
)
"""A text on which engines that read a pattern differently would disagree."""


class Engine(Protocol):
    """Encodes a batch: (ids of all documents in a row, offsets (documents + 1,))."""

    def encode(self, texts: pa.LargeStringArray) -> tuple[Ids, Offsets]: ...


class ReferenceEngine:
    """`tokenizers`, special tokens in the text treated as plain text."""

    def __init__(self, tokenizer_json: str) -> None:
        self._tokenizer = Tokenizer.from_str(tokenizer_json)
        self._tokenizer.encode_special_tokens = True
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()

    def encode(self, texts: pa.LargeStringArray) -> tuple[Ids, Offsets]:
        encodings = self._tokenizer.encode_batch_fast(texts.to_pylist(), add_special_tokens=False)
        offsets = np.zeros(len(encodings) + 1, np.int64)
        np.cumsum([len(e) for e in encodings], out=offsets[1:])
        ids = np.fromiter((i for e in encodings for i in e.ids), np.uint32, count=int(offsets[-1]))
        return ids, offsets


class FastEngine:
    """`gigatoken` on Arrow buffers, one thread. Raises ValueError for a tokenizer it does not know."""

    def __init__(self, tokenizer_json: str) -> None:
        import gigatoken

        plain = json.loads(tokenizer_json)
        # Nothing in a document may become a special token; the other added tokens are words of the vocabulary.
        plain["added_tokens"] = [token for token in plain["added_tokens"] if not token["special"]]
        try:
            self._tokenizer: Any = gigatoken.Tokenizer.from_json(json.dumps(plain))
        except Exception as error:  # the library raises several kinds
            raise ValueError(str(error)) from None

    def encode(self, texts: pa.LargeStringArray) -> tuple[Ids, Offsets]:
        import awkward as ak

        data, offsets = buffers(texts)
        characters = ak.contents.NumpyArray(data, parameters={"__array__": "char"})
        strings = ak.contents.ListOffsetArray(
            ak.index.Index64(offsets), characters, parameters={"__array__": "string"}
        )
        layout = self._tokenizer.encode_batch(ak.Array(strings), parallel=False).layout
        return layout.content.data, layout.offsets.data


class SuperwordEngine:
    """Words by FastEngine, then superwords. Raises ValueError for a tokenizer that FastEngine does not know."""

    def __init__(self, stages: Stages) -> None:
        self._words = FastEngine(json.dumps(stages.first))
        self._joiner = Joiner(stages)

    def encode(self, texts: pa.LargeStringArray) -> tuple[Ids, Offsets]:
        return self._joiner.join(*buffers(texts), *self._words.encode(texts))


def fast_engine(tokenizer_json: str) -> Engine:
    """The engine for a tokenizer of one or two stages. Raises ValueError when there is none."""
    stages = split_stages(json.loads(tokenizer_json))
    return SuperwordEngine(stages) if stages else FastEngine(tokenizer_json)


def choose_engine(tokenizer_json: str, reference: ReferenceEngine) -> tuple[Engine, str]:
    """The fastest engine that is exact for this tokenizer, and a notice when that is the slow one."""
    try:
        fast = fast_engine(tokenizer_json)
    except ValueError as error:
        reason = f"gigatoken does not take this tokenizer ({error})"
    else:
        probe = pa.array([PROBE], pa.large_string())
        if np.array_equal(fast.encode(probe)[0], reference.encode(probe)[0]):
            return fast, ""
        reason = "gigatoken encodes a probe text differently from tokenizers"
    return reference, f"{reason}; encoding with tokenizers instead, at about 1.3 MB/s per core"


def _join(ids: Any, offsets: Any, eod: Any, out: Any, lengths: Any) -> None:
    """Cast ids into `out` with `eod` after each document; fills tokens per document."""
    at = 0
    for document in range(len(offsets) - 1):
        for i in range(offsets[document], offsets[document + 1]):
            out[at] = ids[i]
            at += 1
        out[at] = eod
        at += 1
        lengths[document] = offsets[document + 1] - offsets[document] + 1


_U32 = types.Array(types.uint32, 1, "C", readonly=True)
_JOIN = {
    np.dtype(dtype): njit(types.void(_U32, I64, types.int64, out[::1], types.int32[::1]))(_join)
    for dtype, out in (("<u2", types.uint16), ("<i4", types.int32))
}


class Encoder:
    """One tokenizer, loaded once per worker process: its word cache warms up over the first megabytes.

    `notice` is not empty when the slow engine had to be taken.
    """

    def __init__(self, tokenizer_json: str, eod_id: int, vocab_size: int) -> None:
        self.dtype = token_dtype(vocab_size)
        self._eod = eod_id
        self._reference = ReferenceEngine(tokenizer_json)
        self._engine, self.notice = choose_engine(tokenizer_json, self._reference)

    def encode(self, texts: pa.LargeStringArray) -> tuple[Tokens, npt.NDArray[np.int32]]:
        """(tokens (n,) in the shard dtype, lengths (documents,) int32 that include the EOD)."""
        flags = disputed(*buffers(texts))
        if flags.any() and not isinstance(self._engine, ReferenceEngine):
            ids, offsets = self._encode_mixed(texts, flags)
        else:
            ids, offsets = self._engine.encode(texts)
        out = np.empty(len(ids) + len(texts), self.dtype)
        lengths = np.empty(len(texts), np.int32)
        _JOIN[self.dtype](ids, offsets, self._eod, out, lengths)
        return out, lengths

    def _encode_mixed(self, texts: pa.LargeStringArray, flags: npt.NDArray[np.bool_]) -> tuple[Ids, Offsets]:
        """Disputed documents by the reference, the others by the fast engine, back in order."""
        parts: list[Ids] = [np.empty(0, np.uint32)] * len(texts)
        for engine, chosen in ((self._engine, ~flags), (self._reference, flags)):
            where = np.flatnonzero(chosen)
            ids, offsets = engine.encode(texts.take(pa.array(where)))
            for at, document in enumerate(where):
                parts[document] = ids[offsets[at] : offsets[at + 1]]
        offsets = np.zeros(len(texts) + 1, np.int64)
        np.cumsum([len(part) for part in parts], out=offsets[1:])
        return np.concatenate(parts) if parts else np.empty(0, np.uint32), offsets
