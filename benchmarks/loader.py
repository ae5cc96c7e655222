"""What a loader takes of the training process, and where that goes.

Input: a shard of random tokens, in hot pages, in sequences of 4,096 and micro-batches of 8. Output: milliseconds of the
training process's processor time a million tokens, and milliseconds by the clock: of `pretok.integrations.pytorch` at
0, 1 and 2 workers; of the Trainer's loader over it where accelerate is installed; of torch's DataLoader over the view,
whose tensors leave a worker through shared memory; and of each part of the work by itself.
"""

from __future__ import annotations

import importlib.util
import itertools
import pickle
import resource
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.inputs import Inputs
from benchmarks.measure import fresh, medians

SEQ_LEN, MICRO, TOKENS = 4096, 8, 100_000_000
WARM, COUNT = 64, 1024
"""Micro-batches before the clock begins, in which workers start, and those that are measured."""
WORKERS = (0, 1, 2)
UNIT = "ms of the training process per M tokens"


def cpu_seconds() -> float:
    """Processor time of this process, all its threads."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def run_loaders(folder: Path) -> dict[str, float]:
    """Every loader and every part, in one process."""
    import torch

    import pretok.stream
    from pretok.integrations.pytorch import Loader

    torch.set_num_threads(1)
    view = pretok.stream.open(folder, seq_len=SEQ_LEN)
    makes: dict[str, Callable[[int], Any]] = {
        "pytorch": lambda workers: Loader(view, MICRO, workers=workers),
        "DataLoader": lambda workers: bare(view, workers),
    }
    if importlib.util.find_spec("accelerate"):
        makes["transformers"] = lambda workers: trainer_loader(folder, view, workers)
    found = {}
    for workers in WORKERS:
        for name, make in makes.items():
            cpu, clock = deliver(make(workers))
            found[f"{name}, {workers} workers, {UNIT}"] = cpu
            found[f"{name}, {workers} workers, ms by the clock per M tokens"] = clock
    return found | run_parts(view)


def bare(view: Any, workers: int) -> Any:
    """torch's DataLoader over the view, as a loader of one's own would have it: no labels, no check of ids."""
    import torch

    from pretok.stream.loader import PositionSampler

    sampler = PositionSampler(len(view), global_batch=MICRO, micro_batch=MICRO)
    loader: Any = torch.utils.data.DataLoader
    return loader(view, batch_sampler=sampler, collate_fn=torch.from_numpy, num_workers=workers)


def trainer_loader(folder: Path, view: Any, workers: int) -> Any:
    """The loader of a Trainer."""
    from transformers import LlamaConfig, LlamaForCausalLM, TrainingArguments

    from pretok.integrations.transformers import PretokTrainer

    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    arguments = TrainingArguments(output_dir=str(folder / "none"), max_steps=1, per_device_train_batch_size=MICRO,
                                  dataloader_num_workers=workers, use_cpu=True, report_to="none")  # fmt: skip
    model = LlamaForCausalLM(LlamaConfig(vocab_size=view.vocab_size, **sizes))
    return PretokTrainer(model=model, args=arguments, view=view).get_train_dataloader()


def deliver(loader: Any) -> tuple[float, float]:
    """Milliseconds a million tokens: of this process's processor time, and by the clock."""
    batches: Iterator[Any] = iter(loader)
    for _ in range(WARM):
        next(batches)
    cpu, clock = cpu_seconds(), time.perf_counter()
    for _ in range(COUNT):
        next(batches)
    millions = COUNT * MICRO * SEQ_LEN / 1e6
    return 1e3 * (cpu_seconds() - cpu) / millions, 1e3 * (time.perf_counter() - clock) / millions


