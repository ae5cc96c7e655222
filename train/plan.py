"""`train plan`: estimate before a run whether it fits, how long it takes and what it costs.

Input: a model, a mesh, a batch, and the settings that affect memory. Output: the memory of the fullest rank, tensor by
tensor; the largest micro-batch that fits a device; time and disk space.
"""

from __future__ import annotations

import argparse
import json
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from pretok.base.errors import UsageError
from pretok.base.records import replace
from train.config import SCHEDULES, TrainConfig, add_flags, command_parser, parse, recomputed, whole_number
from train.model.sizes import LOSS_CHUNK, ModelConfig, model_config
from train.monitor import energy, energy_text
from train.parallel.devices import gigabytes_of, peak_of
from train.parallel.layout import (
    BatchSizes,
    Layout,
    bubble,
    bubble_over_ideal,
    check_pipeline,
    check_split,
    compiles,
    passes_held,
    solve_batch,
    solve_layout,
    split_layers,
    stages_of,
)

HEADROOM = 0.9
"""Fraction of a device's memory that a plan may fill; the rest is for the context, libraries and fragmentation."""


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes on one rank at the peak of a step."""

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
    """Return the (rows, columns) of the parameters of a block, and of those outside blocks, on one tensor rank.

    first, last: whether the rank holds the first, the last stage of the pipeline, or both.
    """
    dim, hidden, kv = model.dim, model.hidden // tensor, model.kv_dim // tensor
    heads = model.attention_dim // tensor
    block = [(heads, dim), (kv, dim), (kv, dim), (dim, heads), (hidden, dim), (hidden, dim), (dim, hidden)]
    block += [(dim, 1), (dim, 1)] + [(model.head_dim, 1)] * (2 if model.qk_norm else 0)
    block += [(heads, 1), (kv, 1), (kv, 1)] if model.qkv_bias else []
    matrices = first + (last and not model.tied)
    return block, [(model.padded_vocab // tensor, dim)] * matrices + [(dim, 1)] * last


def block_bytes_per_token(model: ModelConfig, tensor: int, width: int, compiled: bool) -> int:
    """Return the bytes of activations per token that a block keeps for its backward pass; width: bytes of a value.

    The parts are: residual and norm outputs twice, 4 x dim; q and the attention output; k, v; of the feed-forward gate,
    up and their product, and without compilation silu(gate); in float32 the attention's log-sum and the scales of two
    norms. Norms count as a GPU's fused kernel keeps them; those of queries and keys add their inputs and one scale per
    head. Tensor parallel ranks hold a part of each, except for the norms' outputs, which are gathered for the products
    and kept whole.
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
    """Return the bytes per token of a pass: kept by these blocks in `passes` passes, plus one block's recomputation.

    blocks: numbers of the blocks on this rank.
    """
    # Context parallel ranks keep the attention output twice: all tokens of some heads, and some tokens of all heads.
    twice = model.attention_dim * width // layout.tensor if layout.context > 1 else 0
    compiled = compiles(config, able=True)
    full = block_bytes_per_token(model, layout.tensor, width, compiled) + twice
    inputs = model.dim * width // layout.tensor
    # 'ops' keeps the outputs of attention and of every second product (k, o, up), the attention's log-sum and the
    # block's input.
    split = (model.attention_dim + model.kv_dim + model.hidden) * width + 4 * model.heads
    products = inputs + model.dim * width + split // layout.tensor
    kinds = [recomputed(config.checkpointing, block) for block in blocks]
    kept = sum({"none": full, "ops": products, "full": inputs}[kind] for kind in kinds)
    again = full if set(kinds) - {"none"} else 0
    # Outside blocks: the embedding, the final norm's output and its gradient.
    return passes * kept + again + inputs + 2 * model.dim * width


def count_tensors(
    model: ModelConfig, layout: Layout, micro_batch: int, accumulation: int, seq_len: int, config: TrainConfig
) -> Memory:
    """Count every tensor at the peak of a step, under the chosen sharding, checkpointing and loss, on the fullest rank.

    Without accumulation, gradients appear while activations are freed, so the peak is at one end of the backward pass:
    only the part of the gradients that exceeds the activations counts.
    """
    tokens = micro_batch * seq_len // layout.context
    ranks = [
        _count_rank(model, layout, rank, tokens, accumulation, config) for rank in range(layout.pipeline)
    ]
    # All ranks have the same device: the fullest decides.
    return max(ranks, key=lambda memory: memory.total)


