"""Words of tokens, and which pairs of neighbours occur in them and where: what BPE merges.

Enters: a Text and its Pairs. Leaves: both, with one pair after the other joined.

All occurrences of a pair are made at once: by the merge that makes the newer of its tokens. They are a run of cell
numbers in one array, which is only read when the pair is merged: what has changed since is seen in the cells. A merge
changes pairs of four kinds, each known by one other token: (x, a), (b, x), (x, product) and (product, x). It adds up
by that token what is gone and what is new, so that the table of pairs is asked once for each pair, not for each
occurrence; and what a merge costs is what it changes.

A pair that is too rare to be merged ever is left out of the table, with its places: see `bpe`. Only where a merge gives
a token that there is already, further occurrences of such a pair can be made: the text is searched for them.

Memory: 5 bytes for each occurrence of a pair, and 48 to 96 for each distinct pair, of those that are not left out.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import types

from pretok.kernels.compile import njit
from pretok.kernels.eight_bytes import prefetch_i32, prefetch_i64
from pretok.vocab.cells import HINT_BITS, I32, POINTER, POINTER32, TEXT, after, before, count_at, joinable

FREE = -1
"""Key of a row of the pair table that is not in use."""
PAIR = 4
"""Integers in a row of the pair table."""
KEY, COUNT, START, SIZE = range(PAIR)
"""Places in a row: both ids; how often the pair occurs in the text; which of the places are its own."""
ROWS, PLACES, LEAST = range(3)
"""Places in Pairs.used."""
_GONE, _NEW = 0, 3
"""The two kinds of changes of a merge: pairs with its own left or right token that cease to occur, and pairs with the
product that begin to. Also, before all rows of the changes, where the number of such slots is."""
_CHANGE = 6
"""Integers in a row of the changes, a row for each slot: three for each kind."""
_SUM, _CELLS, _SLOT = range(4, 7)
"""Places in a row, which begins at _CHANGE x slot + kind: how often; at how many cells, later where the next of them is
noted; and, in the k-th row, the k-th slot with a change of the kind."""

_AHEAD = 8
"""How many occurrences ahead of the one that is joined the cells are loaded."""

TABLE = types.int64[::1]


class Pairs(NamedTuple):
    """The pairs that occur in a text."""

    table: Any
    """int64[PAIR x rows], a hash table by key."""
    places: Any
    """int32: a run of cells for each pair, where its left token began when the run was noted."""
    used: Any
    """int64[3], how many rows and places are in use, and how often a pair must occur not to be left out."""


PAIRS = types.NamedTuple((TABLE, I32, types.int64[::1]), Pairs)


@njit(types.int64(POINTER, types.int64, types.int64), inline=True)
def find(table: Any, size: Any, key: Any) -> Any:
    """Where in a table of `size` integers the row of a pair begins, or the free row where it belongs."""
    mask = size - 1
    mixed = np.uint64(key) * np.uint64(0x9E3779B97F4A7C15)
    row = PAIR * np.int64(mixed >> np.uint64(32)) & mask
    while table[row + KEY] != key and table[row + KEY] != FREE:
        row = (row + PAIR) & mask
    return row


@njit(TABLE(types.int64))
def new_table(rows: Any) -> Any:
    """A table of at least `rows` rows, all free."""
    capacity = 1024
    while capacity < rows:
        capacity *= 2
    table = np.zeros(PAIR * capacity, np.int64)
    for row in range(0, len(table), PAIR):
        table[row + KEY] = FREE
    return table


@njit(PAIRS())
def no_pairs() -> Any:
    """As of a text without any."""
    return Pairs(new_table(0), np.empty(0, np.int32), np.zeros(3, np.int64))


@njit(types.boolean(types.int64, types.int64), inline=True)
def is_short(table_size: Any, rows: Any) -> Any:
    """Whether a table of so many integers has too few rows to find pairs fast with `rows` of them in use."""
    return 3 * PAIR * rows > 2 * table_size


@njit(PAIRS(PAIRS, types.int64))
def renew(pairs: Any, reserve: Any) -> Any:
    """The pairs that still occur often enough, in a table with room for `reserve` more."""
    table, least = pairs.table, max(1, pairs.used[LEAST])
    used = 0
    for row in range(0, len(table), PAIR):
        used += table[row + COUNT] >= least
    renewed = new_table(2 * (used + reserve))
    for row in range(0, len(table), PAIR):
        if table[row + COUNT] >= least:
            to = find(renewed.ctypes, len(renewed), table[row + KEY])
            for field in range(PAIR):
                renewed[to + field] = table[row + field]
    pairs.used[ROWS] = used
    return Pairs(renewed, pairs.places, pairs.used)


@njit(types.void(POINTER, types.int64, POINTER, types.int64), inline=True)
def _take(table: Any, row: Any, used: Any, key: Any) -> Any:
    """Give a free row to a pair."""
    table[row + KEY] = key
    used[ROWS] += 1


@njit(types.int64(POINTER, types.int64, POINTER, types.int64), inline=True)
def row_of(table: Any, size: Any, used: Any, key: Any) -> Any:
    """The row of a pair, taken if it has none. The table is not short."""
    row = find(table, size, key)
    if table[row + KEY] == FREE:
        _take(table, row, used, key)
    return row


@njit(types.void(POINTER, types.int64, types.int64, types.int64), inline=True)
def _note(changes: Any, kind: Any, slot: Any, count: Any) -> Any:
    """Note a change of a kind at one cell, `count` times in the text."""
    at = _CHANGE * slot + kind
    if changes[at + _CELLS] == 0:
        changes[_CHANGE * changes[kind] + kind + _SLOT] = slot
        changes[kind] += 1
    changes[at + _CELLS] += 1
    changes[at + _SUM] += count


@njit(types.int64(TEXT, types.int64, types.int64, POINTER, POINTER32, types.int64), inline=True)
def _join(text: Any, p: Any, product: Any, changes: Any, made: Any, n: Any) -> Any:
    """Join the token at cell p and the next one; appends slot and cell of the new pairs to the `n` in `made`."""
    symbols = text.symbols
    q = after(symbols, p)
    start, end = before(symbols, p), after(symbols, q)
    a, b, left, right = symbols[p], symbols[q], symbols[start], symbols[end]
    count = count_at(text, p)
    if joinable(text, left, a):
        _note(changes, _GONE, 2 * left, count)
    if joinable(text, b, right):
        _note(changes, _GONE, 2 * right + 1, count)
    symbols[p] = product
    symbols[q] = symbols[p + 1] = symbols[end - 1] = p - end
    if joinable(text, left, product):
        slot = 2 * left + (left == product)  # (product, product) has two slots; this is the one
        _note(changes, _NEW, slot, count)
        made[2 * n], made[2 * n + 1] = slot, start
        n += 1
    if joinable(text, product, right):
        _note(changes, _NEW, 2 * right + 1, count)
        made[2 * n], made[2 * n + 1] = 2 * right + 1, p
        n += 1
    return n


@njit(types.int64(TEXT, types.int64, types.int64, POINTER32, types.int64, types.int64, POINTER, POINTER32))
def _join_all(
    text: Any, key: Any, product: Any, places: Any, start: Any, stop: Any, changes: Any, made: Any
) -> Any:
    """Join all occurrences of a pair, overlapping ones from left to right; returns how many new pairs are in `made`.

    Only a pair of equal tokens overlaps itself, in a run of that token. A run is joined at once, from its beginning.
    """
    symbols = text.symbols
    a, b = key >> 32, key & 0xFFFFFFFF
    n = 0
    for k in range(start, stop):
        far, near = (
            np.int64(places[min(k + 2 * _AHEAD, stop - 1)]),
            np.int64(places[min(k + _AHEAD, stop - 1)]),
        )
        prefetch_i32(symbols, far)
        prefetch_i32(text.hints, far >> HINT_BITS)
        run = np.int64(text.hints[near >> HINT_BITS])
        prefetch_i32(text.starts, run)
        prefetch_i64(text.counts, run)
        p = np.int64(places[k])
        if symbols[p] != a:
            continue
        if a == b:
            while symbols[before(symbols, p)] == a:
                p = before(symbols, p)
        while symbols[p] == a and symbols[after(symbols, p)] == b:
            n = _join(text, p, product, changes, made, n)
            p = after(symbols, p)
    return n


@njit(PAIRS(TEXT, PAIRS, types.int64))
def _tidy(text: Any, pairs: Any, reserve: Any) -> Any:
    """The pairs with the places alone where they still occur, and room for `reserve` more."""
    symbols, table, places, least = text.symbols, pairs.table, pairs.places, max(1, pairs.used[LEAST])
    # Runs move to the front in their order, so that none is overwritten before it is read. To meet them in it, the
    # first cell of each gives its place to the number of the row, which is marked by being negative.
    for row in range(0, len(table), PAIR):
        if table[row + SIZE] > 0:
            start = table[row + START]
            table[row + START] = places[start]
            places[start] = -1 - row // PAIR
    at = used = 0
    while at < pairs.used[PLACES]:
        if places[at] >= 0:  # of a pair that is merged or gone
            at += 1
            continue
        owner: Any = PAIR * (-1 - np.int64(places[at]))
        places[at] = table[owner + START]
        stop = at + table[owner + SIZE]
        a, b = table[owner + KEY] >> 32, table[owner + KEY] & 0xFFFFFFFF
        table[owner + START] = used
        if table[owner + COUNT] >= least:
            for k in range(at, stop):
                p = places[k]
                if symbols[p] == a and symbols[after(symbols, p)] == b:
                    places[used] = p
                    used += 1
        table[owner + SIZE] = used - table[owner + START]
        at = stop
    pairs.used[PLACES] = used
    room = used + used // 4 + reserve
    if room > len(places):
        grown = np.empty(room, np.int32)
        for i in range(used):
            grown[i] = places[i]
        places = grown
    return Pairs(table, places, pairs.used)


@njit(types.int64(types.int64, types.int64, types.int64), inline=True)
def _key(slot: Any, left: Any, right: Any) -> Any:
    """The pair of a slot as one integer: (token, right) or (left, token). Keys have the order of pairs."""
    token = slot >> 1
    if slot & 1:
        return (left << 32) | token
    return (token << 32) | right


@njit(types.int64(POINTER, types.int64, POINTER, POINTER, types.int64, types.boolean, POINTER))
def _take_rows(table: Any, size: Any, used: Any, changes: Any, product: Any, anew: Any, rows: Any) -> Any:
    """Write the row of each new pair to `rows`, one for each of the new slots, -1 for one that is left out; how many
    places they take. `anew`: the changes are all there is of these pairs."""
    room = 0
    for k in range(changes[_NEW]):
        slot = changes[_CHANGE * k + _NEW + _SLOT]
        key, change = _key(slot, product, product), _CHANGE * slot + _NEW
        row = find(table, size, key)
        if table[row + KEY] != FREE:
            if anew:
                table[row + COUNT] = table[row + SIZE] = 0
        elif changes[change + _SUM] >= used[LEAST]:
            _take(table, row, used, key)
        else:
            rows[k] = -1
            continue
        rows[k] = row
        room += changes[change + _CELLS] + table[row + SIZE]
    return room


@njit(types.void(POINTER, POINTER32, POINTER, POINTER, POINTER))
def _make_room(table: Any, places: Any, used: Any, changes: Any, rows: Any) -> Any:
    """Give each new pair its run of places.

    A pair that has occurrences (of an older product with the same bytes) takes them along.
    """
    for k in range(changes[_NEW]):
        row, change = rows[k], _CHANGE * changes[_CHANGE * k + _NEW + _SLOT] + _NEW
        if row < 0:
            changes[change + _CELLS] = -1
            continue
        at, cells = used[PLACES], changes[change + _CELLS]
        for i in range(table[row + SIZE]):
            places[at + i] = places[table[row + START] + i]
        table[row + START] = at
        changes[change + _CELLS] = at + table[row + SIZE]
        table[row + SIZE] += cells
        table[row + COUNT] += changes[change + _SUM]
        used[PLACES] = at + table[row + SIZE]


@njit(types.void(POINTER, types.int64, POINTER, types.int64))
def _drop_gone(table: Any, size: Any, changes: Any, key: Any) -> Any:
    """Subtract what is gone from the pairs with the left or the right token of the merge."""
    for k in range(changes[_GONE]):
        slot = changes[_CHANGE * k + _GONE + _SLOT]
        row = find(table, size, _key(slot, key & 0xFFFFFFFF, key >> 32))
        if table[row + KEY] != FREE:
            table[row + COUNT] -= changes[_CHANGE * slot + _GONE + _SUM]


@njit(types.void(POINTER))
def _forget(changes: Any) -> Any:
    """Make them no changes again."""
    for kind in (_GONE, _NEW):
        for k in range(changes[kind]):
            at = _CHANGE * changes[_CHANGE * k + kind + _SLOT] + kind
            changes[at + _SUM] = changes[at + _CELLS] = 0
        changes[kind] = 0


@njit(types.void(POINTER32, POINTER, POINTER32, types.int64))
def _note_places(places: Any, changes: Any, made: Any, n: Any) -> Any:
    """Write the cells of the `n` new pairs in `made` into their runs."""
    for k in range(n):
        at = _CHANGE * made[2 * k] + _NEW + _CELLS
        if changes[at] >= 0:
            places[changes[at]] = made[2 * k + 1]
            changes[at] += 1


@njit(types.Tuple((I32, types.int64))(TEXT, types.int64, POINTER))
def _pairs_with(text: Any, token: Any, changes: Any) -> Any:
    """Note all pairs with a token as new, as if all of its occurrences had been made now. As `_join_all`."""
    symbols = text.symbols
    made, n = np.empty(1024, np.int32), 0
    for p in range(1, text.cells - 1):
        if symbols[p] != token:
            continue
        if 2 * n + 4 > len(made):
            longer = np.empty(2 * len(made), np.int32)
            for i in range(2 * n):
                longer[i] = made[i]
            made = longer
        start, count = before(symbols, p), count_at(text, p)
        left, right = symbols[start], symbols[after(symbols, p)]
        if left != token and joinable(text, left, token):  # (token, token) is noted at the first
            _note(changes, _NEW, 2 * left, count)
            made[2 * n], made[2 * n + 1] = 2 * left, start
            n += 1
        if joinable(text, token, right):
            _note(changes, _NEW, 2 * right + 1, count)
            made[2 * n], made[2 * n + 1] = 2 * right + 1, p
            n += 1
    return made, n


@njit(types.Tuple((PAIRS, TABLE))(TEXT, PAIRS, types.int64, types.int64, types.boolean, TABLE))
def merge_pair(text: Any, pairs: Any, key: Any, product: Any, known: Any, changes: Any) -> Any:
    """Join all occurrences of a pair to `product`. (pairs, rows of the pairs that are new, -1 for those left out).

    known: the product is a token that may occur elsewhere. Then pairs with it that were left out count anew with all
    their occurrences. The table has room for two new pairs with each token there is. `changes` is `no_changes` before
    and after.
    """
    table, size, noted, used = pairs.table, len(pairs.table), changes.ctypes, pairs.used
    row = find(table.ctypes, size, key)
    start, stop = table[row + START], table[row + START] + table[row + SIZE]
    made = np.empty(4 * (stop - start), np.int32)
    n = _join_all(text, key, product, pairs.places.ctypes, start, stop, noted, made.ctypes)
    table[row + SIZE] = 0
    anew = known and used[LEAST] > 1
    if anew:
        _drop_gone(table.ctypes, size, noted, key)
        _forget(noted)
        made, n = _pairs_with(text, product, noted)
    rows = np.empty(changes[_NEW], np.int64)
    room = _take_rows(table.ctypes, size, used.ctypes, noted, product, anew, rows.ctypes)
    if used[PLACES] + room > len(pairs.places):
        pairs = _tidy(text, pairs, room)
    _make_room(table.ctypes, pairs.places.ctypes, used.ctypes, noted, rows.ctypes)
    _note_places(pairs.places.ctypes, noted, made.ctypes, n)
    _drop_gone(table.ctypes, size, noted, key)  # of new pairs too, in runs of what is merged
    _forget(noted)
    table[row + COUNT] = 0
    return pairs, rows


@njit(TABLE(types.int64))
def no_changes(tokens: Any) -> Any:
    """Room for the changes of a merge among so many tokens."""
    return np.zeros(_SUM + 2 * tokens * _CHANGE, np.int64)
