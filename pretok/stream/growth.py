"""Sources that grow while they are read: what a source gives as its n-th sequence, in which epoch, and back.

Input: what a source held at first and whenever it had grown, and how many sequences it had given by then. Output:
`Epochs`, integer arithmetic in vectors, in constant time whatever was drawn. numpy and the standard library only.

When a source of n sequences grows in epoch e, of which k are drawn, by tokens that make m sequences of their own, epoch
e has n + m: numbers n and above are cut in the new tokens alone. The first k draws stay. Draw k + j is j', the image of
j under a permutation of n - k + m with keys of its own: where j' < n - k, what draw k + j' would have been, else
sequence n + j' - (n - k). So the rest of the epoch and the new data are one pool. Later epochs read all that the source
holds then. It may grow again in the same epoch, with n + m in the place of n.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from pretok.base.tokens import Ints
from pretok.stream.permutation import ROUNDS, UInt64s, permute, unpermute

Keys = Callable[[int, int], UInt64s]
"""(epoch, how often the source had grown in it) -> the round keys of a permutation."""


class Growth(NamedTuple):
    """A source that grew when it had given `drawn` sequences. tokens, sequences: it held, and an epoch had, until then;
    more: sequences of the new tokens alone; shift, more_shift: by how many tokens at most the cuts of each are moved, 0
    where they are fixed."""

    drawn: int
    tokens: int
    sequences: int
    shift: int
    more: int
    more_shift: int


class Part(NamedTuple):
    """Sequences `first` to `end - 1` of an epoch, which are cut alike. grown: how often the source had grown when they
    came, 0 for those it began the epoch with; token: the first that is theirs; shift: as of `Growth`."""

    first: int
    end: int
    grown: int
    token: int
    shift: int


@dataclass(frozen=True)
class _Span:
    """Draws from `first` on: epochs from `epoch` on of all that the source holds, or the rest of one in which it grew.

    drawn: of this epoch before `first`; parts: of each epoch; before: the span that epoch was in until it grew.
    """

    first: int
    epoch: int
    drawn: int
    parts: list[Part]
    before: _Span | None = None

    @property
    def size(self) -> int:
        """Sequences of an epoch."""
        return self.parts[-1].end

    def number(self, index: Ints, epoch: Ints, keys: Keys) -> Ints:
        """The sequences that are drawn as the `index`-th (n,) of their epochs (n,)."""
        if self.before is None:
            rows = np.empty((len(index), ROUNDS), np.uint64)
            for one in np.unique(epoch).tolist():
                rows[epoch == one] = keys(one, 0)
            return permute(index, np.full_like(index, self.size), rows)
        found = np.empty_like(index)
        old, rest = index < self.drawn, self.before.size - self.drawn
        pool = self._pooled(permute, index[~old] - self.drawn, keys)
        kept = pool < rest
        place = np.where(kept, self.drawn + pool, 0)
        there = self.before.number(place, np.full_like(place, self.epoch), keys)
        found[~old] = np.where(kept, there, self.drawn + pool)
        found[old] = self.before.number(index[old], epoch[old], keys)
        return found

    def index(self, number: Ints, epoch: int, keys: Keys) -> Ints:
        """Inverse of `number`: as which of the epoch each sequence (n,) is drawn."""
        if self.before is None:
            rows = np.broadcast_to(keys(epoch, 0), (len(number), ROUNDS))
            return unpermute(number, np.full_like(number, self.size), rows)
        new = number >= self.before.size
        there = self.before.index(np.where(new, 0, number), epoch, keys)
        pooled = new | (there >= self.drawn)
        pool = np.where(new, number - self.drawn, there - self.drawn)
        image = self._pooled(unpermute, np.where(pooled, pool, 0), keys)
        return np.where(pooled, self.drawn + image, there)

    def _pooled(self, by: Callable[[Ints, Ints, UInt64s], Ints], index: Ints, keys: Keys) -> Ints:
        rows = keys(self.epoch, self.parts[-1].grown)
        size = max(self.size - self.drawn, 1)
        return by(index, np.full_like(index, size), np.broadcast_to(rows, (len(index), ROUNDS)))


class Epochs:
    """The epochs of a source that has grown. growth: ever more drawn; size, shift: sequences of an epoch of all that it
    holds now, and how far its cuts are moved."""

    def __init__(self, growth: Sequence[Growth], size: int, shift: int) -> None:
        wholes = [*(Part(0, one.sequences, 0, 0, one.shift) for one in growth), Part(0, size, 0, 0, shift)]
        self._spans = [_Span(0, 0, 0, wholes[:1])]
        for number, (one, after) in enumerate(zip(growth, wholes[1:], strict=True), 1):
            epoch, drawn = self.at(one.drawn)
            spans = [span for span in self._spans if span.first < one.drawn]
            first = one.drawn
            if drawn:
                here = spans[-1]
                part = Part(here.size, here.size + one.more, number, one.tokens, one.more_shift)
                spans.append(_Span(first, epoch, drawn, [*here.parts, part], here))
                first, epoch = first + part.end - drawn, epoch + 1
            self._spans = [*spans, _Span(first, epoch, 0, [after])]
        self._firsts = np.array([span.first for span in self._spans])

    def at(self, drawn: int) -> tuple[int, int]:
        """The epoch in which the next draw is, and how many of it are drawn."""
        span = next(span for span in reversed(self._spans) if span.first <= drawn)
        if span.before is not None:
            return span.epoch, span.drawn + drawn - span.first
        more, index = divmod(drawn - span.first, max(span.size, 1))
        return span.epoch + more, index

    def locate(self, drawn: Ints, keys: Keys) -> tuple[Ints, Ints]:
        """The epoch and the sequence of each draw (n,)."""
        epoch, number = np.empty_like(drawn), np.empty_like(drawn)
        spans = np.searchsorted(self._firsts, drawn, side="right") - 1
        for place in np.unique(spans).tolist():
            span, rows = self._spans[place], np.flatnonzero(spans == place)
            more, index = np.divmod(span.drawn + drawn[rows] - span.first, span.size)
            epoch[rows] = span.epoch + more
            number[rows] = span.number(index, epoch[rows], keys)
        return epoch, number

    def drawn(self, epoch: int, sequences: Ints, keys: Keys) -> Ints:
        """Inverse of `locate`: which draw gives each sequence (n,) of an epoch."""
        span = self._span(epoch)
        return self.begin(epoch) + span.index(sequences, epoch, keys)

    def begin(self, epoch: int) -> int:
        """Which draw is the first of an epoch."""
        span = self._span(epoch)
        return span.first - span.drawn + (epoch - span.epoch) * span.size

    def parts(self, epoch: int) -> list[Part]:
        """What an epoch consists of."""
        return self._span(epoch).parts

    def _span(self, epoch: int) -> _Span:
        """The last one in which an epoch is."""
        return next(span for span in reversed(self._spans) if span.epoch <= epoch)

    def epochs(self, drawn: int) -> int:
        """Epochs that are begun when so many are drawn."""
        epoch, index = self.at(drawn)
        return epoch + (index > 0)

    def spent(self, drawn: int) -> int:
        """How many sequences would be drawn, had the source always held what it holds now, with the same number left in
        the epoch."""
        epoch, index = self.at(drawn)
        rest = self._span(epoch).size - index
        return (epoch + 1) * self._spans[-1].size - rest
