"""`pretok submit`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pretok.base.errors import UsageError
from pretok.commands.options import Json, check_train_arguments, read_recipe, terminal

if TYPE_CHECKING:
    from pretok.base.tell import Teller
    from pretok.cluster.chain import Chain

PerStage = "STAGE=VALUE"


def submit(
    context: typer.Context,
    recipe: Annotated[Path, typer.Argument(metavar="RECIPE.toml", show_default=False)],
    train_arguments: Annotated[
        list[str] | None,
        typer.Argument(metavar="[-- TRAIN FLAGS]", help="Over the recipe's [train].", show_default=False),
    ] = None,
    profile: Annotated[str, typer.Option(help="Name in slurm/profiles, or the path of a file.")] = "generic",
    stages: Annotated[
        str | None, typer.Option(help="Such as tokenize,mix. Default: all the recipe has.")
    ] = None,
    nodes: Annotated[list[str] | None, typer.Option(metavar=PerStage, help="Nodes of a stage.")] = None,
    links: Annotated[
        list[str] | None, typer.Option(metavar=PerStage, help="Jobs that continue each other.")
    ] = None,
    time: Annotated[list[str] | None, typer.Option(metavar=PerStage, help="Time limit of each job.")] = None,
    spare: Annotated[
        int | None, typer.Option(help="Further nodes in each job of training, in place of those that fail.")
    ] = None,
    account: Annotated[
        str | None, typer.Option(help="Project that pays; wins over recipe and profile.")
    ] = None,
    exclude: Annotated[
        str | None, typer.Option(help="Nodes to keep away from, as sbatch takes them.")
    ] = None,
    run: Annotated[Path | None, typer.Option(help="Folder of the training run. Default: OUT/run.")] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what would be done as a shell script; submit nothing.")
    ] = False,
    json: Json = False,
) -> None:
    """Submit a whole recipe to Slurm: vocabulary, tokens, verification and mix, training in as many jobs as it takes.

    Nodes, links and times come from [slurm.STAGE] of the recipe or from the options; all else from the profile.

        pretok submit pipelines/italia-v01.toml --profile leonardo --nodes tokenize=16 --nodes train=32 --links train=20
    """
    import sys
    from datetime import datetime

    from pretok.cluster import chain as job

    loaded = read_recipe([str(recipe)], None, {})
    check_train_arguments(train_arguments or [])
    stage_options = _per_stage({"nodes": nodes, "links": links, "time": time}, job.STAGES)
    if spare is not None:
        stage_options.setdefault("train", {})["spare"] = str(spare)
    overrides: dict[str, object] = dict(stage_options)
    overrides |= {key: value for key, value in (("account", account), ("exclude", exclude)) if value}
    chain = job.plan_chain(
        loaded,
        recipe,
        job.load_profile(profile),
        job.read_settings(loaded.slurm, overrides),
        job.choose_stages(loaded, stages, train_arguments or []),
        run or loaded.out / "run",
        train_arguments or [],
        loaded.out / "slurm" / datetime.now().strftime("%Y%m%d-%H%M%S"),
    )
    if dry_run:
        sys.stdout.write(job.chain_script(chain))
        return
    tell = terminal(context, loaded.out, loaded)
    ids = job.submit_chain(chain)
    if json:
        _print_ids(chain, ids)
    _show_ids(chain, ids, tell)


def _per_stage(options: dict[str, list[str] | None], stages: tuple[str, ...]) -> dict[str, dict[str, str]]:
    """{'nodes': ['train=4']} -> {'train': {'nodes': '4'}}."""
    found: dict[str, dict[str, str]] = {}
    for name, values in options.items():
        for value in values or []:
            stage, equals, amount = value.partition("=")
            if not equals or stage not in stages:
                raise UsageError(f"--{name} {value}: say STAGE=VALUE with a stage of {', '.join(stages)}")
            found.setdefault(stage, {})[name] = amount
    return found


def _print_ids(chain: Chain, ids: list[str]) -> None:
    from pretok.base.console import print_json

    jobs = [{"id": i, "stage": job.stage, "link": job.link} for i, job in zip(ids, chain.jobs, strict=True)]
    print_json({"folder": str(chain.folder), "jobs": jobs})


def _show_ids(chain: Chain, ids: list[str], tell: Teller) -> None:
    import shlex

    for identity, job in zip(ids, chain.jobs, strict=True):
        waits = ", ".join(f"{condition} {ids[index]}" for condition, index in job.depends)
        tell.notice(f"{identity}  {job.stage} {job.link}" + (f"  ({waits})" if waits else ""))
    tell.notice(f"watch:   squeue -j {','.join(ids)};  tail -F {shlex.quote(str(chain.folder))}/*.out")
    tell.notice(f"cancel:  scancel {' '.join(ids)}")
