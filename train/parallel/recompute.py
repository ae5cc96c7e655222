"""Activations that are computed again in the backward pass, not kept.

Input: a Decoder and the setting --checkpointing. Output: the same Decoder, its blocks wrapped.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch._higher_order_ops import flex_attention, inductor_compiled_code

# Private, but what torch itself offers: its checkpoints and `fully_shard` know this wrapper and leave its name out of
# those of parameters, and a block wrapped by it compiles as a whole. tests/train/test_train_recompute.py tells when
# that ends. A wrapper of our own would be written into checkpoints.
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

from train.config import recomputed
from train.model.attention import VARLEN_OP
from train.model.transformer import Decoder

_SAVED_OPS = {
    torch.ops.aten.mm.default,
    torch.ops.aten._scaled_mm.default,  # in float8
    torch.ops.aten._scaled_dot_product_flash_attention.default,
    torch.ops.aten._scaled_dot_product_efficient_attention.default,
    torch.ops.aten._scaled_dot_product_cudnn_attention.default,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default,
    # Attention inside of documents on a GPU: as an operation of a compiled block, and compiled by itself (`_flex`).
    flex_attention,
    inductor_compiled_code,
    *([] if VARLEN_OP is None else [VARLEN_OP]),
}


def _save_products(_context: Any, operator: Any, *_args: Any, **_kwargs: Any) -> CheckpointPolicy:
    return CheckpointPolicy.MUST_SAVE if operator in _SAVED_OPS else CheckpointPolicy.PREFER_RECOMPUTE


def checkpoint_activations(model: Decoder, setting: str) -> None:
    """Recompute whole blocks ('full'), or all of them but matrix products and attention ('ops')."""
    for name, block in list(model.layers.named_children()):  # numbers in the whole model, also of a part
        kind = recomputed(setting, int(name))
        if kind == "ops":
            contexts = partial(create_selective_checkpoint_contexts, _save_products)
            setattr(model.layers, name, checkpoint_wrapper(block, context_fn=contexts))
        elif kind == "full":
            setattr(model.layers, name, checkpoint_wrapper(block))
