"""Superwords: the coarse pattern against the local rule, ids against `tokenizers`, training against a plain one."""

from __future__ import annotations

import numba
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from texts import HARD, pack
from texts import texts as any_texts
from tokenizers import Regex, pre_tokenizers

from pretok.pretokenize import word_ends
from pretok.segments import BASE, COARSE, SEPARATORS, joined
from pretok.unicode import class_table

TRICKY = [
    "l'acqua dell'anno, che e' un po' d'olio,ma senz'altro; l''un l'altro 'l 's 'st x's's 'Re'LL'lL x'sopra a'ſx",
    "It's fine, isn't it? They've 1990's are, DON'T 'tis rock'n'roll o'clock, y'all'd've, the dogs' bone's, ' x",
    "l’uomo dell’È un’ ’s ’ a’\u2019b x\u2018y e ’ , ’ che, ’che,’che a\u2060b a\u2019",
    " a a  a a, a,  a ,a ,, a,, a, a,\u00a0a\u00a0a a\u2009a \u00e0 a \u00e0, a \u2019 , a",
    "perche\u0301 no, e\u0301 a\u0301'a e\u0300, x \u0301 x, \u0301x 12 a 1a, a1 a, 1'a a'1 ½ a",
    "日本 日本, 日本'日 日’本 я, да и'ды ʰ a ǅ a \U0001d400 a, \U0001d400' \U00010400'\U00010400",
    "a,", "a, ", "a' ", "a'", " a", ", a", "' a", "a,\n a", "a, \na", "a\n, a", "a ", "a’", "a\u2018", "’a", ",'a a",
]  # fmt: skip

PIECES = st.sampled_from(
    ["l", "s", "S", "ſ", "re", "ll", "acqua", "Che", "à", "\u0301", "日", "\U00010400", "7", "½"]
    + ["'", "''", "’", "\u2018", ",", ", ", " ", "  ", "\n", "\u00a0", "\u2009", ".", "«", "'s", "'LL", "…", "\u2c60"]
)
texts = st.one_of(st.lists(PIECES, max_size=30).map("".join), any_texts)
"""Text in which letters, separators and their look-alikes interact, or any text."""


def split(text: str, pattern: str) -> list[str]:
    return [w for w, _ in pre_tokenizers.Split(Regex(pattern), "isolated").pre_tokenize_str(text)]


@numba.njit
def joined_at(data, at, table, separators):
    return joined(data.ctypes, 0, at, len(data), table.ctypes, separators)


def segments(text: str, separators: str) -> list[str]:
    """Words of the scanner, put together where `joined` says so."""
    data, offsets = pack([text])
    pieces, start = [], 0
    for end in word_ends(data, offsets, BASE).tolist():
        if not joined_at(data, end, class_table(), SEPARATORS[separators]):
            pieces.append(data[start:end].tobytes().decode())
            start = end
    return pieces


@pytest.mark.parametrize("separators", SEPARATORS)
@pytest.mark.parametrize("text", TRICKY + HARD)
def test_segments_of_tricky_texts(separators: str, text: str) -> None:
    assert segments(text, separators) == split(text, COARSE[separators])


@pytest.mark.parametrize("separators", SEPARATORS)
@settings(max_examples=1000, deadline=None)
@given(text=texts)
def test_segments_of_any_text(separators: str, text: str) -> None:
    assert segments(text, separators) == split(text, COARSE[separators])


def test_segments_by_example() -> None:
    text = "Per l'uomo, che non sa; it's o'clock,no"
    assert segments(text, "space") == ["Per l", "'uomo", ",", " che non sa", ";", " it", "'s o", "'clock", ",no"]
    assert segments(text, "space+apostrophe") == ["Per l'uomo", ",", " che non sa", ";", " it's o'clock", ",no"]
    assert segments(text, "space+apostrophe+comma")[0] == "Per l'uomo, che non sa"
