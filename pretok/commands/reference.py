"""The settings' own types -> a page of all keys, and a commented recipe.

Enters: the types of a recipe's tables, of [slurm] and of [train], and what they say of each key. Leaves: Markdown, or
TOML in which every default stands as a comment. Nothing is written down twice, so neither can say what the settings do
not.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from pretok.base.units import parse_count, parse_share
from pretok.cluster.chain import SlurmSettings, StageSettings, TrainSettings
from pretok.config import settings
from train.config import IN_PHASES, TrainConfig, least_of

TABLES: dict[str, Any] = {
    "": settings.Recipe,
    "[sources.NAME]": settings.Source,
    "[normalize]": settings.Normalize,
    "[vocab]": settings.Vocab,
    "[shards]": settings.Shards,
    "[mix]": settings.MixTable,
    "[[mix.stages]]": settings.StageTable,
    "[train]": TrainConfig,
    "[slurm]": SlurmSettings,
    "[slurm.STAGE]": StageSettings,
    "[slurm.train]": TrainSettings,
}
"""Headings of a recipe and what is below them."""
ABOVE = {
    "[train]": "The flags of `train`, with `_` for `-`; what `pretok run` made (`shards`, `mix`) need not be named.\n"
    "`[[train.phases]]` changes settings in mid-run: `at`, the tokens at which it begins, and any of\n"
    + ", ".join(f"`{name}`" for name in IN_PHASES)
    + " ([training](training.md)).",
    "[slurm]": "What `pretok submit` needs beside a profile; its options win.",
    "[slurm.STAGE]": "STAGE is `vocab`, `tokenize` or `mix`.",
}
"""What stands on the page between a heading and its keys."""
OPTIONAL = ("[mix]", "[train]", "[slurm")
"""Beginnings of headings that are a comment in a recipe: the table alone asks for something."""
STAGES = ["vocab", "tokenize", "mix"]
BOUNDS = {"ge": "at least", "gt": "more than", "le": "at most", "lt": "less than"}


@dataclass(frozen=True, slots=True)
class Key:
    """A key of a table. default: as TOML, "" where it must be given or there is none; page: of docs/."""

    name: str
    kind: str
    default: str
    needed: bool
    example: str
    text: str
    page: str


def keys_of(table: Any) -> Iterator[Key]:
    """The keys of a table in the order of the type; tables within it have a heading of their own."""
    if table is TrainConfig:
        yield from _flags()
        return
    for name, field in table.model_fields.items():
        if (told := _told(table).get(name)) is None:
            continue
        text, example, page = (part.strip() for part in told.split(" | "))
        default = "" if field.is_required() else toml(field.default)
        yield Key(name, _kind(field), default, field.is_required(), example, text, page)


def _flags() -> Iterator[Key]:
    """The keys of [train], but for its phases."""
    hints = get_type_hints(TrainConfig)
    for item in fields(TrainConfig):
        if item.name == "phases":
            continue
        kind = next(
            part for part in get_args(hints[item.name]) or (hints[item.name],) if part is not type(None)
        )
        words = {int: "count", float: "number", bool: "true or false"}.get(kind, "text")
        choices, least = item.metadata["choices"], least_of(item.name)
        if choices:
            words = " or ".join(f'"{choice}"' for choice in choices)
        if least is not None:
            words += f", at least {least}"
        other = choices[-1] if choices else not item.default if kind is bool else item.default
        example = item.metadata["example"] or toml(other)
        yield Key(
            item.name,
            words,
            toml(item.default),
            False,
            example,
            item.metadata["help"],
            "training.md",
        )


@cache
def _told(table: type) -> dict[str, str]:
    """Key -> the line below it, in the type and those it is made from."""
    found: dict[str, str] = {}
    for kind in table.__mro__[: table.__mro__.index(BaseModel)]:
        body = ast.parse(inspect.getsource(kind)).body[0]
        assert isinstance(body, ast.ClassDef)
        for line, below in zip(body.body, body.body[1:], strict=False):
            if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name):
                value = below.value if isinstance(below, ast.Expr) else None
                if isinstance(value, ast.Constant) and isinstance(value.value, str):
                    found[line.target.id] = " ".join(value.value.split("\n    "))
    return found


def _kind(field: FieldInfo) -> str:
    """The type in words, with its bounds."""
    bounds = [f"{BOUNDS[name]} {bound}" for part in field.metadata for name in BOUNDS
              if (bound := getattr(part, name, None)) is not None]  # fmt: skip
    return ", ".join([_words(field.annotation, field.metadata), *(bounds if len(str(bounds)) < 60 else [])])


def _words(kind: Any, metadata: Sequence[Any] = ()) -> str:
    called = {getattr(part, "func", None) for part in metadata}
    if get_origin(kind) is Annotated:
        return _words(get_args(kind)[0], get_args(kind)[1:])
    if parse_count in called or settings.budget in called:
        return 'count or "all"' if settings.budget in called else "count"
    if parse_share in called or kind is Fraction:
        return "share"
    if settings.proportions in called:
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


def page() -> str:
    """docs/recipe.md."""
    lines = ["# Recipes", "", INTRODUCTION]
    for heading, table in TABLES.items():
        lines += ["", f"## `{heading}`" if heading else "## Above the tables", ""]
        lines += [ABOVE[heading], ""] if heading in ABOVE else []
        lines += ["| key | type | default | example | | see |", "|---|---|---|---|---|---|"]
        for key in keys_of(table):
            default = "must be given" if key.needed else f"`{key.default}`" if key.default else "none"
            cells = (
                f"`{key.name}`",
                key.kind,
                default,
                f"`{key.example}`",
                key.text,
                f"[{PAGES.get(key.page, key.page[:-3])}]({key.page})",
            )
            lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join([*lines, ""])


PAGES = {"../slurm/README.md": "Slurm"}
"""Pages that are not called as their file is."""


INTRODUCTION = """A recipe is TOML. `pretok init it='data/it/*.jsonl.zst' --out work > recipe.toml` writes one with
every default as a comment. A count is a number or text such as `"1.2T"`, `"300B"`, `"64MiB"`; a share is a number from
0 to 1, or text such as `"1/20"`. Relative paths start at the folder of the recipe; `~` and `$VAR` are expanded, `$$` is
a dollar sign. An unknown key is refused. This page is made from the settings themselves."""


def commented(out: str, sources: Mapping[str, Sequence[str]]) -> str:
    """A recipe for these inputs in which every other key stands as a comment with its default."""
    lines = ["# A recipe for pretok. What stands behind a # is the default, or an example; docs/recipe.md says more.",
             f"out = {toml(out)}"]  # fmt: skip
    for heading, table in TABLES.items():
        names = list(sources) if table is settings.Source else STAGES if table is StageSettings else [""]
        for name in names if heading and table is not settings.StageTable else ():
            above = "# " if heading.startswith(OPTIONAL) else ""
            lines += ["", above + heading.replace("NAME", name).replace("STAGE", name)]
            for key in keys_of(table):
                if key.name == "inputs":
                    lines.append(f"inputs = {toml(tuple(sources[name]))}")
                elif key.name != "stages":
                    value = key.default if key.default and "..." not in key.default else key.example
                    lines.append(f"# {key.name} = {value}  # {key.kind}: {key.text}")
    return "\n".join(lines) + "\n"
