"""Records: what is wrong in a file is named with its place, what is there and what is wanted."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pretok.base.errors import IntegrityError
from pretok.base.records import Count, Digest, Inside, Record, Root, read_record, to_json


class Inner(Record, frozen=True, omit_defaults=True):
    count: Count
    text: str | None = None


class Outer(Record, frozen=True):
    rows: tuple[Inner, ...]
    rest: dict[str, Any]


GOOD: dict[str, Any] = {"rows": [{"count": 1}, {"count": 2, "text": "x"}], "rest": {"x": [1.5, None]}}


def test_a_record_is_written_as_it_was_read() -> None:
    assert to_json(read_record(Outer, GOOD, "file.json")) == GOOD
    version = type("Version", (str,), {})("2.11")  # libraries derive types from numbers and texts
    assert to_json([np.float64(0.5), version, (1, 2)]) == [0.5, "2.11", [1, 2]]
    with pytest.raises(TypeError, match="object is not JSON"):
        to_json(object())


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (
            GOOD | {"rows": [{"count": 1}, {"count": -1}]},
            r"rows\[1\]\.count: Expected `int` >= 0; the file was",
        ),
        (GOOD | {"rows": [{"count": True}]}, r"rows\[0\]\.count: Expected `int`, got `bool`;"),
        (GOOD | {"rows": [{}]}, r"rows\[0\]: Object missing required field `count`;"),
        (GOOD | {"more": 1}, "Object contains unknown field `more`"),
    ],
)
def test_a_wrong_value_is_named(value: Any, message: str) -> None:
    with pytest.raises(IntegrityError, match=f"file.json: {message}"):
        read_record(Outer, value, "file.json")


@pytest.mark.parametrize(
    ("kind", "good", "bad"),
    [
        (Inside, ["a", "a/b.bin", "..a/b..", ".removal/0"],
         ["", "/a", "..", "a/../b", "a//b", "a/", "./a", "a\0", "a\n/.."]),
        (Digest, ["0a" * 16], ["", "0A" * 16, "0a" * 16 + "\n", "../" + "0a" * 16, "0a" * 15]),
        (Root, ["0a" * 32], ["", "0A" * 32, "0a" * 32 + "\n", "../../OUTSIDE/it", "0a" * 16]),
    ],
)  # fmt: skip
def test_paths_and_digests_are_checked(kind: Any, good: list[str], bad: list[str]) -> None:
    for value in good:
        assert read_record(kind, value, "file.json") == value
    for value in bad:
        with pytest.raises(IntegrityError, match=r"file\.json"):
            read_record(kind, value, "file.json")
