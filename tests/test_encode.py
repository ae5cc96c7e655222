"""Encoding equals `tokenizers`; joining, casting and falling back lose nothing."""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from pretok.encode import Encoder, FastEngine, ReferenceEngine, choose_engine
from pretok.normalize import Normalization
from pretok.texts import buffers, from_buffers

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
    assert made.notice == ""
    return made


@pytest.fixture(scope="module")
def reference(tokenizer_json) -> Tokenizer:
    tokenizer = Tokenizer.from_str(tokenizer_json)
    tokenizer.encode_special_tokens = True
    return tokenizer


@settings(max_examples=300)
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


def test_an_unknown_pattern_falls_back_and_says_so(tokenizer_json):
    changed = json.loads(tokenizer_json)
    changed["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = r"\p{L}+|\P{L}"
    engine, notice = choose_engine(json.dumps(changed), ReferenceEngine(json.dumps(changed)))
    assert isinstance(engine, ReferenceEngine)
    assert "tokenizers instead, at about" in notice
    fallback = Encoder(json.dumps(changed), 0, 1500)
    tokens, _ = fallback.encode(pa.array(["l'acqua"], pa.large_string()))
    assert tokens[:-1].tolist() == Tokenizer.from_str(json.dumps(changed)).encode("l'acqua").ids


def test_added_tokens_that_are_not_special_stay_tokens(tokenizer_json):
    changed = json.loads(tokenizer_json)
    template = changed["added_tokens"][0]
    changed["added_tokens"].append({**template, "id": 1500, "content": "<tool>", "special": False})
    text = pa.array(["usa <tool> e <|endoftext|> qui<tool>"], pa.large_string())
    fast, reference = FastEngine(json.dumps(changed)), ReferenceEngine(json.dumps(changed))
    expected = reference.encode(text)[0]
    assert np.count_nonzero(expected == 1500) == 2
    assert not (expected == 0).any()
    assert np.array_equal(fast.encode(text)[0], expected)


def test_a_tokenizer_that_truncates_is_not_obeyed(tokenizer_json):
    changed = Tokenizer.from_str(tokenizer_json)
    changed.enable_truncation(3)
    changed.enable_padding(length=50)
    text = pa.array(["una frase molto più lunga di tre token"], pa.large_string())
    expected = ReferenceEngine(tokenizer_json).encode(text)[0]
    assert np.array_equal(FastEngine(changed.to_str()).encode(text)[0], expected)
    assert np.array_equal(ReferenceEngine(changed.to_str()).encode(text)[0], expected)


@given(st.lists(texts, max_size=5))
def test_normalization(documents):
    import unicodedata

    array = pa.array(documents, pa.large_string())
    assert Normalization()(array) is array
    everything = Normalization("nfc", strip_bom=True, crlf=True)(array).to_pylist()
    assert everything == [
        unicodedata.normalize("NFC", d.removeprefix("\ufeff").replace("\r\n", "\n")) for d in documents
    ] or any(unicodedata.category(c) == "Cn" for d in documents for c in d)


def test_normalization_examples():
    array = pa.array(["\ufeffperche\u0301\r\nno\rsì", "\ufeff\ufeffx", "plain"], pa.large_string())
    assert Normalization("nfc")(array).to_pylist()[0] == "\ufeffperché\r\nno\rsì"
    assert Normalization(strip_bom=True)(array).to_pylist() == ["perche\u0301\r\nno\rsì", "\ufeffx", "plain"]
    assert Normalization(crlf=True)(array).to_pylist()[0] == "\ufeffperche\u0301\nno\rsì"
