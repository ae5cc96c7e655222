"""Blocks of bytes -> spans of whole records, with memory for the longest record that is wanted and no more.

Input: blocks as a file or a decompressor gives them, and what ends a record. Output: spans of about `batch_bytes` that
end where a record ends, and None for each record that is longer than the limit, whose bytes are dropped as they come.
What leaves depends on the bytes alone, not on how they were cut into blocks.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator

from pretok.read.files import CorruptInputError


def whole_records(
    blocks: Iterator[bytes], separator: bytes, limit: int, batch_bytes: int
) -> Iterator[memoryview | None]:
    """Spans end at the last separator within batch_bytes, or where the record that is longer ends; the last span ends
    where the input does. None: a record of more than max(limit, batch_bytes) bytes stood here. A span is overwritten
    when the next one is asked for: new memory for each would cost more than the copy into it.

    On CorruptInputError what was read before it is yielded first, its unfinished last record left out.
    """
    cutter = _Cutter(separator, limit, batch_bytes)
    try:
        for block in blocks:
            cutter.append(block)
            if cutter.size >= batch_bytes:
                yield from cutter.cut()
    except CorruptInputError:
        yield from cutter.cut()
        yield from cutter.finished()
        raise
    yield from cutter.cut()
    yield from cutter.rest()


class _Cutter:
    """The bytes that are held: `size` of `_buffer`, of which the first `_searched` have no separator."""

    def __init__(self, separator: bytes, limit: int, batch_bytes: int) -> None:
        self._separator = separator
        self._limit = max(limit, batch_bytes)
        self._batch = batch_bytes
        self._buffer = bytearray()  # of a small file, which is one block, no more than that is taken
        self._searched = 0
        self._skipping = False
        self.size = 0

    def append(self, block: bytes) -> None:
        """Hold a block too. Other memory is taken where it does not fit, as spans of the old may still be looked at."""
        if self.size + len(block) > len(self._buffer):
            self._move(0, 2 * (max(self._batch, self.size + len(block)) if self.size else len(block)))
        memoryview(self._buffer)[self.size : self.size + len(block)] = (
            block  # a bytearray would copy it twice
        )
        self.size += len(block)

    def _move(self, start: int, room: int) -> None:
        """Keep what is held from `start` on, in new memory for `room` bytes."""
        buffer = bytearray(room)
        memoryview(buffer)[: self.size - start] = memoryview(self._buffer)[start : self.size]
        self._buffer, self.size = buffer, self.size - start

    def cut(self) -> Iterator[memoryview | None]:
        """Yield, and hold no longer, what is decided whatever follows."""
        start = yield from self._decided()
        if len(self._buffer) > 16 * self._batch and self.size - start <= self._batch:
            self._move(start, 2 * self._batch)  # the memory of a long record is given back
        else:
            view = memoryview(self._buffer)
            view[: self.size - start] = view[start : self.size]
            self.size -= start
        self._searched = self.size if self.size >= self._batch else 0

    def _decided(self) -> Generator[memoryview | None, None, int]:
        """Yield what is decided; returns where the rest starts."""
        data, mark, view = self._buffer, self._separator, memoryview(self._buffer)
        start = 0
        while True:
            if self._skipping:
                end = data.find(mark, start, self.size)
                if end < 0:
                    return max(start, self.size - len(mark) + 1)
                yield None
                start = end + len(mark)
                self._skipping = False
            if self.size - start < self._batch:
                return start
            searched = self._searched if start == 0 else 0
            end = -1 if searched else _last(data, mark, start, start + self._batch)
            if end < 0:
                known = min(self.size, start + self._limit + len(mark))
                end = data.find(mark, max(start + self._batch, searched) - len(mark) + 1, known)
            if end >= 0:
                yield view[start : end + len(mark)]
                start = end + len(mark)
            elif self.size - start >= self._limit + len(mark):
                self._skipping = True
                start += self._limit
            else:
                return start

    def finished(self) -> Iterator[memoryview]:
        """The records that are held and ended."""
        end = _last(self._buffer, self._separator, 0, self.size)
        if end >= 0:
            yield memoryview(self._buffer)[: end + len(self._separator)]

    def rest(self) -> Iterator[memoryview | None]:
        """All that is held: the input has ended."""
        if self._skipping:
            yield None
        elif self.size:
            yield memoryview(self._buffer)[: self.size]


def _last(data: bytearray, mark: bytes, start: int, stop: int) -> int:
    """Where the last separator begins of those that a search from `start` forward finds, or -1.

    A search backward finds the same, unless another overlaps it: three line ends hold "\\n\\n" twice.
    """
    found = data.rfind(mark, start, stop)
    if found < 0 or data.rfind(mark, max(start, found - len(mark) + 1), found + len(mark) - 1) < 0:
        return found
    return stop - len(data[start:stop].split(mark)[-1]) - len(mark)


def whole_file(blocks: Iterator[bytes], limit: int) -> Iterator[memoryview | None]:
    """All bytes as one record, an empty file too; None, without reading on, once there are more than `limit`."""
    data = bytearray()
    for block in blocks:
        data += block
        if len(data) > limit:
            yield None
            return
    yield memoryview(data)
