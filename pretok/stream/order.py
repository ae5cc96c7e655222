"""Which sequence is at which position: integer arithmetic without tables, the same on every machine, and forever.

Input: the number of sequences of each entry, and how many of them each stage of a mix takes (its quotas). Output:
`Order`, which maps positions to (entry, epoch, sequence) and back, and prefixes to counts, in vectors.

Cuts. Sequence i of epoch e of a source begins at token o + i seq_len of its flat tokens. o, the same for the whole
epoch, is `cut`: a hash modulo seq_len, so that each epoch divides the text at other places. With fixed cuts o is 0.

Interleaving. In a stage of N positions source s has quota q_s. Its k-th sequence is due at time (k + 1/2) N / q_s, and
positions are sorted by due time, then by source. Up to a whole time T, source s was due floor(q_s T / N + 1/2) times,
within 1/2 of its share. So the counts of S sources sum to T within S/2, and bisection over S + 1 candidates finds the T
of a position. Within one unit of time each source is due at most once. So at every prefix n the count of source s is
within 1/2 + w_s S/2 of w_s n, with w_s = q_s / N.

Permutation. The k-th sequence drawn from an entry of n is element k mod n of epoch k div n, permuted
(`stream.permutation`).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pretok.base.errors import UsageError
from pretok.base.tokens import Ints
from pretok.stream.permutation import UInt64s, cut, key_numbers, permute, permute_one, round_keys, unpermute

DIGIT = 21
"""Bits of one digit of long division; all intermediate values stay below 2^63."""
MAX_SEQUENCES = 1 << 2 * DIGIT - 2
"""Limit of the sequences in a stage (1.1e12), so that nothing here exceeds 64 bits."""

FEW = 8
"""Up to so many positions are located one by one: Python's integers take less time than a hundred calls of numpy."""


class _Due(NamedTuple):
    """The sources that are due in n units of time, sorted by unit and due time."""

    row: Ints
    """(all,) the unit."""
    source: Ints
    """(all,) the source."""
    first: Ints
    """(n,) where the sources of each unit begin."""


