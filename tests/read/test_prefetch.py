"""Reading ahead: order, errors of any kind, how far, and no thread left behind."""

import contextlib
import gc
import threading
import time

import pytest
from support import until

from pretok.read.prefetch import ahead


def threads() -> int:
    return sum(thread.name == "read-ahead" for thread in threading.enumerate())


class Endless:
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


@pytest.mark.parametrize("kind", [None, ValueError, KeyboardInterrupt, GeneratorExit])
def test_everything_in_order_and_errors_of_every_kind_after_what_came_before(kind):
    def items():
        yield from range(100)
        if kind:
            raise kind("this")

    taken = []
    with pytest.raises(kind, match="this") if kind else contextlib.nullcontext():
        taken.extend(ahead(items(), lambda _: 1, 10))
    assert taken == list(range(100))
    until(lambda: threads() == 0)


@pytest.mark.parametrize(("size", "expected"), [(1, 8), (3, 4), (60, 2), (1000, 2)])
def test_how_far_ahead(size, expected):
    """One large item, or small ones that are enough together; as many as the consumer took at once."""
    source = Endless()
    items = ahead(source.items(), lambda _: size, 4)
    assert next(items) == 1
    until(lambda: source.made == expected)
    time.sleep(0.05)
    assert source.made == expected
    items.close()
    until(lambda: source.closed and threads() == 0)


def test_a_consumer_that_stops_or_forgets_leaves_no_thread():
    source = Endless()
    ahead(source.items(), lambda _: 1, 10)  # never asked: never begun
    assert source.made == threads() == 0
    items = ahead(source.items(), lambda _: 1, 10)
    next(items)
    del items
    gc.collect()
    until(lambda: source.closed and threads() == 0)
