"""Ranks and meshes: the one place that knows the model runs on more than one device.

Enters: a Decoder on the meta device and the settings. Leaves: the same Decoder split over a mesh with the
dimensions (pipeline, replicate, shard, tensor), its parameters materialised and filled. Pure DDP is shard = 1, pure
FSDP replicate = 1, one process 1 x 1 x 1 x 1: all of them are one code path, FSDP2's `fully_shard`. With pipeline > 1
what is split here is the part of one stage (`pipeline`).
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._higher_order_ops import flex_attention, inductor_compiled_code
from torch.distributed import Store  # type: ignore[attr-defined]

# Private, but what torch itself offers: its checkpoints and `fully_shard` know this wrapper and leave its name out of
# those of parameters, and a block wrapped by it compiles as a whole. tests/train/test_train_recompute.py tells when
# that ends. A wrapper of our own would be written into checkpoints.
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.distributed_c10d import _set_pg_timeout
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.rendezvous import rendezvous
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_module, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    PrepareModuleOutput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

from pretok.base.errors import PretokError, UsageError
from pretok.base.lock import hold, share
from train.config import TrainConfig, recomputed
from train.model.sizes import ModelConfig
from train.model.transformer import Decoder, Head
from train.parallel.devices import Device
from train.parallel.ending import cause, hang_up, linger


@dataclass(frozen=True, slots=True)
class Layout:
    """How many ranks each mesh dimension has."""

    replicate: int
    shard: int
    tensor: int
    pipeline: int = 1

    @property
    def data_ranks(self) -> int:
        """Ranks that read different data."""
        return self.replicate * self.shard


def solve_layout(world: int, per_node: int, shard: int | None, tensor: int, pipeline: int = 1) -> Layout:
    """Sizes of the mesh: by default one copy of the parameters (of a stage) per node, replicas across nodes.

    Raises UsageError when the sizes do not divide.
    """
    if world % tensor:
        raise UsageError(f"tensor = {tensor} does not divide the {world} ranks")
    if world // tensor % pipeline:
        raise UsageError(
            f"pipeline = {pipeline} does not divide the {world // tensor} groups of tensor ranks"
        )
    data_ranks = world // tensor // pipeline
    if shard is None:
        shard = max(1, per_node // tensor)
        shard = shard if data_ranks % shard == 0 else data_ranks
    if shard < 1 or data_ranks % shard:
        valid = [n for n in range(1, data_ranks + 1) if data_ranks % n == 0]
        raise UsageError(f"shard = {shard} does not divide {data_ranks} data-parallel ranks; valid: {valid}")
    return Layout(data_ranks // shard, shard, tensor, pipeline)


RECOMPILE_LIMIT = 64
"""How often torch compiles one piece of code: for each phase, with gradients and without."""
Problem = TypeVar("Problem", str, PretokError)


def make_folder(path: Path) -> None:
    """Make a folder of the run. UsageError where it cannot be."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(
            f"--out: {path} cannot be made: {error.strerror}; name a folder that may be written"
        ) from None


def first_problem(problem: Problem | None, group: dist.ProcessGroup | None = None) -> Problem | None:
    """The problem of the first rank that has one, the same answer on every rank."""
    answers: list[Problem | None] = [None] * dist.get_world_size(group)
    dist.all_gather_object(answers, problem, group=group)
    return next((answer for answer in answers if answer is not None), None)


@contextmanager
def run_folder(out: Path, shards: Path) -> Iterator[threading.Event]:
    """Keep RUN for this run while the body runs on all ranks, and tell other jobs that it reads `shards`; rank 0 holds
    both (see `pretok.base.lock`).

    Raises FolderInUse or OutputError on all ranks. The event is set, on rank 0, when RUN is lost.
    """
    with ExitStack() as stack:
        problem, lost = None, threading.Event()
        if dist.get_rank() == 0:
            try:
                lost = stack.enter_context(hold(out, "train"))
                stack.enter_context(share(shards, "train"))
            except PretokError as error:
                problem = error
        if problem := first_problem(problem):
            raise problem
        yield lost


