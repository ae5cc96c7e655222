"""Activation checkpointing: the same gradients and the same names, with the blocks computed twice, and as many bytes
kept as the plan says."""

from __future__ import annotations

from typing import Any

import pytest
from support import needs

needs("torch")
import torch
from torch.distributed.checkpoint.state_dict import get_model_state_dict
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from pretok.base.records import replace
from train.config import TrainConfig
from train.model import transformer
from train.model.attention import _flex
from train.model.sizes import PRESETS
from train.model.transformer import Decoder, rotary_table
from train.parallel.layout import Layout
from train.parallel.mesh import clean_name
from train.parallel.parallelize import checkpoint_activations
from train.plan import block_bytes_per_token, count_tensors

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
    checkpoint_activations(model, setting)
    tokens = torch.randint(0, 128, (2, 17), generator=generator)
    total, _ = model(tokens[:, :-1], tokens[:, 1:])
    total.backward()
    found = {clean_name(name): parameter.grad for name, parameter in model.named_parameters()}
    return found, len(begun), set(get_model_state_dict(model))


@pytest.mark.parametrize(("setting", "times"), [("full", 4), ("ops", 4), ("0.5", 4)])
def test_recomputed_blocks_give_the_same_gradients_under_the_same_names(setting: str, times: int) -> None:
    expected, once, names = gradients("none")
    found, begun, kept = gradients(setting)
    assert (once, begun) == (CONFIG.layers, times)
    assert all(torch.equal(found[name], gradient) for name, gradient in expected.items())
    assert kept == names == expected.keys()


@pytest.mark.filterwarnings("ignore")  # what torch looks at while it compiles
def test_ops_keeps_attention_inside_of_documents(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU, where it is compiled code; another operation stands in for it, which a CPU can differentiate."""
    computed = []

    @torch.library.custom_op("tests::attention", mutates_args=())
    def attention(q: torch.Tensor) -> torch.Tensor:
        computed.append(1)
        return q.clone()

    attention.register_fake(torch.empty_like)
    attention.register_autograd(lambda _context, gradient: gradient)
    module = "torch.nn.attention.flex_attention.flex_attention"
    monkeypatch.setattr(module, lambda q, _k, _v, **_others: attention(q))
    monkeypatch.setattr(transformer, "mask_of", lambda *_others: "of a GPU")
    _flex.cache_clear()
    model = Decoder(CONFIG)
    checkpoint_activations(model, "ops")
    tokens = torch.randint(0, 128, (2, 17), generator=torch.Generator().manual_seed(0))
    total, _ = model(tokens[:, :-1], tokens[:, 1:], tokens[:, 1:])
    total.backward()
    _flex.cache_clear()
    assert len(computed) == CONFIG.layers


class Made(TorchDispatchMode):
    """Remembers the storages that operations make."""

    def __init__(self) -> None:
        super().__init__()
        self._made: dict[int, tuple[StorageWeakRef, int]] = {}

    def __torch_dispatch__(self, function: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        results = function(*args, **kwargs or {})
        for tensor in tree_leaves(results):
            if isinstance(tensor, torch.Tensor):
                storage = tensor.untyped_storage()
                self._made[storage._cdata] = StorageWeakRef(storage), storage.nbytes()
        return results

    def alive(self, others: list[torch.Tensor]) -> int:
        """Bytes of those that live, but for the storages of others."""
        known = {tensor.untyped_storage()._cdata for tensor in others}
        made = ((place, *entry) for place, entry in self._made.items())
        return sum(size for place, reference, size in made if place not in known and not reference.expired())


@pytest.mark.parametrize("setting", ["ops", "0.25", "0.5", "full"])
def test_blocks_keep_what_the_plan_counts(setting: str) -> None:
    """Without recomputation they keep more on a CPU, whose norms are of several operations."""
    config, sizes = (
        TrainConfig(precision="fp32", checkpointing=setting, compile=False),
        replace(CONFIG, layers=4),
    )
    model, x = Decoder(sizes), torch.randn(2, 16, sizes.dim, requires_grad=True)
    checkpoint_activations(model, setting)
    tables = rotary_table(16, sizes.head_dim, sizes.rope_theta, x.device)
    y = x
    with Made() as made:
        for block in model.layers:
            y = block(y, *tables, None)
    counted = count_tensors(sizes, Layout(1, 1, 1), 2, 1, 16, config).activations
    tokens, width = 2 * 16, 4
    counted -= tokens * block_bytes_per_token(sizes, 1, width, False)  # made again in the backward pass
    counted -= tokens * 3 * sizes.dim * width  # outside of blocks
    assert made.alive([*model.parameters(), *tables, x]) == counted
    assert y.requires_grad
