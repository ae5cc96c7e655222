"""The training loop: from settings to a trained model, through any number of interruptions.

Input: a TrainConfig and the contents of RUN. Output: RUN/metrics.jsonl, RUN/checkpoints/, and RUN/done.json once the
last step is saved. When a signal or the end of the job asks for a stop, the loop saves and raises Stopped (exit code
75).
"""

from __future__ import annotations

import gc
import math
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist

from pretok.base.errors import MismatchError, PretokError, Stopped, UsageError
from pretok.base.records import replace
from pretok.base.stop import StopFlag
from pretok.base.storage import write_json
from pretok.base.units import duration
from pretok.shards.manifest import shards_of
from pretok.stream import data_hash
from train import STARTED
from train.checkpoint.meta import Meta
from train.checkpoint.save import auto_interval
from train.config import TrainConfig
from train.data import MicroBatch
from train.evaluate import evaluate
from train.metrics import provenance
from train.monitor import NOTHING
from train.optimizer import MAX_SKIPS, global_norm
from train.parallel.devices import deterministic, find_device
from train.parallel.group import limit_collectives, process_group, run_folder
from train.report import Reporter, clock, explain
from train.start import Run, enter_segment
from train.step import SAVE, WAIT, Mark, Readback, train_step
from train.stragglers import KINDS, NOTABLE

GC_EVERY = 50
"""Steps between garbage collections."""
FIRST_MARGIN = 30.0
"""Seconds before the end of the job at which to stop, until steps and saves have been timed; see `_record`."""
LONG_STEP = 5.0
"""Seconds from which on the numbers of each step are read before the next one is queued.

Else a stop takes the current step and the two after it. The device idles for the host's milliseconds in between.
"""


def train(config: TrainConfig) -> None:
    """Train to the end. Raises Stopped if asked to stop early, PretokError for an error that a user can fix."""
    if not config.shards:  # before RUN is created
        raise UsageError("--shards is missing: name the folder that pretok tokenize wrote")
    out, words = Path(config.out), partial(explain, config=config)
    deterministic(config.deterministic)
    with StopFlag(FIRST_MARGIN) as stop:
        device = find_device()
        with (
            process_group(device, config.timeout, out, words),
            Reporter(dist.get_rank(), out) as report,
            run_folder(out, shards_of(Path(config.shards))) as lost,
        ):
            if dist.get_rank() == 0:
                report.event("start", argv=sys.argv, settings=config.as_dict(), **provenance())
            run = Run(config, device, stop, report, lost)
            try:
                _loop(run)
            except Exception:
                if not lost.is_set():  # else the folder, and the save in progress, belong to another run
                    run.checkpoints.settle()
                raise
            finally:
                gc.enable()
                gc.unfreeze()
                run.log.close()
            if run.progress.step < run.steps or _owes_validation(run):
                kept = "nothing saved (--save-every never)" if config.save_every == "never" else "saved"
                raise Stopped(
                    f"stopped after step {run.progress.step} of {run.steps} ({_why(run)}); {kept}; run the same "
                    "command to continue"
                )


def _loop(run: Run) -> None:
    """Run all steps of all segments, the work that is due between them, and a last save."""
    gc.collect()
    gc.freeze()
    gc.disable()  # all ranks collect after the same steps: a pause of one rank is a pause of all
    run.goodput.enter("training")
    run.checkpoints.saved_at, run.last_end = time.monotonic(), Mark(run.device.device)
    if run.config.save_every == "auto":
        run.checkpoints.start_seconds = start = time.monotonic() - STARTED
        run.report(
            f"saves every {duration(auto_interval(start, 0.0))}: 4 times the start, which took {duration(start)}"
        )
    if _owes_validation(run):
        _between_steps(run)
    with _profiler(run.config) as profiled:
        for segment in run.segments:
            if run.stop_agreed:
                break
            if segment is not run.segment:
                with _beside(run, "training"):
                    enter_segment(run, segment, run.segment.phase)
            with closing(iter(run.feed)) as batches:  # ends the loader threads, also after an error
                while run.progress.step < segment.last_step and not run.stop_agreed:
                    _one_step(run, batches)
                    if run.progress.step == run.first + 1:  # from here on nobody compiles or connects
                        dist.barrier()
                        limit_collectives(run.config.timeout)
                    profiled()
                    _between_steps(run)
    _save(run)
    with run.goodput.spent("saving"):
        while not run.checkpoints.wait():  # the last save failed: retry until one succeeds or PATIENCE ends
            _save(run)
        run.checkpoints.close()
    run.report(_goodput(run))
    run.log.flush()
    if dist.get_rank() == 0 and run.progress.step == run.steps and not _owes_validation(run):
        record = {"step": run.progress.step, "data_hash": run.progress.data_hash}
        write_json(Path(run.config.out) / "done.json", record)


