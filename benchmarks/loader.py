"""What a loader takes of the training process.

Input: a shard of random tokens in memory, in micro-batches of 8. Output: processor time of the training process, and
time by the clock, with 0, 1 and 2 workers: of `pretok.integrations.pytorch`, and of torch's DataLoader over the view,
whose workers send tensors through shared memory.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

from benchmarks.inputs import Inputs
from benchmarks.measure import Row, Table, fresh, in_turns, timed
from benchmarks.train_shards import write_random_shards

SEQ_LEN, MICRO = 4096, 8
WARM = 64
"""Micro-batches before the clock starts, in which the workers start."""


def deliver(shards: Path, kind: str, workers: int, count: int) -> Row:
    """Read `count` micro-batches."""
    import torch

    import pretok.stream
    from pretok.integrations.pytorch import Loader
    from pretok.stream.loader import PositionSampler

    torch.set_num_threads(1)
    view = pretok.stream.open(shards, seq_len=SEQ_LEN)
    if kind == "DataLoader":
        sampler = PositionSampler(len(view), global_batch=MICRO, micro_batch=MICRO)
        make: Any = torch.utils.data.DataLoader
        loader = make(view, batch_sampler=sampler, collate_fn=torch.from_numpy, num_workers=workers)
    else:
        loader = Loader(view, MICRO, workers=workers)
    batches = iter(loader)

    def take(number: int) -> None:
        for _ in itertools.islice(batches, number):
            pass

    take(WARM)
    spent, _ = timed(lambda: take(count))
    millions = count * MICRO * SEQ_LEN / 1e6
    return {
        "of the training process": 1e3 * spent["CPU s"] / millions,
        "by the clock": 1e3 * spent["s"] / millions,
    }


def measure(inputs: Inputs) -> Table:
    """Both loaders by the number of workers."""
    count = inputs.scaled(2048)
    shards = write_random_shards(inputs.folder / "loaded", (count + 2 * WARM) * MICRO * SEQ_LEN)
    return in_turns(
        {
            f"{kind}, {workers} workers": lambda kind=kind, workers=workers: fresh(
                deliver, shards, kind, workers, count
            )
            for workers in (0, 1, 2)
            for kind in ("pretok.integrations.pytorch", "DataLoader")
        },
        inputs.runs,
    )
