"""Encoding equals `tokenizers`; joining, casting and falling back lose nothing."""

from __future__ import annotations

import json
import random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from pretok.base.memory import resident_bytes
from pretok.kernels.unicode import MARK, class_table
from pretok.read.batches import buffers, from_buffers
from pretok.tokenizer import encoder as encoder_module
from pretok.tokenizer.encoder import Encoder, FastEngine, choose_engine
from pretok.tokenizer.reference import ReferenceEngine, Unencodable

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=60)
italian = st.text(
    st.sampled_from("aeiouàèéìòù'’ LlDd.,;\n\t 123 <|endoftext|>ß東\u0301\u00a0🙂\U000323b0"), max_size=40
)


@pytest.fixture(scope="module")
def tokenizer_json(vocab_dir) -> str:
    return (vocab_dir / "tokenizer.json").read_text()


@pytest.fixture(scope="module")
def encoder(tokenizer_json) -> Encoder:
    made = Encoder(tokenizer_json, 0, 1500)
    assert made.notice == ""  # or the reference would be compared with itself
    return made


@pytest.fixture(scope="module")
def reference(tokenizer_json) -> Tokenizer:
    tokenizer = Tokenizer.from_str(tokenizer_json)
    tokenizer.encode_special_tokens = True
    return tokenizer


def test_a_word_without_end_is_named_not_encoded(encoder, reference, monkeypatch):
    monkeypatch.setattr(encoder_module, "LONGEST_WORD", 1000)
    documents = ["a" * 1001, "è" * 500, "a b " * 900, " " * 1001, "1" * 1000]
    with pytest.raises(Unencodable, match="more than 1,000 bytes of letters") as caught:
        encoder.encode(pa.array(documents, pa.large_string()))
    assert caught.value.documents == [0, 3]
    left = [documents[i] for i in (1, 2, 4)]
    tokens, _ = encoder.encode(pa.array(left, pa.large_string()))
    assert tokens.tolist() == [id for text in left for id in [*reference.encode(text).ids, 0]]


@pytest.mark.parametrize("size", [1500, 70_000])
def test_a_bos_stands_before_each_document_in_either_dtype(tokenizer_json, size):
    texts = pa.array(["l'acqua", "", "ß"], pa.large_string())
    plain, lengths = Encoder(tokenizer_json, 0, size).encode(texts)
    tokens, longer = Encoder(tokenizer_json, 0, size, bos_id=2).encode(texts)
    assert tokens.dtype == plain.dtype
    assert longer.tolist() == (lengths + 1).tolist()
    parts = np.split(plain, np.cumsum(lengths)[:-1])
    assert tokens.tolist() == [i for part in parts for i in (2, *part.tolist())]


@given(st.lists(texts | italian, max_size=6))
def test_ids_equal_the_reference_and_decode_to_the_text(encoder, reference, documents):
    tokens, lengths = encoder.encode(pa.array(documents, pa.large_string()))
    assert lengths.sum() == len(tokens)
    for text, ids in zip(
        documents, np.split(tokens, np.cumsum(lengths)[:-1]) if documents else [], strict=True
    ):
        assert ids[-1] == 0
        assert ids[:-1].tolist() == reference.encode(text, add_special_tokens=False).ids
        assert reference.decode(ids[:-1].tolist(), skip_special_tokens=False) == text


def test_sliced_arrays_and_buffers(encoder, reference):
    whole = pa.array(["zero", "uno", "", "tre è", "quattro"], pa.large_string())
    part = whole.slice(1, 3)
    data, offsets = buffers(part)
    assert data.tobytes().decode() == "unotre è"
    assert offsets.tolist() == [0, 3, 3, 9]
    assert from_buffers(data, offsets).to_pylist() == ["uno", "", "tre è"]
    tokens, lengths = encoder.encode(part)
    assert lengths[1] == 1
    assert len(tokens) == lengths.sum()


