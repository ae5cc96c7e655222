"""Sizes of a decoder: presets, TOML files, and the config.json of `transformers`, which is read and written here.

Input: the setting `model`. Output: a ModelConfig, and its parameters and FLOPs per token. Needs no torch, so recipes
can be checked without it.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from pretok.base.errors import IntegrityError, MismatchError, UsageError
from pretok.base.records import Count, Record, read_record, to_json
from pretok.base.storage import read_json


class Family(NamedTuple):
    """Models with one `model_type` of transformers."""

    architecture: str
    must: dict[str, Any]
    """Keys of config.json and the values they must have."""
    absent: dict[str, Any]
    """Values of keys that are absent."""
    qkv_bias: bool = False
    """As in ModelConfig."""
    qk_norm: bool = False
    """As in ModelConfig."""
    window: bool = False
    """Whether its sliding_window may be a number."""


_MUST = {"hidden_act": "silu", "attention_dropout": 0.0}
_ABSENT = {"rms_norm_eps": 1e-6, "tie_word_embeddings": False}
FAMILIES = {
    "llama": Family(
        "LlamaForCausalLM",
        _MUST | {"attention_bias": False, "mlp_bias": False},
        _ABSENT | {"max_position_embeddings": 2048},
    ),
    "mistral": Family(
        "MistralForCausalLM",
        _MUST,
        _ABSENT | {"sliding_window": 4096, "num_key_value_heads": 8, "max_position_embeddings": 131_072},
        window=True,
    ),
    "qwen2": Family(
        "Qwen2ForCausalLM",
        _MUST | {"use_sliding_window": False},
        _ABSENT | {"num_key_value_heads": 32, "max_position_embeddings": 32_768},
        qkv_bias=True,
    ),
    "qwen3": Family(
        "Qwen3ForCausalLM",
        _MUST | {"use_sliding_window": False, "attention_bias": False},
        _ABSENT | {"num_key_value_heads": 32, "head_dim": 128, "max_position_embeddings": 32_768},
        qk_norm=True,
    ),
}
"""What `Decoder` computes, by model_type; `read_config` and `transformers_config` both follow this table."""


class RopeScaling(Record, frozen=True, kw_only=True):
    """Scaling of the rotary positions as in Llama 3.1, with the keys of its config.json.

    Frequencies with a wavelength above original_max_position_embeddings / low_freq_factor are divided by factor. Those
    below original_max_position_embeddings / high_freq_factor stay the same. Between the two they are interpolated.
    """

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position_embeddings: Count


class ModelConfig(Record, frozen=True, kw_only=True):
    """Sizes of a decoder."""

    vocab_size: Count = 50_000
    """Of the tokenizer; matrices have `padded_vocab` rows."""
    dim: Count
    layers: Count
    heads: Count
    kv_heads: Count
    hidden: Count
    seq_len: Count = 4096
    tied: bool = True
    """The embedding is the output matrix."""
    rope_theta: float = 500_000.0
    norm_eps: float = 1e-5
    qk_norm: bool = False
    """RMSNorm of the queries and keys of each head before the rotary positions."""
    qkv_bias: bool = False
    """Biases of queries, keys and values."""
    head_dim: Count = 0
    """0 means dim / heads."""
    window: Count = 0
    """Tokens that attention sees, including the current one; 0 means all earlier ones."""
    rope_scaling: RopeScaling | None = None
    rows: Count = 0
    """Those of the matrices of a model that was made elsewhere, at least vocab_size."""
    family: str = ""
    """Of a model that was made elsewhere, a key of FAMILIES."""
    max_positions: Count = 0
    """The longest sequence that a model made elsewhere allows."""
    dtype: str = "float32"
    """Of the weights of a model that was made elsewhere."""

    def __post_init__(self) -> None:
        sizes = ("vocab_size", "dim", "layers", "heads", "kv_heads", "hidden", "seq_len")
        if none := [name for name in sizes if not getattr(self, name)]:
            raise UsageError(f"model: {none[0]} is 0; it must be more than 0")
        head_dim = self.head_dim or self.dim // self.heads
        if self.dim % (1 if self.head_dim else self.heads) or self.heads % self.kv_heads or head_dim % 2:
            raise UsageError(
                f"model: heads ({self.heads}) must divide dim ({self.dim}) into even parts, or head_dim must be even; "
                f"kv_heads ({self.kv_heads}) must divide heads"
            )
        if self.rows and self.rows < self.vocab_size:
            raise UsageError(
                f"model: its {self.rows} rows are fewer than the {self.vocab_size} ids of the vocabulary"
            )
        if not self.model_type:
            raise UsageError(
                f"model: qk_norm {self.qk_norm}, qkv_bias {self.qkv_bias} and window {self.window} together do not "
                f"exist as a {self.family or 'model'} of transformers"
            )
        msgspec.structs.force_setattr(self, "head_dim", head_dim)

    @property
    def model_type(self) -> str:
        """Its family: the one it came with, or the first of FAMILIES that computes it; '' if none does."""
        computed = (
            name
            for name, family in FAMILIES.items()
            if (family.qkv_bias, family.qk_norm) == (self.qkv_bias, self.qk_norm)
            and (family.window or not self.window)
        )
        return next((name for name in computed if self.family in ("", name)), "")

    @property
    def matrix_rows(self) -> int:
        """Rows of the embedding in an export: the vocabulary, and any further rows the model came with."""
        return max(self.rows, self.vocab_size)

    @property
    def padded_vocab(self) -> int:
        """Rows of the embedding in training, rounded up to a multiple of 128."""
        return -(-self.matrix_rows // 128) * 128

    @property
    def attention_dim(self) -> int:
        """Width of all queries of a token."""
        return self.heads * self.head_dim

    @property
    def kv_dim(self) -> int:
        """Width of all keys of a token; that of its values is the same."""
        return self.kv_heads * self.head_dim

    @property
    def block_parameters(self) -> int:
        """Parameters of one block."""
        biases = self.attention_dim + 2 * self.kv_dim if self.qkv_bias else 0
        return self.block_weights + 2 * self.dim + (2 * self.head_dim if self.qk_norm else 0) + biases

    @property
    def block_weights(self) -> int:
        """Parameters of a block that are in matrix products."""
        return self.dim * (2 * self.attention_dim + 2 * self.kv_dim + 3 * self.hidden)

    @property
    def parameters(self) -> int:
        """Parameters of the whole model, padding included."""
        matrices = self.padded_vocab * self.dim * (1 if self.tied else 2)
        return self.layers * self.block_parameters + self.dim + matrices

    def flops_per_token(self, seq_len: int) -> float:
        """Return training FLOPs per token: 6 per matrix weight plus 12 layers x attention_dim x seq_len for attention.

        Source: PaLM, appendix B. Attention counts as if it were not causal, and recomputation does not count. The
        lookup of embeddings multiplies nothing; the output matrix counts once, tied or not. With a window w a token
        sees w (1 - w / 2 seq_len) others on average, without one seq_len / 2. So twice the former takes the place of
        seq_len.
        """
        weights = self.layers * self.block_weights + self.padded_vocab * self.dim
        window = min(self.window or seq_len, seq_len)
        return 6.0 * weights + 12.0 * self.layers * self.attention_dim * window * (2 - window / seq_len)


LOSS_CHUNK = 4096
"""Tokens whose logits are in memory at a time."""
PRESETS = {
    "debug": ModelConfig(dim=128, layers=2, heads=4, kv_heads=2, hidden=384, seq_len=128),
    "160m": ModelConfig(dim=768, layers=12, heads=12, kv_heads=12, hidden=2048, seq_len=2048, tied=False),
    "1b": ModelConfig(dim=2048, layers=16, heads=16, kv_heads=8, hidden=8192),
    "3b": ModelConfig(dim=3072, layers=28, heads=24, kv_heads=8, hidden=8192),
    "italia-9b": ModelConfig(dim=4096, layers=40, heads=32, kv_heads=8, hidden=14_336, tied=False),
}


def model_config(name: str) -> ModelConfig:
    """Return the sizes that --model names: a preset, a TOML file, a model's folder or a checkpoint."""
    if name in PRESETS:
        return PRESETS[name]
    path = Path(name)
    if (path / CONFIG).is_file():
        return read_config(path / CONFIG)
    if (checkpoint := path / "meta.json").is_file():
        try:
            return read_record(ModelConfig, read_json(checkpoint)["identity"]["model"], checkpoint)
        except (KeyError, TypeError):
            raise IntegrityError(
                f"{checkpoint} lacks the sizes of its model; it was damaged or edited"
            ) from None
    if path.suffix != ".toml" or not path.exists():
        raise UsageError(
            f"--model {name} is not a preset ({', '.join(PRESETS)}), an existing .toml file, or a folder with a "
            f"{CONFIG} or a checkpoint"
        )
    try:
        return msgspec.convert(tomllib.loads(path.read_text(encoding="utf-8")), ModelConfig)
    except (OSError, ValueError, msgspec.ValidationError) as error:
        raise UsageError(f"{path}: {error}") from None


