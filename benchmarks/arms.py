"""Plain vocabularies against those with superwords, by bits per byte at equal compute (`train compare`).

    python -m benchmarks.arms CORPUS WORK [--jobs 2]     # builds the arms in WORK and runs them, or goes on
    python -m benchmarks.arms --read                     # the tables of the points in benchmarks/arms.parquet

CORPUS holds the files named in INPUTS, JSON Lines with `text`. Vocabularies are scaled down with the models, so that
the blocks and not the output matrix do most of the work. Seeds 0 to 2 are one set and 3 to 5 another.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

from train.tools.compare_read import read_points, report_points

INPUTS = {
    "it": ("gutenberg-it-00", "microsoftdocs-it-00", "debian-docs-it-00"),
    "en": ("eltec-en-01", "proposals-en-00"),
}
WEIGHTS = "it=0.9,en=0.1"
ARMS = {
    "plain-4k": ("--vocab-size", "4000"),
    "super-4k": ("--vocab-size", "4000", "--superwords", "800"),
}
MODEL = "dim = 96\nlayers = 3\nheads = 3\nkv_heads = 3\nhidden = 256\nseq_len = 128\n"
RUNS = ("--compute", "1e12,3e12", "--seeds", "6", "--lr", "4e-3", "--val-bytes", "200k")
POINTS = Path(__file__).with_suffix(".parquet")
SETS = {"seeds 0 to 2": range(3), "seeds 3 to 5": range(3, 6), "all seeds": range(6)}


def build(corpus: Path, work: Path) -> list[str]:
    """Vocabulary and shards of every arm; the flags that name them."""
    inputs = [
        f"{source}={corpus / source / name}.jsonl.zst" for source, names in INPUTS.items() for name in names
    ]
    for arm, flags in ARMS.items():
        pretok("build-vocab", *inputs, "--out", str(work / arm), "--weights", WEIGHTS, *flags)
        pretok("tokenize", *inputs, "--out", str(work / arm), "--val-fraction", "0.01")
    return [f"--arm={arm}={work / arm}" for arm in ARMS]


def pretok(*arguments: str) -> None:
    """One command, in this process's cores alone."""
    subprocess.run([sys.executable, "-m", "pretok", *arguments, "--workers", "0"], check=True)


def show(path: Path) -> None:
    """The table of each set of seeds."""
    points = read_points(path)
    for name, seeds in SETS.items():
        chosen = [point for point in points if point.spec.seed in seeds]
        if chosen:
            print(f"\n== {name}\n{report_points(chosen, list(ARMS), None)}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("corpus", type=Path, nargs="?")
    parser.add_argument("work", type=Path, nargs="?")
    parser.add_argument("--jobs", default="1")
    parser.add_argument("--read", action="store_true")
    args = parser.parse_args()
    if args.read:
        return show(POINTS)
    if args.work is None:
        parser.error("name CORPUS and WORK, or --read")
    flags = build(args.corpus, args.work)
    (args.work / "tiny.toml").write_text(MODEL)
    shared = ["--model", str(args.work / "tiny.toml"), "--weights", WEIGHTS, *RUNS]
    out = ["--threads", "1", "--jobs", args.jobs, "--out", str(args.work / "result")]
    subprocess.run([sys.executable, "-m", "train", "compare", *flags, *shared, *out], check=True)
    return show(args.work / "result" / "points.parquet")


if __name__ == "__main__":
    main()
