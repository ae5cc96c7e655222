"""Tokens over several nodes: the same bytes as one process makes, whatever happens to nodes, jobs and Ray."""

from __future__ import annotations

import hashlib
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from slurm_support import LAB, Cluster, Submitted

from pretok.base.console import Console
from pretok.config import load_recipe
from pretok.session import start_engine
from pretok.steps import tokenize_step

Recipe = Callable[..., Path]
Profile = Callable[..., str]


def digests(shards: Path) -> dict[str, str]:
    """Every file of a finished shards folder by its path, hashed."""
    files = [path for path in shards.rglob("*") if path.is_file()]
    return {str(path.relative_to(shards)): hashlib.blake2b(path.read_bytes()).hexdigest() for path in files}


def nodes_that_worked(log: str) -> set[str]:
    found = re.search(r"partitions per node: (.*)", log)
    assert found, log
    return set(re.findall(r"node\d", found[1]))


@pytest.fixture
def expected(recipe: Recipe) -> dict[str, str]:
    """The files that one process on this machine makes."""
    loaded = load_recipe(recipe("here"))
    with start_engine(0, None) as engine:
        tokenize_step(loaded, engine, Console())
    return digests(loaded.shards_dir)


def submit(cluster: Cluster, profile: str, recipe: Path, nodes: int, links: int = 1) -> Submitted:
    return cluster.submit(
        str(recipe),
        "--profile",
        profile,
        "--stages=tokenize",
        f"--nodes=tokenize={nodes}",
        f"--links=tokenize={links}",
    )


def test_three_nodes_make_the_same_bytes(
    cluster: Cluster, recipe: Recipe, profile: Profile, expected: dict[str, str], tmp_path: Path
) -> None:
    chain = submit(cluster, profile(preflight="node"), recipe("there"), 3)
    (job,) = chain.ids("tokenize")
    assert cluster.wait(job) == "COMPLETED", chain.logs()
    assert (
        len(nodes_that_worked(chain.log(job))) > 1
    )  # on a slow machine two may be done before the third begins
    assert digests(tmp_path / "there" / "shards") == expected
    assert len(expected) > 20, "too few shards to say anything"
    log = chain.log(job)
    assert re.search(r"node3 .* ok ", log), log  # the pre-flight table
    assert not re.search(r"8\.8\.8\.8|Traceback|WARN|[Ee]rror", log), (
        log
    )  # no route out, and nothing said about it
    assert f"pretok-{job}" not in cluster.run("node-exec", "node2", "ls", f"{LAB}/local")


def test_two_nodes_through_a_signal_and_a_dead_head(
    cluster: Cluster, recipe: Recipe, profile: Profile, expected: dict[str, str], tmp_path: Path
) -> None:
    chain = submit(cluster, profile(), recipe("there"), 2, links=4)
    stopped, headless, last, idle = chain.ids("tokenize")

    chain.wait_for(stopped, "Ray runs on 2 of 2 nodes")
    cluster.run("scancel", "--batch", "--signal=USR1", stopped)
    assert cluster.wait(stopped) == "FAILED"
    assert cluster.exit_code(stopped) == 75, chain.logs()

    chain.wait_for(headless, "Ray runs on 2 of 2 nodes")
    (head,) = cluster.processes("node1", "gcs_server")
    cluster.run("node-exec", "node1", "kill", "-KILL", head)
    assert cluster.wait(headless) == "FAILED"
    assert cluster.exit_code(headless) == 1
    assert "the Ray head on node1 ended during the job" in chain.log(headless)

    assert cluster.wait(last) == "COMPLETED", chain.logs()
    assert nodes_that_worked(chain.log(last)) == {"node1", "node2"}
    assert digests(tmp_path / "there" / "shards") == expected
    assert cluster.wait(idle) == "COMPLETED"
    assert "tokenize is complete, nothing to do" in chain.log(idle)


def test_a_node_that_dies_costs_its_partitions_only(
    cluster: Cluster, recipe: Recipe, profile: Profile, expected: dict[str, str], tmp_path: Path
) -> None:
    # Ray takes half a minute to believe that a node is gone; here it shall be quicker, but not lose one that is slow.
    quick = {"period_ms": 500, "timeout_ms": 5000, "failure_threshold": 4}
    setup = "".join(f"export RAY_health_check_{name}={value};" for name, value in quick.items())
    chain = submit(cluster, profile(setup=setup), recipe("there"), 3)
    (job,) = chain.ids("tokenize")
    cluster.until(lambda: bool(cluster.processes("node3", "ray::_on_ray")), 300, "a task on node3")
    cluster.run("node-crash", "node3")
    assert cluster.wait(job) == "COMPLETED", chain.logs()
    assert nodes_that_worked(chain.log(job)) >= {"node1", "node2"}
    assert digests(tmp_path / "there" / "shards") == expected


def test_ray_is_started_once_more_and_a_cancelled_job_leaves_nothing(
    cluster: Cluster, recipe: Recipe, profile: Profile, tmp_path: Path
) -> None:
    fails_once, failed = tmp_path / "ray", tmp_path / "failed"
    main = f'exec {sys.executable} -c "from ray.scripts.scripts import main; main()" "$@"'
    fails_once.write_text(f"#!/bin/sh\nif mkdir {failed}; then echo no; exit 1; fi\n{main}\n")
    fails_once.chmod(0o755)
    with cluster.replaced("node2", "ray", fails_once):
        chain = submit(cluster, profile(), recipe("there"), 2)
        (job,) = chain.ids("tokenize")
        chain.wait_for(job, "Ray runs on 2 of 2 nodes")
        assert "Ray did not start on node2" in chain.log(job)
        assert cluster.processes("node2", "raylet")
        cluster.run("scancel", job)
        assert cluster.wait(job) == "CANCELLED"
    cluster.until(lambda: not cluster.run("squeue", "-h"), 300, "an empty queue")
    assert not cluster.processes("node1", "ray") + cluster.processes("node2", "ray")
