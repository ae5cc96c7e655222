"""Recipes: TOML, or `NAME=GLOB` arguments -> one validated Recipe.

Input: a recipe file or command-line inputs. Output: a Recipe, or a UsageError that says what is wrong, where, and what
to write instead. An unknown key is refused with the nearest known key. Relative paths in a recipe start at the folder
of the recipe; those of the command line start at the current folder.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from fractions import Fraction
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from pretok.base.errors import UsageError
from pretok.base.storage import passes
from pretok.config.keys import table_at
from pretok.config.settings import DEFAULT_SPECIAL_TOKENS, Append, MixTable, Recipe, SettingsTable
from pretok.tokenizer.kinds import MARKERS

Table = TypeVar("Table", bound=SettingsTable)


def load_toml(path: Path) -> dict[str, object]:
    """Read a recipe file as a mapping that is not validated.

    Raises UsageError if the file cannot be read or is not TOML.
    """
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        if passes(error):
            raise
        raise UsageError(f"recipe {path} cannot be read: {error.strerror}; pretok init prints one") from None
    except (ValueError, RecursionError) as error:
        raise UsageError(f"recipe {path} is not valid TOML: {error}") from None


def load_recipe(path: Path) -> Recipe:
    """Read and validate a recipe. Raises UsageError, which says what is wrong and where."""
    return make_recipe(load_toml(path), str(path))


def make_recipe(data: Mapping[str, object], origin: str, options: Mapping[str, str] | None = None) -> Recipe:
    """Validate a recipe given as a mapping.

    origin: named in errors, "" for a command line; if it is a .toml file, relative paths start at its folder. options:
    dotted key -> the option or parameter that gave it, which errors name instead of the key.
    """
    recipe = _with_markers(validated(Recipe, data, origin, options or {}))
    recipe._origin = origin
    return recipe


def _with_markers(recipe: Recipe) -> Recipe:
    """Name the first reserved entries after the markers of pretok's chat template, if there are conversations."""
    vocab = recipe.vocab
    ours = vocab.path is None and vocab.special_tokens == DEFAULT_SPECIAL_TOKENS
    if not ours or not any(source.messages for source in recipe.sources.values()):
        return recipe
    named = (*DEFAULT_SPECIAL_TOKENS[:2], *MARKERS, *DEFAULT_SPECIAL_TOKENS[2 : -len(MARKERS)])
    return recipe.model_copy(update={"vocab": vocab.model_copy(update={"special_tokens": named})})


@contextmanager
def located(recipe: Recipe, *names: str) -> Iterator[None]:
    """Let a UsageError begin with the recipe's file and the line of a key: that of the value that is wrong."""
    try:
        yield
    except UsageError as error:
        number = _line_of(names, recipe._origin)
        raise UsageError((f"{recipe._origin}: line {number}: " if number else "") + str(error)) from None


def make_mix(data: Mapping[str, object], origin: str, options: Mapping[str, str] | None = None) -> MixTable:
    """Validate the keys of a [mix] table; see `make_recipe`."""
    return validated(MixTable, data, origin, options or {}, "mix")


class BySource(dict[str, object]):
    """Values of a key, each for the source of its name."""


def with_settings(data: Mapping[str, object], given: Mapping[str, object]) -> dict[str, object]:
    """Override settings of a recipe that is still a mapping.

    given: dotted key -> value; `sources.field` sets the field of every source, or of those that a BySource names, and
    of a list the parts that begin with `NAME=` only that of the source NAME. Validation refuses anything but tables.
    """
    changed = dict(data)
    for dotted, value in given.items():
        name, _, inner = dotted.partition(".")
        table = changed.get(name, {})
        if not inner:
            changed[name] = value
        elif isinstance(table, Mapping):
            values = {inner: value}
            if isinstance(value, BySource):
                if unknown := sorted(value.keys() - table.keys()):
                    raise UsageError(f"--{inner} {unknown[0]}=...: there is no source {unknown[0]}")
                values = {f"{source}.{inner}": own for source, own in value.items()}
            elif name == "sources":
                found = {f"{source}.{inner}": _of_source(source, table, value) for source in table}
                values = {key: part for key, part in found.items() if part}
            changed[name] = with_settings(table, values)
    return changed


def _of_source(source: str, sources: Mapping[str, object], value: object) -> object:
    """Return the parts of texts such as `a,b` and `NAME=a,b` for a source.

    They are those that name it, or else those that name no source.
    """
    if not isinstance(value, list):
        return value
    general, own = [], []
    for part in value:
        name, equals, rest = part.partition("=")
        if not equals or name not in sources:
            general += part.split(",")
        elif name == source:
            own += rest.split(",")
    return own or general


