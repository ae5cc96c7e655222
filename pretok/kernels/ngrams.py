"""Runs of words that two sets of texts share, whatever their case, accents, punctuation and white space.

Input: documents as one array of bytes with offsets; once, the passages that are looked for. Output: the grams of the
passages, and which of them each document holds. A word is what `folding` leaves between separators. A gram is GRAM
words in a row, or all words of a passage that has fewer, down to SHORTEST.

A gram is its 64-bit rolling hash. Two grams of one hash count as one: of five million grams, a text of 10^12 words
holds one by chance with a probability of a quarter. The cost of a word is its cache misses, so most words ask two Bloom
filters and never the sorted hashes: one filter for all grams, one for the first SHORTEST words of passages that are
shorter than a gram, and only after such words are all lengths looked up. Words are hashed a block ahead, so that the
processor loads meanwhile what they will ask for.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from numba import types

from pretok.kernels.compile import BYTES, I64, U8, U64, njit
from pretok.kernels.eight_bytes import prefetch
from pretok.kernels.folding import PASSED_OVER, SEPARATOR, SEVERAL, fold_tables

GRAM = 13
"""Words of a gram, as in the overlap studies since "Language Models are Few-Shot Learners" (Brown et al., 2020)."""
SHORTEST = 8
"""Words of the shortest passage that is looked for; shorter ones are found by chance."""
BITS_PER_GRAM = 32
"""At least, in the filter of grams. Three bits per gram in one word of 64: some 0.1 % of other grams pass, each of
which costs a search among all grams."""
BITS_PER_OPENING = 64
"""In the filter of openings. There are few, and one that passes costs a look-up of six lengths at each of six words."""

BLOCK = 128
"""Words that are hashed before the first of them is looked for; more than GRAM."""

# All odd: multiplying by an odd number modulo 2**64 maps no two hashes to one.
_BASE = np.uint64(0x9E3779B97F4A7C15)
_LETTER = np.uint64(0xD6E8FEB86659FD93)
_MIX = np.uint64(0xFF51AFD7ED558CCD)
_POWERS = np.array([pow(0x9E3779B97F4A7C15, m, 1 << 64) for m in range(GRAM + 1)], np.uint64)
_POWER = pow(0x9E3779B97F4A7C15, GRAM, 1 << 64)
_RING = 15
"""Mask of the places of a ring that holds the last words."""

_ENTRIES = types.CPointer(types.uint32)
_U32 = types.Array(types.uint32, 1, "C", readonly=True)
_NEW_I64, _NEW_I32, _NEW_U64 = (
    types.Array(kind, 1, "C") for kind in (types.int64, types.int32, types.uint64)
)


@njit(types.UniTuple(types.int64, 2)(BYTES, types.int64, types.int64, _ENTRIES))
def _beyond_ascii(data: Any, i: Any, end: Any, entries: Any) -> Any:
    """Return (entry of the code point of several bytes at i, position after it); bytes that are cut off separate."""
    lead = np.int64(data[i])
    size = 2 if lead < 0xE0 else 3 if lead < 0xF0 else 4
    if i + size > end:
        return np.int64(SEPARATOR), end
    # A lead byte has as many ones as the character has bytes, then a zero, then bits of the code point.
    code = lead & (0x7F >> size)
    for k in range(1, size):
        code = code << 6 | np.int64(data[i + k]) & 0x3F
    # Invalid bytes can spell more than U+10FFFF.
    return np.int64(entries[min(code, 0x10FFFF)]), i + size


@njit(types.UniTuple(types.int64, 2)(BYTES, types.int64, types.int64, _ENTRIES), inline=True)
def _entry(data: Any, i: Any, end: Any, entries: Any) -> Any:
    """Return (entry of the code point at i, position after it)."""
    if data[i] < 0x80:
        return np.int64(entries[data[i]]), i + 1
    return _beyond_ascii(data, i, end, entries)


_WORD = types.Tuple((types.boolean, types.uint64, types.int64))


@njit(_WORD(BYTES, types.int64, types.int64, _ENTRIES, _ENTRIES), inline=True)
def _next_word(data: Any, i: Any, end: Any, entries: Any, several: Any) -> Any:
    """Find the first word from i on: (whether there is one, hash of its folded letters, where to go on)."""
    found, h = False, np.uint64(0)
    while i < end:
        entry, i = _entry(data, i, end, entries)
        if entry > PASSED_OVER:
            found = True
            if entry < SEVERAL:
                h = (h + np.uint64(entry)) * _LETTER
            else:
                place = entry - SEVERAL
                for k in range(place + 1, place + 1 + several[place]):
                    h = (h + np.uint64(several[k])) * _LETTER
        # What is PASSED_OVER (a mark, a soft hyphen) neither belongs to a word nor ends one.
        elif entry == SEPARATOR and found:
            break
    # In sums and products bits move up only. The shifts bring the high bits down to the low ones.
    h = (h ^ (h >> np.uint64(32))) * _MIX
    return found, h ^ (h >> np.uint64(29)), i


@njit(types.uint64(types.uint64, types.uint64, types.uint64, types.int64), inline=True)
def _key(now: Any, before: Any, power: Any, words: Any) -> Any:
    """Return the hash of the last `words` words, from the rolling hashes after them and before them."""
    # `now` is the sum of the words' hashes, each times _BASE to the number of words after it, and `before`
    # times the power is the same sum without the last ones. So their hash is left, modulo 2**64, whatever
    # stands before them. `words` keeps grams of different lengths apart.
    h = now - before * power + np.uint64(words)
    h = (h ^ (h >> np.uint64(32))) * _MIX
    return h ^ (h >> np.uint64(29))


@njit(types.uint64(types.uint64), inline=True)
def _bits_of(key: Any) -> Any:
    """Return the three bits of a key in its word of a filter; the word is chosen by the lowest bits of the key."""
    six, one = np.uint64(63), np.uint64(1)
    return (
        one << (key >> np.uint64(58))
        | one << ((key >> np.uint64(52)) & six)
        | one << ((key >> np.uint64(46)) & six)
    )


_GRAMS = types.Tuple((_NEW_U64, _NEW_I64, _NEW_U64))


@njit(_GRAMS(U8, I64, _U32, _U32, U64))
def _list_grams(data: Any, offsets: Any, entries: Any, several: Any, powers: Any) -> Any:
    """List all grams of the passages data[offsets[p]:offsets[p + 1]] as (keys, passages, openings), each (grams,).

    opening: the key of the first SHORTEST words of a short gram, 0 for others.
    """
    room = len(data) // 2 + 1  # a word and what separates it from the next take two bytes
    keys, passages, openings = np.empty(room, np.uint64), np.empty(room, np.int64), np.zeros(room, np.uint64)
    hashes = np.zeros(_RING + 1, np.uint64)  # the rolling hash after each of the last words
    text, table, expansions = data.ctypes, entries.ctypes, several.ctypes
    count = 0
    for p in range(len(offsets) - 1):
        i, n, now = offsets[p], 0, np.uint64(0)
        # The hash before the first word. All other places are written before they are read.
        hashes[0] = 0
        while True:
            found, h, i = _next_word(text, i, offsets[p + 1], table, expansions)
            if not found:
                break
            now, n = now * _BASE + h, n + 1
            hashes[n & _RING] = now
            if n >= GRAM:
                keys[count] = _key(now, hashes[(n - GRAM) & _RING], powers[GRAM], GRAM)
                passages[count] = p
                count += 1
        if SHORTEST <= n < GRAM:
            keys[count] = _key(now, np.uint64(0), powers[n], n)
            openings[count] = _key(hashes[SHORTEST], np.uint64(0), powers[SHORTEST], SHORTEST)
            passages[count] = p
            count += 1
    return keys[:count].copy(), passages[:count].copy(), openings[:count].copy()


@njit(types.void(U64, _NEW_U64))
def _fill_filter(keys: Any, bits: Any) -> Any:
    """Enter keys into a filter of words of 64 bits, their number a power of two."""
    for key in keys:
        bits[key & np.uint64(len(bits) - 1)] |= _bits_of(key)


@njit(types.boolean(types.uint64, U64), inline=True)
def _may_hold(key: Any, bits: Any) -> Any:
    """Return whether the three bits of the key are set.

    Other keys may have set them, so True may be a false positive.
    """
    wanted = _bits_of(key)
    return bits[key & np.uint64(len(bits) - 1)] & wanted == wanted


@njit(types.int64(types.uint64, U64))
def _look_up(key: Any, keys: Any) -> Any:
    """Return the number of a key among rising keys, or -1."""
    number = np.searchsorted(keys, key)
    return number if number < len(keys) and keys[number] == key else -1


@njit(types.UniTuple(types.int64, 2)(BYTES, types.int64, types.int64, _ENTRIES, _ENTRIES, U64, _NEW_U64))
def _hash_words(text: Any, i: Any, end: Any, entries: Any, several: Any, bits: Any, hashes: Any) -> Any:
    """Take up to BLOCK words from i on; (how many, where to go on).

    hashes: (GRAM + BLOCK,) the rolling hash after each of the GRAM words before, then after each of these. When this
    returns, the words of the filter that their grams ask for are being loaded.
    """
    power, last = np.uint64(_POWER), np.uint64(len(bits) - 1)
    filter_words, now, n = bits.ctypes, hashes[GRAM - 1], 0
    while n < BLOCK:
        found, h, i = _next_word(text, i, end, entries, several)
        if not found:
            break
        now = now * _BASE + h
        hashes[GRAM + n] = now
        # hashes[n] lies GRAM words before. In the first words of a document it is 0 and the key is of no
        # gram; the place is inside the filter all the same.
        prefetch(filter_words, np.int64(_key(now, hashes[n], power, GRAM) & last))
        n += 1
    return n, i


_FOUND = types.Tuple((_NEW_I64, _NEW_I32))


@njit(_FOUND(U8, I64, _U32, _U32, U64, U64, U64, U64))
def _find(
    data: Any, offsets: Any, entries: Any, several: Any, powers: Any, keys: Any, bits: Any, openings: Any
) -> Any:
    """See `find_grams`."""
    hit_offsets, hits, count = np.zeros(len(offsets), np.int64), np.empty(256, np.int32), 0
    seen = np.zeros(len(keys), np.uint8)  # grams that the document holds already
    hashes = np.zeros(GRAM + BLOCK, np.uint64)
    text, table, expansions = data.ctypes, entries.ctypes, several.ctypes
    for d in range(len(offsets) - 1):
        i, before, last_short = offsets[d], 0, -1
        hashes[:GRAM] = 0
        while True:
            n, i = _hash_words(text, i, offsets[d + 1], table, expansions, bits, hashes)
            for at in range(GRAM, GRAM + n):
                words = before + at - GRAM + 1
                shortest = GRAM + 1
                if words >= GRAM and _may_hold(_key(hashes[at], hashes[at - GRAM], powers[GRAM], GRAM), bits):
                    shortest = GRAM
                if words >= SHORTEST and _may_hold(
                    _key(hashes[at], hashes[at - SHORTEST], powers[SHORTEST], SHORTEST), openings
                ):
                    last_short = words + GRAM - 1 - SHORTEST  # a short gram may end at one of the next words
                if words <= last_short:
                    shortest = SHORTEST
                for length in range(shortest, min(GRAM, words) + 1):
                    gram = _look_up(_key(hashes[at], hashes[at - length], powers[length], length), keys)
                    if gram >= 0 and not seen[gram]:
                        if count == len(hits):
                            # Twice as long each time, so all copies together cost no more than the hits
                            # themselves.
                            hits = np.append(hits, np.empty(len(hits), np.int32))
                        hits[count] = gram
                        seen[gram] = 1
                        count += 1
            before += n
            if n < BLOCK:
                break
            # The hashes before the next block. The two stretches do not overlap, as BLOCK is more than GRAM.
            hashes[:GRAM] = hashes[BLOCK:]
        # Clear what was set and not the whole array: there may be millions of grams, a document has few.
        for k in range(hit_offsets[d], count):
            seen[hits[k]] = 0
        hit_offsets[d + 1] = count
    return hit_offsets, hits[:count].copy()


@dataclass(frozen=True, slots=True)
class Grams:
    """The distinct grams of passages, sorted for the search."""

    keys: npt.NDArray[np.uint64]
    """(grams,) the hash of each, rising."""
    bits: npt.NDArray[np.uint64]
    """A filter of the keys."""
    openings: npt.NDArray[np.uint64]
    """A filter of the first SHORTEST words of short grams."""


def _filter(keys: npt.NDArray[np.uint64], bits_per_key: int) -> npt.NDArray[np.uint64]:
    words = max(1, len(keys) * bits_per_key // 64)
    # A power of two, so that a mask chooses the word of a key.
    bits = np.zeros(1 << (words - 1).bit_length(), np.uint64)
    _fill_filter(keys, bits)
    return bits


def list_grams(
    data: npt.NDArray[np.uint8], offsets: npt.NDArray[np.int64]
) -> tuple[Grams, npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """List the grams of the passages data[offsets[p]:offsets[p + 1]].

    Returns (the distinct grams; the gram at each of their places; the passage of each place), the last two of shape
    (places,), in the order of the passages.
    """
    keys, passages, openings = _list_grams(data, offsets, *fold_tables(), _POWERS)
    distinct, gram = np.unique(keys, return_inverse=True)
    bits = _filter(distinct, BITS_PER_GRAM)
    short = _filter(np.unique(openings[openings != 0]), BITS_PER_OPENING)
    return Grams(distinct, bits, short), gram, passages


def find_grams(
    grams: Grams, data: npt.NDArray[np.uint8], offsets: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int32]]:
    """Find the distinct grams of each document data[offsets[d]:offsets[d + 1]].

    Returns (at, hits): those of document d are hits[at[d]:at[d + 1]], in the order of their first places.
    """
    hits: tuple[npt.NDArray[np.int64], npt.NDArray[np.int32]] = _find(
        data, offsets, *fold_tables(), _POWERS, grams.keys, grams.bits, grams.openings
    )
    return hits
