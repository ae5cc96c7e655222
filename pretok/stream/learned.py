"""Which tokens of sequences are learned: pieces of shards -> kinds and masks.

Input: shards, of which those of conversations have a `.spans` beside them, the kinds that are learned of each, and the
pieces of sequences (`tapes`). Output: of which kind each token is, or a mask. Nothing is computed token by token:
spans are found by a binary search in those of a shard, which are mapped into memory, and one `numpy.repeat` writes the
whole mask. numpy, msgspec and the standard library only.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from pretok.base.errors import IntegrityError
from pretok.base.kinds import KINDS, TEXT
from pretok.base.tokens import Bytes, Ints
from pretok.shards.manifest import Shard
from pretok.shards.spans import ShardSpans
from pretok.stream.flat_tokens import Pieces
from pretok.stream.tapes import ranges

Mask = npt.NDArray[np.bool_]
OPEN = 256
"""Files of spans that are mapped at once."""


class Runs(NamedTuple):
    """Pieces of sequences, (p,) each inside one shard, and their runs, (n,) of tokens in a row of one kind.

    row, column: where a piece goes; size: its tokens; shard: its number; first: of its runs. length: tokens of a run;
    kind: its number in `base.kinds`.
    """

    row: Ints
    column: Ints
    size: Ints
    shard: Ints
    first: Ints
    length: Ints
    kind: Bytes

    def fill(self, rows: int, width: int) -> Ints:
        """Lengthen the runs until they fill `rows` sequences of `width` tokens: what no piece fills is as what is
        before it. Returns (rows + 1,), where the runs of each sequence begin and the last one's end."""
        place = self.row * width + self.column
        begin = np.append(self.first, len(self.length))
        self.length[begin[1:] - 1] += np.append(place[1:], rows * width) - place - self.size
        return begin[np.searchsorted(self.row, np.arange(rows + 1))]


class Marks(NamedTuple):
    """Which targets of sequences are learned, in runs of which all are or none. length, learned: (n,) of each run;
    begin: (rows + 1,) where the runs of each sequence begin, and the last one's end, among those of all that were
    looked up together."""

    length: Ints
    learned: Mask
    begin: list[int]

    def part(self, first: int, end: int) -> Marks:
        """The same of the sequences `first` to `end - 1`."""
        runs = slice(self.begin[first], self.begin[end])
        return Marks(self.length[runs], self.learned[runs], self.begin[first : end + 1])

    def mask(self, targets: int) -> Mask:
        """(rows, targets)."""
        return self.learned.repeat(self.length).reshape(-1, targets)


