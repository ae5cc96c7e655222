"""Many shards as one array of tokens, any part of which can be read.

Input: shards in stream order. Output: tokens from any address, also across shards. Files are opened when first read,
their number is bounded, and every process opens its own.

It uses pread(2), not memory maps. A read asks the file system for exactly its bytes, while a page fault fetches what
the kernel guesses (128 KiB to 8 MiB for 8 KiB). A truncated file or a failing disk raises an error that names the
file, not SIGBUS. And pages do not count as memory of the process.
"""

from __future__ import annotations

import os
import resource
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pretok.base.errors import IntegrityError
from pretok.base.storage import reading
from pretok.base.tokens import Ints
from pretok.shards.manifest import Shard


class TokenRanges(NamedTuple):
    """Where the tokens of sequences lie: n pieces of consecutive tokens, each field (n,)."""

    row: Ints
    """The requested sequence that a piece is part of."""
    column: Ints
    """Where in the sequence it goes."""
    address: Ints
    """Of its first token."""
    length: Ints
    """Its tokens."""


ReadRange = Sequence[int]
"""The number of a shard; the first byte in the output and the byte after the last; the first byte in the shard."""

ANNOUNCED = 64
"""The number of parts that are announced to the kernel before they are read."""


class OpenFiles:
    """File descriptors, opened when first used, by their number in `paths`.

    limit: the largest number of open files; the least recently used one is closed first. sizes: the bytes that each
    file must have. sequential: whether files are read in order, so that the kernel may read ahead.
    """

    def __init__(self, paths: Sequence[Path], sizes: Sequence[int] | Ints, sequential: bool) -> None:
        self._files: OrderedDict[int, int] = OrderedDict()  # number -> descriptor, ordered by last use
        self.limit = file_limit()
        self.paths, self.sizes = paths, sizes
        self._sequential = sequential

    def __getstate__(self) -> dict[str, object]:
        # A descriptor means nothing in another process, which opens its own files.
        return self.__dict__ | {"_files": OrderedDict()}

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        # A default, because modules may be torn down already when the interpreter ends.
        for file in self._files.values():
            close(file)

    def get(self, number: int) -> int:
        """Return the descriptor of a file. Raises IntegrityError."""
        file = self._files.get(number)
        if file is None:
            return self._open(number)
        self._files.move_to_end(number)
        return file

    def _open(self, number: int) -> int:
        # Closed before the new one is opened, so the limit holds at every moment.
        if len(self._files) >= self.limit:
            os.close(self._files.popitem(last=False)[1])
        path, expected = self.paths[number], self.sizes[number]
        with reading(path):
            file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        if (size := os.fstat(file).st_size) != expected:
            os.close(file)
            raise IntegrityError(f"{path} has {size} bytes, expected {expected}")
        # Sequences are read in a shuffled order: by default the kernel would read on behind each, for nobody.
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_SEQUENTIAL if self._sequential else os.POSIX_FADV_RANDOM)
        self._files[number] = file
        return file

    def read(self, parts: Sequence[ReadRange], room: memoryview) -> None:
        """Read parts into `room`. Raises IntegrityError."""
        together = min(ANNOUNCED, self.limit)  # so that announced files are still open when they are read
        for at in range(0, len(parts), together):
            group = parts[at : at + together]
            files = [self.get(part[0]) for part in group]
            # Announced parts are fetched by the kernel at the same time, not one after the other.
            if not self._sequential and len(group) > 1:
                for (_, begin, end, offset), file in zip(group, files, strict=True):
                    os.posix_fadvise(file, offset, end - begin, os.POSIX_FADV_WILLNEED)
            for (shard, begin, end, offset), file in zip(group, files, strict=True):
                rest = room[begin:end]
                # A read may return fewer bytes than requested.
                while (done := os.preadv(file, [rest], offset)) != len(rest):
                    if not done:
                        raise IntegrityError(f"{self.paths[shard]} was cut while it was being read")
                    rest = rest[done:]
                    offset += done


class ShardPaths(Sequence[Path]):
    """The `.bin` of each shard of one manifest. It holds text: a hundred thousand Paths take 30 MB in every process."""

    def __init__(self, shards: Sequence[Shard]) -> None:
        self._folder = shards[0].folder if shards else Path()
        self._names = [shard.path for shard in shards]

    def __len__(self) -> int:
        return len(self._names)

    def __getitem__(self, number: Any) -> Any:
        return self._folder / self._names[number]


