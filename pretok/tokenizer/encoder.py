"""Texts -> token ids, exactly as `tokenizers` gives them, at the speed of `gigatoken`.

Input: batches of texts and a Vocabulary. Output: the ids of all documents in a row, in the dtype of the shards,
with EOD after each document and, if there is one, BOS before it; and the tokens per document. Text that spells a
special token is encoded as ordinary text.

`gigatoken` encodes; `tokenizers` is the reference. The reference encodes documents with characters that the two engines
class or normalize differently. It also encodes everything for a tokenizer that gigatoken does not accept, that has
features which gigatoken handles differently (`why_not_fast`), or with which gigatoken encodes a probe text differently.

gigatoken takes 65 % of the CPU time of the thread that encodes (1.1 of 1.7 s for 283 MB; SHA-256 and writing take most
of the rest). The arrays that it is called with and gives take 0.4 ms a batch, 2 %, and batches larger than the reader's
4 MB gain nothing.
"""

from __future__ import annotations

from copy import copy
from functools import cached_property
from itertools import product
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
from numba import types

from pretok.base.memory import give_back_memory, resident_bytes
from pretok.base.texts import buffers
from pretok.base.tokens import Ids, Ints, Tokens, token_dtype
from pretok.base.version import refuse_untried
from pretok.kernels.compile import I64, njit
from pretok.kernels.pretokenize import disputed
from pretok.kernels.unicode import MARK, UNASSIGNED, disputed_classes
from pretok.tokenizer.reference import EngineError, ReferenceEngine, Unencodable, guarded, join_parts
from pretok.tokenizer.vocabulary import Vocabulary

TRIED = "0.10"
"""The newest version of `gigatoken` whose ids were compared with those of `tokenizers`. To change it, also change
pyproject.toml, constraints.txt and the table of code points that the two class differently (`tests/kernels`)."""
PROBE = (
    "L'acqua dell'anno 2024: perché no? «È così», disse; un po' d'olio.\n\n  It's 12,345.67 they've DON'T  \t x\r\n"
    "di un, che l’è; e\u0301 ǅ ß İstanbul 東京 नमस्ते 🙂🇮🇹 \u00a0\u2009\u0085 ½ ٣ <|endoftext|> aaaa'll 'S"
)
"""A text that engines which implement a pattern differently encode differently."""
ADDED_CONTEXTS = "a{0}b {0} {0}{0}\u0301 1{0}\u0338.\n{0}\n\t{0}  x{0}' «{0}»_{0}-é{0}e\u0301"
"""Text around each added token in the probes, with which the token could be joined."""
INERT = {chr(c) for c in range(0x80) if not chr(c).isalpha()} - set("<=>")
"""Characters that NFC neither changes nor composes with others, such as spaces, of which GPT-NeoX has tokens."""
MOST_PER_BYTE = 4
"""More tokens a byte of text than tokenizers make: a byte is one token at most, unless it was normalized to more."""
CACHE_BYTES = 256 << 20
"""How much a process may grow before its cache of words is dropped: some two million words. The cache's table doubles
at 0.8, 1.6 and 3.2 million, the last time by 250 MB with both tables.
"""
LONGEST_RUN = 16 << 20
"""Fewer bytes of one class in a row, which may be one word, are encoded: engines take 25 times the memory of a word."""
_CLASSES = np.ones(256, np.uint8)
_CLASSES[:0x80] = [2 if c.isdigit() else 3 if c.isspace() else c.isalpha() for c in map(chr, range(0x80))]
"""Byte -> its class: letter or part of a longer character, digit, white space, other sign."""
NEW_SCRIPTS = range(0x10500, 0x17000)
"""Where Unicode still adds letters that compose, so that engines with different versions of it differ."""


