"""What ends its process is named by None; everything else is answered."""

from __future__ import annotations

import os
import signal

import pytest

from pretok.read.guarded import in_child, one_child


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


def process(number: int) -> int:
    half(number)
    return os.getpid()


def test_calls_in_a_block_ask_one_process_and_another_one_after_a_crash():
    with one_child():
        first = set(in_child(process, [1, 2])) | set(in_child(process, [5]))
        assert len(first) == 1
        assert in_child(process, [3]) == [None]
        second = set(in_child(process, [1, 2]))
        assert len(second) == 1
        assert second != first
    for pid in first | second:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
    assert in_child(process, [1]) != in_child(process, [1])
