"""A text -> its pairs.

Enters: the Text of words laid out, in which pairs may have been joined. Leaves: the Pairs that merging begins with.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types

from pretok.kernels.compile import njit
from pretok.vocab.cells import POINTER, POINTER32, TEXT, after, count_at, joinable
from pretok.vocab.pairs import (
    COUNT,
    FREE,
    PAIR,
    PAIRS,
    PLACES,
    ROWS,
    SIZE,
    START,
    Pairs,
    find,
    is_short,
    no_pairs,
    renew,
    row_of,
)


@njit(types.int64(TEXT, types.int64), inline=True)
def _pair_at(text: Any, p: Any) -> Any:
    """The pair whose left token begins at cell p, or FREE if there is none."""
    a, b = np.int64(text.symbols[p]), np.int64(text.symbols[after(text.symbols, p)])
    return (a << 32) | b if joinable(text, a, b) else FREE


@njit(types.int64(TEXT, types.int64, POINTER, types.int64, POINTER))
def _count_pairs(text: Any, p: Any, table: Any, size: Any, used: Any) -> Any:
    """Count pairs from cell p on; returns the cell where the table is short, or the last."""
    while p < text.cells - 1 and not is_short(size, used[ROWS] + 1):
        key = _pair_at(text, p)
        if key != FREE:
            row = row_of(table, size, used, key)
            table[row + COUNT] += count_at(text, p)
            table[row + SIZE] += 1
        p = after(text.symbols, p)
    return p


@njit(types.void(TEXT, POINTER, types.int64, POINTER32))
def _note_pairs(text: Any, table: Any, size: Any, places: Any) -> Any:
    """Write the cell of each pair into its run."""
    p = np.int64(1)
    while p < text.cells - 1:
        key = _pair_at(text, p)
        if key != FREE:
            row = find(table, size, key)
            places[table[row + START] + table[row + SIZE]] = p
            table[row + SIZE] += 1
        p = after(text.symbols, p)


@njit(PAIRS(TEXT))
def pairs_of(text: Any) -> Any:
    """All pairs of a text, their places in the order of the cells."""
    pairs, p = no_pairs(), np.int64(1)
    while p < text.cells - 1:
        if is_short(len(pairs.table), pairs.used[ROWS] + 1):
            pairs = renew(pairs, pairs.used[ROWS])
        p = _count_pairs(text, p, pairs.table.ctypes, len(pairs.table), pairs.used.ctypes)
    table, used = pairs.table, pairs.used
    for row in range(0, len(table), PAIR):
        table[row + START] = used[PLACES]
        used[PLACES] += table[row + SIZE]
        table[row + SIZE] = 0
    places = np.empty(used[PLACES] + used[PLACES] // 4, np.int32)
    _note_pairs(text, table.ctypes, len(table), places.ctypes)
    return Pairs(table, places, used)
