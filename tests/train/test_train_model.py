"""The decoder, its loss and its sizes, on one process without any mesh; and each way to compute attention inside of
documents and windows, against a mask written out."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from support import needs

torch = needs("torch")
import torch.nn.functional as F  # noqa: N812
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._dynamo.testing import CompileCounterWithBackend
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from pretok.base.records import replace
from pretok.base.tokens import IGNORE
from tests import train_support
from train.config import TrainConfig
from train.data import documents_of
from train.model import attention, transformer
from train.model.attention import Spans, attend, block_mask, by_document, mask_of, takes_spans
from train.model.loss import linear_cross_entropy
from train.model.sizes import ModelConfig
from train.model.transformer import Block, Decoder, initial_tensor, rotary_table
from train.parallel import parallelize
from train.parallel.layout import Layout
from train.parallel.parallelize import checkpoint_activations
from train.plan import block_bytes_per_token, count_tensors

DOCUMENT = TrainConfig(attention="document")
TINY = ModelConfig(vocab_size=60, dim=32, layers=2, heads=4, kv_heads=2, hidden=64, seq_len=16)
CPU = torch.device("cpu")
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
    def values(seed: int, name: str) -> torch.Tensor:
        return initial_tensor(TINY, seed, f"layers.{name}.weight", torch.Size([256, 64]), CPU)

    first, down = values(0, "0.mlp.up_proj"), values(0, "0.mlp.down_proj")
    assert torch.equal(first, values(0, "0.mlp.up_proj"))
    assert not torch.equal(first, values(1, "0.mlp.up_proj"))
    assert not torch.equal(first, values(0, "1.mlp.up_proj"))
    assert first.std().item() == pytest.approx(0.02, rel=0.05)
    assert down.std().item() == pytest.approx(0.01, rel=0.05)
    assert torch.equal(values(0, "0.input_layernorm"), torch.ones(256, 64))


@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")
@pytest.mark.parametrize(("compiled", "kv_heads", "qk_norm"), [(False, 4, False), (True, 2, True)])
def test_kept_activations_are_counted(compiled: bool, kv_heads: int, qk_norm: bool) -> None:
    """What a block really keeps, storage by storage, is what `train plan` counts."""
    config = ModelConfig(dim=256, layers=1, heads=4, kv_heads=kv_heads, hidden=768, qk_norm=qk_norm)
    block: torch.nn.Module = Block(config).bfloat16()
    cos, sin = rotary_table(64, config.head_dim, config.rope_theta, CPU)
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


def random_documents(rows: int, length: int, seed: int, share: float = 0.2) -> torch.Tensor:
    """(rows, length) ids, some of them the end 0."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(1, 60, (rows, length), generator=generator)
    return ids.masked_fill(torch.rand(ids.shape, generator=generator) < share, 0)


def visible(tokens: torch.Tensor, window: int) -> torch.Tensor:
    """(n, L, L) whether a query sees a key, by walking through the tokens."""
    seen = torch.zeros(*tokens.shape, tokens.shape[1], dtype=torch.bool)
    for row, ids in enumerate(tokens.tolist()):
        start = 0
        for query, token in enumerate(ids):
            if query and ids[query - 1] == 0 and token != 0:
                start = query
            seen[row, query, max(start, query - window + 1 if window else 0) : query + 1] = True
    return seen


def heads(rows: int, length: int, seed: int = 0) -> list[torch.Tensor]:
    """q of 4 heads, k and v of 2."""
    generator = torch.Generator().manual_seed(seed)
    return [
        torch.randn(rows, count, length, 8, generator=generator, requires_grad=True) for count in (4, 2, 2)
    ]


