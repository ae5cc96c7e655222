"""The ranks of a run: how they meet, own the run's folder, and end together.

Input: torchrun's variables, a device, the run's folder. Output: a process group and a locked folder while the body
runs. If one rank fails, all end with its error. A rank whose neighbour is gone fails inside a collective, with an error
that does not show the cause. So the failing rank writes the cause to the store by which the ranks met, which torchrun
keeps; the others read it there and exit with the same code.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import TypeVar

import torch
import torch.distributed as dist
from torch.distributed import Store  # type: ignore[attr-defined]
from torch.distributed.distributed_c10d import _set_pg_timeout, _world
from torch.distributed.rendezvous import rendezvous

from pretok.base.errors import PretokError, UsageError
from pretok.base.lock import hold, share
from train.parallel.devices import Device

_WHY = "train/why"
START_SECONDS = 1800
"""Least limit of collectives until the first step is done: a thousand ranks load, connect and compile until then."""
T = TypeVar("T")


@contextmanager
def process_group(
    device: Device, timeout: int, out: Path, explain: Callable[[Exception], PretokError | None]
) -> Iterator[None]:
    """Join the ranks that the environment names (torchrun's variables), or run as a single rank.

    An error on one rank ends all ranks with its text; explain: returns the error to show for problems of the machine.
    Raises UsageError if RUN cannot be created. A collective that hangs for `timeout` seconds ends the process; NCCL's
    flight recorder then leaves RUN/flight/rank-*.
    """
    flight = out / "flight"
    try:
        flight.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(
            f"--out: {flight} cannot be created: {error.strerror}; name a folder that can be written"
        ) from None
    # Before the group is made, and only where the user has set nothing else. Hosts connect when they first talk: else
    # at 1,024 ranks each would connect to all others.
    for name, value in {
        "TORCH_GLOO_LAZY_INIT": "1",
        "TORCH_FR_BUFFER_SIZE": "2000",
        "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
        "TORCH_FR_DUMP_TEMP_FILE": str(flight / "rank-"),
        "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": str(flight / "rank-"),
    }.items():
        os.environ.setdefault(name, value)
    limit = timedelta(seconds=max(START_SECONDS, timeout))  # shorter after the first step
    store, rank, ranks = _find_store(limit)
    dist.init_process_group(device.backend, timeout=limit, store=store, rank=rank, world_size=ranks)
    try:
        yield
    except Exception as error:
        known = explain(error) or error
        shown = cause(store, known, rank)
        if shown is error:
            raise
        raise shown from error
    finally:
        dist.destroy_process_group()


def _find_store(limit: timedelta) -> tuple[Store, int, int]:
    """Return the store by which the ranks meet, this rank's number, and the number of ranks."""
    if "RANK" not in os.environ:
        return dist.HashStore(), 0, 1  # type: ignore[attr-defined]
    store, rank, ranks = next(rendezvous("env://", timeout=limit))
    store.set_timeout(limit)
    return store, rank, ranks


def connect(device: Device, timeout: int, report: Callable[[str], None]) -> None:
    """Make the communicators of all groups so far, by a tiny sum in each, and report what each took.

    Else the first step makes them, one by one, and a hang there names none. All ranks call it after the same groups.
    """
    limit_collectives(max(START_SECONDS, timeout))
    seconds = []
    for group in _world.pg_map:  # in the order in which they were made, which is the same on all ranks
        began = time.monotonic()
        total = torch.ones(1, device=device.device)
        dist.all_reduce(total, group=group)
        if total.item() != group.size():  # waits for the device
            raise PretokError(f"a sum over the {group.size()} ranks of {group.group_desc} is {total.item()}")
        seconds.append(f"{group.group_desc} {time.monotonic() - began:.2f} s")
    if dist.get_world_size() > 1:
        report(f"communicators: {', '.join(seconds)}")


def limit_collectives(timeout: float) -> None:
    """Set the seconds for collectives in all groups of this rank; torch has no public function for it."""
    for group in _world.pg_map:
        _set_pg_timeout(timedelta(seconds=timeout), group)


@contextmanager
def run_folder(out: Path, shards: Path) -> Iterator[threading.Event]:
    """Lock RUN for this run while the body runs, and register as a reader of `shards`; rank 0 does both for all ranks.

    See `pretok.base.lock`. Raises FolderInUse or OutputError on all ranks. The yielded event is set on rank 0 if the
    lock of RUN is lost.
    """
    with ExitStack() as stack:

        def take() -> threading.Event:
            if dist.get_rank():
                return threading.Event()
            lost = stack.enter_context(hold(out, "train"))
            stack.enter_context(share(shards, "train"))
            return lost

        # All ranks wait here until rank 0 has both, or raise its error.
        yield all_or_raise(take)


def all_or_raise(work: Callable[[], T]) -> T:
    """Return this rank's `work()`. If it raises a PretokError on any rank, all ranks raise that of the first one."""
    problem: PretokError | None = None
    try:
        result = work()
    except PretokError as error:
        # Kept for the exchange below. Any other error skips it: the neighbours then fail inside it and read
        # the cause in the store.
        problem = error
    # Every rank takes part, also one that failed: otherwise the others would wait for it until the timeout.
    answers: list[PretokError | None] = [None] * dist.get_world_size()
    dist.all_gather_object(answers, problem)
    for first in filter(None, answers):
        raise first
    return result


class EndedElsewhere(PretokError):
    """Another rank ended the run."""

    def __init__(self, text: str, exit_code: int) -> None:
        super().__init__(text)
        self.exit_code = exit_code


def cause(store: Store, error: Exception, rank: int) -> Exception:
    """Return the error to raise: this one, once other ranks know it, or the one that ended another rank first.

    An error that a user can fix is always its own cause.
    """
    with suppress(Exception):  # the store may be gone, with the process that kept it
        if not isinstance(error, PretokError) and store.check([_WHY]):
            why = json.loads(store.get(_WHY))
            return EndedElsewhere(f"rank {why['rank']} ended the run: {why['text']}", why["exit_code"])
        # If two ranks fail at once, the later one overwrites the text of the other: both are causes.
        if not store.check([_WHY]):
            text = f"{error}" if isinstance(error, PretokError) else f"{type(error).__name__}: {error}"
            code = error.exit_code if isinstance(error, PretokError) else 1
            store.set(_WHY, json.dumps({"rank": rank, "text": text, "exit_code": code}))
    return error
