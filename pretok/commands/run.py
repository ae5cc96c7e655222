"""`pretok run`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pretok.commands.options import Address, DryRun, Out, Workers, read_recipe, start_engine, terminal


def run(
    context: typer.Context,
    recipe: Annotated[Path, typer.Argument(metavar="RECIPE.toml", show_default=False)],
    out: Out = None,
    workers: Workers = None,
    address: Address = None,
    dry_run: DryRun = False,
) -> None:
    """Do every step of a recipe in order: vocabulary, tokens, verification, mix. Skips what is done and unchanged.

    pretok run pipelines/demo.toml
    """
    loaded = read_recipe([str(recipe)], out, {})
    if dry_run:
        from pretok.commands.dry_run import tell_dry_run

        tell_dry_run("run", [str(recipe)], loaded, terminal(context))
        return
    from pretok.commands.steps import run_steps

    tell = terminal(context, loaded.out, loaded)
    with start_engine(workers, address) as engine:
        run_steps(loaded, engine, tell)
