"""A real Slurm cluster for these tests, a profile for it, and text enough for many partitions."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from slurm_support import LAB, ROOT, Cluster

HERE = Path(__file__).parent

PROFILE = """
SITE_ACCOUNT=none SITE_VENV={venv}
SITE_CPU_PARTITION=cpu SITE_CPU_QOS=none SITE_CPU_CORES=1 SITE_CPU_MEMORY=1500M SITE_CPU_TIME=10 SITE_CPU_OPTIONS=
SITE_GPU_PARTITION=gpu SITE_GPU_QOS=none SITE_GPU_CORES=2 SITE_GPU_MEMORY=3000M SITE_GPU_TIME=10 SITE_GPU_OPTIONS=
SITE_GPUS=2 SITE_INTERFACE=eth0 SITE_NODE_LOCAL={lab}/local
SITE_PREFLIGHT={preflight} SITE_PREFLIGHT_LIMITS="--min-free 1GiB --min-write 1M --min-memory 500MiB"
site_setup() {{ export GLOO_SOCKET_IFNAME=eth0; {setup} }}
"""


STUB = """
import os, pathlib, sys, time
run = pathlib.Path(sys.argv[sys.argv.index("--out") + 1])
{body}
"""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Every test of this folder needs the cluster. Ranks and Ray of three nodes share the cores of one machine: limits
    are those of a hang, not of a slow one."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.slurm)
            item.add_marker(pytest.mark.timeout(1800))


@pytest.fixture(scope="session")
def running_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """The cluster, started unless it runs; the session that started it stops it."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        pytest.skip(
            "the tests of the cluster count its idle nodes and want it alone: pytest -m slurm, without -n"
        )
    if os.geteuid() != 0 or not all(
        shutil.which(name) for name in ("slurmctld", "slurmd", "sbatch", "munged")
    ):
        pytest.skip("no Slurm: tests/slurm/cluster-up.sh, run as root on Debian, installs and starts one")
    was_up = (LAB / "run" / "pids").exists()
    up = subprocess.run(["bash", HERE / "cluster-up.sh"], text=True, capture_output=True, check=False)
    if "cannot make network namespaces" in up.stderr:
        pytest.skip(f"no Slurm cluster can be started here: {up.stderr.strip()}")
    assert up.returncode == 0, up.stdout + up.stderr
    hidden = ("SLURM", "PRETOK_", "RAY_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(hidden)}
    own = {
        "PATH": f"{LAB}/bin:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "NUMBA_CACHE_DIR": str(tmp_path_factory.mktemp("numba")),  # compiled once for all jobs
    }
    yield Cluster({**kept, **own})
    if not was_up:
        subprocess.run(["bash", HERE / "cluster-down.sh"], check=True, capture_output=True)


@pytest.fixture
def cluster(running_cluster: Cluster) -> Iterator[Cluster]:
    """The cluster with all nodes idle; afterwards no job is left, and no process has outlived its job."""
    for node in ("node1", "node2", "node3"):
        running_cluster.run("node-boot", node)
    idle = ["node1 idle", "node2 idle", "node3 idle"]

    def all_idle() -> bool:
        return sorted(set(running_cluster.run("sinfo", "-h", "-N", "-o", "%N %t").splitlines())) == idle

    running_cluster.until(all_idle, 300, "idle nodes")
    yield running_cluster
    running_cluster.run("scancel", "--user=root", "--state=PENDING")
    running_cluster.run("scancel", "--user=root")
    running_cluster.until(lambda: not running_cluster.run("squeue", "-h"), 300, "an empty queue")
    strays = LAB / "log" / "strays.log"
    found = strays.read_text() if strays.exists() else ""
    strays.unlink(missing_ok=True)
    assert not found, f"processes outlived their job:\n{found}"


@pytest.fixture
def profile(tmp_path: Path) -> Callable[..., str]:
    """Writes a profile for the cluster and returns its path."""

    def write(preflight: str = "none", setup: str = "") -> str:
        path = tmp_path / "site.sh"
        path.write_text(PROFILE.format(venv=sys.prefix, lab=LAB, preflight=preflight, setup=setup))
        return str(path)

    return write


@pytest.fixture(scope="session")
def text_dir(tmp_path_factory: pytest.TempPathFactory, sample_texts: dict[str, list[str]]) -> Path:
    """Eight Italian and four English files of the sample, each in another order: about 1.3 MB."""
    folder = tmp_path_factory.mktemp("text")
    for language, count in (("it", 8), ("en", 4)):
        texts = sample_texts[language]
        for number in range(count):
            turned = texts[number * 7 :] + texts[: number * 7]
            lines = [json.dumps({"text": f"{number} {text}"}, ensure_ascii=False) for text in turned]
            (folder / f"{language}-{number}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder


@pytest.fixture
def recipe(tmp_path: Path, text_dir: Path, vocab_dir: Path) -> Callable[..., Path]:
    """Writes a recipe with its output in `tmp_path`/NAME; `more` is added as it is."""

    def write(name: str, more: str = "", vocab: str = f'path = "{vocab_dir}"') -> Path:
        path = tmp_path / f"{name}.toml"
        path.write_text(
            f"""
out = "{tmp_path}/{name}"
[sources.it]
inputs = ["{text_dir}/it-*.jsonl"]
[sources.en]
inputs = ["{text_dir}/en-*.jsonl"]
[vocab]
{vocab}
[shards]
size = "32KiB"
{more}
"""
        )
        return path

    return write


@pytest.fixture
def stub(tmp_path: Path) -> Callable[[str], str]:
    """A launcher in place of torchrun that runs `body`; returns what the profile needs to find it."""

    def write(body: str) -> str:
        folder = tmp_path / "stub" / "train"
        folder.mkdir(parents=True)
        (folder / "__init__.py").touch()
        (folder / "launch.py").write_text(STUB.format(body=body))
        return f"cd {folder.parent};"  # first on the path of `python -m`

    return write
