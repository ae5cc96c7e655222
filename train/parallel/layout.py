"""How ranks, a global batch and the blocks of a model are divided: arithmetic, without torch.

Input: the number of ranks, the sizes of the model, the settings. Output: a Layout of ranks, BatchSizes with all
sizes solved, and the blocks of each pipeline stage. UsageError names sizes that do not divide, or settings that cannot
be combined.

A pipeline of P ranks has one stage per rank, whose passes are in 1F1B order (Narayanan et al. 2019, PipeDream-Flush): a
backward pass starts as soon as it can, and a rank holds at most P micro-batches. Other schedules have 2 P stages.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from pretok.base.errors import UsageError
from train.config import TrainConfig
from train.model.sizes import ModelConfig


@dataclass(frozen=True, slots=True)
class Layout:
    """The number of ranks in each dimension of the mesh."""

    replicate: int
    shard: int
    tensor: int
    pipeline: int = 1
    context: int = 1
    """Number of ranks in `shard` that share each sequence."""

    @property
    def data_ranks(self) -> int:
        """The number of ranks that read different data; ranks that share sequences count as one."""
        return self.replicate * self.shard // self.context


def solve_layout(
    world: int, per_node: int, shard: int | None, tensor: int, pipeline: int = 1, context: int = 1
) -> Layout:
    """Solve the sizes of the mesh. Default: one copy of the parameters (of a stage) per node, replicas across nodes.

    Raises UsageError if the sizes do not divide.
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
class BatchSizes:
    """global_batch = micro_batch x accumulation x data-parallel ranks; all but the last two count sequences."""

    global_batch: int
    micro_batch: int
    accumulation: int
    ranks: int

    def __str__(self) -> str:
        return (
            f"{self.global_batch} = micro-batch {self.micro_batch} x accumulation {self.accumulation} x "
            f"{self.ranks} data-parallel ranks"
        )


