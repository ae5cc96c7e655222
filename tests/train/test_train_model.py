"""The decoder, its loss and its sizes, on one process without any mesh."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support import needs

torch = needs("torch")
import torch.nn.functional as F  # noqa: N812
from hypothesis import given, settings
from hypothesis import strategies as st

from train.model.loss import IGNORE, linear_cross_entropy, token_scores
from train.model.sizes import PRESETS, ModelConfig
from train.model.transformer import (
    Block,
    Decoder,
    document_ids,
    initial_tensor,
    rotary_table,
)
from train.tools.plan import block_bytes_per_token

TINY = ModelConfig(vocab_size=60, dim=32, layers=2, heads=4, kv_heads=2, hidden=64, seq_len=16)


def filled(config: ModelConfig) -> Decoder:
    model = Decoder(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(initial_tensor(config, 3, name, parameter.shape, torch.device("cpu")) * 5)
    return model


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
    losses, best = token_scores(hidden, weight, target, vocab, chunk=chunk)
    torch.testing.assert_close(losses, F.cross_entropy(logits, target, ignore_index=IGNORE, reduction="none"))
    assert torch.equal(best, (logits.argmax(1) == target) | (target == IGNORE))


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


def test_document_mask_equals_documents_alone() -> None:
    model = filled(TINY)
    tokens = torch.randint(1, 60, (1, 16), generator=torch.Generator().manual_seed(1))
    tokens[0, 6] = 0  # ends the first document
    masked = model(tokens, documents=document_ids(tokens, 0))
    torch.testing.assert_close(masked[:, :7], model(tokens[:, :7]))
    torch.testing.assert_close(masked[:, 7:], model(tokens[:, 7:]), rtol=1e-4, atol=1e-5)
    assert not torch.allclose(masked[:, 7:], model(tokens)[:, 7:])


def test_flex_mask_says_the_same_as_the_dense_one(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch.nn.attention.flex_attention import create_mask

    documents = document_ids(torch.tensor([[1, 0, 2, 3, 0, 4]]), 0)
    assert documents.tolist() == [[0, 0, 1, 1, 1, 2]]
    import train.model.transformer

    dense = train.model.transformer.document_mask(documents)
    taken = []

    class _Device:
        type = "cuda"

    class _Documents:  # what a GPU would hand over, recorded
        device = _Device()
        shape = documents.shape

        def __len__(self) -> int:
            return len(documents)

        def __getitem__(self, key: object) -> object:
            return documents[key]

    flex_of = (lambda visible, *_, **__: taken.append(visible), None)
    monkeypatch.setattr(train.model.transformer, "_flex", lambda: flex_of)
    train.model.transformer.document_mask(_Documents())
    flex = create_mask(taken[0], 1, 1, 6, 6, device="cpu")
    assert torch.equal(flex, dense)


@pytest.mark.parametrize("name", PRESETS)
def test_parameters_are_counted(name: str) -> None:
    config = PRESETS[name]
    with torch.device("meta"):
        model = Decoder(config)
    assert sum(parameter.numel() for parameter in model.parameters()) == config.parameters
    assert sum(parameter.numel() for parameter in model.layers[0].parameters()) == config.block_parameters


def test_italia_9b() -> None:
    config = PRESETS["italia-9b"]
    assert 9.0e9 < config.parameters < 9.3e9
    assert (config.vocab_size, config.padded_vocab, config.seq_len) == (50_000, 50_048, 4096)


def test_flops_are_those_of_the_products() -> None:
    """torch's counter sees every product of a forward pass; training is three times that."""
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.utils.flop_counter import FlopCounterMode

    model = filled(TINY)
    counter = FlopCounterMode(display=False)
    # The counter does not know the CPU's fused attention.
    with counter, torch.no_grad(), sdpa_kernel(SDPBackend.MATH):
        model(torch.zeros(2, 16, dtype=torch.long))
    assert TINY.flops_per_token(16) == pytest.approx(3 * counter.get_total_flops() / 32)


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
@pytest.mark.parametrize("kv_heads", [2, 4])
def test_kept_activations_are_counted(compiled: bool, kv_heads: int) -> None:
    """What a block really keeps, storage by storage, is what `train plan` counts."""
    config = ModelConfig(dim=256, layers=1, heads=4, kv_heads=kv_heads, hidden=768)
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
    assert measured == counted + (0 if compiled else 2 * 6 * config.dim)
