"""Which tokens of sequences are learned: pieces of shards -> kinds and masks.

Input: shards, of which those of conversations have a `.spans` beside them, the kinds that are learned of each, and the
pieces of sequences (`tapes`). Output: of which kind each token is, a mask, or how many tokens are learned. Nothing is
computed token by token: spans are found by a binary search in those of a shard, which are mapped into memory, and one
`numpy.repeat` writes the whole mask. numpy, msgspec and the standard library only.
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
    """Tokens in a row of one kind, in one piece; each (n,), in the order of their sequences.

    start: place of the first among the tokens of all sequences; row: of its sequence; length: tokens; kind: number in
    `base.kinds`; shard: its number.
    """

    start: Ints
    row: Ints
    length: Ints
    kind: Bytes
    shard: Ints


class Marks(NamedTuple):
    """Targets of sequences in a row, of which all are learned or none; each (n,).

    start: place of the first among those of all sequences; what no piece fills is as what is before it.
    """

    start: Ints
    learned: Mask

    def part(self, begin: int, end: int) -> Marks:
        """The same of the places `begin` to `end - 1`, between which sequences begin and end."""
        low, high = np.searchsorted(self.start, (begin, end)).tolist()
        return Marks(self.start[low:high] - begin, self.learned[low:high])

    def mask(self, rows: int, targets: int) -> Mask:
        """(rows, targets) bool."""
        return np.repeat(self.learned, np.diff(self.start, append=rows * targets)).reshape(rows, targets)


class Learned:
    """Which tokens of `shards` are learned, these being one address space, one after the other.

    learn: kinds that are learned, once or more; () is all of them. choice: (shards,) which of these counts for a shard;
    None where it is said for each sequence.
    """

    def __init__(
        self, shards: Sequence[Shard], learn: Sequence[Collection[str]], choice: Sequence[int] | None = None
    ) -> None:
        self._shards = tuple(shards)
        self._starts: Ints = np.cumsum([0, *(shard.tokens for shard in shards)], dtype=np.int64)
        self._choice = None if choice is None else np.array(choice, np.int64)
        wanted = [[not some or kind in some for kind in KINDS] for some in learn]
        self._learned = np.array(wanted, np.bool_)
        self._learned[:, TEXT] = True
        self._known = np.array([shard.kinds is not None for shard in shards], np.bool_)
        self._asked = self._known.copy()
        if self._choice is not None:  # where all of a shard is learned, nobody needs its kinds
            self._asked &= ~np.all(self._learned, axis=1)[self._choice]
        self._files: OrderedDict[int, ShardSpans] = OrderedDict()

    def __getstate__(self) -> dict[str, object]:
        return self.__dict__ | {"_files": OrderedDict()}

    def marks(self, pieces: Pieces, width: int, choices: Ints | None = None) -> Marks:
        """Which targets of sequences are learned, each of `width` tokens, of which the first is none. choices: (rows,)
        number in `learn`, where it is said for each sequence. Raises IntegrityError."""
        runs = self._runs(pieces, width, self._asked)
        behind = runs.start - runs.row  # one less in each sequence, as the first token is no target
        behind -= runs.start > runs.row * width
        return Marks(behind, self._are_learned(runs, choices))

    def kinds(self, pieces: Pieces, rows: int, width: int) -> Bytes:
        """(rows, width) uint8: number in `base.kinds` of each token, as `mask`."""
        if not rows:
            return np.zeros((0, width), np.uint8)
        runs = self._runs(pieces, width, self._known)
        return np.repeat(runs.kind, np.diff(runs.start, append=rows * width)).reshape(rows, width)

    def counts(self, pieces: Pieces, rows: int, width: int, packed: bool) -> Ints:
        """(rows,): targets of sequences that are learned: all but the first token of each and, where they are packed,
        an EOD that is all that is left of a longer document: another's stands before it."""
        if packed:
            alone = (pieces.length == 1) & (pieces.column > 0)
            pieces = pieces._replace(length=np.where(alone, 0, pieces.length))
        runs = self._runs(pieces, width, self._asked)
        counted = np.where(self._are_learned(runs, None), runs.length - (runs.start == runs.row * width), 0)
        return np.bincount(runs.row, counted, rows).astype(np.int64)

    def _are_learned(self, runs: Runs, choices: Ints | None) -> Mask:
        if len(self._learned) == 1:
            return np.take(self._learned[0], runs.kind)
        if choices is not None:
            choice = choices[runs.row]
        else:
            assert self._choice is not None
            choice = self._choice[runs.shard]
        return np.take(self._learned, choice * len(KINDS) + runs.kind)

    def _runs(self, pieces: Pieces, width: int, asked: Mask) -> Runs:
        """The runs of pieces; those of shards that are not `asked` for are of text."""
        first = np.searchsorted(self._starts, pieces.address, side="right") - 1
        last = np.searchsorted(self._starts, pieces.address + pieces.length - 1, side="right") - 1
        piece, shard = ranges(first, last + 1)
        address = pieces.address[piece]
        begin = np.maximum(address, self._starts[shard])
        end = np.minimum(address + pieces.length[piece], self._starts[shard + 1])
        row = pieces.row[piece]
        place = row * width + pieces.column[piece] + begin - address
        if len(held := np.flatnonzero(end > begin)) < len(begin):  # a shard may be empty
            shard, begin, end, row, place = (part[held] for part in (shard, begin, end, row, place))
        # Of each part the spans from `low` on, `counts` of them; of what nobody asks for there is one.
        low, counts = np.zeros(len(shard), np.int64), np.ones(len(shard), np.int64)
        wanted = np.flatnonzero(asked[shard])
        for one in np.unique(shard[wanted]).tolist():
            ends, at = self._spans(one).ends, wanted[shard[wanted] == one]
            low[at] = np.searchsorted(ends, begin[at] - self._starts[one], side="right")
            counts[at] += np.searchsorted(ends, end[at] - self._starts[one] - 1, side="right") - low[at]
        if (counts < 1).any():
            raise self._damaged(int(shard[np.argmin(counts)]))
        last = np.cumsum(counts)
        stop, kind = np.empty(int(counts.sum()), np.int64), np.full(int(counts.sum()), TEXT, np.uint8)
        columns = (shard, low, last - counts, last, self._starts[shard])
        for one, first_span, here, there, base in zip(*(c[wanted].tolist() for c in columns), strict=True):
            file, until = self._spans(one), first_span + there - here
            np.add(file.ends[first_span:until], base, out=stop[here:there])
            kind[here:there] = file.kinds[first_span:until]
        stop[last - 1] = end
        start = np.empty_like(stop)
        start[1:] = stop[:-1]
        start[last - counts] = begin
        length, of = stop - start, np.repeat(shard, counts)
        if len(length) and (length.min() < 1 or kind.max() >= len(KINDS)):
            raise self._damaged(int(of[np.argmin(length)]) if length.min() < 1 else int(of[np.argmax(kind)]))
        row = np.repeat(row, counts)
        return Runs(start + np.repeat(place - begin, counts), row, length, kind, of)

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
            raise self._damaged(shard)
        return found

    def _damaged(self, shard: int) -> IntegrityError:
        return IntegrityError(
            f"{self._shards[shard].spans_path} does not say of each token what it is: it was damaged; run pretok verify"
        )
