r"""The spans of a shard: a file next to it with the kind of each token, for conversations.

    NAME.spans  b"PTSPANS\0" | u64 version = 1 | u64 tokens | u64 spans N | i64 ends[N] | u8 kinds[N]

All numbers are little-endian. A span is a run of tokens of one kind inside one document. Spans are in order and cover
the shard: span i is the tokens ends[i - 1] to ends[i]. Kinds are indices of `tokenizer.kinds.KINDS`. A span takes 9
bytes, so the file is small. A binary search in `ends`, which is memory-mapped, finds the kinds of a range of tokens.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

from pretok.base.errors import IntegrityError
from pretok.base.storage import reading
from pretok.base.tokens import Bytes, Ints
from pretok.base.tree import write_rooted
from pretok.shards.manifest import SideFile
from pretok.shards.shard_file import SPANS_SUFFIX, check_size
from pretok.tokenizer.kinds import KINDS

MAGIC = b"PTSPANS\0"
VERSION = 1
HEADER = struct.Struct("<8sQQQ")


def spans_path(prefix: Path) -> Path:
    """Path of the spans of the shard `prefix` (a path without suffix)."""
    return prefix.with_name(prefix.name + SPANS_SUFFIX)


def find_spans(kinds: Bytes, lengths: npt.NDArray[np.int32]) -> tuple[Ints, Bytes]:
    """Return (ends, kinds) of the spans of whole documents.

    kinds: (tokens,) of each token; lengths: tokens per document.
    """
    last = np.ones(len(kinds), np.bool_)  # whether a span ends with the token
    last[:-1] = kinds[1:] != kinds[:-1]
    last[np.cumsum(lengths, dtype=np.int64) - 1] = True
    at = np.flatnonzero(last)
    return at + 1, kinds[at]


def write_spans(prefix: Path, source: str, ends: Ints, kinds: Bytes) -> tuple[SideFile, dict[str, int]]:
    """Write the spans of the shard `prefix`; their manifest entry, and the number of tokens of each kind."""
    path = spans_path(prefix)
    head = HEADER.pack(MAGIC, VERSION, int(ends[-1]), len(ends))
    data = b"".join([head, ends.astype("<i8").tobytes(), kinds.tobytes()])
    file = SideFile(f"{source}/{path.name}", source, len(data), write_rooted(path, data))
    return file, count_kinds(ends, kinds)


class ShardSpans:
    """The spans of a shard, memory-mapped. Raises IntegrityError if the file holds none.

    tokens: of the shard; ends: (spans,) int64, where each span ends, in tokens of the shard; kinds: (spans,) uint8.
    """

    def __init__(self, path: Path) -> None:
        with reading(path), path.open("rb") as file:
            head = file.read(HEADER.size).ljust(HEADER.size)
        magic, version, self.tokens, count = HEADER.unpack(head)
        if magic != MAGIC or version != VERSION:
            raise IntegrityError(f"{path}: magic {magic!r}, version {version} unknown")
        check_size(path, HEADER.size + 9 * count)
        with reading(path):
            data = np.asarray(np.memmap(path, np.uint8, "r"))
        self.ends: Ints = data[HEADER.size : HEADER.size + 8 * count].view("<i8")
        self.kinds: Bytes = data[HEADER.size + 8 * count :]
        if count and self.ends[-1] != self.tokens:
            raise IntegrityError(
                f"{path}: its spans end at token {self.ends[-1]}, the shard at {self.tokens}"
            )

    @property
    def of_tokens(self) -> Bytes:
        """(tokens,) uint8: the kind of each token."""
        return np.repeat(self.kinds, np.diff(self.ends, prepend=0))

    def document(self, offsets: Ints, number: int) -> Iterator[tuple[int, int, str]]:
        """Yield (first token, number of tokens, kind) of each span of a document.

        offsets: where each document of the shard begins, as its reader has them.
        """
        start, stop = offsets[number : number + 2].tolist()
        for end, kind in zip(*(column.tolist() for column in self._cut(start, stop)), strict=True):
            yield start, end - start, KINDS[kind]
            start = end

    def learned(self, start: int, stop: int, learn: Collection[str]) -> npt.NDArray[np.bool_]:
        """Return (stop - start,) bool: which of the tokens start:stop have a kind in `learn`."""
        if stop <= start:
            return np.zeros(0, np.bool_)
        ends, kinds = self._cut(start, stop)
        wanted = np.array([kind in learn for kind in KINDS])
        return np.repeat(wanted[kinds], np.diff(ends, prepend=start))

    def _cut(self, start: int, stop: int) -> tuple[Ints, Bytes]:
        """Return (ends, kinds) of the spans in the tokens start:stop; the last one ends at `stop`."""
        first, last = np.searchsorted(self.ends, [start, stop - 1], side="right")
        return np.minimum(self.ends[first : last + 1], stop), self.kinds[first : last + 1]

    def problem(self, offsets: Ints, stated: dict[str, int]) -> str | None:
        """Return what is wrong, or None.

        offsets: where each document begins and the last ends; stated: tokens by kind.
        """
        if self.tokens != offsets[-1]:
            return f"they cover {self.tokens} tokens, the shard has {offsets[-1]}"
        if (np.diff(self.ends, prepend=0) <= 0).any() or (self.kinds >= len(KINDS)).any():
            return "they overlap, or are of no kind"
        if not np.isin(offsets[1:], self.ends).all():
            return "a span extends beyond the end of a document"
        if (counted := count_kinds(self.ends, self.kinds)) != stated:
            return f"they have tokens {counted}, the manifest says {stated}"
        return None


def count_kinds(ends: Ints, kinds: Bytes) -> dict[str, int]:
    """Return the number of tokens of each kind that occurs."""
    counts = np.bincount(kinds, np.diff(ends, prepend=0), len(KINDS)).astype(np.int64).tolist()
    return {kind: count for kind, count in zip(KINDS, counts, strict=False) if count}
