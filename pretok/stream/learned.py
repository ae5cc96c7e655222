"""Which tokens of sequences are learned, that is, contribute to the loss: pieces of shards -> kinds and masks.

Input: shards (those with conversations have a `.spans` file), the kinds that are learned in each entry, and the pieces
of sequences (`tapes`). Output: the kind of each token, or a mask. Nothing is computed token by token: a binary search
finds the spans in the mapped file of a shard, and one `numpy.repeat` writes the whole mask. It needs only numpy,
msgspec and the standard library.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from pretok.base.errors import IntegrityError
from pretok.base.tokens import Bytes, Ints
from pretok.shards.manifest import Shard
from pretok.shards.spans import ShardSpans
from pretok.stream.flat_tokens import TokenRanges, file_limit
from pretok.stream.tapes import ranges
from pretok.tokenizer.kinds import KINDS, TEXT

Mask = npt.NDArray[np.bool_]


class KindRanges(NamedTuple):
    """p pieces of sequences, each inside one shard, and n runs of consecutive tokens of one kind."""

    row: Ints
    """(p,) the requested sequence that a piece is part of."""
    column: Ints
    """(p,) where in the sequence it goes."""
    size: Ints
    """(p,) its tokens."""
    shard: Ints
    """(p,) its number."""
    first: Ints
    """(p,) its first run."""
    length: Ints
    """(n,) tokens of a run."""
    kind: Bytes
    """(n,) its number in `tokenizer.kinds`."""

    def fill(self, rows: int, width: int) -> None:
        """Lengthen the runs until they fill `rows` sequences of `width` tokens.

        Tokens that belong to no piece get the kind of those before them.
        """
        place = self.row * width + self.column
        last = np.append(self.first[1:], len(self.length)) - 1
        self.length[last] += np.append(place[1:], rows * width) - place - self.size


class Learned:
    """Finds the tokens of `shards` that are learned; the shards form one address space, one after the other.

    learn: for each entry of a mix the kinds that are learned; () means all.
    """

    def __init__(self, shards: Sequence[Shard], learn: Sequence[Collection[str]]) -> None:
        self._shards = tuple(shards)
        self._starts: Ints = np.cumsum([0, *(shard.tokens for shard in shards)], dtype=np.int64)
        wanted = [[not some or kind in some for kind in KINDS] for some in learn]
        self._learned = np.array(wanted, np.bool_)
        # Plain text is learned whatever kinds are chosen: `learn` is about conversations.
        self._learned[:, TEXT] = True
        self._known: Mask = np.array([shard.kinds is not None for shard in shards], np.bool_)
        self._files: OrderedDict[int, ShardSpans] = OrderedDict()
        self._limit = file_limit()  # a mapped file counts as an open one

    def __getstate__(self) -> dict[str, object]:
        return self.__dict__ | {"_files": OrderedDict()}

    def mask(self, pieces: TokenRanges, entry: Ints, width: int) -> Mask:
        """Return which targets are learned in sequences of `width` tokens of the entries (rows,).

        (rows, width - 1) bool: the first token of a sequence is not a target. Raises IntegrityError.
        """
        runs = self._runs(pieces)
        # Decided once for each run, not for each token; then every run is written out.
        learned = self._are_learned(runs, entry)
        runs.fill(len(entry), width)
        return learned.repeat(runs.length).reshape(len(entry), width)[:, 1:]

    def kinds(self, pieces: TokenRanges, rows: int, width: int) -> Bytes:
        """Return the number in `tokenizer.kinds` of each token, (rows, width) uint8."""
        runs = self._runs(pieces)
        runs.fill(rows, width)
        return np.repeat(runs.kind, runs.length).reshape(rows, width)

    def _are_learned(self, runs: KindRanges, entry: Ints) -> Mask:
        """Return which runs are learned, (n,) bool."""
        # Mostly all entries learn the same kinds: then the entry of a run need not be known.
        if (self._learned == self._learned[0]).all():
            return np.take(self._learned[0], runs.kind)
        counts = np.diff(runs.first, append=len(runs.kind))
        return np.take(self._learned, np.repeat(entry[runs.row] * len(KINDS), counts) + runs.kind)

    def _runs(self, pieces: TokenRanges) -> KindRanges:
        """Return the runs of pieces; shards without spans are plain text."""
        first = np.searchsorted(self._starts, pieces.address, side="right") - 1
        last = np.searchsorted(self._starts, pieces.address + pieces.length - 1, side="right") - 1
        piece, shard = ranges(first, last + 1)
        address, row, start = pieces.address[piece], pieces.row[piece], self._starts[shard]
        begin = np.maximum(address, start)
        end = np.minimum(address + pieces.length[piece], self._starts[shard + 1])
        column = pieces.column[piece] + begin - address
        begin, end = begin - start, end - start  # in the shard
        if len(kept := np.flatnonzero(end > begin)) < len(begin):  # a shard may be empty
            shard, begin, end, row, column = (part[kept] for part in (shard, begin, end, row, column))
        # Each piece has `counts` spans, starting with number `low` of its shard; a piece of plain text has one.
        low, counts = np.zeros(len(shard), np.int64), np.ones(len(shard), np.int64)
        # Sorted by address, so that each search touches pages that the previous one has just read.
        chats = np.flatnonzero(self._known[shard])
        chats = chats[np.lexsort((begin[chats], shard[chats]))]
        numbers, at = np.unique(shard[chats], return_index=True)
        by_shard = list(zip(numbers.tolist(), np.split(chats, at[1:]), strict=True)) if len(numbers) else []
        for number, mine in by_shard:
            ends = self._spans(number).ends
            low[mine] = np.searchsorted(ends, begin[mine], side="right")
            counts[mine] += np.searchsorted(ends, end[mine] - 1, side="right") - low[mine]
        if (counts < 1).any():
            raise self._damaged(shard, counts < 1)
        behind = np.cumsum(counts)
        first, last = behind - counts, behind - 1
        stop, kind = np.empty(int(counts.sum()), np.int64), np.full(int(counts.sum()), TEXT, np.uint8)
        for number, mine in by_shard:
            file, to = self._spans(number), ranges(first[mine], behind[mine])[1]
            spans = to + np.repeat(low[mine] - first[mine], counts[mine])
            stop[to], kind[to] = file.ends[spans], file.kinds[spans]
        # A span ends in the shard where the next one begins; the last one of a piece ends with the piece.
        stop[last] = end
        length = np.empty_like(stop)
        np.subtract(stop[1:], stop[:-1], out=length[1:])
        length[first] = stop[first] - begin
        if len(length) and (length.min() < 1 or kind.max() >= len(KINDS)):
            wrong = (length < 1) | (kind >= len(KINDS))
            raise self._damaged(shard, np.logical_or.reduceat(wrong, first))
        return KindRanges(row, column, end - begin, shard, first, length, kind)

    def _spans(self, shard: int) -> ShardSpans:
        """Return the spans of a shard, from the cache of mapped files. Raises IntegrityError."""
        spans = self._files.pop(shard, None)
        if spans is None:
            spans = ShardSpans(self._shards[shard].spans_path)
            if spans.tokens != self._shards[shard].tokens:
                raise self._damaged(np.array([shard]), np.array([True]))
            if len(self._files) >= self._limit:
                self._files.popitem(last=False)
        self._files[shard] = spans  # the last one is the one that was used last
        return spans

    def _damaged(self, shards: Ints, wrong: Mask) -> IntegrityError:
        """Return an error that names the first of `shards` (p,) that is `wrong` (p,)."""
        path = self._shards[int(shards[np.argmax(wrong)])].spans_path
        return IntegrityError(
            f"{path} does not cover every token of its shard: it was damaged; run pretok verify"
        )
