"""Where the sequences of a mix lie: source, cut and number -> pieces of shards.

Input: the sources of a mix and their first addresses among all its tokens (`flat_tokens`). Output: a tape, which says
from which addresses the tokens of any sequence come; what no piece fills is EOD. numpy and the standard library only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

import numpy as np

from pretok.base.tokens import Ints


class Pieces(NamedTuple):
    """Tokens of sequences, in pieces that lie together; each (n,).

    row, column: where a piece goes in the sequences asked for; address: of its first token; length: its tokens.
    """

    row: Ints
    column: Ints
    address: Ints
    length: Ints


class Tape(Protocol):
    """The sequences of some sources of a mix."""

    def pieces(self, source: Ints, cut: Ints, number: Ints) -> Pieces:
        """Where sequences `number` (n,) of `source` (n,) lie, in epochs whose first one begins at token `cut` (n,); in
        the order of their rows."""


class WholeSources:
    """Every token of each source, `bases` (sources,) being the address of its first: a sequence is one piece of
    `length` tokens, the next one begins `stride` tokens later."""

    def __init__(self, bases: Ints, stride: int, length: int) -> None:
        self._bases = bases
        self._stride = stride
        self._length = length

    def pieces(self, source: Ints, cut: Ints, number: Ints) -> Pieces:
        """See `Tape`."""
        rows = np.arange(len(number))
        address = self._bases[source] + cut + number * self._stride
        return Pieces(rows, np.zeros_like(rows), address, np.full_like(rows, self._length))


class MixedTape:
    """Sources of several kinds: `whole` has all but those in `others`, a tape for each by its number."""

    def __init__(self, whole: Tape, others: Mapping[int, Tape], sources: int) -> None:
        self._whole = whole
        self._others = others
        self._other: Ints = np.full(sources, -1)
        self._other[list(others)] = list(others)

    def pieces(self, source: Ints, cut: Ints, number: Ints) -> Pieces:
        """See `Tape`."""
        kind = self._other[source]
        parts = []
        for one in np.unique(kind).tolist():
            rows = np.flatnonzero(kind == one)
            tape = self._whole if one < 0 else self._others[one]
            found = tape.pieces(source[rows], cut[rows], number[rows])
            parts.append(found._replace(row=rows[found.row]))
        return parts[0] if len(parts) == 1 else in_rows(parts)


def in_rows(parts: Sequence[Pieces]) -> Pieces:
    """Pieces of several kinds in the order of their rows and, in a row, of `parts`."""
    empty = Pieces(*[np.empty(0, np.int64)] * 4)
    whole = Pieces(*(np.concatenate(field) for field in zip(empty, *parts, strict=True)))
    order = np.argsort(whole.row, kind="stable")
    return Pieces(*(field[order] for field in whole))


def ranges(low: Ints, high: Ints) -> tuple[Ints, Ints]:
    """The numbers `low` (n,) to `high - 1` (n,), one row after the other: row and number, each (all,)."""
    counts = high - low
    row = np.repeat(np.arange(len(low)), counts)
    return row, np.arange(len(row)) - np.repeat(np.cumsum(counts) - counts, counts) + low[row]
