"""How ranks, a global batch and the blocks of a model are divided. Arithmetic, without torch.

Input: the number of ranks, sizes of the model, the settings that are given. Output: a Layout of ranks and a Batch, all
sizes solved, and which blocks are in which stage of a pipeline; UsageError names what does not divide or does not go
together.

A pipeline of P ranks has a stage on each. Its passes go in the order 1F1B (Narayanan et al. 2019, PipeDream-Flush): a
backward pass begins as soon as it can, and a rank holds at most P micro-batches.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from pretok.base.errors import UsageError
from train.config import TrainConfig, recomputed
from train.model.sizes import ModelConfig


@dataclass(frozen=True, slots=True)
class Layout:
    """How many ranks each mesh dimension has."""

    replicate: int
    shard: int
    tensor: int
    pipeline: int = 1
    context: int = 1
    """Of the ranks in `shard`, so many share each sequence."""

    @property
    def data_ranks(self) -> int:
        """Ranks that read different data; those that share sequences are one."""
        return self.replicate * self.shard // self.context


def solve_layout(
    world: int, per_node: int, shard: int | None, tensor: int, pipeline: int = 1, context: int = 1
) -> Layout:
    """Sizes of the mesh: by default one copy of the parameters (of a stage) per node, replicas across nodes.

    Raises UsageError when the sizes do not divide.
    """
    if world % tensor:
        raise UsageError(f"tensor = {tensor} does not divide the {world} ranks")
    if world // tensor % pipeline:
        raise UsageError(
            f"pipeline = {pipeline} does not divide the {world // tensor} groups of tensor ranks"
        )
    ranks = world // tensor // pipeline
    if shard is None:
        shard = math.lcm(max(1, per_node // tensor), context)
        shard = shard if ranks % shard == 0 else ranks
    valid = [n for n in range(1, ranks + 1) if ranks % n == 0 and n % context == 0]
    if shard not in valid:
        raise UsageError(
            f"shard = {shard} does not divide {ranks} data-parallel ranks"
            + (f", or not into groups of context = {context}" if context > 1 else "")
            + f"; valid: {valid}"
        )
    return Layout(ranks // shard, shard, tensor, pipeline, context)


@dataclass(frozen=True, slots=True)
class Batch:
    """global_batch = micro_batch x accumulation x data-parallel ranks, all in sequences."""

    global_batch: int
    micro_batch: int
    accumulation: int
    ranks: int

    def __str__(self) -> str:
        return (
            f"{self.global_batch} = micro-batch {self.micro_batch} x accumulation {self.accumulation} x "
            f"{self.ranks} data-parallel ranks"
        )


def solve_batch(ranks: int, global_batch: int, micro_batch: int | None) -> Batch:
    """A step is one pass where no micro-batch is given.

    Raises UsageError with the nearest valid values when it does not divide.
    """
    unit = ranks * (micro_batch or 1)
    if global_batch % unit:
        nearest = (n for n in (global_batch // unit * unit, -(-global_batch // unit) * unit) if n)
        factors = f"{ranks} data-parallel ranks" + (f" x micro_batch {micro_batch}" if micro_batch else "")
        raise UsageError(
            f"global_batch {global_batch} is not a multiple of {factors} = {unit}; "
            f"nearest: {' or '.join(map(str, nearest))}"
        )
    micro_batch = micro_batch or global_batch // ranks
    return Batch(global_batch, micro_batch, global_batch // (ranks * micro_batch), ranks)


def check_split(config: TrainConfig, model: ModelConfig, seq_len: int) -> None:
    """UsageError unless heads, feed-forward, vocabulary and sequences can be divided among the ranks of --tensor, and
    heads and sequences also among those of --context, and no compiled block of --tensor is recomputed as a whole: torch
    2.13 then ends in an AssertionError about what it has saved."""
    ranks = config.tensor
    if config.compile and _fails_compiled(config, model):
        raise UsageError(
            f"--compile with --tensor does not go with --checkpointing {config.checkpointing}, only with ops or none"
        )
    widths = (model.dim, model.hidden, model.attention_dim, model.kv_dim)
    if config.precision == "float8" and (ranks > 1 or any(width % 16 for width in widths)):
        raise UsageError(
            "--precision float8 goes neither with --tensor nor with widths that 16 does not divide"
        )
    both = f"--tensor {ranks}" + (f" x --context {config.context}" if config.context > 1 else "")
    for name, size in {"kv_heads": model.kv_heads, "seq_len": seq_len}.items():
        if size % (ranks * config.context):
            raise UsageError(f"{both} does not divide {name} ({size})")
    for name, size in {"hidden": model.hidden, "rows of the vocabulary": model.padded_vocab}.items():
        if size % ranks:
            raise UsageError(f"--tensor {ranks} does not divide {name} ({size})")


def compiles(config: TrainConfig, model: ModelConfig, *, able: bool) -> bool:
    """Whether blocks are compiled: as --compile says; untold, where the device is able to and torch does not fail."""
    return able and not _fails_compiled(config, model) if config.compile is None else config.compile


def _fails_compiled(config: TrainConfig, model: ModelConfig) -> bool:
    whole = (recomputed(config.checkpointing, block) == "full" for block in range(model.layers))
    return config.tensor > 1 and any(whole)


def check_pipeline(config: TrainConfig, model: ModelConfig, batch: Batch) -> None:
    """UsageError names what --pipeline does not go with, and what would."""
    stages, passes = config.pipeline, batch.accumulation
    if stages > 1 and model.tied:
        raise UsageError(
            "--pipeline: the model's embedding is its output matrix (tied), at both ends; untie it"
        )
    if stages > model.layers:
        raise UsageError(f"--pipeline: {stages} stages are more than the {model.layers} blocks of the model")
    if passes < stages:
        raise UsageError(
            f"--pipeline {stages} needs at least {stages} micro-batches in a step of each rank; there are {passes}: "
            f"lower --micro-batch (now {batch.micro_batch}) or raise --global-batch"
        )


def split_layers(model: ModelConfig, stages: int) -> list[range]:
    """Blocks of each stage, at least one, so that stages take like long.

    The output matrix with its loss counts as so many blocks as it has weights: the last stage has fewer.
    """
    head = model.padded_vocab * model.dim / model.block_weights
    share = (model.layers + head) / stages
    ends = [0]
    for stage in range(1, stages):
        end = round(stage * share)
        ends.append(min(max(end, ends[-1] + 1), model.layers - (stages - stage)))
    return [range(first, end) for first, end in zip(ends, [*ends[1:], model.layers], strict=True)]


def bubble(stages: int, micro_batches: int) -> float:
    """Part of a step for which a rank waits: (P - 1) / (M + P - 1), all passes of a stage taking equally long."""
    return (stages - 1) / (micro_batches + stages - 1)
