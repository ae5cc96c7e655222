"""Vocabularies compared by what models learn with them: bits per byte at equal training compute.

Enters: the command line: WORK folders of several vocabularies on the same text, sizes of a model, amounts of compute,
seeds. Leaves in DIR: points/ and points.parquet (see `compare_runs`), the picture compare.svg, and on the terminal the
table of paired differences.

Each run gets the steps that its FLOPs pay for, by the formula of `train plan` (the output matrix and attention
counted), so a larger vocabulary gets fewer, and one with shorter text reads more of it. Sequence length, batch in
tokens and learning rate are equal.
"""

from __future__ import annotations

import argparse
import math
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pretok.base.errors import UsageError
from pretok.stream.quota import parse_weights
from train.config import from_mapping, whole_number
from train.tools.compare_read import draw_points, report_points
from train.tools.compare_runs import SETTINGS, Asked, compare

DEFAULTS = {"lr": 2e-3, "global_batch": 16}
"""Of small models; those of the trainer are of large ones."""


def _named(texts: Sequence[str]) -> dict[str, Path]:
    arms: dict[str, Path] = {}
    for text in texts:
        name, _, work = text.partition("=")
        if not work or not name.replace("-", "").replace("_", "").isalnum() or name in arms:
            raise UsageError(
                f"--arm {text}: it must be NAME=WORK, each name once, of letters, digits, - and _"
            )
        arms[name] = Path(work)
    if len(arms) < 2:
        raise UsageError("--arm is needed twice at least; the first is what the others are compared with")
    return arms


def _amounts(text: str) -> tuple[float, ...]:
    try:
        found = [float(part) for part in text.split(",")]
    except ValueError:
        found = []
    if not found or not all(0 < value < math.inf for value in found) or len(set(found)) < len(found):
        raise UsageError(f"--compute {text}: it must be numbers above 0, each once, with commas")
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
    return Asked(
        arms=_named(space.arm or ()),
        model=space.model,
        config=from_mapping(DEFAULTS | values | flags, "command line"),
        compute=_amounts(space.compute),
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
    parser.add_argument("--model", default="3m", help="debug, 3m, 10m or a TOML file of sizes (default: 3m)")
    parser.add_argument("--compute", required=True, help="FLOPs of a run, such as 1e13,3e13")
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


def main(arguments: Sequence[str]) -> None:
    """`train compare`."""
    asked = parse_asked(arguments)
    points = compare(asked)
    draw_points(points, asked.out / "compare.svg")
    print(report_points(points))
