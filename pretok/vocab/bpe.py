"""Counts of words -> the merges of a byte-level BPE vocabulary.

Input: distinct words, as bytes or as tokens of an older vocabulary, and how often each occurs. Output: the merges that
`tokenizers.BpeTrainer` learns from text with these words, in its order, and the bytes of every token.

**The algorithm** is that of Sennrich et al. (2016, https://aclanthology.org/P16-1162), step by step as in
https://github.com/huggingface/tokenizers (models/bpe/trainer.rs), with 64-bit counts:

1. *count*: each pair of neighbours inside a word counts as often as the word occurs;
2. *choose*: the pair that occurs most often is merged next; among equals, the one with the smaller ids;
3. *merge*: all its occurrences become one token, overlapping ones from left to right. If an older token has the bytes
   of the pair, the merge gives that token;
4. the pairs around it are counted again; go to 2.

An extension is the same loop with another start: words split into the tokens of an older vocabulary.

**The buffer.** All words lie in one array, with a position for each token and one before, between and after words. When
tokens are joined, the new one begins at the position of the first. Of the other positions it covers, the first and the
last hold its length as a negative number, so both neighbours of a token are found in constant time. The counts of words
are kept for runs of words that occur equally often, and a hint for every 32 positions says where to begin the search
among the runs. Words come ordered by their counts, so the runs are few: half of all distinct words occur once.

**The pairs.** A hash table has a row for each pair, and the places of a pair are a run of positions in one array. The
merge that makes the newer token of a pair writes the run. It is read only when the pair is merged; the buffer shows
what has changed since. A merge of (a, b) changes four kinds of pairs, each identified by one other token x: (x, a),
(b, x), (x, product) and (product, x). The changes are summed up by x first, so the table is asked once per pair, not
once per occurrence, and a merge costs as much as it changes.

**Left out.** Most distinct pairs are too rare ever to be merged, and a pair's count only falls. So pairs far below what
the last merge will count, by a guess from the merges so far, are left out of the table, with their places. If the
merges do come down to these counts, all pairs of the text are counted again: the guess decides memory and time, but no
merge. A left-out pair gets new occurrences only where a merge gives an older token; the text is searched for these.

The loop over merges is plain Python, which takes 10 us per merge; the loops over the text are compiled.

Memory: 4.125 bytes for each token and each word of the buffer, and 12 for each run; of the pairs that are not left out,
5 for each occurrence and 48 to 96 for each distinct pair. The words are not needed once they are laid out, so the
caller can free them.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from numba import types

from pretok.base.errors import UsageError
from pretok.base.tokens import Bytes, Ints
from pretok.kernels.compile import I64, njit
from pretok.kernels.eight_bytes import prefetch
from pretok.tokenizer.tokenizer_file import ALPHABET

BOUNDARY = -1
"""Symbol of the positions around words. A position that a token covers but does not begin at has a smaller one."""
HINT_BITS = 5
"""A hint is for 2**HINT_BITS positions."""
MAX_SYMBOLS = 2**31 - 1
MAX_OCCURRENCES = 2.0**62 + 2.0**59
"""Weighted bytes: `counts.weigh.LIMIT` and room, as sources of almost no weight may exceed it by their own bytes."""
_IDS = np.empty(256, np.int32)
_IDS[list(ALPHABET)] = np.arange(256)

EASE = 16.0
"""Pairs are left out below 1/EASE of what the last merge would count if merge k counted 1/k of the first. On 284 MB of
text and 50,000 entries that guess is 1.1 to 7.1 times what the last merge does count."""

FREE = -1
"""Key of a row of the pair table that is not in use."""
PAIR = 4
"""Integers in a row of the pair table."""
KEY, COUNT, START, SIZE = range(PAIR)
"""Fields of a row: both ids; how often the pair occurs in the text; where its run of places begins; how long it is."""
ROWS, PLACES, LIMIT, LEAST = range(4)
"""Fields of _Pairs.used: rows in use; places in use; how many places there may be before stale ones are dropped; how
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

