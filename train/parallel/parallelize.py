"""Splits a model over its ranks and makes it fast: tensor parallelism, float8, recomputation, compilation, FSDP.

Input: a Decoder on the meta device, the mesh, the settings. Output: the same Decoder, changed in place. DDP is shard =
1, FSDP is replicate = 1, a single process is 1 x 1 x 1 x 1: all of them run the same code, FSDP2's `fully_shard`. With
pipeline > 1 the Decoder is the part of one stage (`pipeline`).

Float8 products are those of torchao, with one scale per row of a matrix, computed again for each product (Micikevicius
et al. 2022). Parameters, their names, the embedding, the output matrix and the loss do not change.
"""

from __future__ import annotations

from collections import Counter
from importlib import import_module
from importlib.util import find_spec
from itertools import pairwise
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch._higher_order_ops import flex_attention, inductor_compiled_code

# Private, but torch's own: its checkpoints and `fully_shard` know this wrapper and remove its prefix from parameter
# names, and a wrapped block compiles as a whole. tests/train/test_train_meshes.py fails if that changes. The prefix
# of another wrapper would be written into checkpoints.
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_module, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

from pretok.base.errors import UsageError
from train.config import TrainConfig, recomputed
from train.model.attention import VARLEN_OP
from train.model.transformer import Decoder, Head
from train.parallel.context import Context, split_sequences
from train.parallel.devices import HOPPER, Device
from train.parallel.layout import compiles
from train.parallel.mesh import REPLICATE, SHARD, TENSOR

RECOMPILE_LIMIT = 64
"""How often torch may compile a piece of code: once per phase, with gradients and without."""


def pass_dtype(config: TrainConfig, device: Device) -> torch.dtype:
    """Return the type in which matrix products are computed."""
    low = config.precision in ("bf16", "float8") or (config.precision == "auto" and device.is_gpu)
    return torch.bfloat16 if low else torch.float32


def parallelize(
    model: Decoder, mesh: DeviceMesh, context: Context, config: TrainConfig, device: Device
) -> None:
    """Apply tensor and context parallelism, checkpointing, compilation and `fully_shard`, in this order, in place."""
    # Float8 replaces modules, so it comes before hooks are attached to them. FSDP comes last: it divides the parameters
    # that tensor parallelism leaves to a rank, and gathers whole blocks, whether compiled, recomputed or neither.
    if config.precision == "float8":
        float8_products(model, device)
    if mesh[TENSOR].size() > 1:
        split_matrices(model, mesh[TENSOR])
    split_sequences(model, context)
    checkpoint_activations(model, config.checkpointing)
    if compiles(config, able=device.can_compile):
        # A phase may change the sequence length, and blocks are compiled once per length. By default torch would
        # compile the second time for all lengths at once, which is slower, and give up after 8 times.
        torch._dynamo.config.recompile_limit = RECOMPILE_LIMIT
        for name, block in model.layers.named_children():
            whole = config.attention == "causal" and not model.config.window
            # torch 2.13 cannot save the mesh of a tensor parallel block that it compiles with its recomputation: "full"
            # then recomputes a compiled block.
            if mesh[TENSOR].size() > 1 and recomputed(config.checkpointing, int(name)) == "full":
                block = cast(Any, block)._checkpoint_wrapped_module
            block.compile(fullgraph=whole, dynamic=False)
        model.fuse_loss = True
    options: dict[str, Any] = {
        "mesh": mesh[REPLICATE, SHARD] if mesh[REPLICATE].size() > 1 else mesh[SHARD],
        # Inputs are not cast: the embedding already returns the right dtype, and rotary tables must stay float32.
        "mp_policy": MixedPrecisionPolicy(
            param_dtype=torch.bfloat16 if pass_dtype(config, device) == torch.bfloat16 else None,
            reduce_dtype=torch.float32,
            cast_forward_inputs=False,
        ),
    }
    if config.offload:
        options["offload_policy"] = CPUOffloadPolicy(pin_memory=device.is_gpu)
    # A pipeline stage runs many passes per step, so its parameters stay gathered.
    free = config.reshard and config.pipeline == 1
    blocks = list(model.layers)
    for block in blocks:
        # The backward pass begins with the last block: if freed, it would be gathered again at once.
        fully_shard(block, reshard_after_forward=free and block is not blocks[-1], **options)
    for block, following in pairwise(blocks):
        # Gather the next block while this one computes, even if the host is too slow to run ahead. Backward passes do
        # so by default. Neither this nor the last block's rule has been measured on a GPU yet.
        cast(FSDPModule, block).set_modules_to_forward_prefetch([cast(FSDPModule, following)])
    matrices = (model.embed_tokens, model.lm_head)
    for matrix in () if model.config.tied else filter(None, matrices):
        # No backward pass reads these matrices: a lookup needs only its indices, and the loss computes its gradients in
        # the forward pass.
        fully_shard(matrix, reshard_after_forward=free, **options)
        cast(FSDPModule, matrix).set_unshard_in_backward(False)
    # What is left: the final norm, and a tied matrix, which is used at both ends of a pass.
    fully_shard(model, reshard_after_forward=False, **options)


