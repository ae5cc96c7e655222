"""Chains before they reach Slurm: dependencies, options, profiles that are not filled in."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from pretok.base.errors import UsageError
from pretok.cli import run_command
from pretok.cluster.chain import (
    Job,
    chain_table,
    check_profile,
    find_scripts,
    hours_of,
    load_profile,
    submit_chain,
)
from pretok.config.settings import Slurm

FILLED = f"""
SITE_ACCOUNT=acc SITE_VENV={sys.prefix} SITE_INTERFACE=
SITE_CPU_PARTITION=cpu SITE_CPU_QOS=none SITE_CPU_CORES=8 SITE_CPU_MEMORY=none SITE_CPU_TIME=24:00:00
SITE_CPU_OPTIONS="--exclusive --constraint='a b'"
SITE_GPU_PARTITION=gpu SITE_GPU_QOS=fast SITE_GPU_CORES=32 SITE_GPU_MEMORY=400G SITE_GPU_TIME=10 SITE_GPU_OPTIONS=
SITE_GPUS=4 SITE_PUE=1.04 SITE_CARBON=0
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
Noted, Submit = Callable[[], list[list[str]]], Callable[..., int]
Capture, Patch = pytest.CaptureFixture[str], pytest.MonkeyPatch
RECIPE = 'out = {out}\n[sources.it]\ninputs = ["sample:it"]\n{tables}\n'


@pytest.fixture
def profile(tmp_path: Path) -> Path:
    path = tmp_path / "site.sh"
    path.write_text(FILLED)
    return path


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: Patch) -> Noted:
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
def submit(tmp_path: Path, profile: Path) -> Submit:
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
FLAGS = ("--links", "tokenize=2", "--account", "other", "--time", "train=2-00:00:00", "--", "--steps", "9")


@pytest.mark.parametrize("spare", [0, 2])
def test_jobs_have_their_dependencies_and_the_options_of_profile_recipe_and_flags(
    slurm: Noted, submit: Submit, tmp_path: Path, spare: int
) -> None:
    """With spare nodes a job outlives a node; without them Slurm restarts it."""
    assert submit(TABLES, "--spare", str(spare), *FLAGS) == 0
    jobs = slurm()
    waits = [next((word[13:] for word in job if word.startswith("--dependency=")), "") for job in jobs]
    assert waits == [
        "", "afterok:101", "afterok:101,afterany:102", "afterok:103",
        "afterok:104", "afterok:104,afterany:105", "afterok:104,afterany:106",
    ]  # fmt: skip
    assert all("--kill-on-invalid-dep=yes" in job for job in jobs[1:])
    tokenize, train = jobs[1], jobs[-1]
    assert {
        "--partition=cpu", "--account=other", "--nodes=1", "--time=24:00:00", "--exclusive", "--constraint=a b"
    } <= {*tokenize}  # fmt: skip
    assert not any(word.startswith(("--qos", "--mem", "--gpus")) for word in tokenize)
    nodes = f"--nodes={4 + spare}"
    assert {"--qos=fast", "--mem=400G", nodes, "--gpus-per-node=4", "--time=2-00:00:00"} <= {*train}
    assert (train[2], "--no-kill" in train) == (str(spare), spare > 0)
    work = tmp_path / "work"
    assert train[train.index("--shards") - 2 :] == [
        "--pue=1.04", "--carbon=0",
        "--shards", str(work / "shards"), "--mix", str(work / "mix.json"), "--model", "debug",
        "--global-batch", "8", "--compile", "--no-reshard", "--steps", "9",
    ]  # fmt: skip


