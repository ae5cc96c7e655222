"""What ends its process is named by None; everything else is answered."""

from __future__ import annotations

import os
import signal

import pytest

from pretok.read.guarded import in_child


def half(number: int) -> float:
    if number in (3, 77):
        os.abort()
    if number == -1:
        raise ValueError("not mine")
    if number == -2:
        os.kill(os.getpid(), signal.SIGKILL)
    return number / 2


@pytest.fixture(autouse=True)
def importable(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", os.path.dirname(__file__))  # noqa: PTH120 - a string is wanted


def test_every_item_but_the_guilty_ones_is_answered():
    numbers = list(range(100))
    assert in_child(half, numbers) == [None if n in (3, 77) else n / 2 for n in numbers]
    assert in_child(half, [3]) == [None]
    assert in_child(half, []) == []


@pytest.mark.parametrize(("number", "message"), [(-1, "ValueError: not mine"), (-2, "ended with -9")])
def test_another_end_is_not_the_item_s_fault(number, message):
    with pytest.raises(RuntimeError, match=message):
        in_child(half, [1, number])
