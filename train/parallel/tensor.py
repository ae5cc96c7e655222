"""Tensor parallelism: ranks that divide every matrix product.

Input: a Decoder on the meta device and the mesh of the tensor ranks. Output: the same Decoder with its matrices split.
"""

from __future__ import annotations

from typing import Any, cast

from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_module, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

from train.model.transformer import Decoder, Head

_NORMS = ("input_layernorm", "post_attention_layernorm")
_INTO = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "mlp.gate_proj", "mlp.up_proj")
_OUT_OF = ("self_attn.o_proj", "mlp.down_proj")
"""Modules of a block by how they are split."""


def split_matrices(model: Decoder, mesh: DeviceMesh) -> None:
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
        model.norm.register_forward_hook(lambda _module, _inputs, output: _whole(output))
    if model.lm_head is not None:  # its weight alone is used, by the loss

        def by_rows(_name: str, module: nn.Module, mesh: DeviceMesh) -> None:
            weight = cast(Head, module).weight
            sharded = distribute_tensor(weight, mesh, [Shard(0)])
            module.register_parameter("weight", nn.Parameter(sharded))

        distribute_module(model.lm_head, mesh, by_rows)


def _whole(x: DTensor) -> Tensor:
    """All tokens, for a loss that gives each rank the gradient of its part of the vocabulary: these are summed up as
    they are scattered to the ranks' own tokens."""
    return x.redistribute(placements=[Replicate()]).to_local(grad_placements=[Partial()])
