"""Vocabularies x counts of words -> what each vocabulary costs, from the counts alone.

Input: a MeasureTask, one bucket of counts and some tokenizers of the pattern the words were cut by; or held-out
texts and any tokenizer. Output: tokens per source, in training and in held-out documents, how often each token occurs
in each source, and the words of some kinds. Exact: a text has the tokens of its words.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pretok.base.execute import Report
from pretok.counts.buckets import read_group
from pretok.read.batches import from_buffers
from pretok.tokenizer.encoder import Encoder
from pretok.tokenizer.vocabulary import Vocabulary, load_vocab

CONTRACTIONS = r"^['\x{2019}](?i:s|t|re|ve|m|ll|d)$"
"""Words that patterns made for English cut off, such as it|'s."""
KINDS = {
    "cut_before_apostrophe": r"^['\x{2019}]\p{L}",
    "cut_after_apostrophe": r"\p{L}['\x{2019}]$",
    "with_apostrophe_inside": r"\p{L}['\x{2019}]\p{L}",
    "contractions": CONTRACTIONS,
    "numbers": r"^ ?\p{N}+$",
}
"""Kinds of words by their form, as RE2. Of l'acqua a pattern makes l|'acqua, which leaves the article without its
apostrophe, or l'|acqua, or one word. cut_before_apostrophe does not count contractions."""
_KINDS = list(KINDS)


@dataclass(frozen=True, slots=True)
class MeasureTask:
    """bucket: file of counts; sources: number of its row groups; tokenizers: folders or files, the main one first."""

    bucket: Path
    sources: int
    tokenizers: tuple[Path, ...]


@dataclass(slots=True)
class Measure:
    """Sums over words; they add up over buckets. The first axis is the source, the last training and held-out.

    tokens: (sources, tokenizers, 2); words, bytes: (sources, 2), all occurrences; distinct: (sources,) words of
    training documents; uses: per tokenizer (sources, ids), occurrences of each of its tokens in training documents;
    kinds: (sources, KINDS, 3), words, tokens of the main tokenizer and bytes of that kind in training documents.
    """

    tokens: npt.NDArray[np.int64]
    words: npt.NDArray[np.int64]
    bytes: npt.NDArray[np.int64]
    distinct: npt.NDArray[np.int64]
    uses: tuple[npt.NDArray[np.int64], ...]
    kinds: npt.NDArray[np.int64]

    def add(self, other: Measure) -> None:
        """Add what another bucket gave."""
        for mine, others in zip(self._arrays(), other._arrays(), strict=True):
            mine += others

    def _arrays(self) -> list[npt.NDArray[np.int64]]:
        return [self.tokens, self.words, self.bytes, self.distinct, self.kinds, *self.uses]


@lru_cache(maxsize=16)  # all of a report's: each bucket asks for every one
def open_tokenizer(path: Path) -> tuple[Encoder, Vocabulary]:
    """A tokenizer to measure; UsageError for one that cannot encode. Texts are measured without EOD: any id will do."""
    vocab = load_vocab(path, eod=0)
    return Encoder(vocab.raw.decode(), vocab.eod_id, vocab.size, str(vocab.path)), vocab


def empty_measure(sources: int, sizes: Sequence[int]) -> Measure:
    """A Measure of nothing. sizes: entries of each tokenizer."""
    return Measure(
        np.zeros((sources, len(sizes), 2), np.int64),
        np.zeros((sources, 2), np.int64),
        np.zeros((sources, 2), np.int64),
        np.zeros(sources, np.int64),
        tuple(np.zeros((sources, size), np.int64) for size in sizes),
        np.zeros((sources, len(KINDS), 3), np.int64),
    )


def measure_bucket(task: MeasureTask, report: Report) -> Measure:
    """Encode each distinct word of a bucket once by each tokenizer; a word alone has the tokens it has in a text."""
    encoders = [open_tokenizer(path) for path in task.tokenizers]
    total = empty_measure(task.sources, [vocab.size for _, vocab in encoders])
    for source in range(task.sources):
        words = read_group(task.bucket, source)
        counts = np.stack([words.counts, words.heldout])
        total.words[source] = counts.sum(1)
        total.bytes[source] = counts @ words.lengths
        total.distinct[source] = np.count_nonzero(words.counts)
        texts = from_buffers(words.data, words.offsets)
        for k, (encoder, _) in enumerate(encoders):
            ids, offsets = encoder.ids(texts)
            tokens = np.diff(offsets)
            total.tokens[source, k] = counts @ tokens
            np.add.at(total.uses[k][source], ids, np.repeat(words.counts, tokens))
            if k == 0:
                rows = np.stack([np.ones_like(tokens), tokens, words.lengths]) * words.counts
                total.kinds[source] = _kinds_of(texts) @ rows.T
        report({"words": len(words)})
    return total


def _kinds_of(words: pa.LargeStringArray) -> npt.NDArray[np.int64]:
    """Which words are of which kind, (KINDS, words), 1 or 0."""
    found = [
        pc.match_substring_regex(words, pattern).to_numpy(zero_copy_only=False) for pattern in KINDS.values()
    ]
    kinds = np.array(found, np.int64).reshape(len(KINDS), len(words))
    kinds[_KINDS.index("cut_before_apostrophe")] -= kinds[_KINDS.index("contractions")]
    return kinds


def measure_texts(path: Path, texts: pa.LargeStringArray) -> npt.NDArray[np.int64]:
    """Uses of each id in texts by any tokenizer, int64[ids]. Raises Unencodable."""
    encoder, vocab = open_tokenizer(path)
    return np.bincount(encoder.ids(texts)[0], minlength=vocab.size)
