"""`pretok plan`."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated

import typer

from pretok.base.errors import UsageError
from pretok.commands.options import Field, Json, Out, read_recipe, terminal

if TYPE_CHECKING:
    from pretok.commands.plan_train import TrainForecast
    from pretok.forecast.estimate import MixForecast


def plan(
    context: typer.Context,
    inputs: Annotated[
        list[str],
        typer.Argument(metavar="RECIPE.toml | NAME=GLOB ... [-- TRAIN PLAN FLAGS]", show_default=False),
    ],
    out: Out = None,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Workers to reckon with. Default: one per CPU of this machine.")
    ] = None,
    field: Field = None,
    seed: Annotated[int, typer.Option(help="Another seed, other samples.")] = 0,
    json: Json = False,
) -> None:
    """What a recipe will give and cost: tokens, rejects, shards, time, memory, whether the mix is possible.

    Writes nothing. Samples a few megabytes of each source, spread evenly over its files, and says how sure it is.

    pretok plan pipelines/demo.toml

    pretok plan recipe.toml --workers 1120 --json

    pretok plan recipe.toml -- --devices-per-node 4 --device A100-SXM-64GB --mfu 0.4 --node-kw 2.2

    With [train]: memory, time, energy and jobs of the run, as `train plan` says them with what follows `--`.
    """
    from pretok.base.console import print_json
    from pretok.base.records import to_json
    from pretok.commands.plan_train import forecast_train
    from pretok.commands.steps import check_steps
    from pretok.forecast.job import run_forecast, tables

    cut = next((at for at, word in enumerate(inputs) if word.startswith("-")), len(inputs))
    recipe, tell = read_recipe(inputs[:cut], out, {}, field), terminal(context)
    check_steps(recipe)
    forecast = run_forecast(recipe, workers or os.cpu_count() or 1, seed, tell)
    train = forecast_train(recipe, forecast, inputs[cut:])
    if json:
        figures = {} if train is None else {"train": {"jobs": train.jobs, **(train.figures or {})}}
        print_json(to_json(forecast) | figures)
        _refuse_impossible(forecast.mix, train)
        return
    for made in tables(forecast):
        tell.show(made, result=True)
    if not forecast.vocabulary:
        tell.notice(
            "counted with a vocabulary trained on a sample; the real one, of more text, needs fewer tokens"
        )
        if recipe.vocab.superwords:
            tell.notice("superwords are not counted: they make text shorter still (docs/superwords.md)")
    if train is not None:
        tell.show(train.text.rstrip(), result=True)
        for sentence in train.sentences():
            tell.show(sentence, result=True)
    _refuse_impossible(forecast.mix, train)


def _refuse_impossible(mix: MixForecast | None, train: TrainForecast | None) -> None:
    """UsageError, behind the figures, for what cannot be whichever end of its interval an estimate lies at."""
    if mix is not None and mix.problem and mix.sure:
        raise UsageError(f"the mix is not possible: {mix.problem}")
    if train is not None and train.figures is not None and train.figures["fits"] is False:
        raise UsageError("the training run does not fit its devices; the lines above say what would")
