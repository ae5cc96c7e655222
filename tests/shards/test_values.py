"""Values of a column, counted: against a loop over the rows."""

from __future__ import annotations

import random
from collections import defaultdict

import pyarrow as pa

from pretok.report.gather import VALUES, _most
from pretok.shards.values import ValueCounts


def test_values_are_counted_and_null_is_none_of_them() -> None:
    chance = random.Random(0)
    rows = [
        (chance.choice(["à", "b", "", None, *map(str, range(2 * VALUES))]), chance.randint(0, 9))
        for _ in range(4000)
    ]
    counted = ValueCounts(10**6)
    for at in range(0, len(rows), 700):
        part = rows[at : at + 700]
        counted.add(pa.array([value for value, _ in part]), pa.array([amount for _, amount in part]))
    expected: dict[str | None, list[int]] = defaultdict(lambda: [0, 0])
    for value, amount in rows:
        expected[value][0] += 1
        expected[value][1] += amount
    assert {value: list(sums) for value, sums in counted.largest()} == expected
    assert None in expected
    assert counted.distinct == len(expected) - 1
    assert (_most(counted).distinct, _most(counted).more) == (len(expected) - 1, True)
    few = ValueCounts(2)
    few.add(pa.array(["a", None]), pa.array([1, 2]))
    assert (few.distinct, _most(few).more) == (1, False)
    few.add(pa.array(["b", "c"]), pa.array([1, 2]))
    assert few.distinct is None
