"""The pairs of neighbours in a SymbolBuffer: which is merged next, and what a merge changes.

Input: a SymbolBuffer, then one pair at a time to merge. Output: the pairs that have become frequent. `bpe` has the
loop.

A hash table has a row for each pair, and the places of a pair are a run of positions in one array. The
merge that makes the newer token of a pair writes the run. It is read only when the pair is merged; the buffer shows
what has changed since. A merge of (a, b) changes four kinds of pairs, each identified by one other token x: (x, a),
(b, x), (x, product) and (product, x). The changes are summed up by x first, so the table is asked once per pair, not
once per occurrence, and a merge costs as much as it changes.

**Left out.** Most distinct pairs are too rare ever to be merged, and a pair's count only falls. So pairs far below what
the last merge will count, by a guess from the merges so far, are left out of the table, with their places. If the
merges do come down to these counts, all pairs of the text are counted again: the guess decides memory and time, but no
merge. A left-out pair gets new occurrences only where a merge gives an older token; the text is searched for these.

Memory: of the pairs that are not left out, 5 bytes for each occurrence and 48 to 96 for each distinct pair.
"""

from __future__ import annotations

import heapq
from typing import Any

import numpy as np
from numba import types

from pretok.kernels.compile import I64, njit
from pretok.kernels.eight_bytes import prefetch
from pretok.vocab.symbols import (
    HINT_BITS,
    I32,
    LONGS,
    POINTER,
    POINTER32,
    TEXT,
    SymbolBuffer,
    after,
    before,
    count_at,
    text_of,
)

FREE = -1
"""Key of a row of the pair table that is not in use."""
PAIR = 4
"""Integers in a row of the pair table."""
KEY, COUNT, START, SIZE = range(PAIR)
"""Fields of a row: both ids; how often the pair occurs in the text; where its run of places begins; how long it is."""
ROWS, PLACES, LIMIT, LEAST = range(4)
"""Fields of Pairs.used: rows in use; places in use; how many places there may be before stale ones are dropped; how
often a pair must occur not to be left out."""
_GONE, _NEW = 0, 3
"""The two kinds of changes of a merge: pairs with its left or right token that cease to occur, and pairs with the
product that begin to. Also the index, before all rows of the changes, of the number of slots with such a change."""
_CHANGE = 6
"""Integers in a row of the changes, which has three for each kind. There is a row for each slot (see `_key`)."""
_SUM, _NOTED, _SLOT = range(4, 7)
"""Fields of a row, which begins at _CHANGE x slot + kind: how often the change occurs; at how many positions, later
where the next of them is written; and, in the k-th row, the k-th slot with a change of the kind."""
_AHEAD = 8
"""How many occurrences ahead of the one that is joined the symbols are loaded."""

Entry = tuple[int, int, int]
"""(-count, key, where its row begins) of a pair. The smallest is merged next."""


