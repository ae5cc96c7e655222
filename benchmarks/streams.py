"""The same tokens through the loaders of others, litdata and mosaicml-streaming, beside ours.

Input: random tokens as shards, as the chunks that litdata's `optimize` writes for its TokensLoader, and as the shards
of streaming's MDSWriter with a sequence a sample. Output, for each loader, in the trainer's process and by one worker:
millions of tokens a second by the clock and CPU milliseconds a million tokens of all its processes, in shuffled
micro-batches of 8 sequences of 4,096 from hot pages; and the seconds until the first batch. A loader whose package is
absent is left out, and said so.
"""

from __future__ import annotations

import gc
import itertools
import os
import resource
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.inputs import Inputs
from benchmarks.measure import fresh, medians

TOKENS = 200_000_000
SEQ_LEN, MICRO_BATCH = 4096, 8
SECONDS = 3.0


def cpu_seconds() -> float:
    """Seconds of this process and of the children that have ended."""
    used = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(one.ru_utime + one.ru_stime for one in used)


def read_for_a_while(batches: Iterator[Any], tokens: int) -> tuple[float, float]:
    """Batches of so many tokens for SECONDS: millions of tokens, and millions a second."""
    count, began = 0, time.perf_counter()
    while time.perf_counter() - began < SECONDS:
        next(batches)
        count += 1
    millions = count * tokens / 1e6
    return millions, millions / (time.perf_counter() - began)


def write_formats(folder: Path) -> None:
    """The same tokens in the three formats, each in a folder of its own."""
    import pretok.stream
    from benchmarks.train_shards import write_random_shards

    shards = write_random_shards(folder / "pretok", TOKENS)
    if find_spec("litdata"):
        from litdata import TokensLoader, optimize

        optimize(
            token_tensors, [shards], str(folder / "litdata"),
            num_workers=1, chunk_bytes="1GB", item_loader=TokensLoader(block_size=SEQ_LEN),
        )  # fmt: skip
    if find_spec("streaming"):
        from streaming import MDSWriter

        view = pretok.stream.open(shards, seq_len=SEQ_LEN)
        with MDSWriter(out=str(folder / "streaming"), columns={"ids": f"ndarray:uint16:{SEQ_LEN}"}) as out:
            for position in range(len(view)):
                out.write({"ids": view.batch([position], np.uint16)[0, :SEQ_LEN]})


def token_tensors(shards: Path) -> Iterator[Any]:
    """The tokens of each shard, as litdata's `optimize` takes them."""
    import torch

    from pretok.shards.manifest import load_manifest

    for shard in load_manifest(shards).shards:
        yield torch.from_numpy(np.array(shard.open().tokens))


def ours(folder: Path, workers: int) -> Iterable[Any]:
    """Ours, as docs/trainers.md builds it."""
    import pretok.stream
    from pretok.integrations.pytorch import Loader

    return Loader(pretok.stream.open(folder / "pretok", seq_len=SEQ_LEN), MICRO_BATCH, workers=workers)


def litdata(folder: Path, workers: int) -> Iterable[Any]:
    """Its loader of token chunks, as its README builds it."""
    from litdata import StreamingDataLoader, StreamingDataset, TokensLoader

    chunks = folder / "litdata"
    dataset = StreamingDataset(str(chunks), item_loader=TokensLoader(block_size=SEQ_LEN), shuffle=True)
    return StreamingDataLoader(dataset, batch_size=MICRO_BATCH, num_workers=workers)  # type: ignore[no-any-return]


def streaming(folder: Path, workers: int) -> Iterable[Any]:
    """Its dataset of samples in torch's loader, as its README builds it."""
    from streaming import StreamingDataset
    from torch.utils.data import DataLoader

    dataset = StreamingDataset(local=str(folder / "streaming"), shuffle=True, batch_size=MICRO_BATCH)
    loader: Any = DataLoader
    return loader(dataset, batch_size=MICRO_BATCH, num_workers=workers)  # type: ignore[no-any-return]


LOADERS: dict[str, tuple[str, Callable[[Path, int], Iterable[Any]]]] = {
    "pretok": ("pretok", ours),
    "litdata": ("litdata", litdata),
    "mosaicml-streaming": ("streaming", streaming),
}
"""Name -> the module it needs, and what builds it."""


def run_loader(name: str, folder: Path, workers: int) -> dict[str, float]:
    """One loader, from before its imports."""
    os.environ["DATA_OPTIMIZER_CACHE_FOLDER"] = str(folder / "cache")
    began = time.perf_counter()
    import torch

    torch.set_num_threads(1)
    loader = LOADERS[name][1](folder, workers)
    batches: Iterator[Any] = itertools.chain.from_iterable(itertools.repeat(loader))
    next(batches)
    first, before = time.perf_counter(), cpu_seconds()
    millions, speed = read_for_a_while(batches, MICRO_BATCH * SEQ_LEN)
    del batches, loader  # its process ends, and the CPU time of that counts
    gc.collect()
    return {
        "s until the first batch": first - began,
        "M tokens/s": speed,
        "CPU ms per M tokens": 1e3 * (cpu_seconds() - before) / millions,
    }


def measure_streams(inputs: Inputs, runs: int) -> dict[str, Any]:
    """Medians of runs in processes of their own, the loaders in turns."""
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(dir=inputs.folder) as temporary:
        folder = Path(temporary)
        fresh(write_formats, folder, quiet=True)
        for workers, where in ((0, "in the trainer's process"), (1, "by one process")):
            there = [name for name, (module, _) in LOADERS.items() if find_spec(module)]
            turns = [
                {name: fresh(run_loader, name, folder, workers, quiet=True) for name in there}
                for _ in range(runs)
            ]
            for name in LOADERS:
                if name not in there:
                    found[f"{name}, {where}"] = "left out: not installed"
                    continue
                values = medians([turn[name] for turn in turns])
                found |= {f"{name}, {where}: {key}": value for key, value in values.items()}
    return found
