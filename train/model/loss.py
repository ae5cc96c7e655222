"""Next-token loss without the full matrix of logits.

Input: hidden states, the output matrix, targets. Output: the summed loss. Its gradients are computed chunk by chunk in
the forward pass, so logits exist for `chunk` tokens at a time, and the backward pass does not repeat the product.

If the matrix is sharded by rows (a DTensor of tensor parallelism), each rank has a slice of the vocabulary. Small
all-reduces per chunk (the maximum, then the sum of exponentials and the target's logit) replace gathering the logits.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor

from pretok.base.tokens import IGNORE, padded_targets


def targets_of(tokens: Tensor, eod_id: int, learned: Tensor | None = None) -> Tensor:
    """Return the targets of all tokens but the last: (n, L + 1) ids -> (n, L) int64.

    A target is IGNORE if it is an EOD that follows an EOD, which is padding (`pretok.stream`, rule of the stream), and
    where `learned`, (n, L) bool, is False.
    """
    ignored = padded_targets(tokens, eod_id)
    return tokens[:, 1:].long().masked_fill(ignored if learned is None else ignored | ~learned, IGNORE)


def _top(logits: Tensor, columns: int) -> tuple[Tensor, Tensor]:
    """Return the logits in float32 with padding at minus infinity, (n, v), and the largest of each row, (n,)."""
    logits = logits.float()
    logits[:, columns:] = -torch.inf
    return logits, logits.amax(1) if columns else logits.new_full((len(logits),), -torch.inf)


def _own(target: Tensor, offset: int, width: int) -> tuple[Tensor, Tensor]:
    """Return each target's column in this rank's slice, (n,) int64 (0 if it is elsewhere), and whether it is here."""
    local = target - offset
    mine = (local >= 0) & (local < width)
    return torch.where(mine, local, 0), mine


def _exponentials(logits: Tensor, top: Tensor, target: Tensor, offset: int) -> tuple[Tensor, Tensor]:
    """Return exp(logits - top), (n, v), and their sum and the target's logit, (2, n).

    The logit is 0 if another rank has the target, so that a sum over ranks gives it.
    """
    local, mine = _own(target, offset, logits.shape[1])
    shifted = (logits - top[:, None]).exp_()
    at_target = torch.where(mine, logits.gather(1, local[:, None])[:, 0], 0.0)
    return shifted, torch.stack([shifted.sum(1), at_target])


def _losses(
    shifted: Tensor, sums: Tensor, top: Tensor, target: Tensor, offset: int, z_loss: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Return what `chunk_loss` returns. sums, top: over the whole vocabulary. The gradient overwrites `shifted`."""
    local, mine = _own(target, offset, shifted.shape[1])
    log_z = sums[0].log() + top
    counted = target != IGNORE
    nll = torch.where(counted, log_z - sums[1], 0.0)
    z = torch.where(counted, log_z.square(), 0.0)
    # d(nll + z_loss * log_z^2) / d logit = softmax * (1 + 2 z_loss log_z), minus 1 at the target.
    weight = torch.where(counted, (1 + 2 * z_loss * log_z) / sums[0], 0.0)
    grad = shifted.mul_(weight[:, None])
    grad.scatter_add_(1, local[:, None], -(mine & counted).to(grad.dtype)[:, None])
    return nll, z, grad


@cache
def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    return torch.compile(function, dynamic=False)


