"""The spans of a shard: of which kind each of its tokens is, as a file beside it.

Input: the kind of every token, as documents are encoded. Output: `NAME.spans`, for shards of conversations alone:

    b"PTSPANS\\0" | u64 version = 1 | u64 tokens | u64 spans N | i64 ends[N], in tokens of the shard | u8 kinds[N]

little-endian. A span is tokens in a row of one kind, of one document; all spans in order cover the shard, so span i is
ends[i - 1] to ends[i]. Kinds are indices of `base.kinds.KINDS`. A span takes 9 bytes, where half a byte a token would
take 25 % of a shard of uint16. Which tokens of a range are learned is a binary search in the ends, mapped into memory,
and what stands there in a row: two places of the file.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Collection, Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

from pretok.base.errors import IntegrityError
from pretok.base.kinds import KINDS
from pretok.base.storage import reading
from pretok.base.tokens import Bytes, Ints
from pretok.base.tree import write_rooted
from pretok.shards.format import SPANS_SUFFIX, check_size
from pretok.shards.manifest import SideFile

MAGIC = b"PTSPANS\0"
VERSION = 1
HEADER = struct.Struct("<8sQQQ")


def spans_path(prefix: Path) -> Path:
    """Where the spans of the shard `prefix` (path without suffix) are."""
    return prefix.with_name(prefix.name + SPANS_SUFFIX)


class SpanWriter:
    """Writes the spans of the shard `prefix`: `append` as often as needed, then `seal`. Nothing is there before."""

    def __init__(self, prefix: Path) -> None:
        self._path = spans_path(prefix)
        self._tokens = 0
        self._ends: list[Ints] = []
        self._kinds: list[Bytes] = []

    def append(self, kinds: Bytes, lengths: npt.NDArray[np.int32]) -> None:
        """Add whole documents. kinds: of each of their tokens; lengths: tokens per document."""
        if not len(kinds):
            return
        last = np.ones(len(kinds), np.bool_)  # tokens with which a span ends
        last[:-1] = kinds[1:] != kinds[:-1]
        last[np.cumsum(lengths, dtype=np.int64) - 1] = True
        at = np.flatnonzero(last)
        self._ends.append(at + 1 + self._tokens)
        self._kinds.append(kinds[at])
        self._tokens += len(kinds)

    def seal(self, source: str) -> tuple[SideFile, dict[str, int]]:
        """Write the file. What the manifest says of it, and the tokens of each kind that there is."""
        ends = np.concatenate([np.empty(0, np.int64), *self._ends])
        kinds = np.concatenate([np.empty(0, np.uint8), *self._kinds])
        head = HEADER.pack(MAGIC, VERSION, self._tokens, len(ends))
        data = b"".join([head, ends.astype("<i8").tobytes(), kinds.tobytes()])
        made = SideFile(f"{source}/{self._path.name}", source, len(data), write_rooted(self._path, data))
        return made, count_kinds(ends, kinds)


class ShardSpans:
    """The spans of a shard, mapped into memory. Raises IntegrityError that names a file that holds none, also where it
    is cut short later: to touch a page that the file no longer has would end the process.

    tokens: of the shard; ends: (spans,) int64, where each span ends, in tokens of the shard; kinds: (spans,) uint8.
    """

    def __init__(self, path: Path) -> None:
        with reading(path), path.open("rb") as file:
            head = file.read(HEADER.size).ljust(HEADER.size)
        magic, version, self.tokens, count = HEADER.unpack(head)
        if magic != MAGIC or version != VERSION:
            raise IntegrityError(f"{path}: magic {magic!r}, version {version} unknown")
        self._path, self._size = path, HEADER.size + 9 * count
        check_size(path, self._size)
        with reading(path), path.open("rb") as file:
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        held = np.frombuffer(self._map, np.uint8)
        self._ends: Ints = held[HEADER.size : HEADER.size + 8 * count].view("<i8")
        self._kinds: Bytes = held[HEADER.size + 8 * count :]
        if count and self.ends[-1] != self.tokens:
            raise IntegrityError(
                f"{path}: its spans end at token {self.ends[-1]}, the shard at {self.tokens}"
            )

    @property
    def ends(self) -> Ints:
        """Take it again for each read: the file is looked at before."""
        self._compare()
        return self._ends

    @property
    def kinds(self) -> Bytes:
        """As `ends`."""
        self._compare()
        return self._kinds

    def _compare(self) -> None:
        if (size := self._map.size()) != self._size:
            raise IntegrityError(f"{self._path} has {size} bytes, its header says {self._size}")

    @property
    def of_tokens(self) -> Bytes:
        """(tokens,) uint8: the kind of each token."""
        return np.repeat(self.kinds, np.diff(self.ends, prepend=0))

    def within(self, start: int, stop: int) -> Iterator[tuple[int, int, str]]:
        """(first token, tokens, kind) of what stands in the tokens start:stop of the shard, cut at both ends."""
        for end, kind in zip(*(column.tolist() for column in self._cut(start, stop)), strict=True):
            yield start, end - start, KINDS[kind]
            start = end

    def document(self, offsets: Ints, number: int) -> Iterator[tuple[int, int, str]]:
        """The same of one document. offsets: where documents begin in the shard, as its reader has them."""
        return self.within(int(offsets[number]), int(offsets[number + 1]))

    def learned(self, start: int, stop: int, learn: Collection[str]) -> npt.NDArray[np.bool_]:
        """(stop - start,) bool: which of the tokens start:stop of the shard are of a kind in `learn`."""
        if stop <= start:
            return np.zeros(0, np.bool_)
        ends, kinds = self._cut(start, stop)
        wanted = np.array([kind in learn for kind in KINDS])
        return np.repeat(wanted[kinds], np.diff(ends, prepend=start))

    def _cut(self, start: int, stop: int) -> tuple[Ints, Bytes]:
        """(ends, kinds) of the spans in the tokens start:stop, of which the last ends there."""
        ends, kinds = self.ends, self.kinds
        first, last = np.searchsorted(ends, [start, stop - 1], side="right")
        return np.minimum(ends[first : last + 1], stop), kinds[first : last + 1]

    def problem(self, offsets: Ints, stated: dict[str, int]) -> str | None:
        """What is wrong, or None. offsets: where documents begin in the shard, and it ends; stated: tokens by kind."""
        if self.tokens != offsets[-1]:
            return f"they cover {self.tokens} tokens, the shard has {offsets[-1]}"
        if (np.diff(self.ends, prepend=0) <= 0).any() or (self.kinds >= len(KINDS)).any():
            return "they overlap, or are of no kind"
        if not np.isin(offsets[1:], self.ends).all():
            return "a span goes on beyond the end of a document"
        if (found := count_kinds(self.ends, self.kinds)) != stated:
            return f"they have tokens {found}, the manifest says {stated}"
        return None


def count_kinds(ends: Ints, kinds: Bytes) -> dict[str, int]:
    """Tokens of each kind that there is."""
    counts = np.bincount(kinds, np.diff(ends, prepend=0), len(KINDS)).astype(np.int64).tolist()
    return {kind: count for kind, count in zip(KINDS, counts, strict=False) if count}
