"""Vocabularies x text -> how often each entry is used.

Input: one bucket of counts and tokenizers whose pattern split its words; or held-out texts and any tokenizer. Output: a
Measure: how often each entry occurs in each source. It is exact, because a text has the tokens of its words.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pretok.base.console import Console
from pretok.base.execute import Report
from pretok.base.texts import buffers, from_buffers
from pretok.tokenizer.encoder import Encoder
from pretok.tokenizer.reference import Unencodable
from pretok.tokenizer.vocabulary import Vocabulary, load_vocab
from pretok.vocab.counts.buckets import read_group
from pretok.vocab.counts.counts_file import CorpusCounts


@dataclass(frozen=True, slots=True)
class MeasureTask:
    """One bucket and the tokenizers that encode its words."""

    bucket: Path
    """A file of counts."""
    sources: int
    """Number of its row groups."""
    tokenizers: tuple[Path, ...]
    """Folders or files, the main one first."""


@dataclass(slots=True)
class Measure:
    """Sums over the words of training documents; those of all buckets are added."""

    words: npt.NDArray[Any]
    """(sources,), all occurrences."""
    bytes: npt.NDArray[Any]
    """(sources,), of all occurrences."""
    distinct: npt.NDArray[np.int64]
    """(sources,), distinct words."""
    uses: tuple[npt.NDArray[Any], ...]
    """For each tokenizer (sources, ids), how often each of its entries occurs."""

    def add(self, other: Measure) -> None:
        """Add the sums of another bucket."""
        sums = [(part.words, part.bytes, part.distinct, *part.uses) for part in (self, other)]
        for ours, theirs in zip(*sums, strict=True):
            ours += theirs


@lru_cache(maxsize=16)  # enough for all tokenizers of a report, as each bucket asks for every one of them
def open_tokenizer(path: Path) -> tuple[Encoder, Vocabulary]:
    """Open a tokenizer to measure. Raises UsageError for one that cannot encode."""
    # Texts are measured without EOD, so any id will do for it.
    vocab = load_vocab(path, eod=0)
    return Encoder(vocab), vocab


def empty_measure(sources: int, sizes: Sequence[int]) -> Measure:
    """Return a Measure of zeros. sizes: number of entries of each tokenizer."""
    words, size, distinct = np.zeros((3, sources), np.int64)
    return Measure(words, size, distinct, tuple(np.zeros((sources, size), np.int64) for size in sizes))


def measure_bucket(task: MeasureTask, report: Report) -> Measure:
    """Encode each distinct word of a bucket once by each tokenizer. A word alone has the tokens it has in a text."""
    encoders = [open_tokenizer(path) for path in task.tokenizers]
    total = empty_measure(task.sources, [vocab.size for _, vocab in encoders])
    for source in range(task.sources):
        words = read_group(task.bucket, source)
        total.words[source] = words.counts.sum()
        total.bytes[source] = words.counts @ words.lengths
        total.distinct[source] = np.count_nonzero(words.counts)
        texts = from_buffers(words.data, words.offsets)
        for uses, (encoder, _) in zip(total.uses, encoders, strict=True):
            ids, offsets = encoder.ids(texts)
            # `add.at` and not `+=`, which counts an id once however often it is in `ids`.
            np.add.at(uses[source], ids, np.repeat(words.counts, np.diff(offsets)))
        report({"words": len(words)})
    return total


def measure_texts(path: Path, texts: pa.LargeStringArray) -> npt.NDArray[np.int64]:
    """Return how often any tokenizer uses each of its ids in texts, int64[ids]. Raises Unencodable."""
    encoder, vocab = open_tokenizer(path)
    return np.bincount(encoder.ids(texts)[0], minlength=vocab.size)


def measure_heldout(path: Path, counts: CorpusCounts, console: Console) -> Measure:
    """Measure the held-out texts of each source by one tokenizer. Words are those between spaces.

    Uses are NaN in a source with a text that the tokenizer cannot encode.
    """
    sources = len(counts.sources)
    total = empty_measure(sources, [])
    uses = np.zeros((sources, open_tokenizer(path)[1].size))
    for source, name in enumerate(counts.sources):
        texts = counts.heldout_texts(name)
        total.words[source] = pc.sum(pc.count_substring_regex(texts, r"\S+")).as_py() or 0
        total.bytes[source] = len(buffers(texts)[0])
        try:
            uses[source] = measure_texts(path, texts)
        except Unencodable as error:
            console.notice(f"{path} is not compared on {name}: {error}")
            # Not 0, which would be a figure: reports leave out what is not a number.
            uses[source] = np.nan
    total.uses = (uses,)
    return total


def names_of(vocab: Vocabulary) -> list[bytes]:
    """Return the bytes of each entry, b"" of added tokens."""
    added = set(vocab.added_tokens.values())
    return [b"" if i in added else vocab.token_bytes(i) for i in range(vocab.size)]
