"""Shared runs of words against sets of tuples of words, and folded words against unicodedata."""

from __future__ import annotations

import random
import unicodedata

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from texts import HARD

from pretok.kernels.folding import PASSED_OVER, SEVERAL, fold, fold_tables
from pretok.kernels.ngrams import BLOCK, GRAM, SHORTEST, find_grams, list_grams
from pretok.kernels.unicode import CASELESS, LOWER, MARK, NUMBER, UPPER, class_table

INVISIBLE = "\u00ad\u200b\u200c\u200d\ufeff"
words = st.text("abAB1éÈ", min_size=1, max_size=2)
separators = st.sampled_from([" ", ", ", "\n\n", " — ", "'", "’", "...", " \u0301 ", "\u00a0", "_"])


def folded_words(text: str) -> list[str]:
    """The definition, character by character."""
    spelled = ""
    for character in text:
        kind = int(class_table()[ord(character)])
        if kind & (UPPER | LOWER | CASELESS | NUMBER) and not 0x2B9 <= ord(character) <= 0x2BF:
            spelled += character if 0xAC00 <= ord(character) <= 0xD7A3 else fold(character)
        elif kind != MARK and character not in INVISIBLE:
            spelled += " "
    return spelled.split()


def grams_of(text: str) -> set[tuple[str, ...]]:
    found = folded_words(text)
    if SHORTEST <= len(found) < GRAM:
        return {tuple(found)}
    return {tuple(found[i : i + GRAM]) for i in range(len(found) - GRAM + 1)}


def stands_in(gram: tuple[str, ...], document: list[str]) -> bool:
    return any(tuple(document[i : i + len(gram)]) == gram for i in range(len(document)))


def flat(texts: list[str]) -> tuple[np.ndarray, np.ndarray]:
    encoded = [text.encode() for text in texts]
    return np.frombuffer(b"".join(encoded), np.uint8), np.cumsum([0, *map(len, encoded)], dtype=np.int64)


def check(passages: list[str], documents: list[str]) -> int:
    """Compare with the definition; how many grams were found."""
    grams, gram_of, passage_of = list_grams(*flat(passages))
    spelled = [
        tuple(folded_words(grams.data[start:end].tobytes().decode()))
        for start, end in zip(grams.starts, grams.ends, strict=True)
    ]
    assert len(set(spelled)) == len(spelled)
    for number, passage in enumerate(passages):
        assert {spelled[gram] for gram in gram_of[passage_of == number]} == grams_of(passage)
    at, hits = find_grams(grams, *flat(documents))
    assert (at[0], at[-1]) == (0, len(hits))
    for number, document in enumerate(documents):
        found = hits[at[number] : at[number + 1]].tolist()
        expected = {gram for gram, text in enumerate(spelled) if stands_in(text, folded_words(document))}
        assert len(found) == len(set(found))
        assert set(found) == expected
    return len(hits)


@given(
    st.lists(st.lists(st.tuples(words, separators), max_size=20), max_size=4),
    st.lists(st.lists(st.tuples(words, separators), max_size=40), max_size=4),
    st.randoms(use_true_random=False),
)
def test_grams_are_those_of_the_definition(
    passages: list[list[tuple[str, str]]], documents: list[list[tuple[str, str]]], rng: random.Random
) -> None:
    """Of passages planted in documents, spelled in another way, and of what merely looks like them."""
    texts = ["".join(word + separator for word, separator in passage) for passage in passages]
    holding = ["".join(word + separator for word, separator in document) for document in documents]
    for text in texts:
        other = "".join(rng.choice([c, c.upper(), c.lower(), unicodedata.normalize("NFD", c)]) for c in text)
        cut = rng.randrange(len(other) + 1)
        holding += [other, f"one more {other} and more", other[:cut] + " " + other[cut:], other[cut:] + other]
    check(texts, holding)


@pytest.mark.parametrize("at", [0, 1, BLOCK - GRAM, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK - 5])
@pytest.mark.parametrize("length", [SHORTEST, GRAM - 1, GRAM, 2 * BLOCK + 3])
def test_a_passage_is_found_wherever_it_stands(at: int, length: int) -> None:
    """Blocks of words are hashed at a time: no border between them hides a gram."""
    passage = " ".join(f"w{number}" for number in range(length))
    document = " ".join([*(f"x{number}" for number in range(at)), passage.upper().replace(" ", ", "), "end"])
    assert check([passage], ["", document, "w0 w1", document]) == 2 * max(1, length - GRAM + 1)


def test_shorter_passages_are_not_looked_for() -> None:
    text = " ".join("abcdefg")
    assert len(text.split()) == SHORTEST - 1
    assert check([text, "", "…"], [text, ""]) == 0


def test_hashes_that_collide_are_no_hit() -> None:
    """A document of the same hash and another text: the letters decide."""
    grams, _, _ = list_grams(*flat(["the quick brown fox jumps over the lazy dog"]))
    assert len(find_grams(grams, *flat(["The QUICK brown fox jumps over the lazy dög!"]))[1]) == 1
    other = grams.data.copy()
    other[4] = ord("k")
    forged = type(grams)(other, grams.keys, grams.starts, grams.ends, grams.bits, grams.openings, grams.slots)
    assert len(find_grams(forged, *flat(["The QUICK brown fox jumps over the lazy dög!"]))[1]) == 0


def test_every_code_point_folds_as_unicodedata_says() -> None:
    entries, several = fold_tables()
    wrong = []
    for code in [*range(0xD800), *range(0xE000, 0x110000)]:
        if unicodedata.category(chr(code)) == "Cn":  # of a later Unicode than this Python's
            continue
        entry = int(entries[code])
        place = entry - SEVERAL
        got = (
            [chr(c) for c in several[place + 1 : place + 1 + several[place]]]
            if place >= 0
            else [chr(entry)] if entry > PASSED_OVER else []
        )  # fmt: skip
        if "".join(got) != "".join(folded_words(chr(code))):
            wrong.append(code)
    assert not wrong


@pytest.mark.parametrize(
    ("text", "spelled"),
    [
        ("PERCHÉ perche\u0301 Perche", ["perche"] * 3),
        ("STRASSE Straße ﬁn", ["strasse", "strasse", "fin"]),
        ("Ærø Œuvre łódź Đà", ["aero", "oeuvre", "lodz", "da"]),
        ("ΣΊΣΥΦΟΣ Σίσυφος", ["σισυφοσ"] * 2),
        ("ЁЖ ёж еж", ["еж"] * 3),
        ("dell'acqua dell’acqua dellʼacqua", ["dell", "acqua"] * 3),
        ("co\u00adop x² ½", ["coop", "x2", "12"]),
    ],
)
def test_spellings_that_are_one(text: str, spelled: list[str]) -> None:
    assert folded_words(text) == spelled
    passage = " ".join([text, *"abcdefgh"])
    assert check([passage], [" ".join([*spelled, *"ABCDEFGH"])]) > 0


def test_hard_texts_are_read_without_a_fault() -> None:
    check([text for text in HARD if len(text) < 2000][:20], [text for text in HARD if len(text) < 2000])
