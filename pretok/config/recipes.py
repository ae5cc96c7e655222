"""Recipes: TOML, or `NAME=GLOB` arguments -> one validated Recipe.

Input: a recipe file or command-line inputs. Output: a Recipe, or a UsageError that says what is wrong, where, and what
to write. Unknown keys are refused with the nearest known key named. Relative paths start at the folder of the recipe;
those of the command line start at the current folder.
"""

from __future__ import annotations

import difflib
import glob
import os
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from itertools import takewhile
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from pretok.base.errors import UsageError
from pretok.base.storage import passes
from pretok.config.keys import table_at
from pretok.config.settings import MixTable, Part, Recipe
from pretok.read.paths import SAMPLE, is_remote

Table = TypeVar("Table", bound=Part)
CHATML = "chatml"
"""A chat template that ships with pretok."""


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


def _anchor(data: dict[str, Any], folder: Path) -> dict[str, object]:
    """A recipe whose relative paths start at the current folder instead of `folder`, which is that of its file."""
    literal, escaped = (text.replace("$", "$$") for text in (str(folder), glob.escape(str(folder))))

    def lead(value: Any, base: str) -> Any:
        if not isinstance(value, str) or not value or value.startswith(("/", "~", "$", SAMPLE)):
            return value  # a home or a variable begins no relative path
        return value if is_remote(value) else os.path.normpath(os.path.join(base, value))  # noqa: PTH118

    def lead_keys(table: Any, *keys: str) -> None:
        for key in keys if isinstance(table, dict) else ():
            if table.get(key, CHATML) != CHATML:  # the template of pretok is no path
                table[key] = lead(table[key], literal)

    lead_keys(data, "out")
    lead_keys(data.get("vocab"), "path", "extend")
    lead_keys(data.get("shards"), "against", "removed")
    sources = data.get("sources")
    for source in sources.values() if isinstance(sources, dict) else ():
        lead_keys(source, "tools", "chat_template")
        appends = source.get("append") if isinstance(source, dict) else None
        for table in (source, *(appends if isinstance(appends, list) else ())):
            if isinstance(table, dict) and isinstance(table.get("inputs"), list):
                table["inputs"] = [lead(value, escaped) for value in table["inputs"]]
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
        found = [
            _explain({**detail, "loc": (*where, *detail["loc"])}, options or {}, top, origin)
            for detail in error.errors()
        ]
        raise UsageError((origin and f"{origin}: ") + "; ".join(dict.fromkeys(found))) from None


def _explain(detail: Any, options: Mapping[str, str], top: type[BaseModel], origin: str) -> str:
    """One pydantic error as a sentence: where it is, what is wrong, and the nearest known key for an unknown one."""
    loc = [str(part) for part in detail["loc"]]
    where = ".".join(loc)
    if detail["type"] == "extra_forbidden":
        said = unknown_key(where, table_at(loc[:-1], top).model_fields)
    else:
        said = f"{where}: {_wrong(detail)}" if where and loc[-1] != "[key]" else _wrong(detail)
    for (
        key,
        option,
    ) in options.items():  # named as it was typed; of `sources.field` one option is for every source
        name = where if key.startswith("sources.") and [loc[0], *loc[2:3]] == key.split(".") else key
        if said.startswith((f"{name}:", f"{name} ")):
            return option + said[len(name) :]
    number = _line_of(loc or said.split()[0].split("."), origin)
    return (f"line {number}: " if number else "") + said


def _line_of(names: Sequence[str], origin: str) -> int:
    """The line of a recipe that holds a key, or else the nearest table around it; 0 where there is none."""
    names = list(takewhile(lambda name: not name.isdigit(), names))
    best, found, table = 0, 0, list[str]()
    file = Path(origin)
    text = file.read_text("utf-8") if file.suffix == ".toml" and file.is_file() else ""
    for number, line in enumerate(text.splitlines(), 1):
        if header := re.match(r"\s*\[+([^\]]+)\]", line):
            path = table = header[1].split(".")
        elif key := re.match(r"\s*([\w.-]+)\s*=", line):
            path = [*table, *key[1].split(".")]
        else:
            continue
        if len(path) > best and path == names[: len(path)]:
            best, found = len(path), number
    return found


def _wrong(detail: Any) -> str:
    """What is wrong with a value; in pydantic's words where there are no better ones."""
    given = f"{float(value):g}" if isinstance(value := detail["input"], Fraction) else repr(value)
    match detail["type"]:
        case "missing":
            return "it is missing"
        case "tuple_type":
            return f"{given} is no list; write {[detail['input']]!r}"
        case "dict_type" | "model_type":
            return f"{given} is no table; write its keys below a line [{'.'.join(map(str, detail['loc']))}]"
        case "too_short" | "string_too_short":
            return "it is empty; give at least one"
        case "value_error":
            return str(detail["ctx"]["error"])
    return f"{given}: {detail['msg'].replace('Input ', 'it ', 1)}"


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
