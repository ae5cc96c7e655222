"""Options that set keys of a recipe: each means what the key means, and shows its help, example and default."""

from __future__ import annotations

import pytest
import typer

from pretok.cli import app, run_command
from pretok.commands.help import COMMANDS
from pretok.commands.options import REPEATED, as_typed, value_of
from pretok.config.keys import key_at, keys_of, table_at
from pretok.config.recipes import make_recipe, with_settings

GROUP = typer.main.get_command(app)
TABLES = ("vocab", "shards", "mix", "sources", "slurm")
KEYS = {
    f"{table}_{key.name}": f"{table}.{key.name}" for table in TABLES for key in keys_of(table_at([table]))
}
SETTINGS = {
    name: {
        one: KEYS.get(one.name, "out")
        for one in GROUP.get_command(None, name).params
        if one.callback and one.name in (*KEYS, "out")
    }
    for name in COMMANDS
}
"""Command -> its options that set keys -> the key."""
TAKEN = sorted({dotted for found in SETTINGS.values() for dotted in found.values()})
NEEDS = {"vocab.eod": {"vocab.path": "x"}, "vocab.add": {"vocab.extend": "x"}}
MINIMAL = {"out": "w", "sources": {name: {"inputs": ["a"]} for name in ("it", "en")}}
STAGES = [{"tokens": "1T", "weights": "natural"}, {"tokens": "300B", "weights": {"it": 1}}]
TYPED = {
    "vocab.size": ("32k", 32_000),
    "vocab.path": ("a/b", "a/b"),
    "vocab.sizes": (["16000,8k"], [16_000, 8_000]),
    "shards.val_fraction": ("1/20", 0.05),
    "shards.duplicates": ("drop", "drop"),
    "sources.keep": (["id", "url=meta.url"], ["id", "url=meta.url"]),
    "mix.weights": ("it=0.9,en=0.1", {"it": 0.9, "en": 0.1}),
    "mix.stages": (["1T:natural", "300B:it=1"], STAGES),
    "mix.classes": (["good=it where quality >= 0.8"], {"good": "it where quality >= 0.8"}),
}
"""A key of each kind -> (what is typed, the same in a recipe)."""


@pytest.mark.parametrize("dotted", TYPED)
def test_an_option_means_what_the_key_of_a_recipe_means(dotted: str) -> None:
    typed, written = TYPED[dotted]
    values = [value_of(key_at(dotted), typed), written]
    made, recipe = (make_recipe(with_settings(MINIMAL, {dotted: value}), "test") for value in values)
    assert made == recipe != make_recipe(MINIMAL, "test")


@pytest.mark.parametrize("dotted", TAKEN)
def test_the_value_that_a_help_shows_is_taken(dotted: str) -> None:
    key = key_at(dotted)
    typed = "it=old/tokenizer.json" if dotted == "sources.tokens" else as_typed(key.value)
    value = value_of(key, [typed] if typed and key.kind.startswith(REPEATED) else typed)
    make_recipe(with_settings(MINIMAL, {**NEEDS.get(dotted, {}), dotted: value}), "test")


@pytest.mark.parametrize("name", [name for name, found in SETTINGS.items() if found])
def test_an_option_is_repeated_if_its_key_holds_several_values(name: str) -> None:
    for one, dotted in SETTINGS[name].items():
        assert one.multiple == key_at(dotted).kind.startswith(REPEATED), dotted


MOST = {"mix": 14, "build-vocab": 15, "tokenize": 13}


@pytest.mark.parametrize("name", MOST)
def test_no_command_has_more_options_than_a_person_reads(name: str) -> None:
    """Another one goes into the recipe, or takes the place of one of these."""
    options = [one for one in GROUP.get_command(None, name).params if one.param_type_name == "option"]
    assert len(options) <= MOST[name], sorted(one.name for one in options)


def test_the_help_shows_what_key_and_docstring_say(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert run_command(["build-vocab", "--help"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "--vocab-size N Entries, special tokens included. Not with `extend`. Default: 50000." in shown
    weights = "Share of each source. Default: `natural`, by size. For example it=0.9,en=0.1."
    assert f"--weights NAME=SHARE,... {weights}" in shown
    assert "--compare FILE Compare with this tokenizer.json in the report." in shown