_POINTER32 = types.CPointer(types.int32)
_POINTER = types.CPointer(types.int64)
_I32 = types.int32[::1]
_I64 = types.int64[::1]
_Int32s = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Merges:
    """The result of training: merge k joins the tokens pairs[k] to the token products[k]."""

    pairs: _Int32s
    """(m, 2), the ids of the left and the right token."""
    products: _Int32s
    """[m], a new id, or that of an older token with the same bytes."""
    counts: Ints
    """[m], how often the pair occurred in the text when it was merged."""
    tokens: list[bytes]
    """The bytes of every id, initial and new."""

    def first(self, size: int) -> list[tuple[bytes, bytes]]:
        """Return the merges of the first `size` entries, in order, as bytes.

        They are those that training to this size would give.
        """
        largest = np.maximum.accumulate(self.products)
        end = int(np.searchsorted(largest, size - 1))  # where the last of the entries is made
        end += end < len(largest) and int(largest[end]) < size
        return [(self.tokens[left], self.tokens[right]) for left, right in self.pairs[:end].tolist()]


@dataclass(frozen=True, slots=True)
class SymbolBuffer:
    """Words laid out for merging, which changes them in place."""

    symbols: _Int32s
    """[positions], the token that begins there; BOUNDARY; or the length of the token that covers it, negative."""
    starts: _Int32s
    """[runs + 1], the first position of each run of words that occur equally often; last, the number of positions."""
    hints: _Int32s
    """For every 2**HINT_BITS positions, the run that the first of them is in."""
    counts: Ints
    """[runs], how often each of the words occurs."""


