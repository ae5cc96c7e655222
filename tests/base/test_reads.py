"""Many small reads: their order, their errors, and that several wait at once."""

from __future__ import annotations

import threading

import pytest

from pretok.base.reads import THREADS, map_reads


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
