"""The grammar of JSON, byte by byte: bytes -> where a value ends, and strings without their escapes. Compiled.

Input: a pointer to bytes, a start and an end. Output: the position after the value, or -1 if it is malformed; of a
string its unescaped bytes too. The grammar is RFC 8259 with two exceptions: NaN, Infinity and -Infinity are accepted,
as Python's json module writes them, and so are lone surrogate escapes, which `copy_string` reports.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types

from pretok.base.tokens import Bytes
from pretok.kernels import characters as char
from pretok.kernels.compile import BYTES, U8, njit
from pretok.kernels.eight_bytes import ends_plain_text, first_marked, load64, store64

Pointer = Any
"""The argument of compiled functions for one value, instead of an array (`BYTES`)."""

MAX_DEPTH = 1000
"""A line with containers nested deeper than this is malformed (the json module stops at about the same depth)."""
_SKIP = types.int64(BYTES, types.int64, types.int64)
"""(block, at, end) -> position after the value at `at`, or -1."""

_PLAIN, _QUOTE, _ESCAPE, _CONTROL = range(4)
_STRING_CLASS = np.zeros(256, np.uint8)
_STRING_CLASS[:32] = _CONTROL
_STRING_CLASS[ord('"')] = _QUOTE
_STRING_CLASS[ord("\\")] = _ESCAPE

_UNESCAPED = np.zeros(256, np.uint8)
for _letter, _byte in zip(b'"\\/bfnrt', b'"\\/\b\f\n\r\t', strict=True):
    _UNESCAPED[_letter] = _byte

_HEX = np.full(256, -1, np.int64)
for _digit, _letters in enumerate(zip(b"0123456789abcdef", b"0123456789ABCDEF", strict=True)):
    _HEX[list(_letters)] = _digit


_TRUE, _FALSE, _NULL, _NAN, _INFINITY = (
    np.frombuffer(word, np.uint8).copy() for word in (b"true", b"false", b"null", b"NaN", b"Infinity")
)


@njit(_SKIP)
def skip_space(block: Pointer, at: int, end: int) -> int:
    # A line feed is space to JSON too, but here it ends the line.
    while at < end and (block[at] == char.SPACE or block[at] == char.TAB or block[at] == char.RETURN):
        at += 1
    return at


@njit(_SKIP)
def _code_unit(block: Pointer, at: int, end: int) -> int:
    """Return the value of the four hexadecimal digits at `at`, or -1."""
    if at + 4 > end:
        return -1
    value = 0
    for i in range(4):
        digit = _HEX[block[at + i]]
        if digit < 0:
            return -1
        value = value * 16 + digit
    return value


@njit(_SKIP)
def _skip_string(block: Pointer, at: int, end: int) -> int:
    """Return the position after the closing quote of the string whose first character is at `at`, or -1."""
    while at < end:
        # The last bytes are looked at one by one, so that nothing after the string's line is read.
        if at + 8 <= end:
            mask = ends_plain_text(load64(block, at))
            if mask == 0:
                at += 8
                continue
            at += first_marked(mask)
        kind = _STRING_CLASS[block[at]]
        if kind == _PLAIN:
            at += 1
        elif kind == _QUOTE:
            return at + 1
        elif kind == _CONTROL or at + 1 >= end:
            return -1
        elif block[at + 1] == char.SMALL_U:
            if _code_unit(block, at + 2, end) < 0:
                return -1
            # The four digits are there, so this stays within `end`.
            at += 6
        elif _UNESCAPED[block[at + 1]] == 0:
            return -1
        else:
            at += 2
    return -1


@njit(types.int64(BYTES, types.int64, types.int64))
def _put_code_point(out: Pointer, size: int, point: int) -> int:
    """Write a code point as UTF-8 at `size`; return the new size."""
    if point < 0x80:
        out[size] = point
        return size + 1
    if point < 0x800:
        out[size] = 0xC0 | (point >> 6)
        out[size + 1] = 0x80 | (point & 0x3F)
        return size + 2
    if point < 0x10000:
        out[size] = 0xE0 | (point >> 12)
        out[size + 1] = 0x80 | ((point >> 6) & 0x3F)
        out[size + 2] = 0x80 | (point & 0x3F)
        return size + 3
    out[size] = 0xF0 | (point >> 18)
    out[size + 1] = 0x80 | ((point >> 12) & 0x3F)
    out[size + 2] = 0x80 | ((point >> 6) & 0x3F)
    out[size + 3] = 0x80 | (point & 0x3F)
    return size + 4


@njit(types.UniTuple(types.int64, 3)(BYTES, types.int64, types.int64, BYTES, types.int64))
def copy_string(block: Pointer, at: int, end: int, out: Pointer, size: int) -> tuple[int, int, int]:
    """Unescape the string at `at` into `out`.

    Returns (position after it or -1, new size, 1 if it escapes a lone surrogate, which is left out).

    Text is copied eight bytes at a time, so `out` needs as much room after `size` as `block` has after `at`.
    """
    lone = 0
    while at < end:
        if at + 8 <= end:
            # All eight bytes are written before it is known how many are plain: the next write covers the
            # rest. No escape is shorter than what it stands for, so `size` never grows faster than `at`, and
            # eight bytes that fit where they are read fit where they go.
            word = load64(block, at)
            store64(out, size, word)
            mask = ends_plain_text(word)
            if mask == 0:
                at += 8
                size += 8
                continue
            plain = first_marked(mask)
            at += plain
            size += plain
        byte = block[at]
        kind = _STRING_CLASS[byte]
        if kind == _PLAIN:
            out[size] = byte
            size += 1
            at += 1
        elif kind == _QUOTE:
            return at + 1, size, lone
        elif kind == _CONTROL or at + 1 >= end:
            return -1, size, lone
        elif block[at + 1] == char.SMALL_U:
            point = _code_unit(block, at + 2, end)
            at += 6
            if point < 0:
                return -1, size, lone
            if 0xD800 <= point < 0xE000:  # half of a pair of UTF-16, the first below 0xDC00
                # -1 is no second half, so a first half that none follows counts as lone.
                low = -1
                if (
                    point < 0xDC00
                    and at + 1 < end
                    and block[at] == char.BACKSLASH
                    and block[at + 1] == char.SMALL_U
                ):
                    low = _code_unit(block, at + 2, end)
                if 0xDC00 <= low < 0xE000:
                    point = 0x10000 + ((point - 0xD800) << 10) + (low - 0xDC00)
                    at += 6
                else:
                    # `at` stays before what follows, which may be the first half of a whole pair.
                    lone = 1
                    continue
            size = _put_code_point(out, size, point)
        else:
            unescaped = _UNESCAPED[block[at + 1]]
            if unescaped == 0:
                return -1, size, lone
            out[size] = unescaped
            size += 1
            at += 2
    return -1, size, lone


@njit(types.int64(BYTES, types.int64, types.int64, U8))
def _skip_word(block: Pointer, at: int, end: int, word: Bytes) -> int:
    """Return the position after `word` if it is at `at`, or -1."""
    if at + len(word) > end:
        return -1
    for i in range(len(word)):
        if block[at + i] != word[i]:
            return -1
    return at + len(word)


@njit(_SKIP)
def _skip_digits(block: Pointer, at: int, end: int) -> int:
    while at < end and char.ZERO <= block[at] <= char.NINE:
        at += 1
    return at


@njit(_SKIP)
def _skip_number(block: Pointer, at: int, end: int) -> int:
    """Return the position after the number at `at`, or -1: -?(0|[1-9][0-9]*)(.[0-9]+)?([eE][+-]?[0-9]+)?"""
    if at < end and block[at] == char.MINUS:
        at += 1
    if at < end and block[at] == char.CAPITAL_I:
        return _skip_word(block, at, end, _INFINITY)
    start = at
    at = _skip_digits(block, at, end)
    if at == start or (block[start] == char.ZERO and at > start + 1):
        return -1
    if at < end and block[at] == char.DOT:
        start = at + 1
        at = _skip_digits(block, start, end)
        if at == start:
            return -1
    if at < end and (block[at] == char.SMALL_E or block[at] == char.CAPITAL_E):
        at += 1
        if at < end and (block[at] == char.PLUS or block[at] == char.MINUS):
            at += 1
        start = at
        at = _skip_digits(block, start, end)
        if at == start:
            return -1
    return at


@njit(_SKIP)
def _skip_scalar(block: Pointer, at: int, end: int) -> int:
    """Return the position after the string, number or word at `at`, or -1."""
    if at >= end:
        return -1
    first = block[at]
    if first == char.QUOTE:
        return _skip_string(block, at + 1, end)
    if first == char.SMALL_T:
        return _skip_word(block, at, end, _TRUE)
    if first == char.SMALL_F:
        return _skip_word(block, at, end, _FALSE)
    if first == char.SMALL_N:
        return _skip_word(block, at, end, _NULL)
    if first == char.CAPITAL_N:
        return _skip_word(block, at, end, _NAN)
    return _skip_number(block, at, end)


@njit(_SKIP)
def skip_key(block: Pointer, at: int, end: int) -> int:
    """Return the position of the value after the key, colon and space at `at`, or -1."""
    if at >= end or block[at] != char.QUOTE:
        return -1
    at = _skip_string(block, at + 1, end)
    if at < 0:
        return -1
    at = skip_space(block, at, end)
    if at >= end or block[at] != char.COLON:
        return -1
    return skip_space(block, at + 1, end)


@njit(types.int64(BYTES, types.int64, types.int64, BYTES))
def skip_value(block: Pointer, at: int, end: int, closers: Pointer) -> int:
    """Return the position after any JSON value at `at`, or -1.

    `closers` is scratch: the bracket each open container awaits.
    """
    # A loop and not a recursion: a container costs a byte in `closers` and no frame of the stack.
    depth = 0
    # Each turn begins before a value: the first of a container, or the next after a comma.
    while True:
        if at < end and (block[at] == char.OPEN_BRACE or block[at] == char.OPEN_BRACKET):
            if depth == MAX_DEPTH:
                return -1
            closers[depth] = block[at] + 2  # '{' + 2 = '}', '[' + 2 = ']'
            depth += 1
            at = skip_space(block, at + 1, end)
            if at < end and block[at] == closers[depth - 1]:
                depth -= 1
                at += 1
            else:
                if closers[depth - 1] == char.CLOSE_BRACE:
                    at = skip_key(block, at, end)
                    if at < 0:
                        return -1
                continue
        else:
            at = _skip_scalar(block, at, end)
            if at < 0:
                return -1
        # A value has ended. Close the containers that end with it, up to one that goes on.
        while depth:
            at = skip_space(block, at, end)
            if at >= end:
                return -1
            if block[at] == closers[depth - 1]:
                depth -= 1
                at += 1
                continue
            if block[at] != char.COMMA:
                return -1
            at = skip_space(block, at + 1, end)
            if closers[depth - 1] == char.CLOSE_BRACE:
                at = skip_key(block, at, end)
                if at < 0:
                    return -1
            break
        if depth == 0:
            return at
