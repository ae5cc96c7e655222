"""Merges against `tokenizers.BpeTrainer`, and against an implementation that counts all pairs again for each merge."""

from __future__ import annotations

import json
import math
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import zstandard
from hypothesis import example, given
from hypothesis import strategies as st
from texts import pack
from tokenizing import trained_model

from pretok.base.errors import UsageError
from pretok.kernels.pretokenize import PATTERNS, word_ends
from pretok.tokenizer.tokenizer_file import to_characters
from pretok.vocab import bpe
from pretok.vocab.bpe import Merges, extend_merges, train_merges
from pretok.vocab.symbols import BufferWriter, SymbolBuffer, buffer_of, byte_tokens

SPECIAL = ["<|endoftext|>", "<|pad|>"]
CORPUS_BYTES = 4_000_000


def reference(
    texts: Iterable[str], pattern: str | None = None, special_tokens: Sequence[str] = SPECIAL, **limits: Any
) -> tuple[dict[str, int], list[tuple[int, int]]]:
    """(vocabulary, merges as pairs of ids) by BpeTrainer."""
    model = trained_model(texts, pattern, special_tokens, **limits)
    vocab = model["vocab"]
    return vocab, [(vocab[left], vocab[right]) for left, right in model["merges"]]


def train(words: Counter[bytes], special_tokens: Sequence[str] = SPECIAL, **limits: Any) -> Merges:
    data = np.frombuffer(b"".join(words), np.uint8)
    offsets = np.cumsum([0, *map(len, words)], dtype=np.int64)
    counts = np.fromiter(words.values(), np.int64, len(words))
    return train_merges(buffer_of(data, offsets, counts), special_tokens=len(special_tokens), **limits)


def split_words(texts: Sequence[str], pattern: str) -> Counter[bytes]:
    data, offsets = pack(list(texts))
    ends = word_ends(data, offsets, pattern).tolist()
    whole = data.tobytes()
    return Counter(whole[start:end] for start, end in zip([0, *ends], ends, strict=False))


def pairs(merges: Merges) -> list[tuple[int, int]]:
    return [(left, right) for left, right in merges.pairs.tolist()]


def assert_equal(merges: Merges, expected: tuple[dict[str, int], list[tuple[int, int]]]) -> None:
    vocab, expected_pairs = expected
    assert pairs(merges) == expected_pairs
    special = len(vocab) - 256 - len(expected_pairs)
    tokens = {to_characters(token): i for i, token in enumerate(merges.tokens) if i >= special}
    assert tokens == {token: i for token, i in vocab.items() if i >= special}


@pytest.mark.parametrize("size", [1000, 8000])
@pytest.mark.parametrize("pattern", PATTERNS)
def test_sample(pattern: str, size: int, sample_texts: dict[str, list[str]]) -> None:
    texts = sample_texts["it"] + sample_texts["en"]
    merges = train(split_words(texts, pattern), vocab_size=size)
    assert len(merges.pairs) == size - 256 - len(SPECIAL)
    assert_equal(merges, reference(texts, pattern, vocab_size=size))


@pytest.mark.corpus
@pytest.mark.parametrize("pattern", PATTERNS)
def test_corpus(pattern: str, corpus: Path) -> None:
    """50,000 entries from the beginning of every file."""
    texts = []
    files = sorted(corpus.glob("*/*.jsonl.zst"))
    for path in files:
        size = 0
        with zstandard.open(path, "rt", encoding="utf-8") as lines:
            while size < CORPUS_BYTES / len(files):
                texts.append(json.loads(lines.readline())["text"])
                size += len(texts[-1])
    merges = train(split_words(texts, pattern), vocab_size=50_000)
    assert len(merges.pairs) == 50_000 - 256 - len(SPECIAL)
    assert_equal(merges, reference(texts, pattern, vocab_size=50_000))


