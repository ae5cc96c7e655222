"""`pretok plan` of a recipe with [train] says what `train plan` says, and how many jobs that is."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support import needs

from pretok.base.records import replace
from pretok.cli import run_command

RECIPE = """
out = "work"
[sources.it]
inputs = ["sample:it"]
[vocab]
size = 600
[mix]
weights = {{ it = 1 }}
tokens = "100K"
max_epochs = 25
seq_len = 64
[train]
model = "debug"
global_batch = 8
[slurm.train]
nodes = 2
links = 2
time = "{time}"
"""
DEVICES = [
    "--",
    "--devices-per-node",
    "2",
    "--peak",
    "1e-4",
    "--mfu",
    "0.5",
    "--node-kw",
    "2",
    "--memory",
    "16",
]


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    path = tmp_path / "recipe.toml"
    path.write_text(RECIPE.format(time="00:10:00"))
    return path


def planned(recipe: Path, *more: str, capsys: pytest.CaptureFixture[str]) -> dict[str, object]:
    assert run_command(["plan", str(recipe), "--json", *more]) == 0
    return json.loads(capsys.readouterr().out)


def test_the_figures_are_those_of_train_plan(recipe: Path, capsys: pytest.CaptureFixture[str]) -> None:
    needs("torch")
    from train.model.sizes import model_config
    from train.plan import main

    found = planned(recipe, *DEVICES, capsys=capsys)
    train, tokens = found["train"], found["mix"]["tokens"]
    main(["--model", "debug", "--global-batch", "8", "--nodes", "2", "--seq-len", "64", "--tokens", str(tokens),
          "--vocab-size", "600", "--shards", "x", *DEVICES[1:], "--json"])  # fmt: skip
    assert {key: value for key, value in train.items() if key != "jobs"} == json.loads(
        capsys.readouterr().out
    )
    assert (
        train["parameters"] == replace(model_config("debug"), vocab_size=600).parameters
    )  # as `train` makes it
    assert train["steps"] == tokens // (8 * 64)
    assert train["jobs"] == -(-int(train["hours"] * 3600) // 600)


def test_a_chain_that_is_too_short_is_told(recipe: Path, capsys: pytest.CaptureFixture[str]) -> None:
    needs("torch")
    jobs = planned(recipe, *DEVICES, capsys=capsys)["train"]["jobs"]
    assert jobs > 2
    assert run_command(["plan", str(recipe), *DEVICES]) == 0
    told = capsys.readouterr().out
    assert f"{jobs}; the recipe has 2, too few: set links = {jobs} in [slurm.train]" in told
    recipe.write_text(RECIPE.format(time="24:00:00"))
    assert run_command(["plan", str(recipe), *DEVICES]) == 0
    assert "the recipe has 2, enough" in capsys.readouterr().out
    assert run_command(["plan", str(recipe)]) == 0
    assert "the time is not known" in capsys.readouterr().out


def test_without_torch_there_is_the_command(
    recipe: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "train.plan", None)
    assert run_command(["plan", str(recipe), *DEVICES]) == 0
    assert "train plan --shards" in capsys.readouterr().out


def test_a_search_is_no_part_of_it(recipe: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["plan", str(recipe), *DEVICES, "--search"]) == 2
    assert "ask train plan itself" in capsys.readouterr().err


def test_flags_without_train_are_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert run_command(["plan", "it=sample:it", "--out", str(tmp_path), "--", "--mfu", "0.4"]) == 2
    assert "the recipe has no [train]" in capsys.readouterr().err
