"""The runs of a comparison: what each one is, and the processes that do those that are missing.

Enters: what was asked for. Leaves: files of token ids for the runs to do, fresh processes that read them, a Point for
each run under OUT/points, all of them in OUT/points.parquet. A point that is there is not made again, and one of other
settings is refused.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

from pretok.base.children import child_environment
from pretok.base.errors import MismatchError, PretokError, Stopped, UsageError
from pretok.base.lock import hold
from pretok.base.records import read_record, replace, to_json
from pretok.base.stop import StopFlag
from pretok.base.storage import read_json, write_json
from pretok.base.units import short, short_bytes
from train.config import TrainConfig
from train.model.sizes import model_config
from train.parallel.batch import solve_batch
from train.tools.compare_point import Point, PointJob, PointSpec
from train.tools.compare_read import write_points
from train.tools.compare_text import (
    Arm,
    Ordered,
    check_same,
    choose_validation,
    open_arm,
    order_documents,
    read_along,
    text_weights,
    write_documents,
)

SETTINGS = (
    *("seq_len", "rope_theta", "attention", "global_batch", "micro_batch", "accumulation", "lr", "min_lr"),
    *("schedule", "decay", "beta1", "beta2", "eps", "weight_decay", "decay_embeddings", "clip", "z_loss"),
    *("init", "skip_sigma", "precision", "checkpointing", "compile", "loss_chunk", "deterministic"),
)
"""Settings of the trainer that the arms share; the others are decided here or have no meaning for one device."""
WARMUP = 20
"""One step in so many is of the warm-up."""
LEAST_STEPS = 2 * WARMUP


@dataclass(frozen=True, slots=True)
class Asked:
    """What a comparison is: the command line, checked."""

    arms: dict[str, Path]
    model: str
    config: TrainConfig
    compute: tuple[float, ...]
    seeds: range
    weights: Mapping[str, Fraction] | None
    val_bytes: int
    out: Path
    jobs: int
    threads: int


def compare(asked: Asked) -> list[Point]:
    """Do every run that is missing; all points asked for, in the order of the arms, compute and seeds.

    Raises UsageError, MismatchError (the arms hold different documents, or DIR points of other settings), Stopped.
    """
    arms = [open_arm(name, work) for name, work in asked.arms.items()]
    check_same(arms)
    with hold(asked.out, "compare"), StopFlag() as stop:
        points, jobs = _plan(asked, arms)
        runs = len(points) + len(jobs)
        for point in _run_all(jobs, asked.jobs, stop):
            points.append(point)
            print(_line(point, len(points), runs), flush=True)
        for path in (asked.out / "text").glob("*"):
            path.unlink()
        every = [_read_point(path) for path in sorted((asked.out / "points").glob("*.json"))]
        write_points(every, asked.out / "points.parquet")
    names = list(asked.arms)
    return sorted(points, key=lambda p: (names.index(p.spec.arm), p.spec.compute, p.spec.seed))


def _plan(asked: Asked, arms: Sequence[Arm]) -> tuple[list[Point], list[PointJob]]:
    """The points that are there, and jobs for those that are not with their files, the cheapest first."""
    done, jobs = [], []
    weights = text_weights(arms[0], asked.weights)
    validation = {source: choose_validation(arms[0], source, asked.val_bytes) for source in weights}
    val_bytes = {source: int(read_along(arms[0], chosen).sizes[-1]) for source, chosen in validation.items()}
    val_documents = {source: len(chosen.document) for source, chosen in validation.items()}
    held = {"weights": weights, "val_bytes": val_bytes, "val_documents": val_documents}
    folder = (asked.out / "text").absolute()
    orders = {seed: order_documents(arms[0], weights, seed) for seed in asked.seeds}
    for compute in sorted(asked.compute):
        for seed, ordered in orders.items():
            for arm in arms:
                spec = _specify(asked, arm, compute, seed, ordered, held)
                out = asked.out.absolute() / "points" / f"{arm.name}-{compute:g}-{seed}.json"
                if out.exists():
                    done.append(_checked(out, spec))
                    continue
                text = str(folder / f"{arm.name}-{seed}.bin")
                files = {source: str(folder / f"{arm.name}-val-{source}.bin") for source in weights}
                jobs.append(PointJob(spec, text, files, str(out), asked.threads))
    _write_files(arms, jobs, orders, validation)
    return done, jobs


def _specify(
    asked: Asked, arm: Arm, compute: float, seed: int, ordered: Ordered, held: Mapping[str, Any]
) -> PointSpec:
    """The run of one arm. UsageError where its compute is too little, or needs more text than there is."""
    config, manifest = asked.config, arm.manifest
    sizes = model_config(asked.model)
    seq_len = config.seq_len or sizes.seq_len
    theta = sizes.rope_theta if config.rope_theta is None else config.rope_theta
    sizes = replace(sizes, vocab_size=manifest.vocab_size, seq_len=seq_len, rope_theta=float(theta))
    batch = solve_batch(1, config.global_batch, config.micro_batch, config.accumulation)
    step_flops = batch.global_batch * seq_len * sizes.flops_per_token(seq_len)
    steps = int(compute // step_flops)
    if steps < LEAST_STEPS:
        raise UsageError(
            f"--compute {compute:g} is {steps} steps of arm {arm.name}, a step being {step_flops:.2e} FLOPs; at least "
            f"{LEAST_STEPS} are needed: ask for more, or lower --global-batch or --seq-len"
        )
    tokens, stream = steps * batch.global_batch * seq_len, read_along(arm, ordered)
    if tokens > stream.tokens[-1]:
        raise UsageError(
            f"--compute {compute:g} makes arm {arm.name} read {short(tokens)} tokens; in the proportion of the "
            f"weights there are {short(int(stream.tokens[-1]))}, after which a source would be read again: ask for "
            "less, or add text"
        )
    settings = {name: getattr(config, name) for name in SETTINGS}
    changed = {name: value for name, value in settings.items() if value != getattr(TrainConfig(), name)}
    return PointSpec(
        arm=arm.name,
        compute=compute,
        seed=seed,
        model=Path(asked.model).stem,
        sizes=sizes,
        settings=changed | {"warmup": max(1, steps // WARMUP)},
        steps=steps,
        shards=manifest.fingerprint,
        eod_id=manifest.eod_id,
        dtype=manifest.dtype,
        text_bytes=stream.text_bytes(tokens),
        **held,
    )


def _write_files(
    arms: Sequence[Arm],
    jobs: Sequence[PointJob],
    orders: Mapping[int, Ordered],
    validation: Mapping[str, Ordered],
) -> None:
    """What the jobs read: of each arm its validation documents and, for each seed, the text of its longest run."""
    by_name = {arm.name: arm for arm in arms}
    rising = sorted(jobs, key=lambda job: job.spec.tokens)
    for job in {job.text: job for job in rising}.values():
        arm, ordered = by_name[job.spec.arm], orders[job.spec.seed]
        count = int(read_along(arm, ordered).tokens.searchsorted(job.spec.tokens)) + 1
        write_documents(arm, ordered, Path(job.text), count)
    for job in {job.spec.arm: job for job in jobs}.values():
        for source, path in job.validation.items():
            write_documents(by_name[job.spec.arm], validation[source], Path(path))


def _checked(path: Path, spec: PointSpec) -> Point:
    """The point at `path`. MismatchError when it is of another run than `spec`."""
    point = _read_point(path)
    if point.spec != spec:
        old, new = to_json(point.spec), to_json(spec)
        different = [f"{key} {old.get(key)} -> {new.get(key)}" for key in new if old.get(key) != new.get(key)]
        raise MismatchError(f"{path} is of another comparison ({'; '.join(different)}); choose another --out")
    return point


def _read_point(path: Path) -> Point:
    return read_record(Point, read_json(path), path)


def _run_all(jobs: list[PointJob], at_once: int, stop: StopFlag) -> Iterator[Point]:
    """Points as they are done. Takes jobs from the front of the list. The processes end with this generator."""
    running: dict[subprocess.Popen[str], PointJob] = {}
    try:
        while jobs or running:
            if stop.reason:
                raise Stopped(
                    f"{stop.reason}: the points that are done are kept; run the same command to go on"
                )
            while jobs and len(running) < at_once:
                job = jobs.pop(0)
                running[_start(job)] = job
            for process in [process for process in running if process.poll() is not None]:
                job = running.pop(process)
                errors = process.communicate()[1]
                if process.returncode:
                    lines = errors.strip().splitlines()
                    raise PretokError(
                        f"the run of arm {job.spec.arm}, {job.spec.compute:g} FLOPs, seed {job.spec.seed} failed: "
                        f"{lines[-1] if lines else f'exit code {process.returncode}'}"
                    )
                Path(job.out).with_suffix(".job").unlink()
                yield _read_point(Path(job.out))
            time.sleep(0.05)
    finally:
        for process in running:
            process.terminate()
            process.communicate()


def _start(job: PointJob) -> subprocess.Popen[str]:
    path = Path(job.out).with_suffix(".job")
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, to_json(job))
    environment = child_environment()
    if job.threads:
        environment["OMP_NUM_THREADS"] = str(job.threads)
    command = [sys.executable, "-m", "train.tools.compare_point", str(path)]
    return subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=environment
    )


def _line(point: Point, done: int, of: int) -> str:
    spec = point.spec
    bits = ", ".join(f"{source} {value:.4f}" for source, value in point.bits.items())
    skipped = f", {point.skipped} of them skipped" if point.skipped else ""
    return (
        f"{done}/{of} {spec.arm} {spec.compute:.3g} FLOPs seed {spec.seed}: {bits} bits per byte; "
        f"{spec.steps} steps{skipped}, {short(spec.tokens)} tokens, {short_bytes(spec.text_bytes)} of text, "
        f"{point.seconds:.0f} s"
    )