class Encoder:
    """One tokenizer, loaded once per worker process: its word cache warms up over the first megabytes.

    `notice` is not empty if the slow engine had to be used. Raises UsageError for a tokenizer that `tokenizers` does
    not read.
    """

    def __init__(self, vocab: Vocabulary) -> None:
        self.vocab = vocab
        self.dtype = token_dtype(vocab.size)
        self._reference = ReferenceEngine(vocab)
        self._engine, self.notice = choose_engine(vocab, self._reference)
        if not self.notice:
            self._table = disputed_table(vocab, self._engine, self._reference)

    def encode(self, texts: pa.LargeStringArray) -> tuple[Tokens, npt.NDArray[np.int32]]:
        """Encode as (tokens (n,) in the shard dtype, lengths (documents,) int32 that include BOS and EOD).

        Raises Unencodable with the documents of the batch that no engine can encode.
        """
        ids, offsets = self.ids(texts)
        bos, eod = self.vocab.bos_id, self.vocab.eod_id
        around = 1 if bos is None else 2
        out = np.empty(len(ids) + around * len(texts), self.dtype)
        lengths = np.empty(len(texts), np.int32)
        _JOIN[self.dtype](ids, offsets, -1 if bos is None else bos, eod, out, lengths)
        return out, lengths

    def ids(self, texts: pa.LargeStringArray) -> tuple[Ids, Ints]:
        """Return (ids of all documents in a row, without BOS and EOD, offsets (documents + 1,)). Raises Unencodable.

        The fast engine encodes, except for disputed documents and for a batch with a text that it gives up on. A text
        with an endless word is not encoded, as its memory would not be bounded.
        """
        if endless := endless_words(texts):
            what = (
                f"{LONGEST_RUN // 2:,} bytes or more of letters, digits, spaces or other characters in a row"
            )
            raise Unencodable(endless, what)
        if isinstance(self._engine, ReferenceEngine):
            return self._engine.encode(texts)
        # Only disputed documents take the slow way, not their whole batch: 1.3 MB/s would else be the speed of all.
        flags = disputed(*buffers(texts), self._table)
        try:
            return self._encode_mixed(texts, flags) if flags.any() else self._engine.encode(texts)
        except EngineError:
            return self._reference.encode(texts)

    @cached_property
    def exact(self) -> Encoder:
        """The same encoder by `tokenizers` alone, whose ids this one must equal: 75 times slower."""
        if self._engine is self._reference:
            return self
        # A shallow copy, which shares the vocabulary and the reference.
        exact = copy(self)
        exact._engine = self._reference
        return exact

    @cached_property
    def token_sizes(self) -> Ints:
        """The bytes of text of each id, (entries,)."""
        return np.array([len(self.vocab.token_bytes(token)) for token in range(self.vocab.size)])

    def _encode_mixed(self, texts: pa.LargeStringArray, flags: npt.NDArray[np.bool_]) -> tuple[Ids, Ints]:
        """Encode disputed documents by the reference and the others by the fast engine; returns them in order."""
        parts: list[Ids] = [np.empty(0, np.uint32)] * len(texts)
        for engine, chosen in ((self._engine, ~flags), (self._reference, flags)):
            where = np.flatnonzero(chosen)
            try:
                ids, offsets = engine.encode(texts.take(pa.array(where)))
            except Unencodable as error:
                # The engine numbers the documents that it was given, the caller those of the whole batch.
                raise Unencodable(where[error.documents].tolist(), error.reason) from None
            for at, document in enumerate(where):
                parts[document] = ids[offsets[at] : offsets[at + 1]]
        return join_parts(parts)


def endless_words(texts: pa.LargeStringArray) -> list[int]:
    """Return the documents that may have a word of LONGEST_RUN bytes.

    They have a run of one class of that many bytes, and some a run of half as many: a block of half of LONGEST_RUN,
    wherever it begins, is then of one class.
    """
    data, offsets = buffers(texts)
    half = LONGEST_RUN // 2
    endless = []
    for document in np.flatnonzero(np.diff(offsets) >= LONGEST_RUN).tolist():
        starts = range(offsets[document], offsets[document + 1] - half + 1, half)
        if any(np.ptp(_CLASSES[data[start : start + half]]) == 0 for start in starts):
            endless.append(document)
    return endless


def choose_engine(vocab: Vocabulary, reference: ReferenceEngine) -> tuple[Engine, str]:
    """Choose (the fastest engine that is exact for this tokenizer, a notice if that is the slow one)."""
    try:
        if not (reason := why_not_fast(vocab)):
            fast, probes = FastEngine(vocab), _probes(vocab)
            if not (unequal := _unequal(fast, reference, probes)):
                return fast, ""
            probe = probes[unequal[0]].as_py()[:60]
            reason = f"gigatoken encodes a probe text differently from tokenizers: {probe!r}"
    except EngineError as error:
        reason = f"gigatoken does not accept this tokenizer ({error})"
    return reference, f"{reason}; encoding with tokenizers instead, at about 1.3 MB/s per core"


def load_libraries() -> None:
    """Import what `FastEngine` needs, which otherwise happens at its first texts."""
    import awkward
    import gigatoken

    del awkward, gigatoken


class FastEngine:
    """`gigatoken` on Arrow buffers, one thread.

    Raises EngineError for a tokenizer it does not accept, UsageError for an untested version.

    Its cache keeps every distinct word, at 70 to 140 bytes, and a worker lives as long as its job. So it is loaded anew
    when the process has grown by CACHE_BYTES since it had least.
    """

    def __init__(self, vocab: Vocabulary) -> None:
        refuse_untried("gigatoken", TRIED)
        # No text may become a special token, so the engine does not know them. Other added tokens are found in text.
        plain = [token for token in vocab.added if not token["special"]]
        self._json = msgspec.json.encode({**vocab.data, "added_tokens": plain})
        self._load()

    def _load(self) -> None:
        import gigatoken

        self._tokenizer: Any = None  # free the old cache first
        give_back_memory()  # else its place would count as grown
        with guarded():
            self._tokenizer = gigatoken.Tokenizer.from_json(self._json)
        self._most = resident_bytes() + CACHE_BYTES

    def encode(self, texts: pa.LargeStringArray) -> tuple[Ids, Ints]:
        import awkward as ak

        # Between two batches, as a batch is one call.
        resident = resident_bytes()
        # A load beside a large document must not allow the cache its memory too, once it is gone.
        self._most = min(self._most, resident + CACHE_BYTES)
        if resident > self._most:
            self._load()
        data, offsets = buffers(texts)
        characters = ak.contents.NumpyArray(data, parameters={"__array__": "char"})
        strings = ak.contents.ListOffsetArray(
            ak.index.Index64(offsets), characters, parameters={"__array__": "string"}
        )
        with guarded():
            # One thread: the engine runs a task per core, and threads inside would compete with those.
            layout = self._tokenizer.encode_batch(ak.Array(strings), parallel=False).layout
        return layout.content.data, layout.offsets.data


