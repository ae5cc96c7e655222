"""Many shards as one array of tokens, any part of which can be read.

Input: shards in stream order. Output: tokens from any address, across the borders of shards. Files are opened when they
are first read, their number is bounded, and a copy in another process opens its own.

It reads with pread(2), not through a memory map, for three reasons. A read asks the file system for exactly its bytes,
while a page fault loads what the kernel guesses (128 KiB to 8 MiB around 8 KiB). A truncated file or a failing disk is
an error with a name, not SIGBUS. And pages do not count as memory of the process.
"""

from __future__ import annotations

import os
import resource
import weakref
from collections import OrderedDict
from collections.abc import Callable, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from pretok.base.errors import IntegrityError
from pretok.base.storage import reading
from pretok.base.tokens import Ints
from pretok.shards.manifest import Shard


class Pieces(NamedTuple):
    """Tokens of sequences, in n pieces that are contiguous in the shards; each field is (n,).

    row, column: where a piece goes in the requested sequences. address: of its first token. length: its tokens.
    """

    row: Ints
    column: Ints
    address: Ints
    length: Ints


Part = tuple[int, int, int, int]
"""One read: number of the shard, first byte and end of its place in the result, first byte in the shard."""

ANNOUNCED = 64
"""Parts that the kernel is told about before they are read."""


class Files(Protocol):
    """A source of the bytes of shards: local files, or an object store (`object_store.StoreFiles`)."""

    paths: Sequence[Path]

    def read(self, parts: Sequence[Part], room: memoryview) -> None:
        """Read parts into `room`."""


Opener = Callable[[Sequence[Shard], Sequence[int], int], Files]
"""Opens shards, given their sizes in bytes and the bytes of a token."""


class OpenFiles:
    """Descriptors of the files `paths`, by number, each opened when it is first needed.

    limit: how many may be open; the one used last stays. sizes: bytes that each file must have. sequential: whether
    they are read in order, so that the kernel may read ahead.
    """

    def __init__(self, paths: Sequence[Path], sizes: Sequence[int], sequential: bool) -> None:
        self._files = self._own_files()
        self.limit = _file_limit()
        self.paths = paths
        self._sizes = sizes
        self._sequential = sequential

    def __getstate__(self) -> dict[str, object]:
        return {key: value for key, value in self.__dict__.items() if key != "_files"}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state, _files=self._own_files())

    def _own_files(self) -> OrderedDict[int, int]:
        """Return a map number -> descriptor, the one used last at the end.

        Descriptors are closed with this object, or when the interpreter ends: before modules are torn down, for which
        `__del__` would come too late.
        """
        files: OrderedDict[int, int] = OrderedDict()
        weakref.finalize(self, _close_all, files)
        return files

    def get(self, number: int) -> int:
        """Return the descriptor of a file. Raises IntegrityError."""
        file = self._files.get(number)
        if file is None:
            return self._open(number)
        self._files.move_to_end(number)
        return file

    def _open(self, number: int) -> int:
        if len(self._files) >= self.limit:
            os.close(self._files.popitem(last=False)[1])
        path, expected = self.paths[number], self._sizes[number]
        with reading(path):
            file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        if (size := os.fstat(file).st_size) != expected:
            os.close(file)
            raise IntegrityError(f"{path} has {size} bytes, expected {expected}")
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_SEQUENTIAL if self._sequential else os.POSIX_FADV_RANDOM)
        self._files[number] = file
        return file

    def read(self, parts: Sequence[Part], room: memoryview) -> None:
        """Read parts into `room`. Raises IntegrityError."""
        together = min(ANNOUNCED, self.limit)  # so that announced files are still open when they are read
        for at in range(0, len(parts), together):
            group = parts[at : at + together]
            files = [self.get(part[0]) for part in group]
            if not self._sequential and len(group) > 1:  # the kernel then fetches all of them at once
                for (_, begin, end, offset), file in zip(group, files, strict=True):
                    os.posix_fadvise(file, offset, end - begin, os.POSIX_FADV_WILLNEED)
            for (shard, begin, end, offset), file in zip(group, files, strict=True):
                rest = room[begin:end]
                while (done := os.preadv(file, [rest], offset)) != len(
                    rest
                ):  # a read may return less than requested
                    if not done:
                        raise IntegrityError(f"{self.paths[shard]} was cut while it was being read")
                    rest = rest[done:]
                    offset += done


class FlatTokens:
    """The tokens of `shards`, one shard after the other.

    sequential: whether addresses are read in order. files: opens the shards; None for local files.
    """

    def __init__(
        self,
        shards: Sequence[Shard],
        dtype: np.dtype[Any],
        sequential: bool,
        files: Opener | None = None,
    ) -> None:
        sizes = [shard.tokens * dtype.itemsize for shard in shards]
        self.files: Files = (
            OpenFiles([shard.bin_path for shard in shards], sizes, sequential)
            if files is None
            else files(shards, sizes, dtype.itemsize)
        )
        self._starts: Ints = np.cumsum([0, *(shard.tokens for shard in shards)], dtype=np.int64)

    def read(self, pieces: Pieces, out: npt.NDArray[Any]) -> None:
        """Read pieces into `out`, sequences of tokens in the dtype of the shards. Raises IntegrityError."""
        room = out.reshape(-1).view(np.uint8).data  # slicing a memoryview costs a third of slicing an array
        self.files.read(self._parts(pieces, out), room)

    def path(self, address: int) -> Path:
        """Return the shard that holds the token at an address."""
        return self.files.paths[int(np.searchsorted(self._starts, address, side="right")) - 1]

    def parts(self, pieces: Pieces) -> list[tuple[Path, int, int]]:
        """Return (file, first token in it, tokens) for all pieces, in their order."""
        found = []
        for address, length in zip(pieces.address.tolist(), pieces.length.tolist(), strict=True):
            at, end = address, address + length
            while at < end:
                shard = int(np.searchsorted(self._starts, at, side="right")) - 1
                upto = min(end, int(self._starts[shard + 1]))
                found.append((self.files.paths[shard], at - int(self._starts[shard]), upto - at))
                at = upto
        return found

    def _parts(self, pieces: Pieces, out: npt.NDArray[Any]) -> list[Part]:
        """Return the reads that fill `out`, sorted by shard: each is opened once, however few may be open."""
        size = out.itemsize
        shards = np.searchsorted(self._starts, pieces.address, side="right") - 1
        rooms = (self._starts[shards + 1] - pieces.address) * size
        begins = (pieces.row * out.shape[1] + pieces.column) * size
        ends = begins + pieces.length * size
        offsets = (pieces.address - self._starts[shards]) * size
        firsts = np.minimum(ends, begins + rooms)
        parts = list(zip(*(part.tolist() for part in (shards, begins, firsts, offsets)), strict=True))
        for beyond in np.flatnonzero(firsts < ends).tolist():
            shard, at, end = parts[beyond][0], parts[beyond][2], int(ends[beyond])
            while at < end:
                shard += 1
                upto = min(end, at + int(self._starts[shard + 1] - self._starts[shard]) * size)
                parts.append((shard, at, upto, 0))
                at = upto
        parts.sort(key=itemgetter(0))
        return parts


def _close_all(files: OrderedDict[int, int]) -> None:
    while files:
        os.close(files.popitem()[1])


def _file_limit() -> int:
    """Return a quarter of the number of files that this process may open."""
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return 4096 if soft == resource.RLIM_INFINITY else max(8, min(4096, soft // 4))
