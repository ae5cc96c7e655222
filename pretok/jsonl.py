"""JSON Lines -> texts: a validating parser in Numba that copies one string field straight into an Arrow buffer.

Enters: a block of whole lines as bytes, and the name of the field. Leaves: the unescaped texts in a row with their
offsets, and for every line a status. No Python object is made per line.

A key that repeats takes its last value, as in the json module; `pretok.json_values` has the grammar. UTF-8 is checked
by the caller on the texts.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from numba import types

from pretok._numba import BYTES, U8, njit
from pretok._wide import first_marked, load64, newlines
from pretok.json_values import MAX_DEPTH, Pointer, copy_string, skip_key, skip_space, skip_value

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

_OUT = types.uint8[::1]


@njit(types.boolean(BYTES, types.int64, types.int64, U8, _OUT))
def _same_key(block: Pointer, start: int, stop: int, field: Bytes, scratch: Bytes) -> bool:
    """Whether the key between its quotes at start:stop is `field`, escapes resolved into `scratch` where it has any."""
    escaped = False
    for i in range(start, stop):
        if block[i] == 92:
            escaped = True
            break
    if escaped:
        if stop - start >= len(scratch):
            return False  # longer than six bytes for each byte of the field
        _, size, _ = copy_string(block, start, stop + 1, scratch.ctypes, 0)
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
    block: Pointer, at: int, end: int, field: Bytes, out: Pointer, size: int, closers: Bytes, scratch: Bytes
) -> tuple[int, int]:
    """Copy the field of the object in block[at:end] to out[size:]. (status, new size)."""
    start = size
    at = skip_space(block, at, end)
    if at == end:
        return BLANK, start
    if block[at] != 123:
        at = skip_value(block, at, end, closers)
        if at >= 0 and skip_space(block, at, end) == end:
            return NOT_AN_OBJECT, start
        return MALFORMED, start
    status = MISSING
    at = skip_space(block, at + 1, end)
    if at < end and block[at] == 125:
        at += 1
    else:
        while True:
            key = at + 1
            at = skip_key(block, at, end)
            if at < 0:
                return MALFORMED, start
            stop = at  # back to the key's closing quote: only the colon and space stand between
            while block[stop - 1] != 58:
                stop -= 1
            stop -= 1
            while block[stop - 1] != 34:
                stop -= 1
            if not _same_key(block, key, stop - 1, field, scratch):
                at = skip_value(block, at, end, closers)
            elif at < end and block[at] == 34:
                at, size, lone = copy_string(block, at + 1, end, out, start)
                status = SURROGATE if lone else EMPTY if size == start else OK
            else:
                status = NULL if at < end and block[at] == 110 else NOT_A_STRING
                at = skip_value(block, at, end, closers)
            if at < 0:
                return MALFORMED, start
            at = skip_space(block, at, end)
            if at >= end:
                return MALFORMED, start
            if block[at] == 125:
                at += 1
                break
            if block[at] != 44:
                return MALFORMED, start
            at = skip_space(block, at + 1, end)
    if skip_space(block, at, end) != end:
        return MALFORMED, start
    return status, size if status == OK else start


@njit(types.int64(BYTES, types.int64, types.int64))
def _line_end(block: Pointer, at: int, end: int) -> int:
    """Position of the next line feed, or `end`."""
    while at + 8 <= end:
        mask = newlines(load64(block, at))
        if mask != 0:
            at += first_marked(mask)
            return at
        at += 8
    while at < end and block[at] != 10:
        at += 1
    return at


@njit(types.int64(U8))
def _line_feeds(block: Bytes) -> int:
    """How many line feeds the block has."""
    count = 0
    for i in range(len(block)):
        count += block[i] == 10
    return count


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
        status[lines], size = _parse_line(block.ctypes, at, end, field, out.ctypes, size, closers, scratch)
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
    limit = _line_feeds(block) + 1  # without numpy's array of as many bytes
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
