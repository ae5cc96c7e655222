"""Where the sequences of a mix lie: source, cut and number -> pieces of shards.

Input: the sources of a mix and their first addresses among all its tokens (`flat_tokens`). Output: a tape, which says
from which addresses the tokens of any sequence come. numpy and the standard library only.
"""

from __future__ import annotations

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
