"""Options and set-up that several commands share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from pretok.base.errors import UsageError
from pretok.base.joblog import LOGS
from pretok.base.terminal import Terminal
from pretok.config.keys import Key, key_at
from pretok.session import complete_recipe

if TYPE_CHECKING:
    from pretok.config import Recipe

Workers = Annotated[
    int | None,
    typer.Option(metavar="N", min=0, help="Parallel tasks; 0: in this process. Default: one per CPU."),
]
Address = Annotated[
    str | None,
    typer.Option(metavar="HOST", help="Ray cluster, or `auto` in an allocation. Default: only this node."),
]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON on standard output.")]


def _shards_of(folder: Path) -> Path:
    from pretok.shards.manifest import shards_of

    return shards_of(folder)


def _work_of(folder: Path) -> Path:
    """Return WORK, also if its shards are named."""
    inside = folder.absolute().name == "shards" and _shards_of(folder.parent) == folder
    return folder.parent if inside else folder


def argument(metavar: str, text: str | None = None, callback: Callable[[Path], Path] | None = None) -> Any:
    """Declare an argument of a command: a value without `--`."""
    return typer.Argument(metavar=metavar, help=text, show_default=False, callback=callback)


Inputs = Annotated[
    list[str], argument("RECIPE.toml | NAME=GLOB", "A recipe, or sources: a name and its files.")
]
Shards = Annotated[Path, argument("WORK | SHARDS", "Folder of results, or its shards.", _shards_of)]
WorkFolder = Annotated[Path, argument("WORK", "Folder of results.", _work_of)]
WorkOrRun = Annotated[Path, argument("WORK | RUN", "Folder of results, or of a training run.", _work_of)]
WorkOrShards = Annotated[Path, argument("WORK", "Folder of results, or its shards.")]

Setting: TypeAlias = str | None
Settings: TypeAlias = list[str] | None
"""What is typed for a key of the recipe, and for one whose option may be repeated."""
GIVEN = "pretok.settings"
"""Where the context of a command keeps the settings that were typed."""
OPTIONS = {
    "vocab.size": "--vocab-size",
    "vocab.path": "--vocab",
    "mix.stages": "--stage",
    "mix.classes": "--class",
}
"""Key -> the option that sets it, if the option does not have the name of the key."""
METAVARS = {
    "count": "N",
    "number": "N",
    "share": "SHARE",
    "path": "PATH",
    "table of shares": "NAME=SHARE,...",
    "table of text": "NAME=SOURCE where CONDITION",
    "table of tokens": "NAME=TOKENIZER",
    "list of table": "TOKENS:WEIGHTS",
    "list": "A,B,...",
    "text or list": "[NAME=]FIELD",
}
"""How the type of a key begins -> how the help calls a value; the first that fits."""
REPEATED = ("list", "table of text", "table of tokens", "text or list")
"""Types of keys whose option may be repeated."""
NAMED = ("sources.field", "sources.keep")
"""Keys of a source whose option may name the source, as NAME=VALUE."""


def option_of(dotted: str) -> str:
    """Return the option that sets a key."""
    return OPTIONS.get(dotted, f"--{dotted.rpartition('.')[2].replace('_', '-')}")


def option(flag: str, text: str, metavar: str | None = None, **limits: Any) -> Any:
    """Declare an option of a command. limits: those of typer, such as min."""
    return typer.Option(flag, help=text, metavar=metavar, **limits)


def setting(dotted: str) -> Any:
    """Declare the option that sets a key of the recipe: its name, type, default and help are those of the key.

    The command gets the values of all that were typed by `settings_of`.
    """
    key = key_at(dotted)

    def keep(context: typer.Context, value: Any) -> Any:
        if value not in (None, []):
            by_name = dotted in NAMED  # which source is not known here
            parsed = value if by_name else value_of(key, value)
            context.meta.setdefault(GIVEN, {})[dotted] = parsed
        return value

    of_one = key.kind == "table of tokens"
    text = key.text + (" In all sources, or in NAME." if dotted.startswith("sources.") and not of_one else "")
    if shown := "it=old/tokenizer.json" if of_one else as_typed(key.value):
        text += f" For example {shown}." if key.is_example else f" Default: {shown}."
    choices = key.kind.replace('"', "").replace(" or ", "|") if key.kind.startswith('"') else "TEXT"
    metavar = next((METAVARS[start] for start in METAVARS if key.kind.startswith(start)), choices)
    return typer.Option(
        None, option_of(dotted), metavar=metavar, help=text, show_default=False, callback=keep
    )


def settings_of(context: typer.Context) -> dict[str, Any]:
    """Return the settings that were typed: dotted key -> value."""
    return dict(context.meta.get(GIVEN, {}))


def as_typed(value: Any) -> str:
    """Turn the value of a key into the text that follows its option; the inverse of `value_of`."""
    match value:
        case [dict(), *_]:
            return ""  # stages: the examples of the command show one
        case dict():
            return ",".join(f"{name}={share}" for name, share in value.items())
        case list() | tuple():
            return ",".join(map(str, value))
    return str(value)


def value_of(key: Key, typed: Any) -> object:
    """Parse the text that follows an option into the value of a recipe. Raises UsageError."""
    from pretok.config.recipes import BySource
    from pretok.stream.quota import parse_weights, stage_table

    if key.name == "stages":
        return tuple(map(stage_table, typed))
    if key.name == "classes":
        return dict(map(_class, typed))
    if key.kind == "table of tokens":
        return BySource({name: {"tokenizer": Path(path)} for name, path in map(_tokens, typed)})
    if isinstance(typed, list):
        return [part for text in typed for part in text.split(",")]
    if key.kind.startswith("table"):
        return parse_weights(typed)
    return Path(typed) if key.kind == "path" else typed


def _class(text: str) -> tuple[str, str]:
    """Split `good=it where quality >= 0.8` at the first `=`."""
    name, equals, condition = text.partition("=")
    if not equals or not name.strip():
        raise UsageError(f"cannot read --class {text!r}; write NAME=SOURCE where CONDITION")
    return name.strip(), condition.strip()


def _tokens(text: str) -> tuple[str, str]:
    """Split `it=old/tokenizer.json`."""
    name, equals, path = text.partition("=")
    if not equals or not name or not path:
        raise UsageError(
            f"cannot read --tokens {text!r}; write NAME=TOKENIZER, such as it=old/tokenizer.json"
        )
    return name, path


def read_recipe(
    inputs: list[str],
    given: Mapping[str, object],
    appended: Sequence[str] = (),
    defaults: Mapping[str, object] | None = None,
) -> Recipe:
    """Read the recipe of a command line and validate all its tables.

    inputs: a recipe file, or NAME=GLOB arguments; given: settings that replace those of the recipe; appended: NAME=GLOB
    arguments, each of which appends to a source; defaults: settings that the recipe may replace. Raises UsageError.
    """
    from pretok.config import load_toml, parse_inputs, with_appends

    recipes = [
        value for value in inputs if value.endswith(".toml") and ("=" not in value or Path(value).is_file())
    ]
    if recipes and len(inputs) > 1:
        raise UsageError("give either one recipe or NAME=GLOB inputs, not both")
    data: dict[str, object] = load_toml(Path(recipes[0])) if recipes else {"sources": parse_inputs(inputs)}
    data = with_appends({**(defaults or {}), **data}, appended)
    options = {dotted: option_of(dotted) for dotted in (*given, *(() if recipes else ("out",)))}
    return complete_recipe(data, recipes[0] if recipes else "", given, options)


def parse_size(text: str, option: str) -> int:
    """Parse a size such as 10GiB. Raises UsageError, which names the option."""
    from pretok.base.units import parse_count

    try:
        return int(parse_count(text))
    except ValueError as error:
        raise UsageError(f"{option}: {error}") from None


def check_train_arguments(arguments: list[str]) -> None:
    """Refuse flags that `train` would refuse, by UsageError or exit code 2."""
    import argparse

    from train.config import add_flags, parse, refuse_unread

    parser = argparse.ArgumentParser("train", add_help=False)
    add_flags(parser)
    config, _ = parse(parser, arguments)
    refuse_unread(config)


def refuse_unread(context: typer.Context, why: str, *names: str) -> None:
    """Raise UsageError for the options that were typed among the parameters `names`, because nothing reads them.

    why: the rest of the sentence, such as "without --random".
    """
    parameters = [parameter for parameter in context.command.params if parameter.name in names]
    typed = [
        parameter.opts[0]
        for parameter in parameters
        if (source := context.get_parameter_source(str(parameter.name))) and source.name == "COMMANDLINE"
    ]
    if typed:
        raise UsageError(f"{', '.join(typed)}: nothing reads it {why}; leave it out")


def terminal(context: typer.Context, work: Path | None = None, settings: Recipe | None = None) -> Terminal:
    """Open the console of a command.

    work: the folder for its log, None for no log; settings: the recipe, for the log.
    """
    console = context.ensure_object(Terminal)
    if work is not None:
        command = context.info_name or "pretok"
        console.keep_log(work / LOGS, command, settings=settings.model_dump() if settings else context.params)
    return console
