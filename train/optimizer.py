"""AdamW and Muon, their learning rate, and the guard that skips bad steps without asking the host.

Input: the model's (sharded) parameters and their gradients. Output: updated parameters; unchanged ones if the gradient
norm or the loss is not finite or far above its recent values. Everything stays on the device.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate

from train.config import TrainConfig
from train.parallel.mesh import REPLICATE, TENSOR, local, own_part

WINDOW = 128
"""Steps whose gradient norms and losses are remembered; no step is judged before there are this many."""
MAX_SKIPS = 10
"""Steps that may be skipped in a row; one more ends the run."""
MOMENTUM, ADJUST = 0.95, "match_rms_adamw"
"""Settings of Muon: torch's default, and a scale for which AdamW's learning rate and decay suit (arXiv 2502.16982)."""
LEAST_RISE = 0.1
"""Nats per token: a loss that exceeds the mean by less is never an outlier, however small the deviation so far."""


def build_optimizer(model: nn.Module, config: TrainConfig) -> torch.optim.AdamW:
    """Return fused AdamW, or with Muon, with the hyperparameters of the settings.

    Norms and embeddings have no weight decay.

    A fused update of DTensors cannot mix meshes, and with tensor parallelism norms are on another mesh than matrices.
    So there may be several groups of one kind: `decays` distinguishes them, and checkpoints identify parameters by
    name.
    """
    groups: dict[tuple[bool, bool, Any], list[nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        decays = parameter.ndim > 1 and "embed_tokens" not in name
        muon = config.optimizer == "muon" and parameter.ndim > 1 and "layers." in name
        mesh = parameter.device_mesh if isinstance(parameter, DTensor) else None
        groups.setdefault((decays, muon, mesh), []).append(parameter)
    kind = MuonAndAdamW if config.optimizer == "muon" else torch.optim.AdamW
    optimizer = kind(
        [
            {"params": parameters, "decays": decays, "muon": muon}
            for (decays, muon, _), parameters in groups.items()
        ],
        fused=True,
    )
    set_hyper_parameters(optimizer, config)
    # Created now and not at the first step, so that a checkpoint can be loaded into these tensors.
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if group["muon"]:
                optimizer.state[parameter] = {"momentum_buffer": torch.zeros_like(parameter)}
                continue
            optimizer.state[parameter] = {
                "step": torch.zeros((), device=parameter.device),
                "exp_avg": torch.zeros_like(parameter),
                "exp_avg_sq": torch.zeros_like(parameter),
            }
    return optimizer


class MuonAndAdamW(torch.optim.AdamW):
    """torch's Muon for the groups with `muon`, AdamW for the others.

    The step of Muon is not elementwise: it makes a whole matrix nearly orthogonal. Of as many matrices as there are
    ranks with pieces of them, each rank gathers all, makes one orthogonal, and takes its pieces of the results.
    `found_inf`: a scalar, 1.0 if the step must be skipped, as for AdamW.
    """

    found_inf: Tensor

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Take a step."""
        for group in (group for group in self.param_groups if group["muon"]):
            matrices = [matrix for matrix in group["params"] if matrix.grad is not None]
            ranks = _place(matrices[0])[1] if matrices else 1
            for first in range(0, len(matrices), ranks):
                self._step_matrices(matrices[first : first + ranks], group)
            for matrix in matrices:
                matrix.grad = None  # so that AdamW passes over it
        super().step(closure)

    def _step_matrices(self, matrices: Sequence[nn.Parameter], group: dict[str, Any]) -> None:
        rate = group["lr"] * (1 - self.found_inf)
        changes = []
        for matrix in matrices:
            assert matrix.grad is not None
            momentum, gradient = local(self.state[matrix]["momentum_buffer"]), local(matrix.grad)
            # In place of a gradient that may not be finite, one that changes nothing.
            gradient = torch.where(self.found_inf > 0, momentum, gradient)
            momentum.lerp_(gradient, 1 - MOMENTUM)
            # torch's Muon begins with this rounding, so gathering the rounded values loses nothing.
            changes.append(_gathered(gradient.lerp(momentum, MOMENTUM).bfloat16(), matrix))
        # After all are gathered: else the ranks would wait for each other's products, one after the other.
        for number, (matrix, change) in enumerate(zip(matrices, changes, strict=True)):
            mine = number == _place(matrix)[0]
            changes[number] = _orthogonal(change.float()) if mine else torch.zeros_like(change).float()
        for matrix, change in zip(matrices, changes, strict=True):
            piece = local(matrix)
            piece.mul_(1 - rate * group["weight_decay"]).add_(_own_sum(change, matrix) * rate)


def _orthogonal(matrix: Tensor) -> Tensor:
    """Return what torch's Muon adds to a parameter at a learning rate of 1; float32, scaled to suit AdamW's rates."""
    change = nn.Parameter(torch.zeros_like(matrix))
    change.grad = matrix
    more: dict[str, Any] = {"momentum": 0.0, "nesterov": False, "adjust_lr_fn": ADJUST}
    torch.optim.Muon([change], lr=1.0, weight_decay=0.0, **more).step()  # type: ignore[no-untyped-call]
    return change.detach()


def _place(value: Tensor) -> tuple[int, int]:
    """Return this rank's number among those with different pieces of a tensor, and how many there are."""
    number, ranks = 0, 1
    if isinstance(value, DTensor):
        for dim, placement in enumerate(value.placements):
            if not placement.is_replicate():
                size = value.device_mesh.size(dim)
                number, ranks = number * size + value.device_mesh.get_local_rank(dim), ranks * size
    return number, ranks


