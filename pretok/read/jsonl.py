"""JSON Lines -> texts: a validating parser in Numba that copies one string field straight into an Arrow buffer.

Input: a block of whole lines as bytes, and the name of the field. Output: the unescaped texts in a row with their
offsets, and for every record a status. A record is a line, or blank lines in a row. No Python object is made per line.

A name with dots is a path: `meta.text` is the key `text` in the object `meta`. A line without that path is searched for
the whole name as one key. A key that repeats takes its last value, as in the json module; `json_values` has the
grammar. UTF-8 is checked by the caller on the texts.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numba import types

from pretok.base.tokens import Bytes, Ints
from pretok.kernels import characters as char
from pretok.kernels.compile import BYTES, I64, U8, njit
from pretok.kernels.eight_bytes import first_marked, load64, newlines
from pretok.read.json_values import MAX_DEPTH, Pointer, copy_string, skip_key, skip_space, skip_value
from pretok.read.rejects import (
    BLANK,
    EMPTY,
    MALFORMED,
    MISSING,
    NOT_A_STRING,
    NOT_AN_OBJECT,
    NULL,
    OK,
    SURROGATE,
    TOO_LONG,
)

NO_LIMIT = np.iinfo(np.int64).max
SHORTEST = len(b'{"":"a"}\n')
"""Bytes that a line with a text takes at least."""

_DOT = ord(".")
_OUT = types.uint8[::1]


@njit(types.boolean(BYTES, types.int64, types.int64, U8, types.int64, types.int64, _OUT))
def same_key(
    block: Pointer, start: int, stop: int, field: Bytes, first: int, last: int, scratch: Bytes
) -> bool:
    """Whether the key between its quotes at start:stop is field[first:last], escapes resolved into `scratch`."""
    escaped = False
    for i in range(start, stop):
        if block[i] == char.BACKSLASH:
            escaped = True
            break
    if escaped:
        if stop - start >= len(scratch):
            return False  # longer than six bytes for each byte of the field
        _, size, lone = copy_string(block, start, stop + 1, scratch.ctypes, 0)
        if lone or size != last - first:
            return False
        for i in range(size):
            if scratch[i] != field[first + i]:
                return False
        return True
    if stop - start != last - first:
        return False
    for i in range(last - first):
        if block[start + i] != field[first + i]:
            return False
    return True


@njit(types.int64(BYTES, types.int64), inline=True)
def key_end(block: Pointer, value: int) -> int:
    """Position of the closing quote of the key whose value starts at `value`: only space and a colon stand between."""
    at = value - 1
    while block[at] != char.COLON:
        at -= 1
    while block[at] != char.QUOTE:
        at -= 1
    return at


@njit(
    types.UniTuple(types.int64, 3)(BYTES, types.int64, types.int64, types.int64, BYTES, types.int64),
    inline=True,
)
def _copy_text(
    block: Pointer, at: int, end: int, longest: int, out: Pointer, start: int
) -> tuple[int, int, int]:
    """(status, position behind the string whose quote is at `at`, end of its copy in out[start:])."""
    at, size, lone = copy_string(block, at + 1, end, out, start)
    status = SURROGATE if lone else EMPTY if size == start else OK
    return TOO_LONG if size - start > longest else status, at, size


@njit(types.int64(BYTES, types.int64, types.int64, BYTES, types.int64), inline=True)
def _copy_raw(block: Pointer, begin: int, stop: int, out: Pointer, size: int) -> int:
    """Copy block[begin:stop] to out[size:]; the new size."""
    for i in range(stop - begin):
        out[size + i] = block[begin + i]
    return size + stop - begin


@njit(types.UniTuple(types.int64, 2)(BYTES, types.int64, types.int64, types.int64), inline=True)
def _leave(block: Pointer, at: int, end: int, level: int) -> tuple[int, int]:
    """Behind the braces that close objects of the path, and the level there; below 0 where they close the outermost."""
    while at < end and block[at] == char.CLOSE_BRACE:
        at += 1
        level -= 1
        if level < 0:
            break
        at = skip_space(block, at, end)
    return at, level


_PARSE = types.UniTuple(types.int64, 4)(
    BYTES, types.int64, types.int64, U8, I64, types.int64, types.boolean, BYTES, types.int64, _OUT, _OUT
)


@njit(_PARSE, inline=True)
def _parse_object(
    block: Pointer,
    at: int,
    end: int,
    field: Bytes,
    path: Ints,
    longest: int,
    raw: bool,
    out: Pointer,
    size: int,
    closers: Bytes,
    scratch: Bytes,
) -> tuple[int, int, int, int]:
    """Copy the text at `path` in the object whose brace is at `at` to out[size:].

    Returns (status, new size, where the value that was copied begins, and ends).

    path: where each key of it starts in `field`, and where one more would; a dot stands between two; raw: whether a
    list or object there is copied too, as it stands.
    """
    start = size
    status = MISSING
    begin = stop = -1
    level = 0  # how many keys of the path were entered: of all objects, only those on the path are open here
    at += 1
    opened = True
    while True:
        at = skip_space(block, at, end)
        if not (opened and at < end and block[at] == char.CLOSE_BRACE):
            key = at + 1
            at = skip_key(block, at, end)
            if at < 0:
                return MALFORMED, start, -1, -1
            if not same_key(block, key, key_end(block, at), field, path[level], path[level + 1] - 1, scratch):
                at = skip_value(block, at, end, closers)
            elif level + 2 < len(path):
                status, size = MISSING, start
                if at < end and block[at] == char.OPEN_BRACE:
                    level += 1
                    at += 1
                    opened = True
                    continue
                at = skip_value(block, at, end, closers)
            elif at < end and block[at] == char.QUOTE:
                begin = at
                status, at, size = _copy_text(block, at, end, longest, out, start)
                stop = at
            else:
                status = NULL if at < end and block[at] == char.SMALL_N else NOT_A_STRING
                begin = at
                at = skip_value(block, at, end, closers)
                if raw and at > 0 and (block[begin] == char.OPEN_BRACKET or block[begin] == char.OPEN_BRACE):
                    status, stop = TOO_LONG if at - begin > longest else OK, at
                    size = _copy_raw(block, begin, stop, out, start)
            if at < 0:
                return MALFORMED, start, -1, -1
            at = skip_space(block, at, end)
        at, level = _leave(block, at, end, level)
        if level < 0:
            break
        if at >= end or block[at] != char.COMMA:
            return MALFORMED, start, -1, -1
        at += 1
        opened = False
    if skip_space(block, at, end) != end:
        return MALFORMED, start, -1, -1
    return status, size if status == OK else start, begin, stop


@njit(_PARSE)
def _parse_line(
    block: Pointer,
    at: int,
    end: int,
    field: Bytes,
    path: Ints,
    longest: int,
    raw: bool,
    out: Pointer,
    size: int,
    closers: Bytes,
    scratch: Bytes,
) -> tuple[int, int, int, int]:
    """`_parse_object` for the object that should be all of block[at:end]."""
    at = skip_space(block, at, end)
    if at == end:
        return BLANK, size, -1, -1
    if block[at] == char.OPEN_BRACE:
        if raw and not len(field):  # all of the record
            stop = skip_value(block, at, end, closers)
            if stop < 0 or skip_space(block, stop, end) != end:
                return MALFORMED, size, -1, -1
            if stop - at > longest:
                return TOO_LONG, size, -1, -1
            return OK, _copy_raw(block, at, stop, out, size), at, stop
        return _parse_object(block, at, end, field, path, longest, raw, out, size, closers, scratch)
    at = skip_value(block, at, end, closers)
    if at >= 0 and skip_space(block, at, end) == end:
        return NOT_AN_OBJECT, size, -1, -1
    return MALFORMED, size, -1, -1


@njit(types.int64(BYTES, types.int64, types.int64))
def _line_end(block: Pointer, at: int, end: int) -> int:
    """Position of the next line feed, or `end`."""
    while at + 8 <= end:
        mask = newlines(load64(block, at))
        if mask != 0:
            at += first_marked(mask)
            return at
        at += 8
    while at < end and block[at] != char.LINE_FEED:
        at += 1
    return at


@njit(types.int64(U8))
def _most_records(block: Bytes) -> int:
    """At most how many records the block has: its lines, without those that are empty as is the one before."""
    source = block.ctypes
    count = at = 0
    before = False
    while at < len(block):
        end = _line_end(source, at, len(block))
        count += not (before and end == at)
        before = end == at
        at = end + 1
    return count


@njit(
    types.UniTuple(types.int64, 3)(
        U8,
        U8,
        I64,
        types.int64,
        types.int64,
        types.boolean,
        types.boolean,
        _OUT,
        types.int64[::1],
        types.int64[::1],
        types.int64[::1],
        _OUT,
        types.int64[:, ::1],
    )
)
def _parse_block(
    block: Bytes,
    field: Bytes,
    path: Ints,
    longest: int,
    longest_line: int,
    blank: bool,
    raw: bool,
    out: Bytes,
    offsets: Ints,
    starts: Ints,
    numbers: Ints,
    status: Bytes,
    spans: Ints,
) -> tuple[int, int, int]:
    """Parse all lines. Fills offsets and spans of the accepted texts, start, number of the line and status of each
    record; (lines, records, texts). blank: whether a blank line stands before the block, which goes on."""
    closers = np.empty(MAX_DEPTH, np.uint8)
    scratch = np.empty(6 * len(field) + 1, np.uint8)  # the longest escaped key and its quote
    whole = np.array([0, len(field) + 1])
    source, target = block.ctypes, out.ctypes
    lines = records = texts = size = at = 0
    offsets[0] = 0
    while at < len(block):
        end = _line_end(source, at, len(block))
        if end - at > longest_line:
            found, begin, stop = TOO_LONG, -1, -1
        else:
            found, size, begin, stop = _parse_line(
                source, at, end, field, path, longest, raw, target, size, closers, scratch
            )
            if found == MISSING and len(path) > 2:
                found, size, begin, stop = _parse_line(
                    source, at, end, field, whole, longest, raw, target, size, closers, scratch
                )
        if found != BLANK or not blank:
            starts[records] = at
            numbers[records] = lines
            status[records] = found
            records += 1
        blank = found == BLANK
        if found == OK:
            spans[texts, 0], spans[texts, 1] = begin, stop
            texts += 1
            offsets[texts] = size
        lines += 1
        at = end + 1
    starts[records] = len(block)
    return lines, records, texts


class ParsedLines(NamedTuple):
    """What is in a block.

    texts: uint8, the accepted texts in a row; offsets: (accepted + 1,) int64 into it; starts: (records + 1,) int64,
    where each record begins in the block; status: (records,) uint8, an index of `rejects.REASONS`; spans: (accepted, 2)
    int64, where the string of each text begins and ends in the block, quotes included; numbers: (records,) int64, the
    line of each record, from 0; lines: how many there are, those included that continue a blank one before the block.
    """

    texts: Bytes
    offsets: Ints
    starts: Ints
    status: Bytes
    spans: Ints
    numbers: Ints
    lines: int


def parse_lines(
    block: Bytes,
    field: Bytes,
    longest: int = NO_LIMIT,
    longest_line: int = NO_LIMIT,
    after_blank: bool = False,
    raw: bool = False,
) -> ParsedLines:
    """Parse a block of whole lines (uint8; the last one may lack its line end) for the string `field`.

    longest, longest_line: bytes of the longest text, and of the longest line that is parsed at all; after_blank:
    whether the line before the block is blank: blank ones at its beginning are then part of that record; raw: whether
    a field that is a list or an object is taken as it stands, as JSON. Without a name of a field it is the record.
    """
    limit = _most_records(block)
    accepted = min(limit, len(block) // SHORTEST + 1)
    out = np.empty(len(block), np.uint8)
    offsets = np.empty(accepted + 1, np.int64)
    starts = np.empty(limit + 1, np.int64)
    numbers = np.empty(limit, np.int64)
    status = np.empty(limit, np.uint8)
    spans = np.empty((accepted, 2), np.int64)
    lines, records, texts = _parse_block(
        block,
        field,
        _path(field.tobytes()),
        longest,
        longest_line,
        after_blank,
        raw,
        out,
        offsets,
        starts,
        numbers,
        status,
        spans,
    )
    return ParsedLines(
        out[: int(offsets[texts])],
        offsets[: texts + 1],
        starts[: records + 1],
        status[:records],
        spans[:texts],
        numbers[:records],
        lines,
    )


@lru_cache
def _path(field: bytes) -> Ints:
    """Where each key of a dotted name begins in it, and where one more would. Kept, as making it takes as long as
    parsing a small file."""
    return np.array([0, *(at + 1 for at, byte in enumerate(field) if byte == _DOT), len(field) + 1])


@lru_cache
def field_bytes(name: str) -> Bytes:
    """The field's name as `parse_lines` takes it."""
    array: Any = np.frombuffer(name.encode(), np.uint8)
    return array.copy()  # type: ignore[no-any-return]
