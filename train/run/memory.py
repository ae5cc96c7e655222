"""What held a GPU's memory when it ran out.

Input: the body of a run. Output: RUN/memory/rank-R.pickle of each rank whose memory ran out, with every allocation
that lives and where in the code it was made; https://pytorch.org/memory_viz shows it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from pretok.base.errors import UsageError
from train.parallel.devices import Device

EVENTS = 200_000
"""Allocations remembered, those of the last steps."""


@contextmanager
def memory_history(wanted: bool, device: Device, out: Path) -> Iterator[None]:
    """Remember allocations while the body runs, and write them down when memory runs out. UsageError without a GPU."""
    if not wanted:
        yield
        return
    if not device.is_gpu:
        raise UsageError("--memory-snapshot remembers what a GPU's memory holds, and there is no GPU here")
    torch.cuda.memory._record_memory_history(max_entries=EVENTS, stacks="python")
    try:
        yield
    except torch.OutOfMemoryError:
        folder = out / "memory"
        folder.mkdir(exist_ok=True)
        path = folder / f"rank-{os.environ.get('RANK', '0')}.pickle"
        torch.cuda.memory._dump_snapshot(str(path))  # type: ignore[no-untyped-call]
        print(f"what held the memory is in {path}; https://pytorch.org/memory_viz shows it", file=sys.stderr)
        raise
    finally:
        torch.cuda.memory._record_memory_history(enabled=None)
