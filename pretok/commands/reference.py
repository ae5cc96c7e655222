"""The settings' own types -> a page of all keys, and a recipe to begin with.

Input: the types of a recipe's tables, of [slurm] and of [train], and what they say of each key. Output: Markdown, or
TOML. Nothing is written down twice, so neither can say what the settings do not.
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
    "[sources.NAME]": "See [inputs](inputs.md), [conversations](conversations.md), [documents](documents.md).",
    "[[sources.NAME.append]]": "More text for the source, read with its settings ([append](inputs.md#add-text-later)).",
    "[normalize]": "See [formats](formats.md).",
    "[vocab]": "See [vocabulary](vocabulary.md).",
    "[shards]": "See [inputs](inputs.md), [documents](documents.md).",
    "[mix]": "See [mix](mix.md).",
    "[train]": "The flags of `train`, with `_` for `-` ([training](training.md)); what `pretok run` made (`shards`,\n"
    "`mix`) need not be named. `[[train.phases]]` changes settings in mid-run: `at`, the tokens at which it begins,\n"
    "and any of " + ", ".join(f"`{name}`" for name in IN_PHASES) + ".",
    "[slurm]": "What `pretok submit` needs beside a profile ([Slurm](../slurm/README.md)); its options win.",
    "[slurm.STAGE]": "STAGE is `vocab`, `tokenize` or `mix`.",
}
"""What stands on the page between a heading and its keys."""
INTRODUCTION = """```sh
pretok init it='data/it/*.jsonl.zst' en='data/en/*.parquet' --out work
```

prints a recipe, a TOML file with all settings of a job. A count is a number or text such as `"1.2T"`, `"300B"` or
`"64MiB"`; a share is a number from 0 to 1, or text such as `"1/20"`. Relative paths start at the folder of the recipe;
`~` and `$VAR` are expanded, `$$` is a dollar sign. Unknown keys are refused. This page is generated from the code."""
MATTER = {
    "[sources.NAME]": ("inputs", "field", "keep"),
    "[vocab]": ("path", "size", "weights"),
    "[shards]": ("val_fraction", "duplicates"),
    "[mix]": ("weights", "tokens", "seq_len"),
    "[train]": ("model", "global_batch"),
}
"""Heading -> the keys that most recipes set, for `pretok init`."""
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
        kinds = get_args(hints[item.name]) or (hints[item.name],)
        kind = next(part for part in kinds if part is not type(None))
        words = {int: "count", float: "number", bool: "true or false"}.get(kind, "text")
        if choices := item.metadata["choices"]:
            words = " or ".join(f'"{choice}"' for choice in choices)
        if (least := item.metadata["least"]) is not None:
            words += f", at least {least}"
        example = item.metadata["example"] or ""
        yield Key(item.name, words, toml(item.default), False, example, item.metadata["help"])


def page() -> str:
    """docs/recipe.md."""
    lines = ["# Recipes", "", INTRODUCTION]
    for heading, table in TABLES.items():
        lines += ["", f"## `{heading}`" if heading else "## Above the tables", ""]
        lines += [ABOVE[heading], ""] if heading in ABOVE else []
        lines += ["| key | type | default | example | |", "|---|---|---|---|---|"]
        for key in keys_of(table):
            default = "must be given" if key.required else f"`{key.default}`" if key.default else "none"
            example = f"`{key.example}`" if key.example else ""
            cells = (f"`{key.name}`", key.kind, default, example, key.text)
            lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join([*lines, ""])


def recipe_for(out: str, sources: Mapping[str, Sequence[str]], *, everything: bool) -> str:
    """A recipe for these inputs in which other keys stand as comments with their defaults, or examples: those that
    matter, or everything."""
    more = "" if everything else "; pretok init --all prints every key"
    lines = [f"# What stands behind a # is a default or an example; docs/recipe.md explains it{more}.",
             f"out = {toml(out)}"]  # fmt: skip
    for heading, table in TABLES.items():
        wanted = [key for key in keys_of(table) if everything or key.name in MATTER.get(heading, ())]
        if not heading or heading.startswith("[[") or not wanted:
            continue
        stages = STAGES if table is settings.SlurmStage else [""]
        for name in list(sources) if table is settings.Source else stages:
            above = "# " if heading.startswith(OPTIONAL) else ""
            lines += ["", above + heading.replace("NAME", name).replace("STAGE", name)]
            for key in wanted:
                if key.name == "inputs":
                    lines.append("inputs = [" + ", ".join(map(toml, sources[name])) + "]")
                elif key.name != "stages":
                    lines.append(f"# {key.name} = {key.shown}  # {key.text}")
    return "\n".join(lines) + "\n"
