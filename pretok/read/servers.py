"""A file on a server -> its bytes in order, several requests under way at once.

Enters: a file that fsspec opened. Leaves: blocks of bytes. With one request at a time a block comes per answer of the
server, and 50 ms are as long as a worker takes for the text of a block; with REQUESTS under way the next is there when
the last one is used up. The first is asked for alone: planning wants no more than that. Only where the file system says
that it works so (`async_impl`: S3, Google, Azure, HTTP): others, such as FTP, have one connection.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import IO, Any

REQUESTS = 4
"""Blocks asked for at once: 16 MiB of a worker's memory."""


def size_on_server(file: IO[bytes]) -> int | None:
    """Bytes of a file of which several ranges may be asked for at once; None for any other file."""
    from fsspec.spec import AbstractBufferedFile

    if not isinstance(file, AbstractBufferedFile) or not getattr(file.fs, "async_impl", False):
        return None
    size: int | None = file.size
    return size


def blocks_ahead(file: Any, start: int, stop: int, size: int) -> Iterator[bytes]:
    """The bytes from `start` to before `stop`, in blocks of `size`. OSError where a request fails or gives
    too little."""
    with ThreadPoolExecutor(REQUESTS, thread_name_prefix="request") as pool:
        asked: deque[tuple[int, Future[bytes]]] = deque()
        together = 1
        try:
            for at in range(start, stop, size):
                end = min(at + size, stop)
                # By the method that fsspec has every file of this kind define, which keeps nothing between calls; it
                # insists that the file is the one that was opened, where the server can tell.
                asked.append((end - at, pool.submit(file._fetch_range, at, end)))
                if len(asked) == together:
                    yield _answer(*asked.popleft())
                    together = REQUESTS
            while asked:
                yield _answer(*asked.popleft())
        finally:
            for _, waiting in asked:
                waiting.cancel()


def _answer(size: int, request: Future[bytes]) -> bytes:
    data = request.result()
    if len(data) != size:
        raise OSError(f"the server gave {len(data)} bytes of {size}")
    return data
