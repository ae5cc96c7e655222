"""Where the sequences of a mix lie: source, cut and number -> pieces of shards.

Input: the sources of a mix and their first addresses among all its tokens (`flat_tokens`). Output: a tape, which says
from which addresses the tokens of any sequence come; what no piece fills is EOD. numpy and the standard library only.
"""

from __future__ import annotations

from collections.abc import Mapping
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


class SeveralTapes:
    """`whole` for all sources but those that have a tape of their own in `others`, by their number."""

    def __init__(self, whole: Tape, others: Mapping[int, Tape]) -> None:
        self._whole = whole
        self._others = dict(others)

    def pieces(self, source: Ints, cut: Ints, number: Ints) -> Pieces:
        """See `Tape`."""
        kind = np.where(np.isin(source, list(self._others)), source, -1)
        found = []
        for which in np.unique(kind).tolist():
            tape, rows = self._others.get(which, self._whole), np.flatnonzero(kind == which)
            pieces = tape.pieces(source[rows], cut[rows], number[rows])
            found.append(pieces._replace(row=rows[pieces.row]))
        if len(found) == 1:
            return found[0]
        joined = Pieces(*(np.concatenate(field) for field in zip(*found, strict=True)))
        order = np.argsort(joined.row, kind="stable")
        return Pieces(*(field[order] for field in joined))
