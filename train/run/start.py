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
from train.config import parse_files, parse_save_every
from train.parallel.devices import Device
from train.parallel.mesh import data_rank
from train.run.changes import Changes
from train.run.goodput import Goodput, GoodputFile, Restart
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
class Run:
    """Everything the loop works on.

    spent: on rank 0; first: steps done before this start; pending: the step whose numbers the host has not read, and
    pending_wait its data wait; busy: seconds in which the host queued steps.
    """

    plan: Plan
    legs: list[Leg]
    leg: Leg
    changes: Changes
    device: Device
    trainee: Trainee
    checkpoints: Checkpoints
    log: MetricsLog
    report: Reporter
    lost: threading.Event
    stop: StopFlag
    goodput: Goodput
    spent: GoodputFile | None
    first: int
    progress: RunState
    validation: dict[str, ValidationSource]
    questions: list[Questions]
    save_every: tuple[str, float]
    feed: Feed
    stragglers: Stragglers
    last_end: Mark
    pending: Readback | None = None
    stop_agreed: bool = False
    save_agreed: bool = False
    saved_step: int = -1
    saved_at: float = 0.0
    pending_wait: float = 0.0
    busy: float = 0.0
    val_loss: float | None = None

    @property
    def steps(self) -> int:
        """Of the whole run."""
        return self.legs[-1].last_step


def start_run(
    plan: Plan, device: Device, stop: StopFlag, out: Path, report: Reporter, lost: threading.Event
) -> Run:
    config, rank, restart = plan.config, dist.get_rank(), Restart.here()
    trainee = build_trainee(plan, device, report)
    checkpoints = Checkpoints(out / "checkpoints", config, device.is_gpu, report)
    if config.save_every != "never":
        checkpoints.check_space(checkpoint_bytes(plan.config, plan.model))
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
    run = Run(
        plan=plan,
        legs=legs,
        leg=leg,
        changes=changes,
        device=device,
        trainee=trainee,
        checkpoints=checkpoints,
        log=MetricsLog(
            out,
            config,
            device,
            report,
            rank,
            saved.step,
            legs[-1].last_step,
            leg.phase.view.manifest_fingerprint,
        ),
        report=report,
        lost=lost,
        stop=stop,
        goodput=Goodput(STARTED),
        spent=None if rank else GoodputFile(out / "goodput.jsonl", restart, STARTED),
        first=saved.step,
        progress=saved,
        validation=_validation(leg.phase),
        questions=_questions(leg.phase),
        save_every=parse_save_every(config.save_every),
        feed=_feed(leg, trainee, 0.0),
        stragglers=Stragglers(device.device, config.timeout),
        last_end=Mark(device.device),
        saved_step=saved.step if meta is not None else -1,
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
    phase, trainee = leg.phase, run.trainee
    enter_phase(trainee, phase, before)
    if before is not None:
        run.changes.by_phase(before.config, leg)
    if leg is not run.leg:
        run.validation, run.questions = _validation(phase), _questions(phase)
        run.feed = _feed(leg, trainee, run.feed.waited)
    run.changes.reads(leg)
    run.leg = leg
    run.progress = replace(
        run.progress, position=leg.position, phase=phase.at, schedule=leg.schedule, unit=leg.unit
    )


def _validation(phase: Phase) -> dict[str, ValidationSource]:
    return validation_sources(phase.config, phase.view.seq_len) if phase.config.val_every else {}


def _questions(phase: Phase) -> list[Questions]:
    files, view = parse_files(phase.config.evaluate), phase.view
    first_id = view.eod_id if view.bos_id is None else view.bos_id
    return load_questions(files, Path(phase.config.shards), first_id, view.seq_len)


def _feed(leg: Leg, trainee: Trainee, waited: float) -> Feed:
    phase, end = leg.phase, leg.position_after(leg.last_step)
    rank, device = data_rank(trainee.mesh), trainee.device
    return Feed(phase.view, phase.batch, rank, leg.position, end, phase.config, device, waited)
