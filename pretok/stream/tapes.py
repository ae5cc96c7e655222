"""Tapes: the tokens that an entry of a mix reads, as runs of tokens of its source.

Whole sources, classes and packed ones are all tapes. Input: any number of runs, or the digest of a side file. Output: a
sealed side file; or where given tokens of a tape lie, and the inverse. The tape of a class consists of the runs of its
documents; that of a packed source of the runs of its sequences, each filled up to seq_len + 1 tokens by EOD; a whole
source is a single run and needs no file. A side file lies in a folder next to mix.json:

    runs     the tape in its order, in blocks of at most 512 runs, each {address: u32, length: u16 or u32}. The address
             is relative to the lowest one of the block. The length field is twice the length, plus 1 if EOD follows up
             to a multiple of `every`
    blocks   i64, five columns per block: its first token on the tape; its lowest address; the end of its highest run;
             twice the byte at which its runs begin, plus 1 if their lengths are u32; 63 bits of their XXH3-64, seeded
             by the lowest address. A last row has the tokens of the tape, 0, 0, twice the end of the runs, 0
    tops     i64: the first token of every 100th block
    footer   JSON: format, version, about, every, blocks, tokens, checksum (XXH3-128 of everything before it)
    trailer  u32 bytes of the footer | b"PRETOKSF"

The name of the file is the digest of its footer. `blocks` is mapped into memory, so any token is found with two reads:
one page of `blocks`, and the runs. Opening reads only the footer. It needs only numpy, xxhash and the standard library.
"""

from __future__ import annotations

import mmap
import os
import struct
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, Self

import msgspec
import numpy as np
import xxhash

from pretok.base.errors import IntegrityError, PretokError
from pretok.base.records import Checksum, Count, Record, check_version, read_record, to_json
from pretok.base.storage import NewFile, canonical_json, digest, fingerprint, reading
from pretok.base.tokens import Ints
from pretok.shards.manifest import Shard
from pretok.stream.flat_tokens import OpenFiles, TokenRanges, ranges

FORMAT, VERSION = "pretok-side-file", 2
FOLDER = "side_files"
"""The folder next to mix.json with the side files of all mixes there."""
SUFFIX = ".side"
NARROW: np.dtype[Any] = np.dtype([("address", "<u4"), ("length", "<u2")])
WIDE: np.dtype[Any] = np.dtype([("address", "<u4"), ("length", "<u4")])
EACH = 512
"""The largest number of runs of a block."""
PAGE = 100
"""Blocks that are searched at once: their table rows take 4,000 bytes."""
SOME = 32
"""The number of blocks that are decoded at once, about."""
MOST = 1 << 30
"""The largest number of tokens of a run."""
FILL = -1
TRAILER = struct.Struct("<I8s")
MAGIC = b"PRETOKSF"
REMEDY = (
    f"copy it again from where the mix was made (the folder {FOLDER} next to it), or make the mix again without this "
    "file"
)


class _Footer(Record, frozen=True):
    format: str
    version: Count
    about: dict[str, Any]
    every: Count
    blocks: Count
    tokens: Count
    checksum: Checksum


