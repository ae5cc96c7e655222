"""Counts of several sources -> the words a vocabulary is trained from, each with one weighted count.

Input: counted words bucket by bucket, a row group per source, and the share of each source. Output: weighted `Words`
and a `Tally`, a bucket at a time, so that not all words are in memory. Weights are exact fractions until they become
one integer per source. Everything else is integer arithmetic, so the result depends on nothing but the counts.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from fractions import Fraction
from math import gcd, lcm
from pathlib import Path

import numpy as np

from pretok.base.errors import UsageError
from pretok.vocab.counts.buckets import Words, read_group
from pretok.vocab.counts.table import WordTable

THREADS = 4
"""Buckets weighted at once, at most. Reading, adding and sorting release the interpreter lock."""
LIMIT = 1 << 62
"""Weighted bytes of text, at most: no sum of weighted counts, or of counts of pairs, exceeds it."""


@dataclass(frozen=True, slots=True)
class Tally:
    """How many distinct words there are, and which of them were too rare."""

    distinct: int = 0
    dropped_words: int = 0
    dropped_bytes: int = 0
    """Of all occurrences of the dropped words."""

    def __add__(self, other: Tally) -> Tally:
        return Tally(
            self.distinct + other.distinct,
            self.dropped_words + other.dropped_words,
            self.dropped_bytes + other.dropped_bytes,
        )


Weighed = tuple[Words, Tally]
"""The words of a bucket that are kept, and the Tally of all."""


def shares(weights: dict[str, Fraction], sizes: dict[str, int]) -> dict[str, Fraction]:
    """Return the share of the text that each source has, by its weight, or without weights by its bytes.

    The shares add up to 1.
    """
    whole = {name: Fraction(share) for name, share in (weights or sizes).items()}
    total = sum(whole.values())
    return {name: whole[name] / total if total else Fraction(0) for name in sizes}


def multipliers(weights: dict[str, Fraction], sizes: dict[str, int]) -> dict[str, int]:
    """Return the integer by which each source's counts are multiplied so that its text has its share of the whole.

    weights: source -> share, which need not add up to 1, some above 0; empty leaves the sources as they are. sizes:
    source -> bytes of text counted. The integers are exact unless the weighted text would exceed LIMIT bytes; then they
    are scaled down to it and rounded. Raises UsageError if weights name other sources, or one without text.
    """
    if not weights:
        return dict.fromkeys(sizes, 1)
    if set(weights) != set(sizes):
        raise UsageError(
            f"weights name {', '.join(sorted(weights))}, but the sources are {', '.join(sorted(sizes))}"
        )
    if empty := [name for name, weight in weights.items() if weight and not sizes[name]]:
        raise UsageError(f"weights: source {', '.join(empty)} has no text; give it the weight 0")
    exact = {name: weight / sizes[name] for name, weight in weights.items() if weight}
    # Integers in these exact proportions: counts stay whole numbers, as merges compare them.
    common = lcm(*(share.denominator for share in exact.values()))
    whole = {name: int(share * common) for name, share in exact.items()}
    divisor = gcd(*whole.values())
    factors = {name: whole.get(name, 0) // divisor for name in sizes}
    total = sum(factor * sizes[name] for name, factor in factors.items())
    if total > LIMIT:
        factors = {name: max(1, factor * LIMIT // total) if factor else 0 for name, factor in factors.items()}
    return factors


def weigh(buckets: list[Path], factors: dict[str, int], min_count: int) -> Iterator[Weighed]:
    """Add up the sources of every bucket, counts times factor, and drop words that occur less than `min_count` times.

    factors: source -> integer, in the order of the row groups. Occurrences are those in training documents. The words
    of a bucket are ordered by their counts, as `vocab.bpe` wants them, and words of equal counts by their bytes: where
    words that begin alike lie together, merging takes a sixth less time.
    """
    waiting: deque[Future[Weighed]] = deque()
    with ThreadPoolExecutor(THREADS) as pool:
        for path in buckets:
            waiting.append(pool.submit(_weigh_bucket, path, factors, min_count))
            # Not all at once: threads that outrun the consumer would hold all words in memory.
            if len(waiting) == THREADS:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


def _weigh_bucket(path: Path, factors: dict[str, int], min_count: int) -> Weighed:
    table = WordTable()
    for group, factor in enumerate(factors.values()):
        words = read_group(path, group)
        table.add_words(replace(words, counts=words.counts * factor, others=words.counts))
    total = table.words().sorted()
    seen = total.others > 0
    rare = seen & (total.others < min_count)
    kept = np.flatnonzero((total.counts > 0) & ~rare)
    dropped = int((total.lengths * total.others)[rare].sum())
    # A stable sort: words of equal counts stay in the order of their bytes.
    ordered = total.take(kept[np.argsort(total.counts[kept], kind="stable")])
    return ordered, Tally(int(seen.sum()), int(rare.sum()), dropped)