def with_appends(data: dict[str, object], arguments: Sequence[str]) -> dict[str, object]:
    """Add each `NAME=GLOB` as an append of its source, in a recipe that is still a mapping. Raises UsageError."""
    sources: Any = data.get("sources")
    for argument in arguments:
        [(name, table)] = parse_inputs([argument]).items()
        if not isinstance(sources, dict) or not isinstance(sources.get(name), dict):
            raise UsageError(
                f"--append {argument}: also give the inputs of {name} as when it was tokenized ({name}=GLOB, or the "
                "recipe)"
            )
        before = sources[name].get("append", [])
        if isinstance(before, list):  # validation refuses anything else
            # Validated here: what a command line names does not start at the folder of the recipe.
            added = validated(Append, table, f"--append {argument}")
            sources = {**sources, name: {**sources[name], "append": [*before, added]}}
    return {**data, "sources": sources} if arguments else data


def validated(
    kind: type[Table],
    data: Mapping[str, object],
    origin: str,
    options: Mapping[str, str] | None = None,
    *where: str,
) -> Table:
    """Validate a mapping as the table `where` of a recipe; see `make_recipe`. Raises UsageError."""
    try:
        return kind.model_validate(data, context=Path(origin).parent if origin.endswith(".toml") else None)
    except ValidationError as error:
        top = Recipe if where else kind
        problems = [
            _explain({**detail, "loc": (*where, *detail["loc"])}, options or {}, top, origin)
            for detail in error.errors()
        ]
        raise UsageError((origin and f"{origin}: ") + "; ".join(dict.fromkeys(problems))) from None


def _explain(detail: Any, options: Mapping[str, str], top: type[BaseModel], origin: str) -> str:
    """Turn a pydantic error into a sentence: where, what is wrong, and the nearest known key for an unknown one."""
    loc = [str(part) for part in detail["loc"]]
    where = ".".join(loc)
    problem = _wrong(detail)
    table = table_at(loc[:-1], top).model_fields
    if detail["type"] == "missing":
        problem = f"{where} is missing: {table[loc[-1]].description or 'a table'}"
    elif detail["type"] == "extra_forbidden":
        known = sorted(table)
        near = difflib.get_close_matches(loc[-1], known, 1, 0.4)
        problem = f"unknown key {where} " + (
            f"(did you mean {near[0]}?)" if near else f"(known: {', '.join(known)})"
        )
    elif re.split(r"\W", problem, maxsplit=1)[0] in table_at(loc, top).model_fields:
        # What is wrong with a table as a whole begins with the name of a key.
        problem = f"{where}.{problem}".lstrip(".")
        loc = problem.split()[0].rstrip(":").split(".")
    elif where and loc[-1] != "[key]":
        problem = f"{where}: {problem}"
    for key, option in options.items():
        # An option for `sources.field` sets the field of every source.
        name = where if key.startswith("sources.") and [loc[0], *loc[2:3]] == key.split(".") else key
        if problem.startswith((f"{name}:", f"{name} ")):
            return option + problem[len(name) :]
    number = _line_of(loc, origin)
    return (f"line {number}: " if number else "") + problem


def _line_of(names: Sequence[str], origin: str) -> int:
    """Find the line of a recipe file with a key, or with the nearest table around it; 0 if there is none."""
    best, best_line, table, tables = 0, 0, list[str](), Counter[str]()
    file = Path(origin)
    text = file.read_text("utf-8") if file.suffix == ".toml" and file.is_file() else ""
    for number, line in enumerate(text.splitlines(), 1):
        if header := re.match(r"\s*(\[+)([^\]]+)\]", line):
            path = table = header[2].split(".")
            if header[1] == "[[":  # a table of a list, which names give by its number
                path = table = [*table, str(tables[header[2]])]
                tables[header[2]] += 1
        elif key := re.match(r"\s*([\w.-]+)\s*=", line):
            path = [*table, *key[1].split(".")]
        else:
            continue
        if len(path) > best and path == list(names[: len(path)]):
            best, best_line = len(path), number
    return best_line


def _wrong(detail: Any) -> str:
    """Say what is wrong with a value; in pydantic's words unless there are better ones."""
    given = f"{float(value):g}" if isinstance(value := detail["input"], Fraction) else repr(value)
    match detail["type"]:
        case "tuple_type":
            return f"{given} is not a list; write {[detail['input']]!r}"
        case "dict_type" | "model_type":
            return (
                f"{given} is not a table; write its keys below a line [{'.'.join(map(str, detail['loc']))}]"
            )
        case "too_short" | "string_too_short":
            return "it is empty; give at least one"
        case "value_error":
            return str(detail["ctx"]["error"])
    return f"{given}: {detail['msg'].replace('Input ', 'it ', 1)}"


def parse_inputs(arguments: list[str]) -> dict[str, dict[str, list[str]]]:
    """Turn `NAME=GLOB` arguments into the `sources` table of a recipe; a repeated name adds inputs."""
    sources: dict[str, dict[str, list[str]]] = {}
    for argument in arguments:
        name, equals, pattern = argument.partition("=")
        if not equals or not name or not pattern:
            raise UsageError(
                f"{argument!r} is neither a recipe (.toml) nor NAME=GLOB, such as it='data/it/*.jsonl.zst'"
            )
        sources.setdefault(name, {"inputs": []})["inputs"].append(pattern)
    return sources