def _count_rank(
    model: ModelConfig, layout: Layout, rank: int, tokens: int, accumulation: int, config: TrainConfig
) -> Memory:
    """Count the tensors of one rank of a pipeline; tokens: tokens per pass."""
    width = 4 if config.precision == "fp32" else 2
    piped = layout.pipeline > 1
    stages = stages_of(config, rank)
    parts = split_layers(model, layout.pipeline * len(stages))
    numbers = [number for stage in stages for number in parts[stage]]
    blocks, last = len(numbers), len(parts) - 1 in stages
    block, root = _shapes(model, layout.tensor, first=rank == 0, last=last)

    def values(shapes: list[tuple[int, int]], ranks: int = 1) -> int:
        """Return the values that one of the ranks holds if they divide the rows."""
        return sum(-(-rows // ranks) * columns for rows, columns in shapes)

    own = blocks * values(block, layout.shard) + values(root, layout.shard)
    whole = blocks * values(block) + values(root)
    # Gathered at a time: with resharding the current block, the next one and the output matrix; without it everything.
    frees = config.reshard and not piped
    ends = root[1:] if frees and not model.tied else root
    gathered = width * (values(ends) + (2 if frees else blocks) * values(block))
    # Gradients of one block in the precision of the passes, and the float32 input of their reduce-scatter.
    gathered += (width + 4) * values(block)
    passes = passes_held(config, accumulation, rank) if piped else 1
    activations = int(tokens * _activations(model, config, layout, numbers, passes, width))
    if piped:  # torch keeps receive buffers of every micro-batch for both neighbours of a stage
        activations += tokens * 2 * len(stages) * accumulation * model.dim * width // layout.tensor
    gradients = 4 * own
    if piped:
        gradients += 4 * whole
    elif accumulation == 1:
        gradients = max(0, gradients - activations)
    chunk = min(LOSS_CHUNK, tokens)
    vocabulary = model.padded_vocab // layout.tensor
    # Logits and their gradient in the precision of the passes, logits twice in float32; the gradient of the matrix in
    # float32 and in that precision.
    loss = chunk * vocabulary * (2 * width + 8) + vocabulary * model.dim * (4 + width)
    matrices = [(rows, columns) for rows, columns in block if columns > 1] * (config.optimizer == "muon")
    optimizer = 8 * own - 4 * blocks * values(matrices, layout.shard)  # Muon has one moment
    held = (4 * own, gradients, optimizer)
    if config.offload:  # of gradients a pipeline keeps whole ones until the end of a step
        held = (0, 4 * whole if piped else 0, 0)
    return Memory(*held, gathered, activations, loss if last else 0)


def largest_micro_batch(
    model: ModelConfig, layout: Layout, accumulation: int, seq_len: int, config: TrainConfig, gigabytes: float
) -> int:
    """Return the largest micro-batch that stays under HEADROOM of a device; 0 if none does."""

    def too_large(size: int) -> bool:
        count = count_tensors(model, layout, size, accumulation, seq_len, config)
        return count.total > HEADROOM * gigabytes * 1e9

    # Memory grows with the micro-batch, so the border can be found by halving.
    return bisect_left(range(1, 1 << 20), True, key=too_large)


GIB = 2**30


def thumb_bytes(model: ModelConfig, tokens: int) -> dict[str, int]:
    """Return the bytes of the rule of thumb, for a model that is not sharded, in float32.

    Parameters x 4 bytes; AdamW 3 x (gradients and two moments); batch x length x width x bytes in each block; a tenth
    of all that as overhead. tokens: those of a micro-batch.
    """
    parts = {
        "parameters": 4 * model.parameters,
        "gradients": 4 * model.parameters,
        "optimizer": 8 * model.parameters,
        "activations": 4 * tokens * model.dim * model.layers,
    }
    return parts | {"overhead": sum(parts.values()) // 10}


NAMES: dict[str, tuple[bool, bool]] = {
    "DDP": (False, True),
    "ZeRO-1, ZeRO-2": (True, False),
    "ZeRO-3": (True, True),
    "hybrid": (False, True),
}
"""How others call ways to shard: over all ranks or not, parameters freed after each use or not."""


def bytes_by_name(
    model: ModelConfig, layout: Layout, batch: BatchSizes, seq_len: int, config: TrainConfig, per_node: int
) -> dict[str, int]:
    """Return the bytes on one rank for each of NAMES; a hybrid shards inside of nodes of `per_node` devices."""
    found, ranks = {}, layout.replicate * layout.shard
    for name, (everywhere, reshard) in NAMES.items():
        inside = solve_layout(ranks * layout.tensor, per_node, None, layout.tensor, 1, layout.context).shard
        shard = inside if name == "hybrid" else 1
        if everywhere:
            shard = ranks
        split = replace(layout, replicate=ranks // shard, shard=shard)
        settings = replace(config, reshard=reshard)
        found[name] = count_tensors(
            model, split, batch.micro_batch, batch.accumulation, seq_len, settings
        ).total
    return found


def plan_figures(config: TrainConfig, space: argparse.Namespace) -> dict[str, Any]:
    """Compute all figures of `train plan` as JSON values; None where an input is missing.

    fits: whether the count stays under HEADROOM of the device. If not, no time is given.
    """
    model = model_config(config.sizes)
    if space.vocab_size:  # the shards, which have the real one, may not exist yet
        model = replace(model, vocab_size=space.vocab_size)
    seq_len = config.seq_len or model.seq_len
    ranks = space.nodes * space.devices_per_node
    layout = solve_layout(
        ranks, space.devices_per_node, config.shard, config.tensor, config.pipeline, config.context
    )
    batch = solve_batch(layout.data_ranks, config.global_batch, config.micro_batch)
    check_split(config, model, seq_len)
    check_pipeline(config, model, batch)
    per_step = batch.global_batch * seq_len
    steps = config.steps if config.tokens is None else config.tokens // per_step
    peak, source = (space.peak * 1e12, "given") if space.peak else peak_of(space.device)
    count = count_tensors(model, layout, batch.micro_batch, batch.accumulation, seq_len, config)
    gigabytes = space.memory or gigabytes_of(space.device)
    fits = None if gigabytes is None else count.total <= HEADROOM * gigabytes * 1e9
    seconds = hours = None
    if peak is not None and space.mfu is not None and fits is not False:
        seconds = per_step * model.flops_per_token(seq_len) / (space.mfu * peak * ranks)
        hours = seconds * steps / 3600 if steps is not None else None
    saved = 12 * model.parameters  # the weights and two moments in float32
    if config.optimizer == "muon":
        saved -= 4 * model.layers * model.block_weights
    kept = config.keep_last + config.keep_best + ((steps or 0) // config.milestone if config.milestone else 0)
    at_home = count_tensors(
        model, layout, batch.micro_batch, batch.accumulation, seq_len, replace(config, offload=False)
    )
    largest = None
    if gigabytes is not None:
        largest = largest_micro_batch(model, layout, batch.accumulation, seq_len, config, gigabytes)
    return {
        "parameters": model.parameters,
        "layout": asdict(layout),
        "batch": asdict(batch),
        "bubble": bubble(config, batch.accumulation),
        "bubble_over_ideal": bubble_over_ideal(config, batch.accumulation),
        "bubble_over_ideal_of": {
            name: bubble_over_ideal(replace(config, pipeline_schedule=name), batch.accumulation)
            for name in SCHEDULES
        },
        "steps": steps,
        "count": asdict(count),
        "bytes_by_name": bytes_by_name(model, layout, batch, seq_len, config, space.devices_per_node),
        "host_bytes": 2 * at_home.parameters + at_home.optimizer if config.offload else 0,
        "device_gigabytes": gigabytes,
        "fits": fits,
        "largest_micro_batch": largest,
        "peak_flops": peak,
        "peak_source": source,
        "step_seconds": seconds,
        "hours": hours,
        "thumb": thumb_bytes(model, batch.micro_batch * seq_len),
        **energy(hours and config.watts and hours * ranks * config.watts / 1e6, config),
        "node_hours": hours * space.nodes if hours is not None else None,
        "checkpoint_bytes": saved,
        "quota_bytes": saved * (kept + 1),
    }


def _gib(parts: dict[str, int], part: str) -> str:
    return f"{parts[part] / GIB:.2f}" if part in parts else ""


def render(plan: dict[str, Any]) -> str:
    """Return the figures as text."""

    def number(value: float | None, unit: str, digits: int = 1) -> str:
        return "n/a" if value is None else f"{value:,.{digits}f} {unit}"

    layout, count, peak = plan["layout"], plan["count"], plan["peak_flops"]
    need, size = sum(count.values()), plan["device_gigabytes"]
    exact, thumb = (parts | {"total": sum(parts.values())} for parts in (count, plan["thumb"]))
    if size is None:
        verdict = "fits: unknown, because the memory of the device is not known; give --memory in GB"
    else:
        limit = f"{HEADROOM * size * 1e9 / GIB:.1f} GiB are {HEADROOM:.0%} of {size:g} GB"
        figures = (
            f"{need / GIB:.1f} GiB counted, {limit}; the largest micro-batch is {plan['largest_micro_batch']}"
        )
        verdict = f"fits: {figures}" if plan["fits"] else f"DOES NOT FIT: {figures}.\n{REMEDY}"
    return "\n".join(
        [
            f"{plan['parameters']:,} parameters; {layout['replicate']} replicas x {layout['shard']} shards x "
            f"{layout['tensor']} tensor parallel x {layout['pipeline']} pipeline"
            + (f", {layout['context']} ranks share each sequence" if layout["context"] > 1 else ""),
            f"global batch {BatchSizes(**plan['batch'])}",
            f"bubble: devices wait for other stages {plan['bubble']:.1%} of each step, "
            f"{plan['bubble_over_ideal']:.1%} over its ideal time ("
            + ", ".join(f"{name} {over:.1%}" for name, over in plan["bubble_over_ideal_of"].items())
            + ")",
            f"\n{'GiB on one device':<20}{'exact':>15}{'rule of thumb':>15}",
            *(
                f"{part:<20}"
                + "".join(f"{gib:>15}" for gib in (_gib(exact, part), _gib(thumb, part))).rstrip()
                for part in (
                    "parameters",
                    "gradients",
                    "optimizer",
                    "gathered",
                    "activations",
                    "loss",
                    "overhead",
                    "total",
                )
            ),
            "The rule of thumb: the whole model on one device, AdamW 3 x its parameters, batch x length x width x "
            "layers, a tenth of overhead.",
            "in GiB by name: "
            + "; ".join(f"{name} {size / GIB:.2f}" for name, size in plan["bytes_by_name"].items()),
            *(
                [f"host memory: {plan['host_bytes'] / GIB:.1f} GiB for each device (--offload)"]
                if plan["host_bytes"]
                else []
            ),
            f"\n{verdict}\n",
            f"peak: {number(peak and peak / 1e12, 'TFLOP/s')} ({plan['peak_source']})",
            f"step: {number(plan['step_seconds'], 's', 3)}; steps: {plan['steps'] or 'n/a'}; "
            f"run: {number(plan['hours'], 'h')}; {number(plan['node_hours'], 'node-hours')}",
            energy_text([plan]) or "energy: n/a; give --watts, --pue and --carbon",
            f"checkpoint: {plan['checkpoint_bytes'] / 1e9:.1f} GB; quota for those kept and one being written: "
            f"{plan['quota_bytes'] / 1e9:.1f} GB",
        ]
    )


REMEDY = """Lower --micro-batch, recompute with --checkpointing ops, 0.5 or full, or spread the parameters over more
devices with --shard. No time is given for a run that does not fit."""


EXAMPLES = """  train plan --model italia-9b --nodes 64 --devices-per-node 4 --mfu 0.4 --tokens 1.2T \\
      --device A100-SXM-64GB --global-batch 1024 --micro-batch 4 --checkpointing full"""


def main(arguments: Sequence[str]) -> None:
    """Run `train plan`."""
    description = "Estimate the memory, time and disk space of a run; needs no data and no GPU."
    parser = command_parser("train plan", description, EXAMPLES)
    add_flags(parser)
    for name, kind, default, text in (
        ("vocab-size", whole_number, None, "size of the vocabulary (default: the model file's, or 50,000)"),
        ("nodes", whole_number, 1, "number of nodes (default: 1)"),
        ("devices-per-node", whole_number, 1, "GPUs per node (default: 1)"),
        ("device", str, "", "name of the device, or a part of it, for its peak: H100, A100, MI250X, ..."),
        ("peak", float, None, "peak of one device in dense bf16 TFLOP/s (default: by its name)"),
        ("memory", float, None, "memory of one device in GB (default: by its name)"),
        ("mfu", float, None, "expected fraction of the peak, for example 0.45"),
    ):
        parser.add_argument(f"--{name}", type=kind, default=default, help=text)
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    config, space = parse(parser, arguments)
    if space.device and space.peak and space.memory:
        raise UsageError("--device: nothing reads it beside --peak and --memory; leave it out")
    plan = plan_figures(config, space)
    print(json.dumps(plan, indent=1) if space.json else render(plan))
