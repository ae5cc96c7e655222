"""UTF-8 documents -> words (pre-tokens), by the published patterns of byte-level BPE vocabularies.

Input: valid UTF-8 bytes. Output: the ends of the words, equal to what the pattern's regular expression gives in
`tokenizers` (Split, isolated). The classes of code points come in as a table, see `unicode`, so that the scanner can
be held against another engine with another version of Unicode. Invalid UTF-8 gives unspecified words, never a read
outside of the document.

`next_word` is the compiled core: other compiled loops call it. Each pattern is a function (data, i, end, table) ->
end of the word that begins at i; a word is never empty.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
from numba import types

from pretok.base.errors import UsageError
from pretok.kernels import characters as char
from pretok.kernels import unicode as u
from pretok.kernels.compile import BYTES, I64, U8, njit
from pretok.kernels.eight_bytes import but_ascii_letters, first_marked, from_0xca, load64

_CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"

PATTERNS: dict[str, str] = {
    "cl100k": (_CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|" + _SPACES),
    "gpt2": r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    "o200k": (
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+" + _CONTRACTIONS + "?|"
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*" + _CONTRACTIONS + "?|"
        r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|" + _SPACES
    ),
    "qwen2": (_CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|" + _SPACES),
}
"""Name -> regular expression, as it stands in the Split of a tokenizer.json.

