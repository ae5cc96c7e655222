"""The parser of JSON Lines against the json module: texts, reasons and kept columns."""

from __future__ import annotations

import json
import math
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pretok.read.formats.json_parser import parse_lines
from pretok.read.formats.json_scan import MAX_DEPTH
from pretok.read.kept import LONGEST_VALUE, KeptColumn
from pretok.read.rejects import REASONS

KINDS = ("text", "integer", "float", "boolean")
KEEP = [KeptColumn(name, name, kind) for name in ("id", "meta.url", "a.b.c", "x", "è") for kind in KINDS]
WRONG = object()
"""Stands for a kept value of another type."""
MISSING = object()

names = st.sampled_from(
    ["text", "meta", "meta.text", "url", "meta.url", "a", "b", "c", "a.b.c", "b.c", "id", "è", ""]
)
numbers = (
    st.integers(-(2**64), 2**64) | st.sampled_from([2**63 - 1, 2**63, -(2**63), -(2**63) - 1]) | st.floats()
)
scalars = st.none() | st.booleans() | numbers | st.text(max_size=12)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(names | st.text(max_size=3), inner, max_size=4),
    max_leaves=12,
)  # fmt: skip
objects = st.dictionaries(names | st.text(max_size=3), values, max_size=5)
records = objects | values | objects.map(lambda record: {**record, "text": "t"})


def parse(data: bytes, field: str = "text") -> tuple[list[str], list[bytes]]:
    """(reason of each line, accepted texts)."""
    parsed = parse_lines(np.frombuffer(data, np.uint8), field)
    assert parsed.places.shape == (len(parsed.status), 2)
    texts = [parsed.texts[a:b].tobytes() for a, b in pairwise(parsed.offsets)]
    return [REASONS[status] for status in parsed.status], texts


def look_up(record: Any, field: str) -> Any:
    """The value by path, else by the whole name."""
    value = record
    for name in field.split("."):
        if not isinstance(value, dict) or name not in value:
            return record.get(field, MISSING)
        value = value[name]
    return value


def reason_of(record: Any, field: str) -> str:
    if not isinstance(record, dict):
        return "not_an_object"
    match look_up(record, field):
        case None:
            return "null_text"
        case str(text):
            return "" if text else "empty_text"
        case value:
            return "missing_field" if value is MISSING else "text_not_a_string"


def kept_value(value: Any, kind: str) -> Any:
    """What is kept of a value."""
    if value is None or value is MISSING:
        return None
    if kind == "text" and isinstance(value, str):
        return value
    if kind == "boolean" and isinstance(value, bool):
        return value
    if kind == "integer" and type(value) is int and -(2**63) <= value < 2**63:
        return value
    if kind == "float" and type(value) in (int, float):
        return float(value)
    return WRONG


def same(a: Any, b: Any) -> bool:
    return a == b or (isinstance(a, float) and isinstance(b, float) and math.isnan(a) and math.isnan(b))


@given(
    st.lists(records, min_size=1, max_size=6),
    st.sampled_from(["text", "text", "meta.text", "a.b.c", "a..b", ".a", "a.", "è"]),
    st.sampled_from([(",", ":"), (" , ", "\t: ")]),
    st.booleans(),
)
def test_lines_are_what_the_json_module_reads(documents, field, separators, escaped):
    lines = [json.dumps(d, ensure_ascii=escaped, separators=separators) for d in documents]
    if escaped:  # keys too
        lines = [line.replace('"te', '"\\u0074e').replace('"a', '"\\u0061') for line in lines]
    block = np.frombuffer("\n".join(lines).encode(), np.uint8)
    parsed = parse_lines(block, field, KEEP)
    reasons = [reason_of(record, field) for record in documents]
    assert [REASONS[status] for status in parsed.status] == reasons
    good = [record for record, reason in zip(documents, reasons, strict=True) if not reason]
    texts = [parsed.texts[a:b].tobytes().decode() for a, b in pairwise(parsed.offsets)]
    assert texts == [look_up(record, field) for record in good]
    for column, (found, wrong) in zip(KEEP, parsed.kept, strict=True):
        wanted = [kept_value(look_up(record, column.field), column.type) for record in good]
        assert wrong.tolist() == [value is WRONG for value in wanted], (lines, column)
        shown = [None if value is WRONG else value for value in wanted]
        assert all(map(same, found.to_pylist(), shown)), (lines, column)


def test_every_byte_at_every_place_of_a_word():
    """Strings are scanned eight bytes at a time; whatever interrupts them is seen wherever it stands."""
    lines = [
        b'{"text": "%s%c%s", "%c": 1}' % (b"a" * before, byte, b"b" * (17 - before), byte)
        for byte in range(128)
        if byte != ord("\n")
        for before in range(18)
    ]
    wanted = []
    for line in lines:
        try:
            wanted.append(json.loads(line)["text"].encode())
        except ValueError:
            wanted.append(None)
    reasons, texts = parse(b"\n".join(lines))
    assert reasons == ["malformed_json" if text is None else "" for text in wanted]
    assert texts == [text for text in wanted if text is not None]
    assert 1800 > len(texts) > 1500


