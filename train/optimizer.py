"""AdamW, its learning rate and the guard that skips bad steps without asking the host.

Input: the model's (sharded) parameters with their gradients. Output: updated parameters, or untouched ones
when the gradient norm or the loss is not finite or far above those of late. Everything stays on the device.
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
from train.parallel.mesh import local

WINDOW = 128
"""Steps whose gradient norm and loss are looked back upon; none is judged before there are so many."""
MAX_SKIPS = 10
"""Steps skipped in a row; one more ends the run."""
LEAST_RISE = 0.1
"""Nats per token: a loss that lies less above the mean is no spike, however alike the losses before it were."""


def build_optimizer(model: nn.Module, config: TrainConfig) -> torch.optim.AdamW:
    """Fused AdamW, its hyper-parameters from the settings. Norms and embeddings do not decay.

    A fused update of DTensors must not mix meshes, and with tensor parallelism norms are not on it; so there may be
    several groups of one kind. `decays` says which, and checkpoints know parameters by name.
    """
    groups: dict[tuple[bool, Any], list[nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        decays = parameter.ndim > 1 and "embed_tokens" not in name
        mesh = parameter.device_mesh if isinstance(parameter, DTensor) else None
        groups.setdefault((decays, mesh), []).append(parameter)
    optimizer = torch.optim.AdamW(
        [{"params": parameters, "decays": decays} for (decays, _), parameters in groups.items()], fused=True
    )
    set_hyper_parameters(optimizer, config)
    # Made now and not at the first step, so that a checkpoint can be loaded into it.
    for parameter in model.parameters():
        optimizer.state[parameter] = {
            "step": torch.zeros((), device=parameter.device),
            "exp_avg": torch.zeros_like(parameter),
            "exp_avg_sq": torch.zeros_like(parameter),
        }
    return optimizer


def set_hyper_parameters(optimizer: torch.optim.AdamW, config: TrainConfig) -> None:
    """Give every group what the settings say; the learning rate comes with each step."""
    for group in optimizer.param_groups:
        group["betas"] = (config.beta1, config.beta2)
        group["eps"] = config.eps
        group["weight_decay"] = config.weight_decay if group["decays"] else 0.0


def warmup_steps(config: TrainConfig, steps: float) -> float:
    """Length of the warm-up of a schedule of `steps`."""
    return config.warmup if config.warmup >= 1 else round(config.warmup * steps)


def learning_rate(config: TrainConfig, step: float, steps: float, size: float = 1) -> float:
    """Rate of step `step` (from 0) of a schedule of `steps`, both in steps of the schedule's batch; size: of this step.
    The last step of the warm-up has lr, and the last step of the decay min_lr x lr.

    Linear warm-up; then cosine to min_lr x lr, or constant, or constant with a decay over the last `decay` part
    (warm-up, stable, decay; Hu et al. 2024, MiniCPM), linear or with the square root of what is done of it (Hägele et
    al. 2024, arXiv 2405.18392).
    """
    if step < (warmup := warmup_steps(config, steps)):
        return config.lr * min(1.0, (step + 1) / warmup)
    done = step + size
    if config.schedule == "cosine":
        part = (done - warmup) / (steps - warmup)
        left = 0.5 * (1 + math.cos(math.pi * min(1.0, part)))
    else:
        length = float(round(config.decay * steps))
        left = min(1.0, max(0.0, steps - done) / length) if config.schedule == "wsd" and length else 1.0
        if config.decay_shape == "1-sqrt":
            left = 1 - math.sqrt(1 - left)
    return config.lr * (config.min_lr + (1 - config.min_lr) * left)


def _is_split(tensor: DTensor, dimension: str) -> bool:
    """Whether ranks along a dimension of the mesh hold different pieces of it."""
    names = tensor.device_mesh.mesh_dim_names or ()
    return dimension in names and not tensor.placements[names.index(dimension)].is_replicate()


def global_norm(tensors: Sequence[Tensor], mesh: DeviceMesh) -> Tensor:
    """Euclidean norm of all ranks' pieces together, a float32 scalar on the tensors' device. Of what tensor ranks all
    have the first counts its own.

    One collective over all ranks, whose result has the same bits on all of them, so that all decide alike: a step that
    one rank skips and another does not would leave them with different models. Replicas take the mean of theirs.
    """
    whole = mesh.get_local_rank("tensor") == 0
    counted = [one for one in tensors if whole or (isinstance(one, DTensor) and _is_split(one, "tensor"))]
    norms = torch._foreach_norm(list(map(local, counted)))
    total = torch.stack([norm.float().square() for norm in norms]).sum()
    dist.all_reduce(total)
    return (total / mesh.get_group("replicate").size()).sqrt()


@dataclass
class Guard:
    """The last WINDOW gradient norms and losses, and the counters of skipped steps, on the device.

    A step is bad when its norm or its loss is not finite, or lies `sigma` standard deviations above the mean of the
    window. What is finite enters the window, bad or not: k equal outliers among n values lie sqrt((n - k) / k)
    deviations above their mean, so a lasting rise of any size is skipped about n / (sigma^2 + 1) times, four for 6
    sigma, before it is what is usual. OLMo-core's SkipStepOptimizer looks back in the same way.
    """

    norms: Tensor
    losses: Tensor
    seen: Tensor
    skipped: Tensor
    in_a_row: Tensor

    @classmethod
    def fresh(cls, device: torch.device) -> Guard:
        """No step seen yet."""
        windows = (torch.zeros(WINDOW, device=device) for _ in range(2))
        return cls(*windows, *(torch.zeros((), device=device) for _ in range(3)))

    def state(self) -> dict[str, Tensor]:
        """The tensors, to be saved and loaded in place."""
        return vars(self)

    def forget(self) -> None:
        """Empty the window: what comes is another data or another loss."""
        self.seen.zero_()

    def judge(self, norm: Tensor, loss: Tensor, config: TrainConfig) -> Tensor:
        """1.0 when the step must be skipped, else 0.0; takes it into the window.

        norm: before clipping, below --clip it is never bad; loss: mean of the step in nats per token.
        """
        loss = loss.to(norm)
        finite = torch.isfinite(norm) & torch.isfinite(loss)
        bad = ~finite
        if config.skip_sigma:
            full = self.seen >= WINDOW
            for value, window, least in (
                (norm, self.norms, torch.full_like(norm, config.clip)),
                (loss, self.losses, self.losses.mean() + LEAST_RISE),
            ):
                spread, mean = torch.std_mean(window, correction=0)
                bad |= full & (value > torch.maximum(mean + config.skip_sigma * spread, least))
        place = (self.seen % WINDOW).long()[None]
        for value, window in ((norm, self.norms), (loss, self.losses)):
            window.index_copy_(0, place, torch.where(finite, value, window[place]).view(1))
        self.seen.add_(finite)
        self.skipped.add_(bad)
        self.in_a_row.copy_(torch.where(bad, self.in_a_row + 1, 0.0))
        return bad.float()


def update(
    optimizer: torch.optim.AdamW,
    parameters: Sequence[nn.Parameter],
    mesh: DeviceMesh,
    guard: Guard,
    config: TrainConfig,
    rate: float,
    loss: Tensor,
    scale: Tensor,
) -> Tensor:
    """Scale, clip, judge, step and clear the gradients; loss: the step's, scale: a factor, both equal on all ranks.

    Returns the gradient norm before clipping, on the device.
    """
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    norm = global_norm(gradients, mesh)
    scale = scale.to(norm)
    norm *= scale
    skip = guard.judge(norm, loss, config)
    if config.clip:
        scale = scale * (config.clip / (norm + 1e-6)).clamp(max=1.0)
    torch._foreach_mul_(list(map(local, gradients)), scale)
    for group in optimizer.param_groups:
        group["lr"] = rate
    # The fused kernel reads this flag on the device, as it does for torch.amp's scaler: 1 leaves everything
    # as it is.
    optimizer.found_inf = skip  # type: ignore[attr-defined]
    optimizer.step()
    optimizer.zero_grad()
    return norm
