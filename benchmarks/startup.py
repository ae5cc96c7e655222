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
from functools import partial
from pathlib import Path

from benchmarks.end_to_end import tiny_files
from benchmarks.inputs import Inputs
from benchmarks.measure import Row, Table, in_turns, timed


@contextlib.contextmanager
def ray_head() -> Iterator[str]:
    """The address of a Ray cluster of this node; the context ends it."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{listener.getsockname()[1]}"
    command = [str(Path(sys.executable).with_name("ray")), "start", "--head", "--block", "--num-cpus=2"]
    command += ["--node-ip-address=127.0.0.1", f"--port={address.rpartition(':')[2]}"]
    command += ["--include-dashboard=false"]
    environment = {**os.environ, "RAY_USAGE_STATS_ENABLED": "0"}
    head = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        # `ray.init` of the commands would wait too, and that is not to be measured.
        status = [*command[:1], "status", f"--address={address}"]
        until = time.monotonic() + 60
        while (
            answer := subprocess.run(status, env=environment, capture_output=True, check=False)
        ).returncode:
            if time.monotonic() > until:
                raise SystemExit(f"no answer of Ray: {answer.stderr.decode()[-500:]}")
            time.sleep(0.5)
        time.sleep(3)  # its first workers start
        yield address
    finally:
        head.terminate()
        head.wait()


def measure(inputs: Inputs) -> Table:
    """Each job on both kinds of workers, in turns."""
    jobs = {"a tiny file": [f"it={tiny_files(inputs.folder, 1)[0]}"], "the corpus": inputs.arguments}
    out = inputs.folder / "timed"
    options = ["--vocab", str(inputs.vocab), "--out", str(out), "--workers", "2"]
    with ray_head() as address:
        kinds = {"processes": [], "Ray": ["--address", address]}

        def case(sources: list[str]) -> Row:
            row = {}
            for kind, more in kinds.items():
                command = [sys.executable, "-m", "pretok", "--quiet", "tokenize", *sources, *options, *more]
                run = partial(subprocess.run, command, check=True, stdout=subprocess.DEVNULL)
                spent, _ = timed(run)
                row[kind] = spent["s"]
                shutil.rmtree(out)
            return row

        return in_turns({name: lambda job=job: case(job) for name, job in jobs.items()}, inputs.runs)
