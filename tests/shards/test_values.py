"""Values of a column, counted: against a loop over the rows."""

from __future__ import annotations

import random
from collections import defaultdict

import duckdb
import pyarrow as pa
import pytest

from pretok.report import gather
from pretok.shards.values import host


def test_values_are_counted_and_null_is_none_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    chance = random.Random(0)
    values = ["à", "b", "", None, *map(str, range(2 * gather.VALUES))]
    rows = [(chance.choice(values), chance.randint(0, 9)) for _ in range(4000)]
    expected: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for value, amount in rows:
        expected["(none)" if value is None else value][0] += 1
        expected["(none)" if value is None else value][1] += amount
    table = {"source": ["it"] * 4000, "value": [row[0] for row in rows], "tokens": [row[1] for row in rows]}
    sql = duckdb.connect()
    sql.register("ledger", pa.table(table))
    found = gather.count_values(sql, "it", "value")
    assert (found.distinct, found.more) == (len(expected) - 1, True)
    assert found.documents == 4000 - expected["(none)"][0]
    for value, *sums in found.values:
        assert sums == expected[value]
    tokens = [row[2] for row in found.values]
    assert tokens == sorted((sums[1] for sums in expected.values()), reverse=True)[: gather.VALUES]
    monkeypatch.setattr(gather, "MOST_VALUES", 5)
    assert gather.count_values(sql, "it", "value").distinct is None


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
