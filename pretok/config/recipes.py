"""Recipes: TOML, or `NAME=GLOB` arguments -> one validated Recipe.

Input: a recipe file or command-line inputs. Output: a Recipe, or a UsageError that says what is wrong, where, and what
to write. Unknown keys are refused with the nearest known key named. Relative paths start at the folder of the recipe;
those of the command line start at the current folder.
"""

from __future__ import annotations

import difflib
import glob
import os
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from pretok.base.errors import UsageError
from pretok.base.storage import passes
from pretok.config.keys import inner_table
from pretok.config.settings import MixTable, Part, Recipe
from pretok.read.paths import SAMPLE, is_remote

Table = TypeVar("Table", bound=Part)


def load_toml(path: Path) -> dict[str, object]:
    """A recipe file as a mapping, not validated, its relative paths led to the recipe's folder.

    UsageError when it cannot be read or is not TOML.
    """
    try:
        return _anchor(tomllib.loads(path.read_text(encoding="utf-8")), path.parent)
    except FileNotFoundError:
        raise UsageError(
            f"recipe {path} does not exist (no {path.absolute()}); pretok init prints one"
        ) from None
    except OSError as error:
        if passes(error):
            raise
        raise UsageError(f"recipe {path} cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise UsageError(f"recipe {path} is not valid TOML: {error}") from None


def _anchor(data: dict[str, object], folder: Path) -> dict[str, object]:
    """A recipe whose relative paths start at the current folder instead of `folder`, which is that of its file."""

    def lead(value: Any, base: str) -> Any:
        if not isinstance(value, str) or not value or value.startswith(("/", "~", "$", SAMPLE)):
            return value  # a home or a variable begins no relative path
        return value if is_remote(value) else os.path.normpath(os.path.join(base, value))  # noqa: PTH118

    literal, escaped = (text.replace("$", "$$") for text in (str(folder), glob.escape(str(folder))))
    sources = data.get("sources")
    if "out" in data:
        data["out"] = lead(data["out"], literal)
    for name, key in (("vocab", "path"), ("shards", "against")):
        table = data.get(name)
        if isinstance(table, dict) and key in table:
            table[key] = lead(table[key], literal)
    for source in sources.values() if isinstance(sources, dict) else ():
        appends = source.get("append") if isinstance(source, dict) else None
        for table in (source, *(appends if isinstance(appends, list) else ())):
            if isinstance(table, dict) and isinstance(table.get("inputs"), list):
                table["inputs"] = [lead(value, escaped) for value in table["inputs"]]
        for key in ("tools", "chat_template"):
            if isinstance(source, dict) and source.get(key, "chatml") != "chatml":  # the template of pretok
                source[key] = lead(source[key], literal)
    return data


def load_recipe(path: Path) -> Recipe:
    """Read and validate a recipe. UsageError says what is wrong and where."""
    return make_recipe(load_toml(path), str(path))


def make_recipe(data: Mapping[str, object], origin: str, options: Mapping[str, str] | None = None) -> Recipe:
    """Validate a recipe given as a mapping; `origin` is named in errors, "" for a command line. options: dotted key ->
    the option or parameter that gave it, which is named in its place."""
    return validated(Recipe, data, origin, options or {})


def make_mix(data: Mapping[str, object], origin: str, options: Mapping[str, str] | None = None) -> MixTable:
    """Validate the keys of a [mix] table; see `make_recipe`."""
    return validated(MixTable, data, origin, options or {}, "mix")


def with_settings(data: Mapping[str, object], given: Mapping[str, object]) -> dict[str, object]:
    """A recipe as a mapping with settings over its own, by dotted key; `sources.field` is that of every source. What is
    no table is left for the check of the recipe to name."""
    changed = dict(data)
    for dotted, value in given.items():
        name, _, inner = dotted.partition(".")
        table = changed.get(name, {})
        if not inner:
            changed[name] = value
        elif isinstance(table, Mapping):
            names = [f"{source}.{inner}" for source in table] if name == "sources" else [inner]
            changed[name] = with_settings(table, dict.fromkeys(names, value))
    return changed


def with_appends(data: dict[str, object], arguments: Sequence[str]) -> dict[str, object]:
    """A recipe as a mapping in which each `NAME=GLOB` is one more append of a source. Raises UsageError."""
    sources: Any = data.get("sources")
    for argument in arguments:
        [(name, table)] = parse_inputs([argument]).items()
        if not isinstance(sources, dict) or not isinstance(sources.get(name), dict):
            raise UsageError(
                f"--append {argument}: name what {name} is made of too, as when it was tokenized: {name}=GLOB, or the "
                "recipe"
            )
        before = sources[name].get("append", [])
        if isinstance(before, list):  # else it is refused with the recipe
            sources = {**sources, name: {**sources[name], "append": [*before, table]}}
    return {**data, "sources": sources} if arguments else data


def validated(
    kind: type[Table],
    data: Mapping[str, object],
    origin: str,
    options: Mapping[str, str] | None = None,
    *where: str,
) -> Table:
    """A mapping as a table, which stands at `where` in a recipe; see `make_recipe`. UsageError."""
    try:
        return kind.model_validate(data)
    except ValidationError as error:
        top = Recipe if where else kind
        lines = [
            _explain({**detail, "loc": (*where, *detail["loc"])}, options or {}, top)
            for detail in error.errors()
        ]
        raise UsageError((origin and f"{origin}: ") + "; ".join(dict.fromkeys(lines))) from None


def _explain(detail: Any, options: Mapping[str, str], top: type[BaseModel]) -> str:
    """One pydantic error as a sentence, with the nearest known key for an unknown one."""
    loc = [str(part) for part in detail["loc"]]
    where = ".".join(loc)
    if detail["type"] == "extra_forbidden":
        table = top
        for part in loc[:-1]:
            table = inner_table(table, part) or table
        return unknown_key(where, table.model_fields)
    line = f"{where}: {_wrong(detail)}" if where and loc[-1] != "[key]" else _wrong(detail)
    for key, option in options.items():
        name = where if key.startswith("sources.") and [loc[0], *loc[2:3]] == key.split(".") else key
        if line.startswith((f"{name}:", f"{name} ")):
            return option + line[len(name) :]
    return line


def _wrong(detail: Any) -> str:
    """What is wrong with a value, and what to write; in pydantic's words where there are no better ones."""
    given, limits = repr(detail["input"]), detail.get("ctx", {})
    match detail["type"]:
        case "missing":
            return "it is missing"
        case "tuple_type":
            return f"{given} is no list; write {[detail['input']]!r}"
        case "dict_type" | "model_type":
            return f"{given} is no table; write its keys below a line [{'.'.join(map(str, detail['loc']))}]"
        case "too_short" | "string_too_short":
            return "it is empty; give at least one"
        case "string_type":
            return f"{given} is no text; write it in quotes"
        case "int_type" | "int_parsing" | "int_from_float":
            return f"{given} is no whole number"
        case "bool_type" | "bool_parsing":
            return f"{given} is neither true nor false"
        case "literal_error":
            return f"{given} is none of {limits['expected']}"
        case "greater_than_equal" | "greater_than" | "less_than_equal" | "less_than":
            bound = next(iter(limits.values()))
            words = {"ge": "at least", "gt": "more than", "le": "at most", "lt": "less than"}
            return f"{detail['input']} is out of range; it must be {words[next(iter(limits))]} {bound}"
    return str(detail["msg"].removeprefix("Value error, "))


def unknown_key(where: str, known: Iterable[str]) -> str:
    """A sentence for a key that is none of `known`, with the nearest of them; where: its dotted name."""
    names = sorted(known)
    near = difflib.get_close_matches(where.rpartition(".")[2], names, 1, 0.4)
    return f"unknown key {where} " + (
        f"(did you mean {near[0]}?)" if near else f"(known: {', '.join(names)})"
    )


def parse_inputs(arguments: list[str]) -> dict[str, dict[str, list[str]]]:
    """`NAME=GLOB` arguments -> the `sources` table of a recipe; a repeated name adds inputs."""
    sources: dict[str, dict[str, list[str]]] = {}
    for argument in arguments:
        name, equals, pattern = argument.partition("=")
        if not equals or not name or not pattern:
            raise UsageError(
                f"{argument!r} is neither a recipe (.toml) nor NAME=GLOB, such as it='data/it/*.jsonl.zst'"
            )
        sources.setdefault(name, {"inputs": []})["inputs"].append(pattern)
    return sources
