"""The run: from settings to a trained model, through any number of interruptions.

Enters: a TrainConfig; what RUN already holds. Leaves: RUN/metrics.jsonl, RUN/checkpoints/, and RUN/done.json
when the last step is saved. Raises Stopped (exit code 75) after saving, when a signal or the job's end asked
for it.
"""

from __future__ import annotations

import gc
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

from pretok.base.errors import MismatchError, PretokError, Stopped
from pretok.base.stop import StopFlag
from pretok.base.storage import write_json
from train import STARTED
from train.checkpoint.save import Checkpoints
from train.config import TrainConfig, parse_files, parse_save_every
from train.parallel.devices import Device, deterministic, find_device
from train.parallel.mesh import data_rank, process_group, run_folder
from train.run.memory import memory_history
from train.run.metrics import Goodput, MetricsLog, append_line, provenance, summarize_goodput
from train.run.report import Reporter
from train.run.setup import OPTIMIZER_BYTES, Plan, build_trainee, check_identity, describe, make_plan
from train.steps.data import Feed
from train.steps.evaluate import ValidationSource, evaluate, validation_sources
from train.steps.optim import global_norm, learning_rate
from train.steps.questions import Questions, load_questions
from train.steps.score import score
from train.steps.step import Mark, Readback, Trainee, chain_hash, train_step

AUTO_FACTOR = 4
AUTO_BOUNDS = (60.0, 7200.0)
"""`auto` saves every 4 start-up times, in seconds; a kill then costs a few of them at most."""

FIRST_MARGIN = 30.0
"""Seconds before the job's end at which to stop, until steps and saves have been timed; see `_record`."""


@dataclass
class RunState:
    """Where the run is: all that a checkpoint holds besides tensors.

    `step` steps are done, `position` sequences read.
    """

    step: int = 0
    position: int = 0
    data_hash: str = ""
    best: list[float] = field(default_factory=list)


@dataclass
class Run:
    """Everything the loop works on.

    `pending` is the step whose numbers the host has not read, and its data wait.
    """

    plan: Plan
    device: Device
    trainee: Trainee
    checkpoints: Checkpoints
    log: MetricsLog
    report: Reporter
    lost: threading.Event
    stop: StopFlag
    goodput: Goodput
    progress: RunState
    validation: dict[str, ValidationSource]
    questions: list[Questions]
    save_every: tuple[str, float]
    feed: Feed
    last_end: Mark
    pending: Readback | None = None
    stop_agreed: bool = False
    save_agreed: bool = False
    saved_step: int = -1
    saved_at: float = 0.0
    pending_wait: float = 0.0
    val_loss: float | None = None


def train(config: TrainConfig) -> None:
    """Train to the end. Raises Stopped when asked to stop early, PretokError for what a user can mend."""
    out = Path(config.out)
    device = find_device()
    with (
        deterministic(config.deterministic),
        StopFlag(FIRST_MARGIN) as stop,
        process_group(device, config.timeout, out),
        Reporter(dist.get_rank(), out) as report,
        run_folder(out) as lost,
    ):
        if dist.get_rank() == 0:
            report.event("start", argv=sys.argv, settings=config.as_dict(), **provenance())
        plan = make_plan(config, dist.get_world_size())
        run = _start(plan, device, stop, out, report, lost)
        try:
            with memory_history(config.memory_snapshot, device, out):
                _loop(run)
        finally:
            gc.enable()
            gc.unfreeze()
            run.log.close()
        if run.progress.step < plan.steps:
            reason = stop.reason or "another rank was asked to"
            kept = "nothing saved (--save-every never)" if run.save_every[0] == "never" else "saved"
            raise Stopped(
                f"stopped after step {run.progress.step} of {plan.steps} ({reason}); "
                f"{kept}; run the same command to continue"
            )


