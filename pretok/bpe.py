"""Counts of words -> the merges of a byte-level BPE vocabulary.

Enters: distinct words as bytes in a row, and how often each occurs. Leaves: the merges that `tokenizers.BpeTrainer`
makes from text with these words, in its order, and the bytes of every token. The pair that occurs most often is
merged next; among equals, the pair with the smaller ids. The rules are those of
https://github.com/huggingface/tokenizers (models/bpe/trainer.rs), with counts of 64 bits.

All words lie in one array of cells: one per symbol, and one before, between and after words. A token begins at one
cell; the others it covers are dead, and lead to both of its ends. The occurrences of a pair are a linked list through
the cells where they begin. So adding or dropping an occurrence takes constant time wherever it lies, and a merge
costs what it changes, however long the words are.

Memory: 16 bytes for each symbol and each word, 8 for each count, and 50 to 120 for each distinct pair that occurs.
For words of ten bytes that is 18 bytes of cells per byte.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numba
import numpy as np
import numpy.typing as npt
from numba import types

from pretok._numba import I64, U8, njit
from pretok.errors import UsageError
from pretok.hashing import hash_bytes

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

ALPHABET = [*range(33, 127), *range(161, 173), *range(174, 256)]
ALPHABET += sorted({*range(256)} - {*ALPHABET})
"""The 256 bytes in the order of the characters that stand for them in byte-level vocabularies."""

NO_LIMIT = 2**62
MAX_CELLS = 2**31 - 1
MAX_OCCURRENCES = 2.0**62


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
_CELLS = _CELL[::1]
_TABLE = _PAIR[::1]
_U8 = types.uint8[::1]
_I32 = types.int32[::1]
_I64 = types.int64[::1]
_TEXT = types.NamedTuple((_CELLS, _TABLE, I64, _I64, types.int64), Text)
_ROWS = types.List(types.int64)
_HEAP = types.List(types.UniTuple(types.int64, 2))


@dataclass(frozen=True, slots=True)
class Merges:
    """What training made: merge k joins the tokens pairs[k] to the token products[k]."""

    pairs: npt.NDArray[np.int32]
    """(m, 2), the ids of the left and the right token."""
    products: npt.NDArray[np.int32]
    """[m], a new id, or that of an older token with the same bytes."""
    counts: npt.NDArray[np.int64]
    """[m], how often the pair occurred in the text when it was merged."""
    tokens: list[bytes]
    """The bytes of every id, initial and new."""

    def first(self, size: int) -> list[tuple[bytes, bytes]]:
        """The merges that `size` entries take, in order, as bytes; training for fewer entries makes the same beginning.

        A pair that was merged twice counts where it was merged last, as in `tokenizers`.
        """
        largest = np.maximum.accumulate(self.products)
        end = int(np.searchsorted(largest, size - 1))  # where the last of the entries is made
        end += end < len(largest) and int(largest[end]) < size
        kept: dict[tuple[bytes, bytes], None] = {}
        for left, right in self.pairs[:end].tolist():
            pair = self.tokens[left], self.tokens[right]
            kept.pop(pair, None)
            kept[pair] = None
        return list(kept)


@njit(types.int64(types.int64, types.int64), inline=True)
def _key(a: Any, b: Any) -> Any:
    """A pair as one integer; keys have the order of pairs."""
    return (a << 32) | b


@njit(types.int64(_TABLE, types.int64), inline=True)
def _find(table: Any, key: Any) -> Any:
    """The row of a pair, or the free row where it belongs."""
    mask = len(table) - 1
    mixed = np.uint64(key) * np.uint64(0x9E3779B97F4A7C15)
    row = np.int64(mixed >> np.uint64(32)) & mask
    while table[row].key != key and table[row].key != FREE:
        row = (row + 1) & mask
    return row


@njit(_TABLE(types.int64))
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


@njit(types.boolean(_TABLE, types.int64))
def _is_short(table: Any, rows: Any) -> Any:
    """Whether the table has too few rows to find pairs fast with `rows` of them in use."""
    return 3 * rows > 2 * len(table)


@njit(types.Tuple((_TABLE, types.int64))(_TABLE, types.int64))
def _renew(table: Any, reserve: Any) -> Any:
    """(table, rows in use) of the pairs that still occur, with room for `reserve` more."""
    used = 0
    for row in range(len(table)):
        used += table[row].first != NOWHERE
    renewed = _new_table(2 * (used + reserve))
    for row in range(len(table)):
        if table[row].first != NOWHERE:
            renewed[_find(renewed, table[row].key)] = table[row]
    return renewed, used


@njit(_HEAP(_TABLE))
def _heap_of(table: Any) -> Any:
    """(-count, key) of every pair that occurs, as a heap; the pair to merge next comes first."""
    heap = [(np.int64(0), np.int64(0)) for _ in range(0)]
    for row in range(len(table)):
        if table[row].count > 0:
            heap.append((-table[row].count, table[row].key))
    heapq.heapify(heap)
    return heap


@njit(types.int64(_CELLS, types.int64), inline=True)
def _after(cells: Any, p: Any) -> Any:
    """The cell after the token that begins at p."""
    if cells[p + 1].symbol == DEAD:
        return np.int64(cells[p + 1].next)
    return p + 1


@njit(types.int64(_CELLS, types.int64), inline=True)
def _before(cells: Any, p: Any) -> Any:
    """The cell where the token before p begins, or the boundary before p."""
    if cells[p - 1].symbol == DEAD:
        return np.int64(cells[p - 1].previous)
    return p - 1


@njit(types.boolean(_TEXT, types.int64, types.int64), inline=True)
def _joinable(text: Any, a: Any, b: Any) -> Any:
    """Whether the symbols of two neighbours are tokens, and light enough to be merged."""
    return a >= 0 and b >= 0 and text.weights[a] + text.weights[b] <= text.limit


@njit(types.int64(_TEXT, types.int64, types.int64, types.int64), inline=True)
def _link(text: Any, p: Any, a: Any, b: Any) -> Any:
    """Add the occurrence of the pair (a, b) at cell p; returns the pair's row."""
    cells, table = text.cells, text.table
    key = _key(a, b)
    row = _find(table, key)
    first = table[row].first
    if first != NOWHERE:
        cells[first].previous = p
    cells[p].next = first
    cells[p].previous = NOWHERE
    table[row].key = key
    table[row].first = p
    table[row].count += text.counts[cells[p].word]
    return row


