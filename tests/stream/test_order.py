"""The order of a mix: exact at every prefix, every sequence once per epoch, and the same forever."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from pretok.stream.order import FEW, MAX_SEQUENCES, Order, Schedule
from pretok.stream.permutation import cut, key_numbers, permute, permute_one, round_keys, unpermute

large_quotas = st.lists(st.integers(0, (MAX_SEQUENCES - 1) // 50), min_size=2, max_size=50).filter(any)


def position_of(quotas: list[int], source: int, k: int) -> int:
    """The position of one sequence in integers of any size: how many sequences are due before it."""
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
    assert [position_of(quotas, *pair) for pair in zip(source.tolist(), k.tolist(), strict=True)] == positions
    assert schedule.prefix(np.array(positions))[range(len(source)), source].tolist() == k.tolist()
    pairs = list(zip(source.tolist(), k.tolist(), strict=True))
    assert [schedule.locate_one(position) for position in positions] == pairs


def test_due_times_that_nearly_meet_are_kept_apart() -> None:
    """Due times of two sources differ by 2^-37 to 2^-32 of a position here, about the least possible."""
    quotas = [2**38 - 45, 2**38 + 7, 2**38]  # due times of only two sources meet at whole times alone
    for distance in (*range(-60, 0, 2), *range(2, 62, 2)):  # (2 k1 + 1) q2 - (2 k2 + 1) q1
        odd = distance * pow(quotas[1], -1, quotas[0]) % quotas[0]
        odd += quotas[0] * (1 - odd % 2)
        other = (odd * quotas[1] - distance) // quotas[0]
        drawn = [odd // 2, other // 2]
        positions = [position_of(quotas, source, k) for source, k in enumerate(drawn)]
        assert (positions[0] > positions[1]) == (distance > 0)
        source, k = Schedule(quotas).locate(np.array(positions))
        assert (source.tolist(), k.tolist()) == ([0, 1], drawn)
        assert [Schedule(quotas).locate_one(position) for position in positions] == [*enumerate(drawn)]


@given(st.integers(1, 3000), st.integers(0, 2**63), st.integers(0, 100))
def test_permutation_reaches_everything_once(size: int, seed: int, epoch: int) -> None:
    keys = np.broadcast_to(round_keys(seed, "it", epoch), (size, 6))
    image = permute(np.arange(size), np.full(size, size), keys)
    np.testing.assert_array_equal(np.sort(image), np.arange(size))
    np.testing.assert_array_equal(unpermute(image, np.full(size, size), keys), np.arange(size))
    assert [
        permute_one(index, size, key_numbers(seed, "it", epoch)) for index in range(size)
    ] == image.tolist()


@given(st.data())
@settings(max_examples=60)
def test_few_positions_are_located_as_many(data: st.DataObject) -> None:
    """A reader in random order asks for one position, a reader ahead for a thousand."""
    sizes = data.draw(st.lists(st.integers(1, 300), min_size=1, max_size=4))
    quotas = st.lists(st.integers(0, 500), min_size=len(sizes), max_size=len(sizes)).filter(any)
    stages = data.draw(st.lists(quotas, min_size=1, max_size=3))
    order = Order([f"s{n}" for n in range(len(sizes))], sizes, stages, seed=3)
    every = np.arange(order.length).repeat(FEW + 1)  # never few
    many = [part[:: FEW + 1].tolist() for part in order.locate(every)]
    assert [list(order.locate_one(position)) for position in range(order.length)] == list(
        map(list, zip(*many, strict=True))
    )
    some = np.array(data.draw(st.lists(st.integers(0, order.length - 1), max_size=FEW)), np.int64)
    assert [part.tolist() for part in order.locate(some)] == [np.array(part)[some].tolist() for part in many]


def test_order_never_changes() -> None:
    """Golden values: a change here breaks every run that is to be resumed."""
    order = Order(
        ["en", "it"], [1_000_003, 77_777_777], [[10_000_000, 90_000_000], [50_000_000, 50_000_000]], seed=7
    )
    positions = np.array([0, 3, 4, 54_321_987, 99_999_999, 100_000_000, 199_999_999])
    source, epoch, sequence = order.locate(positions)
    assert source.tolist() == [1, 1, 0, 1, 1, 0, 1]
    assert epoch.tolist() == [0, 0, 0, 0, 1, 9, 1]
    assert sequence.tolist() == [69740257, 33688792, 363498, 16658595, 2849059, 567565, 10932743]
    assert round_keys(7, "it", 0).tolist()[:2] == [3536432210371697600, 1158396872637287926]
    assert [cut(7, "it", number, 4096) for number in range(4)] == [3257, 3698, 3755, 735]
