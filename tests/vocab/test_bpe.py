"""Merges against `tokenizers.BpeTrainer`, and against an implementation that counts all pairs again for each merge."""

from __future__ import annotations

import json
import math
import time
from collections import Counter
from collections.abc import Iterable, Sequence
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
from pretok.vocab import bpe, symbols
from pretok.vocab.bpe import Merges, merge_sequences, train_merges
from pretok.vocab.symbols import ALPHABET, buffer_of

SPECIAL = ["<|endoftext|>", "<|pad|>"]
CORPUS_BYTES = 4_000_000

pytestmark = pytest.mark.usefixtures("both_ways")


def byte_pairs(merges: Merges) -> list[tuple[bytes, bytes]]:
    """The merges as bytes of the left and the right token."""
    return [(merges.tokens[left], merges.tokens[right]) for left, right in merges.pairs.tolist()]


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


@given(
    words=small_words,
    room=st.integers(0, 60),
    special_tokens=st.sampled_from([[], SPECIAL]),
    min_frequency=st.integers(0, 5),
    max_token_length=st.none() | st.integers(0, 9),
)
@example([("a" * n, 1) for n in range(1, 20)], 60, [], 0, None)
@example([("abababab", 1), ("babab", 1), ("aabb", 2)], 60, [], 0, 4)
@example([("a", 3), ("b", 3)], 60, [], 0, None)
@example([("ab" * 5000, 1), ("a" * 10_000, 1)], 40, [], 0, None)
def test_ties_runs_and_limits(
    words: list[tuple[str, int]],
    room: int,
    special_tokens: list[str],
    min_frequency: int,
    max_token_length: int | None,
) -> None:
    texts = [text for text, count in words for _ in range(count)]
    limits: dict[str, Any] = {"min_frequency": min_frequency, "vocab_size": len(special_tokens) + 256 + room}
    if max_token_length is not None:
        limits["max_token_length"] = max_token_length
    merges = train(Counter(text.encode() for text in texts), special_tokens, **limits)
    assert_equal(merges, reference(texts, None, special_tokens, **limits))


def merge_slowly(
    sequences: list[tuple[list[int], int]], tokens: list[bytes], max_new: int, weights: list[int], limit: int
) -> tuple[list[tuple[int, int]], list[int], list[int], list[bytes]]:
    """`merge_sequences`, as (pairs, products, counts, tokens), by counting all pairs before every merge."""
    words, tokens, weights = [list(sequence) for sequence, _ in sequences], [*tokens], [*weights]
    merges: dict[tuple[int, int], tuple[int, int]] = {}
    end = len(tokens) + max_new
    while len(tokens) < end:
        found: Counter[tuple[int, int]] = Counter()
        for word, (_, count) in zip(words, sequences, strict=True):
            for left, right in pairwise(word):
                if weights[left] + weights[right] <= limit:
                    found[left, right] += count
        if not found or max(found.values()) < 1:
            break
        (left, right), count = min(found.items(), key=lambda item: (-item[1], item[0]))
        joined = tokens[left] + tokens[right]
        if joined not in tokens:
            tokens.append(joined)
            weights.append(weights[left] + weights[right])
        product = tokens.index(joined)
        merges.setdefault((left, right), (product, count))
        for word in words:
            i = 0
            while i < len(word) - 1:
                if (word[i], word[i + 1]) == (left, right):
                    word[i : i + 2] = [product]
                i += 1
    return list(merges), [p for p, _ in merges.values()], [c for _, c in merges.values()], tokens


def lay_out(sequences: list[tuple[list[int], int]]) -> tuple[Any, Any, Any]:
    words = [word for word, _ in sequences]
    symbols = np.array([symbol for word in words for symbol in word], np.int32)
    offsets = np.cumsum([0, *map(len, words)], dtype=np.int64)
    return symbols, offsets, np.array([count for _, count in sequences], np.int64)


@given(
    sequences=st.lists(
        st.tuples(
            st.lists(st.integers(0, 4), max_size=25), st.sampled_from([0, 1, 2, 2**31, 2**32 + 1, 2**50])
        ),
        max_size=8,
    ),
    tokens=st.permutations([b"a", b"b", b"ab", b"aab", b"ba"]),
    max_new=st.integers(0, 40),
    weights=st.lists(st.integers(0, 3), min_size=5, max_size=5),
    limit=st.sampled_from([4, 9, 2**40]),
    ease=st.sampled_from([math.inf, 0.001, 1.0, 3.0]),
)
@example([([4, 2, 1, 0, 0, 4, 2, 1], 1)], [b"ab", b"b", b"ba", b"aab", b"a"], 3, [0] * 5, 4, math.inf)
def test_sequences_of_tokens(
    sequences: list[tuple[list[int], int]],
    tokens: list[bytes],
    max_new: int,
    weights: list[int],
    limit: int,
    ease: float,
) -> None:
    """Tokens that spell each other, so that pairs give tokens there are and come back; counts past 32 bits; pairs
    left out too soon, which is found out, and rightly."""
    merges = merge_sequences(
        *lay_out(sequences), tokens, max_new, weights=np.array(weights, np.int64), limit=limit, ease=ease
    )
    expected = merge_slowly(sequences, tokens, max_new, weights, limit)
    found = (pairs(merges), merges.products.tolist(), merges.counts.tolist(), merges.tokens)
    assert found == expected