class Schedule:
    """The interleaving of sources with fixed quotas in one stage. `length` is the number of positions."""

    def __init__(self, quotas: Sequence[int]) -> None:
        self.length = sum(quotas)
        if self.length >= MAX_SEQUENCES:
            raise UsageError(
                f"a stage of {self.length} sequences is too long; at most {MAX_SEQUENCES - 1} are possible: "
                "split it into stages, or use a larger sequence length"
            )
        self.quotas: Ints = np.array(quotas, np.int64)
        self._giving = [(source, quota) for source, quota in enumerate(quotas) if quota]

    def locate_one(self, position: int) -> tuple[int, int]:
        """Return what `locate` returns for one position: the source and k."""
        # The same steps as for many (see `_unit_of`): the end T of its unit of time, the counts and rho at T, and the
        # sources that are due in the unit by due time. Python's integers need no long division.
        near, twice = (len(self._giving) + 1) // 2, 2 * self.length
        low, high = max(position + 1 - near, 1), min(position + 1 + near, self.length)
        time = low + bisect_right(
            range(low, high),
            position,
            key=lambda time: sum([(2 * quota * time + self.length) // twice for _, quota in self._giving]),
        )
        due, rank = [], position
        for source, quota in self._giving:
            count, rho = divmod(2 * quota * time + self.length, twice)
            if inside := rho < 2 * quota:
                due.append((-((rho << 2 * DIGIT) // (2 * quota)), source, count - 1))
            rank -= count - inside
        due.sort()
        return due[rank][1:]

    def locate(self, positions: Ints) -> tuple[Ints, Ints]:
        """Map positions (n,) in 0..length-1 to source (n,) and k (n,): the position has the source's k-th sequence."""
        before, due, rank = self._unit_of(positions)
        rows = np.arange(len(positions))
        source = due.source[due.first[rows] + rank]
        return source, before[rows, source]

    def prefix(self, lengths: Ints) -> Ints:
        """Return (n, sources) for `lengths` (n,) in 0..length: how many of the first positions each source has."""
        if self.length == 0:
            return np.zeros((len(lengths), len(self.quotas)), np.int64)
        # The counts at the start of the position's unit, plus the sources that are due in the unit before the position.
        # The end of the stage belongs to no position: there the counts are the quotas.
        counts, due, rank = self._unit_of(np.minimum(lengths, self.length - 1))
        earlier = np.arange(len(due.row)) - due.first[due.row] < rank[due.row]
        counts[due.row[earlier], due.source[earlier]] += 1
        counts[lengths == self.length] = self.quotas
        return counts

    def _unit_of(self, positions: Ints) -> tuple[Ints, _Due, Ints]:
        """Return the unit of time of each position: `before` and `due` of `_unit_ending`, and the rank in it (n,)."""
        before, due = self._unit_ending(self._end_of_unit(positions))
        return before, due, positions - before.sum(axis=1)

    def _unit_ending(self, time: Ints) -> tuple[Ints, _Due]:
        """Return the unit of time that ends at each whole `time` (n,).

        Returns before (n, sources), the counts at the start of the unit, and the sources that are due in it, by time.
        On average only one source is due, so sorting these is cheap.
        """
        counts, remainder = self._due(time)
        # With c = floor(q T / N + 1/2), the source was last due at (c - 1/2) N / q. That is rho / (2 q) before T, where
        # rho = 2 (q T - (c - 1/2) N). If rho < 2 q, this lies in the unit that ends at T.
        rho = 2 * remainder + np.where(2 * remainder >= self.length, -self.length, self.length)
        inside = rho < 2 * self.quotas
        row, source = np.nonzero(inside)
        late = _fraction(rho[row, source], 2 * self.quotas[source])
        order = np.lexsort((source, -late, row))
        row = row[order]
        first = np.searchsorted(row, np.arange(len(time)))
        return counts - inside, _Due(row, source[order], first)

    def _end_of_unit(self, positions: Ints) -> Ints:
        """Return (n,): the smallest whole time up to which more than `positions` sequences were due."""
        # The counts of S sources sum to T within S/2 (see above), which bounds the search on both sides.
        sources = len(self.quotas)
        low = np.maximum(positions + 1 - (sources + 1) // 2, 1)
        high = np.minimum(positions + 1 + (sources + 1) // 2, self.length)
        if len(positions) and (times := int(high.max() - low.min()) + 1) <= 2 * len(positions):
            # Positions close together: compute all times in their range at once.
            every = np.arange(times) + low.min()
            time: Ints = every[np.searchsorted(self._due(every)[0].sum(axis=1), positions, side="right")]
            return time
        # Positions far apart: some log2(S) rounds for all of them at once.
        return _bisect(low, high, lambda time: self._due(time)[0].sum(axis=1) > positions)

    def _due(self, time: Ints) -> tuple[Ints, Ints]:
        """Return floor(q T / N + 1/2) and q T mod N, both (n, sources), by long division in two digits."""
        # q T may have 80 bits. With T = t1 2^21 + t0: divide q t1 first (below 2^59), then its remainder (below 2^40),
        # shifted by one digit, plus q t0 (each below 2^61).
        upper = self.quotas * (time >> DIGIT)[:, None]
        quotient = upper // self.length
        lower = ((upper - quotient * self.length) << DIGIT) + self.quotas * (time & (1 << DIGIT) - 1)[:, None]
        digit = lower // self.length
        remainder = lower - digit * self.length
        return (quotient << DIGIT) + digit + (2 * remainder >= self.length), remainder


def _bisect(low: Ints, high: Ints, holds: Callable[[Ints], npt.NDArray[np.bool_]]) -> Ints:
    """Return the smallest values from `low` (n,) on for which `holds`, or `high` (n,) if it holds for none below.

    holds: for (n,) values at once; from some value on it is True.
    """
    while (low < high).any():
        middle = (low + high) >> 1
        enough = holds(middle)
        low, high = np.where(enough, low, middle + 1), np.where(enough, middle, high)
    return low


def prefix_bound(quotas: Sequence[int], quota: int) -> float:
    """Return how far a source with `quota` may be from its share at any prefix of a stage, in sequences."""
    if not quota:
        return 0.0
    return 0.5 + quota / sum(quotas) * sum(1 for other in quotas if other) / 2


def _fraction(numerator: Ints, denominator: Ints) -> Ints:
    """Return the first 42 binary digits of numerator / denominator < 1 as one integer.

    They are enough to compare the lateness of two sources: their due times differ by a multiple of N / (2 q1 q2), which
    is at least 2 / N > 2^-40 because q1 + q2 <= N.
    """
    high = (numerator << DIGIT) // denominator
    low = ((numerator << DIGIT) - high * denominator << DIGIT) // denominator
    return high << DIGIT | low


class Order:
    """Maps the positions of a whole mix to sequences of its entries.

    names, sizes: the entries, and how many sequences each has. stages: the quotas of each stage, by entry. lengths:
    positions of each stage; default: all. shifts: for each entry the seq_len by which its epochs are cut, 0 for fixed
    cuts. In each stage, every entry continues where the stage before stopped. given: (stages, entries) sequences.
    """

    def __init__(
        self,
        names: Sequence[str],
        sizes: Sequence[int],
        stages: Sequence[Sequence[int]],
        seed: int,
        lengths: Sequence[int] | None = None,
        shifts: Sequence[int] = (),
    ) -> None:
        self.names = tuple(names)
        self.sizes: Ints = np.array(sizes, np.int64)
        self.seed = seed
        self._shifts = tuple(shifts) or (0,) * len(self.names)
        self._stages = [Schedule(quotas) for quotas in stages]
        if lengths is None:
            lengths = [stage.length for stage in self._stages]
        self._starts: Ints = np.cumsum([0, *lengths], dtype=np.int64)
        self.length = int(self._starts[-1])
        # What each entry gives in each stage; less than its quota in a stage that is left early.
        given = [
            stage.prefix(np.array([length]))[0] for stage, length in zip(self._stages, lengths, strict=True)
        ]
        self.given: Ints = np.array(given, np.int64).reshape(-1, len(self.names))
        # What each entry gave before each stage: there the stage goes on in the entry's epoch.
        self._drawn = np.cumsum([0 * self.sizes, *given], axis=0)

    def locate(self, positions: Ints) -> tuple[Ints, Ints, Ints]:
        """Map positions (n,) in 0..length-1 to entry, epoch, and sequence within the entry, each (n,)."""
        if len(positions) <= FEW:
            few = [self.locate_one(position) for position in positions.tolist()]
            entry, epoch, index = np.array(few, np.int64).reshape(-1, 3).T
            return entry, epoch, index
        stage_of = np.searchsorted(self._starts, positions, side="right") - 1
        entry = np.empty_like(positions)
        drawn = np.empty_like(positions)
        for stage in np.unique(stage_of).tolist():
            rows = np.flatnonzero(stage_of == stage)
            entry[rows], k = self._stages[stage].locate(positions[rows] - self._starts[stage])
            drawn[rows] = k + self._drawn[stage, entry[rows]]
        size = self.sizes[entry]
        epoch, index = np.divmod(drawn, size)
        return entry, epoch, permute(index, size, self._keys_of(entry, epoch))

    def locate_one(self, position: int) -> tuple[int, int, int]:
        """Return what `locate` returns for one position."""
        stage = bisect_right(self._starts, position) - 1
        entry, k = self._stages[stage].locate_one(position - int(self._starts[stage]))
        size = int(self.sizes[entry])
        epoch, index = divmod(k + int(self._drawn[stage, entry]), size)
        return entry, epoch, permute_one(index, size, key_numbers(self.seed, self.names[entry], epoch))

    def epochs(self, entry: int) -> int:
        """Return how many epochs of an entry the stream begins."""
        return -(-int(self._drawn[-1, entry]) // max(int(self.sizes[entry]), 1))

    def positions(self, entry: int, epoch: int, sequences: Ints) -> Ints:
        """Invert `locate` for sequences (n,) of one entry and epoch: their positions (n,), -1 for those never read."""
        size = int(self.sizes[entry])
        sizes, ones = np.full(len(sequences), size), np.ones(len(sequences), np.int64)
        drawn = epoch * size + unpermute(sequences, sizes, self._keys_of(entry * ones, epoch * ones))
        # The position of the k-th sequence is the longest prefix that has only k of the entry.
        position = _bisect(
            0 * ones, self.length * ones, lambda prefix: self.prefixes(prefix + 1)[:, entry] > drawn
        )
        return np.where(position < self.length, position, -1)

    def cuts(self, entry: Ints, epoch: Ints) -> Ints:
        """Return (n,): the token of its tape at which each epoch begins; sequence i begins i strides later."""
        return self._of_epochs(entry, epoch, self.cut) if any(self._shifts) else np.zeros_like(entry)

    def cut(self, entry: int, epoch: int) -> int:
        """Return the token of its tape at which an epoch of an entry begins."""
        shift = self._shifts[entry]
        return cut(self.seed, self.names[entry], epoch, shift) if shift else 0

    def prefixes(self, lengths: Ints) -> Ints:
        """Return (n, entries): how many of the first `lengths` (n,) positions each entry has."""
        stage_of = np.minimum(np.searchsorted(self._starts, lengths, side="right"), len(self._stages)) - 1
        counts: Ints = self._drawn[stage_of]
        for stage in np.unique(stage_of).tolist():
            rows = np.flatnonzero(stage_of == stage)
            counts[rows] += self._stages[stage].prefix(lengths[rows] - self._starts[stage])
        return counts

    def drawn(self, entry: int, low: int, high: int) -> Ints:
        """Return the sequences that an entry gives as its `low`-th to `high - 1`-th at any positions, (high - low,)."""
        size = self.sizes[[entry]]
        epoch, index = np.divmod(np.arange(low, high), size)
        keys = self._keys_of(np.full_like(index, entry), epoch)
        return permute(index, np.broadcast_to(size, index.shape), keys)

    def _keys_of(self, entry: Ints, epoch: Ints) -> UInt64s:
        """Return (n, ROUNDS) round keys."""
        return self._of_epochs(
            entry, epoch, lambda entry, epoch: round_keys(self.seed, self.names[entry], epoch)
        )

    def _of_epochs(self, entry: Ints, epoch: Ints, value: Callable[[int, int], Any]) -> npt.NDArray[Any]:
        """Return `value` of each entry and epoch (n,), computed once for each pair: many positions share few epochs."""
        if len(entry) <= FEW:
            return np.array([value(*pair) for pair in zip(entry.tolist(), epoch.tolist(), strict=True)])
        pairs, inverse = np.unique(epoch * len(self.names) + entry, return_inverse=True)
        values = [value(pair % len(self.names), pair // len(self.names)) for pair in pairs.tolist()]
        return np.array(values)[inverse]
