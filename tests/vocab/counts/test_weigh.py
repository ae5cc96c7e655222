"""Weights of sources: exact integers, the shares asked for, rare words dropped at the end."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pretok.base.errors import UsageError
from pretok.vocab.counts import weigh as weigh_module
from pretok.vocab.counts.buckets import Words, concatenate, from_arrow, split_buckets, write_groups
from pretok.vocab.counts.weigh import LIMIT, THREADS, Tally, multipliers, weigh
from pretok.vocab.symbols import BufferWriter

SHARES = st.fractions(0, 1, max_denominator=1000)


def words(counts: dict[bytes, tuple[int, int]]) -> Words:
    texts = sorted(counts)
    columns = np.array([counts[text] for text in texts], np.int64).reshape(-1, 2)
    array = pa.array(texts, pa.large_binary())
    return from_arrow(array, columns[:, 0].copy(), columns[:, 1].copy())


@given(st.dictionaries(st.sampled_from("abcd"), st.tuples(SHARES, st.integers(1, 10**6)), min_size=1))
def test_shares_are_exact(sources: dict[str, tuple[Fraction, int]]) -> None:
    weights = {name: weight or Fraction(1) for name, (weight, _) in sources.items()}
    sizes = {name: size for name, (_, size) in sources.items()}
    factors = multipliers(weights, sizes)
    total = sum(factors[name] * sizes[name] for name in sizes)
    if total < LIMIT // 2:
        for name in sizes:
            assert Fraction(factors[name] * sizes[name], total) == weights[name] / sum(weights.values())


def test_terabytes_are_scaled_down_to_what_64_bits_hold() -> None:
    sizes = {"it": 9_999_999_999_971, "en": 1_999_999_999_999, "code": 7}
    factors = multipliers({"it": Fraction(9, 10), "en": Fraction(1, 10), "code": Fraction(0)}, sizes)
    total = sum(factors[name] * sizes[name] for name in sizes)
    assert LIMIT * 0.99 < total <= LIMIT
    assert factors["it"] * sizes["it"] / total == pytest.approx(0.9, abs=1e-5)
    assert factors["code"] == 0
    factors = multipliers({"it": Fraction(1), "en": Fraction(1), "code": Fraction(10**20)}, sizes)
    total = sum(factors[name] * sizes[name] for name in sizes)
    BufferWriter().add(np.zeros(1, np.int32), np.array([0, 1]), np.array([total]))


def test_weights_that_do_not_fit_the_sources() -> None:
    assert multipliers({}, {"it": 5, "en": 7}) == {"it": 1, "en": 1}
    with pytest.raises(UsageError, match="weights name fr, it, but the sources are en, it"):
        multipliers({"it": Fraction(1), "fr": Fraction(1)}, {"it": 5, "en": 7})
    with pytest.raises(UsageError, match="source en has no text"):
        multipliers({"it": Fraction(1), "en": Fraction(1)}, {"it": 5, "en": 0})


def test_weighing_adds_sources_and_drops_rare_words(tmp_path: Path) -> None:
    """A word's rarity is its plain count over all sources; words of held-out documents only are no training words."""
    it = words({b"la": (5, 1), b"casa": (2, 0), b"solo": (0, 3), b"raro": (1, 0)})
    en = words({b"la": (1, 0), b"house": (3, 0), b"raro": (1, 0)})
    paths = []
    for k, groups in enumerate(zip(split_buckets(it), split_buckets(en), strict=True)):
        paths.append(tmp_path / f"{k}.parquet")
        with paths[-1].open("wb") as file:
            write_groups(file, groups)
    parts = list(weigh(paths, {"it": 10, "en": 3}, min_count=3))
    trained = concatenate([part for part, _ in parts])
    kept = dict(zip(trained.words().to_pylist(), trained.counts.tolist(), strict=True))
    assert kept == {b"la": 53, b"house": 9}
    dropped_bytes = 2 * len("casa") + 2 * len("raro")
    assert sum((tally for _, tally in parts), Tally()) == Tally(4, 2, dropped_bytes)
    everything = concatenate([part for part, _ in weigh(paths, {"it": 1, "en": 0}, min_count=1)])
    assert dict(zip(everything.words().to_pylist(), everything.counts.tolist(), strict=True)) == {
        b"la": 5, b"casa": 2, b"raro": 1
    }  # fmt: skip


def test_a_bucket_is_ordered_and_few_are_weighed_ahead(tmp_path: Path, monkeypatch: Any) -> None:
    """Words are ordered by count, then by bytes. If threads outran the consumer, all words would be in memory."""
    path = tmp_path / "one.parquet"
    with path.open("wb") as file:
        write_groups(file, [words({f"{n:03}".encode(): (1 + n % 4, 0) for n in range(1000)})])
    begun = []
    real = weigh_module._weigh_bucket
    monkeypatch.setattr(weigh_module, "_weigh_bucket", lambda *a: (begun.append(a[0]), real(*a))[1])
    parts = weigh([path] * 40, {"it": 5}, min_count=1)
    for taken, (part, _) in enumerate(parts, 1):
        assert len(begun) <= min(40, taken + THREADS - 1)
        found = list(zip(part.counts.tolist(), part.words().to_pylist(), strict=True))
        assert len(found) == 1000
        assert found == sorted(found)
    assert len(begun) == 40
