"""Counts of words -> the merges of a byte-level BPE vocabulary.

Input: distinct words as a SymbolBuffer. Output: the merges that `tokenizers.BpeTrainer` makes from text with these
words, in its order, and the bytes of every token. The pair that occurs most often is merged next; among equals, the
pair with the smaller ids. The rules are those of https://github.com/huggingface/tokenizers (models/bpe/trainer.rs),
with counts of 64 bits.

From top to bottom: what callers see; the loop over merges; the merge of one pair; the pairs that merging begins with;
the table of pairs.

**Pairs.** A table has a row for each pair that occurs, and all its occurrences are a run of positions in one array. A
run is made at once, by the merge that makes the newer of the pair's tokens, and only read when the pair is merged: what
has changed since is seen in the buffer. A merge of (a, b) changes pairs of four kinds, each known by one other token x:
(x, a), (b, x), (x, product) and (product, x). It adds up by that token what is gone and what is new, so that the table
is asked once for each pair, not for each occurrence; and what a merge costs is what it changes.

**Left out.** Most distinct pairs are too rare to be merged ever, and a pair's count only falls. So those far below what
the last merge will count, by a guess from the merges so far, are left out of the table, with their places. Should the
merges come down to the counts of what was left out, all pairs of the text as it then stands are counted: the guess
decides memory and time, and never a merge. Only where a merge gives a token that there is already, further occurrences
of such a pair can be made: the text is searched for them.

Memory: that of `symbols`; 5 bytes for each occurrence of a pair, and 64 to 132 for each distinct pair, of those that
are not left out. The words themselves are not needed once they are laid out, so the caller can let go of them.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from numba import types

from pretok.base.errors import UsageError
from pretok.kernels.compile import I64, U8, njit
from pretok.kernels.eight_bytes import prefetch_i32, prefetch_i64
from pretok.kernels.hashing import hash_bytes
from pretok.tokenizer.tokenizer_file import ALPHABET
from pretok.vocab import few
from pretok.vocab.symbols import (
    BOUNDARY,
    HINT_BITS,
    I32,
    POINTER,
    POINTER32,
    TEXT,
    BufferWriter,
    SymbolBuffer,
    after,
    before,
    count_at,
    joinable,
    text_of,
)

NO_LIMIT = 2**62
EASE = 16.0
"""Pairs are left out below this part of what the last merge would count if merge k counted 1/k of the first. On 284 MB
of text and 50,000 entries the guess is 1.1 to 7.1 times what the last merge does count."""

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
_SUM, _NOTED, _SLOT = range(4, 7)
"""Places in a row, which begins at _CHANGE x slot + kind: how often; at how many positions, later where the next of
them is noted; and, in the k-th row, the k-th slot with a change of the kind."""
_AHEAD = 8
"""How many occurrences ahead of the one that is joined the symbols are loaded."""

_I64 = types.int64[::1]
_U8 = types.uint8[::1]
TABLE = _I64
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


def train_merges(
    buffer: SymbolBuffer,
    *,
    vocab_size: int,
    special_tokens: int,
    min_frequency: int = 0,
    max_token_length: int | None = None,
) -> Merges:
    """The merges of a vocabulary of `vocab_size` entries: special tokens, the 256 bytes (in order of ALPHABET), merges.

    `buffer`: distinct words as `buffer_of` gives them, which are used up.
    `min_frequency` and `max_token_length` (in bytes) mean what they do to `tokenizers.BpeTrainer`, whose limit forbids
    tokens of just that length, but no pair of bytes. `special_tokens` is how many ids they take; in Merges.tokens
    they are b"". So a merge that spells a special token makes a token of its own, where `tokenizers` reuses the
    special one's id; such a name is for the caller to refuse.

    Raises UsageError if the vocabulary does not hold even the bytes.
    """
    wanted = vocab_size - special_tokens - len(ALPHABET)
    if wanted < 0:
        raise UsageError(
            f"a vocabulary of {vocab_size:,} entries cannot hold {special_tokens} special tokens and the 256 bytes; "
            f"ask for at least {vocab_size - wanted}"
        )
    limit = NO_LIMIT if max_token_length is None else max(2, max_token_length - 1)
    merges = _train(buffer, [bytes([byte]) for byte in ALPHABET], wanted, min_frequency, None, limit, EASE, 0)
    return Merges(
        merges.pairs + np.int32(special_tokens),
        merges.products + np.int32(special_tokens),
        merges.counts,
        [b""] * special_tokens + merges.tokens,
    )


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
    ease: float = math.inf,
) -> Merges:
    """BPE on sequences of the tokens 0 to len(tokens) - 1; new ones are numbered from there, `max_new` at most.

    Sequence w is symbols[offsets[w]:offsets[w + 1]] and occurs counts[w] times. `tokens` are the bytes of each id.
    Where the bytes of a pair are those of a token that exists, its merge gives that token. `weights`, int64[ids] (one
    each, if not given), add up when tokens are joined; a pair of a weight over `limit` is never joined. A pair that
    occurs less often than `min_frequency` is not joined either. Fewer merges than asked for are all there are. `ease`:
    as EASE, for texts in which few merges give a token that exists, as each of these has to search the text; the merges
    do not depend on it.

    Raises UsageError for more text than fits.
    """
    if len(symbols) and not 0 <= symbols.min() <= symbols.max() < len(tokens):
        raise ValueError(f"symbols are ids from 0 to {len(tokens) - 1}")
    writer = BufferWriter()
    writer.add_tokens(symbols, offsets, counts)
    return _train(writer.buffer(), tokens, max_new, min_frequency, weights, limit, ease, 0)


def extend_merges(
    buffer: SymbolBuffer, tokens: Sequence[bytes], apart: npt.NDArray[np.bool_], max_new: int
) -> Merges:
    """BPE that goes on where an old vocabulary stopped; new tokens are numbered from len(tokens) on.

    `buffer`: words as the old vocabulary cuts them into the tokens 0 to len(tokens) - 1, which is used up; `tokens`:
    the bytes of each, b"" for one that no text spells; `apart`, bool[ids]: those that are never joined. A pair that
    spells an old token is not joined either: its merge would change the ids of text without new tokens.
    """
    return _train(buffer, tokens, max_new, 0, apart.astype(np.int64), 0, EASE, len(tokens))


def _train(
    buffer: SymbolBuffer,
    tokens: Sequence[bytes],
    max_new: int,
    min_frequency: int,
    weights: npt.NDArray[np.int64] | None,
    limit: int,
    ease: float,
    closed: int,
) -> Merges:
    if buffer.symbols.min() < BOUNDARY:
        raise ValueError("this buffer was merged already; lay the words out again")
    first = len(tokens)
    last = first + min(max_new, len(buffer.symbols))  # every merge joins at least two symbols
    all_weights = np.ones(last, np.int64)
    if weights is not None:
        all_weights[:first] = weights
    if few.is_few(buffer):
        found = few.merge_few(buffer, tokens, all_weights, limit, last, max(1, min_frequency), closed)
        return Merges(
            np.array(found[0], np.int32).reshape(-1, 2),
            np.array(found[1], np.int32),
            np.array(found[2], np.int64),
            found[3],
        )
    all_offsets = np.zeros(last + 1, np.int64)
    np.cumsum([len(token) for token in tokens], out=all_offsets[1 : first + 1])
    data = np.frombuffer(b"".join(tokens), np.uint8).copy()
    text = buffer.symbols, buffer.starts, buffer.hints, buffer.counts
    keys, products, occurrences, data = _merge(
        *text, all_weights, limit, data, all_offsets, first, last, max(1, min_frequency), ease, closed
    )
    pairs = np.stack([keys >> 32, keys & 0xFFFFFFFF], axis=1).astype(np.int32)
    made = int(max(first - 1, products.max(initial=first - 1))) + 1
    spelled = data.tobytes()
    all_tokens = [spelled[a:b] for a, b in pairwise(all_offsets[: made + 1].tolist())]
    return Merges(pairs, products, occurrences, all_tokens)


class Pairs(NamedTuple):
    """The pairs that occur in a text."""

    table: Any
    """int64[PAIR x rows], a hash table by key."""
    places: Any
    """int32: a run of positions for each pair, where its left token began when the run was noted."""
    used: Any
    """int64[3], how many rows and places are in use, and how often a pair must occur not to be left out."""


PAIRS = types.NamedTuple((TABLE, I32, types.int64[::1]), Pairs)


@njit(
    types.Tuple((_I64, I32, _I64, _U8))(
        I32,
        I32,
        I32,
        I64,
        _I64,
        types.int64,
        _U8,
        _I64,
        types.int64,
        types.int64,
        types.int64,
        types.float64,
        types.int64,
    )
)
def _merge(
    symbols: Any,
    starts: Any,
    hints: Any,
    counts: Any,
    weights: Any,
    limit: Any,
    data: Any,
    offsets: Any,
    first: Any,
    last: Any,
    min_count: Any,
    ease: Any,
    closed: Any,
) -> Any:
    """(keys, products, counts, data) of the merges; new tokens are `first` to `last` - 1, at most.

    Token t is data[offsets[t]:offsets[t + 1]] and weighs weights[t]; these have room for the new tokens. `ease`: as
    EASE, or infinite, which leaves nothing out. A pair that spells one of the first `closed` tokens is left alone.
    """
    index = _index_of(data, offsets, first, last)
    # The first of each list is of no merge: it gives the list its type.
    keys, products, occurrences = [np.int64(-1)], [np.int32(0)], [np.int64(0)]
    text = text_of(
        len(symbols), symbols.ctypes, starts.ctypes, hints.ctypes, counts.ctypes, weights.ctypes, limit
    )
    pairs, changes = _pairs_of(text), _no_changes(last)
    heap = _heap_of(pairs.table)
    token = first
    while token < last:
        # A merge makes two new pairs with each token at most: the product before it and after it. So with that much
        # room the table need not grow while a pair is merged. Growing drops pairs that have ended, and moves rows.
        reserve = 2 * token + 1
        if _is_short(len(pairs.table), pairs.used[ROWS] + reserve):
            pairs = _renew(pairs, reserve)
            heap = _heap_of(pairs.table)
        count, key = _pop(heap, pairs.table)
        # Below LEAST a pair that was left out may be more frequent than this one, so all are counted again, nothing
        # being left out from here on.
        if count < max(min_count, pairs.used[LEAST]):
            if pairs.used[LEAST] <= min_count:
                break
            pairs, ease = _no_pairs(), np.inf  # the old ones go before the new ones come
            pairs = _pairs_of(text)
            heap = _heap_of(pairs.table)
            continue
        guess = count * ((token - first + 1) / (last - first)) / ease
        pairs.used[LEAST] = max(pairs.used[LEAST], np.int64(guess))
        # Tokens are known by their bytes: where the pair spells an older token, that one is the product.
        data = _write(data, offsets, key, token)
        product = _register(data, offsets, index, token)
        if product < closed:  # the pair is off the heap, where only a pair that gains occurrences comes back
            continue
        # Only a pair with an older product can come back after it was merged; it is listed once.
        if product == token or key not in keys:
            keys.append(key)
            products.append(np.int32(product))
            occurrences.append(count)
        known = product != token
        if not known:
            weights[token] = weights[key >> 32] + weights[key & 0xFFFFFFFF]
            token += 1
        pairs, rows = _merge_pair(text, pairs, key, product, known, changes)
        # Counts only fall but for these, so each pair is on the heap with its count or a greater one.
        for row in rows:
            if row >= 0 and pairs.table[row + COUNT] > 0:
                heapq.heappush(heap, (-pairs.table[row + COUNT], pairs.table[row + KEY]))
    made = np.array(keys)[1:], np.array(products)[1:], np.array(occurrences)[1:]
    return made[0], made[1], made[2], data[: offsets[token]]


@njit(_HEAP(TABLE))
def _heap_of(table: Any) -> Any:
    """(-count, key) of every pair that occurs, as a heap; the pair to merge next comes first."""
    heap = [(np.int64(0), np.int64(0)) for _ in range(0)]
    for row in range(0, len(table), PAIR):
        if table[row + COUNT] > 0:
            heap.append((-table[row + COUNT], table[row + KEY]))
    heapq.heapify(heap)
    return heap


@njit(types.UniTuple(types.int64, 2)(_HEAP, TABLE))
def _pop(heap: Any, table: Any) -> Any:
    """(count, key) of the pair to merge next, taken off the heap; (0, 0) if no pair is left.

    A pair's count may have fallen since it came on the heap; then the pair goes back with the count it has now. Where
    a count has risen, the pair is on the heap with that count too.
    """
    while len(heap) > 0:
        negative, key = heap[0]
        count = table[_find(table.ctypes, len(table), key) + COUNT]
        if 0 < count < -negative:
            heapq.heapreplace(heap, (-count, key))
            continue
        heapq.heappop(heap)
        if count == -negative:
            return count, key
    return np.int64(0), np.int64(0)


@njit(_U8(_U8, _I64, types.int64, types.int64))
def _write(data: Any, offsets: Any, key: Any, token: Any) -> Any:
    """Write the bytes of a pair behind those of the last token, as token `token`; returns `data`, moved if need be."""
    end = offsets[token]
    for part in (key >> 32, key & 0xFFFFFFFF):
        start, size = offsets[part], offsets[part + 1] - offsets[part]
        if end + size > len(data):
            moved = np.empty(2 * (end + size), np.uint8)
            for i in range(end):
                moved[i] = data[i]
            data = moved
        for i in range(size):
            data[end + i] = data[start + i]
        end += size
    offsets[token + 1] = end
    return data


@njit(types.int64(U8, I64, I32, types.int64))
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


@njit(I32(U8, I64, types.int64, types.int64))
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


@njit(types.Tuple((PAIRS, TABLE))(TEXT, PAIRS, types.int64, types.int64, types.boolean, TABLE))
def _merge_pair(text: Any, pairs: Any, key: Any, product: Any, known: Any, changes: Any) -> Any:
    """Join all occurrences of a pair to `product`. (pairs, rows of the pairs that are new, -1 for those left out).

    known: the product is a token that may occur elsewhere. Then pairs with it that were left out count anew with all
    their occurrences. The table has room for two new pairs with each token there is. `changes` is `_no_changes` before
    and after.
    """
    table, size, noted, used = pairs.table, len(pairs.table), changes.ctypes, pairs.used
    # 1. In the text: join, and add up by token what is gone and what is new.
    row = _find(table.ctypes, size, key)
    start, stop = table[row + START], table[row + START] + table[row + SIZE]
    made = np.empty(4 * (stop - start), np.int32)
    n = _join_all(text, key, product, pairs.places.ctypes, start, stop, noted, made.ctypes)
    table[row + SIZE] = 0
    # 2. Of an older product, pairs that were left out may have become frequent: count them with all occurrences.
    anew = known and used[LEAST] > 1
    if anew:
        _drop_gone(table.ctypes, size, noted, key)
        _forget(noted)
        made, n = _pairs_with(text, product, noted)
    # 3. In the table: a row and a run of places for each new pair that is frequent enough.
    rows = np.empty(changes[_NEW], np.int64)
    room = _take_rows(table.ctypes, size, used.ctypes, noted, product, anew, rows.ctypes)
    if used[PLACES] + room > len(pairs.places):
        pairs = _tidy(text, pairs, room)
    _make_room(table.ctypes, pairs.places.ctypes, used.ctypes, noted, rows.ctypes)
    _note_places(pairs.places.ctypes, noted, made.ctypes, n)
    # 4. What is gone, last: in a run such as aaaa a pair that has just been made may be gone again.
    _drop_gone(table.ctypes, size, noted, key)
    _forget(noted)
    table[row + COUNT] = 0
    return pairs, rows


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
        # A place was noted when its pair was made. A merge since then may have taken one of the two tokens.
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
    """Join the token at p and the next one; appends slot and position of the new pairs to the `n` in `made`."""
    symbols = text.symbols
    q = after(symbols, p)
    start, end = before(symbols, p), after(symbols, q)
    a, b, left, right = symbols[p], symbols[q], symbols[start], symbols[end]
    count = count_at(text, p)
    # (left, a) and (b, right) end here; for (a, b) itself the caller sees to it.
    if joinable(text, left, a):
        _note(changes, _GONE, 2 * left, count)
    if joinable(text, b, right):
        _note(changes, _GONE, 2 * right + 1, count)
    # The product begins at p. Its length, negative, stands after its first position and at its last, where its
    # neighbours look for it; and where b began, so that a place noted for (b, right) does not find b any more.
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


@njit(types.void(POINTER, types.int64, types.int64, types.int64), inline=True)
def _note(changes: Any, kind: Any, slot: Any, count: Any) -> Any:
    """Note a change of a kind at one position, `count` times in the text."""
    at = _CHANGE * slot + kind
    if changes[at + _NOTED] == 0:
        changes[_CHANGE * changes[kind] + kind + _SLOT] = slot
        changes[kind] += 1
    changes[at + _NOTED] += 1
    changes[at + _SUM] += count


@njit(types.Tuple((I32, types.int64))(TEXT, types.int64, POINTER))
def _pairs_with(text: Any, token: Any, changes: Any) -> Any:
    """Note all pairs with a token as new, as if all of its occurrences had been made now. As `_join_all`."""
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
        if left != token and joinable(text, left, token):  # (token, token) is noted at the first
            _note(changes, _NEW, 2 * left, count)
            made[2 * n], made[2 * n + 1] = 2 * left, start
            n += 1
        if joinable(text, token, right):
            _note(changes, _NEW, 2 * right + 1, count)
            made[2 * n], made[2 * n + 1] = 2 * right + 1, p
            n += 1
    return made, n


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
        row = _find(table, size, key)
        if table[row + KEY] != FREE:
            if anew:
                table[row + COUNT] = table[row + SIZE] = 0
        elif changes[change + _SUM] >= used[LEAST]:
            _take(table, row, used, key)
        else:
            rows[k] = -1
            continue
        rows[k] = row
        room += changes[change + _NOTED] + table[row + SIZE]
    return room


@njit(types.void(POINTER, POINTER32, POINTER, POINTER, POINTER))
def _make_room(table: Any, places: Any, used: Any, changes: Any, rows: Any) -> Any:
    """Give each new pair its run of places.

    A pair that has occurrences (of an older product with the same bytes) takes them along.
    """
    for k in range(changes[_NEW]):
        row, change = rows[k], _CHANGE * changes[_CHANGE * k + _NEW + _SLOT] + _NEW
        if row < 0:
            changes[change + _NOTED] = -1
            continue
        at, noted = used[PLACES], changes[change + _NOTED]
        for i in range(table[row + SIZE]):
            places[at + i] = places[table[row + START] + i]
        table[row + START] = at
        changes[change + _NOTED] = at + table[row + SIZE]
        table[row + SIZE] += noted
        table[row + COUNT] += changes[change + _SUM]
        used[PLACES] = at + table[row + SIZE]


@njit(types.void(POINTER32, POINTER, POINTER32, types.int64))
def _note_places(places: Any, changes: Any, made: Any, n: Any) -> Any:
    """Write the positions of the `n` new pairs in `made` into their runs."""
    for k in range(n):
        at = _CHANGE * made[2 * k] + _NEW + _NOTED
        if changes[at] >= 0:
            places[changes[at]] = made[2 * k + 1]
            changes[at] += 1


@njit(types.void(POINTER, types.int64, POINTER, types.int64))
def _drop_gone(table: Any, size: Any, changes: Any, key: Any) -> Any:
    """Subtract what is gone from the pairs with the left or the right token of the merge."""
    for k in range(changes[_GONE]):
        slot = changes[_CHANGE * k + _GONE + _SLOT]
        row = _find(table, size, _key(slot, key & 0xFFFFFFFF, key >> 32))
        if table[row + KEY] != FREE:
            table[row + COUNT] -= changes[_CHANGE * slot + _GONE + _SUM]


@njit(types.void(POINTER))
def _forget(changes: Any) -> Any:
    """Make them no changes again."""
    for kind in (_GONE, _NEW):
        for k in range(changes[kind]):
            at = _CHANGE * changes[_CHANGE * k + kind + _SLOT] + kind
            changes[at + _SUM] = changes[at + _NOTED] = 0
        changes[kind] = 0


@njit(TABLE(types.int64))
def _no_changes(tokens: Any) -> Any:
    """Room for the changes of a merge among so many tokens."""
    return np.zeros(_SUM + 2 * tokens * _CHANGE, np.int64)


@njit(PAIRS(TEXT, PAIRS, types.int64))
def _tidy(text: Any, pairs: Any, reserve: Any) -> Any:
    """The pairs with the places alone where they still occur, and room for `reserve` more."""
    symbols, table, places, least = text.symbols, pairs.table, pairs.places, max(1, pairs.used[LEAST])
    # Runs move to the front in their order, so that none is overwritten before it is read. To meet them in it, the
    # first place of each gives its place to the number of the row, which is marked by being negative.
    row: Any
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
        row = PAIR * (-1 - int(places[at]))
        places[at] = table[row + START]
        stop = at + table[row + SIZE]
        a, b = table[row + KEY] >> 32, table[row + KEY] & 0xFFFFFFFF
        table[row + START] = used
        if table[row + COUNT] >= least:
            for k in range(at, stop):
                p = places[k]
                if symbols[p] == a and symbols[after(symbols, p)] == b:
                    places[used] = p
                    used += 1
        table[row + SIZE] = used - table[row + START]
        at = stop
    pairs.used[PLACES] = used
    room = used + used // 4 + reserve
    if room > len(places):
        grown = np.empty(room, np.int32)
        for i in range(used):
            grown[i] = places[i]
        places = grown
    return Pairs(table, places, pairs.used)


@njit(PAIRS(TEXT))
def _pairs_of(text: Any) -> Any:
    """All pairs of a text, their places in the order of the text."""
    pairs, p = _no_pairs(), np.int64(1)
    while p < text.size - 1:
        if _is_short(len(pairs.table), pairs.used[ROWS] + 1):
            pairs = _renew(pairs, pairs.used[ROWS])
        p = _count_pairs(text, p, pairs.table.ctypes, len(pairs.table), pairs.used.ctypes)
    table, used = pairs.table, pairs.used
    for row in range(0, len(table), PAIR):
        table[row + START] = used[PLACES]
        used[PLACES] += table[row + SIZE]
        table[row + SIZE] = 0
    places = np.empty(used[PLACES] + used[PLACES] // 4, np.int32)
    _note_pairs(text, table.ctypes, len(table), places.ctypes)
    return Pairs(table, places, used)


@njit(types.int64(TEXT, types.int64, POINTER, types.int64, POINTER))
def _count_pairs(text: Any, p: Any, table: Any, size: Any, used: Any) -> Any:
    """Count pairs from position p on; returns the position where the table is short, or the last."""
    while p < text.size - 1 and not _is_short(size, used[ROWS] + 1):
        key = _pair_at(text, p)
        if key != FREE:
            row = _find(table, size, key)
            if table[row + KEY] == FREE:
                _take(table, row, used, key)
            table[row + COUNT] += count_at(text, p)
            table[row + SIZE] += 1
        p = after(text.symbols, p)
    return p


@njit(types.void(TEXT, POINTER, types.int64, POINTER32))
def _note_pairs(text: Any, table: Any, size: Any, places: Any) -> Any:
    """Write the position of each pair into its run."""
    p = np.int64(1)
    while p < text.size - 1:
        key = _pair_at(text, p)
        if key != FREE:
            row = _find(table, size, key)
            places[table[row + START] + table[row + SIZE]] = p
            table[row + SIZE] += 1
        p = after(text.symbols, p)


@njit(types.int64(TEXT, types.int64), inline=True)
def _pair_at(text: Any, p: Any) -> Any:
    """The pair whose left token begins at p, or FREE if there is none."""
    a, b = np.int64(text.symbols[p]), np.int64(text.symbols[after(text.symbols, p)])
    return (a << 32) | b if joinable(text, a, b) else FREE


@njit(types.int64(POINTER, types.int64, types.int64), inline=True)
def _find(table: Any, size: Any, key: Any) -> Any:
    """Where in a table of `size` integers the row of a pair begins, or the free row where it belongs."""
    mask = size - 1
    mixed = np.uint64(key) * np.uint64(0x9E3779B97F4A7C15)
    row = PAIR * np.int64(mixed >> np.uint64(32)) & mask
    while table[row + KEY] != key and table[row + KEY] != FREE:
        row = (row + PAIR) & mask
    return row


@njit(types.void(POINTER, types.int64, POINTER, types.int64), inline=True)
def _take(table: Any, row: Any, used: Any, key: Any) -> Any:
    """Give a free row to a pair."""
    table[row + KEY] = key
    used[ROWS] += 1


@njit(TABLE(types.int64))
def _new_table(rows: Any) -> Any:
    """A table of at least `rows` rows, all free."""
    capacity = 1024
    while capacity < rows:
        capacity *= 2
    table = np.zeros(PAIR * capacity, np.int64)
    for row in range(0, len(table), PAIR):
        table[row + KEY] = FREE
    return table


@njit(PAIRS())
def _no_pairs() -> Any:
    """As of a text without any."""
    return Pairs(_new_table(0), np.empty(0, np.int32), np.zeros(3, np.int64))


@njit(types.boolean(types.int64, types.int64), inline=True)
def _is_short(table_size: Any, rows: Any) -> Any:
    """Whether a table of so many integers has too few rows to find pairs fast with `rows` of them in use."""
    return 3 * PAIR * rows > 2 * table_size


@njit(PAIRS(PAIRS, types.int64))
def _renew(pairs: Any, reserve: Any) -> Any:
    """The pairs that still occur often enough, in a table with room for `reserve` more."""
    table, least = pairs.table, max(1, pairs.used[LEAST])
    used = 0
    for row in range(0, len(table), PAIR):
        used += table[row + COUNT] >= least
    renewed = _new_table(2 * (used + reserve))
    for row in range(0, len(table), PAIR):
        if table[row + COUNT] >= least:
            to = _find(renewed.ctypes, len(renewed), table[row + KEY])
            for field in range(PAIR):
                renewed[to + field] = table[row + field]
    pairs.used[ROWS] = used
    return Pairs(renewed, pairs.places, pairs.used)
