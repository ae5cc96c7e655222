"""Queries for auditors: where the tokens of a stream come from, and which positions read given tokens.

Input: a `View`. Output: arrays and lists of numbers, computed by arithmetic. It needs only numpy and the standard
library.
"""

from __future__ import annotations

from operator import index
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from pretok.base.errors import UsageError
from pretok.base.tokens import Ints
from pretok.stream.flat_tokens import ranges
from pretok.stream.tapes import TapeRanges

if TYPE_CHECKING:
    from pretok.stream.view import View


def number_of(view: View, name: str) -> int:
    """Return the number of an entry of the mix. UsageError for an unknown name."""
    if name not in view.order.names:
        raise UsageError(f"the stream has no source {name!r}; its sources are {', '.join(view.order.names)}")
    return view.order.names.index(name)


def entries_of(view: View, source: str) -> list[str]:
    """Return all entries with documents of a source: the source, its classes, its rest, and later appends."""
    return [entry.name for entry in view.mix.sources if entry.held_in == source]


def of_class(view: View, name: str) -> str | None:
    """Return the class (or the rest) that an entry belongs to; None if its source is not divided."""
    entry = view.mix.sources[number_of(view, name)]
    classes = {one.pool for one in view.mix.sources if one.held_in == entry.held_in}
    return entry.pool if classes != {entry.held_in} else None


def pieces(view: View, position: int) -> list[tuple[Path, int, int]]:
    """Return (`.bin`, first token in it, tokens) for everything one position reads, in its order."""
    return view.tokens.parts(view.reads(np.array([position]))[0])


def shard(view: View, position: int, token: int) -> Path:
    """Return the file with a token, counted from 0, of the sequence at one position."""
    parts = pieces(view, position)
    ends = np.cumsum([tokens for *_, tokens in parts])
    # Padding lies in no shard; it follows the last piece.
    return parts[min(int(np.searchsorted(ends, token, side="right")), len(parts) - 1)][0]


def runs(view: View, name: str, first: int, end: int) -> TapeRanges:
    """Return where an entry's tape has the tokens `first` to `end - 1` of its source.

    `start` is on the tape, `address` in the source.
    """
    number = number_of(view, name)
    base = int(view.source_bases[number])
    start, address, length = view.tapes.holding(number, first + base, end + base)
    return TapeRanges(start, address - base, length)


def positions(view: View, name: str, first: int, end: int) -> Ints:
    """Invert `View.origin`: the positions of an entry that hold any of the tokens `first` to `end - 1` of its source.

    Returns (n, 3), in the order of the stream: position, epoch, number of the sequence within the entry. If a token is
    the last of a sequence, it is only a target there. UsageError for an unknown name.
    """
    number, on_tape = number_of(view, name), runs(view, name, index(first), index(end))
    stride, size = int(view.tapes.strides[number]), int(view.order.sizes[number])
    parts = [np.empty((0, 3), np.int64)]
    for epoch in range(view.order.epochs(number) if len(on_tape.start) else 0):
        begin = on_tape.start - view.order.cut(number, epoch)
        # Sequence i holds the tokens i * stride to i * stride + seq_len, so neighbours may overlap by one token.
        low = np.maximum(begin - (view.seq_len + 1 - stride), 0) // stride
        high = np.minimum((begin + on_tape.length - 1) // stride + 1, size)
        sequences = np.unique(ranges(low, np.maximum(low, high))[1])
        at = view.order.positions(number, epoch, sequences)
        parts.append(np.column_stack([at, np.full_like(at, epoch), sequences])[at >= 0])
    rows = np.concatenate(parts)
    return rows[np.argsort(rows[:, 0])]


def drawn(view: View, name: str, low: int, high: int) -> Ints:
    """Return the sequences that an entry gives as its `low`-th to `high - 1`-th, (high - low,)."""
    return view.order.drawn(number_of(view, name), low, high)
