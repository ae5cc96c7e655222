"""JSON Lines -> the values of some fields of each line, as Arrow columns of one type each, in Numba.

Input: a block of lines that `jsonl` accepted, and which fields of which types. Output: a column for each field, null
where a line has no such field or null, and which values are of another type. A name with dots is a path, or else the
whole name of one key, and of a key that repeats the last value counts, as for the text.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numba import types

from pretok.base.tokens import Bytes, Ints
from pretok.kernels import characters as char
from pretok.kernels.compile import BYTES, I64, U8, njit
from pretok.read.json_values import MAX_DEPTH, Pointer, copy_string, skip_key, skip_space, skip_value
from pretok.read.jsonl import key_end, same_key
from pretok.read.kept import LONGEST_VALUE, TYPES, KeptColumn, KeptValues, parse_floats

_OUT = types.uint8[::1]
_LONGS = types.int64[::1]
_SPANS = types.int64[:, ::1]
_KINDS = {kind: number for number, kind in enumerate(TYPES)}
_TEXT, _INTEGER, _FLOAT, _BOOLEAN = (_KINDS[kind] for kind in ("text", "integer", "float", "boolean"))
_GIVEN, _NULL, _WRONG = range(3)
_LEAST = -(2**63 // 10)


@njit(
    types.UniTuple(types.int64, 2)(
        BYTES, types.int64, types.int64, U8, I64, types.int64, types.int64, _OUT, _OUT
    )
)
def _descend(
    block: Pointer,
    at: int,
    end: int,
    names: Bytes,
    keys: Ints,
    first: int,
    last: int,
    closers: Bytes,
    scratch: Bytes,
) -> tuple[int, int]:
    """Where the value at the path keys[first:last] begins and ends, in the value at `at`; (-1, -1) where it is not."""
    stop = end
    for key in range(first, last):
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
            if same_key(block, name + 1, key_end(block, value), names, keys[key], keys[key + 1] - 1, scratch):
                at, stop = value, after
            inside = skip_space(block, after, end)
            if block[inside] == char.CLOSE_BRACE:
                break
            inside += 1
        if at < 0:
            return -1, -1
    return at, stop


@njit(types.void(U8, I64, I64, _SPANS, U8, I64, I64, types.int64, _SPANS, _SPANS))
def _find_spans(
    block: Bytes,
    starts: Ints,
    lines: Ints,
    texts: Ints,
    names: Bytes,
    keys: Ints,
    paths: Ints,
    longest: int,
    begins: Ints,
    ends: Ints,
) -> None:
    """Fill where the value of each column begins and ends in each of `lines`; -1 where there is none.

    keys: where each key of all paths starts in `names`, a dot after each; paths: the first key of each column.
    """
    source = block.ctypes
    closers = np.empty(MAX_DEPTH, np.uint8)
    scratch = np.empty(6 * longest + 1, np.uint8)
    columns = len(paths) - 1
    inner = np.empty(columns, np.int64)  # the value of a path's first key
    for row in range(len(lines)):
        end = starts[lines[row] + 1]
        if end > starts[lines[row]] and block[end - 1] == char.LINE_FEED:
            end -= 1
        for column in range(columns):
            begins[row, column] = ends[row, column] = inner[column] = -1
        at = skip_space(source, starts[lines[row]], end) + 1
        while True:
            name = skip_space(source, at, end)
            if block[name] == char.CLOSE_BRACE:
                break
            value = skip_key(source, name, end)
            # The text is most of a line, and where it ends is known.
            after = texts[row, 1] if value == texts[row, 0] else skip_value(source, value, end, closers)
            stop = key_end(source, value)
            for column in range(columns):
                first, last = paths[column], paths[column + 1]
                if same_key(source, name + 1, stop, names, keys[first], keys[last] - 1, scratch):
                    begins[row, column], ends[row, column] = value, after
                if last - first > 1 and same_key(
                    source, name + 1, stop, names, keys[first], keys[first + 1] - 1, scratch
                ):
                    inner[column] = value
            at = skip_space(source, after, end)
            if block[at] == char.CLOSE_BRACE:
                break
            at += 1
        for column in range(columns):
            if inner[column] >= 0:
                rest = paths[column] + 1
                begin, stop = _descend(
                    source, inner[column], end, names, keys, rest, paths[column + 1], closers, scratch
                )
                if begin >= 0:
                    begins[row, column], ends[row, column] = begin, stop


@njit(types.int64(BYTES, types.int64, types.int64, _LONGS, types.int64))
def _parse_integer(block: Pointer, at: int, end: int, values: Ints, row: int) -> int:
    """Put the number into values[row]; whether it is a whole one of 64 bits."""
    negative = block[at] == char.MINUS
    value = 0
    for i in range(at + negative, end):
        digit: Any = np.int64(block[i]) - char.ZERO  # Numba's own type: a byte would wrap
        if digit < 0 or digit > 9 or value < _LEAST or (value == _LEAST and digit > 8):
            return _WRONG
        value = value * 10 - digit  # as a negative number, of which there is one more
    if not negative and value == -(2**63):
        return _WRONG
    values[row] = value if negative else -value
    return _GIVEN


@njit(types.int64(U8, I64, I64, types.int64, _OUT, _LONGS, _LONGS, _OUT))
def _convert(
    block: Bytes,
    begins: Ints,
    ends: Ints,
    kind: int,
    out: Bytes,
    offsets: Ints,
    values: Ints,
    found: Bytes,
) -> int:
    """Convert one column: texts, unescaped, and numbers for `parse_floats` to `out`, the others to `values`; `found`
    says what each is."""
    source, target = block.ctypes, out.ctypes
    size = 0
    offsets[0] = 0
    for row in range(len(begins)):
        at, end = begins[row], ends[row]
        first = block[at] if at >= 0 else char.SMALL_N
        number = first == char.MINUS or char.ZERO <= first <= char.NINE
        found[row] = _WRONG
        if first == char.SMALL_N:
            found[row] = _NULL
        elif kind == _TEXT:
            if first == char.QUOTE:
                _, stop, lone = copy_string(source, at + 1, end, target, size)
                if not lone and stop - size <= LONGEST_VALUE:
                    found[row] = _GIVEN
                    size = stop
        elif kind == _BOOLEAN:
            if first == char.SMALL_T or first == char.SMALL_F:
                found[row] = _GIVEN
                values[row] = first == char.SMALL_T
        elif kind == _INTEGER:
            if number:
                found[row] = _parse_integer(source, at, end, values, row)
        elif number or first == char.CAPITAL_N or first == char.CAPITAL_I:  # NaN, Infinity
            found[row] = _GIVEN
            for i in range(at, end):
                out[size] = block[i]
                size += 1
        offsets[row + 1] = size
    return size


def kept_lines(
    block: Bytes, starts: Ints, lines: Ints, texts: Ints, columns: Sequence[KeptColumn]
) -> KeptValues:
    """The columns of `lines`, which are objects without fault that start at `starts` in the block.

    texts: (lines, 2), where the string of the text of each begins and ends.
    """
    names, keys, paths, longest = _paths(columns)
    begins = np.empty((len(lines), len(columns)), np.int64)
    ends = np.empty_like(begins)
    _find_spans(block, starts, lines, texts, names, keys, paths, longest, begins, ends)
    found = np.empty((len(columns), len(lines)), np.uint8)
    arrays = [
        _column(block, begins[:, i].copy(), ends[:, i].copy(), column.type, found[i])
        for i, column in enumerate(columns)
    ]

    def show(row: int, column: int) -> str:
        return bytes(block[begins[row, column] : ends[row, column]][:200]).decode("utf-8", "replace")

    return KeptValues(arrays, found == _WRONG, show)


def _paths(columns: Sequence[KeptColumn]) -> tuple[Bytes, Ints, Ints, int]:
    """Names, keys and paths as `_find_spans` takes them, and the bytes of the longest name."""
    fields = [column.field.encode() + b"." for column in columns]
    names = np.frombuffer(b"".join(fields), np.uint8)
    keys = np.concatenate([[0], np.flatnonzero(names == ord(".")) + 1])
    counts = [field.count(b".") for field in fields]
    return names.copy(), keys, np.concatenate([[0], np.cumsum(counts)]), max(map(len, fields))


def _column(block: Bytes, begins: Ints, ends: Ints, kind: str, found: Bytes) -> pa.Array:
    rows = len(begins)
    room = int((ends - begins).sum()) if kind in ("text", "float") else 0
    out = np.empty(room, np.uint8)
    offsets, values = np.empty(rows + 1, np.int64), np.zeros(rows, np.int64)
    size = _convert(block, begins, ends, _KINDS[kind], out, offsets, values, found)
    if kind in ("integer", "boolean"):
        made: Any = pa.array(values, pa.int64(), mask=found != _GIVEN)
        return made.cast(TYPES[kind])
    texts = _texts(out[:size], offsets, found)
    return parse_floats(texts) if kind == "float" else texts


def _texts(data: Bytes, offsets: Ints, found: Bytes) -> pa.LargeStringArray:
    """Texts with nulls; one that is not UTF-8 is of another type."""

    def array() -> pa.LargeStringArray:
        given = pa.py_buffer(np.packbits(found == _GIVEN, bitorder="little"))
        buffers = [given, pa.py_buffer(offsets), pa.py_buffer(data)]
        return pa.Array.from_buffers(pa.large_string(), len(found), buffers)

    texts = array()
    try:
        texts.validate(full=True)
    except pa.ArrowInvalid:
        for row in np.flatnonzero(found == _GIVEN):
            try:
                bytes(data[offsets[row] : offsets[row + 1]]).decode()
            except UnicodeDecodeError:
                found[row] = _WRONG
        kept = np.where(found == _GIVEN, np.diff(offsets), 0)
        inside = np.repeat(found == _GIVEN, np.diff(offsets))
        data = data[inside]
        offsets = np.concatenate([np.zeros(1, np.int64), kept.cumsum()])
        texts = array()
    return texts