def both(out: torch.Tensor, inputs: list[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """A result and its gradients."""
    return out, *torch.autograd.grad((out * torch.linspace(0, 1, 8)).sum(), inputs)


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 3), st.integers(1, 40), st.integers(0, 99), st.sampled_from([0, 0.2, 0.6, 1]))
def test_documents_end_where_the_next_begins_and_never_overflow(
    rows: int, length: int, seed: int, share: float
) -> None:
    tokens = random_documents(rows, length, seed, share)
    ends = documents_of(tokens, 0, DOCUMENT)[0].tolist()
    seen = visible(tokens, 0)
    starts = [row * length + n for row in range(rows) for n in range(length) if seen[row, n].sum() == 1]
    assert ends[: len(starts)] == starts
    assert set(ends[len(starts) :]) == {rows * length}
    assert len(starts) <= rows * (length // 2 + 1)
    assert len(ends) - 1 in (len(starts), *(1 << n for n in range(10)))
    assert len(ends) - 1 < 2 * len(starts)


def torchs_interface(
    q: Any, k: Any, v: Any, cu_seq_q: Any, cu_seq_k: Any, max_q: int, max_k: int, **more: Any
) -> Any:
    """`varlen_attn` as torch describes it: (W, 0) is causal and reaches W tokens to the left."""
    assert cu_seq_q is cu_seq_k
    assert max_q == max_k
    assert more.keys() == {"window_size", "enable_gqa"}
    left, right = more["window_size"]
    assert right == 0
    return by_document(q, k, v, cu_seq_q, max_q, left + 1)


@pytest.mark.filterwarnings("ignore:flex_attention called without")
@pytest.mark.parametrize("window", [0, 1, 5, 40])
@pytest.mark.parametrize("share", [0, 0.2])
def test_every_kernel_gives_what_the_mask_says(
    window: int, share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens = random_documents(3, 40, 1, share)
    inputs = heads(*tokens.shape)
    dense = torch.nn.functional.scaled_dot_product_attention(
        *inputs, attn_mask=visible(tokens, window)[:, None], enable_gqa=True
    )
    expected = both(dense, inputs)
    documents = documents_of(tokens, 0, DOCUMENT)
    mask = mask_of(documents if share else None, tokens, 40, window, 8)
    assert (mask is None) == (not share and window in (0, 40))
    torch.testing.assert_close(both(attend(*inputs, mask), inputs), expected, atol=1e-5, rtol=1e-5)
    # As varlen is called on a GPU.
    monkeypatch.setattr(attention, "_VARLEN", (torchs_interface, {"enable_gqa": True}))
    monkeypatch.setattr(attention, "by_document", attention._torchs)
    torch.testing.assert_close(both(attend(*inputs, mask), inputs), expected, atol=1e-5, rtol=1e-5)
    # Flex, which CPUs run without compiling it, and without gradients.
    blocks = block_mask(documents[0], 3, 40, window if window < 40 else 0, create_block_mask)
    found = flex_attention(*(x.detach() for x in inputs), block_mask=blocks, enable_gqa=True)
    torch.testing.assert_close(found, dense.detach(), atol=1e-5, rtol=1e-5)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="only a GPU has varlen attention and compiled flex")
@pytest.mark.parametrize("window", [0, 5])
def test_varlen_equals_flex_on_a_gpu(window: int) -> None:
    tokens = random_documents(2, 256, 1, 0.02)
    inputs = [x.detach().cuda().bfloat16().requires_grad_() for x in heads(2, 256)]
    ends = documents_of(tokens, 0, DOCUMENT)[0].cuda()
    first = both(attend(*inputs, Spans(ends, 256, window)).cpu().float(), inputs)
    mask = block_mask(ends, 2, 256, window, attention._flex()[0])
    second = both(attend(*inputs, mask).cpu().float(), inputs)
    torch.testing.assert_close(first, second, atol=2e-2, rtol=2e-2)


def test_varlen_is_taken_where_it_can_be(monkeypatch: pytest.MonkeyPatch) -> None:
    def taken(dtype: Any = torch.bfloat16, width: int = 128, capability: tuple[int, int] = (8, 0)) -> bool:
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _device: capability)
        return takes_spans(torch.device("cuda"), dtype, width)

    monkeypatch.setattr(attention, "_VARLEN", (torchs_interface, {}))
    assert taken()
    assert not any((taken(torch.float32), taken(width=12), taken(width=264), taken(capability=(7, 5))))
    monkeypatch.setattr(attention, "_VARLEN", None)
    assert not taken()
    assert takes_spans(CPU, torch.bfloat16, 128)


def test_documents_of_a_model_are_as_if_alone() -> None:
    model = filled(TINY, scale=5)
    tokens = random_documents(1, 16, 1, 0)
    tokens[0, 6] = 0  # ends the first document
    masked = model(tokens, documents=documents_of(tokens, 0, DOCUMENT))
    torch.testing.assert_close(masked[:, :7], model(tokens[:, :7]))
    torch.testing.assert_close(masked[:, 7:], model(tokens[:, 7:]), rtol=1e-4, atol=1e-5)
    assert not torch.allclose(masked[:, 7:], model(tokens)[:, 7:])


