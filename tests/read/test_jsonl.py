"""The JSON Lines parser against the json module."""

import json
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pretok.read.jsonl import MAX_DEPTH, parse_lines
from pretok.read.rejects import REASONS


def parse(data: bytes, field: str = "text") -> tuple[list[str], list[bytes]]:
    """(reason of each line, accepted texts)."""
    texts, offsets, places, status, *_ = parse_lines(np.frombuffer(data, np.uint8), field)
    assert places.shape == (len(status), 2)
    cut = [texts[a:b].tobytes() for a, b in pairwise(offsets)]
    return [REASONS[s] for s in status], cut


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
objects = st.dictionaries(
    st.sampled_from(["text", "té", "id", "te", "texts"]) | st.text(), values, max_size=5
)


def expected(line: str) -> tuple[str, str | None]:
    """What the json module makes of a line: (reason, text)."""
    value = json.loads(line)
    if not isinstance(value, dict):
        return "not_an_object", None
    if "text" not in value:
        return "missing_field", None
    text = value["text"]
    if text is None:
        return "null_text", None
    if not isinstance(text, str):
        return "text_not_a_string", None
    return ("", text) if text else ("empty_text", None)


@given(st.lists(objects | values, min_size=1, max_size=6), st.booleans(), st.sampled_from([None, 1]))
def test_equals_the_json_module(documents, ascii_only, spaces):
    separators = (" , ", "\t: ") if spaces else (",", ":")
    lines = [json.dumps(d, ensure_ascii=ascii_only, separators=separators) for d in documents]
    reasons, texts = parse("\n".join(lines).encode())
    wanted = [expected(line) for line in lines]
    assert reasons == [reason for reason, _ in wanted]
    assert [t.decode() for t in texts] == [text for _, text in wanted if text is not None]


def test_every_byte_at_every_place_of_a_word():
    """Strings are scanned eight bytes at a time; whatever interrupts them is seen wherever it stands."""
    lines = [
        b'{"text": "'
        + b"a" * before
        + bytes([byte])
        + b"b" * (17 - before)
        + b'", "'
        + bytes([byte])
        + b'": 1}'
        for byte in range(128)
        if byte != ord("\n")
        for before in range(18)
    ]
    reasons, texts = parse(b"\n".join(lines))
    wanted = []
    for line in lines:
        try:
            wanted.append(json.loads(line)["text"].encode())
        except ValueError:
            wanted.append(None)
    assert reasons == ["malformed_json" if text is None else "" for text in wanted]
    assert texts == [text for text in wanted if text is not None]
    assert 1800 > len(texts) > 1500


@given(st.binary(max_size=60))
def test_any_bytes_give_one_status_a_line(data):
    reasons, texts = parse(data)
    lines = data.removesuffix(b"\n").split(b"\n") if data else []
    assert len(reasons) == sum(line.strip(b" \t\r") != b"" for line in lines)
    assert reasons.count("") == len(texts)


@given(objects, st.data())
def test_a_cut_line_is_malformed(document, data):
    line = json.dumps({**document, "text": "x"}).encode()
    cut = data.draw(st.integers(1, len(line) - 1))
    assert parse(line[:cut]) == (["malformed_json"], [])


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b'{"text":"a\\ud800b"}', "lone_surrogate"),
        (b'{"text":"\\udc00"}', "lone_surrogate"),
        (b'{"text":"\\ud800\\u0041"}', "lone_surrogate"),
        (b'{"text":"a","other":"\\ud800"}', ""),
        (b'{"text":"a","score":NaN,"x":-Infinity}', ""),
        (b'{"text":"a"}{"text":"b"}', "malformed_json"),
        (b'{"text":"a" "id":1}', "malformed_json"),
        (b'{"text":"a",}', "malformed_json"),
        (b"{'text':'a'}", "malformed_json"),
        (b'{"text":"a\tb"}', "malformed_json"),
        (b'{"text":"\\x41"}', "malformed_json"),
        (b'{"text":"\\u12g4"}', "malformed_json"),
        (b'{"text":"a","n":01}', "malformed_json"),
        (b'{"text":"a","n":1.}', "malformed_json"),
        (b'{"text":"a","n":tru}', "malformed_json"),
        (b'{"\\u0074ext":"a"}', ""),
        (b'{"te\\ud800xt":"a"}', "missing_field"),
        (b'{"text":"a","\\udc00text":""}', ""),
        (b'{"text":"a","text":"b"}', ""),
        (b'{"text":"a","text":null}', "null_text"),
        (b"[1]", "not_an_object"),
    ],
)
def test_hand_made_lines(line, reason):
    reasons, texts = parse(line + b"\n" + b'{"text":"next"}')
    assert reasons == [reason, ""]
    assert texts[-1] == b"next"


