"""Counts of words -> the merges of a byte-level BPE vocabulary.

Enters: distinct words as Cells. Leaves: the merges that `tokenizers.BpeTrainer` makes from text with these words, in
its order, and the bytes of every token. The pair that occurs most often is
merged next; among equals, the pair with the smaller ids. The rules are those of
https://github.com/huggingface/tokenizers (models/bpe/trainer.rs), with counts of 64 bits.

Most distinct pairs are too rare to be merged ever, and a pair's count only falls. So those far below what the last
merge will count, by a guess from the merges so far, are left out. Should the merges come down to the counts of what was
left out, all pairs of the text as it then stands are counted: the guess decides memory and time, and never a merge.

Memory is that of `cells` and `pairs`, and 16 to 36 bytes more for each distinct pair that is not left out. It does not
need the words themselves once they are laid out, so the caller can let go of them.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
from numba import types

from pretok.base.errors import UsageError
from pretok.kernels.compile import I64, U8, njit
from pretok.kernels.hashing import hash_bytes
from pretok.tokenizer.vocabulary import ALPHABET
from pretok.vocab.cells import BOUNDARY, I32, Cells, CellWriter, text_of
from pretok.vocab.first_pairs import pairs_of
from pretok.vocab.pairs import (
    COUNT,
    KEY,
    LEAST,
    PAIR,
    ROWS,
    TABLE,
    find,
    is_short,
    merge_pair,
    no_changes,
    no_pairs,
    renew,
)

NO_LIMIT = 2**62
EASE = 16.0
"""Pairs are left out below this part of what the last merge would count if merge k counted 1/k of the first. On 284 MB
of text and 50,000 entries the guess is 1.1 to 7.1 times what the last merge does count."""

_U8 = types.uint8[::1]
_I64 = types.int64[::1]
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


@njit(_HEAP(TABLE))
def _heap_of(table: Any) -> Any:
    """(-count, key) of every pair that occurs, as a heap; the pair to merge next comes first."""
    heap = [(np.int64(0), np.int64(0)) for _ in range(0)]
    for row in range(0, len(table), PAIR):
        if table[row + COUNT] > 0:
            heap.append((-table[row + COUNT], table[row + KEY]))
    heapq.heapify(heap)
    return heap


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


@njit(types.UniTuple(types.int64, 2)(_HEAP, TABLE))
def _pop(heap: Any, table: Any) -> Any:
    """(count, key) of the pair to merge next, taken off the heap; (0, 0) if no pair is left.

    A pair's count may have fallen since it came on the heap; then the pair goes back with the count it has now. Where
    a count has risen, the pair is on the heap with that count too.
    """
    while len(heap) > 0:
        negative, key = heap[0]
        count = table[find(table.ctypes, len(table), key) + COUNT]
        if 0 < count < -negative:
            heapq.heapreplace(heap, (-count, key))
            continue
        heapq.heappop(heap)
        if count == -negative:
            return count, key
    return np.int64(0), np.int64(0)


@njit(
    types.Tuple((_I64, I32, _I64, _U8))(
        I32, I32, I32, I64, _I64, types.int64, _U8, _I64, types.int64, types.int64, types.int64, types.float64
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
) -> Any:
    """(keys, products, counts, data) of the merges; new tokens are `first` to `last` - 1, at most.

    Token t is data[offsets[t]:offsets[t + 1]] and weighs weights[t]; these have room for the new tokens. `ease`: as
    EASE, or infinite, which leaves nothing out.
    """
    index = _index_of(data, offsets, first, last)
    # The first of each list is of no merge: it gives the list its type.
    keys, products, occurrences = [np.int64(-1)], [np.int32(0)], [np.int64(0)]
    text = text_of(
        len(symbols), symbols.ctypes, starts.ctypes, hints.ctypes, counts.ctypes, weights.ctypes, limit
    )
    pairs, changes = pairs_of(text), no_changes(last)
    heap = _heap_of(pairs.table)
    token = first
    while token < last:
        reserve = 2 * token + 1  # new pairs: the product before and after each token, and twice
        if is_short(len(pairs.table), pairs.used[ROWS] + reserve):
            pairs = renew(pairs, reserve)
            heap = _heap_of(pairs.table)
        count, key = _pop(heap, pairs.table)
        if count < max(min_count, pairs.used[LEAST]):
            if pairs.used[LEAST] <= min_count:
                break
            pairs, ease = no_pairs(), np.inf  # the old ones go before the new ones come
            pairs = pairs_of(text)
            heap = _heap_of(pairs.table)
            continue
        guess = count * ((token - first + 1) / (last - first)) / ease
        pairs.used[LEAST] = max(pairs.used[LEAST], np.int64(guess))
        data = _write(data, offsets, key, token)
        product = _register(data, offsets, index, token)
        if product == token or key not in keys:
            keys.append(key)
            products.append(np.int32(product))
            occurrences.append(count)
        known = product != token
        if not known:
            weights[token] = weights[key >> 32] + weights[key & 0xFFFFFFFF]
            token += 1
        pairs, rows = merge_pair(text, pairs, key, product, known, changes)
        for row in rows:
            if row >= 0 and pairs.table[row + COUNT] > 0:
                heapq.heappush(heap, (-pairs.table[row + COUNT], pairs.table[row + KEY]))
    made = np.array(keys)[1:], np.array(products)[1:], np.array(occurrences)[1:]
    return made[0], made[1], made[2], data[: offsets[token]]


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
    writer = CellWriter()
    writer.add_tokens(symbols, offsets, counts)
    return _train(writer.cells(), tokens, max_new, min_frequency, weights, limit, ease)


def train_merges(
    cells: Cells,
    *,
    vocab_size: int,
    special_tokens: int,
    min_frequency: int = 0,
    max_token_length: int | None = None,
) -> Merges:
    """The merges of a vocabulary of `vocab_size` entries: special tokens, the 256 bytes (in order of ALPHABET), merges.

    `cells`: distinct words as `cells_of` gives them, which are used up.
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
    merges = _train(cells, [bytes([byte]) for byte in ALPHABET], wanted, min_frequency, None, limit, EASE)
    return Merges(
        merges.pairs + np.int32(special_tokens),
        merges.products + np.int32(special_tokens),
        merges.counts,
        [b""] * special_tokens + merges.tokens,
    )


