"""Options and set-up that several commands share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pretok.errors import UsageError

if TYPE_CHECKING:
    from pretok.config import Recipe
    from pretok.engine import Engine

Inputs = Annotated[list[str], typer.Argument(metavar="RECIPE.toml | NAME=GLOB ...", show_default=False)]
Out = Annotated[Path | None, typer.Option(help="Folder for the results; overrides the recipe's `out`.")]
Workers = Annotated[
    int | None,
    typer.Option(min=0, help="Tasks at a time; 0 works in this process without Ray. Default: one per CPU."),
]
Address = Annotated[
    str | None, typer.Option(help="A Ray cluster, `auto` inside an allocation. Default: a local Ray.")
]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON on standard output.")]
Shards = Annotated[
    Path, typer.Argument(metavar="SHARDS", help="Folder that holds manifest.json.", show_default=False)
]


def read_recipe(inputs: list[str], out: Path | None, changes: dict[str, dict[str, Any]]) -> Recipe:
    """The recipe a command line means. `changes`: table -> key -> value; None leaves the recipe's value."""
    from pretok.config import load_toml, make_recipe, parse_inputs

    recipes = [value for value in inputs if value.endswith(".toml") and "=" not in value]
    if recipes and len(inputs) > 1:
        raise UsageError("give either one recipe or NAME=GLOB inputs, not both")
    data: dict[str, Any] = load_toml(Path(recipes[0])) if recipes else {"sources": parse_inputs(inputs)}
    if out is not None:
        data["out"] = out
    if "out" not in data:
        raise UsageError("say where the results go: --out DIR")
    for name, values in changes.items():
        given = {key: value for key, value in values.items() if value is not None}
        if given:
            data[name] = {**data.get(name, {}), **given}
    return make_recipe(data, recipes[0] if recipes else "command line")


@contextmanager
def start_engine(workers: int | None, address: str | None) -> Iterator[Engine]:
    """An engine that stops for signals and for the end of the Slurm job."""
    from pretok.engine import Engine
    from pretok.stop import StopFlag

    with StopFlag() as stop, Engine(workers, address, stop) as engine:
        yield engine
