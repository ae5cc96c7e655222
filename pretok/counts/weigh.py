"""Counts of several sources -> the words a vocabulary is trained from, each with one weighted count.

Input: counted words bucket by bucket, a row group per source, and the share each source shall have. Output:
weighted `Words` and a `Tally`, a bucket at a time, so that not all words are ever held. Weights are exact fractions
until they become one integer per source; all else is integer arithmetic, so the result depends on nothing but the
counts.
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
from pretok.counts.buckets import Words, read_group
from pretok.counts.table import WordTable

THREADS = 4
"""Buckets weighed at once, at most; reading, adding and sorting release the interpreter lock."""
LIMIT = 1 << 62
"""No sum of weighted counts reaches it: the counts of all pairs of symbols are at most the weighted bytes."""


@dataclass(frozen=True, slots=True)
class Tally:
    """dropped_words, dropped_bytes: left out as too rare, the bytes being those of all their occurrences."""

    distinct: int = 0
    dropped_words: int = 0
    dropped_bytes: int = 0

    def __add__(self, other: Tally) -> Tally:
        return Tally(
            self.distinct + other.distinct,
            self.dropped_words + other.dropped_words,
            self.dropped_bytes + other.dropped_bytes,
        )


Weighed = tuple[Words, Tally]
"""The words of a bucket that are merged, and of how many they are."""


def shares(weights: dict[str, Fraction], sizes: dict[str, int]) -> dict[str, Fraction]:
    """What part of the text each source is: by its weight, or where there are none by its bytes; they add up to 1."""
    whole = {name: Fraction(share) for name, share in (weights or sizes).items()}
    total = sum(whole.values())
    return {name: whole[name] / total if total else Fraction(0) for name in sizes}


def multipliers(weights: dict[str, Fraction], sizes: dict[str, int]) -> dict[str, int]:
    """The integer each source's counts are multiplied by so that its text has its share of the whole.

    weights: source -> share, which need not add up to 1; empty leaves the sources as they are. sizes: source -> bytes
    of text counted. The integers are exact unless the weighted text would exceed LIMIT bytes; then they are scaled
    down to it and rounded. Raises UsageError for weights that are not of these sources.
    """
    if not weights:
        return dict.fromkeys(sizes, 1)
    if set(weights) != set(sizes):
        raise UsageError(
            f"weights name {', '.join(sorted(weights))}, but the sources are {', '.join(sorted(sizes))}"
        )
    bad = [name for name, weight in weights.items() if weight < 0 or (weight > 0 and sizes[name] == 0)]
    if bad or not any(weights.values()):
        raise UsageError(
            f"weights are not negative, not all 0, and 0 for a source without text: {', '.join(bad) or 'all 0'}"
        )
    exact = {name: weight / sizes[name] for name, weight in weights.items() if weight}
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
    of a bucket are ordered by their counts, as `vocab.symbols` wants them, and those that count alike by their bytes:
    where words that begin alike lie together, merging takes a sixth less time.
    """
    waiting: deque[Future[Weighed]] = deque()
    with ThreadPoolExecutor(THREADS) as pool:
        for path in buckets:
            waiting.append(pool.submit(_weigh_bucket, path, factors, min_count))
            # Not all at once: where threads outrun the consumer, all words would be held.
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
    ordered = total.take(kept[np.argsort(total.counts[kept], kind="stable")])
    return ordered, Tally(int(seen.sum()), int(rare.sum()), dropped)
