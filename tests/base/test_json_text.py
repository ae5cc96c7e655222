"""The JSON that we write is what the json module writes."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pretok.base.storage import write_json

KEYS = st.text() | st.integers()
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner).map(tuple) | st.dictionaries(KEYS, inner),
)


@given(value=VALUES)
@example(value=Counter("aab"))
@example(value={None: 1, True: 2, 1.5: [[], {}]})
def test_the_text_is_that_of_the_library(tmp_path_factory: pytest.TempPathFactory, value: object) -> None:
    path = tmp_path_factory.getbasetemp() / "value.json"
    write_json(path, value)
    assert path.read_text("utf-8") == json.dumps(value, ensure_ascii=False, indent=1) + "\n"


def test_what_is_no_json_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    for value in (float("nan"), {"a": {1, 2}}, "\udcff"):
        with pytest.raises((ValueError, TypeError)):
            write_json(tmp_path / "value.json", value)
    assert not list(tmp_path.iterdir())
