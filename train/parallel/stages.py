"""Arithmetic of pipeline parallelism: which blocks are in which stage, and how long ranks wait for each other.

Enters: sizes, the number of pipeline ranks P, stages of each rank V, micro-batches of a step M. Leaves: ranges of
blocks, the bubble, passes that are in memory at a time.

Stage s is on pipeline rank s mod P. GPipe (Huang et al. 2019) runs all forward passes, then all backward ones; 1F1B
(Narayanan et al. 2019, PipeDream-Flush) begins a backward pass as soon as it can and holds at most P micro-batches;
interleaved 1F1B (Narayanan et al. 2021, section 2.2) gives each rank V stages, which divides the bubble by V.
"""

from __future__ import annotations

from pretok.base.errors import UsageError
from train.config import Batch, TrainConfig
from train.model.sizes import ModelConfig


def stages_per_rank(config: TrainConfig) -> int:
    """V."""
    return config.pipeline_parts if config.pipeline > 1 and config.pipeline_schedule == "interleaved" else 1


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


def bubble(config: TrainConfig, micro_batches: int) -> float:
    """Part of a step for which a rank waits: (P - 1) / (V M + P - 1), all passes of a stage taking equally long."""
    waits = config.pipeline - 1
    return waits / (stages_per_rank(config) * micro_batches + waits)


def passes_in_memory(config: TrainConfig, rank: int, micro_batches: int) -> int:
    """Passes of one stage whose activations a rank holds at a time; V of them are a micro-batch.

    GPipe: all. 1F1B: P less the rank. Interleaved: as many as Megatron-LM's warm-up has, and the one at work.
    """
    ranks, parts = config.pipeline, stages_per_rank(config)
    if config.pipeline_schedule == "gpipe":
        return micro_batches
    if parts == 1:
        return min(micro_batches, ranks - rank)
    return min(parts * micro_batches, (parts - 1) * ranks + 2 * (ranks - 1 - rank) + 1)


def check_pipeline(config: TrainConfig, model: ModelConfig, batch: Batch) -> None:
    """UsageError names what --pipeline does not go with, and what would."""
    ranks, passes = config.pipeline, batch.accumulation
    if ranks == 1:
        return
    stages = ranks * stages_per_rank(config)
    if model.tied:
        raise UsageError(
            "--pipeline: the model's embedding is its output matrix (tied), at both ends; untie it"
        )
    if config.offload:
        raise UsageError("--pipeline does not go with --offload")
    if stages > model.layers:
        raise UsageError(f"--pipeline: {stages} stages are more than the {model.layers} blocks of the model")
    if config.pipeline_schedule == "1f1b" and passes < ranks:
        raise UsageError(
            f"--pipeline {ranks} with 1f1b needs at least {ranks} micro-batches in a step of each rank; there are "
            f"{passes}: lower --micro-batch (now {batch.micro_batch}) or raise --global-batch"
        )
    if config.pipeline_schedule == "interleaved" and passes % ranks:
        raise UsageError(
            f"--pipeline {ranks} with interleaved needs a multiple of {ranks} micro-batches in a step of each rank; "
            f"there are {passes}"
        )
