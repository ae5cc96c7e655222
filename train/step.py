"""One optimizer step, and how its numbers reach the host without stopping the device.

Input: micro-batches on the device. Output: updated parameters and StepNumbers, read one step later, when the
device has long finished it. What ranks must agree on (stop now, save now) travels in the same all-reduce as
the loss, so all ranks read the same decision for the same step.

Loss and gradient are means over the learned tokens of the global batch, whose targets are not IGNORE. How many they
are is known when all passes are done: passes divide by all tokens, and `update` scales what the all-reduce then says.
Where every token is learned that factor is 1.0, and changes no bit.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from train.checkpoint.tensors import named_state
from train.config import TrainConfig
from train.data import MicroBatch
from train.model.loss import targets_of
from train.model.transformer import Decoder
from train.optimizer import Guard, build_optimizer, update
from train.parallel.context import Context
from train.parallel.layout import Batch
from train.parallel.mesh import gradient_sync
from train.parallel.pipeline import Pipeline


@dataclass
class Trainee:
    """What a step changes and what it needs: at first an optimizer without moments, and a guard that has seen
    nothing. parameters: the sharded ones."""

    model: Decoder | Pipeline
    mesh: DeviceMesh
    context: Context
    batch: Batch
    config: TrainConfig
    device: torch.device
    eod_id: int
    seq_len: int
    parameters: list[nn.Parameter] = field(init=False)
    optimizer: torch.optim.AdamW = field(init=False)
    guard: Guard = field(init=False)

    def __post_init__(self) -> None:
        self.parameters = list(self.model.parameters())
        self.optimizer = build_optimizer(self.model, self.config)
        self.guard = Guard.fresh(self.device)

    def part(self, tokens: Tensor, learned: Tensor | None) -> tuple[Tensor, Tensor]:
        """Inputs and targets of this rank of (n, L + 1) tokens on the device. learned: see `MicroBatch`."""
        inputs, targets = tokens[:, :-1], targets_of(tokens, self.eod_id, learned)
        return self.context.part(inputs), self.context.part(targets)

    def state(self) -> dict[str, Tensor]:
        """All tensors that a checkpoint holds; loading fills them in place."""
        return named_state(self.model, self.optimizer, self.guard.state())


class StepNumbers(NamedTuple):
    """A finished step, equal on all ranks. loss: mean over its `learned` tokens in nats, nan without any; checksum: of
    all sequences consumed; stop, save: how many ranks ask for it; skipped: steps so far, and `in_a_row` up to now."""

    step: int
    loss: float
    learned: float
    checksum: float
    stop: float
    save: float
    grad_norm: float
    skipped: float
    in_a_row: float


class Mark:
    """A moment in the work of a device, taken without waiting for it."""

    def __init__(self, device: torch.device) -> None:
        self.event: Any = None
        if device.type == "cuda":
            self.event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        self._time = time.perf_counter()
        if self.event is not None:
            self.event.record()

    def seconds_since(self, earlier: Mark) -> float:
        """Seconds between two moments that have both passed."""
        if self.event is None or earlier.event is None:
            return self._time - earlier._time
        return float(earlier.event.elapsed_time(self.event)) / 1000


class Readback:
    """Numbers on their way from the device: a float64 vector, equal on all ranks, copied without blocking."""

    def __init__(self, step: int, packed: Tensor) -> None:
        """packed: those of StepNumbers but the step."""
        self._step = step
        self.waited = 0.0  # seconds for which the host waited for its sequences
        self._host = packed
        if packed.is_cuda:
            self._host = torch.empty(packed.shape, dtype=packed.dtype, pin_memory=True)
            self._host.copy_(packed, non_blocking=True)
        self.end = Mark(packed.device)

    def read(self) -> StepNumbers:
        """Wait for the step to be done and return its numbers."""
        if self.end.event is not None:
            self.end.event.synchronize()
        return StepNumbers(self._step, *self._host.tolist())


def train_step(
    trainee: Trainee,
    batches: Iterator[MicroBatch],
    step: int,
    rate: float,
    *,
    stop: bool,
    save: bool,
) -> Readback:
    """Read, compute and apply step `step` (counted from 1). Asks the device for nothing."""
    batch = trainee.batch
    rank_tokens = batch.accumulation * batch.micro_batch * trainee.seq_len // trainee.context.ranks
    sums, checksums = _passes(trainee, batches, rank_tokens)
    host = torch.tensor([float(checksums), float(stop), float(save)], dtype=torch.float64)
    if trainee.device.type == "cuda":
        host = host.pin_memory()
    numbers = torch.cat([sums, host.to(trainee.device, non_blocking=True)])
    dist.all_reduce(numbers)
    learned = numbers[1]
    numbers[0] /= learned
    norm = update(
        trainee.optimizer,
        trainee.parameters,
        trainee.mesh,
        trainee.guard,
        trainee.config,
        rate,
        numbers[0],
        rank_tokens * dist.get_world_size() / learned.clamp(min=1),
    )
    same = dist.get_world_size() // batch.ranks  # ranks that read the same sequences
    numbers[1] /= same // trainee.context.ranks
    numbers[2] /= same
    shared = torch.stack([norm, trainee.guard.skipped, trainee.guard.in_a_row])
    return Readback(step, torch.cat([numbers, shared.to(numbers, non_blocking=True)]))


def _passes(trainee: Trainee, batches: Iterator[MicroBatch], rank_tokens: int) -> tuple[Tensor, int]:
    """All passes of a step; returns this rank's sum of losses and its learned tokens, (2,) float64, and the sum of its
    checksums."""
    batch, model = trainee.batch, trainee.model
    sums = torch.zeros(2, dtype=torch.float64, device=trainee.device)
    if isinstance(model, Pipeline):
        read = [next(batches) for _ in range(batch.accumulation)]
        tokens, checksum_of, documents_in, masks = zip(*read, strict=True)
        learned = None if masks[0] is None else torch.cat(masks)
        inputs, targets = trainee.part(torch.cat(tokens), learned)
        sums[0] += model.passes(inputs, targets, list(documents_in))
        sums[1] += (targets >= 0).sum()
        return sums, sum(checksum_of)
    checksums = 0
    for number in range(batch.accumulation):
        ids, checksum, documents, learned = next(batches)
        checksums += checksum
        if batch.accumulation > 1:
            gradient_sync(model, last=number == batch.accumulation - 1, reshard=trainee.config.reshard)
        inputs, targets = trainee.part(ids, learned)
        total, nll = model(inputs, targets, documents)
        # fully_shard averages over the ranks that share and replicate parameters
        (total / rank_tokens).backward()
        sums[0] += nll
        sums[1] += (targets >= 0).sum()
    return sums, checksums