def test_equal_bytes_are_one_token() -> None:
    """a+b gives the `ab` there is; with c it occurs again after it was merged, and is not listed twice."""
    a, b, c, ab = range(4)
    sequences = [([ab, c], 9), ([a, b, c], 5), ([a, b], 1)]
    merges = merge_sequences(*lay_out(sequences), [b"a", b"b", b"c", b"ab"], 5)
    assert merges.tokens == [b"a", b"b", b"c", b"ab", b"abc"]
    assert pairs(merges) == [(ab, c), (a, b)]
    assert merges.products.tolist() == [4, ab]
    assert merges.counts.tolist() == [9, 6]


def test_a_pair_that_was_left_out_counts_anew() -> None:
    """(xy, ab) is too rare to be kept when xy is made; then a+b gives the `ab` there is, 20 times behind an xy."""
    a, b, x, y, ab, q, r = range(7)
    sequences = [([q, r], 200), ([x, y], 89), ([x, y, ab], 1), ([a, b], 50), ([x, y, a, b], 20)]
    tokens = [b"a", b"b", b"x", b"y", b"ab", b"q", b"r"]
    merges = merge_sequences(*lay_out(sequences), tokens, 3, ease=10.0)
    assert merges.tokens[7:] == [b"qr", b"xy", b"xyab"]
    assert merges.counts.tolist() == [200, 110, 70, 21]


@pytest.mark.parametrize("ease", [1.0, 0.01])
def test_a_bad_guess_costs_time_and_no_merge(
    ease: float, monkeypatch: pytest.MonkeyPatch, sample_texts: dict[str, list[str]]
) -> None:
    words = split_words(sample_texts["it"], "cl100k")
    expected = train(words, vocab_size=1000)
    monkeypatch.setattr(bpe, "EASE", ease)
    merges = train(words, vocab_size=1000)
    assert pairs(merges) == pairs(expected)
    assert merges.counts.tolist() == expected.counts.tolist()


def test_counts_past_32_bits() -> None:
    """2**32 + 1 is 1 and 2**31 negative in 32 bits."""
    words = Counter({b"ab": 2**32 + 1, b"cd": 2**31, b"ef": 2**31 - 1, b"gh": 2**33, b"g": 2**60})
    merges = train(words, [], vocab_size=260)
    assert byte_pairs(merges) == [(b"g", b"h"), (b"a", b"b"), (b"c", b"d"), (b"e", b"f")]
    assert merges.counts.tolist() == [2**33, 2**32 + 1, 2**31, 2**31 - 1]


def test_scaled_counts_give_the_same_merges(sample_texts: dict[str, list[str]]) -> None:
    words = split_words(sample_texts["it"], "cl100k")
    scaled = Counter({word: count << 34 for word, count in words.items()})
    few, many = train(words, vocab_size=3000), train(scaled, vocab_size=3000)
    assert pairs(few) == pairs(many)
    assert np.array_equal(few.counts << 34, many.counts)


def test_any_bytes() -> None:
    words = Counter({bytes(ALPHABET): 2, b"\xff\xfe\x00": 3, b"\x80\x80\x80": 5})
    merges = train(words, ["<s>"], vocab_size=600)
    assert merges.tokens[:257] == [b"", *(bytes([byte]) for byte in ALPHABET)]
    assert byte_pairs(merges)[0] == (b"\x80", b"\x80")
    assert max(merges.tokens, key=len) == bytes(ALPHABET)
    for (left, right), product in zip(byte_pairs(merges), merges.products, strict=True):
        assert merges.tokens[product] == left + right


@pytest.mark.parametrize("words", [{}, {b"a": 5, b"b": 1}, {b"": 3}, {b"ab": 0}])
def test_nothing_to_merge(words: dict[bytes, int]) -> None:
    merges = train(Counter(words), vocab_size=1000)
    assert merges.pairs.shape == (0, 2)
    assert len(merges.products) == len(merges.counts) == 0
    assert len(merges.tokens) == len(SPECIAL) + 256


def test_fewer_merges_than_asked_for() -> None:
    merges = train(Counter({b"abc": 2, b"de": 1}), [], vocab_size=10**9)
    assert byte_pairs(merges) == [(b"a", b"b"), (b"ab", b"c"), (b"d", b"e")]
    assert merges.counts.tolist() == [2, 2, 1]


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


def test_what_does_not_fit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match=r"255 entries cannot hold 0 special tokens.*at least 256"):
        train(Counter({b"ab": 1}), [], vocab_size=255)
    with pytest.raises(UsageError, match="scale the weights down"):
        train(Counter({b"ab": 2**60, b"cde": 2**60}), vocab_size=300)
    with pytest.raises(UsageError, match="negative"):
        train(Counter({b"ab": -1}), vocab_size=300)
    with pytest.raises(ValueError, match="ids from 0 to 1"):
        merge_sequences(*lay_out([([0, 2], 1)]), [b"a", b"b"], 1)
    with pytest.raises(ValueError, match="one offset more"):
        merge_sequences(np.zeros(2, np.int32), np.array([0, 2]), np.array([1, 1]), [b"a"], 1)
    monkeypatch.setattr(symbols, "MAX_SYMBOLS", 9)
    with pytest.raises(UsageError, match=r"2 words of 7 bytes.*greater min_count"):
        train(Counter({b"abc": 1, b"defg": 1}), vocab_size=300)
