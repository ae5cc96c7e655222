"""The order of a mix: exact at every prefix, every sequence once per epoch, the same for ever."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pretok.base.errors import UsageError
from pretok.stream.order import MAX_SEQUENCES, Order, Schedule, cut, permute, round_keys, unpermute

large_quotas = st.lists(st.integers(0, (MAX_SEQUENCES - 1) // 50), min_size=2, max_size=50).filter(any)
wide_weights = st.lists(st.floats(1e-4, 1), min_size=2, max_size=50)


def position_of(quotas: list[int], source: int, k: int) -> int:
    """The position of one sequence by whole numbers of any size: how many fall due before it."""
    position = 0
    for other, quota in enumerate(quotas):
        # k' is due earlier when (2 k' + 1) / quota < (2 k + 1) / quotas[source], or equal and first in the list.
        numerator, denominator = (2 * k + 1) * quota - quotas[source], 2 * quotas[source]
        earlier = -(-numerator // denominator) if other >= source else numerator // denominator + 1
        position += min(max(earlier, 0), quota)
    return position


@given(large_quotas, st.data())
@settings(max_examples=60)
def test_positions_are_exact_at_the_largest_sizes(quotas: list[int], data: st.DataObject) -> None:
    schedule = Schedule(quotas)
    positions = data.draw(st.lists(st.integers(0, schedule.length - 1), min_size=1, max_size=20))
    source, k = schedule.locate(np.array(positions))
    for position, s, drawn in zip(positions, source.tolist(), k.tolist(), strict=True):
        assert position_of(quotas, s, drawn) == position
    np.testing.assert_array_equal(schedule.position(source, k), positions)


def test_due_times_that_nearly_meet_are_told_apart() -> None:
    """Due times of two sources differ by 2^-37 to 2^-32 of a position here; the first is about the least there is."""
    quotas = [2**38 - 45, 2**38 + 7, 2**38]  # of two sources alone such times meet at whole times only
    for distance in (*range(-60, 0, 2), *range(2, 62, 2)):  # (2 k1 + 1) q2 - (2 k2 + 1) q1
        odd = distance * pow(quotas[1], -1, quotas[0]) % quotas[0]
        odd += quotas[0] * (1 - odd % 2)
        other = (odd * quotas[1] - distance) // quotas[0]
        assert odd * quotas[1] - other * quotas[0] == distance
        drawn = [odd // 2, other // 2]
        positions = [position_of(quotas, source, k) for source, k in enumerate(drawn)]
        assert (positions[0] > positions[1]) == (distance > 0)
        source, k = Schedule(quotas).locate(np.array(positions))
        assert (source.tolist(), k.tolist()) == ([0, 1], drawn)
        assert Schedule(quotas).position(source, k).tolist() == positions


@given(wide_weights, st.integers(1, 3000))
@settings(max_examples=60)
def test_every_prefix_is_within_the_bound(weights: list[float], length: int) -> None:
    quotas = [max(1, round(weight / sum(weights) * length)) for weight in weights]
    schedule = Schedule(quotas)
    prefixes = np.arange(schedule.length + 1)
    assert_within_bound(quotas, prefixes, schedule.prefix(prefixes))


@given(wide_weights, st.data())
@settings(max_examples=60)
def test_large_prefixes_are_within_the_bound(weights: list[float], data: st.DataObject) -> None:
    quotas = [int(weight / sum(weights) * 10**11) for weight in weights]
    schedule = Schedule(quotas)
    start = data.draw(st.integers(0, schedule.length - 200))
    prefixes = np.arange(start, start + 200)
    assert_within_bound(quotas, prefixes, schedule.prefix(prefixes))


def assert_within_bound(quotas: list[int], prefixes: np.ndarray, counts: np.ndarray) -> None:
    """|count - w n| <= 1/2 + w S / 2, times 2 N, in whole numbers of any size."""
    length, sources = sum(quotas), len(quotas)
    for source, quota in enumerate(quotas):
        for n, count in zip(prefixes.tolist(), counts[:, source].tolist(), strict=True):
            assert abs(2 * length * count - 2 * quota * n) <= length + quota * sources


@given(st.integers(1, 3000), st.integers(0, 2**63), st.integers(0, 100))
def test_permutation_reaches_everything_once(size: int, seed: int, epoch: int) -> None:
    keys = np.broadcast_to(round_keys(seed, "it", epoch), (size, 6))
    image = permute(np.arange(size), np.full(size, size), keys)
    np.testing.assert_array_equal(np.sort(image), np.arange(size))
    np.testing.assert_array_equal(unpermute(image, np.full(size, size), keys), np.arange(size))


def test_permutation_looks_random() -> None:
    """Neither fixed points, nor neighbours that stay neighbours, nor two epochs alike: once or less expected."""
    size = 100_000
    orders = [
        permute(np.arange(size), np.full(size, size), np.broadcast_to(round_keys(0, "it", epoch), (size, 6)))
        for epoch in range(2)
    ]
    for image in (*orders, orders[0][np.argsort(orders[1])]):
        assert np.count_nonzero(image == np.arange(size)) < 10
        assert np.count_nonzero(np.abs(np.diff(image)) == 1) < 15
        # Sixteen bins of each half of the domain: chi-squared with 15 degrees of freedom passes 45 once in 10,000.
        counts = np.bincount(image[: size // 2] * 16 // size, minlength=16)
        assert ((counts - size / 32) ** 2 / (size / 32)).sum() < 45


def test_what_is_appended_again_joins_the_epoch_that_is_on() -> None:
    """Also where nothing was read yet of what was appended before: then it is behind, but not by an epoch more."""
    order = Order(
        ["a", "a+1", "a+2", "b"],
        [5, 4, 3, 9],
        [[8, 1], [0, 3], [21, 0]],
        0,
        None,
        (),
        [0, 0, 0, 1],
        [0, 1, 2, 0],
    )
    entry = order.locate(np.arange(12, order.length))[0]
    assert np.bincount(entry[:9]).tolist() == [2, 4, 3]  # what each has left of the second epoch
    assert np.bincount(entry[9:]).tolist() == [5, 4, 3]


def test_order_never_changes() -> None:
    """Golden values: a change here breaks every run that is to be resumed."""
    order = Order(
        ["en", "it"], [1_000_003, 77_777_777], [[10_000_000, 90_000_000], [50_000_000, 50_000_000]], seed=7
    )
    positions = np.array([0, 1, 2, 3, 4, 5, 54_321_987, 99_999_999, 100_000_000, 100_000_001, 199_999_999])
    source, epoch, sequence = order.locate(positions)
    assert source.tolist() == [1, 1, 1, 1, 0, 1, 1, 1, 0, 1, 1]
    assert epoch.tolist() == [0, 0, 0, 0, 0, 0, 0, 1, 9, 1, 1]
    assert sequence.tolist() == [
        69740257,
        56368075,
        71095039,
        33688792,
        363498,
        42459013,
        16658595,
        2849059,
        567565,
        11206799,
        10932743,
    ]
    assert round_keys(7, "it", 0).tolist()[:2] == [3536432210371697600, 1158396872637287926]
    assert [cut(7, "it", number, 4096) for number in range(4)] == [3257, 3698, 3755, 735]


def test_a_stage_beyond_64_bits_is_refused() -> None:
    Schedule([MAX_SEQUENCES - 1])
    with pytest.raises(UsageError, match="split it into stages"):
        Schedule([MAX_SEQUENCES - 1, 1])


pool_entries = st.lists(st.tuples(st.integers(1, 7), st.integers(0, 3)), min_size=1, max_size=5)


@given(pool_entries, st.lists(st.tuples(st.integers(0, 40), st.floats(0, 1)), min_size=4, max_size=4))
def test_no_sequence_of_a_pool_comes_twice_before_every_other_came_once(entries, stages):
    """Entries of any size that came with any stage, each stage cut anywhere: what comes is counted one by one."""
    sizes = [4, *(size for size, _ in entries)]
    since = [0, *(stage for _, stage in entries)]
    lengths = [int(share * quota) for quota, share in stages]
    order = Order(
        [f"s{n}" for n in range(len(sizes))], sizes, [[quota] for quota, _ in stages], 0, lengths,
        pools=[0] * len(sizes), since=since,
    )  # fmt: skip
    first, levels = 0, {}
    for stage, length in enumerate(lengths):
        most, least = max(levels.values(), default=0), min(levels.values(), default=0)
        missed = least if most > least else max(least - 1, 0)  # the epoch that is on, or has just ended
        levels |= {
            (entry, n): missed
            for entry, size in enumerate(sizes)
            if since[entry] == stage
            for n in range(size)
        }
        places = np.arange(first, first + length)
        entry, epoch, sequence = order.locate(places)
        for one in zip(entry.tolist(), sequence.tolist(), strict=True):
            levels[one] += 1
            assert max(levels.values()) - min(levels.values()) <= 1
        for place, e, k, n in zip(places, entry, epoch, sequence, strict=True):
            assert order.positions(int(e), int(k), np.array([n])).tolist() == [place]
        first += length
