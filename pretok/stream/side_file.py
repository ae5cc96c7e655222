"""Side files: arrays that belong to a mix, sealed, named by their digest, and read a few blocks at a time.

Input: a folder and arrays of fixed width, in parts of any size; or the digest of a file in it. Output: the digest; or
any elements of an array, by pread(2). A file of many gigabytes opens at once: only its footer is looked at then, and
each block is compared with its check word whenever it is read. numpy, msgspec, xxhash and the standard library only.

    blocks   4096 bytes each: whole elements, zeros up to 4088, and the XXH3-64 of these with the number of the block
             as its seed, most significant byte first; each array begins in a block of its own
    footer   JSON: format, version, about (what the maker says of it), arrays [{name, dtype, length}] in their order,
             checksum: XXH3-128 of all blocks
    trailer  u32 bytes of the footer | b"PRETOKSF"

The digest, which is the name of the file, is that of the footer, so it stands for all contents.
"""

from __future__ import annotations

import os
import struct
import weakref
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

import msgspec
import numpy as np
import numpy.typing as npt

from pretok.base.errors import IntegrityError
from pretok.base.records import Count, Record, check_version, read_record, to_json
from pretok.base.storage import NewFile, canonical_json, digest, reading
from pretok.base.tokens import Ints

FORMAT = "pretok-side-file"
VERSION = 1
FOLDER = "side_files"
"""Beside a mix.json: the side files of all mixes of that folder."""
SUFFIX = ".side"
BLOCK = 4096
ROOM = BLOCK - 8
"""Bytes of elements in a block; 1, 2, 4 and 8 divide it."""
TRAILER = struct.Struct("<I8s")
MAGIC = b"PRETOKSF"
MAX_FOOTER = 1 << 20
REMEDY = f"copy it again from where the mix was made (the folder {FOLDER} beside it), or make the mix again"


class SideArray(Record, frozen=True):
    """An array of a side file. dtype: numpy's name of it, or the list of its fields."""

    name: str
    dtype: str | list[Any]
    length: Count


class _Footer(Record, frozen=True):
    format: str
    version: Count
    about: dict[str, Any]
    arrays: tuple[SideArray, ...]
    checksum: str


