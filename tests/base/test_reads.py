"""Many small reads: their order, their errors, and that several wait at once."""

from __future__ import annotations

import threading
import time
from itertools import count

import pytest
from support import until

from pretok.base.reads import THREADS, map_reads, read_ahead


@pytest.mark.parametrize("size", [0, 1, 4, 4 * THREADS, 1000])
def test_reads_keep_their_order_wait_at_once_and_raise(size: int) -> None:
    together = threading.Barrier(4, timeout=60)

    def read(number: int) -> int:
        if number < 4 <= size <= 4 * THREADS:
            together.wait()  # passes only where four are under way
        return number

    assert map_reads(read, range(size)) == list(range(size))
    if size:
        with pytest.raises(ZeroDivisionError):
            map_reads(lambda number: 1 // (size - 1 - number), range(size))


def test_batches_are_read_side_by_side_in_order_and_no_further_than_that():
    together, begun = threading.Barrier(THREADS), []

    def read(number: int) -> int:
        begun.append(number)
        if number < THREADS:
            together.wait(60)
        return number

    endless = read_ahead(read, ([number] for number in count()))
    assert [next(endless) for _ in range(3)] == [0, 1, 2]
    until(lambda: len(begun) == THREADS + 3)
    time.sleep(0.05)
    assert len(begun) == THREADS + 3
    endless.close()
    until(lambda: not any(thread.name.startswith("read-ahead") for thread in threading.enumerate()))


def test_an_error_comes_when_its_batch_has_its_turn():
    items = read_ahead(lambda number: 1 // number, [[1], [1], [0], [1]])
    assert [next(items), next(items)] == [1, 1]
    with pytest.raises(ZeroDivisionError):
        next(items)
