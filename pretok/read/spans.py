"""Blocks of bytes -> spans of whole records, in memory for the longest accepted record.

Input: blocks from a file or a decompressor, and the separator of records. Output: spans of about `batch_bytes` that end
where a record ends, and None for each record that is longer than the limit, whose bytes are dropped at once. The output
depends only on the bytes, not on how they were split into blocks.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator

from pretok.read.files import CorruptInputError


def whole_records(
    blocks: Iterator[bytes], separator: bytes, limit: int, batch_bytes: int
) -> Iterator[memoryview | None]:
    """Spans end at the last separator within batch_bytes, or at the end of a record that is longer; the last span ends
    with the input. None stands for a record of more than max(limit, batch_bytes) bytes. The next span overwrites the
    memory of the last: new memory for each would cost more than the copy into it.

    Before a CorruptInputError is raised, the complete records that were read are yielded.
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
    """The pending bytes: `size` of `_buffer`, of which the first `_searched` have no separator."""

    def __init__(self, separator: bytes, limit: int, batch_bytes: int) -> None:
        self._separator = separator
        self._limit = max(limit, batch_bytes)
        self._batch = batch_bytes
        self._buffer = bytearray()  # for a small file, which is one block, it gets no larger than needed
        self._searched = 0
        self._skipping = False
        self.size = 0

    def append(self, block: bytes) -> None:
        """Append a block. If it does not fit, it takes new memory, as spans in the old memory may still be in use."""
        if self.size + len(block) > len(self._buffer):
            self._move(0, 2 * (max(self._batch, self.size + len(block)) if self.size else len(block)))
        memoryview(self._buffer)[self.size : self.size + len(block)] = (
            block  # a bytearray would copy it twice
        )
        self.size += len(block)

    def _move(self, start: int, room: int) -> None:
        """Move the pending bytes from `start` on to new memory of `room` bytes."""
        buffer = bytearray(room)
        memoryview(buffer)[: self.size - start] = memoryview(self._buffer)[start : self.size]
        self._buffer, self.size = buffer, self.size - start

    def cut(self) -> Iterator[memoryview | None]:
        """Yield, and drop, the spans that do not depend on what follows."""
        start = yield from self._decided()
        if len(self._buffer) > 16 * self._batch and self.size - start <= self._batch:
            self._move(start, 2 * self._batch)  # free the memory of a long record
        else:
            view = memoryview(self._buffer)
            view[: self.size - start] = view[start : self.size]
            self.size -= start
        self._searched = self.size if self.size >= self._batch else 0

    def _decided(self) -> Generator[memoryview | None, None, int]:
        """Yield the spans that do not depend on what follows; returns where the rest starts."""
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
        """The complete records among the pending bytes."""
        end = _last(self._buffer, self._separator, 0, self.size)
        if end >= 0:
            yield memoryview(self._buffer)[: end + len(self._separator)]

    def rest(self) -> Iterator[memoryview | None]:
        """All pending bytes, at the end of the input."""
        if self._skipping:
            yield None
        elif self.size:
            yield memoryview(self._buffer)[: self.size]


def _last(data: bytearray, mark: bytes, start: int, stop: int) -> int:
    """The last separator that a forward search from `start` finds, or -1.

    A backward search finds the same one unless separators overlap: three line ends contain "\\n\\n" twice.
    """
    found = data.rfind(mark, start, stop)
    if found < 0 or data.rfind(mark, max(start, found - len(mark) + 1), found + len(mark) - 1) < 0:
        return found
    return stop - len(data[start:stop].split(mark)[-1]) - len(mark)


def whole_file(blocks: Iterator[bytes], limit: int) -> Iterator[memoryview | None]:
    """All bytes as one record, also of an empty file; None, without reading further, if there are more than `limit`."""
    data = bytearray()
    for block in blocks:
        data += block
        if len(data) > limit:
            yield None
            return
    yield memoryview(data)
