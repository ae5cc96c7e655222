"""Attention inside of documents and windows: each way to compute it against a mask written out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import needs

torch = needs("torch")
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from pretok.base.records import replace
from pretok.base.storage import read_lines
from tests.support import make_shards
from tests.train_support import column, filled, run_jobs
from train.config import TrainConfig
from train.data import documents_of
from train.model import attention
from train.model.attention import Spans, attend, block_mask, by_document, mask_of, takes_spans
from train.model.sizes import ModelConfig
from train.model.transformer import Decoder
from train.parallel import parallelize
from train.parallel.parallelize import checkpoint_activations

DOCUMENT = TrainConfig(attention="document")
TINY = ModelConfig(vocab_size=60, dim=32, layers=2, heads=4, kv_heads=2, hidden=64, seq_len=16)


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


def test_as_many_documents_as_can_be() -> None:
    tokens = torch.tensor([[0, 1] * 8])
    assert len(set(documents_of(tokens, 0, DOCUMENT)[0].tolist())) == 16 // 2 + 1 + 1
    assert documents_of(tokens, 0, TrainConfig()) is None


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


@pytest.mark.parametrize("window", [0, 5])
def test_torchs_varlen_takes_what_it_is_given(window: int) -> None:
    """Shapes and gradients by its own description; a GPU alone can tell its numbers."""
    if attention._VARLEN is None:
        pytest.skip("this torch has no varlen attention with windows")
    inputs = [x.detach().to("meta", torch.bfloat16).requires_grad_() for x in heads(3, 40)]
    ends = torch.empty(9, dtype=torch.int32, device="meta")
    out = attention._torchs(*(x.transpose(1, 2).flatten(0, 1) for x in inputs), ends, 40, window)
    assert out.shape == (120, 4, 8)
    found = torch.autograd.grad(out.sum(), inputs)
    assert [x.shape for x in found] == [x.shape for x in inputs]


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


@pytest.mark.parametrize(
    ("dtype", "width", "capability", "taken"),
    [
        (torch.bfloat16, 128, (8, 0), True),
        (torch.float32, 128, (9, 0), False),
        (torch.bfloat16, 12, (9, 0), False),
        (torch.bfloat16, 264, (9, 0), False),
        (torch.bfloat16, 128, (7, 5), False),
    ],
)
def test_varlen_is_taken_where_it_can_be(
    dtype: Any, width: int, capability: tuple[int, int], taken: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _device: capability)
    monkeypatch.setattr(attention, "_VARLEN", (torchs_interface, {}))
    assert takes_spans(torch.device("cuda"), dtype, width) == taken
    monkeypatch.setattr(attention, "_VARLEN", None)
    assert not takes_spans(torch.device("cuda"), dtype, width)
    assert takes_spans(torch.device("cpu"), dtype, width)


def test_documents_of_a_model_are_as_if_alone() -> None:
    model = filled(TINY, scale=5)
    tokens = random_documents(1, 16, 1, 0)
    tokens[0, 6] = 0  # ends the first document
    masked = model(tokens, documents=documents_of(tokens, 0, DOCUMENT))
    torch.testing.assert_close(masked[:, :7], model(tokens[:, :7]))
    torch.testing.assert_close(masked[:, 7:], model(tokens[:, 7:]), rtol=1e-4, atol=1e-5)
    assert not torch.allclose(masked[:, 7:], model(tokens)[:, 7:])


def test_a_window_reaches_as_far_as_its_layers_carry() -> None:
    """Two layers of a window of 4 see 2 x 3 tokens back."""
    model = filled(replace(TINY, window=4), scale=5)
    tokens = random_documents(1, 16, 1, 0)
    changed = tokens.clone()
    changed[0, 3] = 59 - changed[0, 3]
    differ = (model(tokens) - model(changed)).abs().amax(2)[0] > 1e-6
    assert differ.nonzero().flatten().tolist() == list(range(3, 10))


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


@pytest.mark.filterwarnings("ignore")  # what torch looks at while it compiles
@pytest.mark.parametrize("setting", ["none", "ops"])
def test_a_block_is_compiled_once_for_any_number_of_documents(
    setting: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from torch._dynamo.testing import CompileCounterWithBackend

    monkeypatch.setattr(
        attention, "by_document", lambda q, k, v, ends, *_: varlen(q, ends) + k.sum() + v.sum()
    )
    plain, compiled = filled(replace(TINY, layers=1), scale=5), filled(replace(TINY, layers=1), scale=5)
    checkpoint_activations(compiled, setting)
    counter = CompileCounterWithBackend("aot_eager")
    for block in compiled.layers:
        block.compile(fullgraph=True, dynamic=False, backend=counter)
    for share in (0, 0.1, 0.5):
        tokens = random_documents(2, 17, 1, share)
        documents = documents_of(tokens[:, :-1], 0, DOCUMENT)
        gradients = []
        for model in (plain, compiled):
            total, _ = model(tokens[:, :-1], tokens[:, 1:], documents)
            gradients.append(torch.autograd.grad(total, list(model.parameters())))
        torch.testing.assert_close(gradients[1], gradients[0], atol=1e-4, rtol=1e-4)
    assert counter.frame_count == 1


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("window", [0, 5])
def test_torchs_varlen_is_traced_as_one_graph(window: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without numbers, as a GPU alone has them."""
    from torch._dynamo.testing import CompileCounterWithBackend

    if attention._VARLEN is None:
        pytest.skip("this torch has no varlen attention with windows")
    monkeypatch.setattr(attention, "by_document", attention._torchs)
    with torch.device("meta"):
        block = Decoder(TINY).layers[0].bfloat16()
        x = torch.randn(2, 16, 32, dtype=torch.bfloat16, requires_grad=True)
        cos, sin = torch.randn(2, 16, 8)
    counter = CompileCounterWithBackend("aot_eager")
    block.compile(fullgraph=True, dynamic=False, backend=counter)
    for documents in (2, 5, 9):
        ends = torch.empty((1, documents), dtype=torch.int32, device="meta")
        block(x, cos, sin, mask_of(ends, x, 16, window, 8)).sum().backward()
    assert counter.frame_count == 1
    assert x.grad.shape == x.shape


