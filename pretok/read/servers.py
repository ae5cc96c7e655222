"""A file on a server -> any of its bytes, several requests under way at once.

Enters: an fsspec URL. Leaves: a ServerFile, its two ends, or its bytes in order. With one request at a time a block
comes per answer of the server, and 50 ms are as long as a worker takes for the text of a block; with REQUESTS under way
the next is there when the last one is used up. Only where the file system says that it works so (`async_impl`: S3,
Google, Azure, HTTP): others, such as FTP, have one connection, and are read as any file is.
"""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import pairwise
from typing import Any

from pretok.read.paths import is_remote, server_of

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


def blocks_ahead(
    file: ServerFile, borders: Sequence[int], together: int, received: Callable[[], object]
) -> Iterator[bytes]:
    """The bytes between each border and the next, so many asked for at once; `received` is called as soon as all are
    here, used or not. Raises OSError."""
    spans = deque(pairwise(borders))
    asked: deque[Future[bytes]] = deque()
    with ThreadPoolExecutor(together, thread_name_prefix="request") as pool:
        try:
            while spans or asked:
                while spans and len(asked) < together:
                    asked.append(pool.submit(file.read, *spans.popleft()))
                block = asked.popleft().result()
                if not spans and all(request.done() for request in asked):
                    received()
                yield block
        finally:
            for waiting in asked:
                waiting.cancel()
