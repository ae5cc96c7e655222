"""The settings' own fields -> docs/recipe.md, the page of all keys, and the recipe that `pretok init` prints.

Input: the types of a recipe's tables, and the settings of `train`. Output: Markdown, or TOML. All that they say of a
key comes from its field.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, get_args, get_type_hints

from pretok.cluster.chain import STAGES
from pretok.config import keys, settings
from pretok.config.keys import Key, toml
from train.config import IN_PHASES, TrainConfig, options

TABLES: dict[str, Any] = {
    "": settings.Recipe,
    "[sources.NAME]": settings.Source,
    "[normalize]": settings.Normalize,
    "[vocab]": settings.Vocab,
    "[shards]": settings.Shards,
    "[mix]": settings.MixTable,
    "[train]": TrainConfig,
    "[slurm]": settings.Slurm,
    "[slurm.STAGE]": settings.SlurmStage,
}
"""The headings of a recipe, and the types of their tables."""
ABOVE = {
    "[sources.NAME]": "See [inputs](inputs.md), [conversations](conversations.md), [documents](documents.md).\n"
    "`[[sources.NAME.append]]`, a table with `inputs`, [adds text later](inputs.md#add-text-later).",
    "[normalize]": "See [formats](formats.md).",
    "[vocab]": "See [vocabulary](vocabulary.md).",
    "[shards]": "See [inputs](inputs.md), [documents](documents.md).",
    "[mix]": "See [mix](mix.md).",
    "[train]": "The flags of `train`, with `_` for `-` ([training](training.md)). `pretok run` supplies `shards` and\n"
    "`mix`. `[[train.phases]]` changes keys marked * from the token count `at` on.",
    "[slurm]": "For `pretok submit`, with a profile ([Slurm](../slurm/README.md)).",
    "[slurm.STAGE]": "STAGE is `vocab`, `tokenize`, `mix` or `train`.",
}
"""The text of the page between a heading and its keys."""
INTRODUCTION = """```sh
pretok init it='data/it/*.jsonl.zst' en='data/en/*.parquet' --out work
```

prints a recipe, a TOML file with all settings of a job. A count may be text such as `"1.2T"` or `"64MiB"`, a share
such as `"1/20"`. Relative paths start at the folder of the recipe; `~` and `$VAR` are expanded, `$$` is a dollar sign.
Unknown keys are refused.

Below, a value in ( ) is an example for a key without a default; of several values, the first is the default."""
COMMON = {
    "[sources.NAME]": ("inputs", "field", "keep"),
    "[vocab]": ("path", "size", "weights"),
    "[shards]": ("val_fraction", "duplicates"),
    "[mix]": ("weights", "tokens", "seq_len"),
    "[train]": ("model", "global_batch"),
}
"""Heading -> the keys that `pretok init` prints without --all."""
OPTIONAL = ("[mix]", "[train]", "[slurm")
"""Beginnings of headings that stand in a comment, since the table alone asks for something."""


def keys_of(table: Any) -> Iterator[Key]:
    """Yield the keys of a table in the order of the type."""
    return _flags() if table is TrainConfig else keys.keys_of(table)


def _flags() -> Iterator[Key]:
    """Yield the keys of [train] except its phases."""
    hints = get_type_hints(TrainConfig)
    for name, (default, option) in options().items():
        if name == "phases":
            continue
        kinds = get_args(hints[name]) or (hints[name],)
        kind = {int: "count", float: "number", bool: "true or false"}.get(kinds[0], "text")
        if option.choices:
            kind = " or ".join(f'"{choice}"' for choice in option.choices)
        example = option.example
        value = tomllib.loads(f"value = {example}")["value"] if example else default
        yield Key(name, kind, value, bool(example), option.help)


def page() -> str:
    """Write docs/recipe.md."""
    lines = ["# Recipes", "", INTRODUCTION]
    for heading, table in TABLES.items():
        lines += ["", f"## `{heading}`" if heading else "## Above the tables", ""]
        lines += [ABOVE[heading], ""] if heading in ABOVE else []
        lines += ["| key | default | |", "|---|---|---|"]
        for key in keys_of(table):
            value = f"(`{toml(key.value)}`)" if key.is_example else f"`{toml(key.value)}`"
            if re.fullmatch(r'("[^"]+"( or )?)+', key.kind):
                value = f"`{key.kind}`".replace(" or ", "` `")
            mark = " *" if table is TrainConfig and key.name in IN_PHASES else ""
            cells = (f"`{key.name}`{mark}", value, key.text)
            lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join([*lines, ""])


def recipe_for(out: str, sources: Mapping[str, Sequence[str]], *, everything: bool) -> str:
    """Write a recipe for these inputs, with other keys as comments that show a default or an example.

    everything: show all keys, not only the common ones.
    """
    more = "" if everything else "; pretok init --all prints every key"
    lines = [
        f"# Lines with # show a default or an example; docs/recipe.md explains the keys{more}.",
        f"out = {toml(out)}",
    ]
    for heading, table in TABLES.items():
        if not heading or not (everything or heading in COMMON):
            continue
        places: dict[Any, list[str]] = {settings.Source: list(sources), settings.SlurmStage: list(STAGES)}
        for name in places.get(table, [""]):
            above = "# " if heading.startswith(OPTIONAL) else ""
            lines += ["", above + heading.replace("NAME", name).replace("STAGE", name)]
            for key in keys_of(table):
                if key.name == "inputs":
                    lines.append("inputs = [" + ", ".join(map(toml, sources[name])) + "]")
                elif key.name != "stages" and (everything or key.name in COMMON[heading]):
                    lines.append(f"# {key.name} = {toml(key.value)}  # {key.text}")
    return "\n".join(lines) + "\n"
