"""What the loop works on: a run that is new, or goes on from its newest checkpoint.

Input: settings and what RUN already holds. Output: a `Run` at the first step it has to do, with its data open, and what
it is changed to when another phase begins.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import torch.distributed as dist

from pretok.base.records import replace, to_json
from pretok.base.stop import StopFlag
from pretok.base.storage import write_json
from pretok.stream.object_store import is_url
from train import STARTED
from train.checkpoint.meta import Meta, RunState
from train.checkpoint.save import Checkpoints
from train.config import TrainConfig
from train.data import Feed
from train.evaluate import ValidationSource, validation_sources
from train.metrics import Goodput, RunLog
from train.parallel.devices import Device
from train.parallel.mesh import data_rank
from train.phases import Phase, Segment, check_resume, differences, plan_segments
from train.report import Reporter
from train.setup import build_trainee, describe, enter_phase, make_plan
from train.step import Mark, Readback, Trainee
from train.stragglers import Stragglers


class Run:
    """Everything the loop works on, at the first step that is to be done. segment: that of the next step; progress:
    what is done; pending: the step whose numbers the host has not read; last_end: of the step before it; val_loss: of
    the state after the step in work."""

    def __init__(
        self,
        config: TrainConfig,
        device: Device,
        stop: StopFlag,
        out: Path,
        report: Reporter,
        lost: threading.Event,
    ) -> None:
        rank = dist.get_rank()
        phases, layout = make_plan(config, dist.get_world_size())
        self.config, self.device, self.stop, self.report, self.lost = config, device, stop, report, lost
        self.trainee = build_trainee(config, phases[0], layout, device, report)
        self.checkpoints = Checkpoints(out / "checkpoints", config, device.is_gpu, report)
        meta = self.checkpoints.load_newest(
            self.trainee.state(),
            self.trainee.mesh,
            lambda found: check_resume(phases, found, config.out),
        )
        saved = RunState() if meta is None else meta.progress
        self.progress = saved
        self.segments = plan_segments(phases, saved, None if meta is None else meta.identity)
        self.segment = segment = self.segments[0]
        report(describe(config, layout, self.segments, device))
        if meta is not None:
            report(f"resumed from step {saved.step}")
            _tell_changes(report, segment, "hand", _changed_by_hand(meta, config, segment))
        manifest = segment.phase.view.manifest_fingerprint
        self.log = RunLog(out, config, report, rank, saved.step, self.steps, manifest)
        self.goodput = Goodput(STARTED, None if rank else out / "goodput.jsonl", self.log.lost, report)
        self.stragglers = Stragglers(device.device, config.timeout)
        self.feed, self.validation = _open_feed(segment, self.trainee), _open_validation(segment)
        self.last_end = Mark(device.device)
        self.pending: Readback | None = None
        self.stop_agreed = False
        self.val_loss: float | None = None
        begins = segment.phase.at != saved.phase
        enter_segment(self, segment, phases[phases.index(segment.phase) - 1] if begins else None)
        report.doing = lambda: f"at step {self.progress.step}/{self.steps} ({self.goodput.kind})"
        if rank == 0:
            resolved = to_json(segment.phase.identity()) | {"steps": self.steps}
            write_json(out / "config.json", config.as_dict() | {"model": config.sizes, "resolved": resolved})
            (out / "done.json").unlink(missing_ok=True)  # a run that is extended after its end

    @property
    def steps(self) -> int:
        """Of the whole run."""
        return self.segments[-1].last_step

    @property
    def first(self) -> int:
        """Steps that were done before this start."""
        return self.segments[0].step


def enter_segment(run: Run, segment: Segment, before: Phase | None) -> None:
    """Begin a segment; no step is pending. before: the phase that ends here, None where the run goes on inside one."""
    phase = segment.phase
    enter_phase(run.trainee, phase, before)
    if before is not None:
        changes = differences(before.config.as_dict(), phase.config.as_dict())
        _tell_changes(run.report, segment, "phase", changes)
    if segment is not run.segment:
        waited = run.feed.waited
        run.segment, run.feed = segment, _open_feed(segment, run.trainee)
        run.feed.waited, run.validation = waited, _open_validation(segment)
    run.log.segment(segment.reads())
    run.progress = replace(
        run.progress, position=segment.position, phase=phase.at, schedule=segment.schedule, unit=segment.unit
    )


def _open_feed(segment: Segment, trainee: Trainee) -> Feed:
    phase, end = segment.phase, segment.position_after(segment.last_step)
    rank = data_rank(trainee.mesh, trainee.context.ranks)
    here: list[int] = []
    if is_url(phase.config.shards):
        found: list[tuple[str, int]] = [("", 0)] * dist.get_world_size()
        dist.all_gather_object(found, (os.uname().nodename, rank))
        here = sorted({one for host, one in found if host == os.uname().nodename})
    return Feed(phase.view, phase.batch, rank, segment.position, end, phase.config, trainee.device, here)


def _open_validation(segment: Segment) -> dict[str, ValidationSource]:
    config = segment.phase.config
    return validation_sources(config, segment.phase.view.mix) if config.val_every else {}


def _changed_by_hand(meta: Meta, config: TrainConfig, segment: Segment) -> dict[str, tuple[Any, Any]]:
    """Settings that are others than those the checkpoint was saved with: what each was, and is."""
    found = differences(meta.config, config.as_dict())
    sizes = differences(to_json(meta.identity.model), to_json(segment.phase.model))
    if "rope_theta" not in found and meta.progress.phase == segment.phase.at and "rope_theta" in sizes:
        found["rope_theta"] = sizes["rope_theta"]  # of a file of sizes
    return found


def _tell_changes(report: Reporter, segment: Segment, by: str, changes: dict[str, tuple[Any, Any]]) -> None:
    """On the terminal, and as a line of RUN/logs."""
    told = ", ".join(f"{name} was {was}, is {now}" for name, (was, now) in changes.items())
    if by == "phase":
        where = f"reads its stream from sequence {segment.position} on"
        report(f"phase at {segment.phase.at:,} tokens: {told or 'nothing changes'}; {where}")
    elif told:
        report(f"settings: {told}")
    if dist.get_rank() == 0 and (told or by == "phase"):
        place = {"step": segment.step, "tokens": segment.tokens, "position": segment.position}
        report.event("changes", by=by, changes=changes, **place)
