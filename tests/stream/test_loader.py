"""What ranks read: every position once per pass, through any loader, across any change at a resume; and its digest."""

from __future__ import annotations

import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import EOD, make_shards, needs

import pretok.stream
from pretok.base.errors import UsageError
from pretok.stream import View, data_hash, digest
from pretok.stream.loader import Fetch, PositionSampler, as_read, document_boundaries


@pytest.fixture(scope="module")
def view(tmp_path_factory: pytest.TempPathFactory) -> View:
    documents = {"en": [range(1, 300)], "it": [range(300, 999)] * 2}
    return pretok.stream.open(make_shards(tmp_path_factory.mktemp("shards"), documents), seq_len=5)


def test_micro_batches_are_consecutive_parts_of_the_ranks_share() -> None:
    sampler = PositionSampler(40, global_batch=12, micro_batch=2, rank=1, world_size=3, position=1)
    expected = [[5, 6], [7, 8], [17, 18], [19, 20], [29, 30], [31, 32]]
    assert list(sampler) == list(sampler) == expected  # every pass starts at `position`
    assert len(sampler) == len(expected)
    sampler = PositionSampler(36, global_batch=12, micro_batch=2, rank=1, world_size=3, position=1)
    assert list(sampler) == expected[:4]  # a last global batch that is not full is not read
    assert len(sampler) == 4


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"micro_batch": 5}, "multiple of 5 x 1"),
        ({"micro_batch": 2, "world_size": 4}, "multiple of 2 x 4"),
        ({"micro_batch": 0}, "micro_batch = 0: give at least 1"),
        ({"micro_batch": 2, "rank": 3, "world_size": 3}, "rank 3 does not exist"),
        ({"micro_batch": 2, "position": 41}, "position 41"),
    ],
)
def test_impossible_sizes_are_refused(sizes: dict[str, int], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        PositionSampler(40, global_batch=12, **sizes)


def test_what_is_fetched_arrives_as_it_was_read(view: View) -> None:
    """From another process, in the bytes of the shards, with its digest; the trainer may write to it."""
    loaders = needs("torch").utils.data
    sampler = PositionSampler(len(view), global_batch=12, micro_batch=3)
    more = {"collate_fn": as_read, "num_workers": 1}
    loader = loaders.DataLoader(Fetch(view, digests=True), batch_sampler=sampler, **more)
    for positions, (ids, learned, found) in zip(sampler, loader, strict=True):
        np.testing.assert_array_equal(ids, view.batch(positions))
        assert (ids.dtype, learned, found) == (view.dtype, None, digest(positions, ids))
        ids += 1


@given(st.lists(st.lists(st.integers(0, 2), min_size=6, max_size=6), min_size=1, max_size=4), st.booleans())
def test_boundaries_cut_where_a_document_follows_eods_and_at_every_row(
    rows: list[list[int]], single: bool
) -> None:
    tokens = rows[0] if single else rows
    position_ids, cu_seqlens = document_boundaries(tokens, EOD)
    at, expected = 0, []
    for row in [rows[0]] if single else rows:
        for column, _ in enumerate(row):
            at = 0 if column == 0 or row[column - 1] == EOD != row[column] else at + 1
            expected.append(at)
    assert position_ids.shape == np.shape(tokens)
    assert position_ids.ravel().tolist() == expected
    assert cu_seqlens.tolist() == [*np.flatnonzero(np.array(expected) == 0), len(expected)]
    assert (position_ids.dtype, cu_seqlens.dtype) == (np.int64, np.int32)


TOKENS = np.random.default_rng(0).integers(0, 60_000, (12, 9))
POSITIONS = list(range(100, 112))


def test_a_digest_is_the_sum_of_checksums_of_positions_and_ids() -> None:
    """By which runs that have begun go on: their metrics hold these numbers."""
    rows = zip(POSITIONS, TOKENS, strict=True)
    wanted = [np.int64(position).tobytes() + row.astype(np.int32).tobytes() for position, row in rows]
    for tokens in (TOKENS, TOKENS.astype(np.uint16), np.asfortranarray(TOKENS.astype(np.int32))):
        assert digest(POSITIONS, tokens) == sum(map(zlib.crc32, wanted))
    assert digest(POSITIONS[:5], TOKENS[:5]) + digest(POSITIONS[5:], TOKENS[5:]) == digest(POSITIONS, TOKENS)
    assert digest([7], [[1, 2, 3]]) == 631560674
    assert data_hash(data_hash("", 631560674), 5) == "3157a0c84426c2cf"


def test_whatever_is_learned_from_something_else_has_another_digest() -> None:
    whole = np.ones((12, 8), np.bool_)
    assert digest(POSITIONS, TOKENS, whole) == digest(POSITIONS, TOKENS)
    found = {digest(POSITIONS, TOKENS), digest([*POSITIONS[:-1], 5], TOKENS)}
    for column in range(9):
        changed, less = TOKENS.copy(), whole.copy()
        changed[3, column] += 1
        less[3, column % 8] = False
        found |= {digest(POSITIONS, changed), digest(POSITIONS, TOKENS, less)}
    assert len(found) == 2 + 9 + 8
