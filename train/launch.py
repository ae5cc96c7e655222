"""torchrun for a chain of Slurm jobs: forwards signals to the ranks and their exit code to Slurm.

Input: torchrun's own command line (`python -m train.launch --nnodes 2 ... -m train ...`). Output: the exit code of the
first rank that failed. torchrun alone exits with 1 whatever code its ranks exit with, so 75 (stopped, run again) would
be lost. SIGUSR1, which Slurm sends before the time limit, would end torchrun without reaching the ranks; and 30 s after
a SIGTERM torchrun kills them, in the middle of a long step or a save. Here they take the time that they need, and the
exit code is theirs: 75 only after a save.
"""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress
from types import FrameType

from pretok.base.begin import SIGNALS, end_with_75, interrupted


def rank_processes() -> list[int]:
    """Return the process ids of this launcher's ranks: its children that torchrun gave a LOCAL_RANK."""
    from pathlib import Path

    processes = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # processes may end meanwhile, and those of other users are not readable
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            if parent == os.getpid() and b"\0LOCAL_RANK=" in b"\0" + (folder / "environ").read_bytes():
                processes.append(int(folder.name))
    return processes


def _forward(number: int, _: FrameType | None) -> None:
    ranks = rank_processes()
    for process in ranks:
        with suppress(ProcessLookupError):
            os.kill(process, number)
    if not ranks and number != signal.SIGUSR1:  # before they start or after their end: nothing is to be saved
        from pretok.base.errors import Stopped

        sys.exit(Stopped.exit_code)


def main(arguments: list[str] | None = None) -> int:
    """Run torchrun with `arguments` (default: the command line) and return the exit code for Slurm."""
    import logging

    from torch.distributed import run  # takes a second, in which `end_with_75` handles the signals
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    from pretok.base.errors import Stopped

    for number in SIGNALS:
        signal.signal(number, _forward)
    # torchrun logs errors when all ranks exit with 75, or one node a moment before another, as if it were a crash.
    for name in ("multiprocessing.api", "agent.server.api"):
        logging.getLogger(f"torch.distributed.elastic.{name}").setLevel(logging.CRITICAL)
    try:
        options = run.parse_args(arguments)  # type: ignore[no-untyped-call]
        options.signals_to_handle = "SIGHUP,SIGQUIT"  # `_forward` handles the others
        run.run(options)  # type: ignore[no-untyped-call]
    except ChildFailedError as error:
        rank, failure = error.get_first_failure()
        code: int = failure.exitcode if failure.exitcode >= 0 else 128 - failure.exitcode
        if code != Stopped.exit_code:
            print(f"{os.uname().nodename}: rank {rank} exited with code {code}", file=sys.stderr)
        return code
    except SignalException as error:  # torchrun has ended the ranks, perhaps before they saved
        return 128 + error.sigval
    return 0


def start() -> None:
    """Entry point of the process: a signal ends it with 75 before anything else is loaded."""
    try:
        end_with_75()
        sys.exit(main())
    except KeyboardInterrupt:
        interrupted()


if __name__ == "__main__":
    start()
