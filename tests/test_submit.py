"""Chains before they reach Slurm: dependencies, options, profiles that are not filled in."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from pretok.cli import run_command
from pretok.config import Recipe, make_recipe
from pretok.errors import UsageError
from pretok.jobs.submit import (
    Chain,
    check_profile,
    choose_stages,
    load_profile,
    parse_time,
    plan_chain,
    read_settings,
)

FILLED = """
SITE_ACCOUNT=acc SITE_VENV={venv} SITE_INTERFACE=
SITE_CPU_PARTITION=cpu SITE_CPU_QOS=none SITE_CPU_CORES=8 SITE_CPU_MEMORY=none SITE_CPU_TIME=24:00:00
SITE_CPU_OPTIONS="--exclusive --constraint='a b'"
SITE_GPU_PARTITION=gpu SITE_GPU_QOS=fast SITE_GPU_CORES=32 SITE_GPU_MEMORY=400G SITE_GPU_TIME=10 SITE_GPU_OPTIONS=
SITE_GPUS=4
site_setup() {{ :; }}
"""


@pytest.fixture
def profile(tmp_path: Path) -> Path:
    path = tmp_path / "site.sh"
    path.write_text(FILLED.format(venv=sys.prefix))
    return path


@pytest.fixture
def recipe(tmp_path: Path) -> Recipe:
    data = {
        "out": str(tmp_path / "work"),
        "sources": {"it": {"inputs": ["sample:it"]}},
        "mix": {},
        "train": {"model": "1b", "global_batch": 8, "compile": True, "reshard": False},
        "slurm": {"train": {"nodes": 4, "links": 3}},
    }
    return make_recipe(data, "test")


def plan(recipe: Recipe, profile: Path, **overrides: object) -> Chain:
    stages = choose_stages(recipe, None, [])
    settings = read_settings(recipe.slurm, overrides)
    folder = recipe.out / "slurm" / "chain"
    return plan_chain(
        recipe,
        Path("r.toml"),
        load_profile(str(profile)),
        settings,
        stages,
        Path("RUN"),
        ["--steps", "9"],
        folder,
    )


def test_stages_wait_for_success_and_links_for_the_end(recipe: Recipe, profile: Path) -> None:
    chain = plan(recipe, profile, tokenize={"links": "2"})
    found = [(job.stage, job.link, job.depends) for job in chain.jobs]
    assert found == [
        ("vocab", 1, ()),
        ("tokenize", 1, (("afterok", 0),)),
        ("tokenize", 2, (("afterok", 0), ("afterany", 1))),
        ("mix", 1, (("afterok", 2),)),
        ("train", 1, (("afterok", 3),)),
        ("train", 2, (("afterok", 3), ("afterany", 4))),
        ("train", 3, (("afterok", 3), ("afterany", 5))),
    ]
    command = chain.jobs[5].command(lambda index: f"id{index}")
    assert "--dependency=afterok:id3,afterany:id4" in command
    assert "--kill-on-invalid-dep=yes" in command


def test_options_come_from_profile_recipe_and_flags(recipe: Recipe, profile: Path) -> None:
    chain = plan(recipe, profile, account="other", train={"time": "2-00:00:00"})
    tokens, train = chain.jobs[1], chain.jobs[-1]
    assert {"--partition=cpu", "--account=other", "--nodes=1", "--time=24:00:00", "--exclusive"} <= set(
        tokens.options
    )
    assert "--constraint=a b" in tokens.options
    assert not any(option.startswith(("--qos", "--mem", "--gpus")) for option in tokens.options)
    assert {"--qos=fast", "--mem=400G", "--nodes=4", "--gpus-per-node=4", "--time=2-00:00:00"} <= set(
        train.options
    )
    assert "--signal=B:USR1@180" in train.options
    flags = list(train.arguments[2:])
    work = recipe.out
    assert flags[:4] == ["--shards", str(work / "shards"), "--mix", str(work / "mix.json")]
    assert flags[4:] == ["--model", "1b", "--global-batch", "8", "--compile", "--no-reshard", "--steps", "9"]


def test_a_short_job_is_asked_to_stop_shortly_before_its_end(recipe: Recipe, profile: Path) -> None:
    assert "--signal=B:USR1@100" in plan(recipe, profile).jobs[-1].options


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 5400),
        ("5:30", 330),
        ("1:02:03", 3723),
        ("2-0", 172800),
        ("1-2:30", 95400),
        ("1-00:00:01", 86401),
    ],
)
def test_times_as_sbatch_takes_them(text: str, seconds: int) -> None:
    assert parse_time(text) == seconds


def test_a_time_of_another_form_is_refused() -> None:
    with pytest.raises(UsageError, match="tomorrow"):
        parse_time("tomorrow")


@pytest.mark.parametrize("name", ["generic", "leonardo", "lumi", "marenostrum5"])
def test_shipped_profiles_run_and_are_refused_until_filled_in(name: str) -> None:
    profile = load_profile(name)
    with pytest.raises(UsageError, match="SITE_VENV"):
        check_profile(profile, read_settings({}, {}), ["tokenize", "train"])


def test_an_empty_value_of_a_stage_that_does_not_run_is_no_problem(profile: Path) -> None:
    profile.write_text(profile.read_text().replace("SITE_GPUS=4", "SITE_GPUS="))
    loaded = load_profile(str(profile))
    check_profile(loaded, read_settings({}, {}), ["tokenize"])
    with pytest.raises(UsageError, match="SITE_GPUS empty"):
        check_profile(loaded, read_settings({}, {}), ["train"])


def test_unknown_settings_and_stages_are_named(recipe: Recipe) -> None:
    with pytest.raises(UsageError, match=r"slurm\.train\.node"):
        read_settings({"train": {"node": 3}}, {})
    with pytest.raises(UsageError, match="unknown stages tokenise"):
        choose_stages(recipe, "tokenise", [])


def test_dry_run_shows_commands_and_scripts(
    recipe: Recipe, profile: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "r.toml"
    path.write_text(f'out = "{recipe.out}"\n[sources.it]\ninputs = ["sample:it"]\n')
    assert (
        run_command(["submit", str(path), "--profile", str(profile), "--links=tokenize=2", "--dry-run"]) == 0
    )
    shown = capsys.readouterr().out
    assert "--dependency=afterok:$job0,afterany:$job1" in shown
    assert "ray_stage tokenize" in shown
    assert not recipe.out.exists()


def test_wrong_arguments_end_with_code_two(
    recipe: Recipe, profile: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "r.toml"
    path.write_text(f'out = "{recipe.out}"\n[sources.it]\ninputs = ["sample:it"]\n')
    assert run_command(["submit", str(path), "--profile", "nowhere"]) == 2
    assert "known: generic, leonardo, lumi, marenostrum5" in capsys.readouterr().err
    assert run_command(["submit", str(path), "--profile", str(profile), "--nodes", "4", "--dry-run"]) == 2
    assert "STAGE=VALUE" in capsys.readouterr().err