@contextmanager
def process_group(
    device: Device, timeout: int, out: Path, explain: Callable[[Exception], PretokError | None]
) -> Iterator[None]:
    """Join the ranks named by the environment (torchrun's variables), or be the only one.

    What ends one rank ends all, with its words (see `ending`); explain: the words for errors of the machine.

    A collective that hangs `timeout` seconds ends the process; NCCL's flight recorder then leaves
    RUN/flight/rank-*.
    """
    flight = out / "flight"
    make_folder(flight)
    for name, value in {
        "TORCH_FR_BUFFER_SIZE": "2000",
        "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
        "TORCH_FR_DUMP_TEMP_FILE": str(flight / "rank-"),
        "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": str(flight / "rank-"),
    }.items():
        os.environ.setdefault(name, value)
    limit = timedelta(seconds=timeout)
    store, rank, ranks = _find_store(limit)
    dist.init_process_group(device.backend, timeout=limit, store=store, rank=rank, world_size=ranks)
    try:
        yield
    except Exception as error:
        known = explain(error) or error
        told = cause(store, known, rank)
        dist.destroy_process_group()
        if ranks > 1:
            hang_up()
            linger(store, ranks)
        if told is error:
            raise
        raise told from error
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()


def _find_store(limit: timedelta) -> tuple[Store, int, int]:
    """Where the ranks meet, this one's number, and how many there are."""
    if "RANK" not in os.environ:
        return dist.HashStore(), 0, 1  # type: ignore[attr-defined]
    store, rank, ranks = next(rendezvous("env://", timeout=limit))
    store.set_timeout(limit)
    return store, rank, ranks


def build_mesh(device: Device, layout: Layout, timeout: int) -> DeviceMesh:
    """Ranks in order: tensor innermost and shard next, so both stay inside a node, stages of a pipeline farthest apart:
    they send least. timeout: of collectives, seconds."""
    names = ("pipeline", "replicate", "shard", "tensor")
    sizes = (layout.pipeline, layout.replicate, layout.shard, layout.tensor)
    mesh = init_device_mesh(device.device.type, sizes, mesh_dim_names=names)
    for name in names:  # groups of a mesh do not inherit it
        _set_pg_timeout(timedelta(seconds=timeout), mesh[name].get_group())  # torch has no public way
    return mesh


def data_rank(mesh: DeviceMesh) -> int:
    """Which part of each global batch this rank reads; the same for ranks that share matrix products or a pipeline."""
    return mesh["replicate"].get_local_rank() * mesh["shard"].size() + mesh["shard"].get_local_rank()


def check_tensor(config: TrainConfig, model: ModelConfig, seq_len: int) -> None:
    """UsageError unless heads, feed-forward, vocabulary and sequences can be divided among the tensor ranks, and
    no compiled block is recomputed as a whole: torch 2.13 then ends in an AssertionError about what it has saved."""
    ranks = config.tensor
    whole = any(recomputed(config.checkpointing, block) == "full" for block in range(model.layers))
    if ranks > 1 and config.compile and whole:
        raise UsageError(
            f"--compile with --tensor does not go with --checkpointing {config.checkpointing}, only with ops or none"
        )
    sizes = {"kv_heads": model.kv_heads, "hidden": model.hidden, "rows of the vocabulary": model.padded_vocab}
    for name, size in {**sizes, "seq_len": seq_len}.items():
        if size % ranks:
            raise UsageError(f"--tensor {ranks} does not divide {name} ({size})")


