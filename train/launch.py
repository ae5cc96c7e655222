"""torchrun for a chain of Slurm jobs: forwards signals to the ranks and their exit code to Slurm.

Input: torchrun's own command line (`python -m train.launch --nnodes 2 ... -m train ...`). Output: the exit code of the
first rank that failed. torchrun alone exits with 1 whatever code its ranks exit with, so 75 (stopped, run again) would
be lost. And SIGUSR1, which Slurm sends before the time limit, would end torchrun without reaching the ranks.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path
from types import FrameType

from torch.distributed import run
from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

from pretok.base.errors import Stopped


def rank_processes() -> list[int]:
    """Return the process ids of this launcher's ranks: its children that torchrun gave a LOCAL_RANK."""
    processes = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # processes may end meanwhile, and those of other users are not readable
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            if parent == os.getpid() and b"\0LOCAL_RANK=" in b"\0" + (folder / "environ").read_bytes():
                processes.append(int(folder.name))
    return processes


def _forward(number: int, _: FrameType | None) -> None:
    for process in rank_processes():
        with suppress(ProcessLookupError):
            os.kill(process, number)


def main(arguments: list[str] | None = None) -> int:
    """Run torchrun with `arguments` (default: the command line) and return the exit code for Slurm."""
    signal.signal(signal.SIGUSR1, _forward)
    # torchrun logs errors when all ranks exit with 75, or one node a moment before another, as if it were a crash.
    for name in ("multiprocessing.api", "agent.server.api"):
        logging.getLogger(f"torch.distributed.elastic.{name}").setLevel(logging.CRITICAL)
    try:
        run.run(run.parse_args(arguments))  # type: ignore[no-untyped-call]
    except ChildFailedError as error:
        rank, failure = error.get_first_failure()
        code: int = failure.exitcode if failure.exitcode >= 0 else 128 - failure.exitcode
        if code != Stopped.exit_code:
            print(f"{os.uname().nodename}: rank {rank} exited with code {code}", file=sys.stderr)
        return code
    except SignalException:  # torchrun has passed SIGTERM or Ctrl-C to the ranks, which saved
        return Stopped.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
