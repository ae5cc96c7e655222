"""What machines do to a run, in one line that says what to do: a missing package, no memory, no space, no rights.

Input: an exception of Python, torch or the operating system. Output: a PretokError, or None for what is a bug of ours.
"""

from __future__ import annotations

import errno
import os

from pretok.base.errors import PretokError, Stopped, UsageError
from pretok.base.storage import FULL, PASSING
from train.config import TrainConfig

PACKAGES = ("torch", "numpy", "safetensors", "xxhash")
_PLACE = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EISDIR)


def explain(error: BaseException) -> PretokError | None:
    """The error a person can fix that is behind an exception, if there is one."""
    if isinstance(error, ModuleNotFoundError):
        package = (error.name or "").partition(".")[0]
        if package in PACKAGES:
            return UsageError(
                f"the package {package} is not installed for this Python: pip install '.[train]' in the folder of "
                "pretok brings what train needs (on a machine without a GPU install the CPU build of torch first)"
            )
    if isinstance(error, OSError):
        where = f"{error.filename}: " if error.filename else ""
        if error.errno in FULL | PASSING:
            remedy = "free some, then run" if error.errno in FULL else "run"
            return Stopped(
                f"{where}{error.strerror}: {remedy} the same command to go on from the last checkpoint"
            )
        if error.errno in _PLACE:
            return PretokError(f"{where}{error.strerror}")
    return None


def out_of_memory(error: BaseException, config: TrainConfig) -> PretokError | None:
    """The same for memory, of a GPU or of the host, when that is what ran out."""
    text = str(error)
    signs = ("out of memory", "can't allocate memory", "bad_alloc")
    if not isinstance(error, MemoryError) and not any(sign in text for sign in signs):
        return None
    micro = "not given" if config.micro_batch is None else str(config.micro_batch)
    found = text.strip().splitlines()
    return UsageError(
        f"out of memory on rank {os.environ.get('RANK', '0')} of {os.uname().nodename}: lower --micro-batch (now "
        f"{micro}), which makes more passes of a step, or recompute activations with --checkpointing ops or full "
        f"(now {config.checkpointing}); `train plan` says what fits ({found[0] if found else 'MemoryError'})"
    )
