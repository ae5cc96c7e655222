"""The settings' own types -> a page of all keys, and a commented recipe.

Input: the types of a recipe's tables, of [slurm] and of [train], and what they say of each key. Output: Markdown, or
TOML in which every default stands as a comment. Nothing is written down twice, so neither can say what the settings do
not.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from typing import Any, get_args, get_type_hints

from pretok.config import keys, settings
from pretok.config.keys import Key, toml
from train.config import IN_PHASES, TrainConfig

TABLES: dict[str, Any] = {
    "": settings.Recipe,
    "[sources.NAME]": settings.Source,
    "[[sources.NAME.append]]": settings.Append,
    "[normalize]": settings.Normalize,
    "[vocab]": settings.Vocab,
    "[shards]": settings.Shards,
    "[mix]": settings.MixTable,
    "[[mix.stages]]": settings.StageTable,
    "[train]": TrainConfig,
    "[slurm]": settings.Slurm,
    "[slurm.STAGE]": settings.SlurmStage,
    "[slurm.train]": settings.SlurmTrain,
}
"""Headings of a recipe and what is below them."""
ABOVE = {
    "[train]": "The flags of `train`, with `_` for `-`; what `pretok run` made (`shards`, `mix`) need not be named.\n"
    "`[[train.phases]]` changes settings in mid-run: `at`, the tokens at which it begins, and any of\n"
    + ", ".join(f"`{name}`" for name in IN_PHASES)
    + ".",
    "[[sources.NAME.append]]": "Each such table becomes shards behind those that are there; all else is as in the\n"
    "source ([append](add-a-source.md#append-to-a-source)).",
    "[slurm]": "What `pretok submit` needs beside a profile; its options win.",
    "[slurm.STAGE]": "STAGE is `vocab`, `tokenize` or `mix`.",
}
"""What stands on the page between a heading and its keys."""
OPTIONAL = ("[mix]", "[train]", "[slurm")
"""Beginnings of headings that are a comment in a recipe: the table alone asks for something."""
STAGES = ["vocab", "tokenize", "mix"]


def keys_of(table: Any) -> Iterator[Key]:
    """The keys of a table in the order of the type; tables within it have a heading of their own."""
    return _flags() if table is TrainConfig else keys.keys_of(table)


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
        choices, least = item.metadata["choices"], item.metadata["least"]
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


def page() -> str:
    """docs/recipe.md."""
    lines = ["# Recipes", "", INTRODUCTION]
    for heading, table in TABLES.items():
        lines += ["", f"## `{heading}`" if heading else "## Above the tables", ""]
        lines += [ABOVE[heading], ""] if heading in ABOVE else []
        keys = list(keys_of(table))
        links = [f"[{PAGES.get(key.page, key.page[:-3])}]({key.page})" for key in keys]
        several = len(set(links)) > 1
        lines += [] if several else [f"See {links[0]}.", ""]
        lines += ["| key | type | default | example | |" + several * " see |", "|---" * (5 + several) + "|"]
        for key, link in zip(keys, links, strict=True):
            default = "must be given" if key.needed else f"`{key.default}`" if key.default else "none"
            example = f"`{key.example}`" if key.example != key.default else ""
            cells = (f"`{key.name}`", key.kind, default, example, key.text) + several * (link,)
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
        names = (
            list(sources) if table is settings.Source else STAGES if table is settings.SlurmStage else [""]
        )
        for name in names if heading and not heading.startswith("[[") else ():
            above = "# " if heading.startswith(OPTIONAL) else ""
            lines += ["", above + heading.replace("NAME", name).replace("STAGE", name)]
            for key in keys_of(table):
                if key.name == "inputs":
                    lines.append(f"inputs = {toml(tuple(sources[name]))}")
                elif key.name != "stages":
                    value = key.default if key.default and "..." not in key.default else key.example
                    lines.append(f"# {key.name} = {value}  # {key.kind}: {key.text}")
    return "\n".join(lines) + "\n"
