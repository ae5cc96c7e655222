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
from pretok.cluster.chain import check_profile, find_scripts, load_profile
from pretok.config.settings import Slurm

FILLED = f"""
SITE_ACCOUNT=acc SITE_VENV={sys.prefix} SITE_INTERFACE=
SITE_CPU_PARTITION=cpu SITE_CPU_QOS=none SITE_CPU_CORES=8 SITE_CPU_MEMORY=none SITE_CPU_TIME=24:00:00
SITE_CPU_OPTIONS="--exclusive --constraint='a b'"
SITE_GPU_PARTITION=gpu SITE_GPU_QOS=fast SITE_GPU_CORES=32 SITE_GPU_MEMORY=400G SITE_GPU_TIME=10 SITE_GPU_OPTIONS=
SITE_GPUS=4
site_setup() {{ :; }}
"""
SBATCH = """#!/bin/bash
printf '%s\\0' "$PRETOK_SLURM" "$PRETOK_CHAIN" "$PRETOK_SPARE" "$@" >>"$LEDGER"
printf '\\n' >>"$LEDGER"
n=$(wc -l <"$LEDGER")
if [ "$n" = "${REFUSE_AT:-0}" ]; then echo 'no such partition' >&2; exit 1; fi
echo "$((100 + n));cluster"
"""
SCANCEL = """#!/bin/bash
echo "$@" >>"$LEDGER.cancelled"
"""
RECIPE = 'out = {out}\n[sources.it]\ninputs = ["sample:it"]\n{tables}\n'


@pytest.fixture
def profile(tmp_path: Path) -> Path:
    path = tmp_path / "site.sh"
    path.write_text(FILLED)
    return path


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[list[str]]]:
    """`sbatch` and `scancel` that note what they are given; call it for the words of each new sbatch."""
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
        return [re.sub(r"\d{8}-\d{6}", "TIME", line).split("\0") for line in lines]

    return noted


@pytest.fixture
def submit(tmp_path: Path, profile: Path) -> Callable[..., int]:
    """Submit a recipe with these tables in the folder `work`; the exit code."""

    def run(tables: str, *options: str, out: Path = tmp_path / "work") -> int:
        path = tmp_path / "a recipe.toml"
        path.write_text(RECIPE.format(out=json.dumps(str(out)), tables=tables))
        return run_command(["submit", str(path), "--profile", str(profile), *options])

    return run


TABLES = """
[mix]
[train]
model = "debug"
global_batch = 8
compile = true
reshard = false
[slurm.train]
nodes = 4
links = 3
"""


def test_jobs_have_their_dependencies_and_the_options_of_profile_recipe_and_flags(
    slurm: Callable[[], list[list[str]]], submit: Callable[..., int], tmp_path: Path
) -> None:
    flags = ["--links", "tokenize=2", "--account", "other", "--time", "train=2-00:00:00"]
    assert submit(TABLES, *flags, "--", "--steps", "9") == 0
    jobs = slurm()
    waits = [[word[13:] for word in job if word.startswith("--dependency=")] for job in jobs]
    assert [wait[0] if wait else "" for wait in waits] == [
        "", "afterok:101", "afterok:101,afterany:102", "afterok:103",
        "afterok:104", "afterok:104,afterany:105", "afterok:104,afterany:106",
    ]  # fmt: skip
    assert all("--kill-on-invalid-dep=yes" in job for job in jobs[1:])
    tokenize, train = jobs[1], jobs[-1]
    assert {
        "--partition=cpu", "--account=other", "--nodes=1", "--time=24:00:00", "--exclusive", "--constraint=a b"
    } <= {*tokenize}  # fmt: skip
    assert not any(word.startswith(("--qos", "--mem", "--gpus")) for word in tokenize)
    wanted = {"--qos=fast", "--mem=400G", "--nodes=4", "--gpus-per-node=4", "--time=2-00:00:00"}
    assert wanted <= {*train}
    assert "--no-kill" not in train
    start = train.index("--shards")
    work = tmp_path / "work"
    assert train[start:] == [
        "--shards", str(work / "shards"), "--mix", str(work / "mix.json"), "--model", "debug",
        "--global-batch", "8", "--compile", "--no-reshard", "--steps", "9",
    ]  # fmt: skip


