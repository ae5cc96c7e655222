"""Rows of ledgers -> the line or row of their input, as people count them.

Enters: a manifest, and the columns `file`, `start` and `record` of a ledger. Leaves: lines or rows from 1. A ledger
counts from where a part of a file begins; how many records the file has before that stands in the plan of the source.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa

from pretok.shards.inputs import lines_before, load_inputs
from pretok.shards.manifest import Manifest

PLACE_IN_FILE = ("file", "start", "record")
"""Columns of a ledger that a position follows from."""
LinesBefore = Mapping[tuple[str, int], int]
"""(file, start) -> records of the file before `start`."""


def lines_of_source(manifest: Manifest, source: str) -> LinesBefore:
    """Of all files of a source."""
    return lines_before(load_inputs(manifest.folder, manifest.contents, source))


def row_positions(rows: pa.RecordBatch, before: LinesBefore) -> pa.Array:
    """(rows,) int64 of rows with PLACE_IN_FILE."""
    files = rows["file"].dictionary_encode()
    pairs = np.stack([np.asarray(files.indices, np.int64), np.asarray(rows["start"])], axis=1)
    unique, of_row = np.unique(pairs, axis=0, return_inverse=True)
    names = files.dictionary.to_pylist()
    lines = np.array([before[names[file], start] for file, start in unique.tolist()], np.int64)
    return pa.array(lines[of_row.reshape(-1)] + np.asarray(rows["record"]) + 1)