def _gathered(piece: Tensor, like: Tensor) -> Tensor:
    """Return the whole tensor of which this rank has a piece as it has of `like`."""
    if not isinstance(like, DTensor):
        return piece
    size: dict[str, Any] = {"shape": like.shape, "stride": like.stride()}
    return DTensor.from_local(piece, like.device_mesh, like.placements, run_check=False, **size).full_tensor()


def _own_sum(value: Tensor, like: Tensor) -> Tensor:
    """Return this rank's piece, as it has of `like`, of the sum over the ranks with different pieces."""
    if not isinstance(like, DTensor):
        return value
    kinds = [Replicate() if kind.is_replicate() else Partial() for kind in like.placements]
    whole = DTensor.from_local(value, like.device_mesh, kinds, run_check=False).full_tensor()
    return whole[own_part(like)]


def set_hyper_parameters(optimizer: torch.optim.AdamW, config: TrainConfig) -> None:
    """Set the hyperparameters of every group except the learning rate, which is set at each step."""
    for group in optimizer.param_groups:
        group["betas"] = (config.beta1, config.beta2)
        group["eps"] = config.eps
        group["weight_decay"] = config.weight_decay if group["decays"] else 0.0


def warmup_steps(config: TrainConfig, steps: float) -> float:
    """Return the length of the warm-up of a schedule of `steps` steps."""
    return config.warmup if config.warmup >= 1 else round(config.warmup * steps)


def learning_rate(config: TrainConfig, step: float, steps: float, size: float = 1) -> float:
    """Return the learning rate of step `step` (from 0) of a schedule of `steps` steps.

    Both count in steps of the batch with which the schedule began; size: size of this step in that unit. The last step
    of the warm-up has lr, the last step of the decay min_lr x lr.

    After a linear warm-up the rate follows a cosine to min_lr x lr, is constant, or is constant with a decay over the
    last `decay` fraction (warm-up, stable, decay; Hu et al. 2024, MiniCPM). The decay is linear, or 1 minus the square
    root of its progress (Hägele et al. 2024, arXiv 2405.18392).
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
    """Return whether ranks along a dimension of the mesh hold different pieces of the tensor."""
    names = tensor.device_mesh.mesh_dim_names or ()
    return dimension in names and not tensor.placements[names.index(dimension)].is_replicate()


def global_norm(tensors: Sequence[Tensor], mesh: DeviceMesh) -> Tensor:
    """Return the Euclidean norm over the pieces of all ranks, a float32 scalar on the tensors' device.

    If all tensor parallel ranks have a copy of a tensor, only the first of them counts it. One collective over all
    ranks gives the same bits on each of them, so all decide alike: if one rank skipped a step and another did not,
    their models would differ from then on.
    """
    whole = mesh.get_local_rank(TENSOR) == 0
    counted = [
        tensor for tensor in tensors if whole or (isinstance(tensor, DTensor) and _is_split(tensor, TENSOR))
    ]
    norms = torch._foreach_norm(list(map(local, counted)))
    total = torch.stack([norm.float().square() for norm in norms]).sum()
    dist.all_reduce(total)
    # Each replica holds all pieces, so every square was added once per replica.
    return (total / mesh.get_group(REPLICATE).size()).sqrt()


class Guard:
    """The last WINDOW gradient norms and losses, and the counters of skipped steps, on the device.

    A step is bad if its norm or loss is not finite, or lies `sigma` standard deviations above the mean of the window.
    Every finite value enters the window, bad or not. k equal outliers among n values lie sqrt((n - k) / k) deviations
    above their mean, so a lasting rise of any size is skipped about n / (sigma^2 + 1) times, four for 6 sigma, before
    it counts as normal. OLMo-core's SkipStepOptimizer uses the same rule.
    """

    def __init__(self, device: torch.device) -> None:
        self.norms, self.losses = (torch.zeros(WINDOW, device=device) for _ in range(2))
        self.seen, self.skipped, self.in_a_row = (torch.zeros((), device=device) for _ in range(3))

    def state(self) -> dict[str, Tensor]:
        """Return the tensors by name, to be saved, and loaded in place."""
        return vars(self)

    def forget(self) -> None:
        """Empty the window, because the data or the loss changes."""
        self.seen.zero_()

    def judge(self, norm: Tensor, loss: Tensor, config: TrainConfig) -> Tensor:
        """Add a step to the window and return 1.0 if it must be skipped, else 0.0.

        norm: before clipping; never bad below --clip. loss: mean over the step in nats per token.
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
        # A ring buffer: the oldest value is overwritten, and kept if the new one is not finite. All as tensor
        # operations, because an `if` on a value would make the host wait for the device.
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
    """Scale, clip and judge the gradients, take the optimizer step, and clear them.

    loss: mean loss of the step. scale: factor on the gradients. Both are scalars on the device, equal on all ranks.
    Returns the gradient norm before clipping, on the device.
    """
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    norm = global_norm(gradients, mesh)
    scale = scale.to(norm)
    norm *= scale
    skip = guard.judge(norm, loss, config)
    if config.clip:  # the factor of clipping joins `scale`, so the gradients are read and written once
        scale = scale * (config.clip / (norm + 1e-6)).clamp(max=1.0)
    torch._foreach_mul_(list(map(local, gradients)), scale)
    for group in optimizer.param_groups:
        group["lr"] = rate
    # The fused kernel reads this flag on the device, as it does for torch.amp's GradScaler: 1.0 skips the update.
    optimizer.found_inf = skip  # type: ignore[attr-defined]
    optimizer.step()
    optimizer.zero_grad()
    return norm
