"""Counts of words -> the merges of a byte-level BPE vocabulary.

Input: distinct words, as bytes or as the tokens of an older vocabulary, and how often each occurs. Output: the merges
that `tokenizers.BpeTrainer` makes from text with these words, in its order, and the bytes of every token.

**The algorithm** is that of Sennrich et al. (2016, https://aclanthology.org/P16-1162), step by step as in
https://github.com/huggingface/tokenizers (models/bpe/trainer.rs), with counts of 64 bits:

1. *count*: each pair of neighbours inside of a word counts as often as the word occurs;
2. *choose*: the pair that occurs most often is merged next; among equals, the one with the smaller ids;
3. *merge*: all its occurrences become one token, overlapping ones from left to right. Where an older token has the
   bytes of the pair, the merge gives that token;
4. the pairs around it are counted again; go to 2.

An extension is the same loop with another start: words cut into the tokens of an older vocabulary.

**The buffer.** Words stand in a row, with a position for each token and one before, between and after words. When
tokens are joined, the new one begins at the first one's position; of the other positions it covers the first and the
last hold its length, as a negative number. So both neighbours of a token are found in constant time. How often a
position occurs is kept for runs of words that occur equally often; a hint for every 32 positions says where among the
runs to begin to look. Ordered by their counts, words are few runs: half of all distinct words occur once.

**The pairs.** A hash table has a row for each pair, and all places of a pair are a run of positions in one array. A
run is made at once, by the merge that makes the newer of the pair's tokens, and only read when the pair is merged: what
has changed since is seen in the buffer. A merge of (a, b) changes pairs of four kinds, each known by one other token x:
(x, a), (b, x), (x, product) and (product, x). It adds up by that token what is gone and what is new, so that the table
is asked once for each pair, not for each occurrence; and what a merge costs is what it changes.

**Left out.** Most distinct pairs are too rare to be merged ever, and a pair's count only falls. So those far below what
the last merge will count, by a guess from the merges so far, are left out of the table, with their places. Should the
merges come down to the counts of what was left out, all pairs of the text as it then stands are counted: the guess
decides memory and time, and never a merge. Only where a merge gives a token that there is already, further occurrences
of such a pair can be made: the text is searched for them.

The loop over merges is plain Python, as it takes 10 us of each; what walks over the text is compiled.

Memory: 4.125 bytes for each token and each word of the buffer, and 12 for each run; 5 for each occurrence of a pair and
48 to 96 for each distinct pair, of those that are not left out. The words themselves are not needed once they are laid
out, so the caller can let go of them.
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
from pretok.kernels.eight_bytes import prefetch_i32, prefetch_i64
from pretok.tokenizer.tokenizer_file import ALPHABET

BOUNDARY = -1
"""Symbol of the positions around words. A position that a token covers but does not begin at has a smaller one."""
HINT_BITS = 5
"""A hint is for 2**HINT_BITS positions."""
MAX_SYMBOLS = 2**31 - 1
MAX_OCCURRENCES = 2.0**62
_IDS = np.empty(256, np.int32)
_IDS[list(ALPHABET)] = np.arange(256)

EASE = 16.0
"""Pairs are left out below this part of what the last merge would count if merge k counted 1/k of the first. On 284 MB
of text and 50,000 entries the guess is 1.1 to 7.1 times what the last merge does count."""

FREE = -1
"""Key of a row of the pair table that is not in use."""
PAIR = 4
"""Integers in a row of the pair table."""
KEY, COUNT, START, SIZE = range(PAIR)
"""Places in a row: both ids; how often the pair occurs in the text; which of the places are its own."""
ROWS, PLACES, LIMIT, LEAST = range(4)
"""Places in _Pairs.used: how many rows and places are in use, how many places may be before those that are of no pair
any more are dropped, and how often a pair must occur not to be left out."""
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

_POINTER32 = types.CPointer(types.int32)
_POINTER = types.CPointer(types.int64)
_I32 = types.int32[::1]
_I64 = types.int64[::1]
_Int32s = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Merges:
    """What training made: merge k joins the tokens pairs[k] to the token products[k]."""

    pairs: _Int32s
    """(m, 2), the ids of the left and the right token."""
    products: _Int32s
    """[m], a new id, or that of an older token with the same bytes."""
    counts: Ints
    """[m], how often the pair occurred in the text when it was merged."""
    tokens: list[bytes]
    """The bytes of every id, initial and new."""

    def first(self, size: int) -> list[tuple[bytes, bytes]]:
        """The merges that `size` entries take, in order, as bytes: those that training for so few entries makes."""
        largest = np.maximum.accumulate(self.products)
        end = int(np.searchsorted(largest, size - 1))  # where the last of the entries is made
        end += end < len(largest) and int(largest[end]) < size
        return [(self.tokens[left], self.tokens[right]) for left, right in self.pairs[:end].tolist()]


@dataclass(frozen=True, slots=True)
class SymbolBuffer:
    """Words laid out. Merging uses them up."""

    symbols: _Int32s
    """[positions], the token that begins there; BOUNDARY; or the length of the token that covers it, negative."""
    starts: _Int32s
    """[runs + 1], the first position of each run of words that occur equally often; last, the number of positions."""
    hints: _Int32s
    """For every 2**HINT_BITS positions, the run that the first of them is in."""
    counts: Ints
    """[runs], how often each of the words occurs."""


class BufferWriter:
    """Words -> SymbolBuffer, part by part, so that the words need not be there all at once.

    most: positions; of more than that, words are only counted.
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
        """Add words of tokens, which are numbers from 0 on.

        Word w is tokens[offsets[w]:offsets[w + 1]] and occurs counts[w] times. Words that occur equally often had
        better be neighbours. Raises UsageError for counts that are negative, or too large to be added up.
        """
        if len(offsets) != len(counts) + 1 or offsets[0] < 0 or offsets[-1] > len(tokens):
            raise ValueError("there is one offset more than counts, all within the symbols")
        # A product of matrices would wake the threads of BLAS, which take as much time again to wait for the next.
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
        self._starts.append((offsets[first] - offsets[0] + first + self._end).astype(np.int32))
        self._counts.append(counts[first])
        if self.size > len(self._symbols):
            self._resize(self.size + self.size // 4)
        self._end = _place(tokens, offsets, self._symbols, self._end)

    def _resize(self, size: int) -> None:
        """Where it lies, or moved by the kernel: a large array is never there twice. No other array looks at it."""
        self._symbols.resize(size, refcheck=False)

    def buffer(self) -> SymbolBuffer:
        """The words added. Raises UsageError where they are too many, as 32 bits number the positions."""
        if self.size > self._most:
            raise UsageError(
                f"{self.words:,} words of {self.bytes:,} bytes are too many to merge (words and bytes together: "
                f"{self._most:,}); drop rare words with a greater min_count"
            )
        self._resize(self._end)
        starts = np.concatenate([*self._starts, [self._end]]).astype(np.int32)
        blocks = np.arange(0, self._end, 1 << HINT_BITS, dtype=np.int32)
        hints = np.maximum(np.searchsorted(starts, blocks, side="right") - 1, 0).astype(np.int32)
        counts = np.concatenate([np.empty(0, np.int64), *self._counts])
        return SymbolBuffer(self._symbols, starts, hints, counts)


def byte_tokens(data: Bytes) -> _Int32s:
    """Of each byte the token, which is its place in ALPHABET."""
    return _IDS[data]


def buffer_of(data: Bytes, offsets: Ints, counts: Ints) -> SymbolBuffer:
    """The SymbolBuffer of words of bytes, likewise."""
    writer = BufferWriter()
    writer.add(byte_tokens(data), offsets, counts)
    return writer.buffer()


def train_merges(buffer: SymbolBuffer, *, vocab_size: int, special_tokens: int) -> Merges:
    """The merges of a vocabulary of `vocab_size` entries: special tokens, the 256 bytes (in order of ALPHABET), merges.

    `buffer`: distinct words as `buffer_of` gives them, which are used up. `special_tokens` is how many ids they take;
    in Merges.tokens they are b"". So a merge that spells a special token makes a token of its own, where `tokenizers`
    reuses the special one's id; such a name is for the caller to refuse.

    Raises UsageError if the vocabulary does not hold even the bytes.
    """
    wanted = vocab_size - special_tokens - len(ALPHABET)
    if wanted < 0:
        raise UsageError(
            f"a vocabulary of {vocab_size:,} entries cannot hold {special_tokens} special tokens and the 256 bytes; "
            f"ask for at least {vocab_size - wanted}"
        )
    merges = _train(buffer, [bytes([byte]) for byte in ALPHABET], wanted)
    return Merges(
        merges.pairs + np.int32(special_tokens),
        merges.products + np.int32(special_tokens),
        merges.counts,
        [b""] * special_tokens + merges.tokens,
    )


def extend_merges(
    buffer: SymbolBuffer, tokens: Sequence[bytes], apart: npt.NDArray[np.bool_], max_new: int
) -> Merges:
    """BPE that goes on where an old vocabulary stopped; new tokens are numbered from len(tokens) on.

    `buffer`: words as the old vocabulary cuts them into the tokens 0 to len(tokens) - 1, which is used up; `tokens`:
    the bytes of each, b"" for one that no text spells; `apart`, bool[ids]: those that are never joined. A pair that
    spells an old token is not joined either: its merge would change the ids of text without new tokens.
    """
    # What is never joined cuts a word as its end does. BOUNDARY, which is -1, finds the last of these flags.
    buffer.symbols[np.append(apart, True)[buffer.symbols]] = BOUNDARY
    return _train(buffer, tokens, max_new, closed=len(tokens))


def _train(buffer: SymbolBuffer, tokens: Sequence[bytes], max_new: int, closed: int = 0) -> Merges:
    """The loop over merges. A pair that spells one of the first `closed` tokens is left alone."""
    made = list(tokens)
    ids: dict[bytes, int] = {}
    for token, name in enumerate(made):
        if name:
            ids.setdefault(name, token)
    first = len(made)
    last = first + min(max_new, len(buffer.symbols))  # a merge joins two symbols at least
    merges: dict[int, tuple[int, int]] = {}
    pairs, ease = _Pairs(buffer, last), EASE
    heap: list[Entry] = []
    while len(made) < last:
        # A merge makes two new pairs with each token at most: the product before it and after it. So with that much
        # room the table need not grow while a pair is merged. Growing moves rows.
        if pairs.grow(2 * len(made) + 1) or not heap:
            heap, floor = pairs.frequent()
        if not pairs.refresh(heap, floor) or -heap[0][0] < pairs.least:
            if not heap and floor > max(1, pairs.least):  # the rest is in the table alone
                continue
            # Below `least` a pair that was left out may be more frequent than those that are there, so all are counted
            # again, nothing being left out from here on.
            if pairs.least <= 1:
                break
            ease = math.inf
            pairs.count_all()
            heap = []
            continue
        negative, key, row = heapq.heappop(heap)
        # With 1/k of the most frequent for the k-th, as words have it, the last merge would count this.
        pairs.least = max(pairs.least, int(-negative * ((len(made) - first + 1) / (last - first)) / ease))
        joined = made[key >> 32] + made[key & 0xFFFFFFFF]
        product = ids.setdefault(joined, len(made))
        if product < closed:
            pairs.drop(row)
            continue
        # Counts only fall but for the new ones, so each pair of `floor` is on the heap with its count or a greater one.
        for entry in pairs.merge(row, product, product < len(made), floor):
            heapq.heappush(heap, entry)
        # With an older product a pair can come back after it was merged.
        merges.setdefault(key, (product, -negative))
        if product == len(made):
            made.append(joined)
    keys = np.fromiter(merges, np.int64, len(merges))
    values = np.array([*merges.values()], np.int64).reshape(-1, 2)
    return Merges(
        np.stack([keys >> 32, keys & 0xFFFFFFFF], axis=1).astype(np.int32),
        values[:, 0].astype(np.int32),
        values[:, 1],
        made,
    )


Entry = tuple[int, int, int]
"""(-count, key, where its row begins) of a pair: the smallest is the one to merge next."""


class _Pairs:
    """The pairs that occur in a buffer."""

    def __init__(self, buffer: SymbolBuffer, tokens: int) -> None:
        """tokens: how many there will be at most."""
        self._text = buffer.symbols, buffer.starts, buffer.hints, buffer.counts
        self._changes = np.zeros(_SUM + 2 * tokens * _CHANGE, np.int64)
        self._rows = np.empty(2 * tokens, np.int64)
        self.count_all()

    def count_all(self) -> None:
        """Count all pairs of the text as it stands, their places in the order of the text."""
        # The old ones go before the new ones come.
        self._table, self._places = _new_table(0), np.empty(0, np.int32)
        self._used, p = np.zeros(4, np.int64), 1
        while p < len(self._text[0]) - 1:
            self.grow(int(self._used[ROWS]))
            p = _count_pairs(*self._text, p, self._table, self._used)
        rows = self._table.reshape(-1, PAIR)
        rows[:, START] = np.cumsum(rows[:, SIZE]) - rows[:, SIZE]
        self._used[PLACES] = rows[:, SIZE].sum()
        rows[:, SIZE] = 0
        self._used[LIMIT] = self._used[PLACES] * 5 // 4
        # A position is the place of one pair at most, so twice as many always suffice. What is not used is no memory.
        self._places = np.empty(2 * len(self._text[0]), np.int32)
        _note_pairs(*self._text, self._table, self._places)

    @property
    def least(self) -> int:
        """How often a pair must occur not to be left out."""
        return int(self._used[LEAST])

    @least.setter
    def least(self, count: int) -> None:
        self._used[LEAST] = count

    def refresh(self, heap: list[Entry], floor: int) -> bool:
        """Bring the pair that comes first to the top of a heap; False if none of `floor` is left.

        A pair's count may have fallen since it came on the heap; then it goes back with the count it has now. Where a
        count has risen, the pair is on the heap with that count too.
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
        """Leave the pair in a row alone as it stands."""
        self._table[row + COUNT] = 0

    def frequent(self) -> tuple[list[Entry], int]:
        """(a heap of the most frequent pairs, the count from which they are on it): half of the greatest, so that the
        heap is short and twice as many counts away from the next. Empty where no pair occurs as often as `least`."""
        rows = self._table.reshape(-1, PAIR)
        floor = max(1, self.least, int(rows[:, COUNT].max()) // 2)
        at = np.flatnonzero(rows[:, COUNT] >= floor)
        heap = list(
            zip((-rows[at, COUNT]).tolist(), rows[at, KEY].tolist(), (PAIR * at).tolist(), strict=True)
        )
        heapq.heapify(heap)
        return heap, floor

    def grow(self, reserve: int) -> bool:
        """Have room for `reserve` more rows; whether rows have moved. Pairs that have ended are dropped."""
        if 3 * PAIR * (self._used[ROWS] + reserve) <= 2 * len(self._table):
            return False
        self._table = _renew(self._table, self._used, reserve)
        return True

    def merge(self, row: int, product: int, known: bool, floor: int) -> list[Entry]:
        """Join all occurrences of the pair in a row; the new pairs that occur `floor` times. known: the product may
        occur elsewhere."""
        more = self._rows[
            : _merge_pair(
                *self._text,
                *(self._table, self._places, self._used, self._changes, self._rows),
                *(row, product, known, floor),
            )
        ]
        return [(-self._table.item(at + COUNT), self._table.item(at + KEY), at) for at in more.tolist()]


class _Text(NamedTuple):
    """A SymbolBuffer as pointers, for counting references to arrays took half of the time; size: positions."""

    size: Any
    symbols: Any
    starts: Any
    hints: Any
    counts: Any


_TEXT = types.NamedTuple((types.int64, _POINTER32, _POINTER32, _POINTER32, _POINTER), _Text)


@njit(_TEXT(types.int64, _POINTER32, _POINTER32, _POINTER32, _POINTER), inline=True)
def _text_of(size: Any, symbols: Any, starts: Any, hints: Any, counts: Any) -> Any:
    """A _Text of arrays, which must outlive it."""
    return _Text(size, symbols, starts, hints, counts)


@njit(types.int64(_POINTER32, types.int64), inline=True)
def _after(symbols: Any, p: Any) -> Any:
    """The position after the token that begins at p."""
    covered = symbols[p + 1]
    return p - covered if covered < BOUNDARY else p + 1


@njit(types.int64(_POINTER32, types.int64), inline=True)
def _before(symbols: Any, p: Any) -> Any:
    """The position where the token before p begins, or the boundary before p."""
    covered = symbols[p - 1]
    return p + covered if covered < BOUNDARY else p - 1


@njit(types.int64(_TEXT, types.int64), inline=True)
def _count_at(text: Any, p: Any) -> Any:
    """How often the word occurs that position p is in."""
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
    """Join all occurrences of the pair in `row` to `product`; of its new pairs those that occur `floor` times are then
    the first of `rows`, so many as it returns.

    known: the product is a token that may occur elsewhere. Then pairs with it count anew with all their occurrences, as
    some were left out. The table has room for two new pairs with each token there is. `changes` is zero before and
    after.
    """
    text = _text_of(len(symbols), symbols.ctypes, starts.ctypes, hints.ctypes, counts.ctypes)
    size, key, noted, pairs = len(table), table[row + KEY], changes.ctypes, table.ctypes
    # 1. In the text: join, and add up by token what is gone and what is new.
    start, stop = table[row + START], table[row + START] + table[row + SIZE]
    made = np.empty(4 * (stop - start), np.int32)
    n = _join_all(text, key, product, places.ctypes, start, stop, noted, made.ctypes)
    table[row + SIZE] = 0
    # 2. Of an older product, pairs that were left out may have become frequent: count them with all occurrences.
    if known:
        _drop_gone(pairs, size, noted, key)
        _forget(noted)
        made, n = _pairs_with(text, product, noted)
    # 3. In the table: a row and a run of places for each new pair that is frequent enough.
    new = changes[_NEW]
    room = _take_rows(pairs, size, used.ctypes, noted, product, rows.ctypes)
    if used[PLACES] + room > used[LIMIT]:
        _tidy(text, pairs, size, places.ctypes, used.ctypes)
        used[LIMIT] = used[PLACES] + used[PLACES] // 4 + room
    _make_room(pairs, used.ctypes, noted, rows.ctypes)
    _note_places(places.ctypes, noted, made.ctypes, n)
    # 4. What is gone, last: in a run such as aaaa a pair that has just been made may be gone again.
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
    """Join all occurrences of a pair, overlapping ones from left to right; returns how many new pairs are in `made`.

    Only a pair of equal tokens overlaps itself, in a run of that token. A run is joined at once, from its beginning.
    """
    symbols = text.symbols
    a, b = key >> 32, key & 0xFFFFFFFF
    n = 0
    for k in range(start, stop):
        far = np.int64(places[min(k + 2 * _AHEAD, stop - 1)])
        near = np.int64(places[min(k + _AHEAD, stop - 1)])
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
            while symbols[_before(symbols, p)] == a:
                p = _before(symbols, p)
        while symbols[p] == a and symbols[_after(symbols, p)] == b:
            n = _join(text, p, product, changes, made, n)
            p = _after(symbols, p)
    return n


@njit(types.int64(_TEXT, types.int64, types.int64, _POINTER, _POINTER32, types.int64), inline=True)
def _join(text: Any, p: Any, product: Any, changes: Any, made: Any, n: Any) -> Any:
    """Join the token at p and the next one; appends slot and position of the new pairs to the `n` in `made`."""
    symbols = text.symbols
    q = _after(symbols, p)
    start, end = _before(symbols, p), _after(symbols, q)
    left, right = symbols[start], symbols[end]
    count = _count_at(text, p)
    # (left, a) and (b, right) end here; for (a, b) itself the caller sees to it.
    if left >= 0:
        _note(changes, _GONE, 2 * left, count)
    if right >= 0:
        _note(changes, _GONE, 2 * right + 1, count)
    # The product begins at p. Its length, negative, stands after its first position and at its last, where its
    # neighbours look for it; and where b began, so that a place noted for (b, right) does not find b any more.
    symbols[p] = product
    symbols[q] = symbols[p + 1] = symbols[end - 1] = p - end
    if left >= 0:
        slot = 2 * left + (left == product)  # (product, product) has two slots; this is the one
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
    """Note a change of a kind at one position, `count` times in the text."""
    at = _CHANGE * slot + kind
    if changes[at + _NOTED] == 0:
        changes[_CHANGE * changes[kind] + kind + _SLOT] = slot
        changes[kind] += 1
    changes[at + _NOTED] += 1
    changes[at + _SUM] += count


@njit(types.Tuple((_I32, types.int64))(_TEXT, types.int64, _POINTER))
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
        start, count = _before(symbols, p), _count_at(text, p)
        left, right = symbols[start], symbols[_after(symbols, p)]
        if left >= 0 and left != token:  # (token, token) is noted at the first
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
    """The pair of a slot as one integer: (token, right) or (left, token). Keys have the order of pairs."""
    token = slot >> 1
    if slot & 1:
        return (left << 32) | token
    return (token << 32) | right


@njit(types.int64(_POINTER, types.int64, _POINTER, _POINTER, types.int64, _POINTER))
def _take_rows(table: Any, size: Any, used: Any, changes: Any, product: Any, rows: Any) -> Any:
    """Write the row of each new pair to `rows`, one for each of the new slots, -1 for one that is left out; how many
    places they take. The row of a pair that there is, of an older product, begins anew: the changes are all of it.
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
        changes[change + _NOTED] = at


@njit(types.void(_POINTER32, _POINTER, _POINTER32, types.int64))
def _note_places(places: Any, changes: Any, made: Any, n: Any) -> Any:
    """Write the positions of the `n` new pairs in `made` into their runs."""
    for k in range(n):
        at = _CHANGE * made[2 * k] + _NEW + _NOTED
        if changes[at] >= 0:
            places[changes[at]] = made[2 * k + 1]
            changes[at] += 1


@njit(types.void(_POINTER, types.int64, _POINTER, types.int64))
def _drop_gone(table: Any, size: Any, changes: Any, key: Any) -> Any:
    """Subtract what is gone from the pairs with the left or the right token of the merge."""
    for k in range(changes[_GONE]):
        slot = changes[_CHANGE * k + _GONE + _SLOT]
        row = _find(table, size, _key(slot, key & 0xFFFFFFFF, key >> 32))
        if table[row + KEY] != FREE:
            table[row + COUNT] -= changes[_CHANGE * slot + _GONE + _SUM]


@njit(types.void(_POINTER))
def _forget(changes: Any) -> Any:
    """Make them no changes again."""
    for kind in (_GONE, _NEW):
        for k in range(changes[kind]):
            at = _CHANGE * changes[_CHANGE * k + kind + _SLOT] + kind
            changes[at + _SUM] = changes[at + _NOTED] = 0
        changes[kind] = 0


@njit(types.void(_TEXT, _POINTER, types.int64, _POINTER32, _POINTER))
def _tidy(text: Any, table: Any, size: Any, places: Any, used: Any) -> Any:
    """Keep the places alone where pairs still occur."""
    symbols, least = text.symbols, max(1, used[LEAST])
    # Runs move to the front in their order, so that none is overwritten before it is read. To meet them in it, the
    # first place of each gives its place to the number of the row, which is marked by being negative.
    row: Any
    for row in range(0, size, PAIR):
        if table[row + SIZE] > 0:
            start = table[row + START]
            table[row + START] = places[start]
            places[start] = -1 - row // PAIR
    at = end = np.int64(0)
    while at < used[PLACES]:
        if places[at] >= 0:  # of a pair that is merged or gone
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
    """Count pairs from position p on; returns the position where the table is short, or the last."""
    text, rows, size = (
        _text_of(len(symbols), symbols.ctypes, starts.ctypes, hints.ctypes, counts.ctypes),
        table.ctypes,
        len(table),
    )
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
    """The pair whose left token begins at p, or FREE if there is none."""
    a, b = np.int64(text.symbols[p]), np.int64(text.symbols[_after(text.symbols, p)])
    return (a << 32) | b if a >= 0 and b >= 0 else FREE


@njit(types.int64(_POINTER, types.int64, types.int64), inline=True)
def _find(table: Any, size: Any, key: Any) -> Any:
    """Where in a table of `size` integers the row of a pair begins, or the free row where it belongs."""
    mask = size - 1
    mixed = np.uint64(key) * np.uint64(0x9E3779B97F4A7C15)
    row = PAIR * np.int64(mixed >> np.uint64(32)) & mask
    while table[row + KEY] != key and table[row + KEY] != FREE:
        row = (row + PAIR) & mask
    return row


@njit(_I64(types.int64))
def _new_table(rows: Any) -> Any:
    """A table of at least `rows` rows, all free."""
    capacity = 1024
    while capacity < rows:
        capacity *= 2
    table = np.zeros(PAIR * capacity, np.int64)
    for row in range(0, len(table), PAIR):
        table[row + KEY] = FREE
    return table


@njit(_I64(_I64, _I64, types.int64))
def _renew(table: Any, used: Any, reserve: Any) -> Any:
    """The pairs that still occur often enough, in a table with room for `reserve` more."""
    least = max(1, used[LEAST])
    used[ROWS] = 0
    for row in range(0, len(table), PAIR):
        used[ROWS] += table[row + COUNT] >= least
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
