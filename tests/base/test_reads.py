"""Many small reads: their order, their errors, and in which threads they are done."""

from __future__ import annotations

import threading
import time

import pytest

from pretok.base.reads import LOOK_SECONDS, THREADS, map_reads


def test_quick_reads_stay_in_the_thread_that_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock on which all time that passes is the thread's own, whatever else the machine does."""
    now = 0.0
    monkeypatch.setattr(time, "perf_counter", lambda: now)
    monkeypatch.setattr(time, "thread_time", lambda: now)

    def read(number: int) -> tuple[int, int]:
        nonlocal now
        now += LOOK_SECONDS / 50
        return number, threading.get_ident()

    assert map_reads(read, range(200)) == [(number, threading.get_ident()) for number in range(200)]


@pytest.mark.parametrize("far", [False, True])
def test_reads_that_wait_are_done_by_several_threads_at_once(far: bool) -> None:
    together = threading.Barrier(4, timeout=60)

    def read(number: int) -> int:
        if number < 8 and not far:
            time.sleep(LOOK_SECONDS)
        else:
            together.wait()  # passes only where four are under way
        return number

    assert map_reads(read, range(8 + 4 * THREADS), far=far) == list(range(8 + 4 * THREADS))


@pytest.mark.parametrize("far", [False, True])
def test_what_a_read_raises_is_raised_and_nothing_is_no_work(far: bool) -> None:
    def read(number: int) -> float:
        return 1 / (number - 50)

    with pytest.raises(ZeroDivisionError):
        map_reads(read, range(100), far=far)
    assert map_reads(read, [], far=far) == []
