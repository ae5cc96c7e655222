r"""Segments: the stretches of text that superwords may cover, as one regular expression and as one local rule.

Input: UTF-8 documents and which separators join words. Output: the coarse pattern for the Split of a tokenizer.json,
and the answer to whether the text on both sides of a position is in one segment.

A segment is a word of letters of the pattern cl100k (a contraction, or letters with at most one other character before
them) and all words of letters that follow it, each begun by an allowed separator. The coarse pattern cuts only where
cl100k cuts: where a word of letters has ended, and an apostrophe or a space and then a letter follow, cl100k finds a
contraction or else that character with all letters after it, which are the alternatives that the coarse pattern
repeats, in this order; and a comma before a space is a word by itself. A contraction that runs into letters, as in
`x'sopra`, has no separator after it, so the segment ends there as well. Conversely two words of letters with a
separator at their border are always in one segment. So the characters around a border decide, see `joined`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from numba import types

from pretok.kernels import characters as char
from pretok.kernels.compile import BYTES, I64, U8, njit
from pretok.kernels.pretokenize import LETTER, PATTERNS, read_class, word_ends
from pretok.kernels.unicode import class_table

BASE = "cl100k"
"""The pattern whose words segments are made of."""

SPACE, APOSTROPHE, COMMA = 1, 2, 4

SEPARATORS: dict[str, int] = {
    "space": SPACE,
    "space+apostrophe": SPACE | APOSTROPHE,
    "space+apostrophe+comma": SPACE | APOSTROPHE | COMMA,
}
"""Name -> flags: a space; an apostrophe, ' or U+2019; a comma with a space after it."""

_WORD = r"[^\r\n\p{L}\p{N}]?\p{L}+"


def _coarse(flags: int) -> str:
    """The coarse pattern that joins words at the separators `flags`."""
    contraction, rest = PATTERNS[BASE].split(f"|{_WORD}|")
    following = [contraction] if flags & APOSTROPHE else []
    following.append((",? " if flags & COMMA else " ") + r"\p{L}+")
    if flags & APOSTROPHE:
        following.append("['\u2019]\\p{L}+")
    return f"(?:{contraction}|{_WORD})(?:{'|'.join(following)})*|{rest}"


COARSE: dict[str, str] = {name: _coarse(flags) for name, flags in SEPARATORS.items()}
"""Name of the separators -> regular expression, as it stands in the Split of a tokenizer.json."""

FLAGS_OF: dict[str, int] = {COARSE[name]: flags for name, flags in SEPARATORS.items()}
"""Regular expression -> flags."""

MARKS: dict[int, tuple[bytes, ...]] = {SPACE: (b" ",), APOSTROPHE: (b"'", "\u2019".encode()), COMMA: (b",",)}
"""Flag -> the characters a word begins with that the separator joins to the one before."""

_AT = types.boolean(BYTES, types.int64, types.int64, BYTES)


@njit(_AT, inline=True)
def _letter_at(data: Any, i: Any, end: Any, table: Any) -> Any:
    """Whether a letter begins at i."""
    return i < end and read_class(data, i, end, table)[0] & LETTER != 0


@njit(_AT, inline=True)
def _letter_before(data: Any, start: Any, i: Any, table: Any) -> Any:
    """Whether a letter of the document that begins at `start` ends at i."""
    if i <= start:
        return False
    first = i - 1
    while first > start and data[first] & 0xC0 == 0x80:
        first -= 1
    return read_class(data, first, i, table)[0] & LETTER != 0


@njit(types.boolean(BYTES, types.int64, types.int64, types.int64, BYTES, types.int64))
def joined(data: Any, start: Any, at: Any, end: Any, table: Any, separators: Any) -> Any:
    """Whether a word ends at `at` in the document data[start:end] and the next belongs to the same segment.

    `separators` are the flags of SEPARATORS, `table` is `unicode.class_table`.
    """
    if at <= start or at >= end:
        return False
    mark = data[at]
    if mark == char.SPACE:
        if not _letter_at(data, at + 1, end, table):
            return False
        if separators & COMMA and data[at - 1] == char.COMMA:
            return _letter_before(data, start, at - 1, table)
        return _letter_before(data, start, at, table)
    if mark == char.COMMA and separators & COMMA:
        if at + 2 >= end or data[at + 1] != char.SPACE:
            return False
        return _letter_at(data, at + 2, end, table) and _letter_before(data, start, at, table)
    if separators & APOSTROPHE:
        after = at + 1
        if mark == 0xE2 and at + 3 < end and data[at + 1] == 0x80 and data[at + 2] == 0x99:
            after = at + 3  # U+2019 in UTF-8
        elif mark != char.APOSTROPHE:
            return False
        return _letter_at(data, after, end, table) and _letter_before(data, start, at, table)
    return False


@njit(types.Array(types.boolean, 1, "C")(U8, I64, U8, types.int64))
def _are_joined(data: Any, at: Any, table: Any, separators: Any) -> Any:
    found = np.zeros(len(at), np.bool_)
    for i in range(len(at)):
        found[i] = joined(data.ctypes, 0, at[i], len(data), table.ctypes, separators)
    return found


def segment_ends(data: npt.NDArray[np.uint8], separators: int) -> npt.NDArray[np.int64]:
    """Positions in one document where what the coarse pattern of these separators cuts ends, in order, int64[w]."""
    ends = word_ends(data, np.array([0, len(data)]), BASE)
    kept: npt.NDArray[np.int64] = ends[~_are_joined(data, ends, class_table(), separators)]
    return kept
