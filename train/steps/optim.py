"""AdamW, its learning rate and the guard that skips bad steps without asking the host.

Enters: the model's (sharded) parameters with their gradients. Leaves: updated parameters, or untouched ones
when the gradient norm is not finite or far above its running statistics. Everything stays on the device.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from train.config import TrainConfig

STATISTICS_AFTER = 100
"""Accepted steps before an outlying norm is skipped; the first ones fall steeply."""
STATISTICS_RATE = 0.02
"""Weight of a new norm in the running mean and variance: about the last 50 steps."""


def build_optimizer(model: nn.Module, config: TrainConfig) -> torch.optim.AdamW:
    """Fused AdamW. Groups differ in decay (none on norms; embeddings by config) and in mesh.

    A fused update of DTensors must not mix meshes, and with tensor parallelism norms are not on it.
    """
    groups: dict[tuple[bool, Any], list[nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        decays = parameter.ndim > 1 and (config.decay_embeddings or "embed_tokens" not in name)
        mesh = parameter.device_mesh if isinstance(parameter, DTensor) else None
        groups.setdefault((decays, mesh), []).append(parameter)
    optimizer = torch.optim.AdamW(
        [
            {"params": parameters, "weight_decay": config.weight_decay if decays else 0.0}
            for (decays, _), parameters in groups.items()
        ],
        lr=config.lr,
        betas=(config.beta1, config.beta2),
        eps=config.eps,
        fused=True,
    )
    # Where there is no state, torch's checkpointing makes one by a step that moves nothing and yet counts, and every
    # bias correction after it is off by one.
    for parameter in model.parameters():
        optimizer.state[parameter] = {
            "step": torch.zeros((), device=parameter.device),
            "exp_avg": torch.zeros_like(parameter),
            "exp_avg_sq": torch.zeros_like(parameter),
        }
    return optimizer


def learning_rate(config: TrainConfig, step: int, steps: int) -> float:
    """Rate of step `step` (from 0) of a run of `steps`.

    Linear warm-up; then cosine to min_lr x lr, or constant, or constant with a linear decay over the last
    `decay` part (warm-up, stable, decay; Hu et al. 2024, MiniCPM).
    """
    if step < config.warmup:
        return config.lr * (step + 1) / config.warmup
    if config.schedule == "cosine":
        done = (step - config.warmup) / max(1, steps - config.warmup)
        left = 0.5 * (1 + math.cos(math.pi * min(1.0, done)))
    else:
        length = round(config.decay * steps) if config.schedule == "wsd" else 0
        left = min(1.0, (steps - step) / length) if length else 1.0
    return config.lr * (config.min_lr + (1 - config.min_lr) * left)


def local_tensors(tensors: Sequence[Tensor]) -> list[Tensor]:
    """This rank's pieces."""
    return [tensor.to_local() if isinstance(tensor, DTensor) else tensor for tensor in tensors]


@dataclass(frozen=True, slots=True)
class NormGroups:
    """The ranks that hold different pieces of the parameters; None where one rank holds all.

    Kept, because slicing a mesh in every step costs the host more than the step's bookkeeping.
    """

    shard: dist.ProcessGroup | None
    tensor: dist.ProcessGroup | None
    tensor_rank: int

    @classmethod
    def of(cls, mesh: DeviceMesh) -> NormGroups:
        """Groups of a mesh with the dimensions (replicate, shard, tensor)."""
        shard, tensor = (mesh[name] for name in ("shard", "tensor"))
        return cls(
            shard.get_group() if shard.size() > 1 else None,
            tensor.get_group() if tensor.size() > 1 else None,
            tensor.get_local_rank(),
        )


def _is_split(tensor: DTensor, dimension: str) -> bool:
    """Whether ranks along a dimension of the mesh hold different pieces of it."""
    names = tensor.device_mesh.mesh_dim_names or ()
    return dimension in names and not tensor.placements[names.index(dimension)].is_replicate()


def global_norm(tensors: Sequence[Tensor], groups: NormGroups) -> Tensor:
    """Euclidean norm of all ranks' pieces together, a float32 scalar on the tensors' device.

    A tensor that is not split over the mesh dimension "tensor" is counted by one of its ranks only.
    """
    counted = [
        tensor
        for tensor in tensors
        if groups.tensor_rank == 0 or (isinstance(tensor, DTensor) and _is_split(tensor, "tensor"))
    ]
    local = local_tensors(counted)
    total = torch.stack([norm.float().square() for norm in torch._foreach_norm(local)]).sum()
    for group in (groups.shard, groups.tensor):
        if group is not None:
            dist.all_reduce(total, group=group)
    return total.sqrt()


@dataclass
class Guard:
    """Running statistics of the gradient norm and the counters of skipped steps, as device scalars."""

    mean: Tensor
    variance: Tensor
    accepted: Tensor
    skipped: Tensor
    in_a_row: Tensor

    @classmethod
    def fresh(cls, device: torch.device) -> Guard:
        """No step seen yet."""
        return cls(*(torch.zeros((), device=device) for _ in range(5)))

    def state(self) -> dict[str, Tensor]:
        """The tensors, to be saved and loaded in place."""
        return vars(self)

    def judge(self, norm: Tensor, sigma: float) -> Tensor:
        """1.0 when the step must be skipped, else 0.0; takes an accepted norm into the statistics."""
        bad = ~torch.isfinite(norm)
        if sigma:
            limit = self.mean + sigma * self.variance.sqrt()
            bad |= (self.accepted >= STATISTICS_AFTER) & (norm > limit)
        rate = torch.where(self.accepted == 0, 1.0, STATISTICS_RATE)
        delta = norm - self.mean
        good = ~bad
        self.mean.copy_(torch.where(good, self.mean + rate * delta, self.mean))
        # The first norm sets the mean and leaves the variance at zero.
        spread = (1 - rate) * (self.variance + rate * delta.square())
        self.variance.copy_(torch.where(good, spread, self.variance))
        self.accepted.add_(good)
        self.skipped.add_(bad)
        self.in_a_row.copy_(torch.where(bad, self.in_a_row + 1, 0.0))
        return bad.float()


def update(
    optimizer: torch.optim.AdamW,
    parameters: Sequence[nn.Parameter],
    groups: NormGroups,
    guard: Guard,
    config: TrainConfig,
    rate: float,
) -> Tensor:
    """Clip, judge, step and clear the gradients. Returns the gradient norm before clipping, on the device."""
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    norm = global_norm(gradients, groups)
    skip = guard.judge(norm, config.skip_sigma)
    torch._foreach_mul_(local_tensors(gradients), (config.clip / (norm + 1e-6)).clamp(max=1.0))
    for group in optimizer.param_groups:
        group["lr"] = rate
    # The fused kernel reads this flag on the device, as it does for torch.amp's scaler: 1 leaves everything
    # as it is.
    optimizer.found_inf = skip  # type: ignore[attr-defined]
    optimizer.step()
    optimizer.zero_grad()
    return norm
