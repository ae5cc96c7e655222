"""What was read as one number: the same for any division of a batch, another for anything else read."""

from __future__ import annotations

import zlib

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from pretok.stream import data_hash, digest

TOKENS = np.random.default_rng(0).integers(0, 60_000, (12, 9))
POSITIONS = list(range(100, 112))


def test_it_is_the_sum_of_checksums_of_positions_and_ids() -> None:
    """By which runs that have begun go on: their metrics hold these numbers."""
    rows = zip(POSITIONS, TOKENS, strict=True)
    wanted = [np.int64(position).tobytes() + row.astype(np.int32).tobytes() for position, row in rows]
    for tokens in (TOKENS, TOKENS.astype(np.uint16), np.asfortranarray(TOKENS.astype(np.int32))):
        assert digest(POSITIONS, tokens) == sum(map(zlib.crc32, wanted))
    assert digest([7], [[1, 2, 3]]) == 631560674
    assert data_hash(data_hash("", 631560674), 5) == "3157a0c84426c2cf"


@given(st.permutations(range(12)), st.integers(0, 12), st.booleans())
def test_ranks_add_theirs_up(order: list[int], cut: int, masked: bool) -> None:
    learned = np.random.default_rng(1).random((12, 8)) < 0.9 if masked else None
    parts = [
        digest([POSITIONS[row] for row in part], TOKENS[part], None if learned is None else learned[part])
        for part in (order[:cut], order[cut:])
    ]
    assert sum(parts) == digest(POSITIONS, TOKENS, learned)


def test_whatever_is_learned_from_something_else_has_another_number() -> None:
    whole = np.ones((12, 8), np.bool_)
    assert digest(POSITIONS, TOKENS, whole) == digest(POSITIONS, TOKENS)
    found = {digest(POSITIONS, TOKENS), digest([*POSITIONS[:-1], 5], TOKENS)}
    for column in range(9):
        changed, less = TOKENS.copy(), whole.copy()
        changed[3, column] += 1
        less[3, column % 8] = False
        found |= {digest(POSITIONS, changed), digest(POSITIONS, TOKENS, less)}
    assert len(found) == 2 + 9 + 8
