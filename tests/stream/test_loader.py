"""What ranks read: every position once per pass, through any loader, across any change at a resume."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import EOD, make_shards, needs

import pretok.stream
from pretok.base.errors import MismatchError, UsageError
from pretok.stream import View, digest
from pretok.stream.loader import Fetch, PositionSampler, as_read, document_boundaries, identity_of

SEQ_LEN = 5
layouts = st.sampled_from(
    [(ranks, micro) for ranks in (1, 2, 3, 4, 6, 12) for micro in (1, 2, 3) if 36 % (ranks * micro) == 0]
)


@pytest.fixture(scope="module")
def view(tmp_path_factory: pytest.TempPathFactory) -> View:
    folder = make_shards(
        tmp_path_factory.mktemp("shards"), {"en": [range(1, 300)], "it": [range(300, 999)] * 2}
    )
    return pretok.stream.open(folder, seq_len=SEQ_LEN)


def steps_of(samplers: list[PositionSampler], count: int) -> list[set[int]]:
    """What all ranks read in each of the next `count` optimizer steps."""
    iterators = [iter(sampler) for sampler in samplers]
    steps = []
    for _ in range(count):
        read = [
            position
            for iterator, sampler in zip(iterators, samplers, strict=True)
            for _ in range(sampler.accumulation)
            for position in next(iterator)
        ]
        assert len(read) == len(set(read))
        steps.append(set(read))
    return steps


@given(st.lists(st.tuples(layouts, st.sampled_from([36, 72]), st.integers(0, 4)), min_size=1, max_size=5))
def test_any_layout_at_any_resume_reads_the_uninterrupted_stream(
    runs: list[tuple[tuple[int, int], int, int]],
) -> None:
    position = 0
    for (ranks, micro), global_batch, count in runs:
        samplers = [
            PositionSampler(2000, global_batch=global_batch, micro_batch=micro, rank=rank, world_size=ranks)
            for rank in range(ranks)
        ]
        state = {"position": position, "micro_batches": 0, "layout": {}, "identity": {}}
        for sampler in samplers:
            sampler.load_state_dict(state)
        for step in steps_of(samplers, count):
            assert step == set(range(position, position + global_batch))
            position += global_batch
        assert {sampler.state_dict()["position"] for sampler in samplers} == {position}


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
        ({"global_batch": 12, "micro_batch": 5}, "multiple of 5 x 1"),
        ({"global_batch": 12, "micro_batch": 2, "world_size": 4}, "multiple of 2 x 4"),
        ({"global_batch": 12, "micro_batch": 0}, "cannot be divided"),
        ({"global_batch": 12, "micro_batch": 2, "rank": 3, "world_size": 3}, "rank 3 does not exist"),
        ({"global_batch": 12, "micro_batch": 2, "position": 41}, "position 41"),
    ],
)
def test_impossible_sizes_are_refused(sizes: dict[str, int], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        PositionSampler(40, **sizes)


def test_state_of_another_stream_is_refused(view: View) -> None:
    sizes = {"global_batch": 4, "micro_batch": 2}
    state = PositionSampler(len(view), **sizes, identity=identity_of(view)).state_dict(position=8)
    resumed = PositionSampler(len(view), **sizes, identity=identity_of(view))
    resumed.load_state_dict(state)
    assert next(iter(resumed)) == [8, 9]
    other = PositionSampler(len(view), **sizes, identity={**identity_of(view), "stream": "f" * 32})
    with pytest.raises(MismatchError, match=f"{view.fingerprint}.*{'f' * 32}"):
        other.load_state_dict(state)
    with pytest.raises(MismatchError, match="outside the stream"):
        resumed.load_state_dict({**state, "position": len(view) + 1})


def test_state_inside_a_step_needs_the_same_layout() -> None:
    sampler = PositionSampler(100, global_batch=12, micro_batch=2)
    iterator = iter(sampler)
    read = [next(iterator) for _ in range(8)]
    assert read[-1] == [14, 15]
    state = sampler.state_dict()
    assert (state["position"], state["micro_batches"]) == (12, 2)
    same = PositionSampler(100, global_batch=12, micro_batch=2)
    same.load_state_dict(state)
    assert len(same) == len(sampler) - 8
    assert same.state_dict() == state
    assert next(iter(same)) == [16, 17]
    with pytest.raises(MismatchError, match="save between steps"):
        PositionSampler(100, global_batch=12, micro_batch=3).load_state_dict(state)


@pytest.fixture(scope="module")
def torch() -> Any:
    return needs("torch")


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_dataloader_fetches_whole_micro_batches(view: View, torch: Any, workers: int) -> None:
    sampler = PositionSampler(len(view), global_batch=12, micro_batch=3, rank=1, world_size=2)
    loader = torch.utils.data.DataLoader(
        view, batch_sampler=sampler, collate_fn=torch.from_numpy, num_workers=workers
    )
    assert len(loader) == len(sampler)
    for positions, batch in zip(sampler, loader, strict=True):
        np.testing.assert_array_equal(batch.numpy(), view.batch(positions))


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize(
    "package",
    ["torch.utils.data", pytest.param("torchdata.stateful_dataloader", marks=pytest.mark.peers)],
)
@pytest.mark.filterwarnings("ignore:.set_vital. is deprecated:UserWarning")  # torchdata calls it
def test_what_is_fetched_arrives_as_it_was_read(view: View, torch: Any, workers: int, package: str) -> None:
    """In the bytes of the shards, with its digest; the trainer may write to it."""
    loaders = needs(package)
    make = getattr(loaders, "StatefulDataLoader", None) or loaders.DataLoader
    sampler = PositionSampler(len(view), global_batch=12, micro_batch=3)
    loader = make(Fetch(view, digests=True), batch_sampler=sampler, collate_fn=as_read, num_workers=workers)
    for positions, (ids, learned, found) in zip(sampler, loader, strict=True):
        np.testing.assert_array_equal(ids, view.batch(positions))
        assert (ids.dtype, learned, found) == (view.dtype, None, digest(positions, ids))
        ids += 1


@pytest.mark.filterwarnings("ignore:.set_vital. is deprecated:UserWarning")  # torchdata calls it
@pytest.mark.parametrize("snapshot_every", [1, 5])
@pytest.mark.parametrize("workers", [0, 1, 2])
@pytest.mark.parametrize("consumed", [0, 1, 4, 7, 8])
@pytest.mark.peers
def test_stateful_dataloader_resumes_after_what_was_consumed(
    view: View, torch: Any, workers: int, consumed: int, snapshot_every: int
) -> None:
    """Its workers read ahead; the state it gives belongs to the batch handed out, inside a step too."""
    stateful = needs("torchdata.stateful_dataloader")
    sizes = {"global_batch": 12, "micro_batch": 3, "identity": identity_of(view)}

    def make() -> Any:
        return stateful.StatefulDataLoader(
            view,
            batch_sampler=PositionSampler(len(view), **sizes),
            collate_fn=torch.from_numpy,
            num_workers=workers,
            snapshot_every_n_steps=snapshot_every,
        )

    expected = [view.batch(positions).tolist() for positions in PositionSampler(len(view), **sizes)]
    loader = make()
    iterator = iter(loader)
    read = [next(iterator).tolist() for _ in range(consumed)]
    state = loader.state_dict()
    resumed = make()
    resumed.load_state_dict(state)
    read += [batch.tolist() for batch in resumed]
    assert read == expected


@pytest.mark.parametrize(("before", "after"), [(0, 2), (2, 0), (2, 1)])
def test_number_of_workers_may_change(view: View, torch: Any, before: int, after: int) -> None:
    """The trainer's own position is the whole state, whatever its workers had read ahead."""
    sizes = {"global_batch": 6, "micro_batch": 3}
    everything = [view.batch(positions).tolist() for positions in PositionSampler(len(view), **sizes)]

    def run(sampler: PositionSampler, workers: int, batches: int) -> list[Any]:
        loader = torch.utils.data.DataLoader(
            view, batch_sampler=sampler, collate_fn=torch.from_numpy, num_workers=workers
        )
        return [batch.tolist() for batch, _ in zip(loader, range(batches), strict=False)]

    first = PositionSampler(len(view), **sizes)
    read = run(first, before, 6)
    resumed = PositionSampler(len(view), **sizes)
    resumed.load_state_dict(first.state_dict(position=3 * 6))
    assert read + run(resumed, after, len(resumed)) == everything


def test_document_boundaries() -> None:
    tokens = np.array([[7, 8, EOD, 9, EOD, EOD], [EOD, 5, 5, 5, 5, EOD]])
    position_ids, cu_seqlens = document_boundaries(tokens, EOD)
    assert position_ids.tolist() == [[0, 1, 2, 0, 1, 2], [0, 0, 1, 2, 3, 4]]
    assert cu_seqlens.tolist() == [0, 3, 6, 7, 12]
    assert (position_ids.dtype, cu_seqlens.dtype) == (np.int64, np.int32)


@given(st.lists(st.lists(st.integers(0, 2), min_size=6, max_size=6), min_size=1, max_size=4), st.booleans())
@settings(max_examples=50)
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