def _split_matrices(model: Decoder, mesh: DeviceMesh) -> None:
    """Tensor parallelism: into attention and feed-forward by columns, out of them by rows; vocabulary by rows.

    Between these, where each token is by itself, ranks have a part of each sequence (sequence parallelism, Korthikanti
    et al. 2022): it is gathered before the products and scattered as they are summed up, which moves what an all-reduce
    would. Outside of `Decoder` only the loss sees all tokens, and the stages of a pipeline send their part of them.
    """
    config, tokens = model.config, Shard(1)
    for block in model.layers:
        plan: dict[str, Any] = dict.fromkeys(_INTO, ColwiseParallel())
        plan |= dict.fromkeys(_OUT_OF, RowwiseParallel(output_layouts=tokens))
        plan |= dict.fromkeys(_NORMS, SequenceParallel())
        if config.qk_norm:
            # Each rank norms its own heads, dimension 2; the gradient of the one weight is the sum of theirs.
            heads = SequenceParallel(sequence_dim=2, use_local_output=True)
            plan |= {"self_attn.q_norm": heads, "self_attn.k_norm": heads}
        for module, others in (("self_attn", 3), ("mlp", 0)):
            none = (None,) * others
            plan[module] = PrepareModuleInput(
                input_layouts=(tokens, *none), desired_input_layouts=(Replicate(), *none)
            )
        parallelize_module(block, mesh, plan)
    model.sequence_parts = mesh.size()
    if model.embed_tokens is not None:
        lookup = RowwiseParallel(input_layouts=Replicate(), output_layouts=tokens)
        parallelize_module(model, mesh, {"embed_tokens": lookup})
        # What comes out is still on its way, an AsyncCollectiveTensor. Compiled blocks lose a part of the gradient of
        # such an input, without a word (torch 2.13). A copy has arrived.
        model.embed_tokens.register_forward_hook(lambda _module, _inputs, output: output.clone())
    if model.norm is not None:
        parallelize_module(model, mesh, {"norm": SequenceParallel()})
        parallelize_module(
            model,
            mesh,
            {"norm": PrepareModuleOutput(output_layouts=tokens, desired_output_layouts=Replicate())},
        )
    if model.lm_head is not None:  # its weight alone is used, by the loss

        def by_rows(_name: str, module: nn.Module, mesh: DeviceMesh) -> None:
            weight = cast(Head, module).weight
            sharded = distribute_tensor(weight, mesh, [Shard(0)])
            module.register_parameter("weight", nn.Parameter(sharded))

        distribute_module(model.lm_head, mesh, by_rows)


_NORMS = ("input_layernorm", "post_attention_layernorm")
_INTO = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "mlp.gate_proj", "mlp.up_proj")
_OUT_OF = ("self_attn.o_proj", "mlp.down_proj")
"""Modules of a block by how they are split."""

_SAVED_OPS = {
    torch.ops.aten.mm.default,
    torch.ops.aten._scaled_dot_product_flash_attention.default,
    torch.ops.aten._scaled_dot_product_efficient_attention.default,
    torch.ops.aten._scaled_dot_product_cudnn_attention.default,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default,
    # Attention inside of documents on a GPU: as an operation of a compiled block, and compiled by itself (`_flex`).
    flex_attention,
    inductor_compiled_code,
}


def _save_products(_context: Any, operator: Any, *_args: Any, **_kwargs: Any) -> CheckpointPolicy:
    return CheckpointPolicy.MUST_SAVE if operator in _SAVED_OPS else CheckpointPolicy.PREFER_RECOMPUTE


def _checkpoint_activations(model: Decoder, setting: str) -> None:
    """Recompute whole blocks ('full'), or all of them but matrix products and attention ('ops')."""
    for name, block in list(model.layers.named_children()):  # numbers in the whole model, also of a part
        kind = recomputed(setting, int(name))
        if kind == "ops":
            contexts = partial(create_selective_checkpoint_contexts, _save_products)
            setattr(model.layers, name, checkpoint_wrapper(block, context_fn=contexts))
        elif kind == "full":
            setattr(model.layers, name, checkpoint_wrapper(block))


def pass_dtype(config: TrainConfig, device: Device) -> torch.dtype:
    """What matrix products are computed in."""
    low = config.precision == "bf16" or (config.precision == "auto" and device.is_gpu)
    return torch.bfloat16 if low else torch.float32


