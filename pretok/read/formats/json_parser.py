"""JSON Lines -> texts and kept columns: a validating parser in Numba that walks each line once.

Input: a block of whole lines as bytes, the name of the text field and the columns to keep. Output: the unescaped texts,
concatenated, with their offsets, as in Arrow; a column for each kept field; and a status for every record. A record is
a line that is not blank. No Python object is made per line. The caller checks the texts for UTF-8.

A name with dots is a path: `meta.text` is the key `text` in the object `meta`. In a line without that path, the whole
name is looked up as one key. A repeated key has its last value, as in the json module.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numba import types

from pretok.base.tokens import Bytes, Ints
from pretok.kernels import characters as char
from pretok.kernels.compile import BYTES, I64, U8, njit
from pretok.kernels.eight_bytes import first_marked, load64, newlines
from pretok.read.formats.json_scan import MAX_DEPTH, Pointer, copy_string, skip_key, skip_space, skip_value
from pretok.read.kept import LONGEST_VALUE, KeptColumn, KeptValues, keep_json
from pretok.read.rejects import (
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

_BLANK = 255
"""Status of a line that is not a record."""
NO_LIMIT = np.iinfo(np.int64).max
SHORTEST = len(b'{"":"a"}\n')
"""Bytes of the shortest line with a text."""

_OUT = types.uint8[::1]
_LONGS = types.int64[::1]
_PAIRS = types.int64[:, ::1]
_SPANS = types.int64[:, :, ::1]
_AT = types.int64


@njit(types.boolean(BYTES, types.int64, types.int64, BYTES, types.int64, types.int64, BYTES))
def _same_key(
    block: Pointer, start: int, stop: int, field: Pointer, first: int, last: int, scratch: Pointer
) -> bool:
    """Whether the key between its quotes at start:stop is field[first:last]. Escapes are resolved into `scratch`."""
    # Few keys have an escape; all others are compared where they stand.
    text, at, size = block, start, stop - start
    for i in range(start, stop):
        if block[i] == char.BACKSLASH:
            if stop - start > 6 * (last - first):
                return False  # each byte of the field may be escaped by six bytes, but not by more
            _, size, lone = copy_string(block, start, stop + 1, scratch, 0)
            if lone:
                return False
            text, at = scratch, 0
            break
    if size != last - first:
        return False
    for i in range(size):
        if text[at + i] != field[first + i]:
            return False
    return True


@njit(types.int64(BYTES, types.int64), inline=True)
def _key_end(block: Pointer, value: int) -> int:
    """Return the position of the closing quote of the key whose value starts at `value`.

    Only space and a colon are between them.
    """
    at = value - 1
    while block[at] != char.COLON:
        at -= 1
    while block[at] != char.QUOTE:
        at -= 1
    return at


_INTS = types.CPointer(types.int64)
_FIELDS = types.Tuple((_AT, BYTES, _INTS, _INTS))
"""(count, names, keys, paths): the number of fields, of which field 0 is the text; the keys of all, with a dot after
each; where each key starts in `names`; the first key of each field. Pointers, as arrays would be reference-counted at
every line."""
_SCRATCH = types.Tuple((BYTES, BYTES, _INTS))
"""(closers, unescaped, inner): see `skip_value`; a key without its escapes; for each field, the value of the first key
of its path."""
_PARSER = types.Tuple((_FIELDS, _SCRATCH, _AT, types.boolean, BYTES, _INTS))
"""(fields, scratch, longest, raw, out, spans): what stays the same from line to line; see `parse_lines`. The text of a
line goes to `out`, the places of its fields to `spans`."""


@njit(types.UniTuple(_AT, 2)(BYTES, _AT, _AT, _FIELDS, _AT, _SCRATCH))
def _descend(block: Pointer, at: int, end: int, fields: Any, field: int, scratch: Any) -> tuple[int, int]:
    """Find the value of a field inside the value of its first key, which is at `at` in a valid line.

    Returns where it begins and ends; (-1, -1) if there is none.
    """
    _, names, keys, paths = fields
    closers, unescaped, _ = scratch
    stop = end
    for key in range(paths[field] + 1, paths[field + 1]):
        if block[at] != char.OPEN_BRACE:
            return -1, -1
        inside = at + 1
        at = -1
        while True:
            name = skip_space(block, inside, end)
            if block[name] == char.CLOSE_BRACE:
                break
            value = skip_key(block, name, end)
            after = skip_value(block, value, end, closers)
            last = _key_end(block, value)
            if _same_key(block, name + 1, last, names, keys[key], keys[key + 1] - 1, unescaped):
                at, stop = value, after  # continue: of a repeated key, the last value counts
            inside = skip_space(block, after, end)
            if block[inside] == char.CLOSE_BRACE:
                break
            inside += 1
        if at < 0:
            return -1, -1
    return at, stop


@njit(types.UniTuple(_AT, 3)(BYTES, _AT, _AT, _PARSER, _AT, _AT), inline=True)
def _walk(block: Pointer, at: int, end: int, parser: Any, start: int, row: int) -> tuple[int, int, int]:
    """Walk the object whose brace is at `at`.

    Returns (position after it or -1, end of the text in `out`, 1 if the text escapes a lone surrogate).

    Writes to spans[row:] where the value of each field begins and ends, -1 for none. A text that is a string is
    unescaped to out[start:].
    """
    fields, scratch, _, _, out, spans = parser
    count, names, keys, paths = fields
    closers, unescaped, inner = scratch
    size, lone = start, 0
    text_key, text_end = keys[0], keys[paths[1]] - 1
    only_text = count == 1 and paths[1] == 1
    for field in range(count):
        spans[row + 2 * field] = spans[row + 2 * field + 1] = inner[field] = -1
    at = skip_space(block, at + 1, end)
    empty = at < end and block[at] == char.CLOSE_BRACE
    while not empty:
        key = at + 1
        begin = at = skip_key(block, at, end)
        if at < 0:
            return -1, size, lone
        stop = _key_end(block, at)
        is_text = _same_key(block, key, stop, names, text_key, text_end, unescaped)
        # The text is most of a line: it is validated and unescaped in one pass. All other values are only skipped.
        if is_text and at < end and block[at] == char.QUOTE:
            # From `start` also where the key is repeated: the last text replaces the one before.
            at, size, lone = copy_string(block, at + 1, end, out, start)
        else:
            at = skip_value(block, at, end, closers)
        if at < 0:
            return -1, size, lone
        if is_text:
            spans[row], spans[row + 1] = begin, at
        for field in range(0 if only_text else count):
            first, last = paths[field], paths[field + 1]
            if field and _same_key(block, key, stop, names, keys[first], keys[last] - 1, unescaped):
                spans[row + 2 * field], spans[row + 2 * field + 1] = begin, at
            if last - first > 1 and _same_key(
                block, key, stop, names, keys[first], keys[first + 1] - 1, unescaped
            ):
                inner[field] = begin  # searched below, as a later key of that name would replace it
        at = skip_space(block, at, end)
        if at >= end:
            return -1, size, lone
        if block[at] == char.CLOSE_BRACE:
            break
        if block[at] != char.COMMA:
            return -1, size, lone
        at = skip_space(block, at + 1, end)
    # The object is known to be valid from here on, so nothing in it is checked again.
    for field in range(count):
        if inner[field] >= 0:
            begin, stop = _descend(block, inner[field], end, fields, field, scratch)
            if begin >= 0:  # a path comes before a key of the whole name
                spans[row + 2 * field], spans[row + 2 * field + 1] = begin, stop
                if field == 0 and block[begin] == char.QUOTE:
                    _, size, lone = copy_string(block, begin + 1, end, out, start)
    return at + 1, size, lone


@njit(types.UniTuple(_AT, 2)(BYTES, _AT, _AT, _PARSER, _AT, _AT), inline=True)
def _parse_line(block: Pointer, at: int, end: int, parser: Any, start: int, row: int) -> tuple[int, int]:
    """Return (status, end of the text in `out`) of the line block[at:end], which should be one object."""
    fields, scratch, longest, raw, out, spans = parser
    at = skip_space(block, at, end)
    if at == end:
        return _BLANK, start
    if block[at] != char.OPEN_BRACE:
        at = skip_value(block, at, end, scratch[0])
        return NOT_AN_OBJECT if at >= 0 and skip_space(block, at, end) == end else MALFORMED, start
    stop, size, lone = _walk(block, at, end, parser, start, row)
    if stop < 0 or skip_space(block, stop, end) != end:
        return MALFORMED, start
    if raw and fields[1][0] == char.DOT:  # a field with an empty name is the whole record
        begin = at
    else:
        begin, stop = spans[row], spans[row + 1]
        if begin < 0:
            return MISSING, start
    first = block[begin]
    if first == char.QUOTE:
        status = TOO_LONG if size - start > longest else SURROGATE if lone else EMPTY if size == start else OK
        # What was unescaped of a rejected text is given up: the next text begins at `start` again.
        return status, size if status == OK else start
    if raw and (first == char.OPEN_BRACKET or first == char.OPEN_BRACE):
        if stop - begin > longest:
            return TOO_LONG, start
        for i in range(stop - begin):
            out[start + i] = block[begin + i]
        return OK, start + stop - begin
    return NULL if first == char.SMALL_N else NOT_A_STRING, start


@njit(types.int64(BYTES, types.int64, types.int64))
def _line_end(block: Pointer, at: int, end: int) -> int:
    """Return the position of the next line feed, or `end`."""
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
def _count_lines(block: Bytes) -> int:
    """Return the number of lines of the block, or one more."""
    count = 1
    for byte in block:
        count += byte == char.LINE_FEED
    return count


_TABLE = types.Tuple((_LONGS, _PAIRS, _LONGS, _OUT, _SPANS))
"""(offsets, places, numbers, status, spans): of the accepted texts, offsets and spans; of each record, place, line
number and status. See `ParsedLines`."""
_ROOM = types.Tuple((_OUT, _OUT, _LONGS))
"""The arrays of _SCRATCH. The caller makes them: Numba would free an array made here once its pointer is taken."""


@njit(types.UniTuple(_AT, 3)(U8, U8, I64, I64, _AT, _AT, types.boolean, _OUT, _TABLE, _ROOM))
def _parse_block(
    block: Bytes,
    names: Bytes,
    keys: Ints,
    paths: Ints,
    longest: int,
    longest_line: int,
    raw: bool,
    out: Bytes,
    table: Any,
    room: Any,
) -> tuple[int, int, int]:
    """Parse all lines into `out` and `table`; (lines, records, texts)."""
    offsets, places, numbers, status, spans = table
    count = len(paths) - 1
    closers, unescaped, inner = room
    fields = count, names.ctypes, keys.ctypes, paths.ctypes
    scratch = closers.ctypes, unescaped.ctypes, inner.ctypes
    parser = fields, scratch, longest, raw, out.ctypes, spans.ctypes
    source = block.ctypes
    lines = records = texts = size = at = 0
    offsets[0] = 0
    while at < len(block):
        end = _line_end(source, at, len(block))
        if end - at > longest_line:
            outcome = TOO_LONG
        else:  # if it is not OK, the next line overwrites its part of `out` and `spans`
            outcome, size = _parse_line(source, at, end, parser, size, 2 * count * texts)
        if outcome != _BLANK:
            places[records, 0], places[records, 1] = at, end
            numbers[records] = lines
            status[records] = outcome
            records += 1
        if outcome == OK:
            texts += 1
            offsets[texts] = size
        lines += 1
        at = end + 1
    return lines, records, texts


@njit(_AT(U8, I64, I64, types.boolean, _OUT, _LONGS, _OUT))
def _copy_values(
    block: Bytes, begins: Ints, ends: Ints, text: bool, out: Bytes, offsets: Ints, given: Bytes
) -> int:
    """Copy the values of one field to `out` as the file writes them; for a column of text, strings alone, unescaped.

    given: set to 1 for each value that exists and can be one of the column. Returns the bytes.
    """
    source, target = block.ctypes, out.ctypes
    size = 0
    offsets[0] = 0
    for row in range(len(begins)):
        at, end = begins[row], ends[row]
        first = block[at] if at >= 0 else char.SMALL_N
        given[row] = 0
        if first != char.SMALL_N:
            lone, stop = 0, size
            if text and first == char.QUOTE:
                _, stop, lone = copy_string(source, at + 1, end, target, size)
            elif not text:
                for i in range(end - at):
                    out[size + i] = block[at + i]
                stop = size + end - at
            else:
                lone = 1
            if not lone and not (text and stop - size > LONGEST_VALUE):
                given[row] = 1
                size = stop
        offsets[row + 1] = size
    return size


class ParsedLines(NamedTuple):
    """The contents of a block."""

    texts: Bytes
    """uint8, the accepted texts, concatenated."""
    offsets: Ints
    """(accepted + 1,) int64, where each text begins in `texts`; last, where the last one ends."""
    places: Ints
    """(records, 2) int64, where each record begins and ends in the block."""
    status: Bytes
    """(records,) uint8, an index of `rejects.REASONS`."""
    numbers: Ints
    """(records,) int64, the line of each record, from 0."""
    lines: int
    """How many there are, with blank ones."""
    kept: list[KeptValues]
    """The kept columns of the accepted records."""


def parse_lines(
    block: Bytes,
    field: str,
    keep: Sequence[KeptColumn] = (),
    longest: int = NO_LIMIT,
    longest_line: int = NO_LIMIT,
    raw: bool = False,
) -> ParsedLines:
    """Parse a block of whole lines (uint8; the last one may lack its line end) for the string `field`.

    longest, longest_line: bytes of the longest accepted text, and of the longest line that is parsed; raw: whether a
    field that is a list or an object is taken as JSON. The field "" is the whole record.
    """
    limit = _count_lines(block)
    shortest = len(b"{}\n") if raw and not field else SHORTEST
    accepted = min(limit, len(block) // shortest + 1)
    # No text is longer than the line that it comes from, so all of them fit.
    out = np.empty(len(block), np.uint8)
    offsets = np.empty(accepted + 1, np.int64)
    places = np.empty((limit, 2), np.int64)
    numbers = np.empty(limit, np.int64)
    status = np.empty(limit, np.uint8)
    spans = np.empty((accepted + 1, 1 + len(keep), 2), np.int64)
    fields = _paths((field, *(column.field for column in keep)))
    table = offsets, places, numbers, status, spans
    # Each byte of a key may be escaped by six bytes; a quote follows.
    unescaped = np.empty(6 * len(fields[0]) + 1, np.uint8)
    room = np.empty(MAX_DEPTH, np.uint8), unescaped, np.empty(1 + len(keep), np.int64)
    lines, records, texts = _parse_block(block, *fields, longest, longest_line, raw, out, table, room)
    return ParsedLines(
        out[: int(offsets[texts])],
        offsets[: texts + 1],
        places[:records],
        status[:records],
        numbers[:records],
        lines,
        [_column(block, spans[:texts, 1 + at], column.type) for at, column in enumerate(keep)],
    )


@lru_cache
def _paths(fields: tuple[str, ...]) -> tuple[Bytes, Ints, Ints]:
    """Return (names, keys, paths) of _FIELDS. Cached, as making them takes as long as parsing a small file."""
    dotted = [field.encode() + b"." for field in fields]
    names = np.frombuffer(b"".join(dotted), np.uint8).copy()
    keys = np.concatenate([[0], np.flatnonzero(names == ord(".")) + 1])
    return names, keys, np.cumsum([0, *(name.count(b".") for name in dotted)])


def _column(block: Bytes, spans: Ints, kind: str) -> KeptValues:
    """Return a kept column. spans: (texts, 2), where its values begin and end."""
    begins, ends = spans.T.copy()
    # A value that is missing has -1 for both and adds nothing.
    out = np.empty(int((ends - begins).sum()), np.uint8)
    offsets, given = np.empty(len(spans) + 1, np.int64), np.empty(len(spans), np.uint8)
    size = _copy_values(block, begins, ends, kind == "text", out, offsets, given)
    valid = pa.py_buffer(np.packbits(given, bitorder="little"))
    buffers = [valid, pa.py_buffer(offsets), pa.py_buffer(out[:size])]
    values = pa.Array.from_buffers(pa.large_binary(), len(spans), buffers)
    column = keep_json(values, kind)
    not_null = (begins >= 0) & (block[begins] != char.SMALL_N)
    return column, not_null & np.asarray(column.is_null())
