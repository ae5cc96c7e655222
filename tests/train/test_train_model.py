"""The decoder, its loss and its sizes, on one process without any mesh."""

from __future__ import annotations

import math
from functools import partial

import pytest
from support import needs

torch = needs("torch")
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812
from hypothesis import given, settings
from hypothesis import strategies as st

from pretok.base.records import replace
from tests import train_support
from train.model import loss
from train.model.loss import IGNORE, linear_cross_entropy
from train.model.sizes import PRESETS, ModelConfig
from train.model.transformer import (
    Attention,
    Block,
    Decoder,
    initial_tensor,
    rotary_table,
)
from train.plan import block_bytes_per_token

TINY = ModelConfig(vocab_size=60, dim=32, layers=2, heads=4, kv_heads=2, hidden=64, seq_len=16)


filled = partial(train_support.filled, scale=5)


@settings(max_examples=40, deadline=None)
@given(
    tokens=st.integers(1, 30),
    chunk=st.integers(1, 40),
    vocab=st.integers(2, 20),
    padding=st.integers(0, 5),
    z_loss=st.sampled_from([0.0, 0.1]),
    seed=st.integers(0, 1000),
)
def test_loss_and_gradients_equal_torchs(
    tokens: int, chunk: int, vocab: int, padding: int, z_loss: float, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    hidden = torch.randn(tokens, 8, generator=generator, dtype=torch.float64).float().requires_grad_()
    weight = torch.randn(vocab + padding, 8, generator=generator).requires_grad_()
    target = torch.randint(0, vocab, (tokens,), generator=generator)
    target[torch.rand(tokens, generator=generator) < 0.2] = IGNORE
    logits = hidden @ weight[:vocab].T
    nll = F.cross_entropy(logits, target, ignore_index=IGNORE, reduction="sum")
    reference = nll + z_loss * (logits.logsumexp(1)[target != IGNORE] ** 2).sum()
    wanted = torch.autograd.grad(reference * 0.3, (hidden, weight))
    total, logged = linear_cross_entropy(hidden, weight, target, vocab, chunk=chunk, z_loss=z_loss)
    found = torch.autograd.grad(total * 0.3, (hidden, weight))
    torch.testing.assert_close(total, reference)
    torch.testing.assert_close(logged, nll)
    torch.testing.assert_close(found, wanted)
    assert not found[1][vocab:].any()  # the padding learns nothing


def test_ranks_that_share_the_vocabulary_compile_the_loss_between_their_exchanges(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    handed: list[str] = []
    monkeypatch.setattr(loss, "_compiled", lambda function: handed.append(function.__name__) or function)
    logits, target = torch.randn(9, 16), torch.tensor([0, 5, IGNORE, 11, 3, 3, 7, IGNORE, 1])
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        found = loss.chunk_loss(logits.clone(), target, 12, 0, 0.1, dist.group.WORLD, fuse=True)
    finally:
        dist.destroy_process_group()
    assert handed == ["_top", "_exponentials", "_losses"]
    torch.testing.assert_close(found, loss.chunk_loss(logits, target, 12, 0, 0.1, None), rtol=0, atol=0)


def test_targets_give_the_loss_of_the_logits() -> None:
    for tied in (True, False):
        model = filled(replace(TINY, tied=tied))
        tokens = torch.randint(0, 60, (3, 17), generator=torch.Generator().manual_seed(0))
        total, nll = model(tokens[:, :-1], tokens[:, 1:])
        logits = model(tokens[:, :-1])[..., :60]
        reference = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten(), reduction="sum")
        torch.testing.assert_close(nll, reference)
        torch.testing.assert_close(total, reference)


def test_attention_is_causal_and_positions_matter() -> None:
    model = filled(TINY)
    tokens = torch.arange(16)[None]
    changed = tokens.clone()
    changed[0, 9] = 50
    before, after = model(tokens), model(changed)
    torch.testing.assert_close(before[0, :9], after[0, :9])
    assert not torch.allclose(before[0, 9:], after[0, 9:])
    same = model(torch.full((1, 16), 7))
    torch.testing.assert_close(
        same[0, 3], same[0, 12]
    )  # one value everywhere: attention cannot tell positions
    pair = model(torch.tensor([[1, 2, 3], [2, 1, 3]]))
    assert not torch.allclose(pair[0, 2], pair[1, 2])


def test_norms_of_queries_and_keys_are_those_of_the_formula() -> None:
    """Attention written out with sums: RMSNorm of every head with its weights, then positions, then softmax."""
    config = replace(TINY, qk_norm=True)
    attention = Attention(config)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in attention.parameters():
            parameter.normal_(generator=generator)
    x = torch.randn(2, 7, 32, generator=generator)
    cos, sin = rotary_table(7, 8, config.rope_theta, torch.device("cpu"))

    def heads(project: torch.nn.Linear, count: int, weight: torch.Tensor | None) -> torch.Tensor:
        found = (x @ project.weight.T).view(2, 7, count, 8)
        if weight is not None:
            found = found / (found.square().mean(-1, keepdim=True) + config.norm_eps).sqrt() * weight
            turned = torch.cat([-found[..., 4:], found[..., :4]], -1)
            found = found * cos[:, None] + turned * sin[:, None]
        return found.repeat_interleave(4 // count, 2)

    assert attention.q_norm is not None
    assert attention.k_norm is not None
    q = heads(attention.q_proj, 4, attention.q_norm.weight)
    k = heads(attention.k_proj, 2, attention.k_norm.weight)
    scores = torch.einsum("nqhd,nkhd->nhqk", q, k) / math.sqrt(8)
    scores = scores.masked_fill(torch.ones(7, 7).triu(1).bool(), -torch.inf)
    out = torch.einsum("nhqk,nkhd->nqhd", scores.softmax(-1), heads(attention.v_proj, 2, None))
    wanted = out.reshape(2, 7, 32) @ attention.o_proj.weight.T
    torch.testing.assert_close(attention(x, cos, sin, None), wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("qk_norm", [False, True])
@pytest.mark.parametrize("name", PRESETS)
def test_parameters_are_counted(name: str, qk_norm: bool) -> None:
    config = replace(PRESETS[name], qk_norm=qk_norm)
    with torch.device("meta"):
        model = Decoder(config)
    assert sum(parameter.numel() for parameter in model.parameters()) == config.parameters
    assert sum(parameter.numel() for parameter in model.layers[0].parameters()) == config.block_parameters


def test_italia_9b() -> None:
    config = PRESETS["italia-9b"]
    assert 9.0e9 < config.parameters < 9.3e9
    assert (config.vocab_size, config.padded_vocab, config.seq_len) == (50_000, 50_048, 4096)


@pytest.mark.parametrize("qk_norm", [False, True])
def test_flops_are_those_of_the_products(qk_norm: bool) -> None:
    """torch's counter sees every product of a forward pass; training is three times that."""
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.utils.flop_counter import FlopCounterMode

    config = replace(TINY, qk_norm=qk_norm)
    model = filled(config)
    counter = FlopCounterMode(display=False)
    # The counter does not know the CPU's fused attention.
    with counter, torch.no_grad(), sdpa_kernel(SDPBackend.MATH):
        model(torch.zeros(2, 16, dtype=torch.long))
    assert config.flops_per_token(16) == pytest.approx(3 * counter.get_total_flops() / 32)


def test_initial_values_depend_on_seed_and_name_alone() -> None:
    shape = torch.Size([256, 64])
    cpu = torch.device("cpu")

    def value(seed: int, name: str) -> torch.Tensor:
        return initial_tensor(TINY, seed, name, shape, cpu)

    first = value(0, "layers.0.mlp.up_proj.weight")
    assert torch.equal(first, value(0, "layers.0.mlp.up_proj.weight"))
    assert not torch.equal(first, value(1, "layers.0.mlp.up_proj.weight"))
    assert not torch.equal(first, value(0, "layers.1.mlp.up_proj.weight"))
    assert first.std().item() == pytest.approx(0.02, rel=0.05)
    assert value(0, "layers.0.mlp.down_proj.weight").std().item() == pytest.approx(0.01, rel=0.05)
    assert torch.equal(value(0, "layers.0.input_layernorm.weight"), torch.ones(shape))


@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")
@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize(("kv_heads", "qk_norm"), [(2, False), (4, False), (2, True)])
def test_kept_activations_are_counted(compiled: bool, kv_heads: int, qk_norm: bool) -> None:
    """What a block really keeps, storage by storage, is what `train plan` counts."""
    config = ModelConfig(dim=256, layers=1, heads=4, kv_heads=kv_heads, hidden=768, qk_norm=qk_norm)
    block: torch.nn.Module = Block(config).bfloat16()
    cos, sin = rotary_table(64, config.head_dim, config.rope_theta, torch.device("cpu"))
    known = {tensor.untyped_storage().data_ptr() for tensor in (*block.parameters(), cos, sin)}
    kept: dict[int, torch.Tensor] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.untyped_storage().data_ptr() not in known:
            kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    if compiled:
        block = torch.compile(block, backend="aot_eager_decomp_partition")
    x = torch.randn(2, 64, 256, dtype=torch.bfloat16, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        block(x, cos, sin, None)
    measured = sum(tensor.untyped_storage().nbytes() for tensor in kept.values()) / (2 * 64)
    counted = block_bytes_per_token(config, 1, 2, compiled)
    # Eagerly the CPU has no fused norm: it keeps two float32 tensors, the fused kernel its bf16 input.
    normed = 2 * config.dim + ((config.dim + kv_heads * config.head_dim) if qk_norm else 0)
    assert measured == counted + (0 if compiled else 6 * normed)