def test_a_run_on_a_fast_partition_reads_and_writes_there(
    submit: Submit, tmp_path: Path, monkeypatch: Patch, capsys: Capture
) -> None:
    """RUN only with `fast`; shards and mix too if they are staged. --run takes precedence."""
    monkeypatch.setenv("FAST", str(fast := tmp_path / "a fast disk"))
    work = tmp_path / "work"

    def script(keys: str, *options: str) -> list[str]:
        tables = TABLES.replace("[slurm.train]", f"[slurm]\n{keys}\n[slurm.train]")
        assert submit(tables, "--stages", "train", "--dry-run", *options) == 0
        return shlex.split(capsys.readouterr().out)

    for keys, data in (("", work), ("stage = true", fast / "it")):
        words = script(f'fast = "$FAST/it"\n{keys}')
        assert words[words.index("--pue=1.04") - 1] == str(fast / "it" / "run")
        assert words[words.index("--shards") + 1] == str(data / "shards")
        assert words[words.index("--mix") + 1] == str(data / "mix.json")
        exported = {f"PRETOK_WORK={work}", f"PRETOK_STAGE={fast / 'it'}"}
        assert exported & {*words} == (exported if keys else set())
    words = script('fast = "$FAST/it"', "--run", str(tmp_path / "mine"))
    assert words[words.index("--pue=1.04") - 1] == str(tmp_path / "mine")
    assert submit(TABLES + "[slurm]\nstage = true\n", "--dry-run") == 2
    assert "stage needs fast" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("stops", "options", "signal"),
    [
        ([], "", ""),
        ([None], "", ""),
        ([62.5], "", ""),
        ([900, 412.3], "", "B:USR1@413"),
        ([412.3], "--signal=B:USR1@300", "B:USR1@413"),
        ([412.3], "--signal=B:USR1@600", "B:USR1@600"),
    ],
)
def test_the_signal_comes_as_early_as_the_run_so_far_needs_it(
    slurm: Noted,
    submit: Submit,
    tmp_path: Path,
    profile: Path,
    stops: list[float | None],
    options: str,
    signal: str,
) -> None:
    """By the newest attempt, never later than the job script or the profile asks; old lines say nothing of it."""
    assert "--signal=B:USR1@180" in (find_scripts() / "train.sbatch").read_text()
    profile.write_text(FILLED.replace("SITE_GPU_OPTIONS=", f"SITE_GPU_OPTIONS={options}"))
    run = tmp_path / "work" / "run"
    run.mkdir(parents=True)
    lines = [{} if stop is None else {"stop_seconds": stop} for stop in stops]
    (run / "goodput.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    assert submit(TABLES) == 0
    for job in slurm():
        asked = [word[9:] for word in job if word.startswith("--signal=")]
        assert asked[-1:] == ([signal] if signal and any("train.sbatch" in word for word in job) else [])


MACHINES = "deucalion discoverer jupiter karolina leonardo lumi marenostrum5 meluxina vega"
PROFILES = sorted(["generic", *MACHINES.split()])


@pytest.mark.parametrize("name", MACHINES.split())
def test_a_profile_of_a_machine_has_all_values_and_says_where_they_are_from(name: str) -> None:
    """What no public page says is empty, so that `submit` asks for it, or has `not confirmed` beside it."""
    loaded = load_profile(name)
    assert loaded.values.keys() == load_profile("generic").values.keys()
    text = loaded.path.read_text("utf-8")
    sources = text.partition("\n# Sources: ")[2].partition("\n# No run")[0]
    assert re.search(r"\b[a-z0-9-]+(\.[a-z0-9-]+)+[/ ]", sources)
    for value in ("PUE", "CARBON"):
        line = rf"^SITE_{value}=([\d.]+ +# .*\w|  +# not found in public sources)"
        assert re.search(line, text, re.MULTILINE)
    assert not loaded.values["SITE_ACCOUNT"]
    for kind in ("CPU", "GPU"):
        if loaded.values[f"SITE_{kind}_PARTITION"]:
            assert int(loaded.values[f"SITE_{kind}_CORES"]) >= 32
            known = loaded.values[f"SITE_{kind}_TIME"].endswith(":00:00")
            assert known or "not found in public sources" in text
            assert loaded.values[f"SITE_{kind}_MEMORY"]
        else:
            assert "not known" in text


def test_a_profile_is_refused_until_what_its_stages_need_is_filled_in(profile: Path) -> None:
    for name in PROFILES:
        with pytest.raises(UsageError, match="SITE_VENV"):
            check_profile(load_profile(name), Slurm(), ["tokenize", "train"])
    profile.write_text(FILLED.replace("SITE_GPUS=4", "SITE_GPUS="))
    loaded = load_profile(str(profile))
    check_profile(loaded, Slurm(), ["tokenize"])
    with pytest.raises(UsageError, match="SITE_GPUS empty"):
        check_profile(loaded, Slurm(), ["train"])
    profile.write_text(FILLED.replace(sys.prefix, "/shared/venv"))
    with pytest.raises(UsageError, match="/shared/venv holds no bin/python"):
        check_profile(load_profile(str(profile)), Slurm(), ["train"])
    profile.write_text(FILLED.replace(sys.prefix, "/local/venv") + "SITE_NODE_LOCAL=/local\n")
    check_profile(load_profile(str(profile)), Slurm(), ["train"])  # unpacked on each node


def test_a_dry_run_is_a_script_that_submits_what_submit_does(
    slurm: Noted, submit: Submit, tmp_path: Path, capsys: Capture, monkeypatch: Patch
) -> None:
    """With an output folder that holds all that a shell would act on."""
    monkeypatch.chdir(tmp_path)
    out = tmp_path / "my data" / "o;touch X;$$(touch Y)`touch Z`'\"&|%j"
    tables, flags = '[mix]\n[train]\nmodel = "debug"\n', ["--", "--init-from", "a $b 'c'"]
    assert submit(tables, "--links", "tokenize=2", "--dry-run", *flags, out=out) == 0
    assert not out.parent.exists()
    subprocess.run(["bash"], input=capsys.readouterr().out, text=True, check=True)
    pasted = slurm()
    [record] = tmp_path.rglob("chain.tsv")
    assert record.read_text().splitlines()[1:3] == ["102\ttokenize\t1", "103\ttokenize\t2"]
    with pytest.raises(UsageError, match="another command submitted a chain"):
        submit_chain([], "", record.parent)
    shutil.rmtree(record.parents[2])
    assert submit(tables, "--links", "tokenize=2", *flags, out=out) == 0
    submitted = slurm()
    assert pasted == submitted
    assert submitted[4][-2:] == ["--init-from", "a $b 'c'"]
    assert any(word.startswith("--output=") and "%%j/slurm/" in word for word in submitted[0])
    assert not [name for name in "XYZ" if (tmp_path / name).exists()]
    assert "tail -F '" in capsys.readouterr().err


def test_a_chain_ends_and_is_cancelled_when_slurm_refuses(
    slurm: Noted, submit: Submit, capsys: Capture, tmp_path: Path, monkeypatch: Patch
) -> None:
    monkeypatch.setenv("REFUSE_AT", "3")
    assert submit(TABLES, "--links", "tokenize=2") == 2
    printed = capsys.readouterr().err
    assert "cannot submit tokenize 2: no such partition\n  sbatch --parsable " in printed
    assert "2 jobs submitted before it were cancelled" in printed
    assert len(slurm()) == 3
    assert (tmp_path / "ledger.cancelled").read_text() == "101 102\n"


WRONG = {
    "--profile nowhere": f"known: {', '.join(PROFILES)}",
    "--nodes 4": "STAGE=VALUE",
    "--stages tokenise": "unknown stages tokenise",
    "-- --stepz 9": "--steps",
    "--nodes train=32": "train is not submitted",
    "--time train=24h": "train is not submitted",
    "--links train=2": "train is not submitted",
    "--run elsewhere": "--run: nothing reads it without train",
    "--stages mix --nodes tokenize=2": "tokenize is not submitted",
    "--spare 2": "--spare: nothing reads it",
    "--stages mix -- --lr 1": "-- --lr: nothing reads it",
    "--json": "--json: nothing reads it",
    "-- --decay 0.1": "decay: nothing reads it",
}


@pytest.mark.parametrize("options", WRONG)
def test_wrong_arguments_end_with_code_two(submit: Submit, capsys: Capture, options: str) -> None:
    assert submit("", "--dry-run", *options.split()) == 2
    assert WRONG[options] in capsys.readouterr().err


@pytest.mark.parametrize(
    "tables", ["[slurm.train]\nnodes = 2", '[vocab]\npath = "x"\n[slurm.vocab]\nnodes = 2']
)
def test_a_table_for_a_stage_that_the_recipe_does_not_have_is_refused(
    submit: Submit, capsys: Capture, tables: str
) -> None:
    assert submit(tables, "--dry-run") == 2
    assert "is not submitted, only" in capsys.readouterr().err
    assert submit(tables, "--dry-run", "--stages", "mix") == 0


RAY = """
set -euo pipefail
slurm={slurm} logs={folder} node_local={folder} port=1 SLURM_JOB_ID=1 SLURM_JOB_NODELIST=n
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


@pytest.mark.parametrize(("nodes", "printed"), [("n1", "tokenize\n7\n"), ("n1 n2", "no srun\n1\n")])
def test_a_job_of_one_node_starts_no_ray(tmp_path: Path, nodes: str, printed: str) -> None:
    """What `ray_run` runs, and its exit code; on several nodes it first starts the head of a Ray cluster."""
    script = RAY.format(slurm=find_scripts(), folder=tmp_path, nodes=nodes)
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False, timeout=60)
    assert done.stdout == printed


LINK = """
set -euo pipefail
cd {folder}
export SLURM_SUBMIT_DIR=$PWD SLURM_JOB_NAME=j SLURM_JOB_ID=1 PRETOK_CHAIN=$PWD
unset SLURM_JOB_END_TIME
printf '%s\\ttrain\\t1\\n' 1 2 >chain.tsv
echo SITE_VENV=/venv SITE_INTERFACE=ib0 >profile
squeue() {{ {squeue}; }}
scancel() {{ return 1; }}
scontrol() {{ return 1; }}
srun() {{ printf '2: ib0 inet 10.0.0.%s/8\\n' 1 2; }}
source {slurm}/env.sh ./profile
source {slurm}/link.sh
echo "end $PRETOK_JOB_END_TIME $GLOO_SOCKET_IFNAME"
node_address n1
link_avoid train n1 2>/dev/null
link_end train 2 2>/dev/null
"""


@pytest.mark.parametrize(
    ("squeue", "end"), [("echo 1970-01-01T00:01:00Z", "60"), ("return 1", ""), ("echo N/A", "")]
)
def test_a_link_outlives_a_slurm_that_does_not_answer(tmp_path: Path, squeue: str, end: str) -> None:
    """And a link of its chain that is gone; an interface with two addresses has one."""
    script = LINK.format(slurm=find_scripts(), folder=tmp_path, squeue=squeue)
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == (f"end {end} ib0\n10.0.0.1\n", 2)


@pytest.mark.parametrize(
    ("time", "hours"),
    [
        ("24:00:00", 24), ("1-00:00:00", 24), ("2-12", 60), ("90", 1.5), ("90:00", 1.5), ("0:30:00", 0.5),
        ("1-6:30", 30.5),
        ("", None), ("infinite", None),
    ],
)  # fmt: skip
def test_hours_of_a_time_limit(time: str, hours: float | None) -> None:
    assert hours_of(time) == hours


def test_a_chain_says_what_it_costs() -> None:
    jobs = [Job("tokenize", 1, "", 16, "4:00:00"), *(Job("train", link, "", 32, "1-0") for link in (1, 2, 3))]
    shown = chain_table(jobs, "italia")
    assert shown.rows == [
        ("tokenize", "1", "16", "4", "64"),
        ("train", "3", "32", "24", "2,304"),
        ("at most", "", "", "", "2,368"),
    ]
    assert chain_table([Job("mix", 1, "", 1, "")], "italia").rows[0] == ("mix", "1", "1", "?", "?")
