"""Which sequence stands at which position: integer arithmetic only, no table, the same on every machine for ever.

Input: how many sequences each source has and how many of them every stage of a mix takes (its quotas). Output:
`Order`, which maps positions to (source, epoch, sequence) and back, and prefixes to counts, in vectors.

Cuts. Sequence i of epoch e of a source begins at token o + i seq_len of its flat tokens, where o, the same for the
whole epoch, is `cut`: a hash modulo seq_len, so that no border falls where it fell in another epoch. 0 where cuts are
fixed.

Interleaving. Of N positions source s has quota q_s; its k-th sequence falls due at time (k + 1/2) N / q_s, and
positions follow by time, equal times by source. Up to a whole time T source s was due floor(q_s T / N + 1/2) times,
within 1/2 of its share, so the counts of S sources add up to T within S/2: the T in which a position falls is found
by bisection over S + 1 candidates, and within one unit of time each source is due at most once. So at every prefix n
the count of source s is within 1/2 + w_s S/2 of w_s n, with w_s = q_s / N.

Permutation. The k-th sequence drawn from a source of n is element k mod n of epoch k div n, permuted
(`stream.permutation`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from pretok.base.errors import UsageError
from pretok.base.tokens import Ints
from pretok.stream.growth import Epochs
from pretok.stream.permutation import ROUNDS, UInt64s, cut, permute, round_keys, unpermute

DIGIT = 21
"""Bits of one digit of long division: products of 20 + 21 + 21 bits stay in 63."""
MAX_SEQUENCES = 1 << 2 * DIGIT - 2
"""A stage holds fewer sequences than this (1.1e12), so that nothing here leaves 64 bits."""


class _Due(NamedTuple):
    """Sources that fall due in units of time (n,): row, the unit, and source (all,), by unit and time; first (n,):
    where those of each unit begin."""

    row: Ints
    source: Ints
    first: Ints


class Schedule:
    """One stage: the interleaving of sources with fixed quotas. `length` is the number of positions."""

    def __init__(self, quotas: Sequence[int]) -> None:
        self.length = sum(quotas)
        if self.length >= MAX_SEQUENCES:
            raise UsageError(
                f"a stage of {self.length} sequences is too long; at most {MAX_SEQUENCES - 1} are possible: "
                "split it into stages or take a larger sequence length"
            )
        self.quotas: Ints = np.array(quotas, np.int64)

    def locate(self, positions: Ints) -> tuple[Ints, Ints]:
        """positions: (n,) in 0..length-1 -> source (n,) and k (n,): the position holds the source's k-th sequence."""
        before, due, rank = self._unit_of(positions)
        rows = np.arange(len(positions))
        source = due.source[due.first[rows] + rank]
        return source, before[rows, source]

    def position(self, source: Ints, k: Ints) -> Ints:
        """Inverse of `locate`: source: (n,), k: (n,) below the source's quota -> the positions (n,)."""
        rows = np.arange(len(source))
        low, high = np.ones_like(k), np.full_like(k, self.length)
        while (low < high).any():  # the smallest whole time up to which the source was due more than k times
            middle = (low + high) >> 1
            enough = self._due(middle)[0][rows, source] > k
            low, high = np.where(enough, low, middle + 1), np.where(enough, middle, high)
        before, due = self._unit_ending(low)
        at = np.flatnonzero(due.source == source[due.row])  # one in each row
        positions: Ints = before.sum(axis=1) + at - due.first
        return positions

    def first(self, length: int) -> Ints:
        """(sources,): how many of the first `length` positions each source has."""
        return self.quotas if length == self.length else self.prefix(np.array([length]))[0]

    def prefix(self, lengths: Ints) -> Ints:
        """lengths: (n,) in 0..length -> (n, sources): how many of the first `lengths` positions each source has."""
        if self.length == 0:
            return np.zeros((len(lengths), len(self.quotas)), np.int64)
        counts, due, rank = self._unit_of(np.minimum(lengths, self.length - 1))
        earlier = np.arange(len(due.row)) - due.first[due.row] < rank[due.row]
        counts[due.row[earlier], due.source[earlier]] += 1
        counts[lengths == self.length] = self.quotas
        return counts

    def _unit_of(self, positions: Ints) -> tuple[Ints, _Due, Ints]:
        """The unit of time each position falls in: before and what is due as in `_unit_ending`; rank (n,), the place of
        the position among these."""
        before, due = self._unit_ending(self._end_of_unit(positions))
        return before, due, positions - before.sum(axis=1)

    def _unit_ending(self, time: Ints) -> tuple[Ints, _Due]:
        """The unit of time that ends at each whole `time` (n,).

        Returns before (n, sources), the counts where the unit starts, and the sources that are due in it, by time: as a
        rule one of all, so that none but these are put in order.
        """
        counts, remainder = self._due(time)
        # Source s was last due rho / (2 q_s) before `time`.
        rho = 2 * remainder + np.where(2 * remainder >= self.length, -self.length, self.length)
        inside = rho < 2 * self.quotas
        row, source = np.nonzero(inside)
        late = _fraction(rho[row, source], 2 * self.quotas[source])
        order = np.lexsort((source, -late, row))
        row = row[order]
        first = np.searchsorted(row, np.arange(len(time)))
        return counts - inside, _Due(row, source[order], first)

    def _end_of_unit(self, positions: Ints) -> Ints:
        """The smallest whole time up to which more than `positions` sequences were due; (n,)."""
        sources = len(self.quotas)
        low = np.maximum(positions + 1 - (sources + 1) // 2, 1)
        high = np.minimum(positions + 1 + (sources + 1) // 2, self.length)
        if len(positions) and (times := int(high.max() - low.min()) + 1) <= 2 * len(positions):
            # Positions close together: all times between are looked at once.
            every = np.arange(times) + low.min()
            found: Ints = every[np.searchsorted(self._due(every)[0].sum(axis=1), positions, side="right")]
            return found
        while (low < high).any():
            middle = (low + high) >> 1
            enough = self._due(middle)[0].sum(axis=1) > positions
            low, high = np.where(enough, low, middle + 1), np.where(enough, middle, high)
        return low

    def _due(self, time: Ints) -> tuple[Ints, Ints]:
        """floor(q T / N + 1/2) and q T mod N, both (n, sources), by long division in two digits."""
        upper = self.quotas * (time >> DIGIT)[:, None]
        quotient = upper // self.length
        lower = ((upper - quotient * self.length) << DIGIT) + self.quotas * (time & (1 << DIGIT) - 1)[:, None]
        digit = lower // self.length
        remainder = lower - digit * self.length
        return (quotient << DIGIT) + digit + (2 * remainder >= self.length), remainder


def prefix_bound(quotas: Sequence[int], quota: int) -> float:
    """How many sequences the count of a source with `quota` may be away from its share, at any prefix of a stage."""
    if not quota:
        return 0.0
    return 0.5 + quota / sum(quotas) * sum(1 for other in quotas if other) / 2


def _fraction(numerator: Ints, denominator: Ints) -> Ints:
    """The first 42 binary digits of numerator / denominator < 1, as one integer.

    They tell apart the lateness of two sources: their due times differ by a multiple of N / (2 q1 q2), which is at
    least 2 / N > 2^-40 because q1 + q2 <= N.
    """
    high = (numerator << DIGIT) // denominator
    low = ((numerator << DIGIT) - high * denominator << DIGIT) // denominator
    return high << DIGIT | low


class Order:
    """Positions of a whole mix -> sequences of its sources.

    names, sizes: the sources and how many sequences each has; stages: the quotas of each stage, in the order of
    `names`; lengths: how many positions of each stage there are, all by default; shifts: for each source the seq_len by
    which its epochs are cut anew, 0 where they are not; grown: the epochs of sources, by number, that were smaller at
    first (`stream.growth`). Each stage goes on in every source where the one before stopped.
    """

    def __init__(
        self,
        names: Sequence[str],
        sizes: Sequence[int],
        stages: Sequence[Sequence[int]],
        seed: int,
        lengths: Sequence[int] | None = None,
        shifts: Sequence[int] = (),
        grown: Mapping[int, Epochs] | None = None,
    ) -> None:
        self.names = tuple(names)
        self.sizes: Ints = np.array(sizes, np.int64)
        self.seed = seed
        self._stages = [Schedule(quotas) for quotas in stages]
        if lengths is None:
            lengths = [stage.length for stage in self._stages]
        self._starts: Ints = np.cumsum([0, *lengths], dtype=np.int64)
        given = [stage.first(length) for stage, length in zip(self._stages, lengths, strict=True)]
        quotas = np.array([np.zeros(len(self.names), np.int64), *given])
        self._drawn: Ints = np.cumsum(quotas, axis=0)  # by each source before each stage
        self._shifts = tuple(shifts) or (0,) * len(self.names)
        self._grown = grown or {}
        self._keys: dict[tuple[int, int, int], UInt64s] = {}
        self._cuts: dict[tuple[int, int, int], int] = {}
        self.length = int(self._starts[-1])

    def locate(self, positions: Ints) -> tuple[Ints, Ints, Ints]:
        """positions: (n,) in 0..length-1 -> source, epoch and sequence inside the source, each (n,)."""
        stage_of = np.searchsorted(self._starts, positions, side="right") - 1
        source = np.empty_like(positions)
        drawn = np.empty_like(positions)
        for stage in np.unique(stage_of):
            rows = np.flatnonzero(stage_of == stage)
            source[rows], k = self._stages[stage].locate(positions[rows] - self._starts[stage])
            drawn[rows] = k + self._drawn[stage, source[rows]]
        size = self.sizes[source]
        epoch, index = np.divmod(drawn, size)
        number = permute(index, size, self._keys_of(source, epoch))
        for one, epochs in self._grown.items():
            rows = np.flatnonzero(source == one)
            epoch[rows], number[rows] = epochs.locate(drawn[rows], self._keys_for(one))
        return source, epoch, number

    def epochs(self, source: int) -> int:
        """Epochs of a source that the stream begins."""
        drawn = int(self._drawn[-1, source])
        if source in self._grown:
            return self._grown[source].epochs(drawn)
        return -(-drawn // max(int(self.sizes[source]), 1))

    def spent(self, length: int) -> list[int]:
        """How many of the first `length` positions each source has; of one that has grown how many it would have, had
        it always held what it holds now, with the same number left in the epoch."""
        drawn = self.prefix(length).tolist()
        return [self._grown[n].spent(count) if n in self._grown else count for n, count in enumerate(drawn)]

    def epoch(self, source: int, drawn: int) -> int:
        """In which epoch a source gives its `drawn`-th sequence."""
        if source in self._grown:
            return self._grown[source].at(drawn)[0]
        return drawn // max(int(self.sizes[source]), 1)

    def begin(self, source: int, epoch: int) -> int:
        """How many sequences a source gives before an epoch."""
        return self._grown[source].begin(epoch) if source in self._grown else epoch * int(self.sizes[source])

    def parts(self, source: int, epoch: int) -> list[tuple[int, int, int]]:
        """(first, end, token): sequences `first` to `end - 1` of an epoch are cut alike, the first of them at a token
        of the source."""
        if source not in self._grown:
            return [(0, int(self.sizes[source]), self._cut(source, epoch, 0, self._shifts[source]))]
        return [
            (part.first, part.end, part.token + self._cut(source, epoch, part.grown, part.shift))
            for part in self._grown[source].parts(epoch)
        ]

    def positions(self, source: int, epoch: int, sequences: Ints) -> Ints:
        """Inverse of `locate`. sequences: (n,) of one source -> (n,): the position at which the epoch has each, -1
        where the stream ends before."""
        size, end = int(self.sizes[source]), int(self._drawn[-1, source])
        found = np.full(len(sequences), -1, np.int64)
        sizes, here = np.full(len(sequences), size), np.full(len(sequences), source)
        if source in self._grown:
            drawn = self._grown[source].drawn(epoch, sequences, self._keys_for(source))
        else:
            keys = self._keys_of(here, np.full(len(sequences), epoch))
            drawn = epoch * size + unpermute(sequences, sizes, keys)
        stage_of = np.searchsorted(self._drawn[:, source], drawn, side="right") - 1
        for stage in np.unique(stage_of[drawn < end]):
            rows = np.flatnonzero(stage_of == stage)
            k = drawn[rows] - self._drawn[stage, source]
            found[rows] = self._starts[stage] + self._stages[stage].position(here[rows], k)
        return found

    def cuts(self, source: Ints, epoch: Ints, number: Ints, seq_len: int) -> Ints:
        """(n,): at which token of its source each epoch begins, see `cut`; its sequence `number` (n,) begins
        `number * seq_len` tokens behind. In what came while the epoch ran, where the epoch would begin by its cut."""
        cuts = np.zeros_like(source)
        if any(self._shifts):
            pairs, inverse = np.unique(epoch * len(self.names) + source, return_inverse=True)
            places = [(pair % len(self.names), pair // len(self.names)) for pair in pairs.tolist()]
            found = [self._cut(one, of, 0, self._shifts[one]) for one, of in places]
            cuts = np.array(found, np.int64)[inverse]
        for one in self._grown:
            rows = np.flatnonzero(source == one)
            for of in np.unique(epoch[rows]).tolist():
                for first, end, token in self.parts(one, of):
                    here = rows[(epoch[rows] == of) & (number[rows] >= first) & (number[rows] < end)]
                    cuts[here] = token - first * seq_len
        return cuts

    def _cut(self, source: int, epoch: int, grown: int, shift: int) -> int:
        if not shift:
            return 0
        which = source, epoch, grown
        if which not in self._cuts:
            self._cuts[which] = cut(self.seed, self.names[source], epoch, shift, grown)
        return self._cuts[which]

    def prefix(self, length: int) -> Ints:
        """(sources,): how many of the first `length` positions each source has."""
        stage = min(int(np.searchsorted(self._starts, length, side="right")) - 1, len(self._stages) - 1)
        counts: Ints = self._drawn[stage] + self._stages[stage].first(length - int(self._starts[stage]))
        return counts

    def drawn(self, source: int, low: int, high: int) -> Ints:
        """(high - low,): the sequences inside a source that it gives as its `low`-th to `high - 1`-th, whatever the
        positions they fall on."""
        if source in self._grown:
            return self._grown[source].locate(np.arange(low, high), self._keys_for(source))[1]
        size = self.sizes[[source]]
        epoch, index = np.divmod(np.arange(low, high), size)
        sources = np.full_like(index, source)
        return permute(index, np.broadcast_to(size, index.shape), self._keys_of(sources, epoch))

    def _keys_of(self, source: Ints, epoch: Ints) -> UInt64s:
        """(n, ROUNDS) round keys; those of an epoch are made once."""
        pairs, inverse = np.unique(epoch * len(self.names) + source, return_inverse=True)
        table = np.empty((len(pairs), ROUNDS), np.uint64)
        for row, pair in enumerate(pairs.tolist()):
            table[row] = self._key(pair % len(self.names), pair // len(self.names), 0)
        return table[inverse]

    def _keys_for(self, source: int) -> Callable[[int, int], UInt64s]:
        """The round keys of a source by epoch and how often it had grown in it."""
        return partial(self._key, source)

    def _key(self, source: int, epoch: int, grown: int) -> UInt64s:
        which = source, epoch, grown
        if which not in self._keys:
            self._keys[which] = round_keys(self.seed, self.names[source], epoch, grown)
        return self._keys[which]
