"""Kept fields: equal to what the json module reads, whatever the escapes, nesting and types; tables give the same."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pretok.base.errors import UsageError
from pretok.read.conversation import RecordFormat
from pretok.read.format import Piece
from pretok.read.jsonl import OK, ParsedLines, parse_lines
from pretok.read.kept import (
    LONGEST_VALUE,
    KeptColumn,
    keep_column,
    parse_keep,
)
from pretok.read.probe import check_kept, probe_inputs
from pretok.read.readers import read_piece
from pretok.read.recognise import list_inputs

NAMES = ("id", "meta.url", "a.b.c", "x", "è")
KEEP = [KeptColumn(name, name, kind) for name in NAMES for kind in ("text", "integer", "float", "boolean")]

scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**64), 2**64)
    | st.sampled_from([2**63 - 1, 2**63, -(2**63), -(2**63) - 1, 0, -1])
    | st.floats()
    | st.text(max_size=12)
)


def objects(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.dictionaries(
        st.sampled_from(["id", "meta", "url", "a", "b", "c", "x", "è", "meta.url", "a.b.c"]), inner
    )


values = st.recursive(scalars, lambda inner: st.lists(inner, max_size=3) | objects(inner), max_leaves=6)


def look_up(record: Any, field: str) -> Any:
    """The value by path, else by the whole name; None where there is none."""
    value = record
    for name in field.split("."):
        if not isinstance(value, dict) or name not in value:
            return record.get(field)
        value = value[name]
    return value


WRONG = object()
"""Stands for a value of another type."""


def expected(value: Any, kind: str) -> Any:
    """What is kept. A text is a number or a word as JSON writes it."""
    if value is None:
        return None
    if kind == "text" and not isinstance(value, list | dict):
        text = value if isinstance(value, str) else json.dumps(value)
        return text if len(text.encode("utf-8", "surrogatepass")) <= LONGEST_VALUE else WRONG
    if kind == "boolean" and isinstance(value, bool):
        return value
    if kind == "integer" and type(value) is int and -(2**63) <= value < 2**63:
        return value
    if kind == "float" and type(value) in (int, float):
        return float(value)
    return WRONG


def kept(lines: list[str], columns: list[KeptColumn]) -> ParsedLines:
    block = np.frombuffer("\n".join(lines).encode(), np.uint8)
    found = parse_lines(block, "text", columns)
    assert (found.status == OK).all()
    return found


def same(a: Any, b: Any) -> bool:
    return a == b or (isinstance(a, float) and isinstance(b, float) and math.isnan(a) and math.isnan(b))


@given(
    st.lists(objects(values), min_size=1, max_size=4), st.booleans(), st.sampled_from([None, (", ", " : ")])
)
def test_json_values_are_those_of_the_json_module(
    records: list[dict[str, Any]], ascii_only: bool, separators: tuple[str, str] | None
) -> None:
    lines = [json.dumps({**r, "text": "t"}, ensure_ascii=ascii_only, separators=separators) for r in records]
    found = kept(lines, KEEP)
    for at, column in enumerate(KEEP):
        wanted = [expected(look_up(record, column.field), column.type) for record in records]
        values, wrong = found.kept[at]
        assert wrong == wanted.count(WRONG), (lines, column)
        for row, value in enumerate(values.to_pylist()):
            assert same(value, None if wanted[row] is WRONG else wanted[row]), (lines[row], column)


@pytest.mark.parametrize(
    ("line", "value"),
    [
        ('{"text":"t","x":"a","x":"b"}', "b"),
        ('{"x":{"x":1},"text":"t", "\\u0078" : "\\u00e8\\n\\ud83d\\ude00"}', "è\n😀"),
        ('{"text":"t","x":{}}', None),
        ('{"text":"t","x":-1.50}', "-1.50"),
        ('{"text":"t","x":true}', "true"),
        ('{"text":"t","x":"\\ud800"}', None),
        ('{"text":"t","x":"a","x\\ud800":"b","\\udfffx":"c"}', "a"),
        ('{"text":"t","x":"' + "a" * LONGEST_VALUE + '"}', "a" * LONGEST_VALUE),
        ('{"text":"t","x":"' + "a" * (LONGEST_VALUE + 1) + '"}', None),
        ('  {"text":"t" ,\t"x"\t: "y"  }  \r', "y"),
    ],
)
def test_hard_lines(line: str, value: str | None) -> None:
    ((column, _),) = kept([line], [KeptColumn("x", "x", "text")]).kept
    assert column.to_pylist() == [value]


def test_tables_give_what_lines_give(tmp_path: Path) -> None:
    rows = [
        {"text": f"t {i}", "id": f"d{i}", "n": i, "meta": {"score": i / 2, "ok": i % 2 == 0}}
        for i in range(7)
    ]
    rows[3]["n"] = rows[4]["meta"]["score"] = None
    rows[5]["text"] = None
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet", row_group_size=3)
    from datasets import Dataset

    Dataset.from_list(rows).save_to_disk(str(tmp_path / "saved"))
    wanted: dict[str, Callable[[dict[str, Any]], Any]] = {
        "id:text": lambda row: row["id"],
        "n:integer": lambda row: row["n"],
        "score=meta.score:float": lambda row: row["meta"]["score"],
        "ok=meta.ok:boolean": lambda row: row["meta"]["ok"],
        "absent:text": lambda row: None,
        "t=n:text": lambda row: None if row["n"] is None else str(row["n"]),
    }
    expected = [[value(row) for row in rows if row["text"]] for value in wanted.values()]
    for name in ("a.jsonl", "a.parquet", "saved"):
        (file,) = list_inputs([str(tmp_path / name)], "auto")[0]
        batches = list(read_piece(Piece(file), 0, RecordFormat(), [*map(parse_keep, wanted)]))
        found = [[v for b in batches for v in b.kept[i].to_pylist()] for i in range(len(wanted))]
        assert found == expected, name


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
        (pa.array([1.5, math.nan, None], pa.float32()), "float", [1.5, math.nan, None], 0),
        (pa.array([1.5, 2.0, None]), "integer", [None] * 3, 2),
        (pa.array([True, None, False]), "boolean", [True, None, False], 0),
    ],
)
def test_columns_of_tables(column: pa.Array, kind: str, values: list[Any], wrong: int) -> None:
    found, count = keep_column(column, kind)
    assert all(same(a, b) for a, b in zip(found.to_pylist(), values, strict=True))
    assert count == wrong


@pytest.mark.parametrize(
    ("text", "column"),
    [
        ("meta.url", KeptColumn("meta.url", "meta.url")),
        ("url=meta.url", KeptColumn("url", "meta.url")),
        ("score:float", KeptColumn("score", "score", "float")),
        ("s=m.score:float", KeptColumn("s", "m.score", "float")),
        ("dc:title", KeptColumn("dc:title", "dc:title")),
    ],
)
def test_names(text: str, column: KeptColumn) -> None:
    assert parse_keep(text) == column
    for wrong in ("", "=a", "a=", "a..b", ".a", ":text"):
        with pytest.raises(ValueError, match="FIELD"):
            parse_keep(wrong)


def test_a_field_that_no_input_has_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(json.dumps({"text": "t", "n": 1, "tags": ["x"], "o": {"p": 1}}) + "\n")
    probes = probe_inputs(list_inputs([str(tmp_path / "a.jsonl")], "auto")[0], "text")
    check_kept("it", [parse_keep(field) for field in ("n", "o.p", "tags", "nn:text")], probes)
    for field in ("nn", "o"):
        with pytest.raises(
            UsageError, match=f"no field '{field}' .* are n, o.p, tags, text; .* {field}:text"
        ):
            check_kept("it", [parse_keep(field)], probes)
    (tmp_path / "c.txt").write_text("plain")
    plain = probe_inputs(list_inputs([str(tmp_path / "c.txt")], "auto")[0], "text")
    with pytest.raises(UsageError, match=r"plain text has no fields to keep.*c\.txt"):
        check_kept("it", [parse_keep("n")], plain)