def parallelize(model: Decoder, mesh: DeviceMesh, config: TrainConfig, device: Device) -> None:
    """Apply tensor parallelism, checkpointing, compilation and `fully_shard`, in this order, in place."""
    if mesh["tensor"].size() > 1:
        _split_matrices(model, mesh["tensor"])
    _checkpoint_activations(model, config.checkpointing)
    if config.compile:
        # Each phase may bring another length: a block is compiled for it anew. Torch would compile it a second time for
        # every length at once, which is slower, and after 8 times not at all.
        torch._dynamo.config.recompile_limit = RECOMPILE_LIMIT
        for block in model.layers:
            block.compile(fullgraph=config.attention == "causal", dynamic=False)
        model.fuse_loss = True
    options: dict[str, Any] = {
        "mesh": mesh["replicate", "shard"] if mesh["replicate"].size() > 1 else mesh["shard"],
        # Inputs are not cast: the embedding already gives the right dtype, and rotary tables must stay
        # float32.
        "mp_policy": MixedPrecisionPolicy(
            param_dtype=torch.bfloat16 if pass_dtype(config, device) == torch.bfloat16 else None,
            reduce_dtype=torch.bfloat16 if config.reduce == "bf16" else torch.float32,
            cast_forward_inputs=False,
        ),
    }
    if config.offload:
        options["offload_policy"] = CPUOffloadPolicy(pin_memory=device.is_gpu)
    # A pipeline's stage is passed many times in a step, and its parameters stay gathered.
    free = config.reshard and config.pipeline == 1
    for block in model.layers:
        fully_shard(block, reshard_after_forward=free, **options)
    matrices = (model.embed_tokens, model.lm_head)
    for matrix in () if model.config.tied else filter(None, matrices):
        # No backward pass reads these matrices: a lookup knows its rows, and the loss its gradients beforehand.
        fully_shard(matrix, reshard_after_forward=free, **options)
        cast(FSDPModule, matrix).set_unshard_in_backward(False)
    # The final norm, and a tied matrix, which is used at both ends of a pass.
    fully_shard(model, reshard_after_forward=False, **options)


def materialize(
    model: nn.Module, device: torch.device, value: Callable[[str, torch.Size, torch.device], Tensor]
) -> None:
    """Give meta parameters memory on `device` and fill each from value(name, shape, device), the whole tensor.

    Every rank makes the whole of one parameter at a time and keeps its piece, so values do not depend on the
    mesh.
    """
    model.to_empty(device=device)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            whole = value(clean_name(name), parameter.shape, device)
            if isinstance(parameter, DTensor):
                mesh = parameter.device_mesh
                everywhere = DTensor.from_local(whole, mesh, [Replicate()] * mesh.ndim, run_check=False)
                piece = everywhere.redistribute(placements=parameter.placements)
                parameter.to_local().copy_(piece.to_local())
            else:
                parameter.copy_(whole)


def clean_name(name: str) -> str:
    """A parameter's name in the whole model, without the wrapper of checkpointing and the number of a part."""
    return re.sub(r"^parts\.\d+\.", "", name.replace("_checkpoint_wrapped_module.", ""))


def gradient_sync(model: nn.Module, *, last: bool, sync: str, reshard: bool) -> None:
    """Before each pass of an accumulated step: which gradient communication it does, and whether it frees parameters;
    without `reshard` they stay gathered to the end of the step.

    'scatter': reduce-scatter now, all-reduce over replicas at the last pass; holds 4 N / shard bytes of
    gradients. 'last': nothing before the last pass; holds whole gradients, 4 N bytes.
    """
    sharded = cast(FSDPModule, model)
    sharded.set_is_last_backward(last)
    sharded.set_reshard_after_backward(last or reshard)
    if sync == "scatter":
        sharded.set_requires_all_reduce(last)
    else:
        sharded.set_requires_gradient_sync(last)


def reshard(model: nn.Module) -> None:
    """Free gathered parameters that a forward pass without a backward one left."""
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()
