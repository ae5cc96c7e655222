"""Values of a column, in SQL: sums of documents by value, and the host of an address."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

HOST = r"^[a-zA-Z][a-zA-Z0-9+.-]*://(?:[^/@]*@)?(?:www\.)?([^/:?#]+)"


def host(column: str) -> str:
    """Return SQL of the host of an address, without `www.`; null if it is not an address."""
    return f"nullif(regexp_extract({column}, '{HOST}', 1), '')"


def sum_values(sql: Any, rows: str, names: Sequence[str], most: int, *given: object) -> dict[str, Any]:
    """Sum some columns by value.

    rows: a query with `value`, `tokens` and the other columns `names`; given: its parameters. Returns `distinct`: the
    number of different values, without null; and `listed`: the `most` values with most tokens, then null if it occurs.
    """
    sums = ", ".join(f"sum({name})::BIGINT AS {name}" for name in names)
    sums_by_value = sql.execute(
        f"""SELECT value, {", ".join(names)}, count(value) OVER () AS distinct_values
        FROM (SELECT value, {sums} FROM ({rows}) GROUP BY value)
        QUALIFY row_number() OVER (ORDER BY value IS NULL, tokens DESC, value) <= {most} OR value IS NULL
        ORDER BY value IS NULL, tokens DESC, value""",
        list(given),
    ).fetchall()
    listed = [dict(zip(("value", *names), row, strict=False)) for row in sums_by_value]
    return {"distinct": sums_by_value[0][-1] if sums_by_value else 0, "listed": listed}
