"""From settings to something that can be trained: the view, the sizes, the split and filled model, the
optimizer.

Enters: a TrainConfig inside a process group. Leaves: a Trainee and the View it learns from, and the facts of
the run that a checkpoint must agree with to be resumed.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

import pretok.stream
from pretok.base.errors import MismatchError, UsageError
from pretok.stream import View
from train.checkpoint.export import exported_tensors
from train.checkpoint.save import load_weights
from train.checkpoint.saved import complete_checkpoints
from train.config import Batch, TrainConfig, solve_batch
from train.model.sizes import ModelConfig, model_config
from train.model.transformer import Decoder, attention_kernel, initial_tensor
from train.parallel.devices import Device
from train.parallel.mesh import Layout, build_mesh, materialize, parallelize, pass_dtype, solve_layout
from train.steps.optim import Guard, NormGroups, build_optimizer, learning_rate
from train.steps.step import Trainee

OPTIMIZER_BYTES = 12
"""Bytes of a checkpoint per parameter: the weight and two moments in float32."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The solved sizes of a run. `steps` is its whole length, resumed parts included."""

    config: TrainConfig
    view: View
    model: ModelConfig
    layout: Layout
    batch: Batch
    steps: int

    def identity(self) -> dict[str, Any]:
        """What a checkpoint and a run that resumes it must have in common."""
        sizes = {name: getattr(self.model, name) for name in self.model.__slots__}
        return {
            "model": sizes,
            "global_batch": self.batch.global_batch,
            "seed": self.config.seed,
            "stream": self.view.fingerprint,
            "manifest": self.view.manifest_fingerprint,
        }

    def tokenizer(self) -> dict[str, str]:
        """Which tokenizer the ids are of, and where a copy of it lies."""
        return {
            "fingerprint": self.view.tokenizer["fingerprint"],
            "shards": str(Path(self.config.shards).absolute()),
        }


def make_plan(config: TrainConfig, world: int) -> Plan:
    """Open the data and solve every size. UsageError when something does not divide or is too short."""
    if not config.shards:
        raise UsageError("--shards is missing: the folder that pretok tokenize wrote")
    preset = model_config(config.model)
    seq_len = config.seq_len or (None if config.mix else preset.seq_len)
    view = pretok.stream.open(config.shards, config.mix, seq_len=seq_len, seed=config.seed)
    model = replace(preset, vocab_size=view.vocab_size, seq_len=view.seq_len)
    per_node = int(os.environ.get("LOCAL_WORLD_SIZE", world))
    layout = solve_layout(world, per_node, config.shard, config.tensor)
    batch = solve_batch(layout.data_ranks, config.global_batch, config.micro_batch, config.accumulation)
    if config.steps is not None and config.tokens is not None:
        raise UsageError("give --steps or --tokens, not both")
    available = len(view) // batch.global_batch
    steps = config.steps
    if config.tokens is not None:
        steps = config.tokens // (batch.global_batch * view.seq_len)
    steps = available if steps is None else steps
    if not 0 < steps <= available:
        raise UsageError(
            f"{steps} steps of {batch.global_batch} sequences do not fit: the data has {len(view)} "
            f"sequences of {view.seq_len} tokens, enough for {available} steps"
        )
    return Plan(config, view, model, layout, batch, steps)


def differences(theirs: dict[str, Any], ours: dict[str, Any], of: str = "") -> list[str]:
    """Each value of `ours` that is another in `theirs`, down to the single sizes of a model."""
    found = []
    for key, value in ours.items():
        other = theirs.get(key)
        if isinstance(value, dict) and isinstance(other, dict):
            found += differences(other, value, f"{of}{key}.")
        elif other != value:
            found.append(f"{of}{key} was {other}, is {value}")
    return found


def check_identity(plan: Plan, meta: dict[str, Any]) -> None:
    """MismatchError when the checkpoint belongs to another model, batch, seed or data."""
    ours = plan.identity()
    if different := differences(meta["identity"], ours):
        raise MismatchError(
            f"{plan.config.out} holds a run that cannot be continued with these settings: "
            f"{'; '.join(different)}. "
            "Give it back its settings, or another --out (with --init-from to keep the weights)"
        )


def build_trainee(plan: Plan, device: Device, report: Callable[[str], None]) -> Trainee:
    """The model on its mesh with initial weights (random, or those of --init-from), and its optimizer."""
    config = plan.config
    mesh = build_mesh(device, plan.layout)
    with torch.device("meta"):
        model = Decoder(plan.model, loss_chunk=config.loss_chunk, z_loss=config.z_loss)
    parallelize(model, mesh, config, device)
    place = torch.device("cpu") if config.offload else device.device
    # A run that is resumed has its own weights; the folder it began from may be gone.
    resumed = complete_checkpoints(Path(config.out) / "checkpoints")
    source = Path(config.init_from) if config.init_from and not resumed else None
    if source is not None and (source / "config.json").exists():
        value = exported_tensors(source, plan.model)
    else:
        value = partial(initial_tensor, plan.model, config.seed, truncated=config.init == "truncated")
    materialize(model, place, value)
    if source is not None and not (source / "config.json").exists():
        load_weights(model, source, plan.model, report)
    parameters: list[nn.Parameter] = list(model.parameters())
    return Trainee(
        model=model,
        parameters=parameters,
        optimizer=build_optimizer(model, config),
        guard=Guard.fresh(place),
        mesh=mesh,
        groups=NormGroups.of(mesh),
        batch=plan.batch,
        config=config,
        device=device.device,
        eod_id=plan.view.eod_id,
        seq_len=plan.view.seq_len,
    )


def describe(plan: Plan, device: Device) -> str:
    """What will run, in a few lines."""
    layout, batch, model = plan.layout, plan.batch, plan.model
    peak = "n/a" if device.peak is None else f"{device.peak / 1e12:.1f} TFLOP/s"
    lines = [
        f"model {plan.config.model}: {model.parameters:,} parameters, sequences of "
        f"{plan.view.seq_len} tokens, vocabulary {model.vocab_size:,} in {model.padded_vocab:,} rows",
        f"{dist.get_world_size()} ranks: {layout.replicate} replicas x {layout.shard} shards x "
        f"{layout.tensor} tensor parallel on {device.name}, peak {peak} ({device.peak_source})",
        f"global batch {batch.global_batch} = micro-batch {batch.micro_batch} x accumulation "
        f"{batch.accumulation} x {batch.ranks} data-parallel ranks",
        f"{plan.steps} steps, {plan.steps * batch.global_batch * plan.view.seq_len:,} tokens of "
        f"{len(plan.view) * plan.view.seq_len:,}",
    ]
    warmup = plan.config.warmup
    if warmup >= plan.steps:
        highest = learning_rate(plan.config, plan.steps - 1, plan.steps)
        lines.append(
            f"warning: the warm-up of {warmup} steps takes the whole run of {plan.steps}: the learning rate only "
            f"rises, to {highest:.2e} at its end, and does not decay; a --warmup of {max(1, plan.steps // 20)} "
            "leaves room for the schedule"
        )
    lines.append(f"attention: {_attention(plan, device)}")
    return "\n".join(lines)


def _attention(plan: Plan, device: Device) -> str:
    """What a token sees and which of torch's kernels computes it, asked for one sequence of the run."""
    seen = {"causal": "all before it in its sequence", "document": "what is before it in its document"}
    kernel = attention_kernel(
        plan.model,
        plan.layout.tensor,
        pass_dtype(plan.config, device),
        device.device,
        documents=plan.config.attention == "document",
    )
    return f"a token sees {seen[plan.config.attention]}; kernel {kernel}"
