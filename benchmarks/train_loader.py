"""How long a step of the debug model waits for data, and how fast the loader alone is.

    python benchmarks/train_loader.py

Input: nothing but the machine. Output: two lines. The waiting is what the trainer itself logs.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch

import pretok.stream
from benchmarks.train_shards import write_random_shards
from pretok.base.storage import read_lines
from train import loop
from train.config import TrainConfig
from train.data import Feed
from train.parallel.layout import Batch


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--workers", type=int, default=1)
    space = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        shards = write_random_shards(Path(name) / "shards", 16 * 129 * (space.steps + 1), 8_000)
        config = TrainConfig(
            shards=str(shards),
            out=f"{name}/run",
            global_batch=16,
            steps=space.steps,
            workers=space.workers,
            save_every="never",
        )
        view = pretok.stream.open(shards, seq_len=128)
        batch = Batch(16, 16, 1, 1)
        feed = Feed(view, batch, 0, 0, space.steps * 16, config, torch.device("cpu"))
        started = time.perf_counter()
        tokens = sum(found.numel() for found, *_ in feed)
        rate = tokens / (time.perf_counter() - started)
        loop.train(config)
        records = read_lines(Path(name) / "run" / "metrics.jsonl")[5:]  # the workers start in the first steps
    step = statistics.median(record["seconds"] for record in records)
    wait = sum(record["data_wait"] for record in records) / sum(record["seconds"] for record in records)
    print(f"loader alone, {space.workers} workers, start included: {rate:,.0f} tokens/s")
    print(f"debug model: {step * 1e3:.1f} ms a step, {wait:.3%} of it waiting for data")


if __name__ == "__main__":
    main()
