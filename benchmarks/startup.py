"""Seconds from the command to the prompt: `pretok tokenize` of a tiny job and of the corpus, on processes and on Ray.

Input: the corpus and a vocabulary. Output: for each job and each kind of workers the median of the runs, which are done
in turns. The Ray cluster is a head of two CPUs on this node, started before.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.end_to_end import tiny_files
from benchmarks.inputs import Inputs
from benchmarks.measure import medians
from pretok.base.children import child_environment


@contextlib.contextmanager
def ray_head() -> Iterator[str]:
    """The address of a Ray cluster of this node; the context ends it."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{listener.getsockname()[1]}"
    command = [str(Path(sys.executable).with_name("ray")), "start", "--head", "--block", "--num-cpus=2"]
    command += ["--node-ip-address=127.0.0.1", f"--port={address.rpartition(':')[2]}"]
    command += ["--include-dashboard=false"]
    environment = child_environment() | {"RAY_USAGE_STATS_ENABLED": "0"}
    head = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        time.sleep(15)
        yield address
    finally:
        head.terminate()
        head.wait()


def seconds_of(sources: list[str], vocab: Path, out: Path, workers: list[str]) -> float:
    """Seconds of one command, whose output is removed."""
    command = [sys.executable, "-m", "pretok", "--quiet", "tokenize", *sources]
    command += ["--vocab", str(vocab), "--out", str(out), "--workers", "2", *workers]
    began = time.perf_counter()
    subprocess.run(command, check=True, env={**os.environ, **child_environment()}, stdout=subprocess.DEVNULL)
    ended = time.perf_counter()
    shutil.rmtree(out)
    return ended - began


def measure_startup(inputs: Inputs, runs: int) -> dict[str, Any]:
    """Each job on both kinds of workers, in turns."""
    jobs = {
        "tiny": [f"it={path}" for path in tiny_files(inputs.folder, 1)],
        "corpus": [f"{name}={path}" for name, paths in inputs.zst.items() for path in paths],
    }
    times = []
    with ray_head() as address:
        kinds: dict[str, list[str]] = {"processes": [], "ray": ["--address", address]}
        for _ in range(runs):
            times.append(
                {
                    f"{job} {kind}": seconds_of(sources, inputs.vocab, inputs.folder / "timed", workers)
                    for job, sources in jobs.items()
                    for kind, workers in kinds.items()
                }
            )
    return medians(times)
