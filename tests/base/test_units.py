"""Numbers as people write and read them."""

from __future__ import annotations

import time

import pytest

from pretok.base.units import duration, human, human_bytes, listed, parse_count, plural


@pytest.mark.parametrize(
    ("text", "value"), [("1e6", 10**6), ("1E+3", 1000), ("1.5e1", 15), ("2e3M", 2 * 10**9), ("1e30", 10**30)]
)
def test_counts_with_an_exponent_are_exact(text, value):
    assert parse_count(text) == value


@pytest.mark.parametrize(
    "text", ["-5", "1.5", "1e-3", "1e31", "1e99999999", "9" * 5000, "e6", "1e", "٣", "nan"]
)
def test_what_is_no_count_is_refused_at_once(text):
    began = time.thread_time()
    with pytest.raises(ValueError, match="is not a") as refusal:
        parse_count(text)
    assert time.thread_time() - began < 1
    assert len(str(refusal.value)) < 200


def test_sizes_counts_and_durations():
    assert [human_bytes(n) for n in (12, 2_980_000_000, 120e6)] == ["12 B", "2.98 GB", "120 MB"]
    numbers = (999_499, 999_500, 999_999, 999_999_999, 1_234_567e12)  # never as powers of ten
    assert [human(n) for n in numbers] == ["999 k", "1 M", "1 M", "1 B", "1234567 T"]
    assert [plural(n, "input") for n in (0, 1, 2000)] == ["0 inputs", "1 input", "2,000 inputs"]
    seconds = (0, 59.4, 59.7, 240, 3599, 4800, 86_400, 90_000)
    shown = "0 s, 59 s, 1 min, 4 min, 1 h 0 min, 1 h 20 min, 1 d 0 h, 1 d 1 h"
    assert ", ".join(map(duration, seconds)) == shown


def test_a_list_says_how_much_of_it_is_not_shown():
    assert listed([], 2) == ""
    assert listed(["a", "b"], 2) == "a, b"
    assert listed(["a", "b", "c"], 2) == "a, b and 1 more"
    assert listed(["a"], 2, "\n  ", count=1234) == "a\n  and 1,233 more"
