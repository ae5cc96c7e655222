"""A rank or a node that dies costs the steps since the last save, not the job."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from slurm_support import Cluster, Submitted
from test_slurm_train import TRAIN, Profile, Recipe, Stub, numbers, train_here

from pretok.base.console import Console
from pretok.base.storage import read_lines
from pretok.config import load_recipe
from pretok.session import start_engine
from pretok.steps import tokenize_step
from pretok.stream.mix_job import MixRequest, run_mix

STEPS = 150
# Every 20 steps; the last, over the recipe's 100000, wins.
FLAGS = (f"--steps={STEPS}", "--save-every=20")


@pytest.fixture
def work(recipe: Recipe) -> tuple[Path, Path]:
    """A recipe and its finished tokens and mix."""
    path = recipe("work", TRAIN)
    loaded = load_recipe(path)
    with start_engine(0, None) as engine:
        tokenize_step(loaded, engine, Console())
    run_mix(loaded.shards_dir, loaded.mix_path, MixRequest(loaded.mix))
    return path, loaded.out


@pytest.fixture
def submit(cluster: Cluster, profile: Profile, work: tuple[Path, Path]) -> Callable[..., Submitted]:
    def submit(*options: str, setup: str = "") -> Submitted:
        site = profile(setup=setup)
        return cluster.submit(str(work[0]), "--profile", site, "--stages=train", *options, "--", *FLAGS)

    return submit


def test_a_node_and_then_a_rank_that_die_cost_no_job(
    cluster: Cluster, submit: Callable[..., Submitted], work: tuple[Path, Path]
) -> None:
    chain = submit("--nodes=train=2", "--links=train=2", "--spare=1")
    job, idle = chain.ids("train")
    chain.wait_for(job, "step 40/")
    cluster.run("node-crash", "node2")
    chain.wait_for(job, "restart 1 inside the job")
    chain.wait_for(job, "step 60/")
    rank = cluster.processes("node3", "-m train --shards")[0]  # the spare node
    cluster.run("node-exec", "node3", "kill", "-KILL", rank)
    assert cluster.wait(job) == "COMPLETED", chain.logs()
    assert "lost node2" in chain.log(job)
    assert "restart 2 inside the job, from" in chain.log(job)
    assert "ExcNodeList=node2" in cluster.run("scontrol", "show", "job", idle)

    segments = read_lines(work[1] / "run" / "goodput.jsonl")
    assert [("lost node2" in line["restart"], line["restarting"] > 0) for line in segments] == [
        (False, False),
        (True, True),
        (False, True),
    ]
    assert numbers(work[1] / "run") == pytest.approx(numbers(train_here(work[1], STEPS)), rel=2e-3)


def test_a_spare_node_takes_the_place_of_a_bad_one_from_the_start(
    cluster: Cluster, profile: Profile, work: tuple[Path, Path]
) -> None:
    with cluster.replaced("node2", "python", Path("/bin/false")):
        shape = ("--stages=train", "--nodes=train=2", "--spare=1", "--", "--steps=5")
        chain = cluster.submit(str(work[0]), "--profile", profile(preflight="node"), *shape)
        (job,) = chain.ids("train")
        assert cluster.wait(job) == "COMPLETED", chain.logs()
        assert "failed nodes: node2" in chain.log(job)
        assert "2 of 2 nodes (node1 node3)" in chain.log(job)


def test_tries_are_bounded(cluster: Cluster, profile: Profile, recipe: Recipe, stub: Stub) -> None:
    site = profile(setup=stub("sys.exit(1)") + "export PRETOK_RESTARTS=2;")
    chain = cluster.submit(str(recipe("work", TRAIN)), "--profile", site, "--stages=train")
    (job,) = chain.ids("train")
    assert cluster.wait(job) == "FAILED"
    assert "restart 2 inside the job" in chain.log(job)
    assert "restart 3" not in chain.log(job)
    assert "3 starts in a row made no progress beyond 'the start'" in chain.log(job)


def test_the_next_link_goes_on_when_the_first_node_dies(
    cluster: Cluster, submit: Callable[..., Submitted], work: tuple[Path, Path]
) -> None:
    """The job script dies with it; Slurm alone would let the other nodes idle to the time limit."""
    options = ("--nodes=train=1", "--links=train=2", "--spare=1")
    chain = submit(*options, setup="export PRETOK_GUARD_SECONDS=40;")
    first, second = chain.ids("train")
    chain.wait_for(first, "step 40/")
    cluster.run("node-crash", "node1")
    assert cluster.wait(first) == "CANCELLED", chain.logs()
    assert cluster.wait(second) == "COMPLETED", chain.logs()
    assert numbers(work[1] / "run").keys() == set(range(1, STEPS + 1))
