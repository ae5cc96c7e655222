"""Which sequence stands at which position: integer arithmetic only, no table, the same on every machine for ever.

Input: how many sequences each entry has and how many of them every stage of a mix takes (its quotas). Output:
`Order`, which maps positions to (entry, epoch, sequence) and back, and prefixes to counts, in vectors.

Cuts. Sequence i of epoch e of a source begins at token o + i seq_len of its flat tokens, where o, the same for the
whole epoch, is `cut`: a hash modulo seq_len, so that no border falls where it fell in another epoch. 0 where cuts are
fixed.

Interleaving. Of N positions source s has quota q_s; its k-th sequence falls due at time (k + 1/2) N / q_s, and
positions follow by time, equal times by source. Up to a whole time T source s was due floor(q_s T / N + 1/2) times,
within 1/2 of its share, so the counts of S sources add up to T within S/2: the T in which a position falls is found
by bisection over S + 1 candidates, and within one unit of time each source is due at most once. So at every prefix n
the count of source s is within 1/2 + w_s S/2 of w_s n, with w_s = q_s / N.

Pools. A source and what was appended to it are entries of one pool, which has one quota. Where a stage begins, the pool
first gives what each entry has left of the epoch that is on, then all of them once, again and again; each of these
rounds is interleaved as above, by what each entry has to give in it. So no sequence comes a second time before every
other of its pool came once, whatever the quotas are. What was appended joins the epoch that is on, or has just ended.

Permutation. The k-th sequence drawn from an entry of n is element k mod n of epoch k div n, permuted
(`stream.permutation`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from pretok.base.errors import UsageError
from pretok.base.tokens import Ints
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


class Rounds:
    """A pool of several entries in one stage: sizes: how many sequences each has; spent: how many it gave before, whole
    epochs that it missed included."""

    def __init__(self, sizes: Ints, spent: Ints) -> None:
        self._sizes = sizes
        level = min(int(done // size) for size, done in zip(sizes, spent, strict=True) if size)
        self._rest = Schedule(((level + 1) * sizes - spent).tolist())
        self._whole = Schedule(sizes.tolist())

    def locate(self, draws: Ints) -> tuple[Ints, Ints]:
        """draws: (n,) of the pool, from 0 -> entry (n,), by its place in `sizes`, and k (n,): its k-th in this
        stage."""
        entry, k = self._rest.locate(np.minimum(draws, self._rest.length - 1))
        if len(later := np.flatnonzero(draws >= self._rest.length)):
            turn, draw = np.divmod(draws[later] - self._rest.length, self._whole.length)
            entry[later], nth = self._whole.locate(draw)
            k[later] = self._rest.quotas[entry[later]] + turn * self._sizes[entry[later]] + nth
        return entry, k

    def draw(self, entry: int, k: Ints) -> Ints:
        """Inverse of `locate` for one entry."""
        rest, size = int(self._rest.quotas[entry]), int(self._sizes[entry])
        found, entries = np.empty_like(k), np.full_like(k, entry)
        later = k >= rest
        found[~later] = self._rest.position(entries[~later], k[~later])
        turn, nth = np.divmod(k[later] - rest, size)
        found[later] = (
            self._rest.length + turn * self._whole.length + self._whole.position(entries[later], nth)
        )
        return found

    def first(self, count: int) -> Ints:
        """How many of its first `count` draws each entry has."""
        if count <= self._rest.length:
            return self._rest.first(count)
        turns, more = divmod(count - self._rest.length, self._whole.length)
        counts: Ints = self._rest.quotas + turns * self._sizes + self._whole.first(more)
        return counts


class Order:
    """Positions of a whole mix -> sequences of its entries.

    names, sizes: the entries and how many sequences each has; stages: the quotas of each stage, by pool; lengths: how
    many positions of each stage there are, all by default; shifts: for each entry the seq_len by which its epochs are
    cut anew, 0 where they are not; pools: the pool of each entry, by default its own; since: the stage with which each
    entry came. Each stage goes on in every entry where the one before stopped. spent: how many sequences each entry
    gave in all, those included that it missed before it came."""

    def __init__(
        self,
        names: Sequence[str],
        sizes: Sequence[int],
        stages: Sequence[Sequence[int]],
        seed: int,
        lengths: Sequence[int] | None = None,
        shifts: Sequence[int] = (),
        pools: Sequence[int] = (),
        since: Sequence[int] = (),
    ) -> None:
        self.names = tuple(names)
        self.sizes: Ints = np.array(sizes, np.int64)
        self.seed = seed
        self._shifts = tuple(shifts) or (0,) * len(self.names)
        self._pools: Ints = np.array(pools or range(len(self.names)), np.int64)
        self._stages = [Schedule(quotas) for quotas in stages]
        if lengths is None:
            lengths = [stage.length for stage in self._stages]
        self._starts: Ints = np.cumsum([0, *lengths], dtype=np.int64)
        self._keys: dict[tuple[int, int], UInt64s] = {}
        self._cuts: dict[tuple[int, int], int] = {}
        self.length = int(self._starts[-1])
        self._join(lengths, tuple(since) or (0,) * len(self.names))

    def _join(self, lengths: Sequence[int], since: Sequence[int]) -> None:
        """What each entry gave before each stage, and how the pools of several are divided in it."""
        came, given = np.array(since, np.int64), self.sizes > 0
        pools = [
            np.flatnonzero((self._pools == pool) & given)
            for pool in range(int(self._pools.max(initial=-1)) + 1)
        ]
        # Of a pool of one entry all draws are its own; of one without a sequence there are none.
        self._alone: Ints = np.array([entries[0] if len(entries) else 0 for entries in pools], np.int64)
        several = {pool: entries for pool, entries in enumerate(pools) if len(entries) > 1}
        self._rounds: list[
            dict[int, tuple[Ints, Rounds]]
        ] = []  # of each stage: pool -> its entries, and what they give
        self._drawn = np.zeros(
            (len(lengths) + 1, len(self.names)), np.int64
        )  # of each entry before each stage
        missed = np.zeros(len(self.names), np.int64)
        for stage in range(len(lengths) + 1):
            spent = missed + self._drawn[stage]
            rounds = {}
            for pool, entries in several.items():
                old, new = entries[came[entries] < stage], entries[came[entries] == stage]
                if len(old) and len(new):
                    level = int((spent[old] // self.sizes[old]).min())
                    # Where all of them just ended an epoch, the new ones still join it.
                    ended = bool((spent[old] == level * self.sizes[old]).all())
                    spent[new] = missed[new] = max(level - ended, 0) * self.sizes[new]
                if len(known := entries[came[entries] <= stage]) > 1:
                    rounds[pool] = known, Rounds(self.sizes[known], spent[known])
            self._rounds.append(rounds)
            if stage < len(lengths):
                self._drawn[stage + 1] = self._drawn[stage] + self._given(stage, lengths[stage])
        self.spent: Ints = spent

    def _given(self, stage: int, length: int) -> Ints:
        """(entries,): how many of the first `length` positions of a stage each has."""
        return self.divide(self._stages[stage].first(length), stage)

    def divide(self, by_pool: Sequence[int] | Ints, stage: int = -1) -> Ints:
        """(entries,): what each gives of the first so many sequences of each pool in a stage, by default in one to
        come."""
        counts = np.zeros(len(self.names), np.int64)
        np.add.at(counts, self._alone, by_pool)
        for pool, (entries, rounds) in self._rounds[stage].items():
            counts[entries] = rounds.first(int(by_pool[pool]))
        return counts

    def locate(self, positions: Ints) -> tuple[Ints, Ints, Ints]:
        """positions: (n,) in 0..length-1 -> entry, epoch and sequence inside the entry, each (n,)."""
        stage_of = np.searchsorted(self._starts, positions, side="right") - 1
        entry = np.empty_like(positions)
        drawn = np.empty_like(positions)
        for stage in np.unique(stage_of).tolist():
            rows = np.flatnonzero(stage_of == stage)
            pool, k = self._stages[stage].locate(positions[rows] - self._starts[stage])
            entry[rows] = self._alone[pool]
            for one, (entries, rounds) in self._rounds[stage].items():
                mine = np.flatnonzero(pool == one)
                place, k[mine] = rounds.locate(k[mine])
                entry[rows[mine]] = entries[place]
            drawn[rows] = k + self._drawn[stage, entry[rows]]
        size = self.sizes[entry]
        epoch, index = np.divmod(drawn, size)
        return entry, epoch, permute(index, size, self._keys_of(entry, epoch))

    def epochs(self, entry: int) -> int:
        """Epochs of an entry that the stream begins."""
        return -(-int(self._drawn[-1, entry]) // max(int(self.sizes[entry]), 1))

    def positions(self, entry: int, epoch: int, sequences: Ints) -> Ints:
        """Inverse of `locate`. sequences: (n,) of one entry -> (n,): the position at which the epoch has each, -1
        where the stream ends before."""
        size, end = int(self.sizes[entry]), int(self._drawn[-1, entry])
        found = np.full(len(sequences), -1, np.int64)
        sizes, pool = np.full(len(sequences), size), int(self._pools[entry])
        keys = self._keys_of(np.full(len(sequences), entry), np.full(len(sequences), epoch))
        drawn = epoch * size + unpermute(sequences, sizes, keys)
        stage_of = np.searchsorted(self._drawn[:, entry], drawn, side="right") - 1
        for stage in np.unique(stage_of[drawn < end]).tolist():
            rows = np.flatnonzero(stage_of == stage)
            k = drawn[rows] - self._drawn[stage, entry]
            if pool in self._rounds[stage]:
                entries, rounds = self._rounds[stage][pool]
                k = rounds.draw(int(np.searchsorted(entries, entry)), k)
            found[rows] = self._starts[stage] + self._stages[stage].position(np.full_like(k, pool), k)
        return found

    def cuts(self, entry: Ints, epoch: Ints) -> Ints:
        """(n,): at which token of its tape each epoch begins, see `cut`; sequence i begins i strides behind."""
        if not any(self._shifts):
            return np.zeros_like(entry)
        pairs, inverse = np.unique(epoch * len(self.names) + entry, return_inverse=True)
        found = [self.cut(pair % len(self.names), pair // len(self.names)) for pair in pairs.tolist()]
        return np.array(found, np.int64)[inverse]

    def cut(self, entry: int, epoch: int) -> int:
        """At which token of its tape an epoch of an entry begins."""
        if not (shift := self._shifts[entry]):
            return 0
        if (entry, epoch) not in self._cuts:
            self._cuts[entry, epoch] = cut(self.seed, self.names[entry], epoch, shift)
        return self._cuts[entry, epoch]

    def prefix(self, length: int) -> Ints:
        """(entries,): how many of the first `length` positions each has."""
        stage = min(int(np.searchsorted(self._starts, length, side="right")) - 1, len(self._stages) - 1)
        counts: Ints = self._drawn[stage] + self._given(stage, length - int(self._starts[stage]))
        return counts

    def drawn(self, entry: int, low: int, high: int) -> Ints:
        """(high - low,): the sequences inside an entry that it gives as its `low`-th to `high - 1`-th, whatever the
        positions they fall on."""
        size = self.sizes[[entry]]
        epoch, index = np.divmod(np.arange(low, high), size)
        keys = self._keys_of(np.full_like(index, entry), epoch)
        return permute(index, np.broadcast_to(size, index.shape), keys)

    def _keys_of(self, entry: Ints, epoch: Ints) -> UInt64s:
        """(n, ROUNDS) round keys; those of an epoch are made once."""
        pairs, inverse = np.unique(epoch * len(self.names) + entry, return_inverse=True)
        table = np.empty((len(pairs), ROUNDS), np.uint64)
        for row, pair in enumerate(pairs.tolist()):
            which = pair % len(self.names), pair // len(self.names)
            if which not in self._keys:
                self._keys[which] = round_keys(self.seed, self.names[which[0]], which[1])
            table[row] = self._keys[which]
        return table[inverse]
