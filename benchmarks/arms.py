"""Vocabularies against each other by bits per byte at equal compute (`train compare`): pattern, size.

    python -m benchmarks.arms CORPUS WORK     # builds the arms in WORK and runs them, or goes on
    python -m benchmarks.arms --read          # the tables of the points in benchmarks/arms.parquet

CORPUS holds the files named in INPUTS, JSON Lines with `text`. The vocabularies are scaled down with the models, so
that the output matrix does not do nearly all of the work. Seeds 0 to 2 are one set and 3 to 5 another. Shape, batch and
learning rate are those at which the plain vocabulary learned most of what was tried, with seeds 4 and 9. Every point
took one core.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from train.compare.point import Point
from train.compare.report import read_points, report_points, write_points

INPUTS = {
    "it": ("gutenberg-it-00", "microsoftdocs-it-00", "debian-docs-it-00"),
    "en": ("eltec-en-01", "proposals-en-00"),
}
WEIGHTS = "it=0.9,en=0.1"
ARMS = {
    "plain-4k": ("--vocab-size", "4000"),
    "apostrophe-4k": ("--vocab-size", "4000", "--pattern", "cl100k-apostrophe"),
    "plain-2k": ("--vocab-size", "2000"),
    "plain-8k": ("--vocab-size", "8000"),
}
"""Names, and flags of `build-vocab`; the first is what the others are compared with."""
FLOPS = "1.5e12"
MODEL = """\
dim = 64
layers = 2
heads = 2
kv_heads = 2
hidden = 192
seq_len = 128
tied = false
"""
SETTINGS = "beta2 = 0.99\n"
FLAGS = (
    *("--seeds", "6", "--weights", WEIGHTS, "--val-bytes", "300k"),
    *("--lr", "2.5e-3", "--global-batch", "4", "--threads", "1"),
)
POINTS = Path(__file__).with_suffix(".parquet")
SETS = {"seeds 0 to 2": range(3), "seeds 3 to 5": range(3, 6), "all seeds": range(6)}


def build(corpus: Path, work: Path) -> None:
    """Vocabulary and shards of all arms."""
    inputs = [
        f"{source}={corpus / source / name}.jsonl.zst" for source, names in INPUTS.items() for name in names
    ]
    for arm, flags in ARMS.items():
        pretok("build-vocab", *inputs, "--out", str(work / arm), "--weights", WEIGHTS, *flags)
        pretok("tokenize", *inputs, "--out", str(work / arm), "--val-fraction", "0.01")


def pretok(*arguments: str) -> None:
    """One command, in this process's cores alone."""
    subprocess.run([sys.executable, "-m", "pretok", *arguments, "--workers", "0"], check=True)


def run(corpus: Path, work: Path) -> list[Point]:
    """All points, those that are missing made; WORK/arms.parquet."""
    work.mkdir(parents=True, exist_ok=True)
    (work / "tiny64.toml").write_text(MODEL)
    (work / "settings.toml").write_text(SETTINGS)
    files = ["--model", str(work / "tiny64.toml"), "--config", str(work / "settings.toml")]
    build(corpus, work)
    out = work / "result"
    arms = [f"--arm={name}={work / name}" for name in ARMS]
    command = [sys.executable, "-m", "train", "compare", *arms, "--compute", FLOPS, *FLAGS, *files]
    subprocess.run([*command, "--out", str(out)], check=True)
    points = read_points(out / "points.parquet")
    write_points(points, work / POINTS.name)
    return points


def show(points: Sequence[Point]) -> None:
    """The table of each set of seeds."""
    for name, seeds in SETS.items():
        chosen = [p for arm in ARMS for p in points if p.spec.arm == arm and p.spec.seed in seeds]
        print(f"\n== {name}\n{report_points(chosen)}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("corpus", type=Path, nargs="?")
    parser.add_argument("work", type=Path, nargs="?")
    parser.add_argument("--read", action="store_true")
    args = parser.parse_args()
    if args.read:
        show(read_points(POINTS))
    elif args.work:
        show(run(args.corpus, args.work))
    else:
        parser.error("name CORPUS and WORK, or --read")


if __name__ == "__main__":
    main()