@njit(types.void(_TEXT, types.int64, types.int64, types.int64), inline=True)
def _unlink(text: Any, p: Any, a: Any, b: Any) -> Any:
    """Drop the occurrence of the pair (a, b) at cell p."""
    cells, table = text.cells, text.table
    row = _find(table, _key(a, b))
    table[row].count -= text.counts[cells[p].word]
    following, previous = cells[p].next, cells[p].previous
    if following != NOWHERE:
        cells[following].previous = previous
    if previous != NOWHERE:
        cells[previous].next = following
    else:
        table[row].first = following


@njit(types.int64(_TEXT, types.int64, types.int64, types.int64, types.int64, _ROWS), inline=True)
def _link_new(text: Any, p: Any, a: Any, b: Any, merge: Any, touched: Any) -> Any:
    """_link, by merge number `merge`: notes the row if it is the merge's first there. Returns the rows taken."""
    row = _link(text, p, a, b)
    before = text.table[row].merge
    if before != merge:
        text.table[row].merge = merge
        touched.append(row)
    return np.int64(before == NEVER)


@njit(types.int64(_TEXT, types.int64, types.int64, types.int64, _ROWS))
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


@njit(types.int64(_TEXT, types.int64, types.int64, types.int64, _ROWS))
def _join_all(text: Any, key: Any, product: Any, merge: Any, touched: Any) -> Any:
    """Join all occurrences of a pair, overlapping ones from left to right; returns the rows of the table this takes.

    Only a pair of equal tokens overlaps itself, in a run of that token. A run is joined at once, from its beginning.
    """
    cells = text.cells
    a, b = key >> 32, key & 0xFFFFFFFF
    row = _find(text.table, key)
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


@njit(_CELLS(_I32, I64))
def _cells_of(symbols: Any, offsets: Any) -> Any:
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


@njit(types.Tuple((_TEXT, types.int64))(_CELLS, I64, _I64, types.int64))
def _text_of(cells: Any, counts: Any, weights: Any, limit: Any) -> Any:
    """(text, rows of its table in use). Backwards, so that a pair's occurrences are in the order of their cells."""
    text, used = Text(cells, _new_table(0), counts, weights, limit), 0
    for p in range(len(cells) - 2, 0, -1):
        a, b = cells[p].symbol, cells[p + 1].symbol
        if _joinable(text, a, b):
            if _is_short(text.table, used + 1):
                table, used = _renew(text.table, 1)
                text = Text(cells, table, counts, weights, limit)
            row = _link(text, p, a, b)
            used += text.table[row].merge == NEVER
            text.table[row].merge = 0
    return text, used


@njit(types.int64(U8, I64, _I32, types.int64))
def _register(data: Any, offsets: Any, index: Any, token: Any) -> Any:
    """The id of the bytes data[offsets[token]:offsets[token + 1]]: of an older token if one has them, else `token`."""
    start, size = offsets[token], offsets[token + 1] - offsets[token]
    mask = len(index) - 1
    slot = np.int64(hash_bytes(data.ctypes, start, start + size, np.uint64(0))) & mask
    while index[slot] >= 0:
        known = index[slot]
        other = offsets[known]
        if offsets[known + 1] - other == size:
            i = 0
            while i < size and data[other + i] == data[start + i]:
                i += 1
            if i == size:
                return np.int64(known)
        slot = (slot + 1) & mask
    index[slot] = token
    return token