@pytest.mark.parametrize("window", [1, 7, 64])
def test_operations_of_a_window_are_those_of_the_tokens_it_sees(window: int) -> None:
    """Twice them, as without one, but for each token itself."""
    sizes, without = replace(TINY, window=window), TINY.flops_per_token(64) - TINY.flops_per_token(0.001)
    share = visible(torch.ones(1, 64), window).sum() / visible(torch.ones(1, 64), 0).sum()
    found = sizes.flops_per_token(64) - TINY.flops_per_token(0.001)
    assert found / without == pytest.approx(share.item(), abs=1 / 64)


COMPUTED: list[int] = []


@torch.library.custom_op("tests::varlen", mutates_args=())
def varlen(q: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    """Like torch's it is code that nothing looks into; unlike it, something that one line differentiates."""
    COMPUTED.append(len(ends))
    return q * ends.count_nonzero()


varlen.register_fake(lambda q, _ends: torch.empty_like(q))
varlen.register_autograd(
    lambda ctx, gradient: (gradient * ctx.saved_tensors[0].count_nonzero(), None),
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(inputs[1]),
)


@pytest.mark.filterwarnings("ignore")
def test_a_block_is_compiled_once_for_any_number_of_documents(monkeypatch: pytest.MonkeyPatch) -> None:
    """With torch's varlen attention; without numbers, which a GPU alone has."""
    if attention._VARLEN is None:
        pytest.skip("this torch has no varlen attention with windows")
    monkeypatch.setattr(attention, "by_document", attention._torchs)
    with torch.device("meta"):
        model = Decoder(replace(TINY, layers=1)).bfloat16()
        checkpoint_activations(model, "ops")
        (block,) = model.layers
        x = torch.randn(2, 16, 32, dtype=torch.bfloat16, requires_grad=True)
        cos, sin = torch.randn(2, 16, 8)
    counter = CompileCounterWithBackend("aot_eager")
    block.compile(fullgraph=True, dynamic=False, backend=counter)
    for documents in (2, 9):
        ends = torch.empty((1, documents), dtype=torch.int32, device="meta")
        block(x, cos, sin, mask_of(ends, x, 16, 5, 8)).sum().backward()
    assert counter.frame_count == 1
    assert x.grad.shape == x.shape


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kernel", ["varlen", pytest.param("flex", marks=pytest.mark.slow)])
def test_recomputation_keeps_what_attention_gives(kernel: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU, where both are compiled code; an operation that a CPU can differentiate stands in for them."""
    tokens = random_documents(2, 17, 1)
    documents: Any = documents_of(tokens[:, :-1], 0, DOCUMENT)
    if kernel == "varlen":
        assert attention.VARLEN_OP is None or attention.VARLEN_OP in parallelize._ATTENTION
        monkeypatch.setattr(parallelize, "_ATTENTION", {torch.ops.tests.varlen.default})
        monkeypatch.setattr(attention, "by_document", lambda q, _k, _v, ends, *_others: varlen(q, ends))
    else:
        module = "torch.nn.attention.flex_attention.flex_attention"
        monkeypatch.setattr(module, lambda q, _k, _v, **_others: varlen(q, documents))
        monkeypatch.setattr(transformer, "mask_of", lambda *_others: "of a GPU")
        attention._flex.cache_clear()
    model = filled(TINY)
    checkpoint_activations(model, "ops")
    COMPUTED.clear()
    total, _ = model(tokens[:, :-1], tokens[:, 1:], documents)
    total.backward()
    attention._flex.cache_clear()
    assert len(COMPUTED) == TINY.layers


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
    config = TrainConfig(precision="fp32", checkpointing=setting, compile=False)
    sizes = replace(TINY, layers=4)
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


def test_documents_of_other_lengths_compile_nothing_new() -> None:
    graphs: list[int] = []

    def count(graph: Any, _inputs: object) -> Any:
        graphs.append(0)
        return graph.forward

    def double(q: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
        return attend(q * 2, q, q, Spans(ends, 16, 0)) * 2

    torch._dynamo.reset()
    compiled, q = torch.compile(double, backend=count, dynamic=False), torch.randn(1, 2, 16, 4)
    counts = []
    for middle in (4, 7, 9, 11):
        ends = torch.tensor([0, middle, 16], dtype=torch.int32)
        torch.testing.assert_close(compiled(q, ends), double(q, ends))
        counts.append(len(graphs))
    assert counts == [counts[0]] * 4
