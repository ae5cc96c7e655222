"""Records: what is wrong in a file is named with its place, what is there and what is wanted."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pretok.base.errors import IntegrityError
from pretok.base.records import Count, Record, read_record, to_json


class Inner(Record, frozen=True, omit_defaults=True):
    count: Count
    text: str | None = None


class Outer(Record, frozen=True):
    rows: tuple[Inner, ...]
    named: dict[str, dict[str, Inner]]
    rest: dict[str, Any]


GOOD: dict[str, Any] = {
    "rows": [{"count": 1}], "named": {"it": {"a b": {"count": 2, "text": "x"}}}, "rest": {"x": [1.5, None]}
}  # fmt: skip


def test_a_record_is_written_as_it_was_read() -> None:
    assert to_json(read_record(Outer, GOOD, "file.json")) == GOOD


WRONG: list[tuple[Any, str]] = [
    (
        GOOD | {"rows": [{"count": 1}, {"count": -1}]},
        r"file.json: rows\[1\]\.count: Expected `int` >= 0; the file was",
    ),
    (GOOD | {"rows": [{"count": True}]}, r"rows\[0\]\.count: Expected `int`, got `bool`;"),
    (GOOD | {"rows": [{"count": 1, "text": 5}]}, r"rows\[0\]\.text: Expected `str \| null`, got `int`;"),
    (GOOD | {"named": {"it": {"a b": {}}}}, r"named\[...\]\[...\]: Object missing required field `count`;"),
    (GOOD | {"more": 1}, "file.json: Object contains unknown field `more`"),
    ([], "file.json: Expected `object`, got `array`;"),
]


@pytest.mark.parametrize(("value", "message"), WRONG)
def test_a_wrong_value_is_named(value: Any, message: str) -> None:
    with pytest.raises(IntegrityError, match=message):
        read_record(Outer, value, "file.json")


def test_what_libraries_derive_from_numbers_and_texts_is_written_as_such() -> None:
    version = type("Version", (str,), {})("2.11")
    assert to_json({"share": np.float64(0.5), "torch": version, "both": (1, 2)}) == {
        "share": 0.5, "torch": "2.11", "both": [1, 2]
    }  # fmt: skip
    with pytest.raises(TypeError, match="object is not JSON"):
        to_json(object())