small_words = st.sampled_from(["a", "ab", "abc", "aé"]).flatmap(
    lambda letters: st.lists(
        st.tuples(st.text(letters, min_size=1, max_size=30), st.integers(1, 3)), max_size=10
    )
)


@given(words=small_words, room=st.integers(0, 60), special_tokens=st.sampled_from([[], SPECIAL]))
@example([("a" * n, 1) for n in range(1, 20)], 60, [])
@example([("abababab", 1), ("babab", 1), ("aabb", 2)], 60, [])
@example([("a", 3), ("b", 3)], 60, [])
@example([("ab" * 5000, 1), ("a" * 10_000, 1)], 40, [])
def test_ties_and_runs(words: list[tuple[str, int]], room: int, special_tokens: list[str]) -> None:
    texts = [text for text, count in words for _ in range(count)]
    size = len(special_tokens) + 256 + room
    merges = train(Counter(text.encode() for text in texts), special_tokens, vocab_size=size)
    assert_equal(merges, reference(texts, None, special_tokens, vocab_size=size))


Sequences = list[tuple[list[int], int]]
"""Words of tokens, and how often each occurs."""


def merge_slowly(
    sequences: Sequences, tokens: list[bytes], max_new: int, closed: int
) -> tuple[list[tuple[int, int]], list[int], list[int], list[bytes]]:
    """`bpe._train`, as (pairs, products, counts, tokens), by counting all pairs before every merge."""
    words, tokens = [list(sequence) for sequence, _ in sequences], [*tokens]
    merges: dict[tuple[int, int], tuple[int, int]] = {}
    end, old = len(tokens) + max_new, {*tokens[:closed]}
    while len(tokens) < end:
        found: Counter[tuple[int, int]] = Counter()
        for word, (_, count) in zip(words, sequences, strict=True):
            for pair in pairwise(word):
                found[pair] += count
        best = [
            (-count, (left, right))
            for (left, right), count in found.items()
            if count > 0 and min(left, right) >= 0 and tokens[left] + tokens[right] not in old
        ]
        if not best:
            break
        less, (left, right) = min(best)
        joined = tokens[left] + tokens[right]
        if joined not in tokens:
            tokens.append(joined)
        product = tokens.index(joined)
        merges.setdefault((left, right), (product, -less))
        for word in words:
            i = 0 if (left, right) in pairwise(word) else len(word)
            while i < len(word) - 1:
                if (word[i], word[i + 1]) == (left, right):
                    word[i : i + 2] = [product]
                i += 1
    return list(merges), [p for p, _ in merges.values()], [c for _, c in merges.values()], tokens


def lay_out(sequences: Sequences) -> SymbolBuffer:
    """In two parts, of which the second begins behind the first token."""
    symbols = np.array([symbol for word, _ in sequences for symbol in word], np.int32)
    offsets = np.cumsum([0, *(len(word) for word, _ in sequences)], dtype=np.int64)
    counts, middle, writer = (
        np.array([n for _, n in sequences], np.int64),
        len(sequences) // 2,
        BufferWriter(),
    )
    writer.add(symbols, offsets[: middle + 1], counts[:middle])
    writer.add(symbols, offsets[middle:], counts[middle:])
    return writer.buffer()