_NORMS = ("input_layernorm", "post_attention_layernorm")
_INTO = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "mlp.gate_proj", "mlp.up_proj")
_OUT_OF = ("self_attn.o_proj", "mlp.down_proj")
"""Modules of a block, by how they are split."""


def split_matrices(model: Decoder, mesh: DeviceMesh) -> None:
    """Apply tensor parallelism: projections into attention and feed-forward by columns, out of them by rows.

    The vocabulary is split by rows. Between the projections, where tokens are independent, each rank has a part of each
    sequence (sequence parallelism, Korthikanti et al. 2022). It is gathered before the products and reduce-scattered
    after them, which moves as many bytes as an all-reduce. Outside of `Decoder`, the loss sees all tokens, and the
    stages of a pipeline send their part of them.
    """
    config, tokens = model.config, Shard(1)
    for block in model.layers:
        plan: dict[str, Any] = dict.fromkeys(_INTO, ColwiseParallel())
        plan |= dict.fromkeys(_OUT_OF, RowwiseParallel(output_layouts=tokens))
        plan |= dict.fromkeys(_NORMS, SequenceParallel())
        if config.qk_norm:
            # Each rank normalizes its own heads, dimension 2; the gradient of the shared weight is summed over ranks.
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
        # The output is an AsyncCollectiveTensor, which may still be in transit. Compiled blocks silently lose part of
        # the gradient of such an input (torch 2.13). clone() waits and returns a plain tensor.
        model.embed_tokens.register_forward_hook(lambda _module, _inputs, output: output.clone())
    if model.norm is not None:
        parallelize_module(model, mesh, {"norm": SequenceParallel()})
        model.norm.register_forward_hook(lambda _module, _inputs, output: _whole(output))
    if model.lm_head is not None:  # the loss uses its weight directly, so only that is split

        def by_rows(_name: str, module: nn.Module, mesh: DeviceMesh) -> None:
            weight = cast(Head, module).weight
            sharded = distribute_tensor(weight, mesh, [Shard(0)])
            module.register_parameter("weight", nn.Parameter(sharded))

        distribute_module(model.lm_head, mesh, by_rows)


def _whole(x: DTensor) -> Tensor:
    """Gather all tokens for a loss that gives each rank the gradient of its part of the vocabulary.

    These gradients are partial sums: the backward pass adds them while it scatters them to the ranks' own tokens.
    """
    return x.redistribute(placements=[Replicate()]).to_local(grad_placements=[Partial()])


def float8_products(model: Decoder, device: Device) -> None:
    """Convert the blocks to float8 products, in place. UsageError if the device or torchao is missing."""
    if device.generation < HOPPER:
        raise UsageError(f"--precision float8 needs an H100 or newer, but this is {device.name}: use bf16")
    if find_spec("torchao") is None:
        raise UsageError("--precision float8 needs the package torchao: pip install torchao")
    convert(model)


def convert(model: Decoder, **changes: Any) -> None:
    """Convert without checking the device. changes: fields of torchao's configuration."""
    float8 = import_module("torchao.float8")
    recipe = float8.Float8LinearConfig.from_recipe_name("rowwise")
    for name, value in changes.items():
        object.__setattr__(recipe, name, value)  # it is frozen
    for block in model.layers:
        float8.convert_to_float8_training(block, config=recipe)


_PRODUCTS = {
    torch.ops.aten.mm.default,
    torch.ops.aten.addmm.default,  # with a bias
    torch.ops.aten._scaled_mm.default,  # in float8
}
_ATTENTION = {
    torch.ops.aten._scaled_dot_product_flash_attention.default,
    torch.ops.aten._scaled_dot_product_efficient_attention.default,
    torch.ops.aten._scaled_dot_product_cudnn_attention.default,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default,
    # Attention inside of documents on a GPU: as an operation of a compiled block, and compiled by itself (`_flex`).
    flex_attention,
    inductor_compiled_code,
    *([] if VARLEN_OP is None else [VARLEN_OP]),
}


def _contexts() -> Any:
    """Return the contexts of one pass of a block: keep attention and every second matrix product, recompute the rest.

    In the order of a block (q, k, v, o, gate, up, down) the kept ones are k, o and up. Nothing needs the output of the
    last one, so it is not recomputed either. Its speed has not been measured on a GPU yet.
    """
    products: Counter[bool] = Counter()

    def policy(context: Any, operator: Any, *_args: Any, **_kwargs: Any) -> CheckpointPolicy:
        kept = operator in _ATTENTION
        if operator in _PRODUCTS:
            products[context.is_recompute] += 1  # the forward pass and its recomputation must decide alike
            kept = products[context.is_recompute] % 2 == 0
        return CheckpointPolicy.MUST_SAVE if kept else CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(policy)  # type: ignore[no-untyped-call]


def checkpoint_activations(model: Decoder, setting: str) -> None:
    """Recompute whole blocks ('full'), or all but attention and every second matrix product ('ops')."""
    for name, block in list(model.layers.named_children()):  # numbered as in the whole model, also in a stage
        kind = recomputed(setting, int(name))
        if kind == "ops":
            setattr(model.layers, name, checkpoint_wrapper(block, context_fn=_contexts))
        elif kind == "full":
            setattr(model.layers, name, checkpoint_wrapper(block))