def _start(
    plan: Plan, device: Device, stop: StopFlag, out: Path, report: Reporter, lost: threading.Event
) -> Run:
    config, rank = plan.config, dist.get_rank()
    trainee = build_trainee(plan, device, report)
    report(describe(plan, device))
    checkpoints = Checkpoints(out / "checkpoints", config, device.is_gpu, report)
    if config.save_every != "never":
        checkpoints.check_space(OPTIMIZER_BYTES * plan.model.parameters)
    progress = RunState()
    meta = _resume(trainee, checkpoints, plan)
    if meta is not None:
        progress = RunState(**meta["progress"])
        report(f"resumed from step {progress.step}")
        for name, value in config.as_dict().items():
            if meta["config"].get(name) != value:
                report(f"setting {name} was {meta['config'].get(name)}, is {value}")
    kind, amount = parse_save_every(config.save_every)
    run = Run(
        plan=plan,
        device=device,
        trainee=trainee,
        checkpoints=checkpoints,
        log=MetricsLog(
            out, config, device, report, rank, progress.step, plan.steps, plan.view.manifest_fingerprint
        ),
        report=report,
        lost=lost,
        stop=stop,
        goodput=Goodput(STARTED),
        progress=progress,
        validation=validation_sources(config, plan.view.seq_len) if config.val_every else {},
        questions=load_questions(
            parse_files(config.evaluate), Path(config.shards), plan.view.eod_id, plan.view.seq_len
        ),
        save_every=(kind, amount),
        feed=Feed(
            plan.view,
            plan.batch,
            data_rank(trainee.mesh),
            progress.position,
            plan.steps * plan.batch.global_batch,
            config,
            device.device,
        ),
        last_end=Mark(device.device),
        saved_step=progress.step if meta is not None else -1,
    )
    report.doing = lambda: f"at step {progress.step}/{plan.steps} ({run.goodput.kind})"
    if rank == 0:
        write_json(
            out / "config.json", config.as_dict() | {"resolved": plan.identity() | {"steps": plan.steps}}
        )
        (out / "done.json").unlink(missing_ok=True)  # a finished run that is extended is not done
    return run


def _state(trainee: Trainee) -> dict[str, Any]:
    """All tensors of a checkpoint. The generator is kept although nothing draws from it after the start."""
    model, optimizer = get_state_dict(trainee.model, trainee.optimizer)
    random = {"cpu": torch.get_rng_state()}
    if trainee.device.type == "cuda":
        random["device"] = torch.cuda.get_rng_state()
    return {"model": model, "optimizer": optimizer, "guard": trainee.guard.state(), "random": random}


def _resume(trainee: Trainee, checkpoints: Checkpoints, plan: Plan) -> dict[str, Any] | None:
    state = _state(trainee)
    meta = checkpoints.load_newest(state, lambda found: check_identity(plan, found))
    if meta is not None:
        set_state_dict(
            trainee.model,
            trainee.optimizer,
            model_state_dict=state["model"],
            optim_state_dict=state["optimizer"],
        )
        torch.set_rng_state(state["random"]["cpu"])
    return meta


def _loop(run: Run) -> None:
    plan, progress, config = run.plan, run.progress, run.plan.config
    first = progress.step
    gc.collect()
    gc.freeze()
    gc.disable()  # collected below at the same steps on all ranks: one rank's pause is every rank's pause
    run.goodput.enter("training")
    run.saved_at, run.last_end = time.monotonic(), Mark(run.device.device)
    profiler = _profiler(Path(config.out), config.profile)
    with closing(iter(run.feed)) as batches:  # its processes end with it, whatever ends the loop
        while progress.step < plan.steps and not run.stop_agreed:
            _one_step(run, batches)
            if profiler is not None:
                profiler.step()
            if progress.step == first + 1:
                _after_first_step(run)
            if progress.step % config.gc_every == 0:
                gc.collect(1)
            run.checkpoints.poll()
            last = progress.step == plan.steps
            if config.val_every and (progress.step % config.val_every == 0 or last):
                _validate(run)
            if run.questions and (progress.step % config.evaluate_every == 0 or last):
                _ask(run)
            kind, amount = run.save_every
            if run.save_agreed or (kind == "steps" and progress.step % amount == 0):
                _save(run)
    if profiler is not None:
        profiler.stop()
    _flush(run)
    _save(run)
    with run.goodput.spent("saving"):
        run.checkpoints.close()
    run.goodput.take_from_training(run.feed.waited)
    if dist.get_rank() == 0:
        _finish_files(run, first)


