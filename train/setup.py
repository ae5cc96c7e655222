"""From settings to a model that can be trained: split over the ranks, filled with weights, with its optimizer.

Input: a TrainConfig inside a process group. Output: the run's phases, a TrainState, its changes at the start of a
phase, and a description of the run.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist

from pretok.base.errors import UsageError
from pretok.base.units import plural
from pretok.tokenizer.vocab_map import read_map
from train.checkpoint.export import check_tokenizer, exported_tensors
from train.checkpoint.meta import complete_checkpoints
from train.checkpoint.tensors import load_weights
from train.config import TrainConfig
from train.evaluate import validation_sources
from train.model.sizes import CONFIG
from train.model.transformer import Decoder, initial_tensor
from train.optimizer import set_hyper_parameters, warmup_steps
from train.parallel.context import Context
from train.parallel.devices import Device
from train.parallel.group import all_or_raise, connect
from train.parallel.layout import (
    Layout,
    bubble,
    check_pipeline,
    check_split,
    compiles,
    solve_layout,
    split_layers,
    stages_of,
)
from train.parallel.mesh import PIPELINE, build_mesh, materialize
from train.parallel.parallelize import parallelize, pass_dtype
from train.parallel.pipeline import Pipeline, take_part
from train.phases import Phase, Segment, open_phases
from train.step import TrainState

VAL_EVERY = 500
"""Steps between validations by default."""


def make_plan(config: TrainConfig, world: int) -> tuple[tuple[Phase, ...], Layout]:
    """Open the data of all phases, and solve the mesh and the batch sizes.

    Raises UsageError if sizes do not divide.
    """
    if config.vocab_map is not None and config.init_from is None:
        raise UsageError("--vocab-map needs --init-from")
    per_node = int(os.environ.get("LOCAL_WORLD_SIZE", world))
    layout = solve_layout(world, per_node, config.shard, config.tensor, config.pipeline, config.context)
    phases = open_phases(config, layout.data_ranks)
    for phase in phases:
        check_split(config, phase.model, phase.view.seq_len)
        check_pipeline(config, phase.model, phase.batch)
    return phases, layout


def validation_interval(config: TrainConfig, phases: Sequence[Phase]) -> int:
    """Return the steps between validations, 0 for never. By default VAL_EVERY, if all phases have validation data.

    Raises UsageError if validation is asked for and a phase has no data for it: it would end the run when it begins.
    """
    try:
        for phase in phases if config.val_every != 0 else ():
            validation_sources(phase.config, phase.view.mix)
    except UsageError:
        if config.val_every is None and not config.keep_best:
            return 0
        raise
    return VAL_EVERY if config.val_every is None else config.val_every


def build_state(
    config: TrainConfig, phase: Phase, layout: Layout, device: Device, report: Callable[[str], None]
) -> TrainState:
    """Build the model on its mesh, with initial weights and an optimizer.

    The weights are random, or those of --init-from. phase: the first phase of the run.
    """
    sizes = phase.model
    mesh = build_mesh(device, layout, offload=config.offload)
    context = Context.of(mesh, config.context)
    connect(device, config.timeout, report)
    stages, parts = stages_of(config, mesh[PIPELINE].get_local_rank()), []
    for stage in stages:
        with torch.device("meta"):
            parts.append(part := Decoder(sizes, z_loss=config.z_loss))
        take_part(part, stage, split_layers(sizes, config.pipeline * len(stages)))
        parallelize(part, mesh, context, config, device)
    model: Decoder | Pipeline = parts[0]
    if config.pipeline > 1:
        model = Pipeline(parts, mesh[PIPELINE], pass_dtype(config, device), config)
    # A resumed run loads the weights of its checkpoint; the --init-from folder may be gone by now. Rank 0 decides:
    # another node may still see an older state of the shared folders, and would wait in other collectives.
    sources = [None if complete_checkpoints(Path(config.out) / "checkpoints") else config.start]
    dist.broadcast_object_list(sources)
    source = sources[0]
    if source is not None and (source / CONFIG).exists():
        map_path = Path(config.vocab_map) if config.vocab_map else None
        ours = phase.tokenizer()
        all_or_raise(lambda: None if dist.get_rank() else check_tokenizer(source, ours, report, map_path))
        value = exported_tensors(source, sizes, report, read_map(map_path) if map_path else None)
        materialize(model, device.device, value, offload=config.offload)
    elif source is not None and config.vocab_map:
        raise UsageError(
            f"--vocab-map: {source} is a checkpoint; export it with train export, and name the exported folder"
        )
    else:
        materialize(model, device.device, partial(initial_tensor, sizes, config.seed), offload=config.offload)
        if source is not None:
            load_weights(model, mesh, source, sizes, phase.tokenizer(), report)
    data = phase.view.eod_id, phase.view.seq_len
    return TrainState(model, mesh, context, phase.batch, config, device.device, *data)


def enter_phase(state: TrainState, phase: Phase, before: Phase | None) -> None:
    """Apply the settings of a phase to the state.

    before: the phase that ends here; None if the run continues inside a phase.
    """
    state.config, state.batch = phase.config, phase.batch
    state.eod_id, state.seq_len = phase.view.eod_id, phase.view.seq_len
    if isinstance(state.model, Pipeline):
        state.model.prepare(phase.model, phase.batch, state.seq_len, phase.config, state.device)
    else:
        state.model.config, state.model.z_loss = phase.model, phase.config.z_loss
    set_hyper_parameters(state.optimizer, phase.config)
    # Losses and gradients of other data have another scale; the guard must not judge them by the old window.
    if before is not None and before.learns_from() != phase.learns_from():
        state.guard.forget()


def describe(
    config: TrainConfig, layout: Layout, segments: Sequence[Segment], device: Device, val_every: int
) -> str:
    """Describe in a few lines what will run."""
    first = segments[0].phase
    model = first.model
    peak = "n/a" if device.peak is None else f"{device.peak / 1e12:.1f} TFLOP/s"
    sizes = {"replicas": layout.replicate, "shards": layout.shard, "tensor parallel": layout.tensor}
    parts = [f"{size} {name}" for name, size in sizes.items() if size > 1]
    if layout.pipeline > 1:
        idle = bubble(config, first.batch.accumulation)
        parts.append(f"{layout.pipeline} pipeline ({config.pipeline_schedule}, bubble {idle:.1%})")
    split = f": {' x '.join(parts)}" if parts else ""
    if layout.context > 1:
        split += f", {layout.context} ranks share each sequence"
    last, blocks = segments[-1].last_step, compiles(config, able=device.can_compile)
    lines = [
        f"model {config.sizes}: {model.parameters:,} parameters, sequences of {first.view.seq_len} tokens, "
        f"vocabulary {model.vocab_size:,} in {model.padded_vocab:,} rows",
        f"{plural(dist.get_world_size(), 'rank')}{split} on {device.name}, {len(os.sched_getaffinity(0))} cores and "
        f"{torch.get_num_threads()} threads each, peak {peak} ({device.peak_source})",
        f"global batch {first.batch}",
        f"{last} steps, {segments[-1].tokens_after(last):,} tokens, {plural(len(segments), 'phase')} to come",
        f"validation every {val_every} steps and after the last one (--val-every)"
        if val_every
        else "no validation "
        + ("(--val-every 0)" if config.val_every == 0 else "(the shards have no split for it)"),
        f"attention: {config.attention}; blocks are {'compiled' if blocks else 'not compiled'}",
    ]
    if not device.is_gpu:
        able = torch.version.cuda or torch.version.hip
        hint = "" if able else ". For a GPU install the CUDA build of torch"
        lines.append(f"warning: no GPU was found (torch {torch.__version__}): training on the CPU{hint}")
    steps = (segments[0].schedule_end - segments[0].schedule) // segments[0].unit
    if (warmup := warmup_steps(first.config, steps)) >= steps:
        lines.append(
            f"warning: the warm-up ({warmup:g} steps) is as long as the schedule: the learning rate only rises. "
            f"Set --warmup {max(1, steps // 20)}"
        )
    return "\n".join(lines)
