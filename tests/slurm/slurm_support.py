"""Commands on the test cluster, and chains in its queue."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
LAB = Path(os.environ.get("SLURMLAB_DIR", "/tmp/pretok-slurm"))
ENDED = {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL"}


@dataclass(frozen=True)
class Cluster:
    """Commands on the cluster."""

    environment: dict[str, str]

    def run(self, *command: str, check: bool = True) -> str:
        """Standard output of a command, with the cluster's commands on PATH."""
        answer = subprocess.run(
            command, env=self.environment, cwd=ROOT, text=True, capture_output=True, check=False
        )
        assert not (check and answer.returncode), f"{command}: {answer.stdout}{answer.stderr}"
        return answer.stdout.strip()

    def state(self, job: str) -> str:
        """State of a job, such as PENDING or COMPLETED."""
        return self.run("squeue", "-h", "-t", "all", "-j", job, "-o", "%T")

    def wait(self, job: str, seconds: float = 600) -> str:
        """The state in which a job ended."""
        self.until(lambda: self.state(job) in ENDED, seconds, f"job {job} to end")
        return self.state(job)

    def exit_code(self, job: str) -> int:
        """The exit code of an ended job's script."""
        return int(self.run("scontrol", "show", "job", job).partition("ExitCode=")[2].partition(":")[0])

    def until(
        self, condition: Callable[[], bool], seconds: float, what: str, logs: Callable[[], str] = str
    ) -> None:
        """Wait for a condition; if it does not come, fail with the `logs` of then."""
        end = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < end, (
                f"waited {seconds} s for {what}\n{self.run('squeue', '-t', 'all')}\n{logs()}"
            )
            time.sleep(0.2)

    def processes(self, node: str, name: str) -> list[str]:
        """Ids, inside the node, of processes whose command line holds `name`."""
        lines = self.run("node-exec", node, "ps", "-eo", "pid,args").splitlines()
        return [line.split()[0] for line in lines if name in line and "ps -eo" not in line]

    @contextmanager
    def replaced(self, node: str, program: str, by: Path) -> Iterator[None]:
        """On a node alone, a program of the virtual environment is another one."""
        path = str((Path(sys.prefix) / "bin" / program).resolve())
        self.run("node-exec", node, "mount", "--bind", str(by), path)
        try:
            yield
        finally:
            self.run("node-exec", node, "umount", path)

    def submit(self, *arguments: str) -> Submitted:
        """`pretok submit`."""
        answer = self.run(sys.executable, "-m", "pretok", "submit", "--json", *arguments)
        found = json.loads(answer)
        jobs = [(job["stage"], job["id"]) for job in found["jobs"]]
        return Submitted(self, Path(found["folder"]), jobs)


@dataclass(frozen=True)
class Submitted:
    """A chain in the queue."""

    cluster: Cluster
    folder: Path
    jobs: list[tuple[str, str]]

    def ids(self, stage: str) -> list[str]:
        """Job ids of a stage's links."""
        return [job for name, job in self.jobs if name == stage]

    def log(self, job: str) -> str:
        """What a job has written so far."""
        return "".join(path.read_text() for path in self.folder.glob(f"*-{job}.out"))

    def logs(self) -> str:
        """The last of all logs, Ray's too, for a failing assertion."""
        paths = sorted([*self.folder.glob("*.out"), *self.folder.glob("ray-*.log")])
        return "\n".join(f"== {path.name}\n{path.read_text()[-4000:]}" for path in paths)

    def wait_for(self, job: str, text: str, seconds: float = 300) -> None:
        """Wait until a job's log holds a text."""
        self.cluster.until(lambda: text in self.log(job), seconds, f"{text!r} of job {job}", self.logs)
