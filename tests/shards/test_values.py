"""Values of a column, counted: against a loop over the rows."""

from __future__ import annotations

import random
from collections import defaultdict

import duckdb
import pytest

from pretok.shards.values import host, sum_values


def test_values_are_summed_and_null_is_none_of_them() -> None:
    chance = random.Random(0)
    values = ["à", "b", "", None, *map(str, range(30))]
    rows = [(chance.choice(values), chance.randint(0, 9), 1) for _ in range(4000)]
    expected: dict[str | None, list[int]] = defaultdict(lambda: [0, 0])
    for value, tokens, one in rows:
        expected[value] = [expected[value][0] + tokens, expected[value][1] + one]
    sql = duckdb.connect()
    sql.execute("CREATE TABLE t (value VARCHAR, tokens INTEGER, n INTEGER)")
    sql.executemany("INSERT INTO t VALUES (?, ?, ?)", rows)
    found = sum_values(sql, "FROM t WHERE n = ?", ("tokens", "n"), 7, 1)
    order = sorted(expected, key=lambda value: (value is None, -expected[value][0], value))
    assert found["distinct"] == len(expected) - 1
    assert [tuple(row.values()) for row in found["listed"]] == [
        (value, *expected[value]) for value in (*order[:7], None)
    ]


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("https://me@www.a.it:80/x", "a.it"),
        ("http://b.it?q", "b.it"),
        ("c.it/x", None),
        ("", None),
        (None, None),
    ],
)
def test_the_host_of_an_address(address: str | None, expected: str | None) -> None:
    assert duckdb.execute(f"SELECT {host('$1')}", [address]).fetchall() == [(expected,)]