@njit(_I32(U8, I64, types.int64, types.int64))
def _index_of(data: Any, offsets: Any, tokens: Any, room: Any) -> Any:
    """The hash table of _register, with the first `tokens` tokens that have bytes, and room for `room` in all."""
    capacity = 16
    while capacity < 2 * room:
        capacity *= 2
    index = np.full(capacity, -1, np.int32)
    for token in range(tokens):
        if offsets[token + 1] > offsets[token]:
            _register(data, offsets, index, token)
    return index


@njit(_U8(_U8, _I64, types.int64, types.int64))
def _write(data: Any, offsets: Any, key: Any, token: Any) -> Any:
    """Write the bytes of a pair behind those of the last token, as token `token`; returns `data`, moved if need be."""
    end = offsets[token]
    for part in (key >> 32, key & 0xFFFFFFFF):
        start, size = offsets[part], offsets[part + 1] - offsets[part]
        if end + size > len(data):
            moved = np.empty(2 * (end + size), np.uint8)
            moved[:end] = data[:end]
            data = moved
        for i in range(size):
            data[end + i] = data[start + i]
        end += size
    offsets[token + 1] = end
    return data


@njit(types.UniTuple(types.int64, 2)(_HEAP, _TABLE))
def _pop(heap: Any, table: Any) -> Any:
    """(count, key) of the pair to merge next, taken off the heap; (0, 0) if no pair is left.

    A pair's count may have fallen since it came on the heap; then the pair goes back with the count it has now. Where
    a count has risen, the pair is on the heap with that count too.
    """
    while len(heap) > 0:
        negative, key = heap[0]
        count = table[_find(table, key)].count
        if 0 < count < -negative:
            heapq.heapreplace(heap, (-count, key))
            continue
        heapq.heappop(heap)
        if count == -negative:
            return count, key
    return np.int64(0), np.int64(0)


@njit(
    types.Tuple((_I64, _I32, _I64, _U8))(
        _CELLS, I64, _I64, types.int64, _U8, _I64, types.int64, types.int64, types.int64
    )
)
def _merge(
    cells: Any,
    counts: Any,
    weights: Any,
    limit: Any,
    data: Any,
    offsets: Any,
    first: Any,
    last: Any,
    min_count: Any,
) -> Any:
    """(keys, products, counts, data) of the merges; new tokens are `first` to `last` - 1, at most.

    Token t is data[offsets[t]:offsets[t + 1]] and weighs weights[t]; these have room for the new tokens.
    """
    index = _index_of(data, offsets, first, last)
    keys, products, occurrences = [np.int64(0)], [np.int32(0)], [np.int64(0)]
    touched = [np.int64(0)]
    text, used = _text_of(cells, counts, weights, limit)
    heap = _heap_of(text.table)
    token, merge = first, 0
    while token < last:
        reserve = (
            2 * token + 1
        )  # a merge makes pairs of its product and one of the tokens, or twice the product
        if _is_short(text.table, used + reserve):
            table, used = _renew(text.table, reserve)
            text = Text(cells, table, counts, weights, limit)
            heap = _heap_of(table)
        count, key = _pop(heap, text.table)
        if count < min_count:
            break
        data = _write(data, offsets, key, token)
        product = _register(data, offsets, index, token)
        if product == token or key not in keys:
            keys.append(key)
            products.append(np.int32(product))
            occurrences.append(count)
        if product == token:
            weights[token] = weights[key >> 32] + weights[key & 0xFFFFFFFF]
            token += 1
        merge += 1
        touched.clear()
        used += _join_all(text, key, product, merge, touched)
        for row in touched:
            if text.table[row].count > 0:
                heapq.heappush(heap, (-text.table[row].count, text.table[row].key))
    return np.array(keys)[1:], np.array(products)[1:], np.array(occurrences)[1:], data[: offsets[token]]


