"""Words of tokens, and which pairs of neighbours occur in them and where: what BPE merges.

Enters: words as tokens in a row, with counts. Leaves: a Text, whose pairs can be joined one after the other.

All words lie in one array of cells: one per token, and one before, between and after words. When tokens are joined,
the new one begins at the first one's cell; the other cells it covers are dead, and lead to both of its ends. The
occurrences of a pair are a linked list through the cells where they begin. So adding or dropping an occurrence takes
constant time wherever it lies, and a merge costs what it changes, however long the words are.

Memory: 16 bytes for each token and each word, 8 for each count, and 36 to 96 for each distinct pair that occurs.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numba
import numpy as np
from numba import types

from pretok._numba import I64, njit

DEAD = -1
"""Symbol of a cell that a token covers but does not begin at."""
BOUNDARY = -2
"""Symbol of the cells around words."""
NOWHERE = -1
"""End of a list of occurrences."""
FREE = -1
"""Key of a row of the pair table that is not in use."""
NEVER = -1
"""Number of no merge."""

CELL = np.dtype([("symbol", "i4"), ("word", "i4"), ("next", "i4"), ("previous", "i4")], align=True)
"""Where a token begins, `next` and `previous` are the neighbours in the list of the pair's occurrences. In the first
of a token's dead cells, `next` is where the next token begins; in the last, `previous` is where this one does."""

PAIR = np.dtype([("key", "i8"), ("count", "i8"), ("first", "i4"), ("merge", "i4")], align=True)
"""A row of the pair table: both ids, how often the pair occurs in the text, the cell of its first occurrence, and the
number of the last merge that made one (0: it was there from the start)."""


class Text(NamedTuple):
    """The words while they are merged, and the pairs in them."""

    cells: Any
    table: Any
    counts: Any
    """int64[w], how often each word occurs."""
    weights: Any
    """int64[ids], the weight of each token."""
    limit: Any
    """Pairs of a greater weight than this are left alone."""


_CELL = numba.from_dtype(CELL)
_PAIR = numba.from_dtype(PAIR)
CELLS = _CELL[::1]
TABLE = _PAIR[::1]
ROWS = types.List(types.int64)
TEXT = types.NamedTuple((CELLS, TABLE, I64, types.int64[::1], types.int64), Text)


@njit(types.int64(types.int64, types.int64), inline=True)
def _key(a: Any, b: Any) -> Any:
    """A pair as one integer; keys have the order of pairs."""
    return (a << 32) | b


@njit(types.int64(TABLE, types.int64), inline=True)
def find(table: Any, key: Any) -> Any:
    """The row of a pair, or the free row where it belongs."""
    mask = len(table) - 1
    mixed = np.uint64(key) * np.uint64(0x9E3779B97F4A7C15)
    row = np.int64(mixed >> np.uint64(32)) & mask
    while table[row].key != key and table[row].key != FREE:
        row = (row + 1) & mask
    return row


@njit(TABLE(types.int64))
def _new_table(rows: Any) -> Any:
    """A table of at least `rows` rows, all free."""
    capacity = 1024
    while capacity < rows:
        capacity *= 2
    table = np.empty(capacity, _PAIR)
    for row in range(capacity):
        table[row].key = FREE
        table[row].count = 0
        table[row].first = NOWHERE
        table[row].merge = NEVER
    return table


@njit(types.boolean(TABLE, types.int64))
def is_short(table: Any, rows: Any) -> Any:
    """Whether the table has too few rows to find pairs fast with `rows` of them in use."""
    return 3 * rows > 2 * len(table)


@njit(types.Tuple((TABLE, types.int64))(TABLE, types.int64))
def renew(table: Any, reserve: Any) -> Any:
    """(table, rows in use) of the pairs that still occur, with room for `reserve` more."""
    used = 0
    for row in range(len(table)):
        used += table[row].first != NOWHERE
    renewed = _new_table(2 * (used + reserve))
    for row in range(len(table)):
        if table[row].first != NOWHERE:
            renewed[find(renewed, table[row].key)] = table[row]
    return renewed, used


@njit(types.int64(CELLS, types.int64), inline=True)
def _after(cells: Any, p: Any) -> Any:
    """The cell after the token that begins at p."""
    if cells[p + 1].symbol == DEAD:
        return np.int64(cells[p + 1].next)
    return p + 1


@njit(types.int64(CELLS, types.int64), inline=True)
def _before(cells: Any, p: Any) -> Any:
    """The cell where the token before p begins, or the boundary before p."""
    if cells[p - 1].symbol == DEAD:
        return np.int64(cells[p - 1].previous)
    return p - 1


@njit(types.boolean(TEXT, types.int64, types.int64), inline=True)
def _joinable(text: Any, a: Any, b: Any) -> Any:
    """Whether the symbols of two neighbours are tokens, and light enough to be merged."""
    return a >= 0 and b >= 0 and text.weights[a] + text.weights[b] <= text.limit


