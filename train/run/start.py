"""What the loop works on: a run that is new, or goes on from its newest checkpoint.

Enters: a Plan and what RUN already holds. Leaves: a `Run` at the first step it has to do, with its data open, and what
it is changed to when another phase begins.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from pathlib import Path

import torch.distributed as dist

from pretok.base.records import replace, to_json
from pretok.base.stop import StopFlag
from pretok.base.storage import write_json
from train import STARTED
from train.checkpoint.meta import RunState
from train.checkpoint.save import Checkpoints
from train.config import parse_files
from train.parallel.devices import Device
from train.parallel.mesh import data_rank
from train.run.changes import Changes
from train.run.goodput import Goodput, Restart
from train.run.metrics import MetricsLog
from train.run.phases import Leg, Phase, check_resume, plan_legs
from train.run.report import Reporter
from train.run.setup import Plan, build_trainee, checkpoint_bytes, describe, enter_phase
from train.run.stragglers import Stragglers
from train.steps.data import Feed
from train.steps.evaluate import ValidationSource, validation_sources
from train.steps.questions import Questions, load_questions
from train.steps.step import Mark, Readback, Trainee


@dataclass
class LegData:
    """What the steps of a leg read."""

    feed: Feed
    validation: dict[str, ValidationSource]
    questions: list[Questions]


@dataclass
class Run:
    """Everything the loop works on. leg: that of the next step; progress: what is done; pending: the step whose numbers
    the host has not read; last_end: of the step before it; val_loss: of the state after the step in work."""

    plan: Plan
    device: Device
    trainee: Trainee
    checkpoints: Checkpoints
    legs: list[Leg]
    leg: Leg
    data: LegData
    progress: RunState
    report: Reporter
    log: MetricsLog
    changes: Changes
    goodput: Goodput
    stragglers: Stragglers
    stop: StopFlag
    lost: threading.Event
    last_end: Mark
    pending: Readback | None = None
    stop_agreed: bool = False
    val_loss: float | None = None

    @property
    def steps(self) -> int:
        """Of the whole run."""
        return self.legs[-1].last_step

    @property
    def first(self) -> int:
        """Steps that were done before this start."""
        return self.legs[0].step


def start_run(
    plan: Plan, device: Device, stop: StopFlag, out: Path, report: Reporter, lost: threading.Event
) -> Run:
    """A run at the first step that is to be done."""
    config, rank, restart = plan.config, dist.get_rank(), Restart.here()
    trainee = build_trainee(plan, device, report)
    checkpoints = Checkpoints(out / "checkpoints", config, device.is_gpu, report)
    if config.save_every != "never":
        checkpoints.check_space(checkpoint_bytes(config, plan.model))
    meta = checkpoints.load_newest(
        trainee.state(), lambda found: check_resume(plan.phases, found, config.out)
    )
    if meta is not None:
        plan = plan.resumed(meta)
    saved = RunState() if meta is None else meta.progress
    legs = plan_legs(plan.phases, saved, None if meta is None else meta.identity)
    leg = legs[0]
    report(describe(plan, legs, device))
    changes = Changes(out, rank, saved.step, report)
    if restart.number:
        report(f"restart {restart.number} inside the job: {restart.why}")
    if meta is not None:
        report(f"resumed from step {saved.step}")
        changes.by_hand(meta, config, leg)
    steps, manifest = legs[-1].last_step, leg.phase.view.manifest_fingerprint
    log = MetricsLog(out, config, device, report, rank, saved.step, steps, manifest)
    run = Run(
        plan=plan,
        device=device,
        trainee=trainee,
        checkpoints=checkpoints,
        legs=legs,
        leg=leg,
        data=_open_data(leg, trainee, 0.0),
        progress=saved,
        report=report,
        log=log,
        changes=changes,
        goodput=Goodput(STARTED, None if rank else out / "goodput.jsonl", restart, log.lost),
        stragglers=Stragglers(device.device, config.timeout),
        stop=stop,
        lost=lost,
        last_end=Mark(device.device),
    )
    begins = leg.phase.at != saved.phase
    enter_leg(run, leg, plan.phases[plan.phases.index(leg.phase) - 1] if begins else None)
    report.doing = lambda: f"at step {run.progress.step}/{run.steps} ({run.goodput.kind})"
    if rank == 0:
        _tell_settings(run, out)
    return run


def _tell_settings(run: Run, out: Path) -> None:
    """RUN/config.json, and a run that is extended after its end is no longer done."""
    resolved = to_json(run.leg.phase.identity()) | {"steps": run.steps}
    write_json(out / "config.json", run.plan.config.as_dict() | {"resolved": resolved})
    (out / "done.json").unlink(missing_ok=True)


def enter_leg(run: Run, leg: Leg, before: Phase | None) -> None:
    """Begin a leg; no step is pending. before: the phase that ends here, None where the run goes on inside of one."""
    phase = leg.phase
    enter_phase(run.trainee, phase, before)
    if before is not None:
        run.changes.by_phase(before.config, leg)
    if leg is not run.leg:
        run.leg, run.data = leg, _open_data(leg, run.trainee, run.data.feed.waited)
    run.changes.reads(leg)
    run.progress = replace(
        run.progress, position=leg.position, phase=phase.at, schedule=leg.schedule, unit=leg.unit
    )


def _open_data(leg: Leg, trainee: Trainee, waited: float) -> LegData:
    """waited: seconds by now for data of the legs before."""
    phase, end = leg.phase, leg.position_after(leg.last_step)
    config, view, rank = phase.config, phase.view, data_rank(trainee.mesh)
    first_id = view.eod_id if view.bos_id is None else view.bos_id
    return LegData(
        Feed(view, phase.batch, rank, leg.position, end, config, trainee.device, waited),
        validation_sources(config, view.seq_len) if config.val_every else {},
        load_questions(parse_files(config.evaluate), Path(config.shards), first_id, view.seq_len),
    )
