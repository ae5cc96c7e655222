"""Which tokens of sequences are learned, that is, contribute to the loss: pieces of shards -> kinds and masks.

Input: shards (those with conversations have a `.spans` file), the kinds that are learned in each entry, and what is
read of the shards (`FlatTokens.reads`). Output: the kind of each token, or a mask. No token is looked at by itself: a
binary search finds the spans in the mapped file of a shard, and one `numpy.repeat` writes the whole mask. It needs only
numpy, msgspec and the standard library.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from pretok.base.errors import IntegrityError
from pretok.base.tokens import Bytes, Ints
from pretok.shards.shard_file import SPANS_SUFFIX, Shard
from pretok.shards.spans import ShardSpans
from pretok.stream.flat_tokens import ShardPaths, file_limit, ranges
from pretok.tokenizer.kinds import KINDS, TEXT

Mask = npt.NDArray[np.bool_]


class KindRanges(NamedTuple):
    """p pieces of sequences, each inside one shard, and n runs of consecutive tokens of one kind."""

    at: Ints
    """(p,) the token of the output where a piece begins."""
    until: Ints
    """(p,) the token after its last one."""
    first: Ints
    """(p,) its first run."""
    length: Ints
    """(n,) tokens of a run."""
    kind: Bytes
    """(n,) its number in `tokenizer.kinds`."""

    def fill(self, tokens: int) -> None:
        """Lengthen the runs until they fill an output of so many tokens.

        Tokens that belong to no piece get the kind of those before them.
        """
        last = np.append(self.first[1:], len(self.length)) - 1
        self.length[last] += np.append(self.at[1:], tokens) - self.until


class Learned:
    """Finds the tokens of `shards` that are learned.

    learn: for each entry of a mix the kinds that are learned; () means all.
    """

    def __init__(self, shards: Sequence[Shard], learn: Sequence[Collection[str]]) -> None:
        self._paths, self._tokens = ShardPaths(shards), np.array([shard.tokens for shard in shards], np.int64)
        wanted = [[not some or kind in some for kind in KINDS] for some in learn]
        self._learned = np.array(wanted, np.bool_)
        # Plain text is learned whatever kinds are chosen: `learn` is about conversations.
        self._learned[:, TEXT] = True
        self._known: Mask = np.array([shard.kinds is not None for shard in shards], np.bool_)
        self._files: OrderedDict[int, ShardSpans] = OrderedDict()
        self._limit = file_limit()  # a mapped file counts as an open one

    def __getstate__(self) -> dict[str, object]:
        return self.__dict__ | {"_files": OrderedDict()}

    def mask(self, reads: Ints, entry: Ints, width: int) -> Mask:
        """Return which targets are learned in sequences of `width` tokens of the entries (rows,).

        reads: see `FlatTokens.reads`. Returns (rows, width - 1) bool: the first token of a sequence is not a target.
        Raises IntegrityError.
        """
        runs = self._runs(reads)
        # Decided once for each run, not for each token; then every run is written out.
        learned = self._are_learned(runs, entry, width)
        runs.fill(len(entry) * width)
        return learned.repeat(runs.length).reshape(len(entry), width)[:, 1:]

    def kinds(self, reads: Ints, tokens: int) -> Bytes:
        """Return the number in `tokenizer.kinds` of each token of an output, (tokens,) uint8."""
        runs = self._runs(reads)
        runs.fill(tokens)
        return np.repeat(runs.kind, runs.length)

    def _are_learned(self, runs: KindRanges, entry: Ints, width: int) -> Mask:
        """Return which runs are learned, (n,) bool."""
        # Mostly all entries learn the same kinds: then the entry of a run need not be known.
        if (self._learned == self._learned[0]).all():
            return np.take(self._learned[0], runs.kind)
        counts = np.diff(runs.first, append=len(runs.kind))
        return np.take(self._learned, np.repeat(entry[runs.at // width] * len(KINDS), counts) + runs.kind)

    def _runs(self, reads: Ints) -> KindRanges:
        """Return the runs of what is read; shards without spans are plain text."""
        shard, at, until, begin = reads.T
        end = begin + until - at
        # Each piece has `counts` spans, starting with number `low` of its shard; a piece of plain text has one.
        low, counts = np.zeros(len(shard), np.int64), np.ones(len(shard), np.int64)
        # Sorted by address, so that each search touches pages that the previous one has just read.
        chats = np.flatnonzero(self._known[shard])
        chats = chats[np.lexsort((begin[chats], shard[chats]))]
        numbers, starts = np.unique(shard[chats], return_index=True)
        by_shard = (
            list(zip(numbers.tolist(), np.split(chats, starts[1:]), strict=True)) if len(numbers) else []
        )
        for one, mine in by_shard:
            ends = self._spans(one).ends
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
        return KindRanges(at, until, first, length, kind)

    def _spans(self, shard: int) -> ShardSpans:
        """Return the spans of a shard, from the cache of mapped files. Raises IntegrityError."""
        spans = self._files.pop(shard, None)
        if spans is None:
            spans = ShardSpans(self._paths[shard].with_suffix(SPANS_SUFFIX))
            if spans.tokens != self._tokens[shard]:
                raise self._damaged(np.array([shard]), np.array([True]))
            if len(self._files) >= self._limit:
                self._files.popitem(last=False)
        self._files[shard] = spans  # the last one is the one that was used last
        return spans

    def _damaged(self, shards: Ints, wrong: Mask) -> IntegrityError:
        """Return an error that names the first of `shards` (p,) that is `wrong` (p,)."""
        path = self._paths[int(shards[np.argmax(wrong)])].with_suffix(SPANS_SUFFIX)
        return IntegrityError(
            f"{path} does not cover every token of its shard: it was damaged; run pretok verify"
        )
