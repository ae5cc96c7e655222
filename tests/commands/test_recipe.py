"""A recipe behind `pretok mix` and `pretok plan`: its [mix] and what its conversations learn, and the next command."""

from __future__ import annotations

import shlex
from fractions import Fraction
from pathlib import Path

import pytest
from support import make_shards

from pretok.cli import run_command
from pretok.stream.mix_file import load_mix

RECIPE = """
out = "{work}"
[sources.it]
inputs = ["sample:it"]
[sources.chat]
inputs = ["sample:it"]
messages = "messages"
learn = ["user"]
[mix]
seq_len = 16
seed = 7
repeat = {{ it = 2 }}
"""


def test_a_mix_is_that_of_the_recipe_and_options_win(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_shards(
        tmp_path / "work/shards", {"it": [range(1, 400)], "chat": [range(1, 90)] * 9}, chats={"chat": 0}
    )
    recipe, out = tmp_path / "r.toml", tmp_path / "work/mix.json"
    recipe.write_text(RECIPE.format(work=tmp_path / "work"))
    assert run_command(["mix", str(recipe), "--out", str(out)]) == 0
    mix = load_mix(out)
    assert (mix.seq_len, mix.seed) == (16, 7)
    assert {source.name: source.learn for source in mix.sources} == {"it": (), "chat": ("user",)}
    other = tmp_path / "work/other.json"
    assert run_command(["mix", str(recipe), "--out", str(other), "--seq-len", "8"]) == 0
    assert load_mix(other).seq_len == 8
    assert run_command(["mix", str(recipe), "--out", str(other), "--weights", "it=0.5,chat=0.5"]) == 2
    assert "mix.repeat and weights exclude each other" in capsys.readouterr().err


def test_a_plan_ends_with_the_plan_of_the_training(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = tmp_path / "r.toml"
    recipe.write_text(
        'out = "work"\n[sources.it]\ninputs = ["sample:it"]\n[vocab]\nsize = 600\n'
        '[mix]\ntokens = "100K"\nmax_epochs = 25\nseq_len = 64\n[train]\nmodel = "debug"\nglobal_batch = 8\n'
        "[slurm.train]\nnodes = 2\n"
    )
    assert run_command(["plan", str(recipe)]) == 0
    [command] = [
        line for line in capsys.readouterr().out.splitlines() if line.startswith("next: train plan ")
    ]
    words = shlex.split(command)
    for name, value in (("--nodes", "2"), ("--vocab-size", "600"), ("--seq-len", "64"), ("--model", "debug")):
        assert words[words.index(name) + 1] == value
    tokens = int(words[words.index("--tokens") + 1])
    assert Fraction(99, 100) < Fraction(tokens, 100_000) <= 1