def changed(
    tokenizer_json: str,
    added: dict[str, dict[str, bool]],
    normalizer: str | None = None,
    level: dict[str, bool] | None = None,
    pattern: str = "",
    **model: Any,
) -> str:
    """The tokenizer with more added tokens, given by their flags, with a normalizer, a ByteLevel for all of its
    pre-tokenizer, another pattern, or other model settings; `qzxw` is an entry that no merges make."""
    data = json.loads(tokenizer_json)
    vocab = data["model"]["vocab"]
    vocab["qzxw"] = len(vocab)
    if level is not None:
        data["pre_tokenizer"] = {"type": "ByteLevel", "trim_offsets": True, **level}
    if pattern:
        data["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = pattern
    new = iter(range(len(vocab), 1 << 20))
    for content, flags in added.items():
        i = vocab[content] if content in vocab else next(new)
        plain = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized", "special"), False)
        data["added_tokens"].append({"id": i, "content": content, **plain, **flags})
    data["normalizer"] = {"type": normalizer} if normalizer else None
    data["model"].update(model)
    return json.dumps(data)


NOTHING: dict[str, bool] = {}
VARIANTS: dict[str, tuple[bool, dict[str, Any]]] = {
    "special only": (True, {"added": {"<t>": {"special": True, "lstrip": True, "single_word": True}}}),
    "words and spaces": (True, {"added": {"<t>": NOTHING, "ab": NOTHING, "  ": NOTHING, "é": NOTHING}}),
    "overlapping": (True, {"added": {"<t>": NOTHING, "<t>a": NOTHING, "a<t": NOTHING}}),
    "overlapping special ones": (False, {"added": {"<t>": NOTHING, "<t>a": {"special": True}}}),
    "meeting special ones": (False, {"added": {"<t>": NOTHING, "a<t": {"special": True}}}),
    "single_word": (False, {"added": {"<t>": {"single_word": True}, "ab": {"single_word": True}}}),
    "lstrip": (False, {"added": {"<t>": {"lstrip": True}}}),
    "rstrip": (False, {"added": {"<t>": {"rstrip": True}}}),
    "normalized, without a normalizer": (True, {"added": {"é": {"normalized": True}, "<t>": {"normalized": True}}}),
    "NFC": (True, {"added": {}, "normalizer": "NFC"}),
    "NFC, added": (True, {"added": {"<t>": NOTHING, "é": NOTHING, "ab": NOTHING}, "normalizer": "NFC"}),
    "NFC, normalized spaces": (True, {"added": {"  ": {"normalized": True}}, "normalizer": "NFC"}),
    "NFC, normalized": (False, {"added": {"é": {"normalized": True}}, "normalizer": "NFC"}),
    "NFC, normalized sign": (False, {"added": {"<t>": {"normalized": True}}, "normalizer": "NFC"}),
    "NFKC": (False, {"added": {"<t>": NOTHING}, "normalizer": "NFKC"}),
    "Lowercase": (False, {"added": {"<t>": {"normalized": True}}, "normalizer": "Lowercase"}),
    "ignore_merges": (True, {"added": {"<t>": NOTHING}, "ignore_merges": True}),
    "GPT-2's ByteLevel": (True, {"added": {"<t>": NOTHING}, "level": {"add_prefix_space": False, "use_regex": True}}),
    "unknown pattern": (False, {"added": {}, "pattern": r"\p{L}+|\P{L}"}),
    "prefix space": (True, {"added": {"<t>": NOTHING}, "level": {"add_prefix_space": True, "use_regex": True}}),
}  # fmt: skip
"""Name -> (whether gigatoken may encode it, arguments of `changed`)."""
PIECES = [
    "<t>", "<t", "t>", "a<t", "ab", "a", "b", "è", "é", "e", "e\u0301", "\u0301", "\u0338", "\u0323", "\u07fd",
    "\u0c3c", "\U00011935\U00011930", "\U000105d2\u0307", " ", "  ", "   ", "\t", "\n", "\u00a0", "1", "_", "'s",
    "<|endoftext|>", "<|pad|>", "東", "qzxw", "\u1112\u1161", "\u11ab", "\u212b", "ﬁ", " che", "\U000323b0",
]  # fmt: skip


@pytest.mark.parametrize("name", VARIANTS)
def test_foreign_tokenizers_encode_as_tokenizers_does(tokenizer_json, name):
    """2,000 texts of added tokens and what they could be joined to; the list above says which engine they go to."""
    fast, arguments = VARIANTS[name]
    file = changed(tokenizer_json, **arguments)
    encoder = Encoder(file, 0, 1600)
    assert ("" if fast else "tokenizers instead") in encoder.notice
    assert (encoder.notice == "") == fast
    draw = random.Random(name)
    documents = ["".join(draw.choices(PIECES, k=draw.randint(0, 12))) for _ in range(2000)]
    expected = Tokenizer.from_str(file)
    expected.encode_special_tokens = True
    whole = [e.ids for e in expected.encode_batch(documents, add_special_tokens=False)]
    found = ids_of(encoder, documents)
    assert [d for d, a, b in zip(documents, found, whole, strict=True) if a != b] == []
    special = {token["id"] for token in json.loads(file)["added_tokens"] if token["special"]}
    assert special.isdisjoint(i for ids in found for i in ids)


def ids_of(encoder: Encoder, documents: list[str]) -> list[list[int]]:
    """Ids of each document without its EOD."""
    tokens, lengths = encoder.encode(pa.array(documents, pa.large_string()))
    return [ids[:-1].tolist() for ids in np.split(tokens, np.cumsum(lengths)[:-1])]


def test_marks_that_the_engines_order_differently_go_to_the_reference(tokenizer_json):
    """Every mark there is: gigatoken's Unicode knows the combining classes of more of them than tokenizers' does."""
    file = changed(tokenizer_json, {}, "NFC")
    documents = [
        f"a{chr(mark)}\u0323\u0301" + f"e\u0345{chr(mark)}\u0334"
        for mark in np.flatnonzero(class_table() & MARK)
    ]
    expected = ReferenceEngine(file)
    ids, borders = expected.encode(pa.array(documents, pa.large_string()))
    whole = [part.tolist() for part in np.split(ids, borders[1:-1])]
    assert ids_of(Encoder(file, 0, 1500), documents) == whole
    ids, borders = FastEngine(file).encode(pa.array(documents, pa.large_string()))
    assert [part.tolist() for part in np.split(ids, borders[1:-1])] != whole  # or nothing was tested


@pytest.mark.parametrize(
    "misread",
    [{}, *({"zq": {flag: True}} for flag in ("single_word", "lstrip", "special"))],
    ids=["not known", "single_word", "lstrip", "special"],
)
def test_an_engine_that_reads_an_added_token_differently_is_seen_by_the_probes(
    tokenizer_json, monkeypatch, misread
):
    """Probes must show what no list of doubts names: here the fast engine reads the token in another way."""
    file = changed(tokenizer_json, {"zq": NOTHING})
    fast = ReferenceEngine(changed(tokenizer_json, misread))
    monkeypatch.setattr("pretok.tokenizer.encoder.FastEngine", lambda text: fast)
    engine, notice = choose_engine(file, ReferenceEngine(file))
    assert engine is not fast
    assert "encodes a probe text differently" in notice
    assert "zq" in notice


def test_a_tokenizer_that_truncates_is_not_obeyed(tokenizer_json):
    limited = Tokenizer.from_str(tokenizer_json)
    limited.enable_truncation(3)
    limited.enable_padding(length=50)
    text = pa.array(["una frase molto più lunga di tre token"], pa.large_string())
    expected = ReferenceEngine(tokenizer_json).encode(text)[0]
    assert np.array_equal(FastEngine(limited.to_str()).encode(text)[0], expected)
    assert np.array_equal(ReferenceEngine(limited.to_str()).encode(text)[0], expected)


def new_words(seed: int, count: int) -> pa.LargeStringArray:
    """Words of ten letters that no other call gives."""
    letters = np.random.default_rng(seed).integers(97, 123, (count, 10), dtype=np.uint8)
    return from_buffers(letters.reshape(-1), np.arange(0, 10 * count + 1, 10, dtype=np.int64))


def test_words_are_forgotten_before_they_fill_the_memory(
    tokenizer_json: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches = [new_words(seed, 300_000) for seed in range(8)]
    expected = [FastEngine(tokenizer_json).encode(batch) for batch in batches]
    monkeypatch.setattr(encoder_module, "CACHE_BYTES", 32 << 20)
    engine = FastEngine(tokenizer_json)
    loaded = []
    real = FastEngine._load
    monkeypatch.setattr(FastEngine, "_load", lambda self: (loaded.append(resident_bytes()), real(self)))
    for batch, (ids, offsets) in zip(batches, expected, strict=True):
        found, borders = engine.encode(batch)
        assert np.array_equal(found, ids)
        assert np.array_equal(borders, offsets)
    assert 2 <= len(loaded) < 8
    assert max(loaded) - loaded[0] < 200 << 20  # 2.4 million words take 230 MB and more where they stay