class SideFileWriter:
    """Writes a side file into `folder`: `append` the parts of one array after the other, then `seal`, which names it.

    Leaving the context without `seal` leaves nothing. label: tells apart what one process writes at a time."""

    def __init__(self, folder: Path, label: str) -> None:
        self._file = NewFile(folder / label)
        self._arrays: list[tuple[str, np.dtype[Any], int]] = []
        self._rest: npt.NDArray[np.uint8] = np.empty(0, np.uint8)
        self._blocks = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._file.__exit__()

    def append(self, name: str, part: npt.NDArray[Any]) -> None:
        """Add elements to the array `name`, which ends the one before. part: (n,) of a little-endian dtype of at most
        4088 bytes, the same for all parts."""
        if not self._arrays or self._arrays[-1][0] != name:
            if name in [array[0] for array in self._arrays] or not 0 < part.dtype.itemsize <= ROOM:
                raise AssertionError(f"array {name} of {part.dtype} cannot begin here")
            self._write(last=True)
            self._arrays.append((name, part.dtype, 0))
        _, dtype, length = self._arrays[-1]
        if part.dtype != dtype or part.ndim != 1:
            raise AssertionError(f"array {name} holds {dtype}, not {part.ndim} dimensions of {part.dtype}")
        self._arrays[-1] = (name, dtype, length + len(part))
        self._rest = np.concatenate([self._rest, np.ascontiguousarray(part).view(np.uint8)])
        self._write()

    def _write(self, *, last: bool = False) -> None:
        """Write the whole blocks of what is left, and what is then left too if it is the last of its array."""
        import xxhash

        if not len(self._rest):
            return
        width = _elements(self._arrays[-1][1]) * self._arrays[-1][1].itemsize
        count = -(-len(self._rest) // width) if last else len(self._rest) // width
        used = min(count * width, len(self._rest))
        filled = np.zeros(count * width, np.uint8)
        filled[:used] = self._rest[:used]
        self._rest = self._rest[used:]
        blocks = np.zeros((count, BLOCK), np.uint8)
        blocks[:, :width] = filled.reshape(count, width)
        for number, block in enumerate(blocks, self._blocks):
            block[ROOM:] = np.frombuffer(xxhash.xxh3_64_digest(block[:ROOM].data, number), np.uint8)
        self._blocks += count
        self._file.write(blocks.reshape(-1).data)

    def seal(self, about: dict[str, Any]) -> str:
        """Flush and rename; the digest. about: what readers compare before they trust the arrays, as JSON."""
        self._write(last=True)
        arrays = tuple(SideArray(name, _description(dtype), length) for name, dtype, length in self._arrays)
        footer = canonical_json(to_json(_Footer(FORMAT, VERSION, about, arrays, self._file.checksum)))
        name = digest(footer)
        self._file.write(footer + TRAILER.pack(len(footer), MAGIC))
        self._file.path = path_of(self._file.path.parent, name)
        self._file.seal()
        return name


class SideFile:
    """A side file of `folder` by its digest. Raises IntegrityError (missing, damaged), MismatchError (other version).

    about: what its maker said of it; arrays: {name: (dtype, length)}. It may be forked and pickled.
    """

    def __init__(self, folder: Path, digest: str) -> None:
        self.path = path_of(folder, digest)
        self._file = self._open()
        footer, self._end = self._footer(digest)
        self.about = footer.about
        self._checksum = footer.checksum
        self.arrays: dict[str, tuple[np.dtype[Any], int]] = {}
        self._first: dict[str, int] = {}
        held = 0
        for array in footer.arrays:
            dtype = _dtype(array.dtype, self.path)
            self.arrays[array.name] = (dtype, array.length)
            self._first[array.name] = held
            held += -(-array.length // _elements(dtype))
        if held * BLOCK != self._end:
            raise IntegrityError(
                f"{self.path} has {self._end} bytes of blocks, its arrays need {held}; {REMEDY}"
            )

    def __getstate__(self) -> dict[str, object]:
        return {key: value for key, value in self.__dict__.items() if key != "_file"}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)
        self._file = self._open()

    def _open(self) -> int:
        if not self.path.exists():
            raise IntegrityError(f"{self.path} is missing, which a mix is made of: {REMEDY}")
        with reading(self.path):
            file = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        weakref.finalize(self, _close, file)
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_RANDOM)
        return file

    def _footer(self, name: str) -> tuple[_Footer, int]:
        """The footer, and where it begins."""
        size = os.fstat(self._file).st_size
        end = size - TRAILER.size
        length, magic = TRAILER.unpack(self._read(end, TRAILER.size)) if end >= 0 else (0, b"")
        if magic != MAGIC or length > min(end, MAX_FOOTER) or (end - length) % BLOCK:
            raise IntegrityError(f"{self.path} was cut or is no side file; {REMEDY}")
        footer = self._read(end - length, length)
        if digest(footer) != name:
            raise IntegrityError(
                f"{self.path} is damaged: its name is not the digest of its footer; {REMEDY}"
            )
        data = msgspec.json.decode(footer)
        if isinstance(data, dict):
            check_version(data.get("version"), VERSION, self.path, "make the mix again with pretok mix")
        return read_record(_Footer, data, self.path), end - length

    def _read(self, at: int, length: int) -> bytes:
        with reading(self.path):
            found = os.pread(self._file, length, at)
        if len(found) != length:
            raise IntegrityError(f"{self.path} was cut while it was being read; {REMEDY}")
        return found

    def elements(self, name: str) -> int:
        """Elements of an array that a whole block holds."""
        return _elements(self.arrays[name][0])

    def whole(self, name: str) -> npt.NDArray[Any]:
        """All elements of an array."""
        length = self.arrays[name][1]
        found: npt.NDArray[Any] = self.blocks(name, np.arange(-(-length // self.elements(name)))).reshape(-1)
        return found[:length]

    def read(self, name: str, indices: Ints) -> npt.NDArray[Any]:
        """The elements `indices` (n,) of an array: (n,). IntegrityError for one that it does not have, which contents
        that contradict each other ask for."""
        if len(indices) and not 0 <= indices.min() <= indices.max() < self.arrays[name][1]:
            raise IntegrityError(
                f"{self.path}: element {indices.min()} to {indices.max()} of {self.arrays[name][1]} of {name}; {REMEDY}"
            )
        block, element = np.divmod(indices, self.elements(name))
        numbers, row = np.unique(block, return_inverse=True)
        found: npt.NDArray[Any] = self.blocks(name, numbers)[row.reshape(-1), element]
        return found

    def blocks(self, name: str, numbers: Ints) -> npt.NDArray[Any]:
        """Whole blocks of an array, its `numbers` (n,) in rising order: (n, elements); zeros behind its end.
        IntegrityError where one is not as it was sealed."""
        import xxhash

        dtype, length = self.arrays[name]
        elements = _elements(dtype)
        if len(numbers) and not 0 <= numbers[0] <= numbers[-1] < -(-length // elements):
            raise IntegrityError(
                f"{self.path}: block {numbers[0]} to {numbers[-1]} of {name}, which it has not; {REMEDY}"
            )
        data = bytearray(len(numbers) * BLOCK)
        view = memoryview(data)
        ends = [*(np.flatnonzero(np.diff(numbers) != 1) + 1).tolist(), len(numbers)] if len(numbers) else []
        asked = (numbers + self._first[name]).tolist()
        start = 0
        for end in ends:  # blocks that lie together are one read
            self._fill(view[start * BLOCK : end * BLOCK], asked[start] * BLOCK)
            start = end
        for row, number in enumerate(asked):
            at = row * BLOCK
            if xxhash.xxh3_64_digest(view[at : at + ROOM], number) != view[at + ROOM : at + BLOCK]:
                raise IntegrityError(f"{self.path} is damaged in its block {number} ({name}); {REMEDY}")
        return np.ndarray((len(numbers), elements), dtype, data, 0, (BLOCK, dtype.itemsize))

    def _fill(self, rest: memoryview, at: int) -> None:
        """Read bytes from `at` on into `rest`."""
        with reading(self.path):
            while rest:  # pread may give less than asked for
                if not (done := os.preadv(self._file, [rest], at)):
                    raise IntegrityError(f"{self.path} was cut while it was being read; {REMEDY}")
                rest = rest[done:]
                at += done

    def verify(self) -> None:
        """Read every byte. IntegrityError where one is not as it was sealed."""
        import xxhash

        found = xxhash.xxh3_128()
        part = bytearray(1 << 22)
        for at in range(0, self._end, len(part)):
            view = memoryview(part)[: min(len(part), self._end - at)]
            self._fill(view, at)
            found.update(view)
        if f"xxh3:{found.hexdigest()}" != self._checksum:
            raise IntegrityError(f"{self.path} is damaged; {REMEDY}")


def path_of(folder: Path, digest: str) -> Path:
    """Where the side file of a digest lies in a folder of side files."""
    return folder / f"{digest}{SUFFIX}"


def _elements(dtype: np.dtype[Any]) -> int:
    return ROOM // dtype.itemsize


def _description(dtype: np.dtype[Any]) -> str | list[Any]:
    return dtype.str if dtype.names is None else [list(field) for field in dtype.descr]


def _dtype(description: str | list[Any], where: Path) -> np.dtype[Any]:
    try:
        if isinstance(description, list):
            fields = [(name, kind, *map(tuple, shape)) for name, kind, *shape in description]
            dtype: np.dtype[Any] = np.dtype(fields)
        else:
            dtype = np.dtype(description)
        if not dtype.hasobject and 0 < dtype.itemsize <= ROOM:
            return dtype
    except (TypeError, ValueError):
        pass
    raise IntegrityError(f"{where}: there is no array of {description!r}; {REMEDY}")


def _close(file: int) -> None:
    with suppress(OSError):
        os.close(file)
