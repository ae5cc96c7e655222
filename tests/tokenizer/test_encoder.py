"""Encoding equals `tokenizers`; joining, casting and falling back lose nothing."""

from __future__ import annotations

import json
import random
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer
from tokenizing import ids_of, vocabulary

from pretok.base.memory import resident_bytes
from pretok.base.texts import from_buffers
from pretok.kernels.unicode import MARK, class_table
from pretok.tokenizer import encoder as encoder_module
from pretok.tokenizer import reference as reference_module
from pretok.tokenizer.encoder import Encoder, FastEngine, choose_engine
from pretok.tokenizer.reference import ReferenceEngine, Unencodable
from pretok.tokenizer.vocabulary import Vocabulary, load_vocab

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=60)
italian = st.text(
    st.sampled_from("aeiouàèéìòù'’ LlDd.,;\n\t 123 <|endoftext|>ß東\u0301\u00a0🙂\U000323b0"), max_size=40
)


@pytest.fixture(scope="module")
def vocab(vocab_dir: Path) -> Vocabulary:
    return load_vocab(vocab_dir)


@pytest.fixture(scope="module")
def encoder(vocab: Vocabulary) -> Encoder:
    encoder = Encoder(vocab)
    assert encoder.notice == ""  # or the reference would be compared with itself
    return encoder


