"""Vocabularies of several sizes against each other, by bits per byte at equal compute.

    python -m benchmarks.arms WORK     # builds the arms in WORK and trains them with `train`, or continues
    python -m benchmarks.arms          # the table of the points in benchmarks/arms.parquet

The vocabularies are scaled down with the models, so that the output matrix does not do nearly all of the work. Each run
gets the steps that its FLOPs pay for, output matrix and attention counted. A difference is paired by seed; its interval
is Student's t over the seeds, 95 %.

An earlier program made the points in arms.parquet: all arms read the same documents in the same order, at three
computes, and some had superwords. Here each arm has its own mix by weights in tokens, so pairs share a seed alone.
"""

from __future__ import annotations

import math
import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

import pretok
from benchmarks.inputs import Inputs
from benchmarks.measure import Table, markdown
from pretok.base.records import replace
from pretok.base.storage import read_lines
from pretok.shards.manifest import load_manifest
from train.model.sizes import model_config

WEIGHTS = {"it": 0.9, "en": 0.1}
ARMS = {"plain-4k": 4000, "plain-2k": 2000, "plain-8k": 8000}
"""Names, and sizes of the vocabularies; the first is what the others are compared with."""
COMPUTE = 1.5e12
"""FLOPs of a run."""
MODEL = "dim = 64\nlayers = 2\nheads = 2\nkv_heads = 2\nhidden = 192\nseq_len = 128\ntied = false\n"
BATCH, LENGTH, SEEDS = 4, 128, range(6)
FLAGS = ("--lr", "2.5e-3", "--beta2", "0.99", "--global-batch", BATCH, "--seq-len", LENGTH)
POINTS = Path(__file__).with_suffix(".parquet")
T95 = (12.706, 4.303, 3.182, 2.776, 2.571)
"""Student's t, 97.5 %, by degrees of freedom from 1 on."""


def command(*arguments: object) -> None:
    """A command of this project, in one thread."""
    subprocess.run([sys.executable, "-m", *map(str, arguments)], check=True)


def build(work: Path, arm: str) -> None:
    """Vocabulary, shards and a mix for each seed of an arm."""
    inputs, weights = Inputs(work).arguments, ",".join(f"{name}={share}" for name, share in WEIGHTS.items())
    flags = ("--out", work / arm, "--workers", 0)
    command("pretok", "build-vocab", *inputs, "--weights", weights, "--vocab-size", ARMS[arm], *flags)
    command("pretok", "tokenize", *inputs, "--val-fraction", 0.01, *flags)
    for seed in SEEDS:
        pretok.mix(work / arm, work / arm / f"mix-{seed}.json", weights=WEIGHTS, seq_len=LENGTH, seed=seed)


def point(work: Path, arm: str, seed: int) -> Iterator[dict[str, Any]]:
    """Train one run, or read what it left: a row for each source."""
    out, shards, model = work / "runs" / f"{arm}-{seed}", work / arm / "shards", work / "model.toml"
    entries = load_manifest(shards).tokenizer.vocab_size
    sizes = replace(model_config(str(model)), vocab_size=entries)
    steps = int(COMPUTE // (BATCH * LENGTH * sizes.flops_per_token(LENGTH)))
    if not (out / "done.json").exists():
        data = ("--shards", shards, "--mix", work / arm / f"mix-{seed}.json", "--model", model, "--out", out)
        length = ("--steps", steps, "--warmup", max(1, steps // 20), "--seed", seed)
        scores = ("--val-every", steps, "--val-sequences", 10_000, "--save-every", "never")
        command("train", *data, *length, *FLAGS, *scores)
    for source, bits in read_lines(out / "validation.jsonl")[-1]["bits_per_byte"].items():
        yield {"arm": arm, "compute": COMPUTE, "seed": seed, "source": source, "bits_per_byte": bits}


def run(work: Path) -> list[dict[str, Any]]:
    """All points; those that are missing are made."""
    work.mkdir(parents=True, exist_ok=True)
    (work / "model.toml").write_text(MODEL)
    for arm in ARMS:
        if not (work / arm / f"mix-{SEEDS[-1]}.json").exists():
            build(work, arm)
    return [row for seed in SEEDS for arm in ARMS for row in point(work, arm, seed)]


def table(points: list[dict[str, Any]]) -> Table:
    """The difference of each arm to the first, by compute: of the mix, as mean over the seeds."""
    bits: dict[tuple[str, float, int], float] = {}
    for row in points:
        key = row["arm"], row["compute"], row["seed"]
        bits[key] = bits.get(key, 0) + WEIGHTS[row["source"]] * row["bits_per_byte"]
    first, rows = next(iter(ARMS)), Table()
    for arm, compute in dict.fromkeys(key[:2] for key in bits if key[0] != first):
        seeds = [seed for name, flops, seed in bits if (name, flops) == (arm, compute)]
        base = statistics.mean(bits[first, compute, seed] for seed in seeds)
        found = [bits[arm, compute, seed] - bits[first, compute, seed] for seed in seeds]
        mean, count = statistics.mean(found), len(found)
        half = T95[count - 2] * statistics.stdev(found) / math.sqrt(count)
        rows[f"{arm}, {compute:.3g} FLOPs, {count} seeds"] = {
            f"bits per byte of {first}": base,
            "difference": mean,
            "+-": half,
            "%": 100 * mean / base,
        }
    return rows


if __name__ == "__main__":
    print(markdown(table(run(Path(sys.argv[1])) if sys.argv[1:] else pq.read_table(POINTS).to_pylist())))
