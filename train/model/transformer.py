"""A Llama-style decoder, which knows nothing of parallelism.

Input: token ids (n, L). Output: logits, or the summed loss if targets are given. RMSNorm, rotary positions,
grouped-query attention, SwiGLU, tied or untied embeddings, optionally norms on queries and keys, or biases. Parameter
names correspond one to one to those of the families in `train.model.sizes`.

Sources: Touvron et al. 2023 (LLaMA); rotary positions in the two-halves layout of `transformers`; Ainslie et al. 2023
(grouped queries); initialization as in GPT-2: normal with 0.02, projections into the residual divided by sqrt(2
layers). Norms on queries and keys: Dehghani et al. 2023 (ViT-22B), per head as in Qwen3. They bound the logits of
attention, whose growth makes large runs diverge at high learning rates (Wortsman et al. 2023).
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any, cast

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own name
from torch import Tensor, nn

from train.model.attention import attend, mask_of
from train.model.loss import linear_cross_entropy
from train.model.sizes import LOSS_CHUNK, ModelConfig, RopeScaling


def _stretch(frequencies: Tensor, scaling: RopeScaling) -> Tensor:
    """Scale frequencies for sequences longer than the original ones, as `RopeScaling` describes.

    Frequencies that turn often within the original length stay the same, those that turn seldom are divided.
    """
    turns = scaling.original_max_position_embeddings * frequencies / (2 * math.pi)
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    kept = ((turns - low) / (high - low)).clamp(0, 1)
    return frequencies * (kept + (1 - kept) / scaling.factor)


def frequencies(head_dim: int, theta: float, scaling: RopeScaling | None = None) -> Tensor:
    """Return the frequencies of the rotary positions, (head_dim / 2,) float64, in radians per token."""
    plain = theta ** -(torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim)
    return plain if scaling is None else _stretch(plain, scaling)


@lru_cache(maxsize=8)
def rotary_table(
    length: int, head_dim: int, theta: float, device: torch.device, scaling: RopeScaling | None = None
) -> tuple[Tensor, Tensor]:
    """Return cos and sin of position x frequency, each (length, head_dim) float32; the two halves are equal."""
    # float64: late positions times high frequencies would lose the fraction of a turn in float32.
    positions = torch.arange(length, dtype=torch.float64)
    angles = torch.outer(positions, frequencies(head_dim, theta, scaling))
    angles = torch.cat([angles, angles], dim=1)
    return angles.cos().float().to(device), angles.sin().float().to(device)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Apply rotary positions to x (n, heads, L, head_dim); computed in float32, returned in x's dtype."""
    wide = x.float()
    left, right = wide.chunk(2, dim=-1)
    return (wide * cos + torch.cat([-right, left], dim=-1) * sin).to(x.dtype)


