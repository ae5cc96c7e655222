"""Kept fields: equal to what the json module reads, whatever the escapes, nesting and types; tables give the same."""

from __future__ import annotations

import json
import math
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

from pretok.base.console import SILENT, Silent
from pretok.base.errors import UsageError
from pretok.read.jsonl import OK, parse_lines
from pretok.read.kept import (
    LEDGER_NAMES,
    LONGEST_VALUE,
    Keep,
    KeptColumn,
    KeptValues,
    kept_tables,
    parse_keep,
)
from pretok.read.partition import Piece
from pretok.read.probe import decide_types, probe_inputs
from pretok.read.readers import RecordFormat, read_piece
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


def expected(value: Any, kind: str) -> tuple[Any, bool]:
    """(what is kept, whether it is of another type)."""
    if value is None:
        return None, False
    if kind == "text" and isinstance(value, str):
        fits = len(value.encode("utf-8", "surrogatepass")) <= LONGEST_VALUE
        return (value, False) if fits else (None, True)
    if kind == "boolean" and isinstance(value, bool):
        return value, False
    if kind == "integer" and type(value) is int and -(2**63) <= value < 2**63:
        return value, False
    if kind == "float" and type(value) in (int, float):
        return float(value), False
    return None, True


def kept(lines: list[str], columns: list[KeptColumn]) -> KeptValues:
    block = np.frombuffer("\n".join(lines).encode(), np.uint8)
    found = parse_lines(block, "text", columns)
    assert (found.status == OK).all()
    return found.kept


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
        for row, value in enumerate(found.columns[at].to_pylist()):
            wanted, wrong = expected(look_up(records[row], column.field), column.type)
            assert same(value, wanted), (lines[row], column)
            assert found.wrong[at, row] == wrong


@pytest.mark.parametrize(
    ("line", "value"),
    [
        ('{"text":"t","x":"a","x":"b"}', "b"),
        ('{"x":{"x":1},"text":"t", "\\u0078" : "\\u00e8\\n\\ud83d\\ude00"}', "è\n😀"),
        ('{"text":"t","x":{}}', None),
        ('{"text":"t","x":"\\ud800"}', None),
        ('{"text":"t","x":"a","x\\ud800":"b","\\udfffx":"c"}', "a"),
        ('{"text":"t","x":"' + "a" * LONGEST_VALUE + '"}', "a" * LONGEST_VALUE),
        ('{"text":"t","x":"' + "a" * (LONGEST_VALUE + 1) + '"}', None),
        ('  {"text":"t" ,\t"x"\t: "y"  }  \r', "y"),
    ],
)
def test_hard_lines(line: str, value: str | None) -> None:
    (column,) = kept([line], [KeptColumn("x", "x", "text")]).columns
    assert column.to_pylist() == [value]


def test_a_value_that_is_no_utf8_is_of_another_type() -> None:
    block = np.frombuffer(b'{"text":"t","x":"a"}\n{"text":"t","x":"\xff"}\n{"text":"t","x":"b"}\n', np.uint8)
    found = parse_lines(block, "text", [KeptColumn("x", "x", "text")]).kept
    assert found.columns[0].to_pylist() == ["a", None, "b"]
    assert found.wrong.tolist() == [[False, True, False]]


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
    fields = ("id", "n", "score=meta.score", "ok=meta.ok", "absent:text")
    found = []
    for name in ("a.jsonl", "a.parquet", "saved"):
        (file,) = list_inputs([str(tmp_path / name)], "auto")[0]
        columns = decide_types("it", [parse_keep(f) for f in fields], probe_inputs([file], "text"), SILENT)
        assert [column.type for column in columns] == ["text", "integer", "float", "boolean", "text"]
        batches = list(read_piece(Piece(file), 0, RecordFormat(), Keep(columns)))
        found.append([[v for b in batches for v in b.kept[i].to_pylist()] for i in range(len(fields))])
    left = [row for row in rows if row["text"]]
    assert found[0] == [
        [row["id"] for row in left],
        [row["n"] for row in left],
        [row["meta"]["score"] for row in left],
        [row["meta"]["ok"] for row in left],
        [None] * 6,
    ]
    assert found[0] == found[1] == found[2]


