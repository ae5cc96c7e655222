"""Vocabularies x counts of words -> what each vocabulary costs, from the counts alone.

Enters: a MeasureTask, one bucket of counts and some tokenizers of the pattern the words were cut by; or held-out
texts and any tokenizer. Leaves: tokens per source, in training and in held-out documents, and how often each token of
the first tokenizer occurs in each source. Exact: a text has the tokens of its words.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pretok.counts.buckets import read_group
from pretok.read.batches import from_buffers
from pretok.tokenizer.encoder import Encoder
from pretok.tokenizer.vocabulary import Vocabulary, load_vocab

LONGEST = 100
"""Tokens listed as the longest."""
MOSTLY = 0.9
"""A token belongs to a source that has this share of its occurrences, were all sources of one size."""


@dataclass(frozen=True, slots=True)
class MeasureTask:
    """bucket: file of counts; sources: number of its row groups; tokenizers: folders or files, the main one first."""

    bucket: Path
    sources: int
    tokenizers: tuple[Path, ...]
    eod: str


@dataclass(slots=True)
class Measure:
    """Sums over words; they add up over buckets. The first axis is the source, the last training and held-out.

    tokens: (sources, tokenizers, 2); words, bytes: (sources, 2), all occurrences; distinct: (sources,) words of
    training documents; uses: (sources, ids), occurrences of each token of the main tokenizer in training documents.
    """

    tokens: npt.NDArray[np.int64]
    words: npt.NDArray[np.int64]
    bytes: npt.NDArray[np.int64]
    distinct: npt.NDArray[np.int64]
    uses: npt.NDArray[np.int64]

    def add(self, other: Measure) -> None:
        """Add what another bucket gave."""
        for name in self.__slots__:
            getattr(self, name).__iadd__(getattr(other, name))


@lru_cache(maxsize=8)
def open_tokenizer(path: Path, eod: str | int = 0) -> tuple[Encoder, Vocabulary]:
    """A tokenizer to measure; UsageError for one that cannot encode. Without EOD in what counts, any id will do."""
    vocab = load_vocab(path, eod)
    return Encoder(vocab.raw.decode(), vocab.eod_id, vocab.size, str(vocab.path)), vocab


def empty_measure(sources: int, tokenizers: int, ids: int) -> Measure:
    """A Measure of nothing."""
    return Measure(
        np.zeros((sources, tokenizers, 2), np.int64),
        np.zeros((sources, 2), np.int64),
        np.zeros((sources, 2), np.int64),
        np.zeros(sources, np.int64),
        np.zeros((sources, ids), np.int64),
    )


def measure_bucket(task: MeasureTask, report: Callable[[dict[str, int]], None]) -> Measure:
    """Encode each distinct word of a bucket once by each tokenizer; a word alone has the tokens it has in a text."""
    encoders = [open_tokenizer(path, task.eod) for path in task.tokenizers]
    total = empty_measure(task.sources, len(encoders), encoders[0][1].size)
    for source in range(task.sources):
        words = read_group(task.bucket, source)
        counts = np.stack([words.counts, words.heldout])
        total.words[source] = counts.sum(1)
        total.bytes[source] = counts @ words.lengths
        total.distinct[source] = np.count_nonzero(words.counts)
        texts = from_buffers(words.data, words.offsets)
        for k, (encoder, vocab) in enumerate(encoders):
            ids, lengths = encoder.encode(texts)
            total.tokens[source, k] = counts @ (lengths.astype(np.int64) - 1)
            if k == 0:
                np.add.at(total.uses[source], ids, np.repeat(words.counts, lengths))
                total.uses[source, vocab.eod_id] = 0  # the encoder ends every word with it
        report({"words": len(words)})
    return total


def measure_texts(path: Path, texts: pa.LargeStringArray) -> int:
    """Tokens of texts by any tokenizer, without EOD. Raises Unencodable."""
    encoder, _ = open_tokenizer(path)
    _, lengths = encoder.encode(texts)
    return int(lengths.sum()) - len(texts)


def describe_tokens(vocab: Vocabulary, uses: npt.NDArray[np.int64], sources: list[str]) -> dict[str, Any]:
    """Whose the tokens are, which are never used, the longest, and the bytes no training text has.

    uses: (sources, ids). Shares are taken of occurrences per token of each source, so that its size does not count.
    """
    learned = np.ones(vocab.size, np.bool_)
    learned[list(vocab.added_tokens.values())] = False
    rates = uses / np.maximum(uses.sum(1, keepdims=True), 1)
    used = rates.sum(0) > 0
    shares = rates / np.maximum(rates.sum(0), np.finfo(np.float64).tiny)
    mostly = {name: int((shares[k] >= MOSTLY).sum()) for k, name in enumerate(sources)}
    names = {i: vocab.token_bytes(i) for i in np.flatnonzero(learned).tolist()}
    longest = sorted(names, key=lambda i: (-len(names[i]), i))[:LONGEST]
    return {
        "mostly_in": mostly,
        "shared": int(used.sum()) - sum(mostly.values()),
        "unused": int((learned & ~used).sum()),
        "longest": [
            {
                "id": i,
                "token": names[i].decode(errors="replace"),
                "occurrences": {name: int(uses[k, i]) for k, name in enumerate(sources)},
            }
            for i in longest
        ],
        "unused_bytes": sorted(f"{names[i].hex()}" for i in names if len(names[i]) == 1 and not used[i]),
    }
