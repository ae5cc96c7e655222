"""Activation checkpointing: the same gradients and the same names, with the blocks computed twice."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support import needs

needs("torch")
import torch
from torch.distributed.checkpoint.state_dict import get_model_state_dict

from train.model.sizes import PRESETS
from train.model.transformer import Decoder
from train.parallel.mesh import _checkpoint_activations, clean_name

CONFIG = replace(PRESETS["debug"], vocab_size=128, seq_len=16)


def gradients(setting: str) -> tuple[dict[str, torch.Tensor], int, set[str]]:
    """(gradient of each parameter, how often the blocks were begun, names in a checkpoint)."""
    model = Decoder(CONFIG)
    generator = torch.Generator().manual_seed(0)
    for parameter in model.parameters():
        parameter.data = torch.randn(parameter.shape, generator=generator) * 0.05
    begun = []
    for block in model.layers:
        block.input_layernorm.register_forward_pre_hook(lambda *_: begun.append(1))
    _checkpoint_activations(model, setting)
    tokens = torch.randint(0, 128, (2, 17), generator=generator)
    total, _ = model(tokens[:, :-1], tokens[:, 1:])
    total.backward()
    found = {clean_name(name): parameter.grad for name, parameter in model.named_parameters()}
    return found, len(begun), set(get_model_state_dict(model))


@pytest.mark.parametrize(("setting", "times"), [("full", 4), ("ops", 4), ("every-2", 3)])
def test_recomputed_blocks_give_the_same_gradients_under_the_same_names(setting: str, times: int) -> None:
    expected, once, names = gradients("none")
    found, begun, kept = gradients(setting)
    assert (once, begun) == (CONFIG.layers, times)
    assert all(torch.equal(found[name], gradient) for name, gradient in expected.items())
    assert kept == names == expected.keys()
