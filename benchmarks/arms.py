"""Vocabularies against each other by bits per byte at equal compute: pattern and size.

    python -m benchmarks.arms CORPUS WORK     # builds the arms in WORK and trains them with `train`, or goes on
    python -m benchmarks.arms --read          # the table of the points in benchmarks/arms.parquet

CORPUS holds the files named in INPUTS, JSON Lines with `text`. The vocabularies are scaled down with the models, so
that the output matrix does not do nearly all of the work. Each run gets the steps that its FLOPs pay for, output matrix
and attention counted. A difference is paired by seed; its interval is Student's t over the seeds, 95 %.

An earlier program made the points in arms.parquet: all arms read the same documents in the same order, at three
computes, and some had superwords. Here each arm has its own mix by weights in tokens, so pairs share a seed alone.
"""

from __future__ import annotations

import argparse
import math
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

import pretok
from pretok.base.records import replace
from pretok.base.storage import read_lines
from pretok.shards.manifest import load_manifest
from train.model.sizes import model_config

INPUTS = {
    "it": ("gutenberg-it-00", "microsoftdocs-it-00", "debian-docs-it-00"),
    "en": ("eltec-en-01", "proposals-en-00"),
}
WEIGHTS = {"it": 0.9, "en": 0.1}
ARMS = {
    "plain-4k": ("--vocab-size", "4000"),
    "plain-2k": ("--vocab-size", "2000"),
    "plain-8k": ("--vocab-size", "8000"),
}
"""Names, and flags of `build-vocab`; the first is what the others are compared with."""
COMPUTE = 1.5e12
"""FLOPs of a run."""
MODEL = "dim = 64\nlayers = 2\nheads = 2\nkv_heads = 2\nhidden = 192\nseq_len = 128\ntied = false\n"
BATCH, LENGTH, SEEDS = 4, 128, range(6)
FLAGS = ("--lr", "2.5e-3", "--beta2", "0.99", "--global-batch", str(BATCH), "--seq-len", str(LENGTH))
POINTS = Path(__file__).with_suffix(".parquet")
T95 = (12.706, 4.303, 3.182, 2.776, 2.571)
"""Student's t, 97.5 %, by degrees of freedom from 1 on."""
SETS = {"seeds 0 to 2": range(3), "seeds 3 to 5": range(3, 6), "all seeds": SEEDS}


def command(*arguments: object) -> None:
    """A command of this project, in one thread."""
    subprocess.run([sys.executable, "-m", *map(str, arguments)], check=True)


def build(corpus: Path, work: Path, arm: str) -> None:
    """Vocabulary, shards and a mix for each seed of an arm."""
    out, weights = work / arm, ",".join(f"{name}={weight}" for name, weight in WEIGHTS.items())
    inputs = [f"{name}={corpus / name / file}.jsonl.zst" for name, files in INPUTS.items() for file in files]
    flags = ("--out", out, "--workers", 0)
    command("pretok", "build-vocab", *inputs, "--weights", weights, *ARMS[arm], *flags)
    command("pretok", "tokenize", *inputs, "--val-fraction", 0.01, *flags)
    for seed in SEEDS:
        pretok.mix(out, out / f"mix-{seed}.json", weights=WEIGHTS, seq_len=LENGTH, seed=seed)


def point(work: Path, arm: str, seed: int) -> Iterator[dict[str, Any]]:
    """Train one run, or read what it left: a row for each source."""
    out, shards = work / "runs" / f"{arm}-{COMPUTE:g}-{seed}", work / arm / "shards"
    entries = load_manifest(shards).tokenizer.vocab_size
    sizes = replace(model_config(str(work / "model.toml")), vocab_size=entries)
    steps = int(COMPUTE // (BATCH * LENGTH * sizes.flops_per_token(LENGTH)))
    if not (out / "done.json").exists():
        data = ("--shards", shards, "--mix", work / arm / f"mix-{seed}.json", "--model", work / "model.toml")
        length = ("--steps", steps, "--warmup", max(1, steps // 20), "--seed", seed)
        scores = ("--val-every", steps, "--val-sequences", 10_000, "--save-every", "never")
        command("train", *data, *length, *FLAGS, *scores, "--out", out)
    scored = read_lines(out / "validation.jsonl")[-1]["bits_per_byte"]
    for source, bits in scored.items():
        row = {"arm": arm, "compute": COMPUTE, "seed": seed, "source": source, "bits_per_byte": bits}
        yield row | {"vocab_size": entries, "steps": steps, "tokens": steps * BATCH * LENGTH}


def run(corpus: Path, work: Path) -> list[dict[str, Any]]:
    """All points, those that are missing made; WORK/arms.parquet."""
    work.mkdir(parents=True, exist_ok=True)
    (work / "model.toml").write_text(MODEL)
    for arm in ARMS:
        if not (work / arm / f"mix-{SEEDS[-1]}.json").exists():
            build(corpus, work, arm)
    rows = [row for seed in SEEDS for arm in ARMS for row in point(work, arm, seed)]
    pq.write_table(pa.Table.from_pylist(rows), work / POINTS.name)
    return rows


def differences(
    rows: Sequence[dict[str, Any]], seeds: Sequence[int]
) -> Iterator[tuple[str, float, str, list[float], float]]:
    """(arm, compute, source, differences to the first arm by seed, mean of that one's bits per byte)."""
    bits = {(row["arm"], row["compute"], row["seed"], row["source"]): row["bits_per_byte"] for row in rows}
    for arm, compute, seed in {key[:3] for key in bits}:
        bits[arm, compute, seed, "mix"] = sum(
            weight * bits[arm, compute, seed, source] for source, weight in WEIGHTS.items()
        )
    first = next(iter(ARMS))
    for arm in dict.fromkeys(row["arm"] for row in rows if row["arm"] != first):
        for compute in sorted({row["compute"] for row in rows if row["arm"] == arm}):
            for source in ("mix", *sorted(WEIGHTS)):
                keys = [(compute, seed, source) for seed in seeds if (arm, compute, seed, source) in bits]
                base = [bits[(first, *key)] for key in keys]
                found = [bits[(arm, *key)] - value for key, value in zip(keys, base, strict=True)]
                yield arm, compute, source, found, sum(base) / len(base)


def show(rows: Sequence[dict[str, Any]]) -> None:
    """The table of each set of seeds."""
    for name, seeds in SETS.items():
        print(f"\n== {name}: bits per byte at equal compute, against {next(iter(ARMS))} (less is better)")
        print(
            f"{'':<18}{'FLOPs':>8}  {'source':<8}{'seeds':>5}{'base':>13}{'difference':>12}{'+-':>8}{'%':>8}"
        )
        for arm, compute, source, found, base in differences(rows, seeds):
            count, mean = len(found), sum(found) / len(found)
            variance = sum((value - mean) ** 2 for value in found) / (count - 1)
            half = T95[count - 2] * math.sqrt(variance / count)
            verdict = "no statement" if abs(mean) <= half else "worse" if mean > 0 else "better"
            line = f"  {arm:<16}{compute:>8.3g}  {source:<8}{count:>5}{base:>13.4f}{mean:>+12.4f}{half:>8.4f}"
            print(f"{line}{100 * mean / base:>+8.2f}  {verdict}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("corpus", type=Path, nargs="?")
    parser.add_argument("work", type=Path, nargs="?")
    parser.add_argument("--read", action="store_true")
    args = parser.parse_args()
    if args.read:
        show(pq.read_table(POINTS).to_pylist())
    elif args.work:
        show(run(args.corpus, args.work))
    else:
        parser.error("name CORPUS and WORK, or --read")


if __name__ == "__main__":
    main()
