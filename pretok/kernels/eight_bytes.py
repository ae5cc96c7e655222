"""Eight bytes at a time, for compiled loops over text.

Input: a pointer to bytes and a position. Output: unaligned little-endian words, and masks of the bytes in a word that
a scanner must look at. The byte tests are those of "Bit Twiddling Hacks" (Sean Eron Anderson, Stanford): a borrow runs
upwards only, so the lowest bit of a mask is right, and higher ones may be wrong. Also prefetching.

Numba has no unaligned load and store, no prefetch and no count of trailing zeros, so these are written in LLVM's
intermediate representation with llvmlite, the layer below Numba. No other module imports it. `test_eight_bytes.py`
compares each with plain Python, in case Numba or llvmlite change.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from pretok.kernels.compile import BYTES, njit

_U64 = types.uint64
# One byte in all eight places of a word: to compare eight bytes by one subtraction.
_ONES = np.uint64(0x0101010101010101)
_HIGH = np.uint64(0x8080808080808080)
_QUOTES = np.uint64(0x22 * 0x0101010101010101)
_BACKSLASHES = np.uint64(0x5C * 0x0101010101010101)
_SPACES = np.uint64(0x20 * 0x0101010101010101)
_NEWLINES = np.uint64(0x0A * 0x0101010101010101)
_SEVEN_BITS = np.uint64(0x7F7F7F7F7F7F7F7F)
_TO_0XCA = np.uint64((0x80 - 0x4A) * 0x0101010101010101)
"""Added to the low seven bits of each byte, carries into the eighth from 0x4A on; 0xCA is 0x80 + 0x4A."""
_FROM_A = np.uint64((0x80 - 0x61) * 0x0101010101010101)
_AFTER_Z = np.uint64((0x80 - 0x7B) * 0x0101010101010101)
"""Added to seven bits, carry into the eighth from a on, and from what follows z on."""


def _loader(bits: int) -> Any:
    """Return a compiled function (bytes, position) -> little-endian unsigned integer of `bits`; no bounds check."""

    def load(_context: Any, _data: Any, _position: Any) -> Any:
        result = types.Integer.from_bitwidth(bits, signed=False)

        def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
            pointer = builder.gep(arguments[0], [arguments[1]])
            word = ir.IntType(bits)
            # align=1: text begins anywhere, so LLVM must not assume a multiple of 8.
            return builder.load(builder.bitcast(pointer, word.as_pointer()), align=1)

        return result(BYTES, types.int64), generate

    return intrinsic(load)


load32 = _loader(32)
load64 = _loader(64)


def _store64(_context: Any, _data: Any, _position: Any, _word: Any) -> Any:
    """Return a compiled function (bytes, position, uint64) that writes the word there, with no bounds check."""

    def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        data, position, word = arguments
        pointer = builder.bitcast(builder.gep(data, [position]), word.type.as_pointer())
        builder.store(word, pointer, align=1)
        return context.get_dummy_value()

    return types.void(BYTES, types.int64, types.uint64), generate


store64: Any = intrinsic(_store64)


def _trailing_zeros(_context: Any, _word: Any) -> Any:
    """Return a compiled function (uint64) -> number of zero bits below the lowest one that is set; 64 for 0."""

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        # The 0 makes the result for a word of 0 defined: 64.
        return builder.cttz(arguments[0], ir.IntType(1)(0))

    return _U64(_U64), generate


trailing_zeros: Any = intrinsic(_trailing_zeros)


def _prefetch(_context: Any, integers: Any, _position: Any) -> Any:
    """Return a compiled function (pointer to integers, position) that prefetches the cache line there."""

    def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        byte, number = ir.IntType(8).as_pointer(), ir.IntType(32)
        place = builder.bitcast(builder.gep(arguments[0], [arguments[1]]), byte)
        signature = ir.FunctionType(ir.VoidType(), [byte, number, number, number])
        load = builder.module.declare_intrinsic("llvm.prefetch", [byte], signature)
        # 1: to write; 3: into all levels of cache; 1: data.
        builder.call(load, [place, number(1), number(3), number(1)])
        return context.get_dummy_value()

    return types.void(types.CPointer(integers.dtype), types.int64), generate


prefetch: Any = intrinsic(_prefetch)


@njit(types.int64(_U64), inline=True)
def first_marked(mask: Any) -> Any:
    """Index of the lowest byte whose high bit is set.

    Test `mask == 0` first: a predicted branch lets the next word load at once, while a position computed from the mask
    makes it wait.
    """
    return np.int64(trailing_zeros(mask) >> np.uint64(3))


@njit(_U64(_U64), inline=True)
def ends_plain_text(word: Any) -> Any:
    """Mask of the bytes that interrupt a JSON string: quote, backslash and those below 0x20."""
    # After the XOR a quote is a byte of 0. Subtracting 1 sets its high bit by a borrow, and `~quotes` leaves
    # out the bytes that had that bit before; subtracting 0x20 finds the smaller ones alike. A borrow begins
    # only at a byte that is marked, so each of the three masks is right up to its lowest mark, and so is
    # their union.
    quotes = word ^ _QUOTES
    backslashes = word ^ _BACKSLASHES
    mask = ((quotes - _ONES) & ~quotes) | ((backslashes - _ONES) & ~backslashes) | ((word - _SPACES) & ~word)
    return mask & _HIGH


@njit(_U64(_U64), inline=True)
def newlines(word: Any) -> Any:
    """Mask of the bytes that are a line feed."""
    word = word ^ _NEWLINES
    return (word - _ONES) & ~word & _HIGH


@njit(_U64(_U64), inline=True)
def from_0xca(word: Any) -> Any:
    """Mask of the bytes of 0xCA or more: the lead bytes of U+0280 and above. All its bits are right."""
    # 0x7F + 0x36 is less than 0x100: no sum carries into the next byte.
    return ((word & _SEVEN_BITS) + _TO_0XCA) & word & _HIGH


@njit(_U64(_U64), inline=True)
def but_ascii_letters(word: Any) -> Any:
    """Mask of the bytes that are not an ASCII letter. All its bits are right."""
    small = (word | _SPACES) & _SEVEN_BITS  # a space is the bit that tells small letters from capitals
    # No sum carries into the next byte (0x7F + 0x1F). `word` marks what is not ASCII.
    return (~(small + _FROM_A) | (small + _AFTER_Z) | word) & _HIGH