def test_spare_nodes_are_further_nodes_of_training_alone(
    slurm: Callable[[], list[list[str]]], submit: Callable[..., int]
) -> None:
    """With them a job outlives a node; without them Slurm restarts it."""
    assert submit(TABLES + "spare = 2\n") == 0
    tokenize, *_, train = slurm()
    assert {"--nodes=6", "--no-kill"} <= {*train}
    assert {"--nodes=1"} <= {*tokenize}
    assert train[2] == "2"


@pytest.mark.parametrize("name", ["generic", "jupiter", "leonardo", "lumi", "marenostrum5"])
def test_shipped_profiles_run_and_are_refused_until_filled_in(name: str) -> None:
    profile = load_profile(name)
    with pytest.raises(UsageError, match="SITE_VENV"):
        check_profile(profile, Slurm(), ["tokenize", "train"])


def test_an_empty_value_of_a_stage_that_does_not_run_is_no_problem(profile: Path) -> None:
    profile.write_text(FILLED.replace("SITE_GPUS=4", "SITE_GPUS="))
    loaded = load_profile(str(profile))
    check_profile(loaded, Slurm(), ["tokenize"])
    with pytest.raises(UsageError, match="SITE_GPUS empty"):
        check_profile(loaded, Slurm(), ["train"])


def test_a_dry_run_is_a_script_that_submits_what_submit_does(
    slurm: Callable[[], list[list[str]]],
    submit: Callable[..., int],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With an output folder that holds all that a shell would act on."""
    monkeypatch.chdir(tmp_path)
    out = tmp_path / "my data" / "o;touch X;$$(touch Y)`touch Z`'\"&|%j"
    tables, flags = '[mix]\n[train]\nmodel = "debug"\n', ["--", "--init-from", "a $b 'c'"]
    assert submit(tables, "--links", "tokenize=2", "--dry-run", *flags, out=out) == 0
    shown = capsys.readouterr().out
    before = sorted(tmp_path.rglob("*"))
    subprocess.run(["bash", "-n"], input=shown, text=True, check=True)
    assert sorted(tmp_path.rglob("*")) == before
    subprocess.run(["bash"], input=shown, text=True, check=True)
    pasted = slurm()
    [record] = tmp_path.rglob("chain.tsv")
    assert record.read_text().splitlines()[1:3] == ["102\ttokenize\t1", "103\ttokenize\t2"]
    shutil.rmtree(record.parents[2])
    assert submit(tables, "--links", "tokenize=2", *flags, out=out) == 0
    submitted = slurm()
    assert pasted == submitted
    assert len(submitted) == 5
    assert submitted[4][-2:] == ["--init-from", "a $b 'c'"]
    assert any(word.startswith("--output=") and "%%j/slurm/" in word for word in submitted[0])
    assert not [name for name in "XYZ" if (tmp_path / name).exists()]
    assert "tail -F '" in capsys.readouterr().err


def test_a_chain_ends_and_is_cancelled_when_slurm_refuses(
    slurm: Callable[[], list[list[str]]],
    submit: Callable[..., int],
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("REFUSE_AT", "3")
    assert submit(TABLES, "--links", "tokenize=2") == 2
    said = capsys.readouterr().err
    assert "Slurm refused tokenize 2: no such partition\n  sbatch --parsable " in said
    assert "2 jobs submitted before it were cancelled" in said
    assert len(slurm()) == 3
    assert (tmp_path / "ledger.cancelled").read_text() == "101 102\n"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--profile", "nowhere"], "known: generic, jupiter, leonardo, lumi, marenostrum5"),
        (["--nodes", "4"], "STAGE=VALUE"),
        (["--stages", "tokenise"], "unknown stages tokenise"),
        (["--", "--stepz", "9"], "--steps"),
    ],
)
def test_wrong_arguments_end_with_code_two(
    submit: Callable[..., int], capsys: pytest.CaptureFixture[str], options: list[str], said: str
) -> None:
    assert submit("", "--dry-run", *options) == 2
    assert said in capsys.readouterr().err


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
    path.write_text(RECIPE.format(out=json.dumps(str(tmp_path / "work")), tables=table))
    options = ["--profile", str(profile), "--dry-run"] if command == "submit" else ["--workers", "0"]
    assert run_command([command, str(path), *options]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "work").exists()


@pytest.mark.parametrize(("nodes", "said"), [("n1", "tokenize\n7\n"), ("n1 n2", "no srun\n1\n")])
def test_a_job_of_one_node_starts_no_ray(tmp_path: Path, nodes: str, said: str) -> None:
    """What `ray_run` runs, and its exit code; on several nodes it first starts the head of a Ray cluster."""
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