@pytest.mark.parametrize(
    ("column", "kind", "values", "wrong"),
    [
        (pa.array([1, None, 3], pa.int8()), "integer", [1, None, 3], []),
        (pa.array([1, None, 3], pa.int8()), "float", [1.0, None, 3.0], []),
        (pa.array([1, None, 3], pa.int8()), "text", [None] * 3, [0, 2]),
        (pa.array([2**63, 1, None], pa.uint64()), "integer", [None, 1, None], [0]),
        (pa.array(["a", "b", "a"]).dictionary_encode(), "text", ["a", "b", "a"], []),
        (pa.array(["a", "x" * (LONGEST_VALUE + 1), None]), "text", ["a", None, None], [1]),
        (pa.array([date(2020, 2, 3), None, None]), "text", ["2020-02-03", None, None], []),
        (pa.array([Decimal("1.50"), None, None]), "text", ["1.50", None, None], []),
        (pa.array([[1], None, [2]]), "text", [None] * 3, [0, 2]),
        (pa.array([1.5, math.nan, None], pa.float32()), "float", [1.5, math.nan, None], []),
        (pa.array([1.5, 2.0, None]), "integer", [None] * 3, [0, 1]),
        (pa.array([True, None, False]), "boolean", [True, None, False], []),
    ],
)
def test_columns_of_tables(column: pa.Array, kind: str, values: list[Any], wrong: list[int]) -> None:
    found = kept_tables([column], [KeptColumn("x", "x", kind)], len(column))
    assert all(same(a, b) for a, b in zip(found.columns[0].to_pylist(), values, strict=True))
    assert np.flatnonzero(found.wrong[0]).tolist() == wrong


def test_names() -> None:
    assert parse_keep("id") == KeptColumn("id", "id")
    assert parse_keep("meta.url") == KeptColumn("meta.url", "meta.url")
    assert parse_keep("url=meta.url") == KeptColumn("url", "meta.url")
    assert parse_keep("score:float") == KeptColumn("score", "score", "float")
    assert parse_keep("s=m.score:float") == KeptColumn("s", "m.score", "float")
    assert parse_keep("dc:title") == KeptColumn("dc:title", "dc:title")
    for name in LEDGER_NAMES - {"pretok:file"}:
        assert parse_keep(name) == KeptColumn(f"{name}_", name)
    assert parse_keep("Source:text") == KeptColumn("Source_", "Source", "text")
    assert parse_keep("where=source") == KeptColumn("where", "source")
    for wrong in ("", "=a", "a=", "a..b", ".a", ":text"):
        with pytest.raises(ValueError, match="FIELD"):
            parse_keep(wrong)


class Told(Silent):
    """Keeps notices."""

    def __init__(self) -> None:
        self.notices: list[str] = []

    def notice(self, text: str) -> None:
        self.notices.append(text)


def test_types_are_decided_over_all_inputs_or_refused_by_name(tmp_path: Path) -> None:
    def write(name: str, **fields: Any) -> str:
        (tmp_path / name).write_text(json.dumps({"text": "t", **fields}) + "\n")
        return str(tmp_path / name)

    paths = [
        write("a.jsonl", n=1, m=1, u=None, tags=["x"], o={"p": 1}),
        write("b.jsonl", n=1.5, m="one", u=None),
    ]
    probes = probe_inputs(list_inputs(paths, "auto")[0], "text")
    told = Told()

    def decide(field: str) -> str:
        return decide_types("it", [parse_keep(field)], probes, told)[0].type

    assert decide("n") == "float"
    assert decide("m:text") == "text"
    with pytest.raises(UsageError, match=r"'m' is integer in .*a\.jsonl and text in .*b\.jsonl; .* m:text"):
        decide("m")
    with pytest.raises(
        UsageError, match=r"no field 'nn' in .*; there are m, n, o.p, tags, text, u; .* nn:text"
    ):
        decide("nn")
    with pytest.raises(UsageError, match=r"'tags' is list or object in .*a\.jsonl"):
        decide("tags")
    with pytest.raises(UsageError, match="no field 'o'"):
        decide("o")
    assert told.notices == []
    assert decide("u") == "text"
    assert "'u' has no value" in told.notices[0]
    (tmp_path / "c.txt").write_text("plain")
    plain = probe_inputs(list_inputs([str(tmp_path / "c.txt")], "auto")[0], "text")
    with pytest.raises(UsageError, match=r"plain text has no fields to keep.*c\.txt"):
        decide_types("it", [parse_keep("n")], plain, told)
