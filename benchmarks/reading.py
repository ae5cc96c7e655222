"""A stream read to its end, shuffled, some times over: for `benchmarks.versus`, which runs it by two checkouts.

    python benchmarks/reading.py SHARDS TIMES LOADERS    # by this process, or by one loader process of torch

Input: the shards of some checkout, by the pretok that PYTHONPATH leads to. Output: nothing; what it took is measured
from outside.
"""

from __future__ import annotations

import sys
from typing import Any

import pretok.stream

SEQ_LEN, MICRO_BATCH = 2048, 8


def main(shards: str, times: int, loaders: int) -> None:
    """Read every micro-batch `times` over."""
    view = pretok.stream.open(shards, seq_len=SEQ_LEN)
    positions = [range(at, at + MICRO_BATCH) for at in range(0, len(view) - MICRO_BATCH, MICRO_BATCH)] * times
    if loaders == 0:
        for some in positions:
            view.batch(some)
        return
    import torch
    from torch.utils.data import DataLoader

    loader: Any = DataLoader
    for _ in loader(view, batch_sampler=positions, collate_fn=torch.from_numpy, num_workers=loaders):
        pass


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
