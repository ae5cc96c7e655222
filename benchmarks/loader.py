"""How fast one loader process of torch delivers batches, and what of its time is the way out of it.

Input: a shard of random tokens, in hot pages. Output: millions of tokens a second by the clock, and the CPU time that
both processes spent on a million tokens: read in the trainer's process; by one loader process, whose tensors go
through shared memory as torch sends them (how it was); by one that sends the ids as narrow as the shards (`Narrow`,
how it is); and the trainer's own feed, which takes a checksum of every sequence, both ways.
"""

from __future__ import annotations

import gc
import itertools
import resource
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.inputs import Inputs
from benchmarks.measure import fresh, medians

SEQ_LEN = 4096
TOKENS = 100_000_000
SECONDS = 3.0
MICRO_BATCHES = (8, 64)


def cpu_seconds() -> float:
    """Seconds of this process and of the children that have ended."""
    used = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(one.ru_utime + one.ru_stime for one in used)


def run_loaders(folder: Path) -> dict[str, float]:
    """Every case with every size of micro-batch, in one process, without the start of theirs."""
    import torch

    import pretok.stream
    from pretok.stream.loader import Collate, Fetch, Narrow

    torch.set_num_threads(1)
    view = pretok.stream.open(folder, seq_len=SEQ_LEN)
    cases: dict[str, tuple[Any, Any, int]] = {
        "in the trainer's process": (view, torch.from_numpy, 0),
        "one process, shared memory": (view, torch.from_numpy, 1),
        "one process, narrow": (view, Narrow(torch.from_numpy, view.dtype), 1),
        "feed of one process, shared memory": (Fetch(view), _through_shared_memory, 1),
        "feed of one process, narrow": (Fetch(view), Collate(view, torch.from_numpy), 1),
    }
    found = {}
    for size in MICRO_BATCHES:
        for name, (dataset, collate, workers) in cases.items():
            speed, cpu = _deliver(dataset, collate, workers, size)
            found[f"{name}, micro-batches of {size}: M tokens/s"] = speed
            found[f"{name}, micro-batches of {size}: CPU ms per M tokens"] = cpu
    return found


def _through_shared_memory(fetched: tuple[Any, int]) -> tuple[Any, int]:
    """The feed's `collate_fn` as it was."""
    import torch

    return torch.from_numpy(fetched[0]), fetched[1]


def _deliver(dataset: Any, collate: Any, workers: int, size: int) -> tuple[float, float]:
    """Micro-batches of `size` for SECONDS: M tokens a second, CPU milliseconds a million of both processes."""
    from torch.utils.data import DataLoader

    from pretok.stream.loader import PositionSampler

    before = cpu_seconds()
    once = list(PositionSampler(len(dataset), global_batch=size, micro_batch=size))
    loader: Any = DataLoader
    batches = iter(
        loader(dataset, batch_sampler=itertools.cycle(once), collate_fn=collate, num_workers=workers)
    )
    next(batches)
    millions, speed = read_for_a_while(batches, size * SEQ_LEN)
    del batches  # its process ends, and the CPU time of that counts
    gc.collect()
    return speed, 1e3 * (cpu_seconds() - before) / millions


def read_for_a_while(batches: Iterator[Any], tokens: int) -> tuple[float, float]:
    """Batches of so many tokens for SECONDS: millions of tokens, and millions a second."""
    count, began = 0, time.perf_counter()
    while time.perf_counter() - began < SECONDS:
        next(batches)
        count += 1
    millions = count * tokens / 1e6
    return millions, millions / (time.perf_counter() - began)


def measure_loader(inputs: Inputs, runs: int) -> dict[str, Any]:
    """Medians of runs in processes of their own."""
    from benchmarks.train_shards import write_random_shards

    with tempfile.TemporaryDirectory(dir=inputs.folder) as name:
        folder = write_random_shards(Path(name) / "shards", TOKENS)
        return medians([fresh(run_loaders, folder) for _ in range(runs)])
