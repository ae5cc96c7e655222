"""The keys of the settings: name, type, default, help and example of each, as its field states them.

Input: the types of `config.settings`. Output: a Key for each of their fields. docs/recipe.md, the recipe that
`pretok init` prints and the options of commands are made from these.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

from pydantic import BaseModel

from pretok.config.settings import Recipe

NAMES = {str: "text", int: "number", bool: "true or false", Path: "path", datetime.date: "date"}
"""Type -> its name, if Annotated gives none."""


@dataclass(frozen=True, slots=True)
class Key:
    """A key of a table."""

    name: str
    kind: str
    """Its type in words."""
    value: Any
    """A value to show: the default or, if that says nothing, an example."""
    is_example: bool
    text: str
    """The help, and which other keys of the table it needs or excludes."""


def keys_of(table: type[BaseModel]) -> Iterator[Key]:
    """Yield the keys of a table in the order of the type. Inner tables, which have no help, are left out."""
    for name, field in table.model_fields.items():
        if field.description:
            others: Any = field.json_schema_extra
            text = field.description
            for word, names in (("Needs", others["needs"]), ("Not with", others["excludes"])):
                text += f" {word} {' or '.join(f'`{other}`' for other in names)}." if names else ""
            [value] = field.examples or [field.default]
            yield Key(name, _words(field.annotation, field.metadata), value, bool(field.examples), text)


def _table_in(kind: Any) -> type[BaseModel] | None:
    """Find the type of the tables that a key holds; None if it holds values."""
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return kind
    return next((table for part in get_args(kind) if (table := _table_in(part))), None)


def table_at(names: Iterable[str], top: type[BaseModel] = Recipe) -> type[BaseModel]:
    """Find the type of a table by its names, from `top` on.

    A name that is not a key, such as that of a source, is skipped.
    """
    names = iter(names)
    for name in names:
        field = top.model_fields.get(name)
        top = _table_in(field and field.annotation) or top
        if field and get_origin(field.annotation) is dict:
            next(names, None)  # the name of a source may also be the name of a key
    return top


def key_at(dotted: str) -> Key:
    """Find a key of a recipe by its dotted name; `sources.field` is that of every source."""
    *tables, name = dotted.split(".")
    return next(key for key in keys_of(table_at(tables)) if key.name == name)


def _words(kind: Any, metadata: Sequence[Any] = ()) -> str:
    """Name a type: by the text in its Annotated, else by its parts."""
    if name := next((part for part in metadata if isinstance(part, str)), ""):
        return name
    parts = get_args(kind)
    origin = get_origin(kind)
    if origin is Annotated:
        return _words(parts[0], parts[1:])
    if origin is Literal:
        return " or ".join(f'"{value}"' for value in parts)
    if origin is tuple:
        return f"list of {_words(parts[0])}"
    if origin is dict:
        return f"table of {_words(parts[1])}"
    return _words(parts[0]) if parts else NAMES.get(kind, "table")  # of `X | None` X


def toml(value: Any) -> str:
    """Write a value as TOML."""
    match value:
        case Fraction():
            return f"{float(value):g}"
        case list() | tuple():
            return f"[{', '.join(map(toml, value))}]"
        case dict():
            return "{" + ", ".join(f"{name} = {toml(part)}" for name, part in value.items()) + "}"
        case int() if value >= 10_000:
            return f"{value:_}"
    return json.dumps(value, ensure_ascii=False)  # texts, numbers, true and false are written alike in TOML
