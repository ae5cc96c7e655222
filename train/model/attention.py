"""Causal attention inside of sequences or of documents, over all that is before a token or a window of it.

Input: queries, keys and values, and what a token may see. Output: what attention gives. Which kernel computes it:

- whole sequences without a window: torch's scaled_dot_product_attention;
- documents or a window on an NVIDIA GPU in bf16: `torch.nn.attention.varlen`, FlashAttention 2 (Dao 2023), which does
  no work outside of documents. No GPU has run it here yet;
- on any other GPU: `flex_attention` with a block mask;
- on a CPU: the first one for each document alone (`by_document`), in the interface of varlen.
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
"""From which of NVIDIA's architectures on FlashAttention 2 runs."""
VARLEN_WIDTH = 256
"""The widest head it takes; widths are multiples of 8."""


class Spans(NamedTuple):
    """Parts of flattened sequences that see only themselves. ends: (N + 1,) int32, their cumulative lengths from 0 on,
    the last ones perhaps of no tokens; longest: no part is longer; window: tokens that one sees, itself too, 0: all."""

    ends: Tensor
    longest: int
    window: int


@cache
def _flex() -> tuple[Any, Any]:
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    # Compiled code is otherwise no operation that recomputation could see and save the output of.
    options: Any = {"wrap_inductor_compiled_regions": True}
    # For each length anew, as blocks are (`train.parallel.mesh`).
    return (
        torch.compile(create_block_mask, dynamic=False),
        torch.compile(flex_attention, dynamic=False, options=options),
    )


def _find_varlen() -> tuple[Callable[..., Tensor], dict[str, bool]] | None:
    """torch's function, and what it must be told of grouped queries: torch 2.11 takes them without; None where torch's
    knows no window."""
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
"""The operation behind it, for those that look at operations."""


def by_document(q: Tensor, k: Tensor, v: Tensor, ends: Tensor, _longest: int, window: int) -> Tensor:
    """What varlen computes, document after document: q (T, heads, d), k and v (T, kv_heads, d) -> (T, heads, d).

    It reads `ends` on the host, which is no wait on a CPU.
    """
    out = []
    for first, end in pairwise(ends.tolist()):
        if first == end:
            continue
        one = [x[first:end].transpose(0, 1)[None] for x in (q, k, v)]
        mask = None
        if 0 < window < end - first:
            mask = torch.ones((end - first, end - first), dtype=torch.bool, device=q.device)
            mask = mask.tril() & ~mask.tril(-window)
        out.append(_dense(one[0], one[1], one[2], mask)[0].transpose(0, 1))
    return torch.cat(out)


def _dense(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
    grouped = q.shape[1] != k.shape[1]
    return F.scaled_dot_product_attention(q, k, v, mask, is_causal=mask is None, enable_gqa=grouped)


def takes_spans(device: torch.device, dtype: torch.dtype, head_dim: int) -> bool:
    """Whether attention inside of documents is computed from their ends, and not by a block mask."""
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
    """What `attend` takes of n sequences: None, Spans, or a flex block mask.

    documents: None for whole sequences, or `ends` of Spans, (1, N + 1); x: (n, ...), what attention is computed from;
    length: of whole sequences.
    """
    window = window if window < length else 0
    if documents is None and not window:
        return None
    rows = len(x)
    if documents is None:
        ends = torch.arange(0, rows * length + 1, length, dtype=torch.int32, device=x.device)
    else:
        ends = documents.flatten()
        # Micro-batches have other numbers of documents: a compiled block is to serve all of them.
        torch._dynamo.mark_dynamic(ends, 0)
    if takes_spans(x.device, x.dtype, head_dim):
        return Spans(ends, length, window)
    return block_mask(ends, rows, length, window, _flex()[0])


def block_mask(ends: Tensor, rows: int, length: int, window: int, create: Callable[..., Any]) -> Any:
    """The same for flex_attention, made by torch's `create`."""
    tokens = torch.arange(rows * length, dtype=torch.int32, device=ends.device)
    documents = torch.bucketize(tokens, ends[1:], right=True).view(rows, length)

    def visible(n: Tensor, _head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        seen = (documents[n, query] == documents[n, key]) & (query >= key)
        return seen & (query - key < window) if window else seen

    return create(visible, rows, None, length, length, device=ends.device)


def attend(q: Tensor, k: Tensor, v: Tensor, mask: Any) -> Tensor:
    """Causal attention; q (n, heads, L, d), k and v (n, kv_heads, L, d); mask: from `mask_of`."""
    if mask is None:
        return _dense(q, k, v, None)
    if isinstance(mask, Spans):
        flat = [x.transpose(1, 2).flatten(0, 1) for x in (q, k, v)]
        kernel: Callable[..., Tensor] = _torchs if q.is_cuda else by_document
        return torch.unflatten(kernel(*flat, *mask), 0, (len(q), -1)).transpose(1, 2)
    result: Tensor = _flex()[1](q, k, v, block_mask=mask, enable_gqa=q.shape[1] != k.shape[1])
    return result


def _torchs(q: Tensor, k: Tensor, v: Tensor, ends: Tensor, longest: int, window: int) -> Tensor:
    assert _VARLEN is not None  # `takes_spans` looked
    function, grouped = _VARLEN
    # A window of w tokens reaches w - 1 to the left.
    reach = (window - 1 if window else -1, 0)
    return function(q, k, v, ends, ends, longest, longest, window_size=reach, **grouped)