class TapeWriter:
    """Writes a side file into `folder`: `append` runs in the order of the tape, then `seal`, which names the file.

    If the context is left without `seal`, nothing remains. label: distinguishes files that one process writes at a
    time. every: EOD fills the tape up to multiples of this many tokens.
    """

    def __init__(self, folder: Path, label: str, every: int = 1) -> None:
        self._file, self._every = NewFile(folder / label), every
        self.tokens = self._written = self._at = 0
        # Address, length and EOD behind it, of the runs that are not written yet.
        self._runs = np.empty((3, 0), np.int64)
        self._blocks: list[tuple[int, int, int, int, int]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._file.__exit__()

    def append(self, address: Ints, length: Ints, joined: bool = True) -> None:
        """Append runs of `length` (n,) tokens that start at `address` (n,).

        An address of FILL, after another run, stands for EOD up to a multiple of `every`. joined: merge a run with the
        one before if it starts where that one ended.
        """
        if not len(address):
            return
        self.tokens += int(length.sum())
        # EOD is kept as a property of the run before it, since a block stores only whether a run is filled up.
        real = np.flatnonzero(address != FILL)
        behind = np.append(length, 0)[real + 1] * (np.append(address, 0)[real + 1] == FILL)
        runs = np.stack([address[real], length[real], behind])
        if joined:
            last, self._runs = self._runs[:, -1:], self._runs[:, :-1]
            runs = _split(_join(np.concatenate([last, runs], axis=1)))
        self._runs = np.concatenate([self._runs, runs], axis=1)
        while self._runs.shape[1] >= 2 * EACH:  # keep the last run, which may still grow
            self._write()

    def _write(self) -> None:
        """Write the next block."""
        address, length, behind = self._runs[:, :EACH]
        # As many runs as have addresses within 2^32 of each other: the longest prefix for which max - min fits u32.
        within = np.maximum.accumulate(address) - np.minimum.accumulate(address) < 1 << 32
        count = int(within.sum())
        address, length, behind = (part[:count] for part in (address, length, behind))
        low, high = int(address.min()), int((address + length).max())
        wide = int(length.max()) >= 1 << 15
        runs = np.empty(count, WIDE if wide else NARROW)
        runs["address"], runs["length"] = address - low, 2 * length + (behind > 0)
        self._blocks.append((self._written, low, high, 2 * self._at + wide, _check(runs.tobytes(), low)))
        self._file.write(runs.tobytes())
        self._at += runs.nbytes
        self._written += int((length + behind).sum())
        self._runs = self._runs[:, count:]

    def seal(self, about: Mapping[str, Any]) -> str:
        """Write tables and footer, and rename the file to its digest, which is returned.

        about: JSON values that readers compare.
        """
        while self._runs.shape[1]:
            self._write()
        if padding := -self._at % 8:
            self._file.write(bytes(padding))
        table = np.array([*self._blocks, (self.tokens, 0, 0, 2 * self._at, 0)], "<i8")
        self._file.write(table.tobytes() + table[:-1:PAGE, 0].tobytes())
        blocks = len(self._blocks)
        sealed = _Footer(FORMAT, VERSION, dict(about), self._every, blocks, self.tokens, self._file.checksum)
        footer = canonical_json(to_json(sealed))
        name = digest(footer)
        self._file.write(footer + TRAILER.pack(len(footer), MAGIC))
        self._file.path = path_of(self._file.path.parent, name)
        self._file.seal()
        return name


def _check(runs: bytes, low: int) -> int:
    return xxhash.xxh3_64_intdigest(runs, low) >> 1


def _join(runs: Ints) -> Ints:
    """Return (3, n): the same runs, with those that start where the previous one ended merged into it."""
    address, length, behind = runs
    begins = np.ones(len(address), np.bool_)
    begins[1:] = (address[1:] != (address + length)[:-1]) | (behind[:-1] > 0)
    first = np.flatnonzero(begins)
    last = np.append(first[1:], len(address)) - 1
    return np.stack([address[first], np.add.reduceat(length, first), behind[last]])


def _split(runs: Ints) -> Ints:
    """Return (3, n): the same runs, split into runs of at most MOST tokens. No EOD follows those that are longer."""
    if not (runs[1] > MOST).any():
        return runs
    row, part = ranges(np.zeros(runs.shape[1], np.int64), -(-runs[1] // MOST))
    address, length, behind = runs[:, row]
    left = length - part * MOST
    return np.stack([address + part * MOST, np.minimum(left, MOST), behind])


class TapeRanges(NamedTuple):
    """n runs of a tape: `length` tokens from `start` on are the tokens of the shards from `address` on.

    Tokens between two runs are EOD. Each field is (n,).
    """

    start: Ints
    address: Ints
    length: Ints


class SideTape:
    """The tape in a side file, found by its digest. about: what its writer recorded.

    shards: the shards of the tape, perhaps followed by others that were added later; None skips the comparison. Raises
    IntegrityError (missing, damaged, of other shards), MismatchError (another version).
    """

    def __init__(self, folder: Path, name: str, shards: Sequence[Shard] | None = None) -> None:
        self.path = path_of(folder, name)
        if not self.path.exists():
            raise IntegrityError(f"{self.path}, which belongs to a mix, is missing: {REMEDY}")
        size = self.path.stat().st_size
        self._files = OpenFiles([self.path], [size], sequential=False)
        length, magic = (
            TRAILER.unpack(self._read(size - TRAILER.size, TRAILER.size)) if size > TRAILER.size else (0, b"")
        )
        footer = self._read(size - TRAILER.size - length, length) if magic == MAGIC and length < size else b""
        if digest(footer) != name:
            raise IntegrityError(f"{self.path} is damaged, truncated or not a side file; {REMEDY}")
        data = msgspec.json.decode(footer)
        check_version(data.get("version"), VERSION, self.path, "make the mix again with pretok mix")
        self.footer = read_record(_Footer, data, self.path)
        self.about, self.tokens = self.footer.about, self.footer.tokens
        self._every, self.blocks = self.footer.every, self.footer.blocks
        # Offsets from the end: the footer is preceded by tops, and tops by blocks.
        tops = -(-self.blocks // PAGE)
        self.end = size - TRAILER.size - length
        self._tops_at, self._table_at = self.end - 8 * tops, self.end - 8 * (tops + 5 * (self.blocks + 1))
        if self._table_at < 0:
            raise IntegrityError(f"{self.path} is truncated; {REMEDY}")
        if shards is not None:
            known = shards[: self.about["shards"]]
            if (self.about["shards"], self.about["indexes"]) != (len(known), shards_key(known)):
                raise IntegrityError(f"{self.path} belongs to other shards; {REMEDY}")

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in self.__dict__.items() if key != "_table"}

    @cached_property
    def _table(self) -> Any:
        """The table `blocks`, (blocks + 1, 5), mapped into memory."""
        with reading(self.path):
            file = np.memmap(self.path, "<i8", "r", self._table_at, (self.blocks + 1, 5))
        file._mmap.madvise(mmap.MADV_RANDOM)  # type: ignore[attr-defined]
        return np.asarray(file)

    @cached_property
    def _tops(self) -> Ints:
        """The table `tops`, in memory."""
        return np.frombuffer(self._read(self._tops_at, self.end - self._tops_at), "<i8")

    def _read(self, at: int, length: int) -> bytes:
        with reading(self.path):
            data = os.pread(self._files.get(0), length, at) if at >= 0 else b""
        if len(data) != length:
            raise IntegrityError(f"{self.path} is truncated; {REMEDY}")
        return data

    def _blocks_of(self, first: Ints, end: Ints) -> list[int]:
        """Return the blocks that hold the tokens `first` (n,) to `end - 1` (n,) of the tape, sorted."""
        # Two levels: `tops` gives the first of 100 blocks, and of these the last one that begins at or before the token
        # is the right one. So a lookup touches a page or two of the mapped table.
        begins, found = self._table[:, 0], set()
        pages = (np.searchsorted(self._tops[1:], first, side="right") * PAGE).tolist()
        for page, token, stop in zip(pages, first.tolist(), end.tolist(), strict=True):
            block = bisect_right(begins, token, page, min(page + PAGE, self.blocks)) - 1
            if not begins[block] <= token < begins[block + 1]:
                raise self._damaged()
            found.add(block)
            while begins[block + 1] < stop:
                block += 1
                if block == self.blocks:  # behind the end, which only a forged mix asks for
                    raise self._damaged()
                found.add(block)
        return sorted(found)

    def _runs(self, blocks: Sequence[int]) -> TapeRanges:
        """Return all runs of the blocks, which must be sorted."""
        # A block's tokens and bytes end where those of the next one begin, so two rows describe it.
        rows, following = self._table[blocks], self._table[[block + 1 for block in blocks]]
        parts, counts = [], []
        for (_, low, _, place, check), behind in zip(rows.tolist(), following[:, 3].tolist(), strict=True):
            kind = WIDE if place & 1 else NARROW
            count = ((behind >> 1) - (place >> 1)) // kind.itemsize
            if not 1 <= count <= EACH:
                raise self._damaged()
            data = self._read(place >> 1, count * kind.itemsize)
            if _check(data, low) != check:
                raise self._damaged()
            parts.append((data, kind))
            counts.append(count)
        kinds = {kind for _, kind in parts}
        if len(kinds) == 1:
            runs = np.frombuffer(b"".join([data for data, _ in parts]), kinds.pop())
        else:
            runs = np.concatenate([np.frombuffer(data, kind).astype(WIDE) for data, kind in parts])
        last = np.cumsum(counts) - 1
        first = last + 1 - counts
        code = runs["length"].astype(np.int64)
        length = code >> 1
        size = length.copy()
        if self._every > 1 and len(filled := np.flatnonzero(code & 1 > 0)):
            # EOD fills up to a multiple of `every` tokens of the tape. Positions are known only relative to the last
            # run that was filled up, where a multiple of `every` ends, or else to the first token of the block.
            ends = np.cumsum(length)
            since = np.append(0, ends[filled[:-1]])
            foremost = np.searchsorted(filled, first)  # the first such run of each block that has one
            some = foremost < np.append(foremost[1:], len(filled))
            since[foremost[some]] = (ends[first] - length[first] - rows[:, 0])[some]
            size[filled] += (since - ends[filled]) % self._every
        # Where a block does not follow the one before, the sum leaps to its first token.
        leap = rows[:, 0] - np.append(0, following[:-1, 0])
        size[first] += leap
        stop = np.cumsum(size)
        size[first] -= leap
        if length.min() < 1 or (stop[last] != following[:, 0]).any():
            raise self._damaged()
        return TapeRanges(stop - size, runs["address"] + np.repeat(rows[:, 1], counts), length)

    def _damaged(self) -> IntegrityError:
        return IntegrityError(f"{self.path} is damaged; {REMEDY}")

    def between(self, first: Ints, end: Ints) -> TokenRanges:
        """Return the tokens `first` (n,) to `end - 1` (n,) of the tape without EOD, 0 <= first < end <= tokens.

        Row n of the pieces is the n-th range; columns count from `first`.
        """
        # Neighbouring ranges lie in the same blocks. Only some blocks at a time: arrays of all their runs would be new
        # memory, each page of which costs more than what is computed in it.
        groups = -(-min(len(first), self.blocks) // SOME)
        if groups == 1:
            return self._between(first, end)
        some = np.array_split(np.argsort(first), groups)
        parts = [(rows, self._between(first[rows], end[rows])) for rows in some]
        return _in_rows([pieces._replace(row=rows[pieces.row]) for rows, pieces in parts])

    def _between(self, first: Ints, end: Ints) -> TokenRanges:
        start, address, length = self._runs(self._blocks_of(first, end))
        low, high = np.searchsorted(start, [first, end - 1], side="right") - 1
        row, run = ranges(low, high + 1)
        begin = np.maximum(start[run], first[row])
        stop = np.minimum(start[run] + length[run], end[row])
        pieces = TokenRanges(row, begin - first[row], address[run] + begin - start[run], stop - begin)
        return TokenRanges(*(part[stop > begin] for part in pieces)) if self._every > 1 else pieces

    def holding(self, first: int, end: int) -> TapeRanges:
        """Return the parts of runs that lie within the addresses `first` to `end - 1`.

        On a packed tape no part crosses a multiple of `every`.
        """
        # Runs of a packed tape are in any order, so every block whose addresses overlap is looked through.
        blocks = np.flatnonzero((self._table[:-1, 1] < end) & (self._table[:-1, 2] > first))
        if not len(blocks):
            return TapeRanges(*[np.empty(0, np.int64)] * 3)
        start, address, length = self._runs(blocks.tolist())
        skipped = np.maximum(first - address, 0)
        length = np.minimum(address + length, end) - address - skipped
        kept = length > 0
        start, address, length = (start + skipped)[kept], (address + skipped)[kept], length[kept]
        if self._every == 1:
            return TapeRanges(start, address, length)
        row, part = ranges(start // self._every, (start + length - 1) // self._every + 1)
        begin = np.maximum(start[row], part * self._every)
        stop = np.minimum((start + length)[row], (part + 1) * self._every)
        return TapeRanges(begin, address[row] + begin - start[row], stop - begin)


class Tapes:
    """The tapes of all entries of a mix.

    bases: (entries,) the lowest address each may have. sizes: tokens of each. strides: tokens from one sequence to the
    next. length: tokens of a sequence. files: the side files of the entries that have one.
    """

    def __init__(
        self, bases: Ints, sizes: Sequence[int], strides: Ints, length: int, files: Mapping[int, SideTape]
    ) -> None:
        self.bases, self._sizes, self.strides, self._length, self.files = bases, sizes, strides, length, files
        self._filed = np.array([number in files for number in range(len(bases))], np.bool_)

    def address(self, entry: int, cut: int, number: int) -> int:
        """Return the address of a sequence of an entry without a side file: its tokens are one run."""
        return int(self.bases[entry]) + cut + number * int(self.strides[entry])

    def pieces(self, entry: Ints, cut: Ints, number: Ints) -> TokenRanges:
        """Return where the sequences `number` (n,) of entries (n,) lie, if their epochs begin at token `cut` (n,).

        TokenRanges are sorted by row. Parts of a row that no piece covers are EOD.
        """
        first = cut + number * self.strides[entry]
        filed, parts = self._filed[entry], []
        if len(whole := np.flatnonzero(~filed)):
            address = (self.bases[entry] + first)[whole]
            parts.append(TokenRanges(whole, np.zeros_like(whole), address, np.full_like(whole, self._length)))
        for tape in sorted({*entry[filed].tolist()}):
            mine = np.flatnonzero(entry == tape)
            pieces = self.between(tape, first[mine], first[mine] + self._length)
            parts.append(pieces._replace(row=mine[pieces.row]))
        return _in_rows(parts)

    def between(self, entry: int, first: Ints, end: Ints) -> TokenRanges:
        """Return the tokens `first` (n,) to `end - 1` (n,) of an entry's tape, one row per range."""
        if entry not in self.files:
            rows = np.arange(len(first))
            return TokenRanges(rows, np.zeros_like(rows), first + self.bases[entry], end - first)
        pieces = self.files[entry].between(first, end)
        return pieces._replace(address=pieces.address + self.bases[entry])

    def holding(self, entry: int, first: int, end: int) -> TapeRanges:
        """Return the inverse: which tokens of an entry's tape have the addresses `first` to `end - 1`."""
        base = int(self.bases[entry])
        if entry in self.files:
            start, address, length = self.files[entry].holding(first - base, end - base)
            return TapeRanges(start, address + base, length)
        low, high = (min(max(at - base, 0), self._sizes[entry]) for at in (first, end))
        return TapeRanges(
            *(np.array([at] if low < high else [], np.int64) for at in (low, base + low, high - low))
        )


def _in_rows(parts: Sequence[TokenRanges]) -> TokenRanges:
    """Concatenate pieces, sorted by row and, within a row, in the order of `parts`."""
    parts = [part for part in parts if len(part.row)] or parts[:1]
    if len(parts) == 1:
        return parts[0]
    whole = TokenRanges(*(np.concatenate(field) for field in zip(*parts, strict=True)))
    order = np.argsort(whole.row, kind="stable")
    return TokenRanges(*(field[order] for field in whole))


def shards_key(shards: Sequence[Shard]) -> str:
    """Return a fingerprint of what a side file depends on: the documents of shards, and their order."""
    return fingerprint({"indexes": [shard.index_root for shard in shards]})


def path_of(folder: Path, name: str) -> Path:
    """Return the path of the side file with this digest."""
    return folder / f"{name}{SUFFIX}"


def verify_side_file(path: Path) -> list[str]:
    """Read every byte of a side file and return what is wrong with it; [] if it is good."""
    try:
        file = SideTape(path.parent, path.name.removesuffix(SUFFIX))
        hasher, left = xxhash.xxh3_128(), file.end
        with path.open("rb") as data:
            while left:
                part = data.read(min(left, 1 << 22))
                hasher.update(part)
                left -= len(part)
        if f"xxh3:{hasher.hexdigest()}" != file.footer.checksum:
            raise IntegrityError(f"{path} is damaged; {REMEDY}")
    except PretokError as error:
        return [str(error)]
    return []