def _one_step(run: Run, batches: Iterator[MicroBatch]) -> None:
    """Queue one step, then read the numbers of the previous one, which the device has finished by then."""
    progress, segment = run.progress, run.segment
    step = progress.step + 1
    waited, began = run.feed.waited, time.perf_counter()
    asks = SAVE * run.checkpoints.asked() + WAIT * run.long_step
    rate, stop = segment.rate(progress.step), partial(_asked, run)
    queued = train_step(run.state, batches, step, rate, stop=stop, asks=asks)
    queued.waited = run.feed.waited - waited
    run.stragglers.queued(step, time.perf_counter() - began - queued.waited)
    previous, run.pending = run.pending, queued
    run.progress = replace(
        progress, step=step, position=segment.position_after(step), tokens=segment.tokens_after(step)
    )
    run.val_loss = None
    if previous is not None:
        _record(run, previous)
    if run.waits:  # a stop that was asked for during this step must not cost another one
        with _beside(run, "training"):
            asked = torch.tensor(float(_asked(run)), device=run.device.device)
            dist.all_reduce(asked)
            _agree_to_stop(run, asked.item())


def _between_steps(run: Run) -> None:
    """Collect garbage, validate and save if it is time, after the step that was just queued.

    All ranks decide alike: from the step, the settings, and what they agreed on in an earlier step's all-reduce.
    """
    step = run.progress.step
    if step % GC_EVERY == 0:
        gc.collect(1)
    run.checkpoints.poll()
    if _owes_validation(run):
        _validate(run)
    if run.checkpoints.due(step):  # after validation, which asks for a save of the best
        _save(run)


def _owes_validation(run: Run) -> bool:
    """Return whether the current state must be validated and was not yet, perhaps because a stop came first."""
    step, every = run.progress.step, run.val_every
    return bool(every and step and (step % every == 0 or step == run.steps) and run.val_loss is None)


@contextmanager
def _beside(run: Run, kind: str) -> Iterator[None]:
    """Bracket work other than a step: read the pending step first, and count the time as `kind`.

    Reading it first costs nothing, as the host waits for the device anyway. The time of the body counts for no step.
    """
    if run.pending is not None:
        previous, run.pending = run.pending, None
        _record(run, previous)
    with run.goodput.spent(kind):
        yield
    run.last_end = Mark(run.device.device)


def _record(run: Run, done: Readback) -> None:
    """Log a finished step, act on the decisions in its numbers, and end a run that skips step after step."""
    phase, numbers = run.segment.phase, done.read()
    _check_folder(run)
    seconds, run.last_end = done.end.seconds_since(run.last_end), done.end
    run.progress = replace(run.progress, data_hash=data_hash(run.progress.data_hash, int(numbers.checksum)))
    # All ranks read the same sums of this step here, one step later, so they stop and save after the same step.
    _agree_to_stop(run, numbers.stop)
    run.checkpoints.agreed |= bool(int(numbers.asks) & SAVE)
    run.waits = bool(int(numbers.asks) & WAIT)
    run.long_step = dist.get_rank() == 0 and seconds > LONG_STEP
    tokens = phase.step_tokens
    speed, peak = tokens / seconds / dist.get_world_size(), run.device.peak
    slow = run.stragglers.done(numbers.step, seconds, run.feed.waited)
    if slow is not None and slow["behind"] > NOTABLE:
        run.report(
            f"slow: rank {slow['rank']} on {slow['host']}: {KINDS[slow['kind']]} takes {slow['seconds']:.4f} s (median "
            f"rank {slow['median']:.4f} s), which costs {slow['behind']:.0%} of a step"
        )
    run.log.step(
        {
            "step": numbers.step,
            "loss": numbers.loss,
            "learned": int(numbers.learned),
            "tokens": run.segment.tokens_after(numbers.step),
            "grad_norm": numbers.grad_norm,
            "lr": run.segment.rate(numbers.step - 1),
            "skipped": int(numbers.skipped),
            "seconds": seconds,
            "tokens_per_second": tokens / seconds,
            "tokens_per_second_per_device": speed,
            "mfu": speed * phase.model.flops_per_token(phase.view.seq_len) / peak if peak else None,
            "data_wait": done.waited,
            "memory_peak": torch.cuda.max_memory_allocated() if run.device.is_gpu else None,
            **_sensed(run, numbers.step, seconds, done.waited),
            "data_hash": run.progress.data_hash,
            "slowest": slow,
        }
    )
    if numbers.step % run.config.log_every == 0:
        _goodput(run)
    # The stop must leave time for a save, the current step and the step queued after it; the factors leave a reserve.
    run.stop.margin = FIRST_MARGIN + 2 * run.checkpoints.save_seconds + 3 * seconds
    _warn_of_launcher(run, 2 * seconds + run.checkpoints.save_seconds)
    if numbers.in_a_row > MAX_SKIPS:
        raise PretokError(
            f"the last {numbers.in_a_row:.0f} steps up to {numbers.step} were skipped (last gradient norm "
            f"{numbers.grad_norm}, over {numbers.learned:.0f} tokens with loss); the newest checkpoint is not "
            "affected. Lower --lr, or raise --skip-sigma"
        )


def _asked(run: Run) -> bool:
    """Return whether this rank was asked to stop."""
    return run.stop.reason is not None