def solve_batch(ranks: int, global_batch: int, micro_batch: int | None) -> BatchSizes:
    """Solve the batch sizes. Without a micro-batch, a step is a single pass.

    Raises UsageError with the nearest valid values if the global batch does not divide.
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
    return BatchSizes(global_batch, micro_batch, global_batch // (ranks * micro_batch), ranks)


def check_split(config: TrainConfig, model: ModelConfig, seq_len: int) -> None:
    """Raise UsageError unless the model and its sequences can be divided as --tensor, --context and --precision ask.

    --tensor divides heads, feed-forward, vocabulary and sequences; --context divides heads and sequences again.
    """
    ranks = config.tensor
    if config.optimizer == "muon" and config.offload:
        raise UsageError(
            "--optimizer muon with --offload would do matrix products on the host; leave one out"
        )
    widths = (model.dim, model.hidden, model.attention_dim, model.kv_dim)
    if config.precision == "float8" and (ranks > 1 or any(width % 16 for width in widths)):
        raise UsageError(
            "--precision float8 works neither with --tensor nor with widths that are not multiples of 16; use bf16"
        )
    both = f"--tensor {ranks}" + (f" x --context {config.context}" if config.context > 1 else "")
    for name, size in {"kv_heads": model.kv_heads, "seq_len": seq_len}.items():
        if size % (ranks * config.context):
            raise UsageError(f"{both} does not divide {name} ({size})")
    for name, size in {"hidden": model.hidden, "rows of the vocabulary": model.padded_vocab}.items():
        if size % ranks:
            raise UsageError(f"--tensor {ranks} does not divide {name} ({size})")


def splits_backward(config: TrainConfig) -> bool:
    """Return whether the schedule computes gradients of weights apart from those of inputs.

    Such stages go down the ranks and up again (a V): the first rank has the first and the last one.
    """
    return config.pipeline > 1 and config.pipeline_schedule in ("zero-bubble", "dualpipe")


def compiles(config: TrainConfig, *, able: bool) -> bool:
    """Return whether blocks are compiled: as --compile says, else if device and schedule can."""
    return able and not splits_backward(config) if config.compile is None else config.compile


def stages_of(config: TrainConfig, rank: int) -> list[int]:
    """Return the numbers of the stages of a rank of the pipeline."""
    if config.pipeline == 1 or config.pipeline_schedule == "1f1b":
        return [rank]
    return [rank, 2 * config.pipeline - 1 - rank if splits_backward(config) else config.pipeline + rank]


def check_pipeline(config: TrainConfig, model: ModelConfig, batch: BatchSizes) -> None:
    """Raise UsageError if --pipeline does not work with the model or the batch; the message says what would work."""
    stages, passes = config.pipeline * len(stages_of(config, 0)), batch.accumulation
    name = f"--pipeline {config.pipeline}"
    name += f" --pipeline-schedule {config.pipeline_schedule}" * (stages > config.pipeline)
    if splits_backward(config) and (config.compile or config.checkpointing not in ("none", "full")):
        raise UsageError(
            f"{name} works neither with --compile nor with --checkpointing {config.checkpointing}: torch (2.11 to "
            "2.13) cannot split the backward pass of such blocks; use --checkpointing none or full"
        )
    if stages > 1 and model.tied:
        raise UsageError(
            "--pipeline needs a separate output matrix, but this model's is its embedding (tied); use an untied model"
        )
    if stages > model.layers:
        raise UsageError(f"{name} has {stages} stages, more than the {model.layers} blocks of the model")
    least = stages if splits_backward(config) else config.pipeline
    rounds = max(1, passes // config.pipeline)
    if passes < least or (config.pipeline_schedule == "interleaved" and passes % rounds):
        raise UsageError(
            f"{name} needs at least {least} micro-batches per step and rank"
            + f", in rounds of equal size (a multiple of {config.pipeline})" * (least < stages)
            + f"; there are {passes}: lower --micro-batch (now {batch.micro_batch}) or raise --global-batch"
        )


def split_layers(model: ModelConfig, stages: int) -> list[range]:
    """Return the blocks of each stage, at least one, so that stages take about equally long.

    The output matrix counts as the number of blocks that have as many weights, so the last stage has fewer blocks.
    """
    head = model.padded_vocab * model.dim / model.block_weights
    share = (model.layers + head) / stages
    ends = [0]
    for stage in range(1, stages):
        end = round(stage * share)
        ends.append(min(max(end, ends[-1] + 1), model.layers - (stages - stage)))
    return [range(first, end) for first, end in zip(ends, [*ends[1:], model.layers], strict=True)]


BUBBLES = {"1f1b": 1, "interleaved": 2, "zero-bubble": 6, "dualpipe": 6}
"""By what (P - 1) / m is divided, for torch's schedules."""


def bubble_over_ideal(config: TrainConfig, micro_batches: int) -> float:
    """Return the time that a rank of a pipeline waits, over the ideal time of a step.

    (P - 1) / m for 1F1B and (P - 1) / (v m) for v = 2 interleaved stages (Narayanan et al. 2021, arXiv 2104.04473,
    section 2.2). The two others wait for the P - 1 forward passes of half a rank's blocks, which are a sixth of a
    micro-batch, if a backward pass takes twice as long as a forward pass, and gradients of weights half of it: ZB-V
    (Qi et al. 2023, arXiv 2401.10241, section 6) whose ranks end together, as clipping needs, and DualPipeV
    (DeepSeek-AI 2024, arXiv 2412.19437, table 2), whose passes torch does not overlap.
    """
    return (config.pipeline - 1) / micro_batches / BUBBLES[config.pipeline_schedule]


def bubble(config: TrainConfig, micro_batches: int) -> float:
    """Return the fraction of a step that a rank of a pipeline waits."""
    over = bubble_over_ideal(config, micro_batches)
    return over / (1 + over)


def passes_held(config: TrainConfig, micro_batches: int, rank: int) -> float:
    """Return for how many micro-batches a rank of a pipeline keeps its activations, at most; 0.5: for half its blocks.

    As torch's schedules order them.
    """
    ranks, halves = config.pipeline, 2 * micro_batches
    if splits_backward(config):
        return min(halves, 2 * ranks + (config.pipeline_schedule == "dualpipe")) / 2
    if config.pipeline_schedule == "interleaved":
        in_a_round = micro_batches // max(1, micro_batches // ranks)
        return min(halves, in_a_round + 2 * (ranks - 1 - rank) + 1) / 2
    return min(micro_batches, ranks - rank)
