"""The hash against the xxhash library, fixed values, and selections."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from pretok.kernels.hashing import hash_documents, select


@given(documents=st.lists(st.binary(max_size=120), max_size=5), seed=st.integers(0, 2**64 - 1))
def test_equals_xxh64(documents: list[bytes], seed: int) -> None:
    data = np.frombuffer(b"".join(documents), np.uint8)
    offsets = np.cumsum([0, *map(len, documents)], dtype=np.int64)
    assert hash_documents(data, offsets, seed).tolist() == [
        xxhash.xxh64_intdigest(document, seed) for document in documents
    ]


def test_golden_values() -> None:
    """Splits of published corpora depend on these; they never change."""
    data = np.frombuffer(b"Nel mezzo del cammin di nostra vita", np.uint8)
    assert [f"{h:016x}" for h in hash_documents(data, np.array([0, 0, 3, 35]), 0)] == [
        "ef46db3751d8e999",
        "11a32e3eee4cf13e",
        "29931dc18125fd86",
    ]


def test_select_is_exact_and_nested() -> None:
    quarter = 2**62
    hashes = np.array([0, quarter - 1, quarter, 2**63, 2**64 - 1], np.uint64)
    assert select(hashes, 0).tolist() == [False] * 5
    assert select(hashes, Fraction(1, 4)).tolist() == [True, True, False, False, False]
    assert select(hashes, 0.5).tolist() == [True, True, True, False, False]
    assert select(hashes, 1).tolist() == [True] * 5
    assert select(hashes, Fraction(1, 2**64)).tolist() == [True, False, False, False, False]
