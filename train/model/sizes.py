"""Sizes of a decoder: presets by name, or a TOML file. Without torch, so that a recipe is checked where there is none.

Input: the setting `model`. Output: a ModelConfig, and what follows from it: parameters, FLOPs per token.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any, get_type_hints

from pretok.base.errors import UsageError
from pretok.base.records import Count, Record


class ModelConfig(Record, frozen=True, kw_only=True):
    """Sizes of a decoder. `vocab_size` is the tokenizer's; matrices have `padded_vocab` rows. qk_norm: RMSNorm of every
    head's queries and keys before the rotary positions."""

    vocab_size: Count = 50_000
    dim: Count
    layers: Count
    heads: Count
    kv_heads: Count
    hidden: Count
    seq_len: Count = 4096
    tied: bool = True
    rope_theta: float = 500_000.0
    norm_eps: float = 1e-5
    qk_norm: bool = False

    def __post_init__(self) -> None:
        if self.dim % self.heads or self.heads % self.kv_heads or (self.dim // self.heads) % 2:
            raise UsageError(
                f"model: heads ({self.heads}) must divide dim ({self.dim}) into even parts, "
                f"and kv_heads ({self.kv_heads}) must divide heads"
            )

    @property
    def head_dim(self) -> int:
        """Width of one attention head."""
        return self.dim // self.heads

    @property
    def padded_vocab(self) -> int:
        """Rows of the embedding: the vocabulary rounded up to a multiple of 128."""
        return -(-self.vocab_size // 128) * 128

    @property
    def block_parameters(self) -> int:
        """Parameters of one block."""
        return self.block_weights + 2 * self.dim + (2 * self.head_dim if self.qk_norm else 0)

    @property
    def block_weights(self) -> int:
        """Those of a block's matrix products."""
        attention = 2 * self.dim * self.dim + 2 * self.dim * self.kv_heads * self.head_dim
        return attention + 3 * self.dim * self.hidden

    @property
    def parameters(self) -> int:
        """Parameters of the whole model, padding included."""
        return (
            self.layers * self.block_parameters
            + self.dim
            + self.padded_vocab * self.dim * (1 if self.tied else 2)
        )

    def flops_per_token(self, seq_len: int) -> float:
        """Training FLOPs per token: 6 per weight of a matrix product plus 12 layers x dim x seq_len of
        attention.

        Source: PaLM, appendix B: attention counted whole, as if not causal; recomputation not counted. The
        lookup of embeddings multiplies nothing; the output matrix counts once, tied or not.
        """
        weights = self.layers * self.block_weights + self.padded_vocab * self.dim
        return 6.0 * weights + 12.0 * self.layers * self.dim * seq_len


# "3m" and "10m", for `train compare`, are named after their blocks: the vocabulary is what is compared.
PRESETS = {
    "debug": ModelConfig(dim=128, layers=2, heads=4, kv_heads=2, hidden=384, seq_len=128),
    "3m": ModelConfig(dim=192, layers=7, heads=3, kv_heads=3, hidden=512, seq_len=512),
    "10m": ModelConfig(dim=320, layers=8, heads=5, kv_heads=5, hidden=896, seq_len=512),
    "160m": ModelConfig(dim=768, layers=12, heads=12, kv_heads=12, hidden=2048, seq_len=2048, tied=False),
    "1b": ModelConfig(dim=2048, layers=16, heads=16, kv_heads=8, hidden=8192),
    "3b": ModelConfig(dim=3072, layers=28, heads=24, kv_heads=8, hidden=8192),
    "italia-9b": ModelConfig(dim=4096, layers=40, heads=32, kv_heads=8, hidden=14_336, tied=False),
}


def model_config(name: str) -> ModelConfig:
    """A preset by name, or the sizes in a TOML file of ModelConfig's fields."""
    if name in PRESETS:
        return PRESETS[name]
    path = Path(name)
    if path.suffix != ".toml" or not path.exists():
        raise UsageError(
            f"--model {name}: neither a preset ({', '.join(PRESETS)}) nor an existing .toml file"
        )
    try:
        values: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"{path} is not TOML: {error}") from None
    kinds = get_type_hints(ModelConfig)
    if unknown := set(values) - set(kinds):
        raise UsageError(f"{path}: unknown model keys {sorted(unknown)}")
    for key, value in values.items():
        kind = kinds[key]
        if type(value) is not kind and not (kind is float and type(value) is int):
            raise UsageError(f"{path}: {key} is {value!r}; it must be of type {kind.__name__}")
        if kind is not bool and value <= 0:
            raise UsageError(f"{path}: {key} is {value}; it must be more than 0")
    try:
        return ModelConfig(**{key: kinds[key](value) for key, value in values.items()})
    except TypeError as error:
        raise UsageError(f"{path}: {error}") from None
