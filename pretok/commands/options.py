"""Options and set-up that several commands share."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pretok.base.console import Terminal
from pretok.base.errors import PretokError, UsageError
from pretok.base.joblog import LOGS

if TYPE_CHECKING:
    from pretok.base.execute import Engine
    from pretok.config import Recipe

Inputs = Annotated[list[str], typer.Argument(metavar="RECIPE.toml | NAME=GLOB ...", show_default=False)]
Out = Annotated[Path | None, typer.Option(help="Folder for the results; overrides the recipe's `out`.")]
Workers = Annotated[
    int | None,
    typer.Option(min=0, help="Tasks at a time; 0 works in this process without Ray. Default: one per CPU."),
]
Address = Annotated[
    str | None, typer.Option(help="A Ray cluster, `auto` inside an allocation. Default: a local Ray.")
]
Field = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="Field or column that holds the text, in all sources. Default: text."),
]
MaxRejectShare = Annotated[
    str | None,
    typer.Option(metavar="SHARE", help="Most records of a source that may be bad. Default: 0.02."),
]
Against = Annotated[
    Path | None,
    typer.Option(
        metavar="FOLDER",
        help="Benchmark items as JSON Lines, each text of a line a passage: documents are told how much of an item "
        "they hold.",
    ),
]
RejectContaminated = Annotated[
    str | None,
    typer.Option(
        metavar="SHARE", help="Reject documents that hold at least this share of an item, such as 0.5."
    ),
]
DropDuplicates = Annotated[
    bool | None,
    typer.Option(
        "--drop-duplicates/--mark-duplicates",
        help="Reject documents whose text an earlier one of any source has, or say so in the ledger; the inputs are "
        "read twice. Default: neither.",
    ),
]
DryRun = Annotated[
    bool,
    typer.Option(
        "--dry-run", help="Show what would be read and made, and the commands to type; write nothing."
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON on standard output.")]


def _shards_of(folder: Path) -> Path:
    from pretok.shards.manifest import shards_of

    return shards_of(folder)


def _work_of(folder: Path) -> Path:
    """WORK, where its shards are named."""
    from pretok.shards.manifest import shards_of

    inside = folder.absolute().name == "shards" and shards_of(folder.parent) == folder
    return folder.parent if inside else folder


Shards = Annotated[
    Path,
    typer.Argument(
        metavar="WORK | SHARDS",
        help="Folder of results, or its shards.",
        show_default=False,
        callback=_shards_of,
    ),
]
WORK = typer.Argument(metavar="WORK", help="Folder of results.", show_default=False, callback=_work_of)
WORK_OR_RUN = typer.Argument(
    metavar="WORK | RUN",
    help="Folder of results, or of a training run.",
    show_default=False,
    callback=_work_of,
)

OPTIONS = {
    ("vocab", "size"): "--vocab-size",
    ("vocab", "path"): "--vocab",
    ("shards", "size"): "--shard-size",
}
"""(table, key) -> the option that gives it, where it is not called as the key is."""


def read_recipe(
    inputs: list[str],
    out: Path | None,
    changes: Mapping[str, Mapping[str, object]],
    field: str | None = None,
    keep: Sequence[str] = (),
) -> Recipe:
    """The recipe a command line means, with all its tables checked.

    changes: table -> key -> value; None leaves the recipe's value. field, keep: those of every source.
    """
    from pretok.config import load_toml, parse_inputs

    recipes = [value for value in inputs if value.endswith(".toml") and "=" not in value]
    if recipes and len(inputs) > 1:
        raise UsageError("give either one recipe or NAME=GLOB inputs, not both")
    data: dict[str, object] = load_toml(Path(recipes[0])) if recipes else {"sources": parse_inputs(inputs)}
    if out is None and "out" not in data:
        where = f'write out = "work" above the tables of {recipes[0]}, or give' if recipes else "give"
        raise UsageError(f"nothing says where the results go: {where} --out work")
    options = {
        f"{name}.{key}": OPTIONS.get((name, key), f"--{key.replace('_', '-')}")
        for name, values in changes.items()
        for key, value in values.items()
        if value is not None
    }
    return complete_recipe(
        data, recipes[0] if recipes else "command line", out, changes, field, keep, options
    )


def complete_recipe(
    data: dict[str, object],
    origin: str,
    out: str | Path | None,
    changes: Mapping[str, Mapping[str, object]],
    field: str | None = None,
    keep: Sequence[str] = (),
    options: Mapping[str, str] | None = None,
) -> Recipe:
    """The recipe that `data` holds, with the changes in it and all its tables checked; see `read_recipe`.

    options: dotted key -> the option that gave it, for errors.
    """
    from pretok.config import make_recipe

    if out is not None:
        data["out"] = out
    if "out" not in data:
        raise UsageError(f"{origin}: nothing says where the results go; give out")
    for name, values in changes.items():
        given = {key: value for key, value in values.items() if value is not None}
        if given:
            data[name] = _with(data.get(name, {}), given)
    recipe = make_recipe(data, origin, field, keep, options)
    _check_out(recipe.out)
    _check_other_tables(recipe)
    return recipe


def _with(table: object, values: Mapping[str, object]) -> object:
    """A table with `values` over its own; what is no table is left for the check of the recipe to name."""
    return {**table, **values} if isinstance(table, dict) else table


def _check_out(out: Path) -> None:
    """UsageError when `out` is what belongs into such a folder: the next result would go to shards/shards."""
    results = {"shards": "manifest.json", "counts": "counts.json", "vocab": "tokenizer.json"}
    name, parent = out.resolve().name, out.parent if out.name else out.resolve().parent
    if _is_shards(out) or (name in results and (out / results[name]).exists()):
        raise UsageError(f"{out} is a folder of results itself; did you mean --out {parent}?")
    if name == "shards" and (parent / "vocab" / results["vocab"]).exists():
        raise UsageError(f"the shards would go to {out / 'shards'}; did you mean --out {parent}?")


def _is_shards(folder: Path) -> bool:
    """Whether a manifest of ours is right there; other programs write a manifest.json too."""
    from pretok.shards.manifest import FILE_NAME, load_manifest

    if (folder / FILE_NAME).exists():
        with suppress(PretokError):
            load_manifest(folder)
            return True
    return False


def _check_other_tables(recipe: Recipe) -> None:
    """UsageError for what a later step would refuse: [slurm] and [train] on a GPU node, after the queue."""
    from pretok.cluster.chain import read_slurm_settings
    from pretok.screen.benchmark import read_benchmark
    from pretok.vocab.job import check_settings
    from train.config import check_table

    if recipe.vocab.path is None:
        check_settings(recipe.vocab)
    if recipe.shards.against is not None:
        read_benchmark(recipe.shards.against)
    read_slurm_settings(recipe.slurm, {})
    check_table(recipe.train)


def check_train_arguments(arguments: list[str]) -> None:
    """UsageError or exit code 2 for flags that `train` would refuse."""
    import argparse

    from train.config import add_flags, parse

    parser = argparse.ArgumentParser("train", add_help=False)
    add_flags(parser)
    parse(parser, arguments)


def terminal(context: typer.Context, work: Path | None = None, settings: Recipe | None = None) -> Terminal:
    """What the command tells things to: made by `pretok.cli`, or here where a command runs without it.

    work: the folder below which its log goes, None without a log; settings: for the log.
    """
    tell = context.ensure_object(Terminal)
    if work is not None:
        command = context.info_name or "pretok"
        tell.keep_log(work / LOGS, command, settings=settings.model_dump() if settings else context.params)
    if settings is not None:
        from pretok.kernels import compile as compiled

        if compiled.FIRST_RUN:
            tell.notice(
                "the first run compiles its loops and keeps them: it takes up to a minute longer, once"
            )
    return tell


def work_of(result: Path) -> Path | None:
    """The folder that `result` is in, if a job has left its log there: nothing is put into folders of others."""
    return result.parent if (result.parent / LOGS).is_dir() else None


@contextmanager
def start_engine(workers: int | None, address: str | None) -> Iterator[Engine]:
    """An engine that stops for signals and for the end of the Slurm job."""
    from pretok.base.execute import Engine
    from pretok.base.lean import without_pandas
    from pretok.base.stop import StopFlag

    without_pandas()
    with StopFlag() as stop, Engine(workers, address, stop) as engine:
        yield engine
