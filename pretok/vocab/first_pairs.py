"""A text in which nothing is joined yet -> its pairs.

Enters: words as tokens in a row, with counts. Leaves: the cells of a Text, and the Pairs that merging begins with.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types

from pretok.kernels.compile import I64, njit
from pretok.vocab.pairs import (
    BOUNDARY,
    COUNT,
    FREE,
    I32,
    PAIR,
    PAIRS,
    PLACES,
    POINTER,
    POINTER32,
    ROWS,
    SIZE,
    START,
    TEXT,
    Pairs,
    find,
    is_short,
    joinable,
    new_table,
    renew,
    row_of,
)


@njit(types.UniTuple(I32, 2)(types.Array(types.int32, 1, "C", readonly=True), I64, I64))
def cells_of(tokens: Any, offsets: Any, counts: Any) -> Any:
    """(symbols, words) of the words tokens[offsets[w]:offsets[w + 1]] that occur at all."""
    size = offsets[-1] - offsets[0] + len(offsets)
    symbols, words = np.empty(size, np.int32), np.empty(size, np.int32)
    symbols[0] = BOUNDARY
    p = 1
    for w in range(len(counts)):
        if counts[w] == 0:
            continue
        for i in range(offsets[w], offsets[w + 1]):
            symbols[p], words[p] = tokens[i], w
            p += 1
        symbols[p] = BOUNDARY
        p += 1
    return symbols[:p], words[:p]


@njit(types.int64(TEXT, types.int64), inline=True)
def _pair_at(text: Any, p: Any) -> Any:
    """The pair that begins at cell p of a text in which nothing is joined yet, or FREE if there is none."""
    a, b = np.int64(text.symbols[p]), np.int64(text.symbols[p + 1])
    return (a << 32) | b if joinable(text, a, b) else FREE


@njit(types.int64(TEXT, types.int64, POINTER, types.int64, POINTER))
def _count_pairs(text: Any, p: Any, table: Any, size: Any, used: Any) -> Any:
    """Count pairs from cell p on; returns the cell where the table is short, or the last."""
    while p < text.cells - 1 and not is_short(size, used[ROWS] + 1):
        key = _pair_at(text, p)
        if key != FREE:
            row = row_of(table, size, used, key)
            table[row + COUNT] += text.counts[text.words[p]]
            table[row + SIZE] += 1
        p += 1
    return p


@njit(types.void(TEXT, POINTER, types.int64, POINTER32))
def _note_pairs(text: Any, table: Any, size: Any, places: Any) -> Any:
    """Write the cell of each pair into its run."""
    for p in range(1, text.cells - 1):
        key = _pair_at(text, p)
        if key != FREE:
            row = find(table, size, key)
            places[table[row + START] + table[row + SIZE]] = p
            table[row + SIZE] += 1


@njit(PAIRS(TEXT))
def pairs_of(text: Any) -> Any:
    """The pairs of a text in which nothing is joined yet, their places in the order of the cells."""
    pairs = Pairs(new_table(0), np.empty(0, np.int32), np.zeros(3, np.int64))
    p = np.int64(1)
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
