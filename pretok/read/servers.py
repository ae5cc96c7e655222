"""A file on a server -> any of its bytes, several requests under way at once.

Input: an fsspec URL; for a Parquet file also row groups and columns of it. Output: a ServerFile, its two ends, its
bytes in order, or a file for Arrow. With one request at a time a block
comes per answer of the server, and 50 ms are as long as a worker takes for the text of a block; with REQUESTS under way
the next is there when the last one is used up. Only where the file system says that it works so (`async_impl`: S3,
Google, Azure, HTTP): others, such as FTP, have one connection, and are read as any file is.

Arrow reads the column chunks of a row group side by side, `size` bytes of each at a time; so blocks of a Parquet file
are asked for by how far into its chunk each begins, row group after row group. What was not expected is asked for when
it is read, by one request. Arrow's own `pre_buffer` would hold all chunks of a row group.
"""

from __future__ import annotations

import io
import os
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

from pretok.read.paths import is_remote, server_of

if TYPE_CHECKING:
    import pyarrow.parquet as pq

REQUESTS = 8
"""Blocks asked for at once: 32 MiB of a worker's memory."""
KNOWN = 64
"""Files of which a process remembers size, version and ends: the parts of a file are partitions in a row."""


class ServerFile:
    """A file as it was when it was opened; its bytes for any number of threads. Its ends are kept once they were read:
    planning looks at the same bytes again, for the first records or the footer."""

    def __init__(self, server: Any, file: Any) -> None:
        self._server, self._file = server, file
        self._ends: list[tuple[int, bytes]] = []
        self.size: int = file.size

    def read(self, start: int, end: int) -> bytes:
        """The bytes from `start` to before `end`. OSError where the request fails or gives too little, or where the
        server can tell that the file is another one by now."""
        for at, kept in self._ends:
            if at <= start and end <= at + len(kept):
                return kept[start - at : end - at]
        return self._ask(start, end)

    def _ask(self, start: int, end: int) -> bytes:
        if end <= start:
            return b""
        # The method that fsspec has every file of this kind define, which keeps nothing between calls.
        data: bytes = self._file._fetch_range(start, end)
        if len(data) != end - start:
            raise OSError(f"the server gave {len(data)} bytes of {end - start}")
        return data

    def ends(self, count: int) -> tuple[bytes, bytes]:
        """The first and the last `count` bytes, as they are now."""
        last = max(0, self.size - count)
        if not last:
            head = tail = self._ask(0, self.size)
        else:
            head, tail = _at_once(lambda: self._ask(0, count), lambda: self._ask(last, self.size))
        self._ends = [(0, head), (last, tail)]
        return head, tail

    def size_now(self) -> int:
        """How many bytes the server says that the file has, whatever a listing said before."""
        self._server.invalidate_cache(self._file.path)
        size: int = self._server.info(self._file.path)["size"]
        return size


_known: OrderedDict[str, ServerFile] = OrderedDict()
_changing = threading.Lock()


def on_server(path: str) -> ServerFile | None:
    """The file of a URL, as this process knows it from before or opened now; None for a file that is not read so."""
    if not is_remote(path):
        return None
    with _changing:
        if file := _known.get(path):
            _known.move_to_end(path)
            return file
    from fsspec.spec import AbstractBufferedFile

    server, name = server_of(path)
    if not getattr(server, "async_impl", False):
        return None
    opened = server.open(name, "rb")
    if not isinstance(opened, AbstractBufferedFile) or opened.size is None:
        return None
    with _changing:
        file = _known[path] = ServerFile(server, opened)
        while len(_known) > KNOWN:
            _known.popitem(last=False)
    return file


def _forget(path: str) -> None:
    with _changing:
        _known.pop(path, None)


def ends_on_server(path: str, count: int) -> tuple[bytes, bytes, int] | None:
    """First and last `count` bytes and the size of a file as it is now, as far as it is one of a server.

    Three requests at once where the file is known and has not changed, else a first one for its size and version.
    """
    with _changing:
        known = _known.get(path)
    if known:
        try:
            size, (head, tail) = _at_once(known.size_now, lambda: known.ends(count))
            if size == known.size:
                return head, tail, size
        except OSError:  # another version, as a rule
            pass
        _forget(path)
    file = on_server(path)
    return (*file.ends(count), file.size) if file else None


def _at_once(*calls: Callable[[], Any]) -> list[Any]:
    """What the calls return, each in a thread."""
    with ThreadPoolExecutor(len(calls), thread_name_prefix="request") as pool:
        return [call.result() for call in [pool.submit(call) for call in calls]]


def blocks_ahead(file: ServerFile, borders: Sequence[int], together: int) -> Iterator[bytes]:
    """The bytes between each border and the next, so many asked for at once. Raises OSError."""
    spans = deque(pairwise(borders))
    asked: deque[Future[bytes]] = deque()
    with ThreadPoolExecutor(together, thread_name_prefix="request") as pool:
        try:
            while spans or asked:
                while spans and len(asked) < together:
                    asked.append(pool.submit(file.read, *spans.popleft()))
                yield asked.popleft().result()
        finally:
            for waiting in asked:
                waiting.cancel()


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
        self._pool = ThreadPoolExecutor(REQUESTS, thread_name_prefix="request")

    def expect(self, meta: pq.FileMetaData, groups: Sequence[int], leaves: Sequence[str], size: int) -> None:
        """Ask ahead for columns of row groups, in blocks of `size`."""
        self._to_come = _blocks(self._size, meta, groups, leaves, size)
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
    import pyarrow.parquet as pq

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
