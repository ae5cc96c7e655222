"""Kept fields: how they are named, and that tables give what lines give."""

from __future__ import annotations

import json
import math
from datetime import date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from reading import inputs_of, read

from pretok.read.format import Piece
from pretok.read.kept import LONGEST_VALUE, TYPES, KeptColumn, keep_column, parse_keep
from pretok.read.readers import read_piece
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
    names = "id:text n:integer score=meta.score:float ok=meta.ok:boolean absent:text t=n:text i=id:integer"
    keep = [parse_keep(name) for name in names.split()]
    whole = [row for row in rows if row["text"]]
    wanted = [(r["id"], r["n"], r["meta"]["score"], r["meta"]["ok"], None, None, None) for r in whole]
    for name in ("a.jsonl", "a.parquet", "saved"):
        assert read(tmp_path / name, RecordFormat(), keep=keep).kept == wanted, name


NOT_UTF8 = pa.Array.from_buffers(pa.string(), 1, pa.array([b"\xff"]).buffers())
VALUES: list[tuple[str, bytes | None, pa.Array | None, dict[str, Any]]] = [
    *(
        (f"{value!r}", json.dumps(value).encode(), pa.array([value]), {kind: value} if kind else {})
        for value, kind in (
            ("uno", "text"), ("", "text"), ("12", "text"), ("1.5", "text"), ("true", "text"), ("x" * 16385, ""),
            (1.5, "float"), (-0.0, "float"), (2.0, "float"), (math.inf, "float"), (True, "boolean"),
            (False, "boolean"), ([1], ""), (["a"], ""),
        )
    ),
    *(
        (f"{value}", f"{value}".encode(), pa.array([value]), {"integer": value, "float": float(value)})
        for value in (0, 7, 2**53 + 1, 2**63 - 1, -(2**63))
    ),
    ("2^63", b"9223372036854775808", pa.array([2**63], pa.uint64()), {"float": 2.0**63}),
    ("above every float", b"1e999", None, {}),
    ("an object", b'{"a": 1}', pa.array([{"a": 1}]), {}),
    ("half a pair", b'"\\ud800"', None, {}),
    ("not UTF-8", b'"\xff"', NOT_UTF8, {}),
    ("not UTF-8, in a dictionary", None, NOT_UTF8.dictionary_encode(), {}),
    ("bytes", None, pa.array([b"due"]), {"text": "due"}),
    ("an instant", None, pa.array([datetime(2020, 2, 3, 4, 5, 6)]), {"text": "2020-02-03 04:05:06.000000"}),
    ("the next", None, pa.array([1], pa.timestamp("ns")), {"text": "1970-01-01 00:00:00.000000001"}),
    ("a last day", None, pa.array([date(9999, 12, 30)]), {"text": "9999-12-30"}),
    ("a first day", None, pa.array([date(1, 1, 1)]).cast(pa.date64()), {"text": "0001-01-01"}),
    # 65,536 years after 2020, which is 2020 in 16 bits
    ("a far instant", None, pa.array([(18262 + 23936532) * 86_400_000], pa.timestamp("ms", "UTC")), {}),
    ("a place's", None, pa.array([0], pa.timestamp("ms", "Asia/Tokyo")), {"text": "1970-01-01 09:00:00.000+0900"}),
    ("nowhere's", None, pa.array([0], pa.timestamp("ms", "No/Where")), {}),
    ("a late instant", None, pa.array([2**63 - 1], pa.timestamp("ms", "UTC")), {}),
    ("a late second", None, pa.array([2**50], pa.timestamp("ms")), {}),
    ("a late day", None, pa.array([2_932_896], pa.int32()).cast(pa.date32()), {}),
    ("an early day", None, pa.array([-719_163], pa.int32()).cast(pa.date32()), {}),
    ("a time", None, pa.array([time(4, 5)], pa.time32("ms")), {"text": "04:05:00.000"}),
    ("a duration", None, pa.array([7], pa.duration("s")), {}),
    ("an interval", None, pa.array([(1, 2, 3)], pa.month_day_nano_interval()), {}),
    ("a decimal number", None, pa.array([Decimal("-1.50")]), {"text": "-1.50"}),
]  # fmt: skip
"""What it is, as JSON and as a column, and declared type -> what is kept; null and a mismatch as any other."""


@pytest.mark.parametrize("form", ["jsonl", "parquet", "arrow"])
def test_a_value_is_kept_as_the_type_it_has(tmp_path: Path, form: str) -> None:
    keep = [KeptColumn(kind, "v", kind) for kind in TYPES]
    for number, (name, line, column, wanted) in enumerate(VALUES):
        if (line if form == "jsonl" else column) is None or (form, name) == ("parquet", "an interval"):
            continue
        path, table = (
            tmp_path / f"{number}.{form}",
            pa.table({"text": ["t"], "v": [0] if column is None else column}),
        )
        if form == "jsonl":
            path.write_bytes(b'{"text": "t", "v": %s}\n' % line)
        elif form == "parquet":
            pq.write_table(table, path)
        else:
            with pa.ipc.new_file(path, table.schema) as file:
                file.write_table(table)
        (batch,) = read_piece(Piece(inputs_of(path)[0]), 0, RecordFormat(), keep)
        assert [kept.to_pylist() for kept in batch.kept] == [[wanted.get(kind)] for kind in TYPES], name
        assert [lost.tolist() for lost in batch.mismatches] == [[kind not in wanted] for kind in TYPES], name


@pytest.mark.parametrize(
    ("column", "kind", "values", "wrong"),
    [
        (pa.array([1, None, 3], pa.int8()), "integer", [1, None, 3], 0),
        (pa.array([1, None, 3], pa.int8()), "float", [1.0, None, 3.0], 0),
        (pa.array([1, None, 3], pa.int8()), "text", [None] * 3, 2),
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
