"""The run of a training loop: a new one, or one that resumes from its newest checkpoint.

Input: the settings and the contents of RUN. Output: a `Run` at its first step, with its data open, and the changes that
apply when another phase begins.
"""

from __future__ import annotations

import os
import threading
from functools import partial
from pathlib import Path
from typing import Any

import torch.distributed as dist

from pretok.base.records import replace, to_json
from pretok.base.stop import StopFlag
from pretok.base.storage import write_json
from pretok.base.units import duration, plural
from pretok.base.version import PRETOK_VERSION
from pretok.stream.object_store import is_url
from train import STARTED
from train.checkpoint.meta import Meta, RunState
from train.checkpoint.save import Checkpoints
from train.config import IN_PHASES, TrainConfig
from train.data import Feed
from train.evaluate import ValidationSource, validation_sources
from train.metrics import Goodput, RunLog
from train.monitor import Monitor, sensors
from train.parallel.devices import Device
from train.parallel.mesh import data_rank
from train.phases import Phase, Segment, check_resume, differences, plan_segments
from train.report import Reporter
from train.setup import build_state, describe, enter_phase, make_plan, validation_interval
from train.step import Mark, Readback, TrainState
from train.stragglers import Stragglers


class Run:
    """The state of a training run, ready for its next step.

    segment: segment of the next step. progress: the finished work. pending: the queued step whose numbers the host has
    not read yet. last_end: the end of the step before it. stop_agreed: whether all ranks end after the current step.
    waits: whether all ranks read a step's numbers before they begin the next. long_step: whether rank 0 wants that.
    val_every: steps between validations, 0 for none. val_loss: validation loss after the current step, None if it was
    not evaluated. lost: set on rank 0 if another run takes the folder.
    """

    def __init__(
        self, config: TrainConfig, device: Device, stop: StopFlag, report: Reporter, lost: threading.Event
    ) -> None:
        # The order matters. Settings and data are checked before the model takes memory. All ranks build the model and
        # load the checkpoint together. RunLog, which drops lines of steps after the checkpoint, comes only after that,
        # so a start that fails loses no line.
        out, rank = Path(config.out), dist.get_rank()
        phases, layout = make_plan(config, dist.get_world_size())
        self.val_every = validation_interval(config, phases)
        self.config, self.device, self.stop, self.report, self.lost = config, device, stop, report, lost
        self.state = build_state(config, phases[0], layout, device, report)
        self.checkpoints = Checkpoints(out / "checkpoints", config, device.is_gpu, report)
        check = partial(check_resume, phases, out=config.out)
        meta = self.checkpoints.load_newest(self.state.tensors(), self.state.mesh, check)
        saved = RunState() if meta is None else meta.progress
        self.progress = saved
        self.segments = plan_segments(phases, saved, None if meta is None else meta.identity)
        self.segment = segment = self.segments[0]
        report(describe(config, layout, self.segments, device, self.val_every))
        if meta is not None:
            report(f"resumed from step {saved.step}")
            _report_changes(report, segment, "hand", _changed_by_hand(meta, config, segment))
        identity = segment.phase.identity()
        read = {
            "version": PRETOK_VERSION,
            "manifest": identity.manifest,
            "stream": segment.phase.view.fingerprint,
            "tokenizer": segment.phase.tokenizer().fingerprint,
        }
        self.log = RunLog(config, report, rank, saved.step, self.steps, read)
        if lost_steps := self.log.lost:
            what = f"{plural(len(lost_steps), 'step')} after step {saved.step} ({duration(sum(lost_steps))})"
            report(f"{what} were lost: the last attempt ended without a save; they are repeated")
        goodput = None if rank else out / "goodput.jsonl"
        self.goodput = Goodput(STARTED, goodput, self.log.lost, report, self.log.background)
        sensor = sensors if senses(device, rank) else None
        self.monitor, self.unseen = Monitor(config, dist.get_world_size(), sensor, report), (0.0, 0.0)
        self.stragglers = Stragglers(device.device, saved.step)
        self.feed, self.validation = (
            _open_feed(segment, self.state),
            _open_validation(segment, self.val_every),
        )
        self.last_end = Mark(device.device)
        self.pending: Readback | None = None
        self.stop_agreed = self.waits = self.long_step = self.warned = False
        self.val_loss = None if meta is None else meta.val_loss
        begins = segment.phase.at != saved.phase
        enter_segment(self, segment, phases[phases.index(segment.phase) - 1] if begins else None)
        report.doing = lambda: f"at step {self.progress.step}/{self.steps} ({self.goodput.kind})"
        if rank == 0:
            resolved = to_json(segment.phase.identity()) | {"steps": self.steps}
            write_json(out / "config.json", config.as_dict() | {"model": config.sizes, "resolved": resolved})
            (out / "done.json").unlink(missing_ok=True)  # it exists if a finished run is extended

    @property
    def steps(self) -> int:
        """Steps of the whole run."""
        return self.segments[-1].last_step

    @property
    def first(self) -> int:
        """Steps that were done before this start."""
        return self.segments[0].step


