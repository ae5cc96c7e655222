"""Vocabularies x text -> uses of their entries, and what these say of a vocabulary.

Input: a MeasureTask, one bucket of counts and some tokenizers of the pattern the words were cut by; or held-out
texts and any tokenizer. Output: how often each entry occurs in each source; Figures. Exact: a text has the tokens of
its words.
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
from pretok.counts.buckets import read_group
from pretok.counts.counts_file import CorpusCounts
from pretok.read.batches import buffers, from_buffers
from pretok.tokenizer.encoder import Encoder
from pretok.tokenizer.reference import Unencodable
from pretok.tokenizer.vocabulary import Vocabulary, load_vocab
from pretok.vocab.records import MIX, Figures, ratio

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class MeasureTask:
    """bucket: file of counts; sources: number of its row groups; tokenizers: folders or files, the main one first."""

    bucket: Path
    sources: int
    tokenizers: tuple[Path, ...]


@dataclass(slots=True)
class Measure:
    """Sums over the words of training documents; they add up over buckets.

    words, bytes: (sources,), all occurrences; distinct: (sources,); uses: per tokenizer (sources, ids), occurrences of
    each of its entries.
    """

    words: npt.NDArray[Any]
    bytes: npt.NDArray[Any]
    distinct: npt.NDArray[np.int64]
    uses: tuple[npt.NDArray[Any], ...]

    def add(self, other: Measure) -> None:
        """Add what another bucket gave."""
        for mine, others in zip(
            (self.words, self.bytes, self.distinct, *self.uses),
            (other.words, other.bytes, other.distinct, *other.uses),
            strict=True,
        ):
            mine += others


@lru_cache(maxsize=16)  # all of a report's: each bucket asks for every one
def open_tokenizer(path: Path) -> tuple[Encoder, Vocabulary]:
    """A tokenizer to measure; UsageError for one that cannot encode. Texts are measured without EOD: any id will do."""
    vocab = load_vocab(path, eod=0)
    return Encoder(vocab.raw.decode(), vocab.eod_id, vocab.size, str(vocab.path)), vocab


def empty_measure(sources: int, sizes: Sequence[int]) -> Measure:
    """A Measure of nothing. sizes: entries of each tokenizer."""
    words, size, distinct = np.zeros((3, sources), np.int64)
    return Measure(words, size, distinct, tuple(np.zeros((sources, size), np.int64) for size in sizes))


def measure_bucket(task: MeasureTask, report: Report) -> Measure:
    """Encode each distinct word of a bucket once by each tokenizer; a word alone has the tokens it has in a text."""
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
            np.add.at(uses[source], ids, np.repeat(words.counts, np.diff(offsets)))
        report({"words": len(words)})
    return total


def measure_texts(path: Path, texts: pa.LargeStringArray) -> npt.NDArray[np.int64]:
    """Uses of each id in texts by any tokenizer, int64[ids]. Raises Unencodable."""
    encoder, vocab = open_tokenizer(path)
    return np.bincount(encoder.ids(texts)[0], minlength=vocab.size)


def measure_heldout(path: Path, counts: CorpusCounts, console: Console) -> Measure:
    """The held-out texts of each source by one tokenizer, words being those between spaces. Uses are NaN where it gives
    up on a text."""
    total = empty_measure(len(counts.sources), [])
    uses = np.zeros((len(counts.sources), open_tokenizer(path)[1].size))
    for source, name in enumerate(counts.sources):
        texts = counts.heldout_texts(name)
        total.words[source] = pc.sum(pc.count_substring_regex(texts, r"\S+")).as_py() or 0
        total.bytes[source] = len(buffers(texts)[0])
        try:
            uses[source] = measure_texts(path, texts)
        except Unencodable as error:
            console.notice(f"{path} is not compared on {name}: {error}")
            uses[source] = np.nan
    total.uses = (uses,)
    return total


def learned(vocab: Vocabulary) -> npt.NDArray[np.bool_]:
    """bool[ids]: entries that merges made, neither added nor one of the 256 bytes."""
    return np.array([len(name) > 1 for name in _names(vocab)])


def _names(vocab: Vocabulary) -> list[bytes]:
    """The bytes of each entry, b"" of added tokens."""
    added = set(vocab.added_tokens.values())
    return [b"" if i in added else vocab.token_bytes(i) for i in range(vocab.size)]


def figures(
    vocab: Vocabulary, measure: Measure, uses: npt.NDArray[Any], names: Sequence[str], scale: Floats
) -> dict[str, Figures]:
    """What a vocabulary costs in each source, and in MIX.

    uses: (sources, ids), its own of the measure; scale: float64[sources], how much of each source the mix has, as a
    multiple of what was measured; NaN where there is none to multiply.
    """
    entries = _names(vocab)
    single = np.array([len(entry) == 1 for entry in entries])
    high = np.array([len(entry) == 1 and entry >= b"\x80" for entry in entries])
    in_mix = scale != 0
    rows = {name: (measure.bytes[k], measure.words[k], uses[k]) for k, name in enumerate(names)}
    rows[MIX] = tuple(scale[in_mix] @ part[in_mix] for part in (measure.bytes, measure.words, uses))
    return {name: _figures(*row, single, high) for name, row in rows.items()}


def _figures(
    size: float,
    words: float,
    uses: npt.NDArray[Any],
    single: npt.NDArray[np.bool_],
    high: npt.NDArray[np.bool_],
) -> Figures:
    tokens = uses.sum()
    if not np.isfinite(tokens):
        return Figures(round(size) if np.isfinite(size) else None, None, None, None, None, None)
    return Figures(
        round(size),
        round(tokens),
        ratio(size, tokens),
        ratio(tokens, words) if tokens else None,
        _share(uses[single].sum(), size),
        _share(uses[high].sum(), size),
    )


def _share(part: float, whole: float) -> float | None:
    return round(float(part) / float(whole), 6) if whole else None
