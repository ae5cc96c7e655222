"""What the settings' own types say of each key: name, type, default, limits, a sentence and an example.

Input: the types of `config.settings`. Output: a Key for each of their fields. The page of all keys, the recipe that
`pretok init` prints and the options of commands are all made of these, so none can say what the settings do not.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from pretok.config.settings import Recipe

LIMITS = {"ge": "at least", "gt": "more than", "le": "at most", "lt": "less than"}
NAMES = {str: "text", int: "whole number", bool: "true or false", Path: "path", Fraction: "share"}


@dataclass(frozen=True, slots=True)
class Key:
    """A key of a table. kind: its type in words, with its limits; default, example: as TOML, "" where there is none;
    needed: whether it must be given."""

    name: str
    kind: str
    default: str
    needed: bool
    example: str
    text: str

    @property
    def shown(self) -> str:
        """A value to show: the default, or an example where that is empty or cut."""
        return self.default if self.default.strip('"[]{}') and "..." not in self.default else self.example


def keys_of(table: type[BaseModel]) -> Iterator[Key]:
    """The keys of a table in the order of the type, those that have a text; tables within it have a heading of their
    own."""
    for name, field in table.model_fields.items():
        if field.description:
            default = "" if field.is_required() else toml(field.default)
            example = toml(field.examples[0]) if field.examples else ""
            yield Key(name, _kind(field), default, field.is_required(), example, field.description)


def _table_in(kind: Any) -> type[BaseModel] | None:
    """The type of the tables that a key holds; None where it holds values."""
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return kind
    return next((found for part in get_args(kind) if (found := _table_in(part))), None)


def table_at(names: Sequence[str], top: type[BaseModel] = Recipe) -> type[BaseModel]:
    """The type of a table by its names from `top` on; what is no key, such as the name of a source, is passed over."""
    for name in names:
        field = top.model_fields.get(name)
        top = _table_in(field and field.annotation) or top
    return top


def key_at(dotted: str) -> Key:
    """The key of a recipe by its dotted name; `sources.field` is that of every source."""
    *tables, name = dotted.split(".")
    return next(key for key in keys_of(table_at(tables)) if key.name == name)


def _kind(field: FieldInfo) -> str:
    limits = [f"{LIMITS[name]} {limit}" for part in field.metadata for name in LIMITS
              if (limit := getattr(part, name, None)) is not None]  # fmt: skip
    return ", ".join([_words(field.annotation, field.metadata), *(limits if len(str(limits)) < 60 else [])])


def _words(kind: Any, metadata: Sequence[Any] = ()) -> str:
    """A type as a person reads it: the text in its Annotated, or what its parts are."""
    if told := next((part for part in metadata if isinstance(part, str)), ""):
        return told
    parts = get_args(kind)
    if get_origin(kind) is Annotated:
        return _words(parts[0], parts[1:])
    if get_origin(kind) is Literal:
        return " or ".join(f'"{value}"' for value in parts)
    if get_origin(kind) in (tuple, dict):
        return (
            f"list of {_words(parts[0])}"
            if len(parts) > 1 and parts[1] is ...
            else f"table of {_words(parts[1])}"
        )
    return _words(parts[0]) if parts else NAMES.get(kind, "table")  # of `X | None` X


def toml(value: Any) -> str:
    """A value as TOML writes it, "" for None; a long list is cut."""
    match value:
        case None:
            return ""
        case bool():
            return str(value).lower()
        case Fraction():
            return f"{float(value):g}"
        case list() | tuple():
            shown = [toml(one) for one in value]
            return f"[{', '.join(shown if len(shown) <= 3 else [*shown[:2], '...'])}]"
        case dict():
            pairs = ", ".join(f"{name} = {toml(one)}" for name, one in value.items())
            return f"{{{pairs}}}"
        case str() | Path():
            return '"' + str(value).replace("\\", "\\\\").replace("\n", "\\n") + '"'
    return f"{value:_}" if abs(value) >= 10_000 else str(value)
