"""The mesh of the ranks, parameters on it, and what of their gradients is communicated when.

Input: a layout; a split Decoder on the meta device. Output: a mesh with the dimensions (pipeline, replicate, shard,
tensor); the Decoder's parameters in memory and filled.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.distributed_c10d import _set_pg_timeout
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset  # torch has no public way

from train.parallel.devices import Device
from train.parallel.layout import Layout


def build_mesh(device: Device, layout: Layout, timeout: int) -> DeviceMesh:
    """Ranks in order: tensor innermost and shard next, so both stay inside a node, stages of a pipeline farthest apart:
    they send least. timeout: of collectives, seconds."""
    names = ("pipeline", "replicate", "shard", "tensor")
    sizes = (layout.pipeline, layout.replicate, layout.shard, layout.tensor)
    mesh = init_device_mesh(device.device.type, sizes, mesh_dim_names=names)
    for name in names:  # groups of a mesh do not inherit it, and torch has no public way
        _set_pg_timeout(timedelta(seconds=timeout), mesh[name].get_group())
    return mesh


def data_rank(mesh: DeviceMesh, context: int) -> int:
    """Which part of each global batch this rank reads; the same for ranks that share matrix products, a pipeline or
    sequences (`context` of them)."""
    shard = mesh["shard"]
    return (mesh["replicate"].get_local_rank() * shard.size() + shard.get_local_rank()) // context


def materialize(model: nn.Module, device: torch.device, value: Callable[..., Tensor]) -> None:
    """Give meta parameters memory on `device` and fill this rank's piece of each with value(name, shape of the whole,
    device, part), part: slices of the whole.

    Of ranks that have the same piece the first makes it, and the others get it from there.
    """
    model.to_empty(device=device)
    for name, parameter in model.named_parameters():
        shape, piece, same = parameter.shape, parameter.detach(), []
        offset: Sequence[int] = [0] * len(shape)
        if isinstance(piece, DTensor):
            mesh, placements = piece.device_mesh, piece.placements
            offset = compute_local_shape_and_global_offset(shape, mesh, placements)[1]
            piece = piece.to_local()
            same = [dim for dim, placement in enumerate(placements) if placement.is_replicate()]
        if not any(mesh.get_local_rank(dim) for dim in same):
            part = tuple(slice(at, at + size) for at, size in zip(offset, piece.shape, strict=True))
            piece.copy_(value(clean_name(name), shape, device, part))
        # Where several dimensions have copies, what is sent along the first of them is right only for ranks that are at
        # the beginning of the others; the next ones bring it to the rest.
        for dim in same:
            dist.broadcast(piece, group=mesh.get_group(dim), group_src=0)


def local(value: Tensor) -> Tensor:
    """This rank's piece."""
    return value.to_local() if isinstance(value, DTensor) else value


def clean_name(name: str) -> str:
    """A parameter's name in the whole model, without the wrapper of checkpointing and of a pipeline."""
    return name.replace("_checkpoint_wrapped_module.", "").removeprefix("part.")


def gradient_sync(model: nn.Module, *, last: bool, reshard: bool) -> None:
    """Before each pass of an accumulated step: which gradient communication it does, and whether it frees parameters;
    without `reshard` they stay gathered to the end of the step.

    Every pass reduce-scatters, so that gradients take 4 N / shard bytes; replicas sum theirs up at the last one.
    """
    sharded = cast(FSDPModule, model)
    sharded.set_is_last_backward(last)
    sharded.set_reshard_after_backward(last or reshard)
    sharded.set_requires_all_reduce(last)


def reshard(model: nn.Module) -> None:
    """Free gathered parameters that a forward pass without a backward one left."""
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()
