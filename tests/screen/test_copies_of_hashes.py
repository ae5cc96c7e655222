"""The file of the copies of a partition."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa

from pretok.screen.copies import CopiesOfPartition, save_copies


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
