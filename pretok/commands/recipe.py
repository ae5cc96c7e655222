"""The commands for all steps of a recipe: init, plan, run, submit."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pretok.base.errors import UsageError
from pretok.base.terminal import print_json
from pretok.commands.options import (
    Address,
    Inputs,
    Json,
    Setting,
    Settings,
    Workers,
    argument,
    check_train_arguments,
    option,
    read_recipe,
    refuse_unread,
    setting,
    settings_of,
    terminal,
)
from pretok.session import start_engine

if TYPE_CHECKING:
    from pretok.base.console import Console
    from pretok.cluster.chain import Job

RecipeFile = Annotated[Path, argument("RECIPE.toml")]


def init(
    context: typer.Context,
    inputs: Annotated[list[str], argument("NAME=GLOB", "Sources: a name and its files.")],
    *,
    out: Annotated[str, option("--out", "Folder for the results, written into the recipe.", "DIR")] = "work",
    all: Annotated[bool, option("--all", "Print every key, not only the common ones.")] = False,
) -> None:
    """Print a recipe for these inputs, with the common keys as comments.

    pretok init it='data/it/*.jsonl.zst' en='data/en/*.parquet' --out work > recipe.toml
    """
    from pretok.commands.reference import recipe_for
    from pretok.config import make_recipe, parse_inputs
    from pretok.read.paths import expand, is_remote

    sources = parse_inputs(inputs)
    recipe = make_recipe({"out": Path(out), "sources": sources}, "")
    for pattern in [pattern for source in recipe.sources.values() for pattern in source.inputs]:
        try:
            _ = is_remote(pattern) or expand(pattern)
        except UsageError as error:
            terminal(context).notice(f"note: {error}")
    named = {name: source["inputs"] for name, source in sources.items()}
    sys.stdout.write(recipe_for(out.replace("$", "$$"), named, everything=all))


def plan(
    context: typer.Context,
    inputs: Inputs,
    *,
    workers: Annotated[
        int | None,
        option("--workers", "Number of workers to assume. Default: one per CPU of this machine.", "N", min=0),
    ] = None,
    out: Setting = setting("out"),
    sources_field: Settings = setting("sources.field"),
    sources_tokens: Settings = setting("sources.tokens"),
    json: Json = False,
) -> None:
    """Estimate the tokens, rejects, shards, time and memory of a recipe, and whether its mix is possible.

        pretok plan pipelines/demo.toml

        pretok plan recipe.toml --workers 1120 --json

    It reads a few megabytes of each source, spread evenly over its files, and gives intervals. It writes nothing.
    `train plan` estimates the memory and time of a training run.
    """
    from pretok.overview.forecast.forecast_job import run_forecast, tables
    from pretok.steps import check_steps

    given = settings_of(context)
    recipe, console = read_recipe(inputs, given, defaults={"out": Path("work")}), terminal(context)
    check_steps(recipe)
    forecast = run_forecast(recipe, workers or os.cpu_count() or 1, console)
    if json:
        print_json(forecast)
    else:
        for part in tables(forecast):
            console.show(part, result=True)
        if not forecast.vocabulary:
            console.notice(
                "counted with a vocabulary trained on a sample; the real one, of more text, needs fewer tokens"
            )
    mix = forecast.mix
    if mix is not None and mix.problem and mix.sure:  # at both ends of every interval
        raise UsageError(f"the mix is not possible: {mix.problem}")


def run(
    context: typer.Context,
    recipe: RecipeFile,
    *,
    out: Setting = setting("out"),
    sources_skip_damaged: bool | None = setting("sources.skip_damaged"),
    workers: Workers = None,
    address: Address = None,
) -> None:
    """Do every step of a recipe in order: vocabulary, tokens, mix, verification. Finished steps are skipped.

    pretok run pipelines/demo.toml
    """
    given = settings_of(context)
    loaded = read_recipe([str(recipe)], given)
    console = terminal(context, loaded.out, loaded)
    with start_engine(workers, address, "pretok.shards.tokenize_task", loaded) as engine:
        from pretok.steps import run_steps

        run_steps(loaded, engine, console)


def submit(
    context: typer.Context,
    recipe: RecipeFile,
    *,
    train_arguments: Annotated[
        list[str] | None, argument("[-- TRAIN FLAGS]", "Override the recipe's [train].")
    ] = None,
    profile: Annotated[
        str, option("--profile", "Site profile: a name in slurm/profiles, or a file.", "NAME | FILE")
    ] = "generic",
    stages: Annotated[
        str | None,
        option(
            "--stages", "Stages to submit, such as tokenize,mix. Default: all of the recipe.", "STAGE,..."
        ),
    ] = None,
    nodes: Annotated[
        list[str] | None, option("--nodes", "Number of nodes of each job of a stage.", "STAGE=N")
    ] = None,
    links: Annotated[
        list[str] | None, option("--links", "Number of jobs of a stage that continue each other.", "STAGE=N")
    ] = None,
    time: Annotated[
        list[str] | None, option("--time", "Time limit of each job of a stage.", "STAGE=TIME")
    ] = None,
    slurm_spare: Setting = setting("slurm.spare"),
    slurm_account: Setting = setting("slurm.account"),
    slurm_exclude: Setting = setting("slurm.exclude"),
    run: Annotated[
        Path | None,
        option("--run", "Folder of the training run. Default: OUT/run, or run in slurm.fast.", "DIR"),
    ] = None,
    dry_run: Annotated[
        bool, option("--dry-run", "Print the sbatch commands as a shell script. Submit nothing.")
    ] = False,
    json: Json = False,
) -> None:
    """Submit a whole recipe to Slurm: vocabulary, tokens, verification, mix, and training in as many jobs as it takes.

        pretok submit pipelines/italia-v01.toml --profile leonardo --nodes tokenize=16 --nodes train=32 --links train=20

    Nodes, links and times come from [slurm.STAGE] of the recipe or from options, everything else from the profile.
    """
    from datetime import datetime

    from pretok.cluster import chain as job

    given = settings_of(context)
    by_stage = {"nodes": nodes or [], "links": links or [], "time": time or []}
    given |= job.settings_by_stage(by_stage)
    loaded = read_recipe([str(recipe)], given)
    arguments = train_arguments or []
    chosen, site = job.choose_stages(loaded, stages, arguments), job.load_profile(profile)
    if "train" in chosen:
        check_train_arguments([*job.recipe_flags(loaded), *arguments])
    else:
        why = f"without train, as only {', '.join(chosen)} are submitted"
        refuse_unread(context, why, "run", "slurm_spare")
        if arguments:
            raise UsageError(f"-- {arguments[0]}: nothing reads it {why}; leave it out")
    if dry_run:
        refuse_unread(context, "with --dry-run, which prints a script", "json")
    # With --stages the recipe may have tables for stages that were not chosen.
    job.refuse_other_stages(chosen, by_stage, loaded.slurm if stages is None else None, recipe)
    folder = loaded.out / "slurm" / datetime.now().strftime("%Y%m%d-%H%M%S")
    run = run or (loaded.slurm.fast or loaded.out) / "run"
    jobs = job.plan_chain(loaded, recipe, site, chosen, run, arguments, folder)
    script = job.chain_script(jobs, site, loaded, folder)
    if dry_run:
        sys.stdout.write(script)
        return
    console = terminal(context, loaded.out, loaded)
    console.show(job.chain_table(jobs, f"{folder}"))
    ids = job.submit_chain(jobs, script, folder)
    _show_submitted(ids, jobs, folder, json, console)


def _show_submitted(ids: list[str], jobs: list[Job], folder: Path, json: bool, console: Console) -> None:
    """Show the jobs of a chain, and how to watch and cancel them."""
    import shlex

    submitted = [
        {"id": number, "stage": queued.stage, "link": queued.link}
        for number, queued in zip(ids, jobs, strict=True)
    ]
    if json:
        print_json({"folder": str(folder), "jobs": submitted})
    for line in submitted:
        console.notice("{id}  {stage} {link}".format(**line))
    console.notice(f"watch:   squeue -j {','.join(ids)};  tail -F {shlex.quote(str(folder))}/*.out")
    console.notice(f"cancel:  scancel {' '.join(ids)}")
