"""What auditors ask of a stream: where its tokens come from, and which positions read given ones.

Input: a `View`. Output: arrays and lists of numbers, by arithmetic. numpy and the standard library only.
"""

from __future__ import annotations

from operator import index
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from pretok.base.errors import UsageError
from pretok.base.tokens import Ints
from pretok.stream.tapes import Runs, ranges

if TYPE_CHECKING:
    from pretok.stream import View


def number_of(view: View, name: str) -> int:
    """The number of an entry of the mix. UsageError for an unknown name."""
    if name not in view.order.names:
        raise UsageError(f"the stream has no source {name!r}; its sources are {', '.join(view.order.names)}")
    return view.order.names.index(name)


def entries_of(view: View, source: str) -> list[str]:
    """What the mix takes of the documents of a source: the source by its name, its classes, its rest, what came
    later."""
    return [entry.name for entry in view.mix.sources if entry.held_in == source]


def of_class(view: View, name: str) -> str | None:
    """The class, or the rest, that an entry is of; None where its source is not divided."""
    entry = view.mix.sources[number_of(view, name)]
    classes = {one.pool for one in view.mix.sources if one.held_in == entry.held_in}
    return entry.pool if classes != {entry.held_in} else None


def pieces(view: View, position: int) -> list[tuple[Path, int, int]]:
    """(`.bin`, first token in it, tokens) of what one position reads, in its order."""
    return view.tokens.parts(view.pieces_of(np.array([position]))[0])


def shard(view: View, position: int, token: int) -> Path:
    """The file that holds a token, counted from 0, of the sequence at one position."""
    held = view.pieces_of(np.array([position]))[0]
    piece = int(np.flatnonzero(held.column <= token)[-1])
    return view.tokens.path(
        int(held.address[piece] + min(token - held.column[piece], held.length[piece] - 1))
    )


def runs(view: View, name: str, first: int, end: int) -> Runs:
    """Where the tape of an entry has the tokens `first` to `end - 1` of the source that it takes its documents from:
    `start` on the tape, `address` in the source."""
    number = number_of(view, name)
    base = int(view.source_bases[number])
    start, address, length = view.tapes.holding(number, first + base, end + base)
    return Runs(start, address - base, length)


def positions(view: View, name: str, first: int, end: int) -> Ints:
    """Inverse of `View.origin`: which positions of an entry hold any of the tokens `first` to `end - 1` of its source.

    Returns (n, 3), in the order of the stream: position, epoch, index of the sequence inside the entry. A token that is
    the last of a sequence is only predicted there. UsageError for an unknown name.
    """
    number, held = number_of(view, name), runs(view, name, index(first), index(end))
    stride, size = int(view.tapes.strides[number]), int(view.order.sizes[number])
    found = [np.empty((0, 3), np.int64)]
    for epoch in range(view.order.epochs(number) if len(held.start) else 0):
        begin = held.start - view.order.cut(number, epoch)
        low = np.maximum(begin - (view.seq_len + 1 - stride), 0) // stride
        high = np.minimum((begin + held.length - 1) // stride + 1, size)
        sequences = np.unique(ranges(low, np.maximum(low, high))[1])
        at = view.order.positions(number, epoch, sequences)
        found.append(np.column_stack([at, np.full_like(at, epoch), sequences])[at >= 0])
    rows = np.concatenate(found)
    return rows[np.argsort(rows[:, 0])]


def drawn(view: View, name: str, low: int, high: int) -> Ints:
    """(high - low,): which of its sequences an entry gives from its `low`-th on. IndexError for more than it gives."""
    number = number_of(view, name)
    given = view.prefix_counts(len(view))[name]
    if not 0 <= index(low) <= index(high) <= given:
        raise IndexError(f"sequences {low} to {high}; {name} gives {given}")
    return view.order.drawn(number, low, high)
