"""The JSON that we write and read is what the json module writes and reads, with msgspec loaded or without."""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path

import msgspec  # noqa: F401 - as in every command
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pretok.base.errors import IntegrityError
from pretok.base.storage import canonical_json, fingerprint, read_json, write_json

SCALARS = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner) | st.dictionaries(st.text() | st.integers(), inner) | st.lists(inner).map(tuple)
    ),
)


@given(value=VALUES)
def test_the_text_is_that_of_the_library(tmp_path_factory: pytest.TempPathFactory, value: object) -> None:
    path = tmp_path_factory.getbasetemp() / "value.json"
    try:
        expected = json.dumps(value, ensure_ascii=False, indent=1, allow_nan=False).encode()
    except UnicodeEncodeError:  # half a surrogate pair
        return
    write_json(path, value)
    assert path.read_bytes() == expected + b"\n"


@pytest.mark.parametrize(
    "value", [{}, [], {"a": {}}, Counter("aab"), {None: 1, True: 2, 1.5: 3}, "\x1f\u2028é"]
)
def test_empty_and_odd_values_too(tmp_path: Path, value: object) -> None:
    write_json(tmp_path / "value.json", value)
    assert (tmp_path / "value.json").read_text("utf-8") == json.dumps(
        value, ensure_ascii=False, indent=1
    ) + "\n"


@pytest.mark.parametrize("value", [float("nan"), {"a": float("inf")}, {"a": {1, 2}}, [object()]])
def test_what_is_no_json_is_refused_and_leaves_nothing(tmp_path: Path, value: object) -> None:
    with pytest.raises((ValueError, TypeError)):
        write_json(tmp_path / "value.json", value)
    assert not list(tmp_path.iterdir())


def read(path: Path) -> object:
    try:
        return read_json(path)
    except IntegrityError as error:
        return str(error)


ODD = [
    *("NaN", "[1e999]", "[1e5, 1E-7, -0.0, 0.1]", "9" * 30, "9" * 5000, "[" * 5000, "", " null ", "01"),
    *('"\\ud800"', '"\\u0041\\n"', '"\t"', '{"\u2028": "\x7f"}', "[1,]", "\ufeff[1]", "[true, false, null]"),
    '{"a": 1, "b": 2, "a": 3}',
]  # fmt: skip


@given(
    value=VALUES.map(lambda value: json.dumps(value).encode())
    | st.sampled_from(ODD).map(str.encode)
    | st.binary()
)
def test_any_file_is_read_alike_with_msgspec_and_without(
    tmp_path_factory: pytest.TempPathFactory, value: bytes
) -> None:
    path = tmp_path_factory.getbasetemp() / "read.json"
    path.write_bytes(value)
    quick = read(path)
    with pytest.MonkeyPatch.context() as patch:
        patch.delitem(sys.modules, "msgspec")
        assert repr(read(path)) == repr(quick)


@given(value=VALUES)
def test_a_fingerprint_does_not_depend_on_what_was_expected(value: object) -> None:
    try:
        canonical_json(value)
    except (UnicodeEncodeError, TypeError):  # half a surrogate pair; keys of two kinds
        return
    found = fingerprint(value)
    assert fingerprint(value, found) == fingerprint(value, found[::-1]) == found
