"""Reading ahead: order, errors of any kind, how far, and no thread left behind."""

import gc
import threading
import time

import pytest
from support import until

from pretok.read.prefetch import ahead


def threads() -> int:
    return sum(thread.name == "read-ahead" for thread in threading.enumerate())


class Closed:
    """Counts up for ever; `closed` once the generator is."""

    def __init__(self) -> None:
        self.made = 0
        self.closed = False

    def items(self):
        try:
            while True:
                self.made += 1
                yield self.made
        finally:
            self.closed = True


def test_everything_in_order():
    assert list(ahead(iter(range(1000)), lambda _: 1, 10)) == list(range(1000))
    assert list(ahead(iter(()), lambda _: 1, 10)) == []
    until(lambda: threads() == 0)


@pytest.mark.parametrize("kind", [ValueError, KeyboardInterrupt, GeneratorExit])
def test_errors_of_every_kind_come_after_what_came_before(kind):
    def items():
        yield 1
        yield 2
        raise kind("this")

    got = []
    with pytest.raises(kind, match="this"):
        got.extend(ahead(items(), lambda _: 1, 10))
    until(lambda: threads() == 0)


@pytest.mark.parametrize(("size", "expected"), [(1, 8), (3, 4), (60, 2), (1000, 2)])
def test_how_far_ahead(size, expected):
    """One large item, or small ones that are enough together; as many as the consumer took at once."""
    source = Closed()
    items = ahead(source.items(), lambda _: size, 4)
    assert next(items) == 1
    until(lambda: source.made == expected)
    time.sleep(0.05)
    assert source.made == expected
    items.close()
    until(lambda: source.closed and threads() == 0)


def test_a_consumer_that_stops_early_or_forgets_leaves_no_thread():
    source = Closed()
    for item in ahead(source.items(), lambda _: 1, 10):
        if item == 5:
            break
    until(lambda: source.closed and threads() == 0)

    source = Closed()
    forgotten = ahead(source.items(), lambda _: 1, 10)
    next(forgotten)
    del forgotten
    gc.collect()
    until(lambda: source.closed and threads() == 0)

    source = Closed()
    ahead(source.items(), lambda _: 1, 10)  # never asked: never begun
    assert source.made == threads() == 0