def senses(device: Device, rank: int) -> bool:
    """Return whether this rank reads its device: rank 0's GPU stands for all."""
    return device.is_gpu and rank == 0


def enter_segment(run: Run, segment: Segment, before: Phase | None) -> None:
    """Begin a segment. No step may be pending.

    before: the phase that ends here; None if the run continues inside a phase.
    """
    phase = segment.phase
    enter_phase(run.state, phase, before)
    if before is not None:
        changes = differences(before.config.as_dict(), phase.config.as_dict())
        _report_changes(run.report, segment, "phase", changes)
    if segment is not run.segment:
        waited = run.feed.waited
        run.segment, run.feed = segment, _open_feed(segment, run.state)
        run.feed.waited, run.validation = waited, _open_validation(segment, run.val_every)
    run.log.segment(segment.reads())
    run.progress = replace(
        run.progress, position=segment.position, phase=phase.at, schedule=segment.schedule, unit=segment.unit
    )


def _open_feed(segment: Segment, state: TrainState) -> Feed:
    phase, end = segment.phase, segment.position_after(segment.last_step)
    rank = data_rank(state.mesh, state.context.ranks)
    phase.view.compare_places(dist.get_rank())
    here: list[int] = []
    if is_url(phase.config.shards):  # the ranks of a host share a cache: each fetches ahead for all of them
        ranks: list[tuple[str, int]] = [("", 0)] * dist.get_world_size()
        dist.all_gather_object(ranks, (os.uname().nodename, rank))
        here = sorted({number for host, number in ranks if host == os.uname().nodename})
    return Feed(phase.view, phase.batch, rank, segment.position, end, phase.config, state.device, here)


def _open_validation(segment: Segment, every: int) -> dict[str, ValidationSource]:
    config = segment.phase.config
    return validation_sources(config, segment.phase.view.mix) if every else {}


def _changed_by_hand(meta: Meta, config: TrainConfig, segment: Segment) -> dict[str, tuple[Any, Any]]:
    """Return the settings that differ from those of the checkpoint, name -> (old, new).

    Those that change what is trained come first. A path that is only written otherwise is none.
    """
    found = differences(meta.config, config.as_dict())
    order = sorted(found, key=lambda name: name not in IN_PHASES)
    changes = {name: found[name] for name in order if not _same_path(*found[name])}
    sizes = differences(to_json(meta.identity.model), to_json(segment.phase.model))
    if "rope_theta" not in changes and meta.progress.phase == segment.phase.at and "rope_theta" in sizes:
        changes["rope_theta"] = sizes["rope_theta"]  # changed in the file that --model names
    return changes


def _same_path(was: Any, now: Any) -> bool:
    """Whether two texts are one path, relative and absolute."""
    texts = isinstance(was, str) and isinstance(now, str) and not (is_url(was) or is_url(now))
    return texts and Path(was).absolute() == Path(now).absolute()


def _report_changes(report: Reporter, segment: Segment, by: str, changes: dict[str, tuple[Any, Any]]) -> None:
    """Report changed settings on the terminal and in RUN/logs."""
    text = ", ".join(f"{name} was {was}, is {now}" for name, (was, now) in changes.items())
    if by == "phase":
        where = f"reads its stream from sequence {segment.position}"
        report(f"phase at {segment.phase.at:,} tokens: {text or 'no setting changes'}; {where}")
    elif text:
        report(f"settings: {text}")
    if dist.get_rank() == 0 and (text or by == "phase"):
        place = {"step": segment.step, "tokens": segment.tokens, "position": segment.position}
        report.event("changes", by=by, changes=changes, **place)