class BufferWriter:
    """Words -> SymbolBuffer, part by part, so that not all words are in memory at once.

    most: limit of positions; words beyond it are counted but not kept.
    """

    def __init__(self, most: int = MAX_SYMBOLS) -> None:
        self.words, self.bytes = 0, 0
        self._most, self._end, self._occurrences = min(most, MAX_SYMBOLS), 1, 0.0
        self._symbols = np.full(1, BOUNDARY, np.int32)
        self._starts: list[_Int32s] = []
        self._counts: list[Ints] = []

    @property
    def size(self) -> int:
        """The positions of all words added."""
        return self.bytes + self.words + 1

    def add(self, tokens: _Int32s, offsets: Ints, counts: Ints) -> None:
        """Add words of tokens, which are numbered from 0.

        Word w is tokens[offsets[w]:offsets[w + 1]] and occurs counts[w] times. Words that occur equally often should be
        neighbours, for the sake of memory. Raises UsageError for counts that are negative or overflow when added up.
        """
        if len(offsets) != len(counts) + 1 or offsets[0] < 0 or offsets[-1] > len(tokens):
            raise ValueError("there is one offset more than counts, all within the symbols")
        # A dot product would wake the threads of BLAS, which then spin as long again.
        self._occurrences += float(np.multiply(counts, np.diff(offsets), dtype=np.float64).sum())
        if counts.min(initial=0) < 0 or self._occurrences > MAX_OCCURRENCES:
            raise UsageError(
                "word counts must not be negative, nor add up to 2**62 bytes of text or more; scale the weights down"
            )
        self.words += len(counts)
        self.bytes += int(offsets[-1] - offsets[0])
        if self.size > self._most:
            return
        first = np.flatnonzero(np.diff(counts, prepend=-1))  # words of each run
        # Each word before takes a boundary, too: hence `first`, the number of these words.
        self._starts.append((offsets[first] - offsets[0] + first + self._end).astype(np.int32))
        self._counts.append(counts[first])
        if self.size > len(self._symbols):
            self._resize(self.size + self.size // 4)
        self._end = _place(tokens, offsets, self._symbols, self._end)

    def _resize(self, size: int) -> None:
        """Resize in place, or let the kernel move it, so a large array is never in memory twice.

        No view of it exists.
        """
        self._symbols.resize(size, refcheck=False)

    def buffer(self) -> SymbolBuffer:
        """Return the words added.

        Raises UsageError if they take more positions than `most`, or than 32 bits can number.
        """
        if self.size > self._most:
            raise UsageError(
                f"{self.words:,} distinct words of {self.bytes:,} bytes are too many to merge here: words and bytes "
                f"together may be {self._most:,}. Drop rare words with a greater min_count under [vocab] of a recipe, "
                "or take a node with more memory; the counts are kept"
            )
        self._resize(self._end)
        starts = np.concatenate([*self._starts, [self._end]]).astype(np.int32)
        blocks = np.arange(0, self._end, 1 << HINT_BITS, dtype=np.int32)
        # Position 0 is a boundary before the first run.
        hints = np.maximum(np.searchsorted(starts, blocks, side="right") - 1, 0).astype(np.int32)
        counts = np.concatenate([np.empty(0, np.int64), *self._counts])
        return SymbolBuffer(self._symbols, starts, hints, counts)


def byte_tokens(data: Bytes) -> _Int32s:
    """Return the token of each byte: its place in ALPHABET."""
    return _IDS[data]


def buffer_of(data: Bytes, offsets: Ints, counts: Ints) -> SymbolBuffer:
    """Return the SymbolBuffer of words of bytes: word w is data[offsets[w]:offsets[w + 1]], counts[w] times."""
    writer = BufferWriter()
    writer.add(byte_tokens(data), offsets, counts)
    return writer.buffer()


def train_merges(buffer: SymbolBuffer, *, vocab_size: int, special_tokens: int) -> Merges:
    """Train the merges of a vocabulary of `vocab_size` entries: special tokens, 256 bytes (as in ALPHABET), merges.

    `buffer`: distinct words as `buffer_of` lays them out, which are used up. `special_tokens`: how many ids they take;
    in Merges.tokens they are b"". A merge that spells a special token therefore makes a token of its own, where
    `tokenizers` would reuse the special one's id; the caller refuses such a name.
    """
    tokens = [b""] * special_tokens + [bytes([byte]) for byte in ALPHABET]
    # Special tokens have the first ids, so those of the bytes move up behind them; boundaries stay negative.
    np.add(buffer.symbols, special_tokens, out=buffer.symbols, where=buffer.symbols >= 0)
    return _train(buffer, tokens, vocab_size - len(tokens))


def extend_merges(
    buffer: SymbolBuffer, tokens: Sequence[bytes], apart: npt.NDArray[np.bool_], max_new: int
) -> Merges:
    """Continue BPE where an old vocabulary stopped; new tokens are numbered from len(tokens) on.

    `buffer`: words split into the old tokens 0 to len(tokens) - 1, which are used up; `tokens`: the bytes of each, b""
    for one that no text spells; `apart`, bool[ids]: tokens that are never joined. A pair that spells an old token is
    not joined either: its merge would change the ids of text without new tokens.
    """
    # A token that is never joined splits a word as a boundary does. BOUNDARY is -1, so it indexes the last flag.
    buffer.symbols[np.append(apart, True)[buffer.symbols]] = BOUNDARY
    return _train(buffer, tokens, max_new, closed=len(tokens))


def _train(buffer: SymbolBuffer, tokens: Sequence[bytes], max_new: int, closed: int = 0) -> Merges:
    """Loop over merges. A pair that spells one of the first `closed` tokens is left alone."""
    names = list(tokens)
    ids = {name: token for token, name in reversed([*enumerate(names)]) if name}  # of equal names the first
    first = len(names)
    last = first + min(max_new, len(buffer.symbols))  # a merge joins two symbols at least
    merges: dict[int, tuple[int, int]] = {}
    pairs, least, ease = _Pairs(buffer, last), 0, EASE  # pairs below `least` are left out
    heap: list[Entry] = []
    while len(names) < last:
        # A merge makes at most two new pairs with each token: the product before it and after it. With room for these
        # the table need not grow while a pair is merged, which would move its rows.
        if pairs.grow(2 * len(names) + 1) or not heap:
            heap, floor = pairs.frequent()
        if not pairs.refresh(heap, floor) or -heap[0][0] < least:
            if not heap and floor > max(1, least):  # less frequent pairs are only in the table so far
                continue
            # Below `least`, a pair that was left out may be more frequent than all in the table. So all pairs are
            # counted again, and from here on none is left out.
            if least <= 1:
                break
            least, ease, heap = 0, math.inf, []
            pairs.count_all()
            continue
        negative, key, row = heapq.heappop(heap)
        # The guess of what the last merge will count: if, as with words, the k-th counts 1/k of the first.
        least = max(least, int(-negative * ((len(names) - first + 1) / (last - first)) / ease))
        pairs.used[LEAST] = least
        joined = names[key >> 32] + names[key & 0xFFFFFFFF]
        product = ids.setdefault(joined, len(names))
        if product < closed:
            pairs.drop(row)
            continue
        # Counts of old pairs only fall, so each pair that counts `floor` is on the heap with at least its count.
        for entry in pairs.merge(row, product, product < len(names), floor):
            heapq.heappush(heap, entry)
        # If the product is an older token, a pair can occur again after it was merged; it is listed once.
        merges.setdefault(key, (product, -negative))
        if product == len(names):
            names.append(joined)
    keys = np.fromiter(merges, np.int64, len(merges))
    values = np.array([*merges.values()], np.int64).reshape(-1, 2)
    return Merges(
        np.stack([keys >> 32, keys & 0xFFFFFFFF], axis=1).astype(np.int32),
        values[:, 0].astype(np.int32),
        values[:, 1],
        names,
    )


Entry = tuple[int, int, int]
"""(-count, key, where its row begins) of a pair. The smallest is merged next."""


class _Pairs:
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


class _Pointers(NamedTuple):
    """A SymbolBuffer as pointers: with arrays, counting references took half of the time."""

    size: Any
    """Positions."""
    symbols: Any
    starts: Any
    hints: Any
    counts: Any


_TEXT = types.NamedTuple((types.int64, _POINTER32, _POINTER32, _POINTER32, _POINTER), _Pointers)


@njit(_TEXT(types.int64, _POINTER32, _POINTER32, _POINTER32, _POINTER), inline=True)
def _text_of(size: Any, symbols: Any, starts: Any, hints: Any, counts: Any) -> Any:
    """Return a _Text of arrays, which must outlive it."""
    return _Pointers(size, symbols, starts, hints, counts)


@njit(types.int64(_POINTER32, types.int64), inline=True)
def _after(symbols: Any, p: Any) -> Any:
    """Return the position after the token that begins at p."""
    # Behind a token of several positions stands its length; otherwise the next token or boundary does.
    covered = symbols[p + 1]
    return p - covered if covered < BOUNDARY else p + 1


@njit(types.int64(_POINTER32, types.int64), inline=True)
def _before(symbols: Any, p: Any) -> Any:
    """Return the position where the token before p begins, or the boundary before p."""
    covered = symbols[p - 1]
    return p + covered if covered < BOUNDARY else p - 1


@njit(types.int64(_TEXT, types.int64), inline=True)
def _count_at(text: Any, p: Any) -> Any:
    """Return how often the word that holds position p occurs."""
    # The hint is right for the first position of 2**HINT_BITS, so the walk is shorter than that.
    run = np.int64(text.hints[p >> HINT_BITS])
    while text.starts[run + 1] <= p:
        run += 1
    return text.counts[run]


@njit(
    types.int64(
        *(_I32, _I32, _I32, I64, _I64, _I32, _I64, _I64, _I64),
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
    text = _text_of(len(symbols), symbols.ctypes, starts.ctypes, hints.ctypes, counts.ctypes)
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


@njit(
    types.int64(_TEXT, types.int64, types.int64, _POINTER32, types.int64, types.int64, _POINTER, _POINTER32)
)
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
        # What _count_at reads is a chain: the hint names the run. So the hint is asked for in a first step,
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
            while symbols[_before(symbols, p)] == a:
                p = _before(symbols, p)
        while symbols[p] == a and symbols[_after(symbols, p)] == b:
            n = _join(text, p, product, changes, made, n)
            p = _after(symbols, p)
    return n


@njit(types.int64(_TEXT, types.int64, types.int64, _POINTER, _POINTER32, types.int64), inline=True)
def _join(text: Any, p: Any, product: Any, changes: Any, made: Any, n: Any) -> Any:
    """Join the token at p and the next one.

    Appends slot and position of the new pairs to the `n` in `made`; returns the new n.
    """
    symbols = text.symbols
    q = _after(symbols, p)
    start, end = _before(symbols, p), _after(symbols, q)
    left, right = symbols[start], symbols[end]
    count = _count_at(text, p)
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


@njit(types.void(_POINTER, types.int64, types.int64, types.int64), inline=True)
def _note(changes: Any, kind: Any, slot: Any, count: Any) -> Any:
    """Note a change of a kind at one position, which occurs `count` times in the text."""
    at = _CHANGE * slot + kind
    # The first change of its slot: list the slot, so that nobody looks through all of them.
    if changes[at + _NOTED] == 0:
        changes[_CHANGE * changes[kind] + kind + _SLOT] = slot
        changes[kind] += 1
    changes[at + _NOTED] += 1
    changes[at + _SUM] += count


@njit(types.Tuple((_I32, types.int64))(_TEXT, types.int64, _POINTER))
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
        start, count = _before(symbols, p), _count_at(text, p)
        left, right = symbols[start], symbols[_after(symbols, p)]
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


@njit(types.int64(_POINTER, types.int64, _POINTER, _POINTER, types.int64, _POINTER))
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


@njit(types.void(_POINTER, _POINTER, _POINTER, _POINTER))
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


@njit(types.void(_POINTER32, _POINTER, _POINTER32, types.int64))
def _note_places(places: Any, changes: Any, made: Any, n: Any) -> Any:
    """Write the positions of the `n` new pairs in `made` into their runs."""
    for k in range(n):
        at = _CHANGE * made[2 * k] + _NEW + _NOTED
        # -1: `_make_room` has no run for a pair that is left out.
        if changes[at] >= 0:
            places[changes[at]] = made[2 * k + 1]
            changes[at] += 1


@njit(types.void(_POINTER, types.int64, _POINTER, types.int64))
def _drop_gone(table: Any, size: Any, changes: Any, key: Any) -> Any:
    """Subtract the removed pairs from the pairs with the left or the right token of the merge."""
    for k in range(changes[_GONE]):
        slot = changes[_CHANGE * k + _GONE + _SLOT]
        row = _find(table, size, _key(slot, key & 0xFFFFFFFF, key >> 32))
        # A pair that is left out has no row.
        if table[row + KEY] != FREE:
            table[row + COUNT] -= changes[_CHANGE * slot + _GONE + _SUM]


@njit(types.void(_POINTER))
def _forget(changes: Any) -> Any:
    """Set all changes back to 0."""
    for kind in (_GONE, _NEW):
        for k in range(changes[kind]):
            at = _CHANGE * changes[_CHANGE * k + kind + _SLOT] + kind
            changes[at + _SUM] = changes[at + _NOTED] = 0
        changes[kind] = 0


@njit(types.void(_TEXT, _POINTER, types.int64, _POINTER32, _POINTER))
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
                if symbols[p] == a and symbols[_after(symbols, p)] == b:
                    places[end] = p
                    end += 1
        table[row + SIZE] = end - table[row + START]
        at = stop
    used[PLACES] = end


@njit(types.int64(_I32, _I32, _I32, I64, types.int64, _I64, _I64))
def _count_pairs(symbols: Any, starts: Any, hints: Any, counts: Any, p: Any, table: Any, used: Any) -> Any:
    """Count pairs from position p on; returns the position where the table became too small, or the last one."""
    text, rows, size = (
        _text_of(len(symbols), symbols.ctypes, starts.ctypes, hints.ctypes, counts.ctypes),
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
            table[row + COUNT] += _count_at(text, p)
            table[row + SIZE] += 1
        p = _after(text.symbols, p)
    return p


@njit(types.void(_I32, _I32, _I32, I64, _I64, _I32))
def _note_pairs(symbols: Any, starts: Any, hints: Any, counts: Any, table: Any, places: Any) -> Any:
    """Write the position of each pair into its run."""
    text, p = _text_of(len(symbols), symbols.ctypes, starts.ctypes, hints.ctypes, counts.ctypes), np.int64(1)
    while p < text.size - 1:
        key = _pair_at(text, p)
        if key != FREE:
            row = _find(table.ctypes, len(table), key)
            places[table[row + START] + table[row + SIZE]] = p
            table[row + SIZE] += 1
        p = _after(text.symbols, p)


@njit(types.int64(_TEXT, types.int64), inline=True)
def _pair_at(text: Any, p: Any) -> Any:
    """Return the pair whose left token begins at p, or FREE if there is none."""
    a, b = np.int64(text.symbols[p]), np.int64(text.symbols[_after(text.symbols, p)])
    return (a << 32) | b if a >= 0 and b >= 0 else FREE


@njit(types.int64(_POINTER, types.int64, types.int64), inline=True)
def _find(table: Any, size: Any, key: Any) -> Any:
    """Return where in a table of `size` integers the row of a pair begins, or the free row where it belongs."""
    mask = size - 1
    # Both ids reach the upper half of the product, but only the right one the lower half.
    mixed = np.uint64(key) * np.uint64(0x9E3779B97F4A7C15)
    row = PAIR * np.int64(mixed >> np.uint64(32)) & mask
    while table[row + KEY] != key and table[row + KEY] != FREE:
        row = (row + PAIR) & mask
    return row


@njit(_I64(types.int64))
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


@njit(_I64(_I64, _I64, types.int64))
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


@njit(types.int64(types.Array(types.int32, 1, "C", readonly=True), I64, _I32, types.int64))
def _place(tokens: Any, offsets: Any, symbols: Any, p: Any) -> Any:
    """Write words of tokens, and a boundary after each, to the positions from p on; returns the position after them."""
    for w in range(len(offsets) - 1):
        for i in range(offsets[w], offsets[w + 1]):
            symbols[p] = tokens[i]
            p += 1
        symbols[p] = BOUNDARY
        p += 1
    return p
