"""`train tune`: short trials on this machine to find the fastest settings.

Input: the settings of a run and the values to try. Output: a table of trials, OUT/tune.jsonl, and OUT/tuned.toml with
the best. Every trial is a new process of the real trainer, so running out of memory is a result and not a crash.
"""

from __future__ import annotations

import itertools
import json
import shutil
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch  # noqa: F401 - if torch is missing, fail here and not in every trial

from pretok.base.children import child_environment
from pretok.base.errors import UsageError
from pretok.base.records import replace
from pretok.base.storage import atomic_open, read_lines
from train.config import TrainConfig, add_flags, command_parser, from_mapping, parse, whole_number
from train.metrics import Lines
from train.parallel.layout import solve_layout

TRIED: dict[str, list[Any]] = {
    "micro_batch": [1, 2, 4, 8],
    "checkpointing": ["none", "ops", "full"],
    "compile": [False, True],
}
"""Values to try for settings that --try does not name."""
WARM_UP = 3
"""First steps of a trial, which do not count: they include compilation, autotuning and the growth of the allocator."""


def lists_of(texts: Sequence[str]) -> dict[str, list[Any]]:
    """Parse ['shard=1,4', 'reshard=yes,no', ...] into values to try by setting, added to TRIED.

    Raises UsageError for a value that its setting does not allow.
    """
    lists, answers = dict(TRIED), {"yes": True, "no": False}
    for text in texts:
        name, _, values = text.partition("=")
        name = name.replace("-", "_")
        tables = [
            from_mapping({name: answers.get(value, value)}, f"--try {text}") for value in values.split(",")
        ]
        lists[name] = [getattr(table, name) for table in tables]
    return lists


def candidates(lists: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """Return all combinations, small micro-batches first, so that sizes that cannot fit are found early."""
    choices = [dict(zip(lists, values, strict=True)) for values in itertools.product(*lists.values())]
    return sorted(choices, key=lambda choice: int(choice["micro_batch"]))


def write_toml(path: Path, values: Mapping[str, Any]) -> None:
    """Write settings as a file for --config, leaving out those that are None."""
    with atomic_open(path, "w") as file:
        for name, value in values.items():
            if value is not None:
                file.write(f"{name} = {json.dumps(value, ensure_ascii=False)}\n")


def run_trial(
    config: TrainConfig, choice: dict[str, Any], folder: Path, steps: int, processes: int, passes: int = 1
) -> dict[str, Any]:
    """Run one trial of `steps` steps of `passes` passes in new processes; return `choice` with its outcome.

    If the outcome is 'ok', also the medians of its steps (tokens_per_second_per_device, mfu, data_wait), their tokens,
    and memory_peak in bytes.
    """
    shutil.rmtree(folder, ignore_errors=True)
    trial = replace(config, **choice)
    sizes = processes, processes, trial.shard, trial.tensor, trial.pipeline, trial.context
    try:
        batch = passes * (trial.micro_batch or 1) * solve_layout(*sizes).data_ranks
    except UsageError as error:
        return choice | {"outcome": f"failed: {error}"}
    own = {"global_batch": batch, "steps": steps, "tokens": None, "out": str(folder), "val_every": 0}
    settings = folder.with_name("trial.toml")
    write_toml(settings, trial.as_dict() | own | {"save_every": "never", "phases": None, "keep_best": 0})
    launcher = [sys.executable, "-m"]
    if processes > 1:
        launcher += ["train.launch", "--standalone", f"--nproc-per-node={processes}", "-m"]
    command = [*launcher, "train", "--config", str(settings)]
    # A process of its own: one that runs out of memory must not take the others along.
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=child_environment())
    records = read_lines(folder / "metrics.jsonl")[WARM_UP:]
    shutil.rmtree(folder, ignore_errors=True)
    if done.returncode or not records:
        lines = done.stderr.strip().splitlines() or ["no output"]
        lines = [line for line in lines if line.startswith("train: ")] or lines  # others are of the launcher
        memory = "out of memory" in done.stderr  # the words of `train.report.explain`
        return choice | {"outcome": "out of memory" if memory else f"failed: {lines[-1]}"}
    median: dict[str, Any] = {
        name: statistics.median(record[name] for record in records)
        for name in ("tokens_per_second_per_device", "mfu", "data_wait")
        if records[-1][name] is not None
    }
    tokens = records[-1]["tokens"] // records[-1]["step"]
    return choice | {"outcome": "ok", "memory_peak": records[-1]["memory_peak"], "tokens": tokens} | median


def tune(config: TrainConfig, choices: list[dict[str, Any]], steps: int, processes: int) -> dict[str, Any]:
    """Run all trials and return the fastest; skip larger micro-batches where a smaller one did not fit.

    Raises UsageError if no trial succeeds.
    """
    out = Path(config.out)
    out.mkdir(parents=True, exist_ok=True)
    lines = Lines(out / "tune.jsonl")
    stages = max(choice.get("pipeline", config.pipeline) for choice in choices)
    passes = (
        4 * stages if stages > 1 else 1
    )  # the same in all trials; a pipeline needs one or more for each stage
    too_large: list[dict[str, Any]] = []
    results = []
    for choice in choices:
        rest, result = choice | {"micro_batch": None}, choice | {"outcome": "out of memory"}
        if rest not in too_large:
            result = run_trial(config, choice, out / "trial", steps, processes, passes)
        if result["outcome"] == "out of memory":
            # More sequences need more memory: larger micro-batches of the same settings are not tried.
            too_large.append(rest)
        results.append(result)
        lines.add(result)
        print(_line(result), flush=True)
    good = [result for result in results if result["outcome"] == "ok"]
    if not good:
        raise UsageError(f"no trial succeeded; the reasons are in {out / 'tune.jsonl'}")
    best = max(good, key=lambda result: float(result["tokens_per_second_per_device"]))
    print(f"best: {_line(best)}\nwritten to {out / 'tuned.toml'}")
    write_toml(out / "tuned.toml", {name: best[name] for name in choices[0]})
    return best


def _line(result: dict[str, Any]) -> str:
    return "  ".join(f"{name} {value}" for name, value in result.items())


EXAMPLES = """  train tune --shards WORK/shards --model 1b --seq-len 4096 --out TUNE --processes 4 \\
      --try micro-batch=1,2,4 --try shard=1,4 --try tensor=1,2 --try reshard=yes,no"""


def main(arguments: Sequence[str]) -> None:
    """Run `train tune`."""
    description = (
        "Try settings for a few steps each on this machine, and write the fastest to OUT/tuned.toml."
    )
    parser = command_parser("train tune", description, EXAMPLES)
    add_flags(parser)
    parser.add_argument(
        "--try",
        dest="tries",
        action="append",
        default=[],
        metavar="NAME=A,B,...",
        help="values of a setting, tried in all combinations; yes and no for flags without a value; default: "
        + ", ".join(f"{name}={','.join(map(str, values))}" for name, values in TRIED.items()),
    )
    parser.add_argument("--trial-steps", type=whole_number, default=10, help="steps per trial (default: 10)")
    parser.add_argument("--processes", type=whole_number, default=1, help="ranks on this machine")
    config, space = parse(parser, arguments)
    if space.trial_steps <= WARM_UP:
        raise UsageError(f"--trial-steps must be more than {WARM_UP}: the first {WARM_UP} do not count")
    tune(config, candidates(lists_of(space.tries)), space.trial_steps, space.processes)
