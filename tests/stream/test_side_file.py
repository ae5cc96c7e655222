"""A side file gives back what was written, and never anything else."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pretok.base.errors import IntegrityError
from pretok.stream.side_file import BLOCK, SideFile, SideFileWriter, path_of

KINDS = ["<u4", "<u8", "|u1", [("before", "<u4"), ("mask", "<u8")], [("a", "<u4"), ("of", "<u4", (8,))]]


def numbers(dtype: np.dtype[Any], length: int, seed: int) -> npt.NDArray[Any]:
    drawn = np.random.default_rng(seed).integers(0, 256, length * dtype.itemsize, np.uint8)
    return np.frombuffer(drawn.tobytes(), dtype)


def write(folder: Path, arrays: dict[str, list[npt.NDArray[Any]]], label: str = "new") -> str:
    with SideFileWriter(folder, label) as writer:
        for name, parts in arrays.items():
            for part in parts:
                writer.append(name, part)
        return writer.seal({"kind": "test"})


def read_all(folder: Path, digest: str) -> None:
    file = SideFile(folder, digest)
    for name in file.arrays:
        file.whole(name)


@given(
    st.lists(st.tuples(st.sampled_from(range(len(KINDS))), st.integers(0, 3000)), min_size=1, max_size=4),
    st.data(),
)
@settings(max_examples=30, deadline=None)
def test_any_elements_of_any_arrays_come_back(
    tmp_path_factory: pytest.TempPathFactory, shapes: list[tuple[int, int]], data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("side")
    arrays = {
        f"array{at}": numbers(np.dtype(KINDS[kind]), length, at)  # type: ignore[arg-type]
        for at, (kind, length) in enumerate(shapes)
    }
    cuts = {name: data.draw(st.integers(0, len(array))) for name, array in arrays.items()}
    digest = write(
        folder, {name: [array[: cuts[name]], array[cuts[name] :]] for name, array in arrays.items()}
    )
    assert digest == write(folder, {name: [array] for name, array in arrays.items()}, "again")
    assert [path.name for path in folder.iterdir()] == [path_of(folder, digest).name]

    file = pickle.loads(pickle.dumps(SideFile(folder, digest)))
    assert file.about == {"kind": "test"}
    file.verify()
    for name, array in arrays.items():
        np.testing.assert_array_equal(file.whole(name), array)
        at = np.array(data.draw(st.lists(st.integers(0, max(len(array) - 1, 0)), max_size=9)), np.int64)
        if len(array):
            np.testing.assert_array_equal(file.read(name, at), array[at])
        for wrong in (-1, len(array)):
            with pytest.raises(IntegrityError):
                file.read(name, np.array([wrong]))


@pytest.mark.parametrize("at", [0, 4087, 4090, BLOCK + 17, 2 * BLOCK, -300, -13, -5, -1])
def test_a_changed_byte_is_told_before_it_is_believed(tmp_path: Path, at: int) -> None:
    digest = write(tmp_path, {"a": [np.arange(800, dtype="<u4")], "b": [np.arange(1000, dtype="<u8")]})
    path = path_of(tmp_path, digest)
    data = bytearray(path.read_bytes())
    data[at] ^= 4
    path.write_bytes(data)
    with pytest.raises(IntegrityError, match=path.name):
        read_all(tmp_path, digest)
    if at >= 0:
        with pytest.raises(IntegrityError, match="damaged"):
            SideFile(tmp_path, digest).verify()


def test_a_missing_cut_or_exchanged_file_is_named(tmp_path: Path) -> None:
    one, other = (write(tmp_path, {"a": [np.arange(n, dtype="<u4")]}) for n in (5000, 6000))
    path = path_of(tmp_path, one)
    whole = path.read_bytes()
    for data in (whole[:-1], whole[BLOCK:], whole[:-BLOCK], b"", path_of(tmp_path, other).read_bytes()):
        path.write_bytes(data)
        with pytest.raises(IntegrityError, match=path.name):
            SideFile(tmp_path, one)
    path.unlink()
    with pytest.raises(IntegrityError, match="is missing"):
        SideFile(tmp_path, one)
    path.write_bytes(whole)
    file = SideFile(tmp_path, one)
    os.truncate(path, BLOCK)
    with pytest.raises(IntegrityError, match="was cut"):
        file.whole("a")


def test_blocks_that_changed_places_are_told(tmp_path: Path) -> None:
    digest = write(tmp_path, {"a": [np.arange(3000, dtype="<u4")]})
    path = path_of(tmp_path, digest)
    data = path.read_bytes()
    path.write_bytes(data[BLOCK : 2 * BLOCK] + data[:BLOCK] + data[2 * BLOCK :])
    with pytest.raises(IntegrityError, match="block 0"):
        SideFile(tmp_path, digest).read("a", np.array([3]))


def test_a_writer_that_stops_leaves_nothing(tmp_path: Path) -> None:
    with SideFileWriter(tmp_path, "new") as writer:
        writer.append("a", np.arange(3000, dtype="<u4"))
    assert not list(tmp_path.iterdir())
