"""Shared runs of words against sets of tuples of words, and folded words against unicodedata."""

from __future__ import annotations

import random
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st
from texts import HARD, pack

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


def grams_of(text: str) -> list[tuple[str, ...]]:
    """In their order; by the definition."""
    found = folded_words(text)
    length = len(found) if SHORTEST <= len(found) < GRAM else GRAM
    return [tuple(found[i : i + length]) for i in range(len(found) - length + 1)]


def check(passages: list[str], documents: list[str]) -> int:
    """Compare with the definition; how many grams were found."""
    grams, gram_of, passage_of = list_grams(*pack(passages))
    places = [(gram, number) for number, passage in enumerate(passages) for gram in grams_of(passage)]
    assert [number for _, number in places] == passage_of.tolist()
    spelled = dict(zip(gram_of.tolist(), (gram for gram, _ in places), strict=True))
    assert [spelled[number] for number in gram_of.tolist()] == [gram for gram, _ in places]
    assert len(set(spelled.values())) == len(spelled) == len(grams.keys)
    at, hits = find_grams(grams, *pack(documents))
    assert (at[0], at[-1]) == (0, len(hits))
    for number, document in enumerate(documents):
        found, words = hits[at[number] : at[number + 1]].tolist(), folded_words(document)
        held = {tuple(words[i : i + n]) for n in range(SHORTEST, GRAM + 1) for i in range(len(words) - n + 1)}
        assert len(found) == len(set(found))
        assert set(found) == {gram for gram, text in spelled.items() if text in held}
    return len(hits)


def test_shorter_passages_are_not_looked_for() -> None:
    text = " ".join("abcdefg")
    assert len(text.split()) == SHORTEST - 1
    assert check([text, "", "…"], [text, ""]) == 0


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


def test_every_code_point_folds_as_unicodedata_says() -> None:
    entries, several = fold_tables()
    for code in [*range(0xD800), *range(0xE000, 0x110000)]:
        if unicodedata.category(chr(code)) == "Cn":  # of a later Unicode than this Python's
            continue
        entry, place = int(entries[code]), int(entries[code]) - SEVERAL
        folded = several[place + 1 : place + 1 + several[place]] if place >= 0 else [entry]
        spelled = "".join(map(chr, folded)) if entry > PASSED_OVER else ""
        assert spelled == "".join(folded_words(chr(code))), hex(code)


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