class FlatTokens:
    """The tokens of `shards`, one after the other.

    itemsize: bytes of a token. sequential: whether addresses are read in order. files: the
    `object_store.StoreFiles` that read their bytes; None for files on a disk.
    """

    def __init__(self, shards: Sequence[Shard], itemsize: int, sequential: bool, files: Any = None) -> None:
        tokens = np.fromiter((shard.tokens for shard in shards), np.int64, len(shards))
        self.files: Any = files or OpenFiles(ShardPaths(shards), tokens * itemsize, sequential)
        self._starts: Ints = np.concatenate([np.zeros(1, np.int64), np.cumsum(tokens)])
        self._itemsize = itemsize

    def read(self, reads: Ints, out: npt.NDArray[Any]) -> None:
        """Read what `reads` returned into `out`, (rows, width) in the dtype of the shards. Raises IntegrityError."""
        size = self._itemsize
        parts = (reads * (1, size, size, size)).tolist()
        parts.sort(key=itemgetter(0))  # so that each shard is opened once, however few files may be open
        room = out.reshape(-1).view(np.uint8).data  # slices of it cost a third of an array's
        self.files.read(parts, room)

    def read_run(self, address: int, out: npt.NDArray[Any]) -> None:
        """Read the consecutive tokens from `address` on into `out`, (n,). Raises IntegrityError."""
        shard = bisect_right(self._starts, address) - 1
        offset = (address - int(self._starts[shard])) * out.itemsize
        parts = self._following(shard, 0, out.nbytes, offset, out.itemsize)
        self.files.read(parts, out.view(np.uint8).data)

    def _following(self, shard: int, at: int, end: int, offset: int, size: int) -> list[ReadRange]:
        """Return what to read for bytes `at` to `end - 1` of the output, which may reach into following shards."""
        parts: list[ReadRange] = []
        while at < end:
            room = int(self._starts[shard + 1] - self._starts[shard]) * size - offset
            upto = min(end, at + room)
            parts.append((shard, at, upto, offset))
            shard, at, offset = shard + 1, upto, 0
        return parts

    def reads(self, pieces: TokenRanges, width: int) -> Ints:
        """Return what to read into rows of `width` tokens, in the order of pieces, (n, 4).

        Each is inside one shard: its number; the first token in the output and the token after the last; the first
        token in the shard.
        """
        address, stop = pieces.address, pieces.address + pieces.length
        at = pieces.row * width + pieces.column - address
        shard = np.searchsorted(self._starts, address, side="right") - 1
        if (stop > self._starts[shard + 1]).any():
            # A piece that reaches beyond its shard is continued in the following ones, some of which may be empty.
            piece, shard = ranges(shard, np.searchsorted(self._starts, stop))
            piece, shard = (part[self._starts[shard] < self._starts[shard + 1]] for part in (piece, shard))
            at, stop = at[piece], np.minimum(stop[piece], self._starts[shard + 1])
            address = np.maximum(address[piece], self._starts[shard])
        reads = np.empty((len(shard), 4), np.int64)
        reads[:, 0], reads[:, 1], reads[:, 2] = shard, at + address, at + stop
        reads[:, 3] = address - self._starts[shard]
        return reads

    def parts(self, reads: Ints) -> list[tuple[Path, int, int]]:
        """Return (file, first token in it, tokens) of what is read."""
        return [(self.files.paths[shard], first, end - begin) for shard, begin, end, first in reads.tolist()]


def ranges(low: Ints, high: Ints) -> tuple[Ints, Ints]:
    """Return the integers `low` (n,) to `high - 1` (n,) of each row, concatenated: row and integer, each (all,)."""
    counts = high - low
    number = np.repeat(low - np.cumsum(counts) + counts, counts)
    number += np.arange(len(number))
    return np.repeat(np.arange(len(low)), counts), number


def file_limit() -> int:
    """Return a quarter of the number of files that this process may open."""
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return 4096 if soft == resource.RLIM_INFINITY else max(8, min(4096, soft // 4))