def run_parts(view: Any) -> dict[str, float]:
    """What each step costs alone: as the Loader does it, and as it was done before, one micro-batch at a time."""
    import numpy as np
    import torch

    from pretok.integrations.pytorch import _MESSAGE, make_batch
    from pretok.stream import digest
    from pretok.stream.loader import Fetch, read_batch

    together = _MESSAGE // (SEQ_LEN + 1) // MICRO * MICRO
    few = list(range(MICRO))
    ids = view.batch(few, view.dtype)
    narrow = torch.from_numpy(ids.astype(np.int32))
    sent = pickle.dumps(Fetch(view).__getitems__(range(together)))

    def reading(rows: int) -> Callable[[], Any]:
        """Forward, as a trainer reads."""
        starts = itertools.cycle(range(0, len(view) - rows, rows))
        return lambda: read_batch(view, range(at := next(starts), at + rows), view.dtype)

    def as_tensors() -> Any:
        inputs, labels = (part.long().contiguous() for part in (narrow[:, :-1], narrow[:, 1:]))
        return labels.masked_fill((inputs == view.eod_id) & (labels == view.eod_id), -100)

    def widened() -> None:
        both = torch.empty((2, MICRO, SEQ_LEN), dtype=torch.int64).numpy()
        both[0], both[1] = ids[:, :-1], ids[:, 1:]

    parts: dict[str, tuple[Callable[[], Any], int]] = {
        "reading and checking ids, all of a message": (
            reading(together),
            together,
        ),
        "reading and checking ids, one micro-batch": (reading(MICRO), MICRO),
        "unpickling a message": (lambda: pickle.loads(sent), together),
        "inputs and labels, in numpy": (lambda: make_batch(view, ids, False), MICRO),
        "of that, int64": (widened, MICRO),
        "inputs and labels, in torch (before)": (as_tensors, MICRO),
        "digest of each sequence (before, and in train)": (lambda: digest(few, ids), MICRO),
    }
    return {f"{name}, {UNIT}": _cost(work, rows) for name, (work, rows) in parts.items()} | queues()


def queues() -> dict[str, float]:
    """What torch's queues cost the training process, without any reading, by the size of a message."""
    found = {}
    for micro_batches in (1, 16):
        size = micro_batches * MICRO * (SEQ_LEN + 1) * 2
        for what, payload in (("empty", b""), ("ids in 2 bytes", bytes(size))):
            cost = deliver_messages(payload, micro_batches)
            found[f"one worker's queues, {micro_batches} micro-batches a message, {what}, {UNIT}"] = cost
    return found


class Constant:
    """A dataset of the same payload each time."""

    def __init__(self, payload: bytes) -> None:
        self.payload = payload

    def __len__(self) -> int:
        return 1 << 30

    def __getitems__(self, positions: list[int]) -> bytes:
        return self.payload


def same(fetched: Any) -> Any:
    """A `collate_fn`."""
    return fetched


def deliver_messages(payload: bytes, micro_batches: int) -> float:
    """Milliseconds of this process a million tokens."""
    from torch.utils.data import DataLoader

    count = COUNT // micro_batches
    positions = list(range(micro_batches * MICRO))
    loader: Any = DataLoader
    batches = iter(
        loader(Constant(payload), batch_sampler=[positions] * (count + WARM), collate_fn=same, num_workers=1)
    )
    for _ in range(WARM):
        next(batches)
    began = cpu_seconds()
    for _ in range(count):
        next(batches)
    return 1e9 * (cpu_seconds() - began) / (COUNT * MICRO * SEQ_LEN)


def _cost(work: Callable[[], Any], rows: int) -> float:
    """Milliseconds of processor time a million tokens of `work` on so many sequences: the median of a hundred."""
    work()
    took = []
    for _ in range(100):
        began = time.thread_time()
        work()
        took.append(time.thread_time() - began)
    return 1e9 * statistics.median(took) / (rows * SEQ_LEN)


def measure_loader(inputs: Inputs, runs: int) -> dict[str, Any]:
    """Medians of runs in processes of their own."""
    from benchmarks.train_shards import write_random_shards

    with tempfile.TemporaryDirectory(dir=inputs.folder) as name:
        folder = write_random_shards(Path(name) / "shards", TOKENS)
        return medians([fresh(run_loaders, folder) for _ in range(runs)])
