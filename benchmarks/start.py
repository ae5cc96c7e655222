"""What the hosts of a run do at its start, by the number of ranks.

Input: nothing but the machine; every rank is a process that starts a debug model on shared parameters and saves once.
Output:
sockets of rank 0 and of a rank in the middle, requests to the store by all ranks, and processor time of rank 0 until
its first step; all ranks share the cores of this machine, so time by the clock would say little.
"""

from __future__ import annotations

import multiprocessing
import os
import tempfile
import time
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch.distributed import Store, TCPStore  # type: ignore[attr-defined]

from benchmarks.inputs import Inputs
from benchmarks.measure import Row, Table, in_turns
from benchmarks.train_shards import write_random_shards
from pretok.base.stop import StopFlag
from train import loop
from train.config import TrainConfig
from train.parallel import group
from train.parallel.devices import Device
from train.report import Reporter
from train.start import Run

RANKS = 64
CASES = {"hosts connect at once": "0", "hosts connect when they first talk": "1"}
"""Cases -> TORCH_GLOO_LAZY_INIT."""


class Counting(Store):  # type: ignore[misc]
    """A store that counts its requests."""

    def __init__(self, store: Any) -> None:
        super().__init__()
        self.store, self.requests = store, Counter[str]()

    def clone(self) -> Counting:
        """Return the same store."""
        return self


def _counted(name: str) -> Any:
    def call(self: Counting, *arguments: Any) -> Any:
        self.requests[name] += 1
        return getattr(self.store, name)(*arguments)

    return call


for _name in (
    "set",
    "get",
    "add",
    "check",
    "wait",
    "compare_set",
    "multi_get",
    "multi_set",
    "append",
    "delete_key",
):
    setattr(Counting, _name, _counted(_name))


def rank(number: int, ranks: int, port: int, folder: Path, case: str, answers: Any) -> None:
    """Start one rank as `train` does, save once, and put what it took."""
    os.environ |= {"TORCH_GLOO_LAZY_INIT": CASES[case], "RANK": str(number), "WORLD_SIZE": str(ranks)}
    torch.set_num_threads(1)
    began = time.process_time()
    counting = Counting(TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False))
    device = Device(torch.device("cpu"), "cpu", "gloo", None, "")
    out = folder / "run"
    config = TrainConfig(
        shards=str(folder / "shards"), out=str(out), model="debug", seq_len=64, shard=ranks, global_batch=ranks,
        micro_batch=1, steps=1, warmup=1, workers=0, val_every=0,
    )  # fmt: skip
    with (
        patch.object(group, "_find_store", lambda _limit: (counting, number, ranks)),
        StopFlag(0.0) as stop,
        group.process_group(device, 900, out, lambda _: None),
        Reporter(number, out) as report,
        group.run_folder(out, folder / "shards") as lost,
    ):
        run = Run(config, device, stop, report, lost)
        seconds = time.process_time() - began
        loop._save(run)
        run.checkpoints.wait()
        dist.barrier()
        answers.put((number, sockets(), sum(counting.requests.values()), seconds))
        run.log.close()
        dist.barrier()


def sockets() -> int:
    """Open sockets of this process."""
    return sum(
        os.path.realpath(path).rpartition("/")[2].startswith("socket:")
        for path in Path("/proc/self/fd").iterdir()
    )


def start(ranks: int, folder: Path, case: str) -> Row:
    """Start so many ranks at once."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["benchmarks.start"])
    store, answers = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False), context.Queue()
    processes = [
        context.Process(target=rank, args=(number, ranks, store.port, folder, case, answers))
        for number in range(ranks)
    ]
    for process in processes:
        process.start()
    found = sorted(answers.get(timeout=900) for _ in processes)
    for process in processes:
        process.join()
    _, of_first, _, seconds = found[0]
    return {
        "sockets of rank 0": of_first,
        "of another": found[ranks // 2][1],
        "store requests of all": sum(one[2] for one in found),
        "CPU s of rank 0": seconds,
    }


def measure(inputs: Inputs) -> Table:
    """All cases, with a quarter of the ranks and with all."""
    shards = write_random_shards(inputs.folder / "shards", 1_000_000)

    def once(ranks: int, case: str) -> Row:
        with tempfile.TemporaryDirectory(dir=inputs.folder) as folder:
            (Path(folder) / "shards").symlink_to(shards)
            return start(ranks, Path(folder), case)

    every = [
        (ranks, case) for ranks in (-(-inputs.scaled(RANKS) // 4), inputs.scaled(RANKS)) for case in CASES
    ]
    return in_turns(
        {f"{ranks} ranks, {case}": partial(once, ranks, case) for ranks, case in every}, inputs.runs
    )
