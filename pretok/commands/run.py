"""`pretok run`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pretok.commands.options import Address, Out, Workers, read_recipe, start_engine, terminal


def run(
    context: typer.Context,
    recipe: Annotated[Path, typer.Argument(metavar="RECIPE.toml", show_default=False)],
    out: Out = None,
    workers: Workers = None,
    address: Address = None,
) -> None:
    """Do every step of a recipe in order: vocabulary, tokens, verification, mix. Skips what is done and unchanged.

    pretok run pipelines/demo.toml
    """
    from pretok.commands.steps import run_steps

    loaded = read_recipe([str(recipe)], out, {})
    tell = terminal(context, loaded.out, loaded)
    with start_engine(workers, address) as engine:
        run_steps(loaded, engine, tell)