def test_nesting_is_bounded_not_crashing():
    deep = b'{"a":' + b"[" * MAX_DEPTH + b"]" * MAX_DEPTH + b',"text":"x"}'
    deeper = b'{"a":' + b"[" * (MAX_DEPTH + 1) + b"]" * (MAX_DEPTH + 1) + b',"text":"x"}'
    assert parse(deep + b"\n" + deeper)[0] == ["", "malformed_json"]


paths = st.sampled_from(["text", "meta.text", "a.b.c", "a..b", ".a", "a."])
keys = st.sampled_from(["text", "meta", "meta.text", "a", "b", "c", "", "a.b.c", "b.c"])
nested = st.recursive(
    st.none() | st.text() | st.integers(),
    lambda inner: st.dictionaries(keys, inner, max_size=4) | st.lists(inner, max_size=2),
    max_leaves=12,
)


def look_up(value, names: list[str]) -> tuple[str, str | None]:
    for name in names:
        if not isinstance(value, dict) or name not in value:
            return "missing_field", None
        value = value[name]
    return expected(json.dumps({"text": value}))


@given(st.lists(st.dictionaries(keys, nested, max_size=4), min_size=1, max_size=5), paths, st.booleans())
def test_a_dotted_name_is_a_path_or_else_a_key(documents, field, escaped):
    lines = [json.dumps(document) for document in documents]
    if escaped:
        lines = [line.replace('"te', '"\\u0074e').replace('"a', '"\\u0061') for line in lines]
    wanted = []
    for line in lines:
        found = look_up(json.loads(line), field.split("."))
        wanted.append(look_up(json.loads(line), [field]) if found[0] == "missing_field" else found)
    reasons, texts = parse("\n".join(lines).encode(), field)
    assert reasons == [reason for reason, _ in wanted]
    assert [t.decode() for t in texts] == [text for _, text in wanted if text is not None]


@pytest.mark.parametrize(
    ("line", "text"),
    [
        (b'{"meta.text":"whole","meta":{"text":"path"}}', b"path"),
        (b'{"meta":{"text":"a"},"meta":{"text":"b"}}', b"b"),
        (b'{"meta":{"text":"a"},"meta":{}}', "missing_field"),
        (b'{"meta":{"text":"a"},"meta":7}', "missing_field"),
        (b'{"meta":{"text":"a"}', "malformed_json"),
        (b'{"meta":{"text":"a"}}}', "malformed_json"),
        (b'{"meta":{"text":"a"},}', "malformed_json"),
        (b'{"meta":{,"text":"a"}}', "malformed_json"),
        (b'{"meta":{"text":"a"]}', "malformed_json"),
        (b'{"meta": { } , "meta" : { "x" : { } , "text" : "a" } }', b"a"),
    ],
)
def test_hand_made_paths(line, text):
    """The text, or the reason why there is none."""
    assert parse(line, "meta.text") == (([""], [text]) if isinstance(text, bytes) else ([text], []))


def test_limits_of_texts_and_lines():
    data = (
        b'{"text":"abcd"}\n{"text":"abcde"}\n{"text":"\\u0061bcd"}\n{"x":1,"text":"abcd"}\nnot json, and long'
    )
    lines = np.frombuffer(data, np.uint8)
    texts, offsets, _, status, *_ = parse_lines(lines, "text", (), 4, 20)
    assert [REASONS[s] for s in status] == ["", "too_long", "", "too_long", "malformed_json"]
    assert bytes(texts) == b"abcdabcd"
    assert offsets.tolist() == [0, 4, 8]
