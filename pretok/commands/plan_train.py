"""The [train] part of `pretok plan`: memory, time, energy, and jobs of the chain, as `train plan` reckons them.

Input: a recipe with [train], nodes and time limit from [slurm.train], flags of `train plan` (what the devices are),
and the forecast of vocabulary and mix. Output: the figures, and the command that gives them. Where torch is not
installed there is only the command.
"""

from __future__ import annotations

import io
import json
import math
import shlex
from contextlib import redirect_stdout
from dataclasses import dataclass
from typing import Any

from pretok.base.errors import UsageError
from pretok.cluster.chain import parse_time, recipe_flags
from pretok.config import Recipe
from pretok.forecast.job import Forecast


@dataclass(frozen=True, slots=True)
class TrainForecast:
    """command: what to type for it; figures: of `train plan --json`, None without torch; links: jobs in [slurm.train];
    jobs: how many of its time limit the run takes, None where time or limit is not known."""

    command: str
    figures: dict[str, Any] | None
    text: str
    links: int
    jobs: int | None

    def sentences(self) -> list[str]:
        """What a person is told below the figures."""
        if self.figures is None:
            return [
                f"training is reckoned with torch (pip install '.[train]' in a checkout of pretok): {self.command}"
            ]
        if self.jobs is None:
            missing = "the time is not known: say behind -- what the devices are, as in"
            return [f"{missing} -- --devices-per-node 4 --device A100-SXM-64GB --mfu 0.4"]
        enough = "enough" if self.jobs <= self.links else f"too few: set links = {self.jobs} in [slurm.train]"
        return [
            f"jobs of the chain, start-up not counted: {self.jobs}; the recipe has {self.links}, {enough}"
        ]


def forecast_train(recipe: Recipe, forecast: Forecast, flags: list[str]) -> TrainForecast | None:
    """None for a recipe without [train]. flags: of `train plan`, over the recipe's. UsageError for those it refuses."""
    if not recipe.train:
        if flags:
            raise UsageError(f"{' '.join(flags)}: flags of train plan, but the recipe has no [train]")
        return None
    if "--search" in flags:
        raise UsageError(
            "--search looks for other settings: ask train plan itself, with the flags of [train]"
        )
    slurm = recipe.slurm.train
    given = {key.replace("-", "_") for key in recipe.train}
    arguments = [*recipe_flags(recipe), "--nodes", str(slurm.nodes)]
    arguments += ["--vocab-size", str(forecast.vocab_size)]
    if recipe.mix is not None and "seq_len" not in given:
        arguments += ["--seq-len", str(recipe.mix.seq_len)]
    mix = forecast.mix
    if mix is not None and not mix.problem and not given & {"tokens", "steps"}:
        arguments += ["--tokens", str(mix.tokens)]
    arguments += flags
    command = shlex.join(["train", "plan", *arguments])
    try:
        figures, text = json.loads(_train_plan([*arguments, "--json"])), _train_plan(arguments)
    except ImportError:
        return TrainForecast(command, None, "", slurm.links, None)
    hours, limit = figures["hours"], parse_time(slurm.time) / 3600 if slurm.time else None
    jobs = math.ceil(hours / limit) if hours is not None and limit else None
    return TrainForecast(command, figures, text, slurm.links, jobs)


def _train_plan(arguments: list[str]) -> str:
    """What `train plan` prints."""
    from train.plan import main

    printed = io.StringIO()
    with redirect_stdout(printed):
        main(arguments)
    return printed.getvalue()