Engine = ReferenceEngine | FastEngine
"""Encodes a batch: (ids of all documents in a row, offsets (documents + 1,))."""


def why_not_fast(vocab: Vocabulary) -> str:
    """Return why gigatoken may encode differently from tokenizers with this tokenizer, "" if nothing is known."""
    plain = [token for token in vocab.added if not token["special"]]
    for token in plain:
        if token["normalized"] and vocab.data.get("normalizer") and not set(token["content"]) <= INERT:
            return f"the added token {token['content']!r} is matched in normalized text"
    special = [token["content"] for token in vocab.added if token["special"]]
    for name, other in product(special, (token["content"] for token in plain)):
        # In a text where one ends and the other begins with the same characters, tokenizers finds the first of them,
        # gigatoken the one that it knows. Probes show what happens where one holds the other.
        ends = range(1, min(len(name), len(other)) + 1)
        if any(name[-k:] == other[:k] or other[-k:] == name[:k] for k in ends):
            return f"the special token {name!r} overlaps with an added one that is not special"
    return ""


def _probes(vocab: Vocabulary) -> pa.LargeStringArray:
    """Return texts that an engine which handles the pattern or an added token differently encodes differently."""
    # Tokens side by side, in both orders, and apart: where one ends and another begins, engines that look for them in
    # another order differ.
    names = [token["content"] for token in vocab.added]
    rows = ["".join(names), "".join(reversed(names)), " ".join(names)]
    return pa.array([PROBE, *rows, *map(ADDED_CONTEXTS.format, names)], pa.large_string())


def _unequal(fast: Engine, reference: ReferenceEngine, texts: pa.LargeStringArray) -> list[int]:
    """Return the texts that two engines encode differently; all if one of them gives up."""
    try:
        (ids, offsets), (expected, borders) = fast.encode(texts), reference.encode(texts)
    except (EngineError, Unencodable):
        return list(range(len(texts)))
    return [
        i
        for i in range(len(texts))
        if not np.array_equal(ids[offsets[i] : offsets[i + 1]], expected[borders[i] : borders[i + 1]])
    ]


def disputed_table(vocab: Vocabulary, fast: Engine, reference: ReferenceEngine) -> npt.NDArray[np.uint8]:
    """Return the table for `disputed`: UNASSIGNED is every code point that the engines may treat differently.

    With a normalizer these are also the marks that the engines order differently, found by probes, and the scripts that
    are still growing. gigatoken has a later Unicode than tokenizers, whose NFC is of version 9.
    """
    table = disputed_classes()
    if not vocab.data.get("normalizer"):
        return table
    marks = np.flatnonzero(table & MARK)
    # U+0345 is of the last combining class and U+0334 of the first: a mark of any class moves past one of them
    probes = pa.array([f"a\u0345{chr(mark)}\u0334" for mark in marks.tolist()], pa.large_string())
    table[marks[_unequal(fast, reference, probes)]] = UNASSIGNED
    table[NEW_SCRIPTS.start : NEW_SCRIPTS.stop] = UNASSIGNED
    return table


def _join(ids: Any, offsets: Any, bos: Any, eod: Any, out: Any, lengths: Any) -> None:
    """Cast ids into `out`, with `eod` after each document and, unless it is negative, `bos` before it.

    Fills `lengths`, the tokens per document.

    Positions are unsigned: a signed index could count from the end, which keeps LLVM from copying many ids at once and
    is 20 times slower.
    """
    at, head = np.uint64(0), np.uint64(bos >= 0)
    for document in range(len(offsets) - 1):
        start = np.uint64(offsets[document])
        length = np.uint64(offsets[document + 1]) - start
        if head:
            out[at] = bos
            at += head
        for i in range(length):
            out[at + i] = ids[start + i]
        out[at + length] = eod
        lengths[document] = length + head + np.uint64(1)
        at += length + np.uint64(1)


_U32 = types.Array(types.uint32, 1, "C", readonly=True)
_JOIN = {
    np.dtype(dtype): njit(types.void(_U32, I64, types.int64, types.int64, out[::1], types.int32[::1]))(_join)
    for dtype, out in (("<u2", types.uint16), ("<i4", types.int32))
}