CONFIG = "config.json"
USUAL_LENGTH = 4096
"""Default sequence length of a model that allows longer ones."""
_SIZES = {
    "rows": "vocab_size",
    "dim": "hidden_size",
    "hidden": "intermediate_size",
    "layers": "num_hidden_layers",
    "heads": "num_attention_heads",
    "kv_heads": "num_key_value_heads",
    "head_dim": "head_dim",
    "max_positions": "max_position_embeddings",
    "norm_eps": "rms_norm_eps",
    "tied": "tie_word_embeddings",
}
"""Fields of ModelConfig -> their keys in config.json."""
_OTHER_KEYS = {
    "attention_chunk_size": None,
    "auto_map": None,
    "is_causal": True,
    "partial_rotary_factor": 1.0,
    "quantization_config": None,
}
"""Further keys that transformers reads for any model -> the value that `Decoder` needs."""


def read_config(path: Path) -> ModelConfig:
    """Read the sizes from the config.json of a transformers model.

    Raises MismatchError that names each key in which the model differs from what `Decoder` computes, IntegrityError if
    the file is not a config.json of transformers.
    """
    theirs = read_json(path)
    kind = theirs.get("model_type") if isinstance(theirs, dict) else None
    if kind is None:
        raise IntegrityError(f"{path} is not a config.json of transformers: it has no model_type")
    if kind not in FAMILIES:
        raise MismatchError(f"{path}: model_type is {kind}; train supports {', '.join(FAMILIES)}")
    family = FAMILIES[kind]
    config = family.absent | theirs
    # transformers derives these two from other keys if they are absent or null.
    config["num_key_value_heads"] = config.get("num_key_value_heads") or config.get("num_attention_heads")
    config["head_dim"] = config.get("head_dim") or 0
    wrong = [
        f"{key} is {config[key]!r}, not {value!r}"
        for key, value in (family.must | _OTHER_KEYS).items()
        if config.get(key) not in (None, value)
    ]
    if set(config.get("layer_types") or ()) - {"full_attention"}:
        wrong.append(f"layer_types is {config['layer_types']!r}")
    wrong += [f"{key} is missing" for key in _SIZES.values() if config.get(key) is None]
    rotary = config.get("rope_parameters") or config.get("rope_scaling") or {}
    rotary = {key: value for key, value in rotary.items() if (key, value) != ("partial_rotary_factor", 1)}
    stretch = {key: value for key, value in rotary.items() if key not in ("rope_type", "type", "rope_theta")}
    rope_type = rotary.get("rope_type", rotary.get("type", "default"))
    if rope_type in ("default", "linear") and stretch == {"factor": 1}:  # divides positions by 1
        rope_type, stretch = "default", {}
    if stretch.keys() != {"default": set(), "llama3": set(RopeScaling.__struct_fields__)}.get(rope_type):
        wrong.append(f"rope_scaling is {rotary!r}")
    theta = rotary.get("rope_theta", config.get("rope_theta", 10_000.0))
    if theta is None:
        wrong.append("rope_theta is null")
    dtype = config.get("dtype") or config.get("torch_dtype") or "float32"
    if dtype not in ("float32", "bfloat16", "float16"):
        wrong.append(f"dtype is {dtype}")
    if wrong:
        raise MismatchError(f"{path} describes a model that train does not support: {'; '.join(wrong)}")
    values = {ours: config[key] for ours, key in _SIZES.items()} | {
        "vocab_size": config["vocab_size"],
        "seq_len": min(USUAL_LENGTH, config["max_position_embeddings"]),
        "rope_theta": theta,
        "rope_scaling": stretch or None,
        "window": (config.get("sliding_window") or 0) if family.window else 0,
        "family": kind,
        "qkv_bias": family.qkv_bias,
        "qk_norm": family.qk_norm,
        "dtype": dtype,
    }
    return read_record(ModelConfig, values, path)


def transformers_config(model: ModelConfig, eod_id: int, bos_id: int | None = None) -> dict[str, Any]:
    """Return the config.json of `transformers` for the model's family.

    bos_id: None if documents have no BOS; the EOD of the previous document then takes its place.
    """
    family = FAMILIES[model.model_type]
    scaling = model.rope_scaling
    return {
        "architectures": [family.architecture],
        "model_type": model.model_type,
        **family.must,
        **{key: getattr(model, ours) for ours, key in _SIZES.items()},
        "vocab_size": model.matrix_rows,
        "max_position_embeddings": max(model.max_positions, model.seq_len),
        "rope_theta": model.rope_theta,
        "rope_scaling": None if scaling is None else {"rope_type": "llama3"} | to_json(scaling),
        **({"sliding_window": model.window or None} if family.window else {}),
        "bos_token_id": eod_id if bos_id is None else bos_id,
        "eos_token_id": eod_id,
        "torch_dtype": model.dtype,
    }
