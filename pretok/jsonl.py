"""JSON Lines -> texts: a validating parser in Numba that copies one string field straight into an Arrow buffer.

Enters: a block of whole lines as bytes, and the name of the field. Leaves: the unescaped texts in a row with their
offsets, and for every line a status. No Python object is made per line.

The grammar is RFC 8259 with two tolerances, both for values that are not the text: NaN, Infinity and -Infinity (the
json module of Python writes them), and lone surrogate escapes. A key that repeats takes its last value, as in the
json module. UTF-8 is checked by the caller on the texts.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from numba import types

from pretok._numba import BYTES, U8, njit
from pretok._wide import ends_plain_text, first_marked, load64, newlines, store64

Bytes = npt.NDArray[np.uint8]

OK, BLANK, MALFORMED, NOT_AN_OBJECT, MISSING, NULL, NOT_A_STRING, SURROGATE, EMPTY = range(9)
REASONS = (
    "",
    "blank_line",
    "malformed_json",
    "not_an_object",
    "missing_field",
    "null_text",
    "text_not_a_string",
    "lone_surrogate",
    "empty_text",
)
"""Reason in the rejects ledger for each status."""

MAX_DEPTH = 1000
"""Containers nested deeper than this make a line malformed (the json module stops near the same depth)."""

_OUT = types.uint8[::1]
_SKIP = types.int64(BYTES, types.int64, types.int64)
"""(block, at, end) -> position after what stands at `at`, or -1."""

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
def _skip_space(block: Bytes, at: int, end: int) -> int:
    while at < end and (block[at] == 32 or block[at] == 9 or block[at] == 13):
        at += 1
    return at


@njit(_SKIP)
def _code_unit(block: Bytes, at: int, end: int) -> int:
    """Value of the four hexadecimal digits at `at`, or -1."""
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
def _skip_string(block: Bytes, at: int, end: int) -> int:
    """Position after the closing quote of the string whose first character is at `at`, or -1."""
    while at < end:
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
        elif block[at + 1] == 117:  # \u
            if _code_unit(block, at + 2, end) < 0:
                return -1
            at += 6
        elif _UNESCAPED[block[at + 1]] == 0:
            return -1
        else:
            at += 2
    return -1


@njit(types.int64(BYTES, types.int64, types.int64))
def _put_code_point(out: Bytes, size: int, point: int) -> int:
    """Write a code point as UTF-8 at `size`; the new size."""
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
def _copy_string(block: Bytes, at: int, end: int, out: Bytes, size: int) -> tuple[int, int, int]:
    """Unescape the string at `at` into `out`. (position after it or -1, new size, OK or SURROGATE).

    Text is copied eight bytes at a time, so `out` needs as much room behind `size` as `block` has behind `at`.
    """
    status = OK
    while at < end:
        if at + 8 <= end:
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
            return at + 1, size, status
        elif kind == _CONTROL or at + 1 >= end:
            return -1, size, status
        elif block[at + 1] == 117:  # \u
            point = _code_unit(block, at + 2, end)
            at += 6
            if point < 0:
                return -1, size, status
            if 0xD800 <= point < 0xE000:
                low = -1
                if point < 0xDC00 and at + 1 < end and block[at] == 92 and block[at + 1] == 117:
                    low = _code_unit(block, at + 2, end)
                if 0xDC00 <= low < 0xE000:
                    point = 0x10000 + ((point - 0xD800) << 10) + (low - 0xDC00)
                    at += 6
                else:
                    status = SURROGATE
                    continue
            size = _put_code_point(out, size, point)
        else:
            unescaped = _UNESCAPED[block[at + 1]]
            if unescaped == 0:
                return -1, size, status
            out[size] = unescaped
            size += 1
            at += 2
    return -1, size, status


@njit(types.int64(BYTES, types.int64, types.int64, U8))
def _skip_word(block: Bytes, at: int, end: int, word: Bytes) -> int:
    """Position after `word` if it stands at `at`, or -1."""
    if at + len(word) > end:
        return -1
    for i in range(len(word)):
        if block[at + i] != word[i]:
            return -1
    return at + len(word)


@njit(_SKIP)
def _skip_digits(block: Bytes, at: int, end: int) -> int:
    while at < end and 48 <= block[at] <= 57:
        at += 1
    return at


@njit(_SKIP)
def _skip_number(block: Bytes, at: int, end: int) -> int:
    """Position after the number at `at`, or -1: -?(0|[1-9][0-9]*)(.[0-9]+)?([eE][+-]?[0-9]+)?"""
    if at < end and block[at] == 45:
        at += 1
    if at < end and block[at] == 73:
        return _skip_word(block, at, end, _INFINITY)
    start = at
    at = _skip_digits(block, at, end)
    if at == start or (block[start] == 48 and at > start + 1):
        return -1
    if at < end and block[at] == 46:
        start = at + 1
        at = _skip_digits(block, start, end)
        if at == start:
            return -1
    if at < end and (block[at] == 101 or block[at] == 69):
        at += 1
        if at < end and (block[at] == 43 or block[at] == 45):
            at += 1
        start = at
        at = _skip_digits(block, start, end)
        if at == start:
            return -1
    return at


@njit(_SKIP)
def _skip_scalar(block: Bytes, at: int, end: int) -> int:
    """Position after the string, number or word at `at`, or -1."""
    if at >= end:
        return -1
    first = block[at]
    if first == 34:
        return _skip_string(block, at + 1, end)
    if first == 116:
        return _skip_word(block, at, end, _TRUE)
    if first == 102:
        return _skip_word(block, at, end, _FALSE)
    if first == 110:
        return _skip_word(block, at, end, _NULL)
    if first == 78:
        return _skip_word(block, at, end, _NAN)
    return _skip_number(block, at, end)


@njit(_SKIP)
def _skip_key(block: Bytes, at: int, end: int) -> int:
    """Position of the value after the key, colon and space at `at`, or -1."""
    if at >= end or block[at] != 34:
        return -1
    at = _skip_string(block, at + 1, end)
    if at < 0:
        return -1
    at = _skip_space(block, at, end)
    if at >= end or block[at] != 58:
        return -1
    return _skip_space(block, at + 1, end)


@njit(types.int64(BYTES, types.int64, types.int64, _OUT))
def _skip_value(block: Bytes, at: int, end: int, closers: Bytes) -> int:
    """Position after any JSON value at `at`, or -1. `closers` is scratch: the bracket each open container awaits."""
    depth = 0
    while True:
        if at < end and (block[at] == 123 or block[at] == 91):
            if depth == len(closers):
                return -1
            closers[depth] = block[at] + 2  # '{' + 2 = '}', '[' + 2 = ']'
            depth += 1
            at = _skip_space(block, at + 1, end)
            if at < end and block[at] == closers[depth - 1]:
                depth -= 1
                at += 1
            else:
                if closers[depth - 1] == 125:
                    at = _skip_key(block, at, end)
                    if at < 0:
                        return -1
                continue
        else:
            at = _skip_scalar(block, at, end)
            if at < 0:
                return -1
        while depth:
            at = _skip_space(block, at, end)
            if at >= end:
                return -1
            if block[at] == closers[depth - 1]:
                depth -= 1
                at += 1
                continue
            if block[at] != 44:
                return -1
            at = _skip_space(block, at + 1, end)
            if closers[depth - 1] == 125:
                at = _skip_key(block, at, end)
                if at < 0:
                    return -1
            break
        if depth == 0:
            return at


@njit(types.boolean(BYTES, types.int64, types.int64, U8, _OUT))
def _same_key(block: Bytes, start: int, stop: int, field: Bytes, scratch: Bytes) -> bool:
    """Whether the key between its quotes at start:stop is `field`, escapes resolved into `scratch` where it has any."""
    escaped = False
    for i in range(start, stop):
        if block[i] == 92:
            escaped = True
            break
    if escaped:
        if stop - start >= len(scratch):
            return False  # longer than six bytes for each byte of the field
        _, size, _ = _copy_string(block, start, stop + 1, scratch.ctypes, 0)
        if size != len(field):
            return False
        for i in range(size):
            if scratch[i] != field[i]:
                return False
        return True
    if stop - start != len(field):
        return False
    for i in range(len(field)):
        if block[start + i] != field[i]:
            return False
    return True


@njit(types.UniTuple(types.int64, 2)(BYTES, types.int64, types.int64, U8, BYTES, types.int64, _OUT, _OUT))
def _parse_line(
    block: Bytes, at: int, end: int, field: Bytes, out: Bytes, size: int, closers: Bytes, scratch: Bytes
) -> tuple[int, int]:
    """Copy the field of the object in block[at:end] to out[size:]. (status, new size)."""
    start = size
    at = _skip_space(block, at, end)
    if at == end:
        return BLANK, start
    if block[at] != 123:
        at = _skip_value(block, at, end, closers)
        if at >= 0 and _skip_space(block, at, end) == end:
            return NOT_AN_OBJECT, start
        return MALFORMED, start
    status = MISSING
    at = _skip_space(block, at + 1, end)
    if at < end and block[at] == 125:
        at += 1
    else:
        while True:
            key = at + 1
            at = _skip_key(block, at, end)
            if at < 0:
                return MALFORMED, start
            stop = at  # back to the key's closing quote: only the colon and space stand between
            while block[stop - 1] != 58:
                stop -= 1
            stop -= 1
            while block[stop - 1] != 34:
                stop -= 1
            if not _same_key(block, key, stop - 1, field, scratch):
                at = _skip_value(block, at, end, closers)
            elif at < end and block[at] == 34:
                at, size, status = _copy_string(block, at + 1, end, out, start)
                if status == OK and size == start:
                    status = EMPTY
            else:
                status = NULL if at < end and block[at] == 110 else NOT_A_STRING
                at = _skip_value(block, at, end, closers)
            if at < 0:
                return MALFORMED, start
            at = _skip_space(block, at, end)
            if at >= end:
                return MALFORMED, start
            if block[at] == 125:
                at += 1
                break
            if block[at] != 44:
                return MALFORMED, start
            at = _skip_space(block, at + 1, end)
    if _skip_space(block, at, end) != end:
        return MALFORMED, start
    return status, size if status == OK else start


@njit(_SKIP)
def _line_end(block: Bytes, at: int, end: int) -> int:
    """Position of the next line feed, or `end`."""
    while at + 8 <= end:
        mask = newlines(load64(block, at))
        if mask != 0:
            return at + first_marked(mask)
        at += 8
    while at < end and block[at] != 10:
        at += 1
    return at


@njit(types.UniTuple(types.int64, 2)(U8, U8, _OUT, types.int64[::1], types.int64[::1], _OUT))
def _parse_block(
    block: Bytes,
    field: Bytes,
    out: Bytes,
    offsets: npt.NDArray[np.int64],
    starts: npt.NDArray[np.int64],
    status: Bytes,
) -> tuple[int, int]:
    """Parse all lines. Fills offsets of the accepted texts, start and status of each line; (lines, texts)."""
    closers = np.empty(MAX_DEPTH, np.uint8)
    scratch = np.empty(6 * len(field) + 1, np.uint8)  # the longest escaped key and its quote
    lines = texts = size = at = 0
    offsets[0] = 0
    while at < len(block):
        end = _line_end(block.ctypes, at, len(block))
        starts[lines] = at
        status[lines], size = _parse_line(
            block.ctypes, at, end, field, out.ctypes, size, closers, scratch
        )
        if status[lines] == OK:
            texts += 1
            offsets[texts] = size
        lines += 1
        at = end + 1
    starts[lines] = len(block)
    return lines, texts


def parse_lines(
    block: Bytes, field: Bytes
) -> tuple[Bytes, npt.NDArray[np.int64], npt.NDArray[np.int64], Bytes]:
    """Parse a block of whole lines (uint8; the last one may lack its line end) for the string `field`.

    Returns (texts, offsets, starts, status): texts uint8, the accepted texts in a row; offsets (accepted + 1,)
    int64 into it; starts (lines + 1,) int64, where each line begins in `block`; status (lines,) uint8, an index
    of REASONS.
    """
    limit = int(np.count_nonzero(block == 10)) + 1
    out = np.empty(len(block), np.uint8)
    offsets = np.empty(limit + 1, np.int64)
    starts = np.empty(limit + 1, np.int64)
    status = np.empty(limit, np.uint8)
    lines, texts = _parse_block(block, field, out, offsets, starts, status)
    return out[: int(offsets[texts])], offsets[: texts + 1], starts[: lines + 1], status[:lines]


def field_bytes(name: str) -> Bytes:
    """The field's name as `parse_lines` takes it."""
    array: Any = np.frombuffer(name.encode(), np.uint8)
    return array.copy()  # type: ignore[no-any-return]