@contextmanager
def guessing(ease: float) -> Iterator[None]:
    """As if the last merge were thought to count so many times more."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bpe, "EASE", ease)
        yield


@given(
    sequences=st.lists(
        st.tuples(
            st.lists(st.integers(0, 4), max_size=25), st.sampled_from([0, 1, 2, 2**31, 2**32 + 1, 2**50])
        ),
        max_size=8,
    ),
    tokens=st.permutations([b"a", b"b", b"ab", b"aab", b"ba"]),
    max_new=st.integers(0, 40),
    extends=st.booleans(),
    apart=st.lists(st.booleans(), min_size=5, max_size=5),
    ease=st.sampled_from([math.inf, 0.001, 1.0, 3.0]),
)
@example(
    [([4, 0], 9), ([1, 2, 0], 5), ([1, 2], 1)], [b"c", b"a", b"b", b"x", b"ab"], 5, False, [False] * 5, 1.0
)
@example([([0, 1, 3], 5)], [b"a", b"b", b"ab", b"aab", b"ba"], 3, True, [False] * 5, 1.0)
@example([([4, 2, 1, 0, 0, 4, 2, 1], 1)], [b"ab", b"b", b"ba", b"aab", b"a"], 3, False, [False] * 5, math.inf)
def test_sequences_of_tokens(
    sequences: Sequences, tokens: list[bytes], max_new: int, extends: bool, apart: list[bool], ease: float
) -> None:
    """Tokens that spell each other, so that pairs give tokens there are and come back; counts past 32 bits; pairs
    left out too soon, which is found out, and rightly; an extension, which leaves old tokens and some pairs alone."""
    with guessing(ease):
        if extends:
            merges = extend_merges(lay_out(sequences), tokens, np.array(apart), max_new)
        else:
            merges = bpe._train(lay_out(sequences), tokens, max_new)
    if extends:
        sequences = [([-1 if apart[token] else token for token in word], count) for word, count in sequences]
    expected = merge_slowly(sequences, tokens, max_new, len(tokens) if extends else 0)
    found = (pairs(merges), merges.products.tolist(), merges.counts.tolist(), merges.tokens)
    assert found == expected


def test_a_pair_that_was_left_out_counts_anew() -> None:
    """(xy, ab) is too rare to be kept when xy is made; then a+b gives the `ab` there is, 20 times behind an xy."""
    a, b, x, y, ab, q, r = range(7)
    sequences = [([q, r], 200), ([x, y], 89), ([x, y, ab], 1), ([a, b], 50), ([x, y, a, b], 20)]
    tokens = [b"a", b"b", b"x", b"y", b"ab", b"q", b"r"]
    with guessing(10.0):
        merges = bpe._train(lay_out(sequences), tokens, 3)
    assert merges.tokens[7:] == [b"qr", b"xy", b"xyab"]
    assert merges.counts.tolist() == [200, 110, 70, 21]


LONG = 5_000_000


@pytest.mark.parametrize(
    ("word", "merges"),
    [
        (np.full(LONG, 97, np.uint8), 29),
        (np.resize(np.array([97, 98], np.uint8), LONG), 29),
        (np.random.default_rng(0).integers(0, 256, LONG).astype(np.uint8), 1744),
        (np.random.default_rng(0).integers(97, 99, LONG).astype(np.uint8), 1744),
    ],
    ids=["a", "ab", "bytes", "letters"],
)
def test_one_word_of_5_million_bytes(word: npt.NDArray[np.uint8], merges: int) -> None:
    """In 1 to 4 s; time that grows with the word's length for each merge, or with its square, would take far longer.

    1,744 fill the vocabulary; where all tokens are equal each round halves them, and the odd ones are joined last.
    """
    started = time.process_time()
    made = train_merges(
        buffer_of(word, np.array([0, LONG]), np.array([1])), vocab_size=2000, special_tokens=0
    )
    assert time.process_time() - started < 30
    assert len(made.pairs) == merges


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(UsageError, match="scale the weights down"):
        train(Counter({b"ab": 2**60, b"cde": 2**60}), vocab_size=300)
    with pytest.raises(UsageError, match="negative"):
        train(Counter({b"ab": -1}), vocab_size=300)
    writer = BufferWriter(most=9)
    for _ in range(3):  # words beyond the limit are counted for the message
        writer.add(byte_tokens(np.frombuffer(b"abab", np.uint8)), np.array([0, 1, 4]), np.array([1, 2]))
    with pytest.raises(
        UsageError, match=r"6 distinct words of 12 bytes are too many .* may be 9\. .*min_count"
    ):
        writer.buffer()
