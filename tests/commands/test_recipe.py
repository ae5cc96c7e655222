"""A recipe behind `pretok mix`: its [mix], and what is learned of its conversations."""

from __future__ import annotations

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
    assert run_command(["mix", str(recipe), "--out", str(out), "--seq-len", "8"]) == 0
    mix = load_mix(out)
    assert (mix.seq_len, mix.seed) == (8, 7)
    assert {source.name: source.learn for source in mix.sources} == {"it": (), "chat": ("user",)}
    assert run_command(["mix", str(recipe), "--out", str(out), "--weights", "it=0.5,chat=0.5"]) == 2
    assert "mix.repeat and weights exclude each other" in capsys.readouterr().err