class Attention(nn.Module):
    """Grouped-query attention. The projections may hold only some of the heads (tensor parallelism)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.head_dim = config.head_dim
        self.attend: Callable[..., Tensor] = attend  # replaced under context parallelism
        self.q_proj = nn.Linear(config.dim, config.attention_dim, bias=config.qkv_bias)
        self.k_proj = nn.Linear(config.dim, config.kv_dim, bias=config.qkv_bias)
        self.v_proj = nn.Linear(config.dim, config.kv_dim, bias=config.qkv_bias)
        self.o_proj = nn.Linear(config.attention_dim, config.dim, bias=False)
        self.q_norm, self.k_norm = (
            nn.RMSNorm(config.head_dim, eps=config.norm_eps) if config.qk_norm else None for _ in range(2)
        )

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, mask: Any) -> Tensor:
        """x: (n, L, dim); cos, sin: (L, head_dim); mask: see `mask_of`. Returns (n, L, dim)."""
        n, length, _ = x.shape
        q, k, v = (
            project(x).view(n, length, -1, self.head_dim)
            for project in (self.q_proj, self.k_proj, self.v_proj)
        )
        if self.q_norm is not None and self.k_norm is not None:
            q, k = self.q_norm(q), self.k_norm(k)
        q, k, v = (part.transpose(1, 2) for part in (q, k, v))
        out = self.attend(rotate(q, cos, sin), rotate(k, cos, sin), v, mask)
        result: Tensor = self.o_proj(out.transpose(1, 2).reshape(n, length, -1))
        return result


class FeedForward(nn.Module):
    """SwiGLU: down(silu(gate(x)) * up(x))."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.dim, config.hidden, bias=False)
        self.up_proj = nn.Linear(config.dim, config.hidden, bias=False)
        self.down_proj = nn.Linear(config.hidden, config.dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """x: (n, L, dim). Returns (n, L, dim)."""
        result: Tensor = self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
        return result


class Block(nn.Module):
    """Pre-norm attention and feed-forward, each added to the residual."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.input_layernorm = nn.RMSNorm(config.dim, eps=config.norm_eps)
        self.self_attn = Attention(config)
        self.post_attention_layernorm = nn.RMSNorm(config.dim, eps=config.norm_eps)
        self.mlp = FeedForward(config)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, mask: Any) -> Tensor:
        """x: (n, L, dim); the rest as in `Attention.forward`. Returns (n, L, dim)."""
        x = x + self.self_attn(self.input_layernorm(x), cos, sin, mask)
        result: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return result


class Head(nn.Module):
    """The output matrix, (padded vocabulary, dim).

    It is a module of its own, called with the function to apply: a sharded matrix is then gathered for that call only.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.weight = nn.Linear(config.dim, config.padded_vocab, bias=False).weight

    def forward(self, x: Tensor, use: Callable[[Tensor, Tensor], Any]) -> Any:
        """Return use(x, matrix)."""
        return use(x, self.weight)


class Decoder(nn.Module):
    """The whole model, or one stage of it (see `train.parallel.pipeline`).

    Without its beginning it takes hidden states (n, L, dim) instead of tokens; without its end it returns them. If
    tensor parallel ranks share sequences, these have L / sequence_parts tokens. context: (which part of each sequence
    its tokens are, number of parts). The loss holds the logits of LOSS_CHUNK tokens at a time; `fuse_loss` compiles it.
    """

    def __init__(self, config: ModelConfig, *, z_loss: float = 0.0) -> None:
        super().__init__()
        self.config = config
        self.z_loss = z_loss
        self.fuse_loss = False
        self.sequence_parts = 1
        self.context = 0, 1
        self.embed_tokens: nn.Embedding | None = nn.Embedding(config.padded_vocab, config.dim)
        self.layers = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.norm: nn.RMSNorm | None = nn.RMSNorm(config.dim, eps=config.norm_eps)
        self.lm_head = None if config.tied else Head(config)

    def forward(self, tokens: Tensor, targets: Tensor | None = None, documents: Tensor | None = None) -> Any:
        """Return logits (n, L, padded vocabulary), or with targets the pair (total, nll) of `linear_cross_entropy`.

        tokens, targets: (n, L) integers; with context parallelism L counts the tokens of this rank's part. documents:
        (1, N + 1) int32, the ends of the documents in the whole sequences (`train.model.attention.Spans`), or None if
        attention crosses document boundaries.
        """
        config = self.config
        if self.embed_tokens is None:
            x, length = tokens, tokens.shape[1] * self.sequence_parts
        else:
            x, length = self.embed_tokens(tokens), tokens.shape[1]
        part, parts = self.context
        rotary = rotary_table(
            parts * length, config.head_dim, config.rope_theta, x.device, config.rope_scaling
        )
        cos, sin = (table[part * length : (part + 1) * length] for table in rotary)
        mask = mask_of(documents, x, parts * length, config.window, config.head_dim)
        for block in self.layers:
            x = block(x, cos, sin, mask)
        if self.norm is None:
            return x
        x = self.norm(x)
        score = partial(self._score, targets)
        if self.lm_head is None:
            return score(x, cast(nn.Embedding, self.embed_tokens).weight)
        return self.lm_head(x, score)

    def _score(self, targets: Tensor | None, x: Tensor, weight: Tensor) -> Any:
        """Compute the result of `forward` from the last hidden states and the output matrix."""
        if targets is None:
            return F.linear(x, weight)
        flat = (x.flatten(0, 1), weight, targets.flatten(), self.config.vocab_size)
        return linear_cross_entropy(*flat, chunk=LOSS_CHUNK, z_loss=self.z_loss, fuse=self.fuse_loss)


def initial_tensor(
    config: ModelConfig, seed: int, name: str, shape: torch.Size, device: torch.device, part: Any = ...
) -> Tensor:
    """Return the initial float32 value of a parameter, or of a part of it.

    The whole parameter depends on seed and name only, so every mesh starts from the same weights.
    """
    if name.endswith("norm.weight"):
        return torch.ones(shape, device=device)[part]
    if name.endswith(".bias"):
        return torch.zeros(shape, device=device)[part]
    # A generator for each parameter: its values do not depend on which others this rank creates before it.
    key = hashlib.blake2b(f"{seed}/{name}".encode(), digest_size=7).digest()
    generator = torch.Generator(device).manual_seed(int.from_bytes(key, "little"))
    into_residual = name.endswith(("o_proj.weight", "down_proj.weight"))
    std = 0.02 / math.sqrt(2 * config.layers) if into_residual else 0.02
    return (torch.randn(shape, generator=generator, device=device) * std)[part]
