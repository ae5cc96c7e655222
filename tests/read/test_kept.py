"""Kept fields: how they are named, and that tables give what lines give."""

from __future__ import annotations

import json
import math
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from reading import read

from pretok.read.kept import LONGEST_VALUE, KeptColumn, keep_column, parse_keep
from pretok.read.record_format import RecordFormat


def test_tables_give_what_lines_give(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [
        {"text": f"t {i}", "id": f"d{i}", "n": i, "meta": {"score": i / 2, "ok": i % 2 == 0}}
        for i in range(7)
    ]
    rows[3]["n"] = rows[4]["meta"]["score"] = None
    rows[5]["text"] = None
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet", row_group_size=3)
    from datasets import Dataset

    Dataset.from_list(rows).save_to_disk(str(tmp_path / "saved"))
    keep = ("id:text", "n:integer", "score=meta.score:float", "ok=meta.ok:boolean", "absent:text", "t=n:text")
    wanted = [
        (r["id"], r["n"], r["meta"]["score"], r["meta"]["ok"], None, None if r["n"] is None else str(r["n"]))
        for r in rows
        if r["text"]
    ]
    for name in ("a.jsonl", "a.parquet", "saved"):
        found = read(tmp_path / name, RecordFormat(), keep=[*map(parse_keep, keep)])
        assert found.kept == wanted, name


@pytest.mark.parametrize(
    ("column", "kind", "values", "wrong"),
    [
        (pa.array([1, None, 3], pa.int8()), "integer", [1, None, 3], 0),
        (pa.array([1, None, 3], pa.int8()), "float", [1.0, None, 3.0], 0),
        (pa.array([1, None, 3], pa.int8()), "text", ["1", None, "3"], 0),
        (pa.array([2**63, 1, None], pa.uint64()), "integer", [None, 1, None], 1),
        (pa.array(["a", "b", "a"]).dictionary_encode(), "text", ["a", "b", "a"], 0),
        (pa.array(["a", "x" * (LONGEST_VALUE + 1), None]), "text", ["a", None, None], 1),
        (pa.array([date(2020, 2, 3), None, None]), "text", ["2020-02-03", None, None], 0),
        (pa.array([Decimal("1.50"), None, None]), "text", ["1.50", None, None], 0),
        (pa.array([[1], None, [2]]), "text", [None] * 3, 2),
        (pa.array(["1", None, "2"]), "integer", [None] * 3, 2),
        (pa.array([1.5, math.inf, None], pa.float32()), "float", [1.5, math.inf, None], 0),
        (pa.array([1.5, 2.0, None]), "integer", [None] * 3, 2),
        (pa.array([True, None, False]), "boolean", [True, None, False], 0),
    ],
)
def test_columns_of_tables(column: pa.Array, kind: str, values: list[Any], wrong: int) -> None:
    found, mismatched = keep_column(column, kind)
    nulls = zip(column.is_valid().to_pylist(), values, strict=True)
    lost = [given and value is None for given, value in nulls]
    assert (found.to_pylist(), mismatched.tolist(), sum(lost)) == (values, lost, wrong)


@pytest.mark.parametrize(
    ("text", "column"),
    [
        ("meta.url", KeptColumn("meta.url", "meta.url")),
        ("url=meta.url", KeptColumn("url", "meta.url")),
        ("s=m.score:float", KeptColumn("s", "m.score", "float")),
        ("dc:title", KeptColumn("dc:title", "dc:title")),
        *((wrong, None) for wrong in ("", "=a", "a=", "a..b", ".a", ":text")),
    ],
)
def test_names(text: str, column: KeptColumn | None) -> None:
    if column:
        assert parse_keep(text) == column
    else:
        with pytest.raises(ValueError, match="FIELD"):
            parse_keep(text)
