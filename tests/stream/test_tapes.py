"""A tape is the concatenation of its runs, found without one; a side file that was harmed is told."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pretok.base.errors import IntegrityError
from pretok.stream.tapes import EACH, FILL, SideFile, TapeWriter, path_of, verify_side_file

ABOUT = {"shards": 0, "indexes": ""}


def write(folder: Path, address: np.ndarray, length: np.ndarray, step: int, every: int = 1) -> str:
    joined = every == 1
    with TapeWriter(folder, "new", every) as writer:
        for at in range(0, len(address), step):
            writer.append(address[at : at + step], length[at : at + step], joined)
        return writer.seal(ABOUT)


@given(
    documents=st.sampled_from([0, 1, 63, EACH, EACH + 1, 1000, 5000]),
    share=st.sampled_from([0, 0.01, 0.2, 0.5, 1]),
    fill=st.booleans(),
    seed=st.integers(0, 99),
)
@settings(max_examples=60, deadline=None)
def test_a_tape_is_the_concatenation_of_its_runs(
    tmp_path_factory: pytest.TempPathFactory, documents: int, share: float, fill: bool, seed: int
) -> None:
    folder, rng = tmp_path_factory.mktemp("tape"), np.random.default_rng(seed)
    lengths = rng.integers(1, 60, documents)
    chosen = rng.random(documents) < share
    address, length = (np.cumsum(lengths) - lengths)[chosen], lengths[chosen]
    if fill:  # as of a packed source: in any order, with EOD between
        order = rng.permutation(len(address))
        address, length = (np.repeat(part[order], 2) for part in (address, length))
        address[1::2], length[1::2] = FILL, 70 - length[::2]
    every = [
        np.arange(a, a + n) if a >= 0 else np.full(n, FILL) for a, n in zip(address, length, strict=True)
    ]
    whole = np.concatenate([np.empty(0, np.int64), *every])
    names = {write(folder, address, length, step, 70 if fill else 1) for step in (8, EACH, 10_000)}
    assert len(names) == 1  # whatever the parts
    name = names.pop()
    assert verify_side_file(path_of(folder, name)) == []
    tape = SideFile(folder, name)
    assert tape.tokens == len(whole)
    if len(whole):
        first = rng.integers(0, len(whole), 99)
        end = np.minimum(first + rng.integers(1, 500, 99), len(whole))
        found = np.full((99, 500), FILL)
        for row, column, at, size in zip(*tape.between(first, end), strict=True):
            found[row, column : column + size] = np.arange(at, at + size)
        for row in range(99):
            np.testing.assert_array_equal(found[row, : end[row] - first[row]], whole[first[row] : end[row]])
    for low, high in ((0, 10), (5, 5), (100, 900), (0, 1 << 40)):
        places = np.flatnonzero((whole >= low) & (whole < high))
        runs = tape.holding(low, high)
        np.testing.assert_array_equal(
            np.concatenate(
                [np.empty(0, np.int64), *(np.arange(s, s + n) for s, _, n in zip(*runs, strict=True))]
            ),
            places,
        )
        assert all((whole[s : s + n] == np.arange(a, a + n)).all() for s, a, n in zip(*runs, strict=True))


@pytest.mark.parametrize("place", [0, 17, 5000, -1, -200, None])
def test_what_was_harmed_is_told(tmp_path: Path, place: int | None) -> None:
    address = np.arange(0, 90_000, 9)
    name = write(tmp_path, address, np.full(len(address), 5), 999)
    path = path_of(tmp_path, name)
    data = bytearray(path.read_bytes())
    if place is None:
        data = data[:-9]
    else:
        data[place] ^= 4
    path.write_bytes(data)
    (told,) = verify_side_file(path)
    assert str(path) in told
    with suppress(IntegrityError):  # what is read all the same is right
        found = SideFile(tmp_path, name).between(np.array([0]), np.array([50_000])).address
        assert place == -200
        np.testing.assert_array_equal(found, address)
    path.unlink()
    with pytest.raises(IntegrityError, match="which belongs to a mix, is missing"):
        SideFile(tmp_path, name)
