"""The tape of a class is the concatenation of its members, found without one."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pretok.base.errors import IntegrityError
from pretok.base.tokens import Ints
from pretok.shards.format import index_bytes
from pretok.shards.manifest import Shard
from pretok.stream.members import WORD, ClassTape, DocumentStarts, Members, MembersWriter

DTYPE = np.dtype("<u2")
Bools = npt.NDArray[np.bool_]


def indexes(folder: Path, lengths: Ints, ends: list[int]) -> list[Shard]:
    """Shards of which only the indexes are there: documents of `lengths`, cut at `ends`."""
    shards = []
    for number, part in enumerate(np.split(lengths, ends)):
        name = f"it-{number:05d}"
        (folder / f"{name}.idx").write_bytes(index_bytes(part.astype(np.int32), DTYPE))
        tokens = int(part.sum())
        shards.append(
            Shard(f"{name}.bin", "it", "train", tokens, len(part), 2 * tokens, 0, "", "", folder=folder)
        )
    return shards


def write(folder: Path, shards: list[Shard], lengths: Ints, chosen: Bools, step: int = 2 * WORD) -> str:
    with MembersWriter(folder, "new", len(lengths)) as writer:
        ends = np.cumsum([0, *(shard.documents for shard in shards)]).tolist()
        for first, end in itertools.pairwise(ends):
            for at in range(first, end, step):
                part = slice(at, min(at + step, end))
                writer.append(chosen[part], lengths[part])
        return writer.seal(len(shards))


def check(tape: ClassTape, lengths: Ints, chosen: Bools, seed: int, count: int = 200) -> None:
    """Against the address of every token of every member in a row."""
    starts = np.cumsum(lengths) - lengths
    members = np.flatnonzero(chosen)
    repeated = np.repeat(members, lengths[members])
    before = np.cumsum(lengths * chosen) - lengths * chosen
    addresses = starts[repeated] + np.arange(len(repeated)) - before[repeated]
    assert tape.tokens == len(addresses)
    np.testing.assert_array_equal(tape.before(np.arange(len(lengths))), before)
    assert tape.before(np.array([len(lengths)])).tolist() == [len(addresses)]
    rng = np.random.default_rng(seed)
    if not len(addresses):
        return
    first = rng.integers(0, len(addresses), count)
    end = np.minimum(first + rng.integers(1, 500, count), len(addresses))
    pieces = tape.between(first, end)
    assert (np.diff(pieces.row) >= 0).all()
    assert (pieces.length > 0).all()
    for row in range(count):
        here = pieces.row == row
        read = [np.arange(a, a + n) for a, n in zip(pieces.address[here], pieces.length[here], strict=True)]
        np.testing.assert_array_equal(np.concatenate(read), addresses[first[row] : end[row]])
        np.testing.assert_array_equal(pieces.column[here], np.cumsum([0, *map(len, read[:-1])]))
        # No document boundary is a piece's where both are members.
        assert all(a[-1] + 1 != b[0] for a, b in itertools.pairwise(read))


@given(
    documents=st.sampled_from([0, 1, 63, 64, 65, 1000, 25_000, 45_000]),
    share=st.sampled_from([0, 0.0002, 0.01, 0.03, 0.2, 0.5, 1]),
    cuts=st.lists(st.floats(0, 1), max_size=5),
    far=st.booleans(),
    grown=st.booleans(),
    seed=st.integers(0, 99),
)
@settings(max_examples=25, deadline=None)
def test_a_tape_is_the_concatenation_of_the_members(
    tmp_path_factory: pytest.TempPathFactory,
    documents: int,
    share: float,
    cuts: list[float],
    far: bool,
    grown: bool,
    seed: int,
) -> None:
    folder = tmp_path_factory.mktemp("members")
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, 60, documents)
    chosen = rng.random(documents) < share
    if far:  # a class in the two ends of a source
        chosen[documents // 50 : -documents // 50] = False
    ends = sorted(int(cut * documents) for cut in cuts)
    shards = indexes(folder, lengths, ends)
    starts = DocumentStarts(shards, DTYPE)
    parts, begun = [], 0
    for some in (shards[:2], shards[2:]) if grown else (shards,):
        end = begun + sum(shard.documents for shard in some)
        digest = write(folder, some, lengths[begun:end], chosen[begun:end])
        parts.append(Members(folder, digest, some, shards.index(some[0]) if some else 0, starts))
        begun = end
    check(ClassTape(parts, 16), lengths, chosen, seed)


@pytest.fixture
def members(tmp_path: Path) -> tuple[list[Shard], Ints, Bools]:
    lengths = np.random.default_rng(5).integers(1, 60, 30_000)
    return indexes(tmp_path, lengths, [10_000]), lengths, np.arange(30_000) % 3 == 0


@pytest.mark.parametrize("every", [3, 1000])
def test_the_form_is_the_smaller_one_and_the_same_whatever_the_parts(
    tmp_path: Path, members: tuple[list[Shard], Ints, Bools], every: int
) -> None:
    shards, lengths, _ = members
    chosen = np.arange(len(lengths)) % every == 0
    digests = {write(tmp_path, shards, lengths, chosen, step * WORD) for step in (1, 3, 1000)}
    assert len(digests) == 1
    size = (tmp_path / f"{digests.pop()}.side").stat().st_size
    assert size < 5 * chosen.sum() + 4 * 4096 if every == 1000 else size < 0.19 * len(lengths) + 4 * 4096


def test_another_index_is_told_before_its_pointers_are_believed(
    tmp_path: Path, members: tuple[list[Shard], Ints, Bools]
) -> None:
    shards, lengths, chosen = members
    digest = write(tmp_path, shards, lengths, chosen)

    def read(first: int) -> None:
        tape = Members(tmp_path, digest, shards, 0, DocumentStarts(shards, DTYPE))
        tape.pieces(np.array([first]), np.array([first + 300]))

    index = shards[0].index_path
    whole = index.read_bytes()
    read(0)
    other = lengths[:10_000].copy()
    other[[0, 1]] += (1, -1)
    index.write_bytes(index_bytes(other.astype(np.int32), DTYPE))
    with pytest.raises(IntegrityError, match="other lengths"):
        read(0)
    data = bytearray(whole)
    data[34 + 4 * 10_000 + 8 * 2 + 5] = 1  # the pointer of the third document
    index.write_bytes(data)
    with pytest.raises(IntegrityError, match=re.escape(f"{index} is damaged")):
        read(0)
    index.write_bytes(whole[:-8])
    with pytest.raises(IntegrityError, match="expected"):
        read(0)
    index.write_bytes(whole)
    with pytest.raises(IntegrityError, match="not the members of a class in 1 shards"):
        Members(tmp_path, digest, shards[:1], 0, DocumentStarts(shards, DTYPE))