def _train(
    cells: Cells,
    tokens: Sequence[bytes],
    max_new: int,
    min_frequency: int,
    weights: npt.NDArray[np.int64] | None,
    limit: int,
    ease: float,
) -> Merges:
    if cells.symbols.min() < BOUNDARY:
        raise ValueError("these cells were merged already; lay the words out again")
    first = len(tokens)
    last = first + min(max_new, len(cells.symbols))  # every merge joins at least two cells
    all_weights = np.ones(last, np.int64)
    if weights is not None:
        all_weights[:first] = weights
    all_offsets = np.zeros(last + 1, np.int64)
    np.cumsum([len(token) for token in tokens], out=all_offsets[1 : first + 1])
    data = np.frombuffer(b"".join(tokens), np.uint8).copy()
    text = cells.symbols, cells.starts, cells.hints, cells.counts
    keys, products, occurrences, data = _merge(
        *text, all_weights, limit, data, all_offsets, first, last, max(1, min_frequency), ease
    )
    pairs = np.stack([keys >> 32, keys & 0xFFFFFFFF], axis=1).astype(np.int32)
    made = int(max(first - 1, products.max(initial=first - 1))) + 1
    spelled = data.tobytes()
    all_tokens = [spelled[a:b] for a, b in pairwise(all_offsets[: made + 1].tolist())]
    return Merges(pairs, products, occurrences, all_tokens)
