"""One optimizer step, and how its numbers reach the host without stopping the device.

Input: micro-batches on the device. Output: updated parameters, and StepNumbers that the host reads one step later, when
the device has long finished. Decisions on which all ranks must agree (stop now, save now) travel in the same all-reduce
as the loss, so all ranks read the same decision for the same step.

Loss and gradient are means over the learned tokens of the global batch, those whose target is not IGNORE. Their number
is known only after all passes. So each pass divides by the number of all tokens, and `update` multiplies the gradients
by all / learned. If every token is learned, that factor is exactly 1.0 and changes no bit.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
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
from train.parallel.layout import BatchSizes
from train.parallel.mesh import gradient_sync
from train.parallel.pipeline import Pipeline


@dataclass
class TrainState:
    """The model, its optimizer and guard, and everything else that a step needs.

    The moments of a new optimizer are zero, and a new guard has seen no step.
    """

    model: Decoder | Pipeline
    mesh: DeviceMesh
    context: Context
    batch: BatchSizes
    config: TrainConfig
    device: torch.device
    eod_id: int
    seq_len: int
    parameters: list[nn.Parameter] = field(init=False)
    """The sharded ones."""
    optimizer: torch.optim.AdamW = field(init=False)
    guard: Guard = field(init=False)

    def __post_init__(self) -> None:
        self.parameters = list(self.model.parameters())
        self.optimizer = build_optimizer(self.model, self.config)
        self.guard = Guard(
            self.parameters[0].device
        )  # the host's with --offload: that is where norms are computed

    def part(self, tokens: Tensor, learned: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return this rank's part of the inputs and targets of (n, L + 1) tokens, each (n, L / context), on the device.

        learned: see `MicroBatch`.
        """
        inputs, targets = tokens[:, :-1], targets_of(tokens, self.eod_id, learned)
        return self.context.part(inputs), self.context.part(targets)

    def tensors(self) -> dict[str, Tensor]:
        """Return all tensors of a checkpoint by name; loading fills them in place."""
        return named_state(self.model, self.optimizer, self.guard.state())


SAVE, WAIT = 1, 2
"""What rank 0 asks of all: to save after this step; to read the numbers of each step before the next one begins."""


class StepNumbers(NamedTuple):
    """The numbers of a finished step, equal on all ranks."""

    step: int
    loss: float
    """Mean over its `learned` tokens in nats, nan if there are none."""
    learned: float
    checksum: float
    """Sum over all sequences consumed."""
    stop: float
    """Number of ranks that ask for it."""
    asks: float
    """What rank 0 asks for, a sum of SAVE and WAIT."""
    grad_norm: float
    """Before clipping."""
    skipped: float
    """Steps skipped so far."""
    in_a_row: float
    """Steps skipped in a row up to this one."""


class Mark:
    """A point in time in the device's work, taken without waiting for the device."""

    def __init__(self, device: torch.device) -> None:
        self.event: Any = None
        if device.type == "cuda":
            self.event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        self._time = time.perf_counter()
        if self.event is not None:
            self.event.record()

    def seconds_since(self, earlier: Mark) -> float:
        """Return the seconds between two points that have both passed."""
        if self.event is None or earlier.event is None:
            return self._time - earlier._time
        return float(earlier.event.elapsed_time(self.event)) / 1000


class Readback:
    """Numbers on their way from the device: a float64 vector, equal on all ranks, copied without blocking."""

    def __init__(self, step: int, packed: Tensor) -> None:
        """packed: the fields of StepNumbers except the step, float64, in their order."""
        self._step = step
        self.waited = 0.0  # seconds that the host waited for the step's sequences
        self._host = packed
        if packed.is_cuda:  # into pinned memory, as a copy into pageable memory would make the host wait
            self._host = torch.empty(packed.shape, dtype=packed.dtype, pin_memory=True)
            self._host.copy_(packed, non_blocking=True)
        self.end = Mark(packed.device)

    def read(self) -> StepNumbers:
        """Wait until the step is done and return its numbers."""
        if self.end.event is not None:
            self.end.event.synchronize()
        return StepNumbers(self._step, *self._host.tolist())


def train_step(
    state: TrainState,
    batches: Iterator[MicroBatch],
    step: int,
    rate: float,
    *,
    stop: Callable[[], bool],
    asks: int,
) -> Readback:
    """Read, compute and apply step `step` (counted from 1). The host does not wait for the device.

    stop() is asked after the passes: on a CPU, where they take the time of the step, it counts for this one.
    """
    batch = state.batch
    rank_tokens = batch.accumulation * batch.micro_batch * state.seq_len // state.context.ranks
    sums, checksums = _passes(state, batches, rank_tokens)
    host = torch.tensor([float(checksums), float(stop()), float(asks)], dtype=torch.float64)
    if state.device.type == "cuda":
        host = host.pin_memory()
    # (loss sum, learned tokens, checksum, stop, asks), summed over all ranks in one collective. `loss` and `learned`
    # are views of it.
    numbers = torch.cat([sums, host.to(state.device, non_blocking=True)])
    dist.all_reduce(numbers)
    loss, learned = numbers[0], numbers[1]
    loss /= learned
    scale = rank_tokens * dist.get_world_size() / learned.clamp(min=1)
    norm = update(state.optimizer, state.parameters, state.mesh, state.guard, state.config, rate, loss, scale)
    # Tensor, pipeline and context ranks read the same sequences, so a sum over all ranks counts each sequence `same`
    # times. A context rank counts only its own tokens, so learned tokens are counted less often than that.
    same = dist.get_world_size() // batch.ranks
    learned /= same // state.context.ranks
    numbers[2] /= same  # the checksum
    shared = torch.stack([norm, state.guard.skipped, state.guard.in_a_row])
    return Readback(step, torch.cat([numbers, shared.to(numbers, non_blocking=True)]))


def _passes(state: TrainState, batches: Iterator[MicroBatch], rank_tokens: int) -> tuple[Tensor, int]:
    """Run all forward and backward passes of a step.

    Returns (loss sum, learned tokens) of this rank, (2,) float64 on the device, and the sum of its checksums.
    """
    batch, model = state.batch, state.model
    sums = torch.zeros(2, dtype=torch.float64, device=state.device)
    if isinstance(model, Pipeline):
        read = [next(batches) for _ in range(batch.accumulation)]
        tokens, checksum_of, documents_in, masks = zip(*read, strict=True)
        learned = None if masks[0] is None else torch.cat(masks)
        inputs, targets = state.part(torch.cat(tokens), learned)
        sums[0] += model.passes(inputs, targets, list(documents_in))
        sums[1] += (targets >= 0).sum()
        return sums, sum(checksum_of)
    checksums = 0
    for number in range(batch.accumulation):
        ids, checksum, documents, learned = next(batches)
        checksums += checksum
        if batch.accumulation > 1:
            gradient_sync(model, last=number == batch.accumulation - 1, reshard=state.config.reshard)
        inputs, targets = state.part(ids, learned)
        total, nll = model(inputs, targets, documents)
        # fully_shard averages over shard and replicate ranks, so dividing by this rank's tokens gives the global mean.
        (total / rank_tokens).backward()
        sums[0] += nll
        sums[1] += (targets >= 0).sum()
    return sums, checksums
