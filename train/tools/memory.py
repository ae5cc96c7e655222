"""How much of a device's memory a run takes.

Input: a model, a mesh, a batch, the settings that change memory. Output: a count of every tensor on the fullest rank,
and the micro-batch that fits a device.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from train.config import TrainConfig, recomputed
from train.model.sizes import LOSS_CHUNK, ModelConfig
from train.parallel.layout import Layout, compiles, passes_in_memory, split_layers, stages_per_rank

HEADROOM = 0.9
"""Part of a device's memory that a plan fills: the rest is for the context, the libraries and fragmentation."""


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes on one rank at the highest point of a step."""

    parameters: int
    gradients: int
    optimizer: int
    gathered: int
    activations: int
    loss: int

    @property
    def total(self) -> int:
        """Sum of the parts."""
        return sum(asdict(self).values())


def _shapes(
    model: ModelConfig, tensor: int, *, first: bool, last: bool
) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """(rows, columns) of the parameters of a block and of the root on one tensor-parallel rank, of the first stage, the
    last or both."""
    dim, hidden, kv = model.dim, model.hidden // tensor, model.kv_dim // tensor
    heads = model.attention_dim // tensor
    block = [(heads, dim), (kv, dim), (kv, dim), (dim, heads), (hidden, dim), (hidden, dim), (dim, hidden)]
    block += [(dim, 1), (dim, 1)] + [(model.head_dim, 1)] * (2 if model.qk_norm else 0)
    block += [(heads, 1), (kv, 1), (kv, 1)] if model.qkv_bias else []
    matrices = first + (last and not model.tied)
    return block, [(model.padded_vocab // tensor, dim)] * matrices + [(dim, 1)] * last


def block_bytes_per_token(model: ModelConfig, tensor: int, width: int, compiled: bool) -> int:
    """Bytes of activations that a block keeps for its backward pass, per token; width: bytes of a value.

    Residual and norm output twice: 4 x dim; q, attention output; k, v; feed-forward: gate, up, their product,
    and eagerly silu(gate) too; float32: the attention's log-sum and two norms' scales. Norms are counted as
    the fused kernel of a GPU keeps them: those of queries and keys keep these, and a scale for each head.
    Tensor ranks have a part each but of the norms' outputs, which products keep as they were gathered for them.
    """
    dim, wide, kv = model.dim, model.attention_dim, model.kv_dim
    whole = 2 * dim * width
    split = (
        (2 * dim + 2 * wide + 2 * kv + (3 if compiled else 4) * model.hidden) * width + 4 * model.heads + 8
    )
    if model.qk_norm:
        split += (wide + kv) * width + 4 * (model.heads + model.kv_heads)
    return whole + split // tensor


def _activations(
    model: ModelConfig, config: TrainConfig, layout: Layout, blocks: Sequence[int], passes: float, width: int
) -> float:
    """Bytes for each token of a pass: kept by blocks of these numbers in `passes` passes, and what one block makes
    again while its backward pass runs."""
    # What attention gives is kept with all tokens of some heads, and again with some tokens of all heads.
    twice = model.attention_dim * width // layout.tensor if layout.context > 1 else 0
    compiled = compiles(config, model, able=True)
    full = block_bytes_per_token(model, layout.tensor, width, compiled) + twice
    inputs = model.dim * width // layout.tensor
    # Of `ops` every product's output, the attention's log-sum and the block's input.
    split = (2 * model.attention_dim + 2 * model.kv_dim + 2 * model.hidden) * width + 4 * model.heads
    products = inputs + 2 * model.dim * width + split // layout.tensor
    kinds = [recomputed(config.checkpointing, block) for block in blocks]
    kept = sum({"none": full, "ops": products, "full": inputs}[kind] for kind in kinds)
    again = full if set(kinds) - {"none"} else 0
    # Outside blocks: the embedding, the final norm's output and its gradient.
    return passes * kept + again + inputs + 2 * model.dim * width


def count_tensors(
    model: ModelConfig, layout: Layout, micro_batch: int, accumulation: int, seq_len: int, config: TrainConfig
) -> Memory:
    """Every tensor at the highest point of a step, under the chosen sharding, checkpointing and loss.

    Without accumulation gradients appear while activations go, so the highest point is one end of the
    backward pass: what gradients take beyond the activations' place is counted. Bytes on the fullest rank.
    """
    ranks = [
        _count_rank(model, layout, rank, micro_batch * seq_len // layout.context, accumulation, config)
        for rank in range(layout.pipeline)
    ]
    return max(ranks, key=lambda memory: memory.total)


def _count_rank(
    model: ModelConfig, layout: Layout, rank: int, tokens: int, accumulation: int, config: TrainConfig
) -> Memory:
    """The same for one rank of a pipeline; tokens: of a pass."""
    width = 4 if config.precision == "fp32" else 2
    piped, parts = layout.pipeline > 1, stages_per_rank(config)
    block, root = _shapes(model, layout.tensor, first=rank == 0, last=rank == layout.pipeline - 1)
    stages = split_layers(model, layout.pipeline * parts)[rank :: layout.pipeline]
    numbers = [number for stage in stages for number in stage]
    blocks = len(numbers)

    def shard_size(shapes: list[tuple[int, int]]) -> int:
        return sum(-(-rows // layout.shard) * columns for rows, columns in shapes)

    def whole_size(shapes: list[tuple[int, int]]) -> int:
        return sum(rows * columns for rows, columns in shapes)

    own = blocks * shard_size(block) + shard_size(root)
    whole = blocks * whole_size(block) + whole_size(root)
    # Of the blocks the one at work and the next, of embedding and output matrix the latter, or all without resharding.
    frees = config.reshard and not piped
    ends = root[1:] if frees and not model.tied else root
    gathered = width * (whole_size(ends) + (2 if frees else blocks) * whole_size(block))
    # Gradients of one block in the pass's width, and the reduce-scatter's input in its own.
    gathered += (width + 4) * whole_size(block)
    passes = passes_in_memory(config, rank, accumulation) / parts if piped else 1
    activations = int(tokens * _activations(model, config, layout, numbers, passes, width))
    if piped:  # torch keeps a place for what each micro-batch brings from either side to a stage
        activations += tokens * 2 * parts * accumulation * model.dim * width // layout.tensor
    gradients = 4 * own
    if piped:
        gradients += 4 * whole
    elif accumulation == 1:
        gradients = max(0, gradients - activations)
    chunk = min(LOSS_CHUNK, tokens)
    vocabulary = model.padded_vocab // layout.tensor
    # Logits in the pass's width, twice in float32, their gradient; the matrix's gradient in float32 and that
    # width.
    loss = chunk * vocabulary * (2 * width + 8) + vocabulary * model.dim * (4 + width)
    last = rank == layout.pipeline - 1
    return Memory(4 * own, gradients, 8 * own, gathered, activations, loss if last else 0)


def largest_micro_batch(
    model: ModelConfig, layout: Layout, accumulation: int, seq_len: int, config: TrainConfig, gigabytes: float
) -> int:
    """The largest micro-batch whose count stays under HEADROOM of a device; 0 when none does."""
    limit = HEADROOM * gigabytes * 1e9

    def fits(size: int) -> bool:
        return count_tensors(model, layout, size, accumulation, seq_len, config).total <= limit

    if not fits(1):
        return 0
    size = 1
    while fits(2 * size):
        size *= 2
    step = size // 2
    while step:
        size, step = (size + step if fits(size + step) else size), step // 2
    return size
