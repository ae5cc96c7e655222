"""Options and set-up that several commands share."""

from __future__ import annotations

import tomllib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import wraps
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from pretok.base.errors import PretokError, UsageError
from pretok.base.joblog import LOGS
from pretok.base.terminal import Terminal

if TYPE_CHECKING:
    from pretok.base.execute import Engine
    from pretok.config import Recipe
    from pretok.config.keys import Key

Command = TypeVar("Command", bound=Callable[..., None])
Inputs = Annotated[list[str], typer.Argument(metavar="RECIPE.toml | NAME=GLOB ...", show_default=False)]
Out = Annotated[Path | None, typer.Option(help="Folder for the results; overrides the recipe's `out`.")]
Workers = Annotated[
    int | None,
    typer.Option(min=0, help="Number of parallel tasks; 0: work in this process. Default: one per CPU."),
]
Address = Annotated[
    str | None,
    typer.Option(
        help="Address of a Ray cluster, or `auto` inside an allocation. Default: processes on this node."
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

Given = dict[str, Any]
"""Settings that a command line gives: dotted key -> value. In a signature it stands for their options, see `takes`."""
OPTIONS = {"vocab.size": "--vocab-size", "vocab.path": "--vocab"}
"""Key -> the option that gives it, where it is not called as the key is."""
METAVARS = {
    "count": "N",
    "whole": "N",
    "share": "SHARE",
    "path": "PATH",
    "table": "NAME=SHARE,...",
    "list": "A,B,...",
}
"""First word of a key's type -> how its value is called in the help."""


def option_of(dotted: str) -> str:
    """What the option that gives a setting is called."""
    return OPTIONS.get(dotted, f"--{dotted.rpartition('.')[2].replace('_', '-')}")


def takes(*settings: str) -> Callable[[Command], Command]:
    """Mark a command that has an option for each of these settings, in the place of its parameter `given`."""

    def mark(command: Command) -> Command:
        command.takes = settings  # type: ignore[attr-defined]
        return command

    return mark


def with_options(command: Callable[..., None]) -> Callable[..., None]:
    """A command with its options for settings, made of what the settings' own types say of each."""
    if not hasattr(command, "takes"):
        return command
    from pretok.config.keys import key_at

    keys = {option_of(dotted)[2:].replace("-", "_"): (dotted, key_at(dotted)) for dotted in command.takes}

    @wraps(command)
    def typed(**values: Any) -> None:
        given = {
            dotted: value_of(key, value)
            for name, (dotted, key) in keys.items()
            if (value := values.pop(name)) not in (None, [])
        }
        command(**values, given=given)

    parameters = []
    for parameter in signature(command, eval_str=True).parameters.values():
        if parameter.name == "given":
            parameters += [
                Parameter(name, Parameter.KEYWORD_ONLY, default=None, annotation=_annotation(dotted, key))
                for name, (dotted, key) in keys.items()
            ]
        else:
            parameters.append(parameter.replace(kind=Parameter.KEYWORD_ONLY))
    typed.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    typed.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return typed


def _annotation(dotted: str, key: Key) -> Any:
    """The type of an option, with its help."""
    text = key.text + (" In all sources." if dotted.startswith("sources.") else "")
    text += f" For example {as_typed(key.example)}." if key.example else ""
    text += f" Default: {as_typed(key.default)}." if as_typed(key.default) else ""
    if key.kind == "true or false":
        return Annotated[bool | None, typer.Option(option_of(dotted), help=key.text)]
    metavar = METAVARS.get(key.kind.replace(",", " ").split()[0], "TEXT")
    if key.kind.startswith('"'):
        metavar = key.kind.replace('"', "").replace(" or ", "|")
    kind = list[str] if key.kind.startswith("list") else str
    return Annotated[kind | None, typer.Option(option_of(dotted), metavar=metavar, help=text)]


def as_typed(toml: str) -> str:
    """A value as TOML -> as it is typed behind an option; the inverse of `value_of`."""
    value = tomllib.loads(f"value = {toml}")["value"] if toml else ""
    if isinstance(value, dict):
        return ",".join(f"{name}={share}" for name, share in value.items())
    return ",".join(map(str, value)) if isinstance(value, list) else toml.strip('"')


def value_of(key: Key, typed: Any) -> object:
    """What was typed behind an option, as a recipe has it. A list may stand behind one option, or behind several."""
    if isinstance(typed, list):
        return [part for text in typed for part in text.split(",")]
    if key.kind.startswith("table"):
        from pretok.stream.quota import parse_weights

        return parse_weights(typed) or ("natural" if "natural" in key.kind else {})
    return typed


def read_recipe(
    inputs: list[str],
    out: Path | None,
    given: Mapping[str, object],
    appended: Sequence[str] = (),
    default: Path | None = None,
) -> Recipe:
    """The recipe a command line means, with `given` over its own settings and all its tables checked. appended: each
    NAME=GLOB an append behind those of the recipe; default: of `out`, where nothing is written there."""
    from pretok.config import load_toml, parse_inputs, with_appends

    recipes = [value for value in inputs if value.endswith(".toml") and "=" not in value]
    if recipes and len(inputs) > 1:
        raise UsageError("give either one recipe or NAME=GLOB inputs, not both")
    data: dict[str, object] = load_toml(Path(recipes[0])) if recipes else {"sources": parse_inputs(inputs)}
    data = with_appends(data, appended)
    if "out" not in data:
        out = out or default
    if out is None and "out" not in data:
        where = f'write out = "work" above the tables of {recipes[0]}, or give' if recipes else "give"
        raise UsageError(f"nothing says where the results go: {where} --out work")
    options = {dotted: option_of(dotted) for dotted in given}
    return complete_recipe(data, recipes[0] if recipes else "", out, given, options, "--out ")


def complete_recipe(
    data: Mapping[str, object],
    origin: str,
    out: str | Path | None,
    given: Mapping[str, object],
    names: Mapping[str, str],
    out_name: str,
) -> Recipe:
    """The recipe that `data` holds, with `given` over its own settings and all its tables checked.

    names: dotted key -> the option or parameter that gave it, and out_name that of `out`, for errors.
    """
    from pretok.config import make_recipe, with_settings

    data = with_settings(data, given if out is None else {**given, "out": out})
    if "out" not in data:
        raise UsageError(f"{origin}: nothing says where the results go; give out")
    recipe = make_recipe(data, origin, names)
    _check_out(recipe.out, out_name)
    _check_other_tables(recipe)
    return recipe


def _check_out(out: Path, option: str) -> None:
    """UsageError when `out` is a file, or what belongs into such a folder: the next would go to shards/shards."""
    results = {"shards": "manifest.json", "counts": "counts.json", "vocab": "tokenizer.json"}
    name, parent = out.resolve().name, out.parent if out.name else out.resolve().parent
    if out.is_file():
        raise UsageError(f"{option}{out} is a file; name a folder")
    if _is_shards(out) or (name in results and (out / results[name]).exists()):
        raise UsageError(f"{out} is a folder of results itself; did you mean {option}{parent}?")
    if name == "shards" and (parent / "vocab" / results["vocab"]).exists():
        raise UsageError(f"the shards would go to {out / 'shards'}; did you mean {option}{parent}?")


def _is_shards(folder: Path) -> bool:
    """Whether a manifest of ours is right there; other programs write a manifest.json too."""
    from pretok.shards.manifest import FILE_NAME, load_manifest

    if (folder / FILE_NAME).exists():
        with suppress(PretokError):
            load_manifest(folder)
            return True
    return False


def _check_other_tables(recipe: Recipe) -> None:
    """UsageError for what a later step would refuse: [train] on a GPU node, after the queue."""
    if recipe.vocab.path is None:
        from pretok.vocab.job import check_settings

        check_settings(recipe.vocab)
    if recipe.shards.against is not None:
        from pretok.screen.benchmark import read_benchmark

        read_benchmark(recipe.shards.against)
    if recipe.train:
        from train.config import check_table

        check_table(recipe.train)


def parse_size(text: str, option: str) -> int:
    """A count such as 10GiB. Raises UsageError."""
    from pretok.base.units import parse_count

    try:
        return int(parse_count(text))
    except ValueError as error:
        raise UsageError(f"{option}: {error}") from None


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
    console = context.ensure_object(Terminal)
    names = Counter(value.partition("=")[0] for value in context.params.get("inputs", ()) if "=" in value)
    for name, patterns in names.items():
        if patterns > 1:
            console.notice(f"{name}: {patterns} patterns, read as one source")
    if work is not None:
        command = context.info_name or "pretok"
        console.keep_log(work / LOGS, command, settings=settings.model_dump() if settings else context.params)
    return console


def work_of(result: Path) -> Path | None:
    """The folder that `result` is in, if a job has left its log there: nothing is put into folders of others."""
    return result.parent if (result.parent / LOGS).is_dir() else None


@contextmanager
def start_engine(workers: int | None, address: str | None, module: str = "") -> Iterator[Engine]:
    """An engine that stops for signals and for the end of the Slurm job. module: what workers of this node load while
    the command imports and plans."""
    from pretok.base.execute import Engine
    from pretok.base.startup import without_pandas
    from pretok.base.stop import StopFlag

    with StopFlag() as stop, Engine(workers, address, stop, module) as engine:
        without_pandas()
        yield engine
