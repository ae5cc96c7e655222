"""What the settings' own types say of each key: name, type, default, limits, a sentence, an example and a page.

Input: the types of `config.settings`. Output: a Key for each of their fields. The page of all keys, the recipe that
`pretok init` prints and the options of commands are all made of these, so none can say what the settings do not.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from pretok.base.units import parse_count, parse_length, parse_share
from pretok.config.settings import Recipe, budget, proportions

BOUNDS = {"ge": "at least", "gt": "more than", "le": "at most", "lt": "less than"}


@dataclass(frozen=True, slots=True)
class Key:
    """A key of a table. kind: its type in words, with its bounds; default: as TOML, "" where it must be given or there
    is none; page: of docs/."""

    name: str
    kind: str
    default: str
    needed: bool
    example: str
    text: str
    page: str


def keys_of(table: type[BaseModel]) -> Iterator[Key]:
    """The keys of a table in the order of the type; tables within it have a heading of their own."""
    told = _told(table)
    for name, field in table.model_fields.items():
        if name in told:
            text, example, page = (part.strip() for part in told[name].split(" | "))
            default = "" if field.is_required() else toml(field.default)
            yield Key(name, _kind(field), default, field.is_required(), example, text, page)


def inner_table(table: type[BaseModel], name: str) -> type[BaseModel] | None:
    """The type of the tables that a key of a table holds; None where it holds values."""
    field = table.model_fields.get(name)
    return None if field is None else _table_in(field.annotation)


def _table_in(kind: Any) -> type[BaseModel] | None:
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return kind
    return next((found for part in get_args(kind) if (found := _table_in(part))), None)


def key_at(dotted: str) -> Key:
    """The key of a recipe by its dotted name; `sources.field` is that of every source."""
    *tables, name = dotted.split(".")
    table: type[BaseModel] = Recipe
    for part in tables:
        table = inner_table(table, part) or table
    return next(key for key in keys_of(table) if key.name == name)


def _told(table: type) -> dict[str, str]:
    """Key -> the line below it, in the type and those it is made from."""
    kinds = reversed(table.__mro__[: table.__mro__.index(BaseModel)])
    return {
        name: line for kind in kinds for name, line in _lines_of(inspect.getfile(kind))[kind.__name__].items()
    }


@cache
def _lines_of(file: str) -> dict[str, dict[str, str]]:
    """Class -> field -> the line below it."""
    classes = [
        node for node in ast.parse(Path(file).read_text("utf-8")).body if isinstance(node, ast.ClassDef)
    ]
    found: dict[str, dict[str, str]] = {node.name: {} for node in classes}
    for node in classes:
        for field, below in zip(node.body, node.body[1:], strict=False):
            match field, below:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(line))):
                    found[node.name][name] = " ".join(line.split("\n    "))
    return found


def _kind(field: FieldInfo) -> str:
    bounds = [f"{BOUNDS[name]} {bound}" for part in field.metadata for name in BOUNDS
              if (bound := getattr(part, name, None)) is not None]  # fmt: skip
    return ", ".join([_words(field.annotation, field.metadata), *(bounds if len(str(bounds)) < 60 else [])])


def _words(kind: Any, metadata: Sequence[Any] = ()) -> str:
    called = {getattr(part, "func", None) for part in metadata}
    if get_origin(kind) is Annotated:
        return _words(get_args(kind)[0], get_args(kind)[1:])
    if called & {parse_count, parse_length, budget}:
        return 'count or "all"' if budget in called else "count"
    if parse_share in called or kind is Fraction:
        return "share"
    if proportions in called:
        return 'table of shares or "natural"'
    if get_origin(kind) is Literal:
        return " or ".join(f'"{value}"' for value in get_args(kind))
    if get_origin(kind) is tuple:
        return f"list of {_words(get_args(kind)[0])}"
    if get_origin(kind) is dict:
        return f"table of {_words(get_args(kind)[1])}"
    if parts := [part for part in get_args(kind) if part is not type(None)]:
        return _words(parts[0])
    names = {str: "text", int: "whole number", bool: "true or false", Path: "path"}
    return names.get(kind, "table")


def toml(value: Any) -> str:
    """A default as TOML writes it, "" for None."""
    match value:
        case None:
            return ""
        case bool():
            return str(value).lower()
        case Fraction():
            return f"{float(value):g}"
        case tuple() if len(value) > 3:
            return f"[{toml(value[0])}, {toml(value[1])}, ...]"
        case tuple():
            return f"[{', '.join(map(toml, value))}]"
        case dict():
            return "{}"
        case str():
            return '"' + value.replace("\\", "\\\\").replace("\n", "\\n") + '"'
    return f"{value:_}" if abs(value) >= 10_000 else str(value)