def _agree_to_stop(run: Run, ranks: float) -> None:
    """End the run after the current step if any ranks were asked to stop. ranks: their number, the same on all."""
    if ranks and not run.stop_agreed:
        run.stop_agreed = True
        run.report(
            f"{clock()} {_why(run)}: the run ends after the current steps; Ctrl-C again ends it at once"
        )


def _warn_of_launcher(run: Run, needed: float) -> None:
    """Report once if a stop needs more seconds than torchrun leaves its ranks. `train.launch` leaves them all."""
    ends = "SIGTERM" in os.environ.get("TORCHELASTIC_SIGNALS_TO_HANDLE", "SIGTERM")
    limit = float(os.environ.get("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "30"))
    if not run.warned and ends and "TORCHELASTIC_RUN_ID" in os.environ and needed > limit:
        run.warned = True
        run.report(
            f"warning: a stop takes up to {needed:.0f} s (two steps and a save), but torchrun kills its ranks "
            f"{limit:.0f} s after a SIGTERM, before they have saved: set TORCH_ELASTIC_SHUTDOWN_TIMEOUT="
            f"{2 * needed:.0f}, or start them with python -m train.launch"
        )


def _sensed(run: Run, step: int, seconds: float, waited: float) -> dict[str, float | None]:
    """Return what rank 0's device says every `log_every` steps, for the time since it was last asked."""
    run.unseen = (run.unseen[0] + seconds, run.unseen[1] + waited)
    if dist.get_rank() or step % run.config.log_every:
        return NOTHING
    since, run.unseen = run.unseen, (0.0, 0.0)
    return run.monitor.look(*since)


def _why(run: Run) -> str:
    """Return the reason why the run stops."""
    return run.stop.reason or "another rank was asked to"


def _check_folder(run: Run) -> None:
    """Raise MismatchError if another run owns the folder now: this one hung, or its lock was deleted.

    Only rank 0 has the lock. The other ranks read its error in the store (`train.parallel.group`).
    """
    if run.lost.is_set():
        raise MismatchError(
            f"the lock of {run.config.out} was deleted or taken by another run, which now owns the folder; this run "
            "ends without saving"
        )


def _validate(run: Run) -> None:
    try:
        with _beside(run, "validation"):
            result = evaluate(run.state, run.validation, partial(_asked, run))
    except UsageError as error:  # on all ranks: nothing to score
        if run.config.val_every is not None or run.config.keep_best:
            raise
        run.val_every = 0
        run.report(f"validation ends: {error}")
        return
    if result is None:  # on all ranks, which agreed after the same batch
        run.stop_agreed = True
        return
    progress, run.val_loss = run.progress, result["val_loss"]
    run.log.validation({"step": progress.step, **result})
    best = tuple(sorted([*progress.best, run.val_loss])[: run.config.keep_best])
    if run.val_loss in best and math.isfinite(run.val_loss):
        run.progress = replace(progress, best=best)
        run.checkpoints.agreed = True


def _save(run: Run) -> None:
    """Save the state after the steps done so far, unless it is saved already. A non-finite state raises PretokError."""
    with _beside(run, "saving"):
        run.checkpoints.agreed = False
        progress, phase = run.progress, run.segment.phase
        if not run.checkpoints.wanted(progress.step, run.val_loss):
            return
        _check_folder(run)
        # The norm is a collective with the same result everywhere: if one rank has a bad value, all of them raise.
        if not math.isfinite(global_norm(run.state.parameters, run.state.mesh).item()):
            raise PretokError(f"parameters are not finite after step {progress.step}; nothing was saved")
        meta = Meta(
            step=progress.step,
            progress=progress,
            val_loss=run.val_loss,
            identity=phase.identity(),
            config=run.config.as_dict(),
            eod_id=phase.view.eod_id,
            bos_id=phase.view.bos_id,
            tokenizer=phase.tokenizer(),
            provenance=provenance() | {"manifest": phase.view.manifest_fingerprint},
        )
        # A checkpoint must not be complete before the lines of its steps are on disk.
        run.checkpoints.save(run.state.tensors(), run.state.mesh, meta, run.log.flush)
        run.checkpoints.saved_at = time.monotonic()


def _goodput(run: Run) -> str:
    """Update RUN/goodput.jsonl and return the sum over all attempts as text; rank 0 only."""
    steps = run.progress.step - run.first
    return run.goodput.write(steps, run.feed.waited, run.monitor.energy, run.stop.margin)


@contextmanager
def _profiler(config: TrainConfig) -> Iterator[Callable[[], None]]:
    """Yield a function to call after each step; rank 0 profiles steps 4 to 3 + `profile` into RUN/profile.json."""
    if not config.profile or dist.get_rank():
        yield lambda: None
        return
    with torch.profiler.profile(
        schedule=torch.profiler.schedule(wait=2, warmup=1, active=config.profile, repeat=1),
        on_trace_ready=lambda done: done.export_chrome_trace(f"{config.out}/profile.json"),
    ) as profiler:
        yield profiler.step
