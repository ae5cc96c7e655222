"""What is written in LLVM's own terms does what plain Python does, whatever Numba and llvmlite became."""

from __future__ import annotations

import string

import numba
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from pretok.kernels import eight_bytes as eight

U64 = numba.types.uint64
WORDS = st.binary(min_size=8, max_size=8)


@numba.njit(numba.types.UniTuple(U64, 2)(numba.types.uint8[::1], numba.types.int64))
def _loads(data, at):
    return np.uint64(eight.load32(data.ctypes, at)), eight.load64(data.ctypes, at)


@numba.njit(numba.types.void(numba.types.uint8[::1], numba.types.int64, U64))
def _store(data, at, word):
    eight.store64(data.ctypes, at, word)


@numba.njit(U64(U64))
def _zeros(word):
    return eight.trailing_zeros(word)


@numba.njit(numba.types.int64(numba.types.int64[::1], numba.types.int64))
def _prefetched(numbers, at):
    eight.prefetch(numbers.ctypes, at)
    return numbers[at]


@given(st.binary(min_size=16, max_size=40), st.integers(0, 8), st.integers(0, 2**64 - 1))
def test_words_at_any_address(data: bytes, at: int, word: int) -> None:
    array = np.frombuffer(data, np.uint8).copy()
    assert _loads(array, at) == tuple(int.from_bytes(data[at : at + size], "little") for size in (4, 8))
    _store(array, at, word)
    assert array.tobytes() == data[:at] + word.to_bytes(8, "little") + data[at + 8 :]


@given(st.integers(0, 2**64 - 1))
def test_trailing_zeros(word: int) -> None:
    assert _zeros(word) == ((word & -word).bit_length() - 1 if word else 64)


def test_a_prefetch_changes_nothing() -> None:
    assert _prefetched(np.arange(9), 4) == 4


def first(data: bytes, wanted: set[int]) -> int | None:
    return next((i for i, byte in enumerate(data) if byte in wanted), None)


@given(WORDS)
def test_the_lowest_marked_byte_is_the_first_of_its_kind(data: bytes) -> None:
    word = int.from_bytes(data, "little")
    for mask, wanted in (
        (eight.ends_plain_text(word), {*range(0x20), ord('"'), ord("\\")}),
        (eight.newlines(word), {ord("\n")}),
        (eight.from_0xca(word), {*range(0xCA, 0x100)}),
        (eight.but_ascii_letters(word), {*range(0x100)} - {*string.ascii_letters.encode()}),
    ):
        assert (eight.first_marked(mask) if mask else None) == first(data, wanted)
