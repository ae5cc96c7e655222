"""The mesh of the ranks, parameters on it, and what of their gradients is communicated when.

Input: a layout; a split Decoder on the meta device. Output: a mesh with the dimensions (pipeline, replicate, shard,
tensor); the Decoder's parameters in memory and filled.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.distributed_c10d import _set_pg_timeout
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor, Replicate
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset  # torch has no public way

from train.parallel.devices import Device
from train.parallel.layout import Layout


def build_mesh(device: Device, layout: Layout, timeout: int) -> DeviceMesh:
    """Ranks in order: tensor innermost and shard next, so both stay inside a node, stages of a pipeline farthest apart:
    they send least. timeout: of collectives, seconds."""
    names = ("pipeline", "replicate", "shard", "tensor")
    sizes = (layout.pipeline, layout.replicate, layout.shard, layout.tensor)
    mesh = init_device_mesh(device.device.type, sizes, mesh_dim_names=names)
    limit_collectives(mesh, timeout)  # groups of a mesh do not inherit it
    return mesh


def limit_collectives(mesh: DeviceMesh, seconds: float, *others: dist.ProcessGroup | None) -> None:
    """Give collectives of the mesh, and of other groups, so long from now on."""
    groups = [mesh[name].get_group() for name in mesh.mesh_dim_names or ()]
    for group in (*groups, *others):
        if group is not None:
            _set_pg_timeout(timedelta(seconds=seconds), group)  # torch has no public way


def data_rank(mesh: DeviceMesh, context: int) -> int:
    """Which part of each global batch this rank reads; the same for ranks that share matrix products, a pipeline or
    sequences (`context` of them)."""
    shard = mesh["shard"]
    return (mesh["replicate"].get_local_rank() * shard.size() + shard.get_local_rank()) // context


def materialize(
    model: nn.Module, device: torch.device, value: Callable[..., Tensor], *, pieces: bool = False
) -> None:
    """Give meta parameters memory on `device` and fill each from value(name, shape, device), the whole tensor.

    Every rank makes the whole of one parameter at a time and keeps its piece, so values do not depend on the
    mesh. pieces: value(name, shape, device, offset) gives just this rank's.
    """
    model.to_empty(device=device)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if pieces and isinstance(parameter, DTensor):
                parameter.to_local().copy_(_read_piece(parameter, partial(value, clean_name(name))))
                continue
            whole = value(clean_name(name), parameter.shape, device)
            if isinstance(parameter, DTensor):
                mesh = parameter.device_mesh
                everywhere = DTensor.from_local(whole, mesh, [Replicate()] * mesh.ndim, run_check=False)
                piece = everywhere.redistribute(placements=parameter.placements)
                parameter.to_local().copy_(piece.to_local())
            else:
                parameter.copy_(whole)


def _read_piece(parameter: DTensor, read: Callable[..., Tensor]) -> Tensor:
    """This rank's piece. Of ranks that have the same one the first reads it, and the others get it from there."""
    mesh, placements = parameter.device_mesh, parameter.placements
    shape, offset = compute_local_shape_and_global_offset(parameter.shape, mesh, placements)
    place = torch.device(mesh.device_type)  # of the collectives; offloaded parameters are elsewhere
    same = [
        dim for dim, placement in enumerate(placements) if placement.is_replicate() and mesh.size(dim) > 1
    ]
    first = not any(mesh.get_local_rank(dim) for dim in same)
    piece = read(shape, place, offset) if first else torch.empty(shape, device=place)
    # Where several dimensions have copies, what is sent along the first of them is right only for ranks that are at the
    # beginning of the others; the next ones bring it to the rest.
    for dim in same:
        dist.broadcast(piece, group=mesh.get_group(dim), group_src=0)
    return piece


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
