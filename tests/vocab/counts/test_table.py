"""Counts of words against collections.Counter and the regular expression, for every way a word is stored."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from texts import HARD, pack, texts

from pretok.kernels.pretokenize import PATTERNS, word_ends
from pretok.vocab.counts import table as wordtable
from pretok.vocab.counts.buckets import Words
from pretok.vocab.counts.table import WordTable


def counted(words: Words) -> dict[bytes, tuple[int, int]]:
    pairs = zip(words.counts.tolist(), words.others.tolist(), strict=True)
    return dict(zip(words.words().to_pylist(), pairs, strict=True))


def expected(documents: list[str], heldout: list[bool], pattern: str) -> dict[bytes, tuple[int, int]]:
    counts: dict[bool, Counter[bytes]] = {False: Counter(), True: Counter()}
    for document, apart in zip(documents, heldout, strict=True):
        data, offsets = pack([document])
        ends = word_ends(data, offsets, pattern).tolist()
        counts[apart].update(data[a:b].tobytes() for a, b in zip([0, *ends], ends, strict=False))
    return {word: (counts[False][word], counts[True][word]) for word in counts[False] | counts[True]}


@pytest.mark.parametrize("pattern", PATTERNS)
@given(documents=st.lists(st.tuples(texts, st.booleans()), max_size=6))
def test_counts_are_those_of_a_counter(pattern: str, documents: list[tuple[str, bool]]) -> None:
    heldout = [apart for _, apart in documents]
    table = WordTable()
    data, offsets = pack([text for text, _ in documents])
    table.add_documents(data, offsets, np.array(heldout, np.bool_), pattern)
    words = table.words()
    assert counted(words) == expected([text for text, _ in documents], heldout, pattern)
    assert words.sorted().words().to_pylist() == sorted(counted(words))
    table.clear()
    assert len(table) == len(table.words()) == 0
    table.add_documents(data, offsets, np.array(heldout, np.bool_), pattern)
    assert counted(table.words()) == counted(words)


def test_table_and_pool_grow() -> None:
    """Hundred thousand words of 1 to 2,000 bytes, among them all lengths around the limit of the short ones."""
    documents = [f"{'x' * (k % 40)}w{chr(0x4E00 + k)} " for k in range(20_000)] + [
        "y" * k for k in range(2000)
    ]
    documents += [chr(97 + k % 26) * (k % 23 + 1) + " " + "é" * (k % 12) for k in range(5000)]
    heldout = [k % 3 == 0 for k in range(len(documents))]
    table, (data, offsets) = WordTable(), pack(documents)
    for first in range(0, len(documents), 7000):
        apart = np.array(heldout[first : first + 7000])
        table.add_documents(data, offsets[first : first + 7001], apart, "cl100k")
    assert len(table) > 20_000
    assert counted(table.words()) == expected(documents, heldout, "cl100k")


def test_a_collision_of_hashes_merges_no_words(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two words whose slots coincide stay two: `_find` in Python, with every word hashed to the same value."""
    monkeypatch.setattr(wordtable, "_home", lambda low, high: 7)
    monkeypatch.setattr(wordtable, "hash_bytes", lambda data, start, end, seed: np.uint64(42))
    data = np.frombuffer(b"a" * 20 + b"a" * 19 + b"b" + b"c" + b"d", np.uint8)
    slots, pool = np.zeros(4 << 12, np.uint64), np.zeros(1 << 16, np.uint8)
    state = np.array([0, -1, 0, 0, 0], np.int64)
    monkeypatch.setattr(
        wordtable, "load64", lambda array, at: int.from_bytes(bytes(array[at : at + 8]), "little")
    )
    monkeypatch.setattr(wordtable, "_same", wordtable._same.py_func)
    monkeypatch.setattr(wordtable, "_keep", wordtable._keep.py_func)
    monkeypatch.setattr(wordtable, "short_key", lambda data, start, size, limit: (data[start], np.uint64(1)))
    find = [
        wordtable._find.py_func(
            *wordtable._key.py_func(data, start, size, len(data)),
            data,
            start,
            size,
            (slots, len(slots) - 1, pool, state),
        )
        for start, size in ((0, 20), (20, 20), (40, 1), (41, 1), (20, 20), (0, 20), (41, 1))
    ]
    assert len(set(find)) == 4
    assert find[4:] == [find[1], find[0], find[3]]


def test_adding_counts_adds_documents() -> None:
    whole, parts = WordTable(), WordTable()
    for k, text in enumerate(HARD * 3):
        one = WordTable()
        for table in (whole, one):
            table.add_documents(*pack([text]), np.array([k % 2 == 0]), "o200k")
        parts.add_words(one.words())
    assert counted(parts.words()) == counted(whole.words())
