"""Options that set keys of a recipe: each takes the example of its key, means what a recipe means, and says so."""

from __future__ import annotations

import tomllib
from typing import Any

import pytest
import typer

from pretok.cli import app, run_command
from pretok.commands.help import COMMANDS
from pretok.commands.options import as_typed, value_of
from pretok.config.keys import key_at
from pretok.config.recipes import make_recipe, with_settings

GROUP = typer.main.get_command(app)
TAKEN = sorted(
    {dotted for name in COMMANDS for dotted in getattr(GROUP.get_command(None, name).callback, "takes", ())}
)
NEEDS = {"vocab.eod": {"vocab.path": "x"}, "vocab.add": {"vocab.extend": "x"}}
MINIMAL = {"out": "w", "sources": {name: {"inputs": ["a"]} for name in ("it", "en")}}
OTHERS = {
    "shards.duplicates": '"drop"',
    "mix.pack": '"best-fit"',
    "mix.max_epochs": "9",
    "vocab.pattern": '"gpt2"',
}
"""Values for what has no example."""
REPEATED = {
    "mix.stages": ["1T:natural", "300B:it=1"],
    "mix.classes": ["good=it where quality >= 0.8"],
    "sources.keep": ["id", "url=meta.url"],
}


@pytest.mark.parametrize("dotted", TAKEN)
def test_an_option_means_what_the_key_of_a_recipe_means(dotted: str) -> None:
    key = key_at(dotted)
    example = OTHERS.get(dotted) or key.example or '"content"'
    written = tomllib.loads(f"value = {example}")["value"]
    typed: Any = [as_typed(example)] if key.kind.startswith("list") else as_typed(example)
    made = [
        make_recipe(with_settings(MINIMAL, {**NEEDS.get(dotted, {}), dotted: value}), "test")
        for value in (written, value_of(key, REPEATED.get(dotted, typed)))
    ]
    assert made[0] == made[1]
    assert made[0] != make_recipe(MINIMAL, "test")


MOST = {"mix": 14, "build-vocab": 14, "tokenize": 12}


@pytest.mark.parametrize("name", MOST)
def test_no_command_has_more_options_than_a_person_reads(name: str) -> None:
    """Another one goes into the recipe, or takes the place of one of these."""
    options = [one for one in GROUP.get_command(None, name).params if one.param_type_name == "option"]
    assert len(options) <= MOST[name], sorted(one.name for one in options)


def test_the_help_says_example_and_default(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert run_command(["build-vocab", "--help"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    size = "Entries of the vocabulary, special tokens included. Not with `extend`. For example 32k. Default: 50_000."
    assert f"--vocab-size N {size}" in shown
    weights = "Share of each source; empty: by size on disk. For example it=0.9,en=0.1."
    assert f"--weights NAME=SHARE,... {weights}" in shown
