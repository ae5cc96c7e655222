"""A Parquet file on a server, as Arrow reads it: the column chunks that are wanted next are asked for ahead.

Enters: a ServerFile; row groups and columns of it. Leaves: a file for Arrow. It reads the chunks of a row group side by
side, `size` bytes of each at a time; so blocks are asked for by how far into its chunk each begins, row group after row
group, REQUESTS of them at once. What was not expected is asked for when it is read, by one request.
"""

from __future__ import annotations

import io
import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import NamedTuple

import pyarrow.parquet as pq

from pretok.read.servers import REQUESTS, ServerFile


class _Block(NamedTuple):
    """Bytes of a column chunk; group: the row group it is of."""

    group: int
    start: int
    end: int


class _Seekable(io.RawIOBase):
    """A file of `size` bytes that Arrow may open."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self._size = size
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._at = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
        return self._at

    def tell(self) -> int:
        return self._at


class ServerStream(_Seekable):
    """What Arrow reads. `expect` and `reach` say what comes next."""

    def __init__(self, file: ServerFile) -> None:
        super().__init__(file.size)
        self._file = file
        self._to_come: Iterator[list[_Block]] = iter(())
        self._wanted: deque[_Block] = deque()
        self._asked: dict[_Block, Future[bytes]] = {}
        self._received: Callable[[], object] = lambda: None
        self._pool = ThreadPoolExecutor(REQUESTS, thread_name_prefix="request")

    def expect(
        self,
        meta: pq.FileMetaData,
        groups: Sequence[int],
        leaves: Sequence[str],
        size: int,
        received: Callable[[], object],
    ) -> None:
        """Ask ahead for columns of row groups, in blocks of `size`; `received` is called when all are here."""
        self._to_come = _blocks(self._size, meta, groups, leaves, size)
        self._received = received
        self._ask()

    def reach(self, group: int) -> None:
        """What is left of the row groups before this one is wanted no longer."""
        self._wanted = deque(block for block in self._wanted if block.group >= group)
        for block in [block for block in self._asked if block.group < group]:
            self._asked.pop(block).cancel()
        self._ask()

    def _ask(self) -> None:
        while len(self._asked) < REQUESTS:
            if self._wanted:
                self._ask_for(self._wanted.popleft())
            elif (blocks := next(self._to_come, None)) is not None:
                self._wanted.extend(blocks)
            else:
                if all(request.done() for request in self._asked.values()):
                    self._received()
                return

    def _ask_for(self, block: _Block) -> None:
        self._asked[block] = self._pool.submit(self._file.read, block.start, block.end)

    def read(self, size: int = -1) -> bytes:
        """The next bytes. OSError where a request fails."""
        stop = self._size if size < 0 else min(self._at + size, self._size)
        for block in [block for block in self._wanted if block.start < stop and block.end > self._at]:
            self._wanted.remove(block)  # earlier than was thought
            self._ask_for(block)
        parts = []
        while self._at < stop:
            parts.append(self._part(stop))
        self._ask()
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _part(self, stop: int) -> bytes:
        """The next bytes, some of those before `stop`."""
        at = self._at
        asked = [block for block in self._asked if block.start < stop and block.end > at]
        block = min(asked, key=lambda block: block.start, default=None)
        if block is None or block.start > at:
            self._at = stop if block is None else block.start
            return self._file.read(at, self._at)
        data = self._asked[block].result()
        self._at = min(block.end, stop)
        if self._at == block.end:
            del self._asked[block]
        return data[at - block.start : self._at - block.start]

    def close(self) -> None:
        """Ask for nothing more."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._asked.clear()
        super().close()


class _Noting(_Seekable):
    """Notes what Arrow would read."""

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.noted: list[tuple[int, int]] = []

    def read(self, size: int = -1) -> bytes:
        """Raises OSError."""
        self.noted.append((max(0, self._at), min(self._at + size, self._size)))
        raise OSError


def _blocks(
    total: int, meta: pq.FileMetaData, groups: Sequence[int], leaves: Sequence[str], size: int
) -> Iterator[list[_Block]]:
    """The blocks of each row group, in the order in which Arrow gets to them.

    Where a chunk lies stands in metadata that pyarrow ends the process on, where they are damaged; so Arrow, which is
    safe, is asked for the chunk with a buffer and what it would read is noted.
    """
    noting = _Noting(total)
    file = pq.ParquetFile(noting, metadata=meta, pre_buffer=True)
    for group in groups:
        noting.noted.clear()
        for leaf in leaves:
            with suppress(Exception):  # that of `_Noting`; damage is told when it is read
                next(file.iter_batches(row_groups=[group], columns=[leaf], use_threads=False), None)
        blocks = [
            ((at - start) / (end - start), _Block(group, at, min(at + size, end)))
            for start, end in noting.noted
            for at in range(start, end, size)
        ]
        yield [block for _, block in sorted(blocks)]