class Pairs:
    """The pairs that occur in a buffer. used: see ROWS."""

    def __init__(self, buffer: SymbolBuffer, tokens: int) -> None:
        """Begin with the pairs of `buffer`. tokens: how many there will be, at most."""
        self._text = buffer.symbols, buffer.starts, buffer.hints, buffer.counts
        self._changes = np.zeros(_SUM + 2 * tokens * _CHANGE, np.int64)
        self._rows = np.empty(2 * tokens, np.int64)
        self.count_all()

    def count_all(self) -> None:
        """Count all pairs of the text as it is now; their places are in the order of the text."""
        # Free the old arrays before making the new ones.
        self._table, self._places = _new_table(0), np.empty(0, np.int32)
        self.used, p = np.zeros(4, np.int64), 1
        while p < len(self._text[0]) - 1:
            self.grow(int(self.used[ROWS]))
            p = _count_pairs(*self._text, p, self._table, self.used)
        rows = self._table.reshape(-1, PAIR)
        rows[:, START] = np.cumsum(rows[:, SIZE]) - rows[:, SIZE]
        self.used[PLACES] = rows[:, SIZE].sum()
        rows[:, SIZE] = 0
        self.used[LIMIT] = self.used[PLACES] * 5 // 4
        # A position is the place of one pair at most, so twice as many always suffice. Unused pages take no memory.
        self._places = np.empty(2 * len(self._text[0]), np.int32)
        _note_pairs(*self._text, self._table, self._places)

    def refresh(self, heap: list[Entry], floor: int) -> bool:
        """Bring the pair to merge next to the top of the heap; False if no pair that counts `floor` is left.

        If a pair's count has fallen since it was pushed, it is pushed again with its present count. If it has risen,
        the pair is on the heap with that count too.
        """
        while heap:
            negative, key, row = heap[0]
            count = self._table.item(row + COUNT)
            if count == -negative:
                return True
            if floor <= count < -negative:
                heapq.heapreplace(heap, (-count, key, row))
            else:
                heapq.heappop(heap)
        return False

    def drop(self, row: int) -> None:
        """Keep the pair in a row unmerged."""
        self._table[row + COUNT] = 0

    def frequent(self) -> tuple[list[Entry], int]:
        """Return (a heap of the most frequent pairs, the smallest count on it); empty if all pairs are to be left out.

        The smallest count is half of the greatest: so the heap stays short, and the counts must halve before it is
        built anew.
        """
        rows = self._table.reshape(-1, PAIR)
        floor = max(1, int(self.used[LEAST]), int(rows[:, COUNT].max()) // 2)
        at = np.flatnonzero(rows[:, COUNT] >= floor)
        heap = list(
            zip((-rows[at, COUNT]).tolist(), rows[at, KEY].tolist(), (PAIR * at).tolist(), strict=True)
        )
        heapq.heapify(heap)
        return heap, floor

    def grow(self, reserve: int) -> bool:
        """Make room for `reserve` more rows; True if rows have moved. Pairs that no longer occur are dropped."""
        if 3 * PAIR * (self.used[ROWS] + reserve) <= 2 * len(self._table):
            return False
        self._table = _renew(self._table, self.used, reserve)
        return True

    def merge(self, row: int, product: int, known: bool, floor: int) -> list[Entry]:
        """Join all occurrences of the pair in a row; returns the new pairs that occur `floor` times.

        known: whether the product is an older token, which may occur elsewhere.
        """
        more = self._rows[
            : _merge_pair(
                *self._text,
                *(self._table, self._places, self.used, self._changes, self._rows),
                *(row, product, known, floor),
            )
        ]
        return [(-self._table.item(at + COUNT), self._table.item(at + KEY), at) for at in more.tolist()]


@njit(
    types.int64(
        *(I32, I32, I32, I64, LONGS, I32, LONGS, LONGS, LONGS),
        *(types.int64, types.int64, types.boolean, types.int64),
    )
)
def _merge_pair(
    symbols: Any, starts: Any, hints: Any, counts: Any, table: Any, places: Any, used: Any, changes: Any, rows: Any,
    row: Any, product: Any, known: Any, floor: Any,
) -> Any:  # fmt: skip
    """Join all occurrences of the pair in `row` to `product`.

    Returns n; the first n of `rows` are then the rows of the new pairs that occur `floor` times.

    known: the product is an older token that may occur elsewhere. Then all occurrences of the pairs with it are counted
    again, as some were left out. The table has room for two new pairs with each token. `changes` is all zeros before
    and after.
    """
    text = text_of(len(symbols), symbols.ctypes, starts.ctypes, hints.ctypes, counts.ctypes)
    size, key, noted, pairs = len(table), table[row + KEY], changes.ctypes, table.ctypes
    # 1. In the text: join, and sum up by token which pairs are gone and which are new.
    start, stop = table[row + START], table[row + START] + table[row + SIZE]
    # Joining one occurrence makes at most two pairs, each of two integers.
    made = np.empty(4 * (stop - start), np.int32)
    n = _join_all(text, key, product, places.ctypes, start, stop, noted, made.ctypes)
    # Its places are used up: `_tidy` drops them.
    table[row + SIZE] = 0
    # 2. Left-out pairs with an older product may have become frequent: count all occurrences of its pairs.
    if known:
        _drop_gone(pairs, size, noted, key)
        _forget(noted)
        made, n = _pairs_with(text, product, noted)
    # 3. In the table: a row and a run of places for each new pair that is frequent enough.
    new = changes[_NEW]
    room = _take_rows(pairs, size, used.ctypes, noted, product, rows.ctypes)
    if used[PLACES] + room > used[LIMIT]:
        _tidy(text, pairs, size, places.ctypes, used.ctypes)
        # A quarter more until the next time: tidying then costs a constant share of noting places.
        used[LIMIT] = used[PLACES] + used[PLACES] // 4 + room
    _make_room(pairs, used.ctypes, noted, rows.ctypes)
    _note_places(places.ctypes, noted, made.ctypes, n)
    # 4. Subtract what is gone, last: in a run such as aaaa, a pair that was just made may be gone again.
    _drop_gone(pairs, size, noted, key)
    _forget(noted)
    table[row + COUNT] = 0
    frequent = 0
    for k in range(new):
        if rows[k] >= 0 and table[rows[k] + COUNT] >= floor:
            rows[frequent] = rows[k]
            frequent += 1
    return frequent


@njit(types.int64(TEXT, types.int64, types.int64, POINTER32, types.int64, types.int64, POINTER, POINTER32))
def _join_all(
    text: Any, key: Any, product: Any, places: Any, start: Any, stop: Any, changes: Any, made: Any
) -> Any:
    """Join all occurrences of a pair, overlapping ones from left to right; returns the number of new pairs in `made`.

    Only a pair of equal tokens overlaps itself, in a run of that token. A run is joined whole, from its beginning.
    """
    symbols = text.symbols
    a, b = key >> 32, key & 0xFFFFFFFF
    n = 0
    for k in range(start, stop):
        # What count_at reads is a chain: the hint names the run. So the hint is asked for in a first step,
        # and when it is here, its run in a second one.
        far = np.int64(places[min(k + 2 * _AHEAD, stop - 1)])
        near = np.int64(places[min(k + _AHEAD, stop - 1)])
        prefetch(symbols, far)
        prefetch(text.hints, far >> HINT_BITS)
        run = np.int64(text.hints[near >> HINT_BITS])
        prefetch(text.starts, run)
        prefetch(text.counts, run)
        # The place was noted when its pair was made. A later merge may have taken one of the two tokens.
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


@njit(types.int64(TEXT, types.int64, types.int64, POINTER, POINTER32, types.int64), inline=True)
def _join(text: Any, p: Any, product: Any, changes: Any, made: Any, n: Any) -> Any:
    """Join the token at p and the next one.

    Appends slot and position of the new pairs to the `n` in `made`; returns the new n.
    """
    symbols = text.symbols
    q = after(symbols, p)
    start, end = before(symbols, p), after(symbols, q)
    left, right = symbols[start], symbols[end]
    count = count_at(text, p)
    # (left, a) and (b, right) end here. The caller sets the count of (a, b) itself to 0.
    if left >= 0:
        _note(changes, _GONE, 2 * left, count)
    if right >= 0:
        _note(changes, _GONE, 2 * right + 1, count)
    # The product begins at p. Its negative length goes where its neighbours look for it, after its first position and
    # at its last one, and where b began, so that a place noted for (b, right) no longer finds b.
    symbols[p] = product
    symbols[q] = symbols[p + 1] = symbols[end - 1] = p - end
    if left >= 0:
        slot = 2 * left + (left == product)  # (product, product) would have two slots; the odd one is used
        _note(changes, _NEW, slot, count)
        made[2 * n], made[2 * n + 1] = slot, start
        n += 1
    if right >= 0:
        _note(changes, _NEW, 2 * right + 1, count)
        made[2 * n], made[2 * n + 1] = 2 * right + 1, p
        n += 1
    return n


@njit(types.void(POINTER, types.int64, types.int64, types.int64), inline=True)
def _note(changes: Any, kind: Any, slot: Any, count: Any) -> Any:
    """Note a change of a kind at one position, which occurs `count` times in the text."""
    at = _CHANGE * slot + kind
    # The first change of its slot: list the slot, so that nobody looks through all of them.
    if changes[at + _NOTED] == 0:
        changes[_CHANGE * changes[kind] + kind + _SLOT] = slot
        changes[kind] += 1
    changes[at + _NOTED] += 1
    changes[at + _SUM] += count


@njit(types.Tuple((I32, types.int64))(TEXT, types.int64, POINTER))
def _pairs_with(text: Any, token: Any, changes: Any) -> Any:
    """Note all pairs with a token as new, as if all its occurrences had just been made.

    Returns (`made` as in `_join_all`, the number of new pairs in it).
    """
    symbols = text.symbols
    made, n = np.empty(1024, np.int32), 0
    for p in range(1, text.size - 1):
        if symbols[p] != token:
            continue
        if 2 * n + 4 > len(made):
            longer = np.empty(2 * len(made), np.int32)
            for i in range(2 * n):
                longer[i] = made[i]
            made = longer
        start, count = before(symbols, p), count_at(text, p)
        left, right = symbols[start], symbols[after(symbols, p)]
        if left >= 0 and left != token:  # (token, token) is noted as the right pair of its first token
            _note(changes, _NEW, 2 * left, count)
            made[2 * n], made[2 * n + 1] = 2 * left, start
            n += 1
        if right >= 0:
            _note(changes, _NEW, 2 * right + 1, count)
            made[2 * n], made[2 * n + 1] = 2 * right + 1, p
            n += 1
    return made, n


@njit(types.int64(types.int64, types.int64, types.int64), inline=True)
def _key(slot: Any, left: Any, right: Any) -> Any:
    """Return the pair of a slot as one integer. Keys sort as pairs do.

    Slot 2 x token is (token, right), 2 x token + 1 is (left, token).
    """
    token = slot >> 1
    if slot & 1:
        return (left << 32) | token
    return (token << 32) | right


@njit(types.int64(POINTER, types.int64, POINTER, POINTER, types.int64, POINTER))
def _take_rows(table: Any, size: Any, used: Any, changes: Any, product: Any, rows: Any) -> Any:
    """Find a row for each new pair and write it to `rows`, -1 for a pair that is left out.

    Returns how many places all take. The row of a pair that is in the table already, with an older product, begins at
    0: the changes hold all its occurrences.
    """
    room = 0
    for k in range(changes[_NEW]):
        slot = changes[_CHANGE * k + _NEW + _SLOT]
        key, change = _key(slot, product, product), _CHANGE * slot + _NEW
        row = _find(table, size, key)
        if table[row + KEY] != FREE:
            table[row + COUNT] = table[row + SIZE] = 0
        elif changes[change + _SUM] >= used[LEAST]:
            table[row + KEY] = key
            used[ROWS] += 1
        else:
            rows[k] = -1
            continue
        rows[k] = row
        room += changes[change + _NOTED]
    return room


@njit(types.void(POINTER, POINTER, POINTER, POINTER))
def _make_room(table: Any, used: Any, changes: Any, rows: Any) -> Any:
    """Give each new pair its run of places."""
    for k in range(changes[_NEW]):
        row, change = rows[k], _CHANGE * changes[_CHANGE * k + _NEW + _SLOT] + _NEW
        if row < 0:
            changes[change + _NOTED] = -1
            continue
        at = used[PLACES]
        table[row + START] = at
        table[row + SIZE] = changes[change + _NOTED]
        table[row + COUNT] = changes[change + _SUM]
        used[PLACES] = at + table[row + SIZE]
        # From here on it is where `_note_places` writes the next position of the pair.
        changes[change + _NOTED] = at


@njit(types.void(POINTER32, POINTER, POINTER32, types.int64))
def _note_places(places: Any, changes: Any, made: Any, n: Any) -> Any:
    """Write the positions of the `n` new pairs in `made` into their runs."""
    for k in range(n):
        at = _CHANGE * made[2 * k] + _NEW + _NOTED
        # -1: `_make_room` has no run for a pair that is left out.
        if changes[at] >= 0:
            places[changes[at]] = made[2 * k + 1]
            changes[at] += 1


@njit(types.void(POINTER, types.int64, POINTER, types.int64))
def _drop_gone(table: Any, size: Any, changes: Any, key: Any) -> Any:
    """Subtract the removed pairs from the pairs with the left or the right token of the merge."""
    for k in range(changes[_GONE]):
        slot = changes[_CHANGE * k + _GONE + _SLOT]
        row = _find(table, size, _key(slot, key & 0xFFFFFFFF, key >> 32))
        # A pair that is left out has no row.
        if table[row + KEY] != FREE:
            table[row + COUNT] -= changes[_CHANGE * slot + _GONE + _SUM]


@njit(types.void(POINTER))
def _forget(changes: Any) -> Any:
    """Set all changes back to 0."""
    for kind in (_GONE, _NEW):
        for k in range(changes[kind]):
            at = _CHANGE * changes[_CHANGE * k + kind + _SLOT] + kind
            changes[at + _SUM] = changes[at + _NOTED] = 0
        changes[kind] = 0


@njit(types.void(TEXT, POINTER, types.int64, POINTER32, POINTER))
def _tidy(text: Any, table: Any, size: Any, places: Any, used: Any) -> Any:
    """Drop the places where pairs no longer occur."""
    symbols, least = text.symbols, max(1, used[LEAST])
    # Runs move to the front in their order, so none is overwritten before it is read. To meet them in this order, the
    # first place of each is put into its row, and the number of the row takes its place, negative as a mark.
    row: Any
    for row in range(0, size, PAIR):
        if table[row + SIZE] > 0:
            start = table[row + START]
            table[row + START] = places[start]
            places[start] = -1 - row // PAIR
    at = end = np.int64(0)
    while at < used[PLACES]:
        if places[at] >= 0:  # its pair was merged or is gone
            at += 1
            continue
        row = PAIR * (-1 - int(places[at]))
        places[at] = table[row + START]
        stop = at + table[row + SIZE]
        a, b = table[row + KEY] >> 32, table[row + KEY] & 0xFFFFFFFF
        table[row + START] = end
        if table[row + COUNT] >= least:
            for k in range(at, stop):
                p = places[k]
                if symbols[p] == a and symbols[after(symbols, p)] == b:
                    places[end] = p
                    end += 1
        table[row + SIZE] = end - table[row + START]
        at = stop
    used[PLACES] = end


@njit(types.int64(I32, I32, I32, I64, types.int64, LONGS, LONGS))
def _count_pairs(symbols: Any, starts: Any, hints: Any, counts: Any, p: Any, table: Any, used: Any) -> Any:
    """Count pairs from position p on; returns the position where the table became too small, or the last one."""
    text, rows, size = (
        text_of(len(symbols), symbols.ctypes, starts.ctypes, hints.ctypes, counts.ctypes),
        table.ctypes,
        len(table),
    )
    # At most two thirds of the rows are in use, so that every search meets a free one soon.
    while p < text.size - 1 and 3 * PAIR * (used[ROWS] + 1) <= 2 * size:
        key = _pair_at(text, p)
        if key != FREE:
            row = _find(rows, size, key)
            if table[row + KEY] == FREE:
                table[row + KEY] = key
                used[ROWS] += 1
            table[row + COUNT] += count_at(text, p)
            table[row + SIZE] += 1
        p = after(text.symbols, p)
    return p


@njit(types.void(I32, I32, I32, I64, LONGS, I32))
def _note_pairs(symbols: Any, starts: Any, hints: Any, counts: Any, table: Any, places: Any) -> Any:
    """Write the position of each pair into its run."""
    text, p = text_of(len(symbols), symbols.ctypes, starts.ctypes, hints.ctypes, counts.ctypes), np.int64(1)
    while p < text.size - 1:
        key = _pair_at(text, p)
        if key != FREE:
            row = _find(table.ctypes, len(table), key)
            places[table[row + START] + table[row + SIZE]] = p
            table[row + SIZE] += 1
        p = after(text.symbols, p)


@njit(types.int64(TEXT, types.int64), inline=True)
def _pair_at(text: Any, p: Any) -> Any:
    """Return the pair whose left token begins at p, or FREE if there is none."""
    a, b = np.int64(text.symbols[p]), np.int64(text.symbols[after(text.symbols, p)])
    return (a << 32) | b if a >= 0 and b >= 0 else FREE


@njit(types.int64(POINTER, types.int64, types.int64), inline=True)
def _find(table: Any, size: Any, key: Any) -> Any:
    """Return where in a table of `size` integers the row of a pair begins, or the free row where it belongs."""
    mask = size - 1
    # Both ids reach the upper half of the product, but only the right one the lower half.
    mixed = np.uint64(key) * np.uint64(0x9E3779B97F4A7C15)
    row = PAIR * np.int64(mixed >> np.uint64(32)) & mask
    while table[row + KEY] != key and table[row + KEY] != FREE:
        row = (row + PAIR) & mask
    return row


@njit(LONGS(types.int64))
def _new_table(rows: Any) -> Any:
    """Return a table of at least `rows` rows, all free."""
    capacity = 1024
    # A power of two, as `_find` masks positions.
    while capacity < rows:
        capacity *= 2
    table = np.zeros(PAIR * capacity, np.int64)
    for row in range(0, len(table), PAIR):
        table[row + KEY] = FREE
    return table


@njit(LONGS(LONGS, LONGS, types.int64))
def _renew(table: Any, used: Any, reserve: Any) -> Any:
    """Return a table of the pairs that still occur often enough, with room for `reserve` more."""
    least = max(1, used[LEAST])
    used[ROWS] = 0
    for row in range(0, len(table), PAIR):
        # A free row counts 0, less than `least`.
        used[ROWS] += table[row + COUNT] >= least
    # Half full at most: then it lasts until two thirds are in use (`grow`).
    renewed = _new_table(2 * (used[ROWS] + reserve))
    for row in range(0, len(table), PAIR):
        if table[row + COUNT] >= least:
            to = _find(renewed.ctypes, len(renewed), table[row + KEY])
            for field in range(PAIR):
                renewed[to + field] = table[row + field]
    return renewed
