"""Tokenizer folders open everywhere and round-trip; foreign tokenizers are read or refused."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import pre_tokenizers

from pretok.base.errors import UsageError
from pretok.base.storage import fingerprint
from pretok.kernels.pretokenize import PATTERNS
from pretok.tokenizer.tokenizer_file import ALPHABET, BYTE_CHARACTERS, to_bytes, to_characters
from pretok.tokenizer.vocabulary import load_vocab, tokenizer_data, write_vocab

SPECIAL = ["<|endoftext|>", "<|pad|>", "<|reserved_0|>"]
MERGES = [(b"c", b"i"), (b"a", b"o"), (b"ci", b"ao"), (b" ", b"ciao"), (b"\xc3", b"\xa8")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("vocab")
    write_vocab(folder, PATTERNS["cl100k"], SPECIAL, MERGES)
    return folder


def test_byte_characters_are_those_of_byte_level():
    assert sorted(BYTE_CHARACTERS) == sorted(pre_tokenizers.ByteLevel.alphabet())
    split = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    text = "".join(map(chr, range(1, 0x250)))
    assert split.pre_tokenize_str(text)[0][0] == to_characters(text.encode())


@given(st.binary())
def test_characters_and_bytes(data):
    assert to_bytes(to_characters(data)) == data


def test_ids_are_special_bytes_merges(folder):
    vocab = load_vocab(folder)
    assert vocab.size == 3 + 256 + 5
    assert vocab.eod_id == 0
    assert vocab.added_tokens == {name: i for i, name in enumerate(SPECIAL)}
    assert [vocab.token_bytes(3 + i) for i in range(256)] == [bytes([byte]) for byte in ALPHABET]
    assert vocab.token_bytes(3 + 256 + 3) == b" ciao"
    assert vocab.token_bytes(0) == b"<|endoftext|>"


def test_the_fingerprint_follows_what_decides_ids(folder, tmp_path):
    data = json.loads((folder / "tokenizer.json").read_text())
    path = tmp_path / "tokenizer.json"

    def changed(**parts):
        path.write_text(json.dumps({**data, **parts}, indent=3))
        return load_vocab(path).fingerprint

    same = load_vocab(folder).fingerprint
    assert changed() == same
    assert same == fingerprint(
        {part: data[part] for part in ("added_tokens", "normalizer", "pre_tokenizer", "model")}
    )
    model = data["model"]
    assert changed(model={**model, "vocab": dict(reversed(model["vocab"].items()))}) == same
    assert changed(truncation={"max_length": 3}) == same
    assert changed(normalizer={"type": "NFC"}) != same
    assert changed(model={**model, "merges": model["merges"][:-1]}) != same


def test_the_end_of_document_token(folder, tmp_path):
    assert load_vocab(folder, eod="<|reserved_0|>").eod_id == 2
    assert load_vocab(folder, eod=7).eod_id == 7
    with pytest.raises(UsageError, match="no end-of-document token </s>"):
        load_vocab(folder, eod="</s>")
    data = json.loads((folder / "tokenizer.json").read_text())
    (tmp_path / "tokenizer.json").write_text(json.dumps(data))
    assert load_vocab(tmp_path).eod_id == 0  # by its usual name
    (tmp_path / "tokenizer_config.json").write_text('{"eos_token": {"content": "<|reserved_0|>"}}')
    assert load_vocab(tmp_path).eod_id == 2


def test_merges_that_spell_a_special_token_are_refused():
    with pytest.raises(UsageError, match="EOD is so frequent"):
        tokenizer_data(PATTERNS["cl100k"], ["EOD"], [(b"E", b"O"), (b"EO", b"D")])
