"""The command as a person types it: what is refused, torchrun, a model that learns."""

from __future__ import annotations

import math
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from support import ROOT, needs

torch = needs("torch")
from pretok.base.errors import UsageError
from tests.support import make_shards
from tests.train_support import column, model_file, tiny_config
from train import loop
from train.config import TrainConfig


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"steps": 10_000}, "need more data"),
        ({"steps": 5, "tokens": 5}, "not both"),
        ({"model": "7b"}, "is not a preset"),
        ({"seq_len": 100_000}, "sequence"),
    ],
)
def test_impossible_runs_are_refused(
    shards: Path, tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        loop.train(tiny_config(shards, tmp_path, **change))
    with pytest.raises(UsageError, match="--shards is missing"):
        loop.train(TrainConfig(out=str(tmp_path)))


@pytest.mark.slow
def test_torchrun_runs_the_module(shards: Path, tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node=2",
        "-m",
        "train",
    ]
    more = ["--shards", shards, "--model", model_file(tmp_path), "--out", tmp_path / "run", "--seq-len", 16]
    done = subprocess.run(
        [*command, *map(str, more), "--global-batch", "8", "--steps", "2", "--workers", "0"],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "2 ranks: 1 replicas x 2 shards x 1 tensor parallel" in done.stdout
    assert len(column(tmp_path / "run", "loss")) == 2


@pytest.mark.slow
def test_learns_below_the_unigram_entropy(tmp_path: Path) -> None:
    """Documents in which each token decides the next: a model that learns anything beats counting tokens."""
    import numpy as np

    rng = np.random.default_rng(1)
    following = rng.permutation(np.arange(1, 60))
    documents = []
    for start in rng.integers(1, 60, size=400):
        tokens = [int(start)]
        while len(tokens) < 60:
            tokens.append(int(following[tokens[-1] - 1]) if rng.random() < 0.9 else int(rng.integers(1, 60)))
        documents.append(tokens)
    folder = make_shards(tmp_path / "shards", {"it": documents}, vocab_size=60, documents_per_shard=100)
    counts = Counter(token for document in documents for token in [*document, 0])
    total = sum(counts.values())
    entropy = -sum(n / total * math.log(n / total) for n in counts.values())
    config = tiny_config(folder, tmp_path, steps=60, global_batch=16, seq_len=24, lr=0.02, warmup=5)
    loop.train(config)
    losses = column(tmp_path / "run", "loss")
    assert losses[0] > entropy
    assert sum(losses[-5:]) / 5 < 0.6 * entropy
