"""Plain vocabularies against those with superwords, by bits per byte at equal compute (`train compare`).

    python -m benchmarks.arms CORPUS WORK [--jobs 2]     # builds the arms in WORK and runs them, or goes on
    python -m benchmarks.arms --read                     # the tables of the points in benchmarks/arms.parquet

CORPUS holds the files named in INPUTS, JSON Lines with `text`. Vocabularies are scaled down with the models, so that
the blocks and not the output matrix do most of the work. Seeds 0 to 2 are one set and 3 to 5 another. The points that
are kept took two cores of an AMD EPYC, shared with other work; the runs were ended when its time was over, so not every
pair has all seeds.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from train.tools.compare_point import Point
from train.tools.compare_read import read_points, report_points, write_points

INPUTS = {
    "it": ("gutenberg-it-00", "microsoftdocs-it-00", "debian-docs-it-00"),
    "en": ("eltec-en-01", "proposals-en-00"),
}
WEIGHTS = "it=0.9,en=0.1"
MODEL = "dim = 96\nlayers = 3\nheads = 3\nkv_heads = 3\nhidden = 256\nseq_len = 128\n"
SHARED = ("--seeds", "6", "--val-bytes", "200k", "--threads", "1")


@dataclass(frozen=True)
class Pair:
    """A plain vocabulary and one of the same size with superwords, and how they are compared."""

    entries: int
    superwords: int
    flags: tuple[str, ...]

    @property
    def arms(self) -> dict[str, tuple[str, ...]]:
        """Names, and flags of `build-vocab`."""
        size = ("--vocab-size", str(self.entries))
        plain, joined = (f"{kind}-{self.entries // 1000}k" for kind in ("plain", "super"))
        return {plain: size, joined: (*size, "--superwords", str(self.superwords))}


PAIRS = (
    Pair(4000, 800, ("--weights", WEIGHTS, "--compute", "1e12,2e12", "--lr", "4e-3")),
    Pair(
        8000, 1600, ("--weights", "it=1", "--compute", "1.2e12,3.5e12", "--lr", "2e-3", "--global-batch", "4")
    ),
)
POINTS = Path(__file__).with_suffix(".parquet")
SETS = {"seeds 0 to 2": range(3), "seeds 3 to 5": range(3, 6), "all seeds": range(6)}


def build(corpus: Path, work: Path, pair: Pair) -> list[str]:
    """Vocabulary and shards of both arms; the flags that name them."""
    inputs = [
        f"{source}={corpus / source / name}.jsonl.zst" for source, names in INPUTS.items() for name in names
    ]
    for arm, flags in pair.arms.items():
        pretok("build-vocab", *inputs, "--out", str(work / arm), "--weights", WEIGHTS, *flags)
        pretok("tokenize", *inputs, "--out", str(work / arm), "--val-fraction", "0.01")
    return [f"--arm={arm}={work / arm}" for arm in pair.arms]


def pretok(*arguments: str) -> None:
    """One command, in this process's cores alone."""
    subprocess.run([sys.executable, "-m", "pretok", *arguments, "--workers", "0"], check=True)


def show(points: Sequence[Point]) -> None:
    """The table of each pair and set of seeds."""
    for pair in PAIRS:
        for name, seeds in SETS.items():
            chosen = [p for p in points if p.spec.arm in pair.arms and p.spec.seed in seeds]
            if chosen:
                print(
                    f"\n== {pair.entries:,} entries, {name}\n{report_points(chosen, list(pair.arms), None)}"
                )


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
        return show(read_points(POINTS))
    if args.work is None:
        parser.error("name CORPUS and WORK, or --read")
    args.work.mkdir(parents=True, exist_ok=True)
    (args.work / "tiny.toml").write_text(MODEL)
    points: list[Point] = []
    for pair in PAIRS:
        out = args.work / f"result-{pair.entries}"
        arms = build(args.corpus, args.work, pair)
        rest = [*SHARED, "--model", str(args.work / "tiny.toml"), "--jobs", args.jobs, "--out", str(out)]
        subprocess.run([sys.executable, "-m", "train", "compare", *arms, *pair.flags, *rest], check=True)
        points += read_points(out / "points.parquet")
    write_points(points, args.work / POINTS.name)
    return show(points)


if __name__ == "__main__":
    main()
