"""Chains before they reach Slurm: dependencies, options, profiles that are not filled in."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from pretok.base.errors import UsageError
from pretok.cli import run_command
from pretok.cluster.chain import (
    Chain,
    check_profile,
    choose_stages,
    find_scripts,
    load_profile,
    plan_chain,
)
from pretok.config import Recipe, make_recipe, with_settings
from pretok.config.settings import Slurm

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


def plan(recipe: Recipe, profile: Path, **options: object) -> Chain:
    """options: settings of [slurm], `_` for the dot."""
    given = {f"slurm.{name.replace('_', '.')}": value for name, value in options.items()}
    made = make_recipe(with_settings(recipe.model_dump(exclude_unset=True), given), "test")
    stages, folder = choose_stages(made, None, []), made.out / "slurm" / "chain"
    site = load_profile(str(profile))
    return plan_chain(made, Path("r.toml"), site, stages, Path("RUN"), ["--steps", "9"], folder)


def test_stages_wait_for_success_and_links_for_the_end(recipe: Recipe, profile: Path) -> None:
    chain = plan(recipe, profile, tokenize_links="2")
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
    assert (
        " --dependency=afterok:$JOB_3,afterany:$JOB_4 --kill-on-invalid-dep=yes " in chain.jobs[5].command()
    )


def test_options_come_from_profile_recipe_and_flags(recipe: Recipe, profile: Path) -> None:
    chain = plan(recipe, profile, account="other", train_time="2-00:00:00")
    tokens, train = chain.jobs[1], chain.jobs[-1]
    assert {"--partition=cpu", "--account=other", "--nodes=1", "--time=24:00:00", "--exclusive"} <= set(
        tokens.options
    )
    assert "--constraint=a b" in tokens.options
    assert not any(option.startswith(("--qos", "--mem", "--gpus")) for option in tokens.options)
    assert {"--qos=fast", "--mem=400G", "--nodes=4", "--gpus-per-node=4", "--time=2-00:00:00"} <= set(
        train.options
    )
    flags = list(train.arguments[2:])
    work = recipe.out
    assert flags[:4] == ["--shards", str(work / "shards"), "--mix", str(work / "mix.json")]
    assert flags[4:] == ["--model", "1b", "--global-batch", "8", "--compile", "--no-reshard", "--steps", "9"]


@pytest.mark.parametrize("name", ["generic", "jupiter", "leonardo", "lumi", "marenostrum5"])
def test_shipped_profiles_run_and_are_refused_until_filled_in(name: str) -> None:
    profile = load_profile(name)
    with pytest.raises(UsageError, match="SITE_VENV"):
        check_profile(profile, Slurm(), ["tokenize", "train"])


def test_an_empty_value_of_a_stage_that_does_not_run_is_no_problem(profile: Path) -> None:
    profile.write_text(profile.read_text().replace("SITE_GPUS=4", "SITE_GPUS="))
    loaded = load_profile(str(profile))
    check_profile(loaded, Slurm(), ["tokenize"])
    with pytest.raises(UsageError, match="SITE_GPUS empty"):
        check_profile(loaded, Slurm(), ["train"])


def test_unknown_stages_are_named(recipe: Recipe) -> None:
    with pytest.raises(UsageError, match="unknown stages tokenise"):
        choose_stages(recipe, "tokenise", [])


SBATCH = """#!/bin/bash
printf '%s\\0' "$PRETOK_SLURM" "$PRETOK_CHAIN" "$@" >>"$LEDGER"
printf '\\n' >>"$LEDGER"
n=$(wc -l <"$LEDGER")
if [ "$n" = "${REFUSE_AT:-0}" ]; then echo 'no such partition' >&2; exit 1; fi
echo "$((100 + n));cluster"
"""
SCANCEL = """#!/bin/bash
echo "$@" >>"$LEDGER.cancelled"
"""


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[list[str]]]:
    """`sbatch` and `scancel` that note what they are given; call it for that, of each sbatch since the last call."""
    tools = tmp_path / "bin"
    tools.mkdir()
    for name, text in (("sbatch", SBATCH), ("scancel", SCANCEL)):
        (tools / name).write_text(text)
        (tools / name).chmod(0o755)
    ledger = tmp_path / "ledger"
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    monkeypatch.setenv("LEDGER", str(ledger))

    def noted() -> list[list[str]]:
        lines = ledger.read_text().split("\0\n")[:-1]
        ledger.unlink()
        return [line.split("\0") for line in lines]

    return noted


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    """A recipe whose folder holds all that a shell would act on."""
    path = tmp_path / "a recipe.toml"
    out = tmp_path / "my data" / "o;touch X;$$(touch Y)`touch Z`'\"&|%j"
    text = json.dumps(str(out))
    path.write_text(
        f'out = {text}\n[sources.it]\ninputs = ["sample:it"]\n[mix]\n[train]\nmodel = "debug"\n'
        "[slurm.tokenize]\nlinks = 2\n"
    )
    return path


def without_time(commands: list[list[str]]) -> list[list[str]]:
    return [[re.sub(r"\d{8}-\d{6}", "TIME", word) for word in command] for command in commands]


def test_a_dry_run_is_a_script_that_submits_what_submit_does(
    hostile: Path,
    profile: Path,
    slurm: Callable[[], list[list[str]]],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    command = ["submit", str(hostile), "--profile", str(profile)]
    flags = ["--", "--init-from", "a $b 'c'"]
    assert run_command([*command, "--dry-run", *flags]) == 0
    shown = capsys.readouterr().out
    before = sorted(tmp_path.rglob("*"))
    subprocess.run(["bash", "-n"], input=shown, text=True, check=True)
    assert sorted(tmp_path.rglob("*")) == before
    subprocess.run(["bash"], input=shown, text=True, check=True)
    pasted = slurm()
    [record] = tmp_path.rglob("chain.tsv")
    assert record.read_text().splitlines()[1:3] == ["102\ttokenize\t1", "103\ttokenize\t2"]
    shutil.rmtree(record.parents[2])
    assert run_command([*command, *flags]) == 0
    submitted = slurm()
    assert without_time(pasted) == without_time(submitted)
    assert len(submitted) == 5
    assert "--dependency=afterok:101,afterany:102" in submitted[2]
    assert "--constraint=a b" in submitted[0]
    assert submitted[4][-2:] == ["--init-from", "a $b 'c'"]
    assert any(word.startswith("--output=") and "%%j/slurm/" in word for word in submitted[0])
    assert not [name for name in "XYZ" if (tmp_path / name).exists()]
    watch = capsys.readouterr().err
    assert "tail -F '" in watch


def test_a_dry_run_prints_and_writes_nothing(
    recipe: Recipe, profile: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "r.toml"
    path.write_text(f'out = "{recipe.out}"\n[sources.it]\ninputs = ["sample:it"]\n')
    assert run_command(["submit", str(path), "--profile", str(profile), "--dry-run"]) == 0
    assert "sbatch --parsable" in capsys.readouterr().out
    assert not recipe.out.exists()


def test_a_chain_ends_and_is_cancelled_when_slurm_refuses(
    hostile: Path,
    profile: Path,
    slurm: Callable[[], list[list[str]]],
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("REFUSE_AT", "3")
    assert run_command(["submit", str(hostile), "--profile", str(profile)]) == 2
    said = capsys.readouterr().err
    assert "Slurm refused tokenize 2: no such partition\n  sbatch --parsable " in said
    assert "2 jobs submitted before it were cancelled" in said
    assert len(slurm()) == 3
    assert (tmp_path / "ledger.cancelled").read_text() == "101 102\n"


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ("[slurm.train]\nnode = 3", "unknown key slurm.train.node (did you mean nodes?)"),
        ("[slurm.trian]\nnodes = 3", "unknown key slurm.trian (did you mean train?)"),
        ("[slurm.mix]\nnodes = 0", "slurm.mix.nodes: "),
        ("[slurm]\ntrain = 3", "slurm.train: "),
        ("[train]\nmicro_bach = 4", "micro_batch"),
        ("[train]\nschedule = 'cosinus'", "schedule"),
    ],
)
@pytest.mark.parametrize("command", ["run", "submit", "tokenize", "count", "build-vocab"])
def test_a_typo_in_tables_of_other_programs_is_found_when_the_recipe_is_read(
    command: str, table: str, message: str, profile: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "r.toml"
    path.write_text(f'out = "{tmp_path}/work"\n[sources.it]\ninputs = ["sample:it"]\n{table}\n')
    options = ["--profile", str(profile), "--dry-run"] if command == "submit" else ["--workers", "0"]
    assert run_command([command, str(path), *options]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "work").exists()


def test_a_typo_in_flags_of_train_is_found_before_anything_is_submitted(
    recipe: Recipe, profile: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "r.toml"
    path.write_text(f'out = "{recipe.out}"\n[sources.it]\ninputs = ["sample:it"]\n')
    assert (
        run_command(["submit", str(path), "--profile", str(profile), "--dry-run", "--", "--stepz", "9"]) == 2
    )
    assert "--steps" in capsys.readouterr().err


def test_wrong_arguments_end_with_code_two(
    recipe: Recipe, profile: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "r.toml"
    path.write_text(f'out = "{recipe.out}"\n[sources.it]\ninputs = ["sample:it"]\n')
    assert run_command(["submit", str(path), "--profile", "nowhere"]) == 2
    assert "known: generic, jupiter, leonardo, lumi, marenostrum5" in capsys.readouterr().err
    assert run_command(["submit", str(path), "--profile", str(profile), "--nodes", "4", "--dry-run"]) == 2
    assert "STAGE=VALUE" in capsys.readouterr().err


def test_spare_nodes_are_further_nodes_of_training_alone(recipe: Recipe, profile: Path) -> None:
    """With them a job outlives a node; without them Slurm begins it anew, as before."""
    chain = plan(recipe, profile, train_spare="2")
    options = {job.stage: job.options for job in chain.jobs}
    assert {"--nodes=6", "--no-kill"} <= set(options["train"])
    assert {"--nodes=1"} <= set(options["tokenize"])
    assert chain.environment["PRETOK_SPARE"] == "2"
    assert "--no-kill" not in plan(recipe, profile).jobs[-1].options


@pytest.mark.parametrize(("nodes", "said"), [("n1", "tokenize\n7\n"), ("n1 n2", "no srun\n1\n")])
def test_a_job_of_one_node_starts_no_ray(tmp_path: Path, nodes: str, said: str) -> None:
    """What `ray_run` runs, and its exit code; on several nodes the first thing is the head of a Ray cluster."""
    script = f"""
set -euo pipefail
slurm={find_scripts()} logs={tmp_path} node_local={tmp_path} port=1 SLURM_JOB_ID=1 SLURM_JOB_NODELIST=n
scontrol() {{ printf '%s\\n' {nodes}; }}
node_address() {{ echo 127.0.0.1; }}
srun() {{ return 1; }}
say() {{ echo "no srun"; }}
source "$slurm/ray.sh"
ray_node() {{ return 1; }}
command() {{ echo "$@"; return 7; }}
status=0
ray_run command tokenize 2>&1 || status=$?
echo "$status"
"""
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False, timeout=60)
    assert done.stdout == said
