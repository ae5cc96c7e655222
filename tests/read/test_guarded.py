"""A function in a process of its own, which some items end."""

import os

import pytest

from pretok.read.guarded import in_child


def half(number):
    if number in (3, 77):
        os.abort()
    return number / 2


def fail(number):
    raise ValueError(f"bad {number}")


def test_only_the_item_that_ends_the_process_has_no_result():
    numbers = list(range(100))
    assert in_child(half, numbers) == [None if n in (3, 77) else n / 2 for n in numbers]
    assert in_child(half, [3]) == [None]
    assert in_child(half, []) == []


def test_what_the_function_raises_is_told():
    with pytest.raises(RuntimeError, match="ValueError: bad 1"):
        in_child(fail, [1])
