"""`pretok init`."""

from __future__ import annotations

import sys
from typing import Annotated

import typer


def init(
    inputs: Annotated[list[str], typer.Argument(metavar="NAME=GLOB ...", show_default=False)],
    out: Annotated[str, typer.Option(help="Folder for the results, as the recipe names it.")] = "work",
) -> None:
    """Print a recipe for these inputs, with every key, its default and what it is as a comment.

    pretok init it='data/it/*.jsonl.zst' en='data/en/*.parquet' --out work > recipe.toml
    """
    from pretok.commands.reference import commented
    from pretok.config import make_recipe, parse_inputs

    sources = parse_inputs(inputs)
    make_recipe({"out": out, "sources": sources}, "command line")
    sys.stdout.write(commented(out, {name: source["inputs"] for name, source in sources.items()}))