def _profiler(out: Path, steps: int) -> Any:
    """On rank 0, a started profiler that writes steps 4 to 3 + `steps` to RUN/profile.json; else None."""
    if not steps or dist.get_rank():
        return None

    def write(finished: Any) -> None:
        finished.export_chrome_trace(str(out / "profile.json"))

    schedule = torch.profiler.schedule(wait=2, warmup=1, active=steps, repeat=1)
    profiler = torch.profiler.profile(schedule=schedule, on_trace_ready=write)
    profiler.start()
    return profiler


def _one_step(run: Run, batches: Iterator[tuple[Tensor, int]]) -> None:
    """Queue one step, then read the numbers of the one before, which is done by then."""
    progress, config = run.progress, run.plan.config
    kind, amount = run.save_every
    due = dist.get_rank() == 0 and kind == "seconds" and time.monotonic() - run.saved_at > amount
    waited = run.feed.waited
    queued = train_step(
        run.trainee,
        batches,
        progress.step + 1,
        learning_rate(config, progress.step, run.plan.steps),
        stop=run.stop.reason is not None,
        save=due,
    )
    previous, run.pending = run.pending, queued
    wait, run.pending_wait = run.pending_wait, run.feed.waited - waited
    progress.step += 1
    progress.position += run.plan.batch.global_batch
    run.val_loss = None
    if previous is not None:
        _record(run, previous, wait)


def _flush(run: Run) -> None:
    """Read what is pending: before saving or evaluating the host waits for the device anyway."""
    if run.pending is not None:
        previous, run.pending = run.pending, None
        _record(run, previous, run.pending_wait)


def _check_folder(run: Run) -> None:
    """MismatchError when another run has taken the folder, because this one hung or its lock was deleted."""
    if run.lost.is_set():
        raise MismatchError(
            f"the lock of {run.plan.config.out} was deleted or taken by another run, which now owns the folder; this "
            "one ends without saving"
        )


def _record(run: Run, done: Readback, waited: float) -> None:
    """Log one step, take its decisions, and stop a run that skips step after step."""
    config, plan = run.plan.config, run.plan
    numbers = done.read()
    _check_folder(run)
    seconds, run.last_end = done.end.seconds_since(run.last_end), done.end
    run.progress.data_hash = chain_hash(run.progress.data_hash, numbers.checksum)
    run.stop_agreed |= numbers.stop
    run.save_agreed |= numbers.save
    tokens = plan.batch.global_batch * plan.view.seq_len
    speed = tokens / seconds / dist.get_world_size()
    peak = run.device.peak
    run.log.step(
        {
            "step": numbers.step,
            "loss": numbers.loss,
            "tokens": numbers.step * tokens,
            "grad_norm": numbers.grad_norm,
            "lr": learning_rate(config, numbers.step - 1, plan.steps),
            "skipped": numbers.skipped,
            "seconds": seconds,
            "tokens_per_second": tokens / seconds,
            "tokens_per_second_per_device": speed,
            "mfu": speed * plan.model.flops_per_token(plan.view.seq_len) / peak if peak else None,
            "data_wait": waited,
            "memory_peak": torch.cuda.max_memory_allocated() if run.device.is_gpu else None,
            "utilisation": run.log.utilisation() if numbers.step % config.log_every == 0 else None,
            "data_hash": run.progress.data_hash,
        }
    )
    # The signal must leave time for a save, for the step in work and for the one queued after it.
    run.stop.margin = FIRST_MARGIN + 2 * run.checkpoints.save_seconds + 3 * seconds
    if numbers.skipped_in_a_row > config.max_skips:
        raise PretokError(
            f"steps {numbers.step - numbers.skipped_in_a_row + 1} to {numbers.step} were skipped (last "
            f"gradient norm {numbers.grad_norm}); the newest checkpoint holds only good steps. "
            "Lower --lr, or raise --skip-sigma"
        )