def test_recomputation_keeps_what_varlen_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        attention, "by_document", lambda q, k, v, ends, *_: varlen(q, ends) + k.sum() + v.sum()
    )
    assert attention.VARLEN_OP is None or attention.VARLEN_OP in parallelize._ATTENTION
    monkeypatch.setattr(parallelize, "_ATTENTION", {torch.ops.tests.varlen.default})
    model = Decoder(TINY)
    checkpoint_activations(model, "ops")
    tokens = random_documents(2, 17, 1)
    COMPUTED.clear()
    total, _ = model(tokens[:, :-1], tokens[:, 1:], documents_of(tokens[:, :-1], 0, DOCUMENT))
    total.backward()
    assert len(COMPUTED) == TINY.layers


def compile_for_cpus() -> None:
    """In a rank: without a compiler of C++."""
    original = torch.nn.Module.compile
    torch.nn.Module.compile = lambda self, **options: original(self, backend="aot_eager", **options)


@pytest.mark.slow
def test_every_way_to_divide_a_model_gives_documents_and_windows_alike(tmp_path: Path) -> None:
    """Documents of 1 to 12 tokens: micro-batches of 3 to 9 of them, so of several lengths in one step."""
    rng = np.random.default_rng(0)
    documents = [rng.integers(1, 60, rng.integers(1, 13)).tolist() for _ in range(900)]
    shards = make_shards(tmp_path / "shards", {"it": documents}, val={"it": documents[:60]}, vocab_size=60)
    sizes = "vocab_size = 60\ndim = 32\nlayers = 4\nheads = 4\nkv_heads = 4\nhidden = 32\ntied = false\nwindow = 5\n"
    (tmp_path / "model.toml").write_text(sizes)
    common: list[object] = [
        "--shards",
        shards,
        "--model",
        tmp_path / "model.toml",
        "--seq-len",
        16,
        "--steps",
        4,
    ]
    common += ["--global-batch", 8, "--workers", 0, "--lr", 0.01, "--warmup", 0, "--schedule", "constant"]
    common += ["--save-every", "never", "--attention", "document", "--val-every", 2, "--eps", 0.001]
    cases: dict[str, tuple[int, list[object]]] = {
        "one": (1, []),
        "context": (2, ["--context", 2, "--shard", 2, "--micro-batch", 2]),
        "compiled": (2, ["--context", 2, "--shard", 2, "--compile", "--checkpointing", "ops"]),
        "pipeline": (4, ["--pipeline", 2, "--tensor", 2, "--micro-batch", 2]),
        "both": (4, ["--pipeline", 2, "--context", 2, "--shard", 2, "--micro-batch", 1]),
    }
    jobs = [(ranks, [*common, "--out", tmp_path / name, *own]) for name, (ranks, own) in cases.items()]
    run_jobs(jobs, tmp_path, before=compile_for_cpus)
    for name in cases:
        for key, close in (("data_hash", None), ("loss", 1e-5), ("grad_norm", 1e-4)):
            found, expected = column(tmp_path / name, key), column(tmp_path / "one", key)
            assert found == (expected if close is None else pytest.approx(expected, rel=close)), (name, key)
        losses = [
            [record["val_loss"] for record in read_lines(tmp_path / of / "validation.jsonl")]
            for of in (name, "one")
        ]
        assert losses[0] == pytest.approx(losses[1], rel=1e-5), name
