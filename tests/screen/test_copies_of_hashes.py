"""Copies by hash: against a dictionary, in as many passes as memory asks for."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from pretok.screen.copies import CopiesOfPartition, find_copies, save_copies


@pytest.mark.parametrize("memory", [1 << 30, 20_000, 3_000])
def test_copies_are_those_of_a_dictionary(memory: int) -> None:
    """Lists of different lengths, an empty one among them; values that share one of their two halves."""
    random = np.random.default_rng(0)
    values = random.integers(0, 2**64, (400, 2), np.uint64)
    values[::3, 0] = values[0, 0]
    values[1::3, 1] = values[1, 1]
    lists = [values[random.integers(0, 400, n)] for n in (300, 0, 1, 250)]
    loads = []

    def load(number: int) -> np.ndarray:
        loads.append(number)
        return lists[number]

    found = find_copies([len(one) for one in lists], load, memory)
    first: dict[bytes, tuple[int, int]] = {}
    for number, one in enumerate(lists):
        expected = []
        for row, value in enumerate(one):
            where = first.setdefault(value.tobytes(), (number, row))
            if where != (number, row):
                expected.append((row, *where))
        got = found[number]
        assert (
            list(zip(got.rows.tolist(), got.of_list.tolist(), got.of_row.tolist(), strict=True)) == expected
        )
    assert len(loads) == len(lists) * max(1, -(-551 * 80 // memory))


def test_copies_of_a_partition_are_kept_as_a_file(tmp_path: Path) -> None:
    copies = {
        "piece": [0, 0, 2, 2],
        "number": [3, 9, 1, 9],
        "file": ["a", "b", "a", "b"],
        "start": [0, 0, 0, 700],
        "record": [0, 1, 2, 3],
    }
    save_copies(tmp_path / "copies.parquet", pa.table(copies))
    again = CopiesOfPartition(tmp_path / "copies.parquet")
    assert again.of(0, np.arange(4, 12)) == [(9, "b:2")]
    assert again.of(1, np.arange(20)) == []
    assert again.of(2, np.array([1, 9])) == [(1, "a:3"), (9, "b:4, counted from byte 700")]
