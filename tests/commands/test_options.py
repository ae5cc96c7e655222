"""Options that give settings: each takes the example of its key, means what a recipe means, and says so in the help."""

from __future__ import annotations

import tomllib
from typing import Any

import pytest
import typer

from pretok.cli import app, run_command
from pretok.commands.help import COMMANDS
from pretok.commands.options import OPTIONS, _as_typed, _value
from pretok.config.keys import key_at
from pretok.config.recipes import make_recipe, with_settings

GROUP = typer.main.get_command(app)
TAKEN = sorted(
    {dotted for name in COMMANDS for dotted in getattr(GROUP.get_command(None, name).callback, "takes", ())}
)
NEEDS = {
    "vocab.eod": {"vocab.path": "x"},
    "vocab.bos": {"vocab.path": "x"},
    "vocab.add": {"vocab.extend": "x"},
    "vocab.replace": {"vocab.extend": "x"},
    "shards.reject_contaminated": {"shards.against": "x"},
}
MINIMAL = {"out": "w", "sources": {name: {"inputs": ["a"]} for name in ("it", "en")}}


@pytest.mark.parametrize("dotted", TAKEN)
def test_an_option_means_what_the_key_of_a_recipe_means(dotted: str) -> None:
    key = key_at(dotted)
    written = tomllib.loads(f"value = {key.example}")["value"]
    typed: Any = written if dotted == "sources.keep" else _as_typed(key.example)
    if key.kind == "true or false":
        typed = True
    if "/" in OPTIONS.get(dotted, ""):
        assert [_value(dotted, key, given) for given in (True, False)] == ["drop", "mark"]
        return
    made = [
        make_recipe(with_settings(MINIMAL, {**NEEDS.get(dotted, {}), dotted: value}), "test")
        for value in (written, _value(dotted, key, typed))
    ]
    assert made[0] == made[1]
    assert made[0] != make_recipe(MINIMAL, "test")


def test_the_help_says_example_and_default(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert run_command(["build-vocab", "--help"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "--vocab-size N Entries, special tokens included. For example 32k. Default: 50_000." in shown
    assert (
        "--weights NAME=SHARE,... Share of each source in the counts; empty: as on disk. For example it=0.9,en=0.1."
        in shown
    )
