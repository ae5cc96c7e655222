"""`train compare`: vocabularies compared by what models learn with them, bits per byte at equal training compute.

Input: WORK folders of several vocabularies on the same text, sizes of a model, amounts of compute, seeds. Output in
DIR: a Point for each run under points/, all of them in points.parquet, the picture compare.svg, and on the terminal the
table of paired differences.

Each run gets the steps that its FLOPs pay for, by the formula of `train plan` (the output matrix and attention
counted), so a larger vocabulary gets fewer, and one with shorter text reads more of it. Sequence length, batch in
tokens and learning rate are equal. A run is a process of its own and reads files of token ids; one that is there is not
made again, and one of other settings is refused.
"""

from __future__ import annotations

import argparse
import math
import subprocess
import sys
import time
import tomllib
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
from pretok.base.storage import checksum, fingerprint, read_json, write_json
from pretok.base.units import human, human_bytes
from pretok.stream.quota import parse_weights
from train.checkpoint.export import check_tokenizer
from train.checkpoint.meta import TokenizerOrigin
from train.compare.point import Point, PointJob, PointSpec
from train.compare.report import draw_points, report_points, write_points
from train.compare.text import (
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
from train.config import TrainConfig, from_mapping, whole_number
from train.model.sizes import CONFIG, model_config
from train.parallel.layout import solve_batch

SETTINGS = (
    *("seq_len", "rope_theta", "attention", "global_batch", "micro_batch", "accumulation", "lr", "min_lr"),
    *("schedule", "decay", "beta1", "beta2", "eps", "weight_decay", "decay_embeddings", "clip", "z_loss"),
    *("init", "skip_sigma", "precision", "checkpointing", "compile", "loss_chunk", "deterministic"),
)
"""Settings of the trainer that the arms share; the others are decided here or have no meaning for one device."""
WARMUP = 20
"""One step in so many is of the warm-up."""
LEAST_STEPS = 2 * WARMUP
DEFAULTS = {"lr": 2e-3, "global_batch": 16}
"""Of small models; those of the trainer are of large ones."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What a comparison is: the command line, checked."""

    arms: dict[str, Path]
    model: str
    init_from: Path | None
    maps: dict[str, Path]
    config: TrainConfig
    compute: tuple[float, ...]
    seeds: range
    weights: Mapping[str, Fraction] | None
    val_bytes: int
    out: Path
    jobs: int
    threads: int


def _named(option: str, what: str, texts: Sequence[str]) -> dict[str, Path]:
    named: dict[str, Path] = {}
    for text in texts:
        name, _, path = text.partition("=")
        if not path or not name.replace("-", "").replace("_", "").isalnum() or name in named:
            raise UsageError(
                f"{option} {text}: it must be NAME={what}, each name once, of letters, digits, - and _"
            )
        named[name] = Path(path)
    return named


def _amounts(text: str, init_from: Path | None) -> tuple[float, ...]:
    """Of 0 FLOPs there is something to be said where a model has learned before."""
    try:
        found = [float(part) for part in text.split(",")]
    except ValueError:
        found = []
    enough = all(0 < value < math.inf or (value == 0 and init_from is not None) for value in found)
    if not found or not enough or len(set(found)) < len(found):
        raise UsageError(
            f"--compute {text}: it must be numbers above 0 (or 0 with --init-from), each once, with commas"
        )
    return tuple(found)


def parse_asked(arguments: Sequence[str]) -> Asked:
    """The command line. UsageError names what is wrong in it."""
    space = _parser().parse_args(list(arguments))
    values: dict[str, Any] = {}
    if space.config:
        try:
            values = tomllib.loads(space.config.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise UsageError(f"--config {space.config}: {error}") from None
    if refused := set(values) - set(SETTINGS):
        raise UsageError(
            f"--config {space.config}: {', '.join(sorted(refused))} cannot be set for a comparison; what can: "
            f"{', '.join(SETTINGS)}"
        )
    flags = {name: getattr(space, name) for name in ("seq_len", "global_batch", "lr")}
    flags = {name: value for name, value in flags.items() if value is not None}
    if min(space.seeds, space.jobs, space.val_bytes) < 1:
        raise UsageError("--seeds, --jobs and --val-bytes must be at least 1")
    arms = _named("--arm", "WORK", space.arm or ())
    if len(arms) < 2:
        raise UsageError("--arm is needed twice at least; the first is what the others are compared with")
    maps = _named("--vocab-map", "MAP", space.vocab_map or ())
    if maps and space.init_from is None:
        raise UsageError("--vocab-map needs --init-from")
    if unknown := maps.keys() - arms.keys():
        raise UsageError(f"--vocab-map: there is no arm {min(unknown)}")
    if space.init_from is not None and not (space.init_from / CONFIG).is_file():
        raise UsageError(
            f"--init-from: {space.init_from} is no folder of transformers; train export writes one of a checkpoint"
        )
    return Asked(
        arms=arms,
        model=space.model or str(space.init_from or "3m"),
        init_from=space.init_from,
        maps=maps,
        config=from_mapping(DEFAULTS | values | flags, "command line"),
        compute=_amounts(space.compute, space.init_from),
        seeds=range(space.first_seed, space.first_seed + space.seeds),
        weights=parse_weights(space.weights),
        val_bytes=space.val_bytes,
        out=space.out,
        jobs=space.jobs,
        threads=space.threads,
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="train compare",
        description="Train small models on the same text in several vocabularies, each for the same FLOPs, and compare "
        "their bits per byte. Run it again to go on, or with more --compute, --seeds or --arm to add to it.",
        epilog="example:\n  train compare --arm plain=WORK1 --arm super=WORK2 --model 3m --compute 1e13,3e13,1e14 \\\n"
        "      --seeds 3 --weights it=0.9,en=0.1 --out DIR",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    number, settings = whole_number, "(a setting of `train`)"
    parser.add_argument(
        "--arm", action="append", metavar="NAME=WORK", help="a vocabulary; the first is the baseline"
    )
    parser.add_argument(
        "--model", help="debug, 3m, 10m or a TOML file of sizes (default: that of --init-from, else 3m)"
    )
    parser.add_argument(
        "--init-from",
        type=Path,
        metavar="MODEL",
        help="start all arms from the weights of a transformers folder",
    )
    parser.add_argument(
        "--vocab-map",
        action="append",
        metavar="NAME=MAP",
        help="the arm's vocabulary is the model's, extended: the map beside it",
    )
    parser.add_argument(
        "--compute",
        required=True,
        help="FLOPs of a run, such as 1e13,3e13; 0 is the model of --init-from as it is",
    )
    parser.add_argument(
        "--seeds", type=number, default=3, help="of weights and order of documents (default: 3)"
    )
    parser.add_argument(
        "--first-seed", type=number, default=0, help="3 makes a second set of seeds (default: 0)"
    )
    parser.add_argument(
        "--weights", default="natural", help="of the sources in bytes of text (default: natural, as on disk)"
    )
    parser.add_argument(
        "--val-bytes", type=number, default=1_000_000, help="scored of each source (default: 1M)"
    )
    parser.add_argument("--seq-len", type=number, help=f"{settings} (default: the model's)")
    parser.add_argument("--global-batch", type=number, help=f"sequences in a step {settings} (default: 16)")
    parser.add_argument("--lr", type=float, help=f"{settings} (default: 2e-3)")
    parser.add_argument("--config", type=Path, help="TOML file of other settings: compile = true, ...")
    parser.add_argument("--jobs", type=number, default=1, help="runs at a time (default: 1)")
    parser.add_argument("--threads", type=number, default=0, help="of a run on a CPU (default: torch's)")
    parser.add_argument("--out", type=Path, required=True, help="folder to make, or to go on in")
    return parser


def compare(asked: Asked) -> list[Point]:
    """Do every run that is missing; all points asked for, in the order of the arms, compute and seeds.

    Raises UsageError, MismatchError (the arms hold different documents, or DIR points of other settings), Stopped.
    """
    arms = [open_arm(name, work) for name, work in asked.arms.items()]
    check_same(arms)
    if asked.init_from is not None:
        for arm in arms:
            origin = TokenizerOrigin(arm.manifest.tokenizer.fingerprint, f"arm {arm.name}")
            check_tokenizer(asked.init_from, origin, print, asked.maps.get(arm.name))
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
    begins = {arm.name: _beginning(asked, arm.name) for arm in arms}
    folder = (asked.out / "text").absolute()
    orders = {seed: order_documents(arms[0], weights, seed) for seed in asked.seeds}
    for compute in sorted(asked.compute):
        for seed, ordered in orders.items() if compute else [*orders.items()][:1]:
            for arm in arms:
                spec = _specify(asked, arm, compute, seed, ordered, held | {"beginning": begins[arm.name]})
                out = asked.out.absolute() / "points" / f"{arm.name}-{compute:g}-{seed}.json"
                if out.exists():
                    done.append(_checked(out, spec))
                    continue
                text = str(folder / f"{arm.name}-{seed}.bin")
                files = {source: str(folder / f"{arm.name}-val-{source}.bin") for source in weights}
                start = str(asked.init_from) if asked.init_from else None
                vocab_map = str(asked.maps[arm.name]) if arm.name in asked.maps else None
                jobs.append(PointJob(spec, text, files, str(out), asked.threads, start, vocab_map))
    _write_files(arms, jobs, orders, validation)
    return done, jobs


def _beginning(asked: Asked, arm: str) -> str | None:
    """Fingerprint of the model that an arm begins with and of its map, None where it begins with random weights."""
    if asked.init_from is None:
        return None
    files = [asked.init_from / CONFIG, *sorted(asked.init_from.glob("*.safetensors"))]
    if arm in asked.maps:
        files.append(asked.maps[arm])
    return fingerprint([checksum(path) for path in files])


def _specify(
    asked: Asked, arm: Arm, compute: float, seed: int, ordered: Ordered, held: Mapping[str, Any]
) -> PointSpec:
    """The run of one arm. UsageError where its compute is too little, or needs more text than there is."""
    config, manifest = asked.config, arm.manifest
    sizes = model_config(asked.model)
    seq_len = config.seq_len or sizes.seq_len
    theta = sizes.rope_theta if config.rope_theta is None else config.rope_theta
    rows = 0 if asked.init_from is None or arm.name in asked.maps else sizes.rows
    sizes = replace(
        sizes,
        rows=rows,
        vocab_size=manifest.tokenizer.vocab_size,
        seq_len=seq_len,
        rope_theta=float(theta),
    )
    batch = solve_batch(1, config.global_batch, config.micro_batch, config.accumulation)
    step_flops = batch.global_batch * seq_len * sizes.flops_per_token(seq_len)
    steps = int(compute // step_flops)
    if compute and steps < LEAST_STEPS:
        raise UsageError(
            f"--compute {compute:g} is {steps} steps of arm {arm.name}, a step being {step_flops:.2e} FLOPs; at least "
            f"{LEAST_STEPS} are needed: ask for more, or lower --global-batch or --seq-len"
        )
    tokens, stream = steps * batch.global_batch * seq_len, read_along(arm, ordered)
    if tokens > stream.tokens[-1]:
        raise UsageError(
            f"--compute {compute:g} makes arm {arm.name} read {human(tokens)} tokens; in the proportion of the "
            f"weights there are {human(int(stream.tokens[-1]))}, after which a source would be read again: ask for "
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
        eod_id=manifest.tokenizer.eod_id,
        dtype=manifest.tokenizer.dtype,
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
        different = [
            f"{key} {old.get(key)} -> {new.get(key)}" for key in old | new if old.get(key) != new.get(key)
        ]
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
    command = [sys.executable, "-m", "train.compare.point", str(path)]
    return subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=environment
    )


def _line(point: Point, done: int, of: int) -> str:
    spec = point.spec
    bits = ", ".join(f"{source} {value:.4f}" for source, value in point.bits.items())
    skipped = f", {point.skipped} of them skipped" if point.skipped else ""
    return (
        f"{done}/{of} {spec.arm} {spec.compute:.3g} FLOPs seed {spec.seed}: {bits} bits per byte; "
        f"{spec.steps} steps{skipped}, {human(spec.tokens)} tokens, {human_bytes(spec.text_bytes)} of text, "
        f"{point.seconds:.0f} s"
    )


def main(arguments: Sequence[str]) -> None:
    """`train compare`."""
    asked = parse_asked(arguments)
    points = compare(asked)
    draw_points(points, asked.out / "compare.svg")
    print(report_points(points))