class Learned:
    """Which tokens of `shards` are learned, these being one address space, one after the other.

    learn: the kinds that are learned of each entry of a mix; () is all of them.
    """

    def __init__(self, shards: Sequence[Shard], learn: Sequence[Collection[str]]) -> None:
        self._shards = tuple(shards)
        self._starts: Ints = np.cumsum([0, *(shard.tokens for shard in shards)], dtype=np.int64)
        wanted = [[not some or kind in some for kind in KINDS] for some in learn]
        self._learned = np.array(wanted, np.bool_)
        self._learned[:, TEXT] = True
        self._known: Mask = np.array([shard.kinds is not None for shard in shards], np.bool_)
        self._files: OrderedDict[int, ShardSpans] = OrderedDict()

    def __getstate__(self) -> dict[str, object]:
        return self.__dict__ | {"_files": OrderedDict()}

    def marks(self, pieces: Pieces, entry: Ints, width: int) -> Marks:
        """Which targets of sequences of entries (rows,) are learned, each of `width` tokens, of which the first is
        none. Raises IntegrityError."""
        runs = self._runs(pieces)
        learned, begin = self._are_learned(runs, entry), runs.fill(len(entry), width)
        runs.length[begin[:-1]] -= 1  # the first token of a sequence is no target
        return Marks(runs.length, learned, begin.tolist())

    def kinds(self, pieces: Pieces, rows: int, width: int) -> Bytes:
        """(rows, width) uint8: number in `base.kinds` of each token."""
        runs = self._runs(pieces)
        runs.fill(rows, width)
        return np.repeat(runs.kind, runs.length).reshape(rows, width)

    def _are_learned(self, runs: Runs, entry: Ints) -> Mask:
        """(n,): which runs are."""
        if (self._learned == self._learned[0]).all():
            return np.take(self._learned[0], runs.kind)
        counts = np.diff(runs.first, append=len(runs.kind))
        return np.take(self._learned, np.repeat(entry[runs.row] * len(KINDS), counts) + runs.kind)

    def _runs(self, pieces: Pieces) -> Runs:
        """The runs of pieces; those of shards without spans are of text."""
        first = np.searchsorted(self._starts, pieces.address, side="right") - 1
        last = np.searchsorted(self._starts, pieces.address + pieces.length - 1, side="right") - 1
        piece, shard = ranges(first, last + 1)
        address, row, start = pieces.address[piece], pieces.row[piece], self._starts[shard]
        begin = np.maximum(address, start)
        end = np.minimum(address + pieces.length[piece], self._starts[shard + 1])
        column = pieces.column[piece] + begin - address
        begin, end = begin - start, end - start  # in the shard
        if len(held := np.flatnonzero(end > begin)) < len(begin):  # a shard may be empty
            shard, begin, end, row, column = (part[held] for part in (shard, begin, end, row, column))
        # Of each piece the spans from `low` on, `counts` of them; of text there is one.
        low, counts = np.zeros(len(shard), np.int64), np.ones(len(shard), np.int64)
        # In the order of the tokens: then a search begins near the last one, in what the cache holds.
        chats = np.flatnonzero(self._known[shard])
        chats = chats[np.lexsort((begin[chats], shard[chats]))]
        some, at = np.unique(shard[chats], return_index=True)
        found = list(zip(some.tolist(), np.split(chats, at[1:]), strict=True)) if len(some) else []
        for one, mine in found:
            ends = self._spans(one).ends
            low[mine] = np.searchsorted(ends, begin[mine], side="right")
            counts[mine] += np.searchsorted(ends, end[mine] - 1, side="right") - low[mine]
        if (counts < 1).any():
            raise self._damaged(shard, counts < 1)
        behind = np.cumsum(counts)
        first, last = behind - counts, behind - 1
        stop, kind = np.empty(int(counts.sum()), np.int64), np.full(int(counts.sum()), TEXT, np.uint8)
        for one, mine in found:
            file, to = self._spans(one), ranges(first[mine], behind[mine])[1]
            spans = to + np.repeat(low[mine] - first[mine], counts[mine])
            stop[to], kind[to] = file.ends[spans], file.kinds[spans]
        stop[last] = end
        length = np.empty_like(stop)
        np.subtract(stop[1:], stop[:-1], out=length[1:])
        length[first] = stop[first] - begin
        if len(length) and (length.min() < 1 or kind.max() >= len(KINDS)):
            wrong = (length < 1) | (kind >= len(KINDS))
            raise self._damaged(shard, np.logical_or.reduceat(wrong, first))
        return Runs(row, column, end - begin, shard, first, length, kind)

    def _spans(self, shard: int) -> ShardSpans:
        """The spans of a shard. Raises IntegrityError."""
        found = self._files.get(shard)
        if found is not None:
            self._files.move_to_end(shard)
            return found
        if len(self._files) >= OPEN:
            self._files.popitem(last=False)
        found = self._files[shard] = ShardSpans(self._shards[shard].spans_path)
        if found.tokens != self._shards[shard].tokens:
            raise self._damaged(np.array([shard]), np.array([True]))
        return found

    def _damaged(self, shards: Ints, wrong: Mask) -> IntegrityError:
        """Names the first of `shards` (p,) that is `wrong` (p,)."""
        path = self._shards[int(shards[np.argmax(wrong)])].spans_path
        return IntegrityError(
            f"{path} does not say of each token what it is: it was damaged; run pretok verify"
        )
