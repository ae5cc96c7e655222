"""Recipes: the settings of a job.

settings.py  the tables of a recipe and what their values may be
keys.py      each key of these tables: for the page of all keys, `pretok init` and the options of commands
recipes.py   TOML or `NAME=GLOB` arguments -> settings, or an error that says what is wrong
changes.py   what has changed since a result was made
"""

from pretok.config.recipes import (
    OfSources,
    load_recipe,
    load_toml,
    located,
    make_mix,
    make_recipe,
    parse_inputs,
    validated,
    with_appends,
    with_settings,
)
from pretok.config.settings import DEFAULT_SPECIAL_TOKENS, MixTable, Recipe, Source, StageTable, Vocab

__all__ = [
    "DEFAULT_SPECIAL_TOKENS",
    "MixTable",
    "OfSources",
    "Recipe",
    "Source",
    "StageTable",
    "Vocab",
    "load_recipe",
    "load_toml",
    "located",
    "make_mix",
    "make_recipe",
    "parse_inputs",
    "validated",
    "with_appends",
    "with_settings",
]
