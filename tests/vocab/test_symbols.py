"""Words laid out: their symbols, and how often each position occurs."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pretok.base.errors import UsageError
from pretok.vocab.bpe import train_merges
from pretok.vocab.symbols import BOUNDARY, BufferWriter, SymbolBuffer, Text, buffer_of, count_at

words_and_counts = st.lists(
    st.tuples(st.lists(st.integers(0, 9), max_size=150), st.sampled_from([0, 1, 2, 2**40])), max_size=40
)


def counts_of(buffer: SymbolBuffer) -> list[int]:
    """What is said of every position but the first, which is of no word."""
    text = Text(len(buffer.symbols), buffer.symbols, buffer.starts, buffer.hints, buffer.counts, None, 0)
    return [int(count_at.py_func(text, p)) for p in range(1, text.size)]


@given(words=words_and_counts, ordered=st.booleans(), skipped=st.integers(0, 3))
def test_every_position_counts_as_its_word_does(
    words: list[tuple[list[int], int]], ordered: bool, skipped: int
) -> None:
    """In two parts, in any order, and where words begin behind the first token; the boundary after one counts alike."""
    if ordered:
        words.sort(key=lambda item: item[1])
    tokens = np.array([7] * skipped + [token for word, _ in words for token in word], np.int32)
    offsets = np.cumsum([skipped, *(len(word) for word, _ in words)], dtype=np.int64)
    counts, middle, writer = (
        np.array([count for _, count in words], np.int64),
        len(words) // 2,
        BufferWriter(),
    )
    writer.add_tokens(tokens, offsets[: middle + 1], counts[:middle])
    writer.add_tokens(tokens, offsets[middle:], counts[middle:])
    buffer = writer.buffer()
    assert buffer.symbols.tolist() == [BOUNDARY, *(s for word, _ in words for s in [*word, BOUNDARY])]
    assert counts_of(buffer) == [count for word, count in words for _ in range(len(word) + 1)]
    assert len(buffer.counts) <= (len({count for _, count in words}) + 1 if ordered else len(words))


def test_words_that_occur_equally_often_take_no_memory_for_counts() -> None:
    """As long as a node's words: the counts of 100,000 in two runs."""
    data, offsets = np.zeros(1_000_000, np.uint8), np.arange(0, 1_000_001, 10)
    buffer = buffer_of(data, offsets, np.repeat([1, 2], 50_000))
    assert buffer.starts.tolist() == [1, 550_001, 1_100_001]
    assert buffer.starts.nbytes + buffer.counts.nbytes + buffer.hints.nbytes < buffer.symbols.nbytes / 25


def test_a_buffer_is_used_up() -> None:
    buffer = buffer_of(np.frombuffer(b"abab", np.uint8), np.array([0, 4]), np.array([1]))
    assert len(train_merges(buffer, vocab_size=300, special_tokens=0).pairs) == 2
    with pytest.raises(ValueError, match="merged already"):
        train_merges(buffer, vocab_size=300, special_tokens=0)


def test_words_that_are_too_many_are_counted_and_refused() -> None:
    writer = BufferWriter(most=9)
    for _ in range(3):
        writer.add(np.frombuffer(b"abab", np.uint8), np.array([0, 1, 4]), np.array([1, 2]))
    assert (writer.words, writer.bytes, writer.size) == (6, 12, 19)
    with pytest.raises(UsageError, match="6 words of 12 bytes are too many to merge"):
        writer.buffer()