All are published, and gigatoken knows them. qwen2 is cl100k but for digits, each of which is a word.
"""

CODES = {name: code for code, name in enumerate(PATTERNS)}
"""Name -> the number compiled code knows the pattern by."""

CL100K = CODES["cl100k"]
GPT2 = CODES["gpt2"]
O200K = CODES["o200k"]

LETTER = u.UPPER | u.LOWER | u.CASELESS
BLANK = u.SPACE | u.NEWLINE
KNOWN = LETTER | u.NUMBER | BLANK
"""What [^\\s\\p{L}\\p{N}] excludes."""
HEAD = u.UPPER | u.CASELESS | u.MARK
TAIL = u.LOWER | u.CASELESS | u.MARK

_POSITION = types.int64(BYTES, types.int64, types.int64, BYTES)
_RUN = types.int64(BYTES, types.int64, types.int64, BYTES, types.int64)


@njit(types.UniTuple(types.int64, 2)(BYTES, types.int64, types.int64, BYTES), inline=True)
def read_class(data: Any, i: Any, end: Any, table: Any) -> Any:
    """Return (flags of the code point at i, position after it); i must be less than `end`."""
    lead = np.int64(data[i])
    if lead < 0x80:
        return np.int64(table[lead]), i + 1
    size = 2 if lead < 0xE0 else 3 if lead < 0xF0 else 4
    if i + size > end:
        return np.int64(u.OTHER), end
    point = lead & (0x7F >> size)
    for k in range(1, size):
        point = (point << 6) | (np.int64(data[i + k]) & 0x3F)
    # Invalid bytes can spell more than U+10FFFF.
    return np.int64(table[min(point, u.CODE_POINTS - 1)]), i + size


@njit(_RUN, inline=True)
def skip(data: Any, i: Any, end: Any, table: Any, flags: Any) -> Any:
    """Return the position after the run of code points with one of `flags` that begins at i."""
    while i < end:
        flag, after = read_class(data, i, end, table)
        if flag & flags == 0:
            break
        i = after
    return i


@njit(_POSITION, inline=True)
def skip_letters(data: Any, i: Any, end: Any, table: Any) -> Any:
    """`skip` of LETTER; for most words it looks at eight bytes once."""
    while i + 8 <= end:
        mask = but_ascii_letters(load64(data, i))
        if mask == 0:
            i += 8
            continue
        # Not an ASCII letter, but perhaps one with an accent: then the run goes on after it.
        i += first_marked(mask)
        flag, after = read_class(data, i, end, table)
        if flag & LETTER == 0:
            return i
        i = after
    return skip(data, i, end, table, LETTER)


@njit(_RUN, inline=True)
def skip_not(data: Any, i: Any, end: Any, table: Any, flags: Any) -> Any:
    """Return the position after the run of code points with none of `flags` that begins at i."""
    while i < end:
        flag, after = read_class(data, i, end, table)
        if flag & flags:
            break
        i = after
    return i


@njit(types.int64(BYTES, types.int64, types.int64, types.boolean), inline=True)
def contraction(data: Any, i: Any, end: Any, fold: Any) -> Any:
    """Return the position after 's 't 're 've 'm 'll 'd at i, or i.

    `fold` ignores case, and then U+017F (ſ) is an s.
    """
    if i + 1 >= end or data[i] != char.APOSTROPHE:
        return i
    case = 0x20 if fold else 0  # the bit that tells small letters from capitals
    # Only S and s become s by this bit, and so for the other letters: no third byte passes.
    a = data[i + 1] | case
    if a == char.SMALL_S or a == char.SMALL_T or a == char.SMALL_M or a == char.SMALL_D:
        return i + 2
    if i + 2 < end:
        b = data[i + 2] | case
        if (a == char.SMALL_L and b == char.SMALL_L) or (
            (a == char.SMALL_R or a == char.SMALL_V) and b == char.SMALL_E
        ):
            return i + 3
        # Beyond ASCII only U+017F and U+212A fold to an ASCII letter, to s and k; no contraction has a k.
        if fold and data[i + 1] == 0xC5 and data[i + 2] == 0xBF:  # U+017F in UTF-8
            return i + 3
    return i


@njit(types.int64(BYTES, types.int64, types.int64, BYTES, types.boolean))
def skip_blanks(data: Any, i: Any, end: Any, table: Any, lines: Any) -> Any:
    r"""Skip \s+(?!\S)|\s+ and before these, if `lines`, \s*[\r\n]+, where i is white space.

    So the run of white space ends after its last newline; without one it leaves its last code point to the word that
    follows, unless nothing follows or that is all there is.
    """
    start, last, newline = i, i, i
    while i < end:
        flag, after = read_class(data, i, end, table)
        if flag & BLANK == 0:
            break
        last = i
        i = after
        if flag & u.NEWLINE:
            newline = after
    if lines and newline > start:
        return newline
    return i if i == end or last == start else last


@njit(types.int64(BYTES, types.int64, types.int64, BYTES, types.int64, types.int64, types.boolean))
def _no_letters(data: Any, i: Any, end: Any, table: Any, flag: Any, after: Any, slash: Any) -> Any:
    """Do what cl100k and o200k do where no word of letters begins; `flag` and `after` are read_class at i.

    With `slash`, the newlines that follow symbols may be mixed with slashes.
    """
    if flag & u.NUMBER:
        # \p{N}{1,3}: the first is before `after` already.
        for _ in range(2):
            if after < end:
                following, beyond = read_class(data, after, end, table)
                if following & u.NUMBER == 0:
                    break
                after = beyond
        return after
    symbols = i + 1 if data[i] == char.SPACE else i
    after = skip_not(data, symbols, end, table, KNOWN)
    if after > symbols:
        while after < end:
            byte = data[after]
            if byte != char.LINE_FEED and byte != char.RETURN and not (slash and byte == char.SLASH):
                break
            after += 1
        return after
    return skip_blanks(data, i, end, table, True)


@njit(types.int64(BYTES, types.int64, types.int64, BYTES, types.int64, types.int64), inline=True)
def _prefixed_letters(data: Any, i: Any, end: Any, table: Any, flag: Any, after: Any) -> Any:
    r"""Match [^\r\n\p{L}\p{N}]?\p{L}+ at i, else return i; `flag` and `after` are read_class at i."""
    if flag & LETTER:
        return skip_letters(data, after, end, table)
    if flag & (u.NUMBER | u.NEWLINE) == 0 and after < end:
        following, beyond = read_class(data, after, end, table)
        if following & LETTER:
            return skip_letters(data, beyond, end, table)
    return i


@njit(_POSITION)
def word_cl100k(data: Any, i: Any, end: Any, table: Any) -> Any:
    """Return where the word at i ends by the pattern `cl100k`."""
    after = contraction(data, i, end, True)
    if after > i:
        return after
    flag, after = read_class(data, i, end, table)
    letters = _prefixed_letters(data, i, end, table, flag, after)
    if letters > i:
        return letters
    return _no_letters(data, i, end, table, flag, after, False)


@njit(_POSITION)
def word_qwen2(data: Any, i: Any, end: Any, table: Any) -> Any:
    """Return where the word at i ends by the pattern `qwen2`."""
    flag, after = read_class(data, i, end, table)
    # No other alternative of cl100k can begin with a number, so the two patterns differ only there.
    return after if flag & u.NUMBER else word_cl100k(data, i, end, table)


@njit(_POSITION)
def word_gpt2(data: Any, i: Any, end: Any, table: Any) -> Any:
    """Return where the word at i ends by the pattern `gpt2`."""
    after = contraction(data, i, end, False)
    if after > i:
        return after
    # ` ?` takes one space. If more white space follows, skip_blanks begins at i again.
    start = i + 1 if data[i] == char.SPACE and i + 1 < end else i
    flag, after = read_class(data, start, end, table)
    if flag & LETTER:
        return skip_letters(data, after, end, table)
    if flag & u.NUMBER:
        return skip(data, after, end, table, u.NUMBER)
    if flag & BLANK == 0:
        return skip_not(data, after, end, table, KNOWN)
    return skip_blanks(data, i, end, table, False)


@njit(_POSITION)
def cased_run(data: Any, i: Any, end: Any, table: Any) -> Any:
    """Match HEAD* TAIL+ at i, else return i.

    HEAD* takes all it can. Where no lower-case letter follows, it gives back up to the last code point that is also a
    TAIL, and the match ends there.
    """
    common = i
    while i < end:
        flag, after = read_class(data, i, end, table)
        if flag & HEAD == 0:
            break
        i = after
        if flag & TAIL:
            common = after
    after = skip(data, i, end, table, TAIL)
    return after if after > i else common


@njit(_POSITION)
def word_o200k(data: Any, i: Any, end: Any, table: Any) -> Any:
    """Return where the word at i ends by the pattern `o200k`."""
    flag, after = read_class(data, i, end, table)
    if flag & (u.NUMBER | u.NEWLINE) == 0:
        start = i if flag & LETTER else after
        word = cased_run(data, start, end, table)
        # HEAD+ TAIL* is tried only where HEAD* TAIL+ failed: there no TAIL follows, so HEAD+ is all of it. A
        # mark that is no prefix of such a word is a TAIL itself: a word of one mark, which ends at `start`.
        if (
            word == start and flag & u.MARK == 0
        ):  # a mark counts as a letter: it is a word before it is a prefix
            word = skip(data, start, end, table, HEAD)
        if word > start or flag & u.MARK:
            return contraction(data, word, end, True)
    return _no_letters(data, i, end, table, flag, after, True)


@njit(types.int64(BYTES, types.int64, types.int64, BYTES, types.int64))
def next_word(data: Any, i: Any, end: Any, table: Any, code: Any) -> Any:
    """End of the word that begins at i < end, by the pattern of CODES numbered `code`."""
    if code == CL100K:
        return word_cl100k(data, i, end, table)
    if code == GPT2:
        return word_gpt2(data, i, end, table)
    if code == O200K:
        return word_o200k(data, i, end, table)
    return word_qwen2(data, i, end, table)


@njit(types.int64(U8, I64, U8, types.int64, types.Array(types.int64, 1, "C")))
def _word_ends(data: Any, offsets: Any, table: Any, code: Any, ends: Any) -> Any:
    words = 0
    for d in range(len(offsets) - 1):
        i, end = offsets[d], offsets[d + 1]
        while i < end:
            i = next_word(data.ctypes, i, end, table.ctypes, code)
            ends[words] = i
            words += 1
    return words


@njit(types.boolean(BYTES, types.int64, types.int64, BYTES))
def _has_unassigned(data: Any, i: Any, end: Any, table: Any) -> Any:
    while i < end:
        if i + 8 <= end:  # below U+0280 nothing is disputed
            mask = from_0xca(load64(data, i))
            if mask == 0:
                i += 8
                continue
            i += first_marked(mask)
        elif data[i] < 0xCA:
            i += 1
            continue
        flag, i = read_class(data, i, end, table)
        if flag == u.UNASSIGNED:
            return True
    return False


@njit(types.Array(types.boolean, 1, "C")(U8, I64, U8))
def _disputed(data: Any, offsets: Any, table: Any) -> Any:
    flags = np.zeros(len(offsets) - 1, np.bool_)
    for d in range(len(flags)):
        flags[d] = _has_unassigned(data.ctypes, offsets[d], offsets[d + 1], table.ctypes)
    return flags


def code_of(pattern: str) -> int:
    """Return the number of a pattern. Raises UsageError for a name that is not in PATTERNS."""
    try:
        return CODES[pattern]
    except KeyError:
        raise UsageError(f"there is no pattern {pattern!r}; the patterns are {', '.join(PATTERNS)}") from None


@cache
def _splitter(pattern: str) -> Any:
    from tokenizers import Regex, pre_tokenizers

    return pre_tokenizers.Split(Regex(PATTERNS[pattern]), "isolated")


def split_words(text: str, pattern: str) -> list[str]:
    """Split a text into words by `tokenizers`, a hundred times slower than `word_ends`.

    For small amounts of text, which are split before `word_ends` would be compiled.
    """
    return [word for word, _ in _splitter(pattern).pre_tokenize_str(text)]


def word_ends(
    data: npt.NDArray[np.uint8],
    offsets: npt.NDArray[np.int64],
    pattern: str,
    table: npt.NDArray[np.uint8] | None = None,
) -> npt.NDArray[np.int64]:
    """Return where the words of the documents data[offsets[d]:offsets[d + 1]] end in `data`, in order, int64[w].

    `table` gives the flags of each code point, uint8[0x110000]; without it, `unicode.class_table`.
    """
    # Words are never empty, so there are no more than bytes.
    ends = np.empty(int(offsets[-1] - offsets[0]), np.int64)
    table = u.class_table() if table is None else table
    return ends[: _word_ends(data, offsets, table, code_of(pattern), ends)].copy()


def disputed(
    data: npt.NDArray[np.uint8], offsets: npt.NDArray[np.int64], table: npt.NDArray[np.uint8] | None = None
) -> npt.NDArray[np.bool_]:
    """Return which documents hold a code point that engines may class differently, bool[d].

    These are the code points that have UNASSIGNED in `table`, uint8[0x110000], by default `unicode.disputed_classes`.
    An engine with a later Unicode may know them as letters, so documents that hold one are encoded by `tokenizers`
    itself. Nothing below U+0280 is ever disputed.
    """
    table = u.disputed_classes() if table is None else table
    flags: npt.NDArray[np.bool_] = _disputed(data, offsets, table)
    return flags
