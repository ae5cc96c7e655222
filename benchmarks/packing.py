"""What packing costs and saves: documents cut, padding and seconds, for the documents of the corpus.

For each length of a sequence: the stream cut at its first token, and best fit in the windows of `pretok mix --pack
best-fit` and in one of 65,536 documents. Seconds are of one core for a million documents, without reading.
"""

from __future__ import annotations

import numpy as np

from benchmarks.inputs import Inputs
from benchmarks.measure import Row, Table, timed
from pretok.base.tokens import Ints
from pretok.shards.manifest import load_manifest
from pretok.stream.pack import MOST_DOCUMENTS, window_of, window_runs


def cut(lengths: Ints, seq_len: int) -> Row:
    """The share of documents that the end of a sequence falls inside of."""
    ends = np.cumsum(lengths)
    return {"documents cut, %": 100 * float(np.mean((ends - lengths) // seq_len != (ends - 1) // seq_len))}


def packed(lengths: Ints, seq_len: int, window: int) -> Row:
    """Best fit in windows of so many documents; longer ones first give the sequences that they fill alone."""
    parts = np.split(lengths, range(window, len(lengths), window))
    spent, bins = timed(lambda: sum(len(window_runs(part, part, seq_len + 1)[2]) for part in parts))
    return {
        "documents cut, %": 100 * float(np.mean(lengths > seq_len + 1)),
        "padding, %": 100 * (1 - int(lengths.sum()) / (bins * (seq_len + 1))),
        "CPU s for a million": spent["CPU s"] / len(lengths) * 1e6,
    }


def measure(inputs: Inputs) -> Table:
    """A row for each length and way."""
    shards = load_manifest(inputs.shards).shards
    lengths = np.concatenate([shard.open().lengths for shard in shards]).astype(np.int64)
    packed(lengths[:64], 1024, 64)  # loads or compiles the kernel
    table: Table = {}
    for seq_len in (1024, 2048, 4096, 8192):
        table[f"{seq_len:,}, cut"] = cut(lengths, seq_len)
        for window in (window_of(len(lengths), int(lengths.sum()), seq_len), MOST_DOCUMENTS):
            table[f"{seq_len:,}, best fit of {window:,}"] = packed(lengths, seq_len, window)
    return table