def library(vocab: Vocabulary) -> Tokenizer:
    """`tokenizers` itself."""
    tokenizer = Tokenizer.from_str(vocab.raw.decode())
    tokenizer.encode_special_tokens = True
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def test_a_word_without_end_is_named_not_encoded(
    encoder: Encoder, vocab: Vocabulary, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(encoder_module, "LONGEST_RUN", 1000)
    documents = [
        "a" * 1000,
        "è" * 499,
        "a b " * 900,
        "x" + " " * 1001,
        "1" * 999,
        "." * 499 + "é" * 501 + ".",
    ]
    with pytest.raises(Unencodable, match="500 bytes or more of letters") as caught:
        encoder.encode(pa.array(documents, pa.large_string()))
    assert caught.value.documents == [0, 3, 5]
    left = [documents[i] for i in (1, 2, 4)]
    assert ids_of(encoder, left) == [library(vocab).encode(text).ids for text in left]


@pytest.mark.parametrize("size", [1500, 70_000])
def test_a_bos_stands_before_each_document_in_either_dtype(vocab: Vocabulary, size: int) -> None:
    texts = pa.array(["l'acqua", "", "ß"], pa.large_string())
    plain, lengths = Encoder(replace(vocab, size=size)).encode(texts)
    tokens, longer = Encoder(replace(vocab, size=size, bos_id=2)).encode(texts)
    assert tokens.dtype == plain.dtype == np.dtype("<u2" if size == 1500 else "<i4")
    assert longer.tolist() == (lengths + 1).tolist()
    parts = np.split(plain, np.cumsum(lengths)[:-1])
    assert tokens.tolist() == [i for part in parts for i in (2, *part.tolist())]


@given(st.lists(texts | italian, max_size=6))
def test_ids_equal_the_reference_and_decode_to_the_text(encoder: Encoder, documents: list[str]) -> None:
    tokens, lengths = encoder.encode(pa.array(["before", *documents], pa.large_string()).slice(1))
    assert (len(lengths), lengths.sum()) == (len(documents), len(tokens))
    expected, ends = library(encoder.vocab), np.cumsum(lengths)
    for text, end, length in zip(documents, ends.tolist(), lengths.tolist(), strict=True):
        ids = tokens[end - length : end].tolist()
        assert ids.pop() == 0
        assert ids == expected.encode(text, add_special_tokens=False).ids
        assert expected.decode(ids, skip_special_tokens=False) == text


def changed(
    vocab: Vocabulary,
    added: dict[str, dict[str, bool]],
    normalizer: str | None = None,
    level: dict[str, bool] | None = None,
    split: dict[str, Any] | None = None,
    model: dict[str, Any] | None = None,
    **parts: Any,
) -> Vocabulary:
    """The tokenizer with more added tokens, given by their flags, with a normalizer, a ByteLevel for all of its
    pre-tokenizer, another Split, or other settings of the model or the file; `qzxw` is an entry that no merges make."""
    data = json.loads(vocab.raw) | parts
    entries = data["model"]["vocab"]
    entries["qzxw"] = len(entries)
    if level is not None:
        data["pre_tokenizer"] = {"type": "ByteLevel", "trim_offsets": True, **level}
    data["pre_tokenizer"].get("pretokenizers", [{}])[0].update(split or {})
    new = iter(range(len(entries), 1 << 20))
    for content, flags in added.items():
        i = entries[content] if content in entries else next(new)
        plain = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized", "special"), False)
        data["added_tokens"].append({"id": i, "content": content, **plain, **flags})
    strip = {"strip_left": True, "strip_right": True} if normalizer == "Strip" else {}
    data["normalizer"] = {"type": normalizer, **strip} if normalizer else None
    data["model"].update(model or {})
    return vocabulary(data)


NOTHING: dict[str, bool] = {}
SPECIAL = {"special": True}
VARIANTS: dict[str, tuple[bool, dict[str, Any]]] = {
    "special only": (True, {"added": {"<t>": {"special": True, "lstrip": True, "single_word": True}}}),
    "words and spaces": (True, {"added": {"<t>": NOTHING, "ab": NOTHING, "  ": NOTHING, "é": NOTHING}}),
    "overlapping": (True, {"added": {"<t>": NOTHING, "<t>a": NOTHING, "a<t": NOTHING}}),
    "overlapping special ones": (False, {"added": {"<t>": NOTHING, "<t>a": SPECIAL}}),
    "meeting special ones": (False, {"added": {"<t>": NOTHING, "q<t": SPECIAL}}),
    "special ones meeting": (False, {"added": {"<t>": NOTHING, "t>q": SPECIAL}}),
    "with a space": (True, {"added": {"b a": NOTHING}}),
    "inside a special one": (False, {"added": {"<t>": NOTHING, "a<t>b": SPECIAL}}),
    "around a special one": (True, {"added": {"a<t>b": NOTHING, "<t>": SPECIAL}}),
    "single_word": (False, {"added": {"<t>": {"single_word": True}, "ab": {"single_word": True}}}),
    "lstrip": (True, {"added": {"<t>": {"lstrip": True}}}),
    "rstrip": (True, {"added": {"<t>": {"rstrip": True}}}),
    "normalized, without a normalizer": (True, {"added": {"é": {"normalized": True}, "<t>": {"normalized": True}}}),
    "NFC": (True, {"added": {}, "normalizer": "NFC"}),
    "NFC, added": (True, {"added": {"<t>": NOTHING, "é": NOTHING, "ab": NOTHING}, "normalizer": "NFC"}),
    "NFC, normalized spaces": (True, {"added": {"  ": {"normalized": True}}, "normalizer": "NFC"}),
    "NFC, normalized": (False, {"added": {"é": {"normalized": True}}, "normalizer": "NFC"}),
    "NFC, normalized sign": (False, {"added": {"<t>": {"normalized": True}}, "normalizer": "NFC"}),
    "NFKC": (False, {"added": {"<t>": NOTHING}, "normalizer": "NFKC"}),
    "Strip": (False, {"added": {}, "normalizer": "Strip"}),
    "Lowercase": (False, {"added": {"<t>": {"normalized": True}}, "normalizer": "Lowercase"}),
    "ignore_merges": (True, {"added": {"<t>": NOTHING}, "model": {"ignore_merges": True}}),
    "GPT-2's ByteLevel": (True, {"added": {"<t>": NOTHING}, "level": {"add_prefix_space": False, "use_regex": True}}),
    "GPT-2's ByteLevel, as in older files": (True, {"added": {}, "level": {"add_prefix_space": False}}),
    "unknown pattern": (False, {"added": {}, "split": {"pattern": {"Regex": r"\p{L}+|\P{L}"}}}),
    "another behaviour": (True, {"added": {}, "split": {"behavior": "MergedWithNext"}}),
    "prefix space": (True, {"added": {"<t>": NOTHING}, "level": {"add_prefix_space": True, "use_regex": True}}),
    "truncating and padding": (True, {
        "added": {},
        "truncation": {"direction": "Right", "max_length": 3, "strategy": "LongestFirst", "stride": 0},
        "padding": {"strategy": {"Fixed": 50}, "direction": "Right", "pad_to_multiple_of": None, "pad_id": 0,
                    "pad_type_id": 0, "pad_token": "x"},
    }),
}  # fmt: skip
"""Name -> (whether gigatoken may encode it, arguments of `changed`)."""
PIECES = [
    "<t>", "<t", "t>", "q<t", "t>q", "a<t", "b a", "ab", "a", "b", "è", "é", "e", "e\u0301", "\u0301", "\u0338",
    "\u0323", "\u07fd", "\u0c3c", "\U00011935\U00011930", "\U000105d2\u0307", " ", "  ", "   ", "\t", "\n", "\u00a0",
    "1", "_", "'s", "<|endoftext|>", "<|pad|>", "東", "qzxw", "\u1112\u1161", "\u11ab", "\u212b", "ﬁ", " che",
    "\U000323b0",
]  # fmt: skip


@pytest.mark.parametrize("name", VARIANTS)
def test_foreign_tokenizers_encode_as_tokenizers_does(
    vocab: Vocabulary, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """500 texts of added tokens and what they could be joined to, also when the reference cuts texts into pieces
    where it may; the list above says which engine they go to."""
    fast, arguments = VARIANTS[name]
    foreign = changed(vocab, **arguments)
    encoder = Encoder(foreign)
    assert ("" if fast else "tokenizers instead") in encoder.notice
    assert (encoder.notice == "") == fast
    draw = random.Random(name)
    documents = ["".join(draw.choices(PIECES, k=draw.randint(0, 12))) for _ in range(500)]
    whole = [e.ids for e in library(foreign).encode_batch(documents, add_special_tokens=False)]
    monkeypatch.setattr(reference_module, "LONG", 2)
    for engine in (encoder, ReferenceEngine(foreign)):
        ids = ids_of(engine, documents)
        assert [d for d, a, b in zip(documents, ids, whole, strict=True) if a != b] == []
    special = {token["id"] for token in foreign.added if token["special"]}
    assert special.isdisjoint(i for row in whole for i in row)


def test_marks_that_the_engines_order_differently_go_to_the_reference(vocab: Vocabulary) -> None:
    """Every mark there is: gigatoken's Unicode knows the combining classes of more of them than tokenizers' does."""
    nfc = changed(vocab, {}, "NFC")
    documents = [
        f"a{chr(mark)}\u0323\u0301" + f"e\u0345{chr(mark)}\u0334"
        for mark in np.flatnonzero(class_table() & MARK)
    ]
    expected = ids_of(ReferenceEngine(nfc), documents)
    assert ids_of(Encoder(nfc), documents) == expected
    assert ids_of(FastEngine(nfc), documents) != expected  # or nothing was tested


@pytest.mark.parametrize(
    "misread", [{}, *({"zq": {flag: True}} for flag in ("single_word", "lstrip", "special"))]
)
def test_an_engine_that_reads_an_added_token_differently_is_seen_by_the_probes(
    vocab: Vocabulary, monkeypatch: pytest.MonkeyPatch, misread: dict[str, dict[str, bool]]
) -> None:
    """Probes must show what no list of doubts names: here the fast engine reads the token in another way."""
    right = changed(vocab, {"zq": NOTHING})
    fast = ReferenceEngine(changed(vocab, misread))
    monkeypatch.setattr(encoder_module, "FastEngine", lambda vocab: fast)
    engine, notice = choose_engine(right, ReferenceEngine(right))
    assert engine is not fast
    assert "encodes a probe text differently" in notice
    assert "zq" in notice


def new_words(seed: int, count: int) -> pa.LargeStringArray:
    """Words of ten letters that no other call gives."""
    letters = np.random.default_rng(seed).integers(97, 123, (count, 10), dtype=np.uint8)
    return from_buffers(letters.reshape(-1), np.arange(0, 10 * count + 1, 10, dtype=np.int64))


def test_words_are_forgotten_before_they_fill_the_memory(
    vocab: Vocabulary, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches = [new_words(seed, 300_000) for seed in range(8)]
    expected = {seed: FastEngine(vocab).encode(batches[seed]) for seed in (0, 4, 7)}
    monkeypatch.setattr(encoder_module, "CACHE_BYTES", 32 << 20)
    engine = FastEngine(vocab)
    resident: list[int] = []
    load = FastEngine._load
    monkeypatch.setattr(FastEngine, "_load", lambda self: (resident.append(resident_bytes()), load(self)))
    for seed, batch in enumerate(batches):
        found = engine.encode(batch)
        if seed in expected:
            assert all(map(np.array_equal, found, expected[seed]))
    assert 2 <= len(resident) < 8
    assert max(resident) - resident[0] < 200 << 20  # 2.4 million words take 230 MB and more where they stay


def grown(vocab: Vocabulary) -> int:
    """How many bytes this process grows by 3.4 million words, at which the engine's table has doubled again."""
    engine, least, most = FastEngine(vocab), resident_bytes(), 0
    for seed in range(17):
        engine.encode(new_words(seed, 200_000))
        most = max(most, resident_bytes())
    return most - least


def test_words_leave_a_worker_in_the_memory_that_the_docs_give_it(vocab: Vocabulary) -> None:
    """750 MB, of which code and a batch take 250. In a process of its own, as other tests leave memory behind."""
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        assert pool.submit(grown, vocab).result() < 320_000_000


def test_what_was_freed_and_a_document_that_is_gone_do_not_let_the_words_stay_longer(
    vocab: Vocabulary, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bound begins at the least memory since the last load, which a load beside a large document does not see."""
    now, loads, freed = [5 << 30], [], []
    monkeypatch.setattr(encoder_module, "resident_bytes", lambda: now[0])
    monkeypatch.setattr(encoder_module, "give_back_memory", lambda: freed.append(engine_is_gone()))
    engine: list[FastEngine] = []

    def engine_is_gone() -> bool:
        return not engine or engine[0]._tokenizer is None

    engine.append(FastEngine(vocab))
    load = FastEngine._load
    monkeypatch.setattr(FastEngine, "_load", lambda self: (loads.append(now[0]), load(self)))
    few = pa.array(["uno due"], pa.large_string())
    bound, base = encoder_module.CACHE_BYTES, 1 << 30
    for resident in (5 << 30, base, base + bound, base + bound + 1, base + 2 * bound, base + 2 * bound + 2):
        now[0] = resident
        engine[0].encode(few)
    assert loads == [base + bound + 1, base + 2 * bound + 2]
    assert freed == [True] * 3