@njit(types.int64(TEXT, types.int64, types.int64, types.int64), inline=True)
def _link(text: Any, p: Any, a: Any, b: Any) -> Any:
    """Add the occurrence of the pair (a, b) at cell p; returns the pair's row."""
    cells, table = text.cells, text.table
    key = _key(a, b)
    row = find(table, key)
    first = table[row].first
    if first != NOWHERE:
        cells[first].previous = p
    cells[p].next = first
    cells[p].previous = NOWHERE
    table[row].key = key
    table[row].first = p
    table[row].count += text.counts[cells[p].word]
    return row


@njit(types.void(TEXT, types.int64, types.int64, types.int64), inline=True)
def _unlink(text: Any, p: Any, a: Any, b: Any) -> Any:
    """Drop the occurrence of the pair (a, b) at cell p."""
    cells, table = text.cells, text.table
    row = find(table, _key(a, b))
    table[row].count -= text.counts[cells[p].word]
    following, previous = cells[p].next, cells[p].previous
    if following != NOWHERE:
        cells[following].previous = previous
    if previous != NOWHERE:
        cells[previous].next = following
    else:
        table[row].first = following


@njit(types.int64(TEXT, types.int64, types.int64, types.int64, types.int64, ROWS), inline=True)
def _link_new(text: Any, p: Any, a: Any, b: Any, merge: Any, touched: Any) -> Any:
    """_link, by merge number `merge`: notes the row if it is the merge's first there. Returns the rows taken."""
    row = _link(text, p, a, b)
    before = text.table[row].merge
    if before != merge:
        text.table[row].merge = merge
        touched.append(row)
    return np.int64(before == NEVER)


@njit(types.int64(TEXT, types.int64, types.int64, types.int64, ROWS))
def _join(text: Any, p: Any, product: Any, merge: Any, touched: Any) -> Any:
    """Join the token at cell p and the next one to `product`; returns the rows of the table this takes."""
    cells = text.cells
    q = _after(cells, p)
    start, end = _before(cells, p), _after(cells, q)
    a, b, left, right = cells[p].symbol, cells[q].symbol, cells[start].symbol, cells[end].symbol
    _unlink(text, p, a, b)
    if _joinable(text, left, a):
        _unlink(text, start, left, a)
    if _joinable(text, b, right):
        _unlink(text, q, b, right)
    cells[p].symbol = product
    cells[q].symbol = DEAD
    cells[p + 1].next = end
    cells[end - 1].previous = p
    taken = 0
    if _joinable(text, left, product):
        taken += _link_new(text, start, left, product, merge, touched)
    if _joinable(text, product, right):
        taken += _link_new(text, p, product, right, merge, touched)
    return taken


@njit(types.int64(TEXT, types.int64, types.int64, types.int64, ROWS))
def join_all(text: Any, key: Any, product: Any, merge: Any, touched: Any) -> Any:
    """Join all occurrences of a pair, overlapping ones from left to right; returns the rows of the table this takes.

    Only a pair of equal tokens overlaps itself, in a run of that token. A run is joined at once, from its beginning.
    """
    cells = text.cells
    a, b = key >> 32, key & 0xFFFFFFFF
    row = find(text.table, key)
    taken = 0
    while text.table[row].first != NOWHERE:
        p = np.int64(text.table[row].first)
        if a == b:
            while cells[_before(cells, p)].symbol == a:
                p = _before(cells, p)
        while cells[p].symbol == a and cells[_after(cells, p)].symbol == b:
            taken += _join(text, p, product, merge, touched)
            p = _after(cells, p)
    return taken


@njit(CELLS(types.Array(types.int32, 1, "C", readonly=True), I64))
def cells_of(symbols: Any, offsets: Any) -> Any:
    """The cells of the words symbols[offsets[w]:offsets[w + 1]]."""
    words = len(offsets) - 1
    cells = np.empty(offsets[words] - offsets[0] + words + 1, _CELL)
    cells[0].symbol = BOUNDARY
    p = 1
    for w in range(words):
        for i in range(offsets[w], offsets[w + 1]):
            cells[p].symbol = symbols[i]
            cells[p].word = w
            p += 1
        cells[p].symbol = BOUNDARY
        p += 1
    return cells


@njit(types.Tuple((TEXT, types.int64))(CELLS, I64, types.int64[::1], types.int64))
def text_of(cells: Any, counts: Any, weights: Any, limit: Any) -> Any:
    """(text, rows of its table in use). Backwards, so that a pair's occurrences are in the order of their cells."""
    text, used = Text(cells, _new_table(0), counts, weights, limit), 0
    for p in range(len(cells) - 2, 0, -1):
        a, b = cells[p].symbol, cells[p + 1].symbol
        if _joinable(text, a, b):
            if is_short(text.table, used + 1):
                table, used = renew(text.table, 1)
                text = Text(cells, table, counts, weights, limit)
            row = _link(text, p, a, b)
            used += text.table[row].merge == NEVER
            text.table[row].merge = 0
    return text, used
