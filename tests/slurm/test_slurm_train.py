"""Training as a chain of jobs: two nodes equal one process, stops are continued, hopeless chains end."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from slurm_support import ROOT, Cluster

from pretok.base.console import Console
from pretok.config import load_recipe
from pretok.session import start_engine
from pretok.steps import tokenize_step
from pretok.stream.mix_job import MixRequest, run_mix

Recipe = Callable[..., Path]
Profile = Callable[..., str]
Stub = Callable[[str], str]

TRAIN = """
[mix]
weights = { it = 0.9, en = 0.1 }
seq_len = 16
[train]
model = "debug"
global_batch = 8
save_every = 100000
workers = 0
"""


def numbers(run: Path) -> dict[int, float]:
    """step -> loss of a run's metrics; a step that was done twice counts with its last value."""
    lines = (run / "metrics.jsonl").read_text().splitlines()
    return {line["step"]: line["loss"] for line in map(json.loads, lines) if "loss" in line}


def train_here(out: Path, steps: int) -> Path:
    """The same training by one process on this machine."""
    flags = f"--shards {out}/shards --mix {out}/mix.json --out {out}/alone --model debug --global-batch 8"
    sizes = f"--steps {steps} --save-every 100000 --workers 0"
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "train", *flags.split(), *sizes.split()]
    subprocess.run(command, check=True, cwd=ROOT, env=environment, capture_output=True)
    return out / "alone"


def test_two_nodes_equal_one_process_through_a_signal(
    cluster: Cluster, recipe: Recipe, profile: Profile, tmp_path: Path
) -> None:
    steps = 120
    path = recipe("work", TRAIN)
    loaded = load_recipe(path)
    with start_engine(0, None) as engine:
        tokenize_step(loaded, engine, Console())
    run_mix(loaded.shards_dir, loaded.mix_path, MixRequest(loaded.mix))
    site = profile(preflight="full")
    shape = ["--stages=train", "--nodes=train=2", "--links=train=3"]
    chain = cluster.submit(str(path), "--profile", site, *shape, "--", f"--steps={steps}")
    stopped, last, idle = chain.ids("train")

    chain.wait_for(stopped, "step 10/")
    cluster.run("scancel", "--batch", "--signal=USR1", stopped)
    assert cluster.wait(stopped) == "FAILED"
    assert cluster.exit_code(stopped) == 75, chain.logs()
    assert "GB/s" in chain.log(stopped), "no pre-flight table"
    (saved,) = (loaded.out / "run" / "checkpoints").glob("step-*")
    assert not (loaded.out / "run" / "done.json").exists()

    assert cluster.wait(last) == "COMPLETED", chain.logs()
    assert f"resumed from step {int(saved.name[5:])}" in chain.log(last)
    assert (loaded.out / "run" / "done.json").exists()
    assert "Traceback" not in chain.logs()
    assert cluster.wait(idle) == "COMPLETED"
    assert "train is complete, nothing to do" in chain.log(idle)

    alone = numbers(train_here(loaded.out, steps))
    assert numbers(loaded.out / "run") == pytest.approx(alone, rel=2e-3)
    assert len(alone) == steps


def test_one_command_from_text_to_a_trained_model_within_time_limits(
    cluster: Cluster, recipe: Recipe, profile: Profile, tmp_path: Path
) -> None:
    # The first training link believes that it ends in half a minute, which is when it has to stop: after its first step
    # on any machine.
    first = f"[[ $SLURM_JOB_NAME = *-train ]] && mkdir {tmp_path}/first 2>/dev/null"
    site = profile(setup=f"if {first}; then export SLURM_JOB_END_TIME=$(($(date +%s) + 30)); fi;")
    shape = ["--nodes=tokenize=2", "--nodes=train=2", "--links=train=2"]
    fast = f'[slurm]\nfast = "{tmp_path}/fast"\nstage = true\n'
    path = recipe("work", TRAIN + fast, vocab="size = 1000")
    chain = cluster.submit("--profile", site, *shape, str(path), "--", "--steps=20")
    links = chain.ids("train")
    for stage in ("vocab", "tokenize", "mix"):
        (job,) = chain.ids(stage)
        assert cluster.wait(job) == "COMPLETED", chain.logs()
    assert cluster.wait(links[0]) == "FAILED"
    assert cluster.exit_code(links[0]) == 75, chain.logs()
    assert cluster.wait(links[-1]) == "COMPLETED", chain.logs()
    assert re.search(r"resumed from step \d\n", chain.log(links[-1]))
    assert json.loads((tmp_path / "fast" / "run" / "done.json").read_text())["step"] == 20
    copied = [re.findall(r"staged (\d+) files?, .* GB, in", chain.log(link)) for link in links]
    assert len(copied[0]) == len(copied[1]) == 2  # nodes
    assert all(map(int, copied[0]))
    assert copied[1] == ["0", "0"]
    reads = json.loads((tmp_path / "fast" / "run" / "config.json").read_text())
    assert reads["shards"] == f"{tmp_path}/fast/shards"


def test_links_without_progress_end_the_chain(
    cluster: Cluster, recipe: Recipe, profile: Profile, stub: Stub
) -> None:
    site = profile(setup=stub("sys.exit(1)"))
    chain = cluster.submit(str(recipe("work", TRAIN)), "--profile", site, "--stages=train", "--links=train=5")
    assert [cluster.wait(job) for job in chain.ids("train")] == ["FAILED"] * 3 + ["CANCELLED"] * 2
    assert "the last two links made no progress" in chain.log(chain.ids("train")[2])


def test_a_job_whose_node_fails_is_requeued(
    cluster: Cluster, recipe: Recipe, profile: Profile, stub: Stub
) -> None:
    body = "run.mkdir(exist_ok=True); (run / os.environ.get('SLURM_RESTART_COUNT', '0')).touch()\n"
    body += "if not (run / '1').exists(): time.sleep(60)\n(run / 'done.json').touch()"
    site = profile(setup=stub(body))
    (out := recipe("work", TRAIN)).with_suffix("").mkdir()
    chain = cluster.submit(str(out), "--profile", site, "--stages=train")
    (job,) = chain.ids("train")
    cluster.until((out.with_suffix("") / "run" / "0").exists, 300, "the first start")
    cluster.run("scontrol", "update", "nodename=node1", "state=down", "reason=test")
    assert cluster.wait(job) == "COMPLETED", chain.logs()
    assert (out.with_suffix("") / "run" / "1").exists()


def test_a_bad_node_is_named_and_kept_out_of_the_next_link(
    cluster: Cluster, recipe: Recipe, profile: Profile
) -> None:
    with cluster.replaced("node2", "python", Path("/bin/false")):
        shape = ["--stages=train", "--nodes=train=2", "--links=train=2"]
        site = profile(preflight="node")
        chain = cluster.submit(str(recipe("work", TRAIN)), "--profile", site, *shape)
        first, second = chain.ids("train")
        assert cluster.wait(first) == "FAILED"
        assert "failed nodes: node2" in chain.log(first), chain.logs()
        assert "ExcNodeList=node2" in cluster.run("scontrol", "show", "job", second)
