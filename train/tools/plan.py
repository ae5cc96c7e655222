"""Before the run: does it fit, how long will it take, what will it cost.

Input: a model, a mesh, a batch, the settings that change memory. Output: the memory of the fullest rank, tensor by
tensor, which micro-batch fits which device, time, energy and carbon dioxide.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from pretok.base.records import replace
from train.config import TrainConfig, add_flags, parse, whole_number
from train.model.sizes import ModelConfig, model_config
from train.parallel.devices import peak_of
from train.parallel.layout import PARTS, bubble, check_pipeline, check_split, solve_batch, solve_layout
from train.run.setup import checkpoint_bytes
from train.tools.memory import HEADROOM, count_tensors, largest_micro_batch

GIB = 2**30
DEVICE_GB = (40, 64, 80, 141)
_MEMORY = (("GH200", 96), ("H200", 141), ("H100 NVL", 94), ("H100", 80), ("MI250X", 64))
"""(part of the device's name, GB of one device), where the name does not say it and there is one answer."""


def device_gigabytes(name: str) -> float | None:
    """Memory of a device by name ('A100-SXM-64GB' says it itself); None when unknown."""
    if stated := re.search(r"(\d+) ?GB", name):
        return float(stated[1])
    return next((float(size) for part, size in _MEMORY if part in name), None)


def _model(config: TrainConfig, space: argparse.Namespace) -> ModelConfig:
    """The model with as many entries as the tokenizer has, as the run takes them from its shards."""
    model = model_config(config.sizes)
    return replace(model, vocab_size=space.vocab_size) if space.vocab_size else model


def plan_figures(config: TrainConfig, space: argparse.Namespace) -> dict[str, Any]:
    """All figures of `train plan`, as JSON values; None where something needed is not given.

    fits: whether the count stays under HEADROOM of the device; when it does not, the run cannot be and has no time,
    energy or emissions.
    """
    model = _model(config, space)
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
    args = (model, layout, batch.accumulation, seq_len, config)
    count = count_tensors(model, layout, batch.micro_batch, batch.accumulation, seq_len, config)
    gigabytes = space.memory or device_gigabytes(space.device)
    fits = None if gigabytes is None else count.total <= HEADROOM * gigabytes * 1e9
    step_seconds = None
    if peak is not None and space.mfu is not None and fits is not False:
        step_seconds = per_step * model.flops_per_token(seq_len) / (space.mfu * peak * ranks)
    hours = step_seconds * steps / 3600 if step_seconds is not None and steps is not None else None
    energy = hours * space.nodes * space.node_kw * space.pue if hours is not None and space.node_kw else None
    checkpoint = checkpoint_bytes(model)
    return {
        "parameters": model.parameters,
        "layout": asdict(layout),
        "batch": asdict(batch),
        "bubble": bubble(config, batch.accumulation),
        "bubble_interleaved": bubble(replace(config, pipeline_schedule="interleaved"), batch.accumulation),
        "steps": steps,
        "count": asdict(count),
        "device_gigabytes": gigabytes,
        "fits": fits,
        "micro_batch_that_fits": {gb: largest_micro_batch(*args, gb) for gb in DEVICE_GB},
        "peak_flops": peak,
        "peak_source": source,
        "step_seconds": step_seconds,
        "hours": hours,
        "node_hours": hours * space.nodes if hours is not None else None,
        "energy_kwh": energy,
        "co2_kg": energy * space.grid if energy is not None and space.grid is not None else None,
        "checkpoint_bytes": checkpoint,
        "quota_bytes": checkpoint * (config.keep_last + config.keep_best + 1),
    }


def render(plan: dict[str, Any]) -> str:
    """The figures as text."""

    def number(value: float | None, unit: str, digits: int = 1) -> str:
        return "n/a" if value is None else f"{value:,.{digits}f} {unit}"

    batch, layout = plan["batch"], plan["layout"]
    lines = [
        f"{plan['parameters']:,} parameters; {layout['replicate']} replicas x {layout['shard']} shards x "
        f"{layout['tensor']} tensor parallel x {layout['pipeline']} pipeline"
        + (f", {layout['context']} shards share each sequence" if layout["context"] > 1 else ""),
        f"global batch {batch['global_batch']} = micro-batch {batch['micro_batch']} x accumulation "
        f"{batch['accumulation']} x {batch['ranks']} data-parallel ranks",
        *_waiting(plan),
        "",
        f"{'GiB on one device':<20}",
    ]
    parts = plan["count"] | {"total": sum(plan["count"].values())}
    lines += [*(f"{part:<20}{size / GIB:>15.2f}" for part, size in parts.items()), ""]
    fits = plan["micro_batch_that_fits"]
    lines += [f"largest micro-batch, {HEADROOM:.0%} of memory used:"]
    lines += ["  " + ", ".join(f"{gb} GB: {size or 'none'}" for gb, size in fits.items()), ""]
    lines += [*_verdict(plan), ""]
    peak = plan["peak_flops"]
    lines += [
        f"peak: {number(peak / 1e12 if peak else None, 'TFLOP/s')} ({plan['peak_source']})",
        f"step: {number(plan['step_seconds'], 's', 3)}; steps: {plan['steps'] or 'n/a'}; "
        f"run: {number(plan['hours'], 'h')}; {number(plan['node_hours'], 'node-hours')}",
        f"energy: {number(plan['energy_kwh'], 'kWh')}; CO2: {number(plan['co2_kg'], 'kg')}",
        f"checkpoint: {plan['checkpoint_bytes'] / 1e9:.1f} GB; quota for those kept and one in work: "
        f"{plan['quota_bytes'] / 1e9:.1f} GB",
    ]
    return "\n".join(lines)


def _waiting(plan: dict[str, Any]) -> list[str]:
    """What a pipeline costs and what interleaving would save."""
    if plan["layout"]["pipeline"] == 1:
        return []
    now, interleaved = plan["bubble"], plan["bubble_interleaved"]
    saved = f"; interleaved with {PARTS} stages a rank: {interleaved:.1%}" if interleaved < now else ""
    return [f"bubble: devices wait {now:.1%} of a step for other stages{saved}"]


def _verdict(plan: dict[str, Any]) -> list[str]:
    """Whether the run fits its device, and what to change when it does not."""
    size, need = plan["device_gigabytes"], sum(plan["count"].values())
    if size is None:
        return ["does it fit? n/a: the memory of the device is not known; give --memory in GB"]
    usable = HEADROOM * size * 1e9
    figures = f"{need / GIB:.1f} GiB counted, {usable / GIB:.1f} GiB are {HEADROOM:.0%} of {size:.0f} GB"
    if plan["fits"]:
        return [f"fits: {figures}"]
    return [
        f"DOES NOT FIT: {figures}.",
        "Lower --micro-batch, recompute with --checkpointing ops, 0.5 or full, or spread the parameters over more "
        "devices with --shard.",
        "Time and energy of a run that cannot be are not given.",
    ]


def main(arguments: Sequence[str]) -> None:
    """`train plan`."""
    parser = argparse.ArgumentParser(
        prog="train plan",
        description="Memory, time, energy and disk of a run, before it; needs no data and no GPU.",
        epilog="example:\n  train plan --model italia-9b --nodes 64 --devices-per-node 4 --mfu 0.4 \\\n"
        "      --device A100-SXM-64GB --global-batch 1024 --micro-batch 4 --checkpointing full \\\n"
        "      --tokens 1.2T --node-kw 2.2 --pue 1.1 --grid 0.25",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add_flags(parser)
    parser.add_argument(
        "--vocab-size",
        type=whole_number,
        help="entries of the tokenizer (default: those of the model's file, or 50,000)",
    )
    parser.add_argument("--nodes", type=whole_number, default=1)
    parser.add_argument("--devices-per-node", type=whole_number, default=1)
    parser.add_argument(
        "--device", default="", help="part of the device's name, for its peak: H100, A100, MI250X, ..."
    )
    parser.add_argument("--peak", type=float, help="peak of one device in dense bf16 TFLOP/s, instead")
    parser.add_argument("--memory", type=float, help="memory of one device in GB (default: by its name)")
    parser.add_argument("--mfu", type=float, help="part of the peak expected, for example 0.45")
    parser.add_argument("--node-kw", type=float, help="power of one node in kW")
    parser.add_argument(
        "--pue", type=float, default=1.0, help="power usage effectiveness of the centre (default: 1)"
    )
    parser.add_argument("--grid", type=float, help="carbon intensity in kg CO2 per kWh")
    parser.add_argument("--json", action="store_true", help="the figures as JSON")
    config, space = parse(parser, arguments)
    plan = plan_figures(config, space)
    text = json.dumps(plan, indent=1) if space.json else render(plan)
    sys.stdout.write(text + "\n")