def _after_first_step(run: Run) -> None:
    """The first step ends the start-up: compilation and first reads are in it. `auto` measures it."""
    _flush(run)
    started = torch.tensor(time.monotonic() - STARTED, device=run.device.device)
    dist.all_reduce(started, dist.ReduceOp.MAX)
    if run.save_every[0] == "auto":
        low, high = AUTO_BOUNDS
        seconds = min(high, max(low, AUTO_FACTOR * started.item()))
        run.save_every = ("seconds", seconds)
        run.report(f"start-up took {started.item():.0f} s: a checkpoint every {seconds:.0f} s")


def _validate(run: Run) -> None:
    _flush(run)
    with run.goodput.spent("validation"):
        result = evaluate(run.trainee, run.validation, lambda: run.stop.reason is not None)
    run.last_end = Mark(run.device.device)
    if result is None:
        run.stop_agreed = True
        return
    progress, keep = run.progress, run.plan.config.keep_best
    run.val_loss = result.loss
    run.log.validation(
        {
            "step": progress.step,
            "val_loss": result.loss,
            "val_bits_per_byte": result.bits,
            "sources": result.sources,
            "bits_per_byte": result.source_bits,
        }
    )
    if keep and (len(progress.best) < keep or result.loss < progress.best[-1]):
        progress.best = sorted([*progress.best, result.loss])[:keep]
        run.save_agreed = True


def _ask(run: Run) -> None:
    """Let the model answer the questions of --evaluate."""
    _flush(run)
    with run.goodput.spent("validation"):
        results = score(run.trainee, run.questions, lambda: run.stop.reason is not None)
    run.last_end = Mark(run.device.device)
    if results is None:
        run.stop_agreed = True
        return
    answers = {name: asdict(result) for name, result in results.items()}
    run.log.evaluation({"step": run.progress.step, "questions": answers})


def _save(run: Run) -> None:
    """Save the state after the steps done so far, unless that was done.

    A state that is not finite is refused.
    """
    progress = run.progress
    _flush(run)
    run.save_agreed = False
    if run.saved_step == progress.step or run.save_every[0] == "never":
        return
    _check_folder(run)
    with run.goodput.spent("saving"):
        size = global_norm(run.trainee.parameters, run.trainee.groups).item()
        if not torch.isfinite(torch.tensor(size)):
            raise PretokError(f"parameters are not finite after step {progress.step}; nothing was saved")
        meta = {
            "progress": dict(vars(progress)),
            "val_loss": run.val_loss,
            "identity": run.plan.identity(),
            "config": run.plan.config.as_dict(),
            "eod_id": run.plan.view.eod_id,
            "tokenizer": run.plan.tokenizer(),
            "provenance": provenance() | {"manifest": run.plan.view.manifest_fingerprint},
        }
        run.checkpoints.save(progress.step, _state(run.trainee), meta)
    run.saved_step, run.saved_at = progress.step, time.monotonic()
    run.last_end = Mark(run.device.device)


def _finish_files(run: Run, first: int) -> None:
    """On rank 0: the goodput line of this segment, and the done marker after the last step."""
    out = Path(run.plan.config.out)
    record = run.goodput.record(run.log.lost_steps, run.progress.step - first)
    append_line(out / "goodput.jsonl", record)
    run.report(summarize_goodput(out / "goodput.jsonl"))
    if run.progress.step == run.plan.steps:
        write_json(out / "done.json", {"step": run.progress.step, "data_hash": run.progress.data_hash})