def chunk_loss(
    logits: Tensor, target: Tensor, columns: int, offset: int, z_loss: float, group: Any, fuse: bool = False
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the losses of one chunk and their gradient.

    logits: (n, v) for vocabulary entries offset to offset + v, of which the first `columns` exist and the rest is
    padding. target: (n,) int64. Returns nll (n,), z (n,) and the gradient of nll + z_loss * z, (n, v), all float32.
    group: tensor parallel ranks, or None. fuse: compile the work between their exchanges.
    """
    # Three functions compiled one by one: the compiler would break the graph at the collectives anyway.
    steps: list[Callable[..., Any]] = [_top, _exponentials, _losses]
    top_of, exponentials, losses = map(_compiled, steps) if fuse else steps
    logits, top = top_of(logits, columns)
    if group is not None:
        dist.all_reduce(top, dist.ReduceOp.MAX, group=group)
    shifted, sums = exponentials(logits, top, target, offset)
    if group is not None:
        dist.all_reduce(sums, group=group)
    result: tuple[Tensor, Tensor, Tensor] = losses(shifted, sums, top, target, offset, z_loss)
    return result


class _LinearCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        target: Tensor,
        chunk: int,
        losses_of: Callable[..., tuple[Tensor, Tensor, Tensor]],
        z_loss: float,
        needs_grad: bool,
    ) -> tuple[Tensor, Tensor]:
        """Sum the losses of all chunks, and keep the gradients of `hidden` and `weight` for the backward pass.

        losses_of(logits, target): see `chunk_loss`.
        """
        nll = torch.zeros((), dtype=torch.float32, device=hidden.device)
        total = torch.zeros_like(nll)
        grad_hidden = torch.empty_like(hidden) if needs_grad else None
        grad_weight = torch.zeros_like(weight, dtype=torch.float32) if needs_grad else None
        for start in range(0, len(hidden), chunk):
            rows = slice(start, start + chunk)
            part, z, grad = losses_of(hidden[rows] @ weight.T, target[rows])
            nll += part.sum()
            total += part.sum() + z_loss * z.sum()
            if grad_hidden is not None and grad_weight is not None:
                grad = grad.to(weight.dtype)
                grad_hidden[rows] = grad @ weight
                grad_weight += grad.T @ hidden[rows]  # float32: a sum of many bfloat16 chunks would lose bits
        if needs_grad:
            ctx.save_for_backward(grad_hidden, grad_weight)
        ctx.dtype, ctx.scaled = weight.dtype, False
        ctx.mark_non_differentiable(nll)
        return total, nll

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        grad_hidden, grad_weight = ctx.saved_tensors
        if not ctx.scaled:  # a split backward pass comes twice, for each of the two, with the same gradient
            ctx.scaled = True
            # In place: the two tensors are used only here. `data`: else the second time torch refuses what has changed.
            grad_hidden.data.mul_(grads[0])
            grad_weight.data.mul_(grads[0])
        return grad_hidden, grad_weight.to(ctx.dtype), *[None] * 5


def linear_cross_entropy(
    hidden: Tensor,
    weight: Tensor,
    target: Tensor,
    vocab_size: int,
    *,
    chunk: int = 4096,
    z_loss: float = 0.0,
    fuse: bool = False,
) -> tuple[Tensor, Tensor]:
    """Return the sum over tokens of -log softmax(hidden @ weight.T)[target], without the columns past vocab_size.

    hidden: (n, dim). weight: (padded vocabulary, dim), plain or a DTensor sharded by rows. target: (n,) int64, IGNORE
    for no loss. chunk: tokens whose logits are in memory at a time. fuse: compile the work on the logits.

    Returns (total, nll), float32 scalars. total adds z_loss times the squared log-partition (PaLM, section 5) and
    carries the gradient. For a DTensor the gradient of `hidden` is this rank's summand only. nll is the value to log.
    """
    group, offset, rows = None, 0, weight
    if isinstance(weight, DTensor):
        group, rows = weight.device_mesh.get_group(), weight.to_local()
        offset = dist.get_rank(group) * (weight.shape[0] // dist.get_world_size(group))
    columns = max(0, min(len(rows), vocab_size - offset))  # this rank's rows without padding
    # Without tensor parallelism all the work on a chunk compiles as one; with it, the parts between collectives do.
    one_chunk = _compiled(chunk_loss) if fuse and group is None else partial(chunk_loss, fuse=fuse)
    losses_of = partial(one_chunk, columns=columns, offset=offset, z_loss=z_loss, group=group)
    needs_grad = torch.is_grad_enabled()  # always False inside of `forward`
    result: tuple[Tensor, Tensor] = _LinearCrossEntropy.apply(  # type: ignore[no-untyped-call]
        hidden, rows, target, chunk, losses_of, z_loss, needs_grad
    )
    return result