def merge_sequences(
    symbols: npt.NDArray[np.int32],
    offsets: npt.NDArray[np.int64],
    counts: npt.NDArray[np.int64],
    tokens: Sequence[bytes],
    max_new: int,
    *,
    min_frequency: int = 0,
    weights: npt.NDArray[np.int64] | None = None,
    limit: int = NO_LIMIT,
) -> Merges:
    """BPE on sequences of the tokens 0 to len(tokens) - 1; new ones are numbered from there, `max_new` at most.

    Sequence w is symbols[offsets[w]:offsets[w + 1]] and occurs counts[w] times. `tokens` are the bytes of each id.
    Where the bytes of a pair are those of a token that exists, its merge gives that token. `weights`, int64[ids] (one
    each, if not given), add up when tokens are joined; a pair of a weight over `limit` is never joined. A pair that
    occurs less often than `min_frequency` is not joined either. Fewer merges than asked for are all there are.

    Raises UsageError for more text than fits.
    """
    if len(symbols) and not 0 <= symbols.min() <= symbols.max() < len(tokens):
        raise ValueError(f"symbols are ids from 0 to {len(tokens) - 1}")
    cells = _lay_out(symbols, offsets, counts)
    return _train(cells, counts, tokens, max_new, min_frequency, weights, limit)


def train_merges(
    data: npt.NDArray[np.uint8],
    offsets: npt.NDArray[np.int64],
    counts: npt.NDArray[np.int64],
    *,
    vocab_size: int,
    special_tokens: int,
    min_frequency: int = 0,
    max_token_length: int | None = None,
) -> Merges:
    """The merges of a vocabulary of `vocab_size` entries: special tokens, the 256 bytes (in order of ALPHABET), merges.

    Word w is data[offsets[w]:offsets[w + 1]], any bytes, and occurs counts[w] times in the text; words are distinct.
    `min_frequency` and `max_token_length` (in bytes) mean what they do to `tokenizers.BpeTrainer`, whose limit forbids
    tokens of just that length, but no pair of bytes. `special_tokens` is how many ids they take; in Merges.tokens
    they are b"", so that no merge gives a special token, even if its bytes are the same.

    Raises UsageError if the vocabulary does not hold even the bytes, and as `merge_sequences`.
    """
    tokens = [b""] * special_tokens + [bytes([byte]) for byte in ALPHABET]
    if vocab_size < len(tokens):
        raise UsageError(
            f"a vocabulary of {vocab_size:,} entries cannot hold {special_tokens} special tokens and the 256 bytes; "
            f"ask for at least {len(tokens)}"
        )
    ids = np.empty(256, np.int32)
    ids[ALPHABET] = np.arange(special_tokens, len(tokens))
    limit = NO_LIMIT if max_token_length is None else max(2, max_token_length - 1)
    cells = _lay_out(ids[data], offsets, counts)
    return _train(cells, counts, tokens, vocab_size - len(tokens), min_frequency, None, limit)


def _lay_out(
    symbols: npt.NDArray[np.int32], offsets: npt.NDArray[np.int64], counts: npt.NDArray[np.int64]
) -> npt.NDArray[Any]:
    """The cells of the words, of type CELL. Raises UsageError where 32 bits do not number them, or 64 bits count."""
    if len(offsets) != len(counts) + 1 or offsets[0] < 0 or offsets[-1] > len(symbols):
        raise ValueError("there is one offset more than counts, all within the symbols")
    size = int(offsets[-1] - offsets[0]) + len(offsets)
    if size > MAX_CELLS:
        raise UsageError(
            f"{len(counts):,} words of {size - len(offsets):,} bytes are too many to merge (words and bytes together: "
            f"{MAX_CELLS:,}); drop rare words with a greater min-count"
        )
    if counts.min(initial=0) < 0 or counts.astype(np.float64) @ np.diff(offsets) > MAX_OCCURRENCES:
        raise UsageError(
            "word counts must not be negative, nor add up to 2**62 bytes of text or more; scale the weights down"
        )
    cells: npt.NDArray[Any] = _cells_of(symbols, offsets)
    return cells


def _train(
    cells: npt.NDArray[Any],
    counts: npt.NDArray[np.int64],
    tokens: Sequence[bytes],
    max_new: int,
    min_frequency: int,
    weights: npt.NDArray[np.int64] | None,
    limit: int,
) -> Merges:
    first = len(tokens)
    last = first + min(max_new, len(cells))  # every merge joins at least two cells
    all_weights = np.ones(last, np.int64)
    if weights is not None:
        all_weights[:first] = weights
    all_offsets = np.zeros(last + 1, np.int64)
    np.cumsum([len(token) for token in tokens], out=all_offsets[1 : first + 1])
    data = np.frombuffer(bytearray(b"".join(tokens)), np.uint8)
    keys, products, occurrences, data = _merge(
        cells, counts, all_weights, limit, data, all_offsets, first, last, max(1, min_frequency)
    )
    pairs = np.stack([keys >> 32, keys & 0xFFFFFFFF], axis=1).astype(np.int32)
    made = int(max(first - 1, products.max(initial=first - 1))) + 1
    text = data.tobytes()
    all_tokens = [text[a:b] for a, b in pairwise(all_offsets[: made + 1].tolist())]
    return Merges(pairs, products, occurrences, all_tokens)
