"""The mesh of the ranks, the parameters on it, and the communication of their gradients.

Input: a layout; a split Decoder on the meta device. Output: a mesh with the dimensions (pipeline, replicate, shard,
tensor); the Decoder's parameters in memory and filled.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset  # torch has no public way

from train.parallel.devices import Device
from train.parallel.layout import Layout

AXES = PIPELINE, REPLICATE, SHARD, TENSOR = "pipeline", "replicate", "shard", "tensor"
"""Dimensions of the mesh, the outermost first."""


def build_mesh(device: Device, layout: Layout, *, offload: bool = False) -> DeviceMesh:
    """Build the mesh, with tensor ranks innermost and shard ranks next, so that both stay inside a node.

    Stages of a pipeline are farthest apart, as they send least. `train.parallel.group.connect` limits its collectives.
    Its groups send what is on the device, and with `offload` also what is on the host, for which each connects by gloo.
    """
    sizes = (layout.pipeline, layout.replicate, layout.shard, layout.tensor)
    backend = device.backend
    if not offload:
        backend = backend.rpartition(":")[2]  # "cpu:gloo,cuda:nccl" -> "nccl"
    # A dimension of all ranks is the group that they have already, as long as nothing is said about it. A pipeline has
    # its own: on a host, gloo could not tell what its stages send from what ranks send to rank 0 after a save.
    world = dist.get_world_size()
    others: dict[int | str, Any] = {
        name: backend for name, size in zip(AXES, sizes, strict=True) if size != world or name == PIPELINE
    }
    return init_device_mesh(device.device.type, sizes, mesh_dim_names=AXES, backend_override=others)


def data_rank(mesh: DeviceMesh, context: int) -> int:
    """Return which part of each global batch this rank reads.

    Ranks that share matrix products, a pipeline or sequences (`context` of them) read the same part.
    """
    shard = mesh[SHARD]
    return (mesh[REPLICATE].get_local_rank() * shard.size() + shard.get_local_rank()) // context


def materialize(
    model: nn.Module, device: torch.device, value: Callable[..., Tensor], *, offload: bool = False
) -> None:
    """Allocate meta parameters on `device`, and fill this rank's piece of each with value(name, shape, device, part).

    shape: of the whole parameter; part: slices of it. If several ranks have the same piece, the first makes it and
    sends it to the others. offload: keep them in host memory.
    """
    model.to_empty(device="cpu" if offload else device)
    for name, parameter in model.named_parameters():
        shape, piece, same = parameter.shape, parameter.detach(), []
        part = own_part(piece)
        if isinstance(piece, DTensor):
            mesh, placements = piece.device_mesh, piece.placements
            piece = piece.to_local()
            same = [dim for dim, placement in enumerate(placements) if placement.is_replicate()]
        if not any(mesh.get_local_rank(dim) for dim in same):
            piece.copy_(value(clean_name(name), shape, device, part))
        # With copies along several dimensions, the first broadcast is right only for ranks with coordinate 0 in the
        # others; the next broadcasts overwrite the rest.
        for dim in same:
            dist.broadcast(piece, group=mesh.get_group(dim), group_src=0)


def local(value: Tensor) -> Tensor:
    """Return this rank's piece of a tensor."""
    return value.to_local() if isinstance(value, DTensor) else value


_shape_and_offset = lru_cache(1024)(compute_local_shape_and_global_offset)  # slow, and the same at each step


def own_part(value: Tensor) -> tuple[slice, ...]:
    """Return the slices of a tensor that are this rank's piece."""
    offset: Sequence[int] = [0] * value.ndim
    if isinstance(value, DTensor):
        offset = _shape_and_offset(value.shape, value.device_mesh, value.placements)[1]
    return tuple(slice(at, at + size) for at, size in zip(offset, local(value).shape, strict=True))


def clean_name(name: str) -> str:
    """Return a parameter's name in the whole model, without the prefixes of checkpointing and pipelines."""
    return re.sub(r"^parts\.\d+\.", "", name.replace("_checkpoint_wrapped_module.", ""))


def gradient_sync(model: nn.Module, *, last: bool, reshard: bool) -> None:
    """Set which gradients the next pass of an accumulated step communicates, and whether it frees parameters.

    Call it before each pass. Every pass reduce-scatters, so gradients take 4 N / shard bytes; replicas sum theirs at
    the last one. Without `reshard` parameters stay gathered until the end of the step.
    """
    sharded = cast(FSDPModule, model)
    sharded.set_is_last_backward(last)
    sharded.set_reshard_after_backward(last or reshard)
    sharded.set_requires_all_reduce(last)


def reshard(model: nn.Module) -> None:
    """Free gathered parameters that a forward pass without a backward pass left behind."""
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()