@given(st.binary(max_size=60), objects, st.floats(0, 1, exclude_max=True))
def test_any_bytes_give_one_status_a_line_and_a_cut_line_is_malformed(data, document, share):
    reasons, texts = parse(data)
    lines = data.removesuffix(b"\n").split(b"\n") if data else []
    assert len(reasons) == sum(line.strip(b" \t\r") != b"" for line in lines)
    assert reasons.count("") == len(texts)
    line = json.dumps({**document, "text": "x"}).encode()
    assert parse(line[: 1 + int(share * (len(line) - 1))]) == (["malformed_json"], [])


BAD = "malformed_json"


@pytest.mark.parametrize(
    ("line", "found"),
    [
        (b'{"text":"a\\ud800b"}', "lone_surrogate"),
        (b'{"text":"\\udc00"}', "lone_surrogate"),
        (b'{"text":"\\ud800\\u0041"}', "lone_surrogate"),
        (b'{"text":"a","other":"\\ud800"}', b"a"),
        (b'{"text":"a","score":NaN,"x":-Infinity}', b"a"),
        *((line, BAD) for line in (
            b'{"text":"a"}{"text":"b"}', b'{"text":"a" "id":1}', b'{"text":"a",}', b"{'text':'a'}",
            b'{"text":"a\tb"}', b'{"text":"\\x41"}', b'{"text":"\\u12g4"}', b'{"text":"a","n":01}',
            b'{"text":"a","n":1.}', b'{"text":"a","n":tru}', b'{"meta":{"text":"a"}', b'{"meta":{"text":"a"}}}',
            b'{"meta":{"text":"a"},}', b'{"meta":{,"text":"a"}}', b'{"meta":{"text":"a"]}',
        )),
        (b'{"te\\ud800xt":"a"}', "missing_field"),
        (b'{"text":"a","\\udc00text":""}', b"a"),
        (b'{"text":"a","text":"b"}', b"b"),
        (b'{"text":"a","text":null}', "null_text"),
        (b'{"a":' + b"[" * MAX_DEPTH + b"]" * MAX_DEPTH + b',"text":"x"}', b"x"),
        (b'{"a":' + b"[" * (MAX_DEPTH + 1) + b"]" * (MAX_DEPTH + 1) + b',"text":"x"}', BAD),
        (b'{"meta.text":"whole","meta":{"text":"path"}}', b"path"),
        (b'{"meta":{"text":"a"},"meta":{"text":"b"}}', b"b"),
        (b'{"meta":{"text":"a"},"meta":{}}', "missing_field"),
        (b'{"meta":{"text":"a"},"meta":7}', "missing_field"),
        (b'{"meta": { } , "meta" : { "x" : { } , "text" : "a" } }', b"a"),
    ],
)  # fmt: skip
def test_hand_made_lines(line, found):
    """The text of a line, or the reason why there is none; the next line is read either way."""
    reasons, texts = parse(line + b"\n" + b'{"text":"next"}', "text")
    if b"meta" in line:
        reasons, texts = parse(line + b"\n" + b'{"meta":{"text":"next"}}', "meta.text")
    assert reasons == ["" if isinstance(found, bytes) else found, ""]
    assert texts == [*([found] if isinstance(found, bytes) else []), b"next"]


@pytest.mark.parametrize(
    ("line", "value"),
    [
        ('{"text":"t","x":"a","x":"b"}', "b"),
        ('{"x":{"x":1},"text":"t", "\\u0078" : "\\u00e8\\n\\ud83d\\ude00"}', "è\n😀"),
        ('{"text":"t","x":-1.50}', None),
        ('{"text":"t","x":"\\ud800"}', None),
        ('{"text":"t","x":"a","x\\ud800":"b","\\udfffx":"c"}', "a"),
        ('{"text":"t","x":"' + "a" * LONGEST_VALUE + '"}', "a" * LONGEST_VALUE),
        ('{"text":"t","x":"' + "a" * (LONGEST_VALUE + 1) + '"}', None),
        ('  {"text":"t" ,\t"x"\t: "y"  }  \r', "y"),
    ],
)
def test_hand_made_values(line, value):
    parsed = parse_lines(np.frombuffer(line.encode(), np.uint8), "text", [KeptColumn("x", "x", "text")])
    assert parsed.kept[0][0].to_pylist() == [value]


@pytest.mark.parametrize("record", [b"{}", b'{"a":1}'])
def test_whole_records_may_be_shorter_than_any_text(record):
    parsed = parse_lines(np.frombuffer(50 * (record + b"\n"), np.uint8), "", raw=True)
    assert parsed.offsets.tolist() == [len(record) * n for n in range(51)]


def test_limits_of_texts_and_lines():
    data = (
        b'{"text":"abcd"}\n{"text":"abcde"}\n{"text":"\\u0061bcd"}\n{"x":1,"text":"abcd"}\nnot json, and long'
    )
    parsed = parse_lines(np.frombuffer(data, np.uint8), "text", (), 4, 20)
    assert [REASONS[s] for s in parsed.status] == ["", "too_long", "", "too_long", "malformed_json"]
    assert bytes(parsed.texts) == b"abcdabcd"
