"""Causal attention within sequences or documents, over all earlier tokens or a window of them.

Input: queries, keys, values, and a mask. Output: the attention output. The kernel depends on the mask and the device:

- whole sequences without a window: torch's scaled_dot_product_attention;
- documents or a window on an NVIDIA GPU in bf16: `torch.nn.attention.varlen`, FlashAttention 2 (Dao 2023), which does
  no work across documents. It has not run on a GPU here yet;
- on any other GPU: `flex_attention` with a block mask;
- on a CPU: scaled_dot_product_attention for each document (`by_document`), with the interface of varlen.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import cache
from importlib import import_module
from itertools import pairwise
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own name
from torch import Tensor

VARLEN_GENERATION = (8, 0)
"""The oldest compute capability on which FlashAttention 2 runs."""
VARLEN_WIDTH = 256
"""The widest head it supports; widths must be multiples of 8."""


class Spans(NamedTuple):
    """Parts of flattened sequences; tokens attend only within their part."""

    ends: Tensor
    """(N + 1,) int32, cumulative lengths, starting with 0; the last parts may be empty."""
    longest: int
    """Upper limit of their lengths."""
    window: int
    """Tokens that one token sees, including itself; 0: no limit."""


@cache
def _flex() -> tuple[Any, Any]:
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    # Without this, selective recomputation would not see compiled code as an operation whose output it can save.
    options: Any = {"wrap_inductor_compiled_regions": True}
    # Compiled for each length, as blocks are (`train.parallel.parallelize`).
    return (
        torch.compile(create_block_mask, dynamic=False),
        torch.compile(flex_attention, dynamic=False, options=options),
    )


def _find_varlen() -> tuple[Callable[..., Tensor], dict[str, bool]] | None:
    """Return torch's varlen function and its option for grouped queries, or None if it does not support windows.

    torch 2.11 accepts grouped queries without an option.
    """
    try:
        function = import_module("torch.nn.attention.varlen").varlen_attn
    except ImportError:
        return None
    known = inspect.signature(function).parameters
    if "window_size" not in known:
        return None
    return function, {"enable_gqa": True} if "enable_gqa" in known else {}


_VARLEN = _find_varlen()
VARLEN_OP: Any = None if _VARLEN is None else torch.ops.torch_attn._varlen_attn.default
"""The operator behind the function, for policies that select operators."""


# Not compiled: torch would compile it again for each list of lengths.
@torch.compiler.disable  # type: ignore[untyped-decorator]
def by_document(q: Tensor, k: Tensor, v: Tensor, ends: Tensor, _longest: int, window: int) -> Tensor:
    """Compute what varlen computes, one document after another.

    q: (T, heads, d); k, v: (T, kv_heads, d). Returns (T, heads, d). It reads `ends` on the host, which costs nothing on
    a CPU.
    """
    out = []
    for first, end in pairwise(ends.tolist()):
        if first == end:
            continue
        queries, keys, values = (x[first:end].transpose(0, 1)[None] for x in (q, k, v))
        mask = None
        if 0 < window < end - first:
            mask = torch.ones((end - first, end - first), dtype=torch.bool, device=q.device)
            mask = mask.tril() & ~mask.tril(-window)
        out.append(_dense(queries, keys, values, mask)[0].transpose(0, 1))
    return torch.cat(out)


def _dense(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
    grouped = q.shape[1] != k.shape[1]
    return F.scaled_dot_product_attention(q, k, v, mask, is_causal=mask is None, enable_gqa=grouped)


def takes_spans(device: torch.device, dtype: torch.dtype, head_dim: int) -> bool:
    """Return whether attention within documents is computed from Spans, and not from a block mask."""
    if device.type != "cuda":
        return True
    return (
        torch.version.hip is None
        and dtype in (torch.bfloat16, torch.float16)
        and head_dim % 8 == 0
        and head_dim <= VARLEN_WIDTH
        and torch.cuda.get_device_capability(device) >= VARLEN_GENERATION
        and _VARLEN is not None
    )


def mask_of(documents: Tensor | None, x: Tensor, length: int, window: int, head_dim: int) -> Any:
    """Return the mask that `attend` takes for n sequences: None, Spans, or a flex block mask.

    documents: None for whole sequences, or `ends` of Spans, (1, N + 1). x: (n, ...), the input of the attention.
    length: tokens of a whole sequence. window: as in Spans.
    """
    window = window if window < length else 0
    if documents is None and not window:
        return None
    rows = len(x)
    if documents is None:
        ends = torch.arange(0, rows * length + 1, length, dtype=torch.int32, device=x.device)
    else:
        ends = documents.flatten()
        # The number of documents varies between micro-batches, and one compiled block must serve all of them.
        torch._dynamo.mark_dynamic(ends, 0)
    if takes_spans(x.device, x.dtype, head_dim):
        return Spans(ends, length, window)
    return block_mask(ends, rows, length, window, _flex()[0])


def block_mask(ends: Tensor, rows: int, length: int, window: int, create: Callable[..., Any]) -> Any:
    """Return the mask for flex_attention; create: torch's create_block_mask, compiled or not."""
    # Numbered over all sequences in a row, as `ends` counts.
    tokens = torch.arange(rows * length, dtype=torch.int32, device=ends.device)
    documents = torch.bucketize(tokens, ends[1:], right=True).view(rows, length)

    def visible(n: Tensor, _head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        seen = (documents[n, query] == documents[n, key]) & (query >= key)
        return seen & (query - key < window) if window else seen

    return create(visible, rows, None, length, length, device=ends.device)


def attend(q: Tensor, k: Tensor, v: Tensor, mask: Any) -> Tensor:
    """Compute causal attention: q (n, heads, L, d), k and v (n, kv_heads, L, d) -> (n, heads, L, d); see `mask_of`."""
    if mask is None:
        return _dense(q, k, v, None)
    if isinstance(mask, Spans):
        flat = [x.transpose(1, 2).flatten(0, 1) for x in (q, k, v)]
        kernel: Callable[..., Tensor] = _torchs if q.is_cuda else by_document
        return torch.unflatten(kernel(*flat, *mask), 0, (len(q), -1)).transpose(1, 2)
    result: Tensor = _flex()[1](q, k, v, block_mask=mask, enable_gqa=q.shape[1] != k.shape[1])
    return result


def _torchs(q: Tensor, k: Tensor, v: Tensor, ends: Tensor, longest: int, window: int) -> Tensor:
    assert _VARLEN is not None  # `takes_spans` has checked it
    function, grouped = _VARLEN
    # window_size counts tokens left and right of the query: a window of w reaches w - 1 to the left; -1 means no limit.
    reach = (window - 1 if window else -1, 0)
    return function(q, k, v, ends, ends, longest, longest, window_size=reach, **grouped)
