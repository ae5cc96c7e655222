"""Validation loss of every source.

Enters: the validation split of the shards. Leaves: mean loss in nats per token, by source and over all, equal
on all ranks; None when a stop was asked for on the way.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist

import pretok.stream
from pretok.base.errors import UsageError
from pretok.shards.manifest import load_manifest
from pretok.stream import View
from train.config import TrainConfig
from train.parallel.mesh import data_rank, reshard
from train.steps.data import validation_batches
from train.steps.step import Trainee


@dataclass(frozen=True, slots=True)
class Validation:
    """Mean losses by source, and over all evaluated tokens."""

    sources: dict[str, float]
    loss: float


def validation_views(config: TrainConfig, seq_len: int) -> dict[str, View]:
    """A view of each source's validation split that holds a sequence; UsageError when none does."""
    manifest = load_manifest(Path(config.shards))
    views = {}
    for name in manifest.sources:
        if sum(shard.tokens for shard in manifest.of(name, "val")) > seq_len:
            views[name] = pretok.stream.open(config.shards, seq_len=seq_len, split="val", source=name)
    if not views:
        raise UsageError(
            f"{config.shards} holds no validation sequence of {seq_len} tokens: "
            "tokenize with --val-fraction, or do without --val-every and --keep-best"
        )
    return views


def evaluate(trainee: Trainee, views: dict[str, View], stop: Callable[[], bool]) -> Validation | None:
    """Evaluate the first `val_sequences` of each source. The stop flag is looked at after every batch."""
    mesh = trainee.mesh
    sums: dict[str, torch.Tensor] = {}
    try:
        for name, view in views.items():
            total = torch.zeros(2, dtype=torch.float64, device=trainee.device)
            batches = validation_batches(
                view,
                min(len(view), trainee.config.val_sequences),
                trainee.batch.micro_batch,
                data_rank(mesh),
                trainee.batch.ranks,
                trainee.device,
            )
            for inputs, targets in batches:
                with torch.no_grad():
                    _, nll = trainee.model(inputs, targets, trainee.documents(inputs))
                total[0] += nll
                total[1] += (targets >= 0).sum()
                flag = torch.tensor(float(stop()), device=trainee.device)
                dist.all_reduce(flag)
                if flag.item():
                    return None
            dist.all_reduce(total)
            sums[name] = total
    finally:
        reshard(trainee.model)
    everything = sum(sums.values(), torch.zeros(2, dtype=torch.float64, device=trainee.device))
    losses = {name: (total[0] / total[1]).item() for name, total in sums.items()}
    return Validation(losses, (everything[0] / everything[1]).item())
