"""Segments: the coarse pattern against the local rule, and against `tokenizers`."""

from __future__ import annotations

import numba
import numpy as np
import pytest
from hypothesis import given
from segment_texts import TRICKY, texts
from texts import HARD, pack
from tokenizers import Regex, pre_tokenizers

from pretok.kernels.pretokenize import word_ends
from pretok.kernels.unicode import class_table
from pretok.superwords.segments import BASE, COARSE, SEPARATORS, joined, segment_ends


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
@given(text=texts)
def test_segments_of_any_text(separators: str, text: str) -> None:
    assert segments(text, separators) == split(text, COARSE[separators])


def test_segments_by_example() -> None:
    text = "Per l'uomo, che non sa; it's o'clock,no"
    assert segments(text, "space") == [
        "Per l",
        "'uomo",
        ",",
        " che non sa",
        ";",
        " it",
        "'s o",
        "'clock",
        ",no",
    ]
    assert segments(text, "space+apostrophe") == [
        "Per l'uomo",
        ",",
        " che non sa",
        ";",
        " it's o'clock",
        ",no",
    ]
    assert segments(text, "space+apostrophe+comma")[0] == "Per l'uomo, che non sa"


@pytest.mark.parametrize("separators", SEPARATORS)
@pytest.mark.parametrize("text", TRICKY + HARD)
def test_the_ends_of_segments_are_those_of_the_rule(separators: str, text: str) -> None:
    data, _ = pack([text])
    ends = segment_ends(data, SEPARATORS[separators]).tolist()
    assert ends == np.cumsum([len(piece.encode()) for piece in segments(text, separators)]).tolist()
