"""The ranks of a run: how they find each other, own the run's folder, and end together.

Input: torchrun's variables, a device, the run's folder. Output: a process group and a held folder while the body runs.
One rank fails: all end, with its words. A rank whose neighbour is gone fails in the middle of a collective, which says
nothing of the cause; through the store by which ranks found each other, which torchrun keeps, it learns the cause, and
ends with the same exit code.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import TypeVar

import torch.distributed as dist
from torch.distributed import Store  # type: ignore[attr-defined]
from torch.distributed.rendezvous import rendezvous

from pretok.base.errors import PretokError, UsageError
from pretok.base.lock import hold, share
from train.parallel.devices import Device

_WHY = "train/why"
T = TypeVar("T")


@contextmanager
def process_group(
    device: Device, timeout: int, out: Path, explain: Callable[[Exception], PretokError | None]
) -> Iterator[None]:
    """Join the ranks named by the environment (torchrun's variables), or be the only one.

    What ends one rank ends all, with its words; explain: the words for errors of the machine. UsageError where RUN
    cannot be made. A collective that hangs `timeout` seconds ends the process; NCCL's flight recorder then leaves
    RUN/flight/rank-*.
    """
    flight = out / "flight"
    try:
        flight.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(
            f"--out: {flight} cannot be made: {error.strerror}; name a folder that may be written"
        ) from None
    for name, value in {
        "TORCH_FR_BUFFER_SIZE": "2000",
        "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
        "TORCH_FR_DUMP_TEMP_FILE": str(flight / "rank-"),
        "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": str(flight / "rank-"),
    }.items():
        os.environ.setdefault(name, value)
    limit = timedelta(seconds=timeout)
    store, rank, ranks = _find_store(limit)
    dist.init_process_group(device.backend, timeout=limit, store=store, rank=rank, world_size=ranks)
    try:
        yield
    except Exception as error:
        known = explain(error) or error
        told = cause(store, known, rank)
        if told is error:
            raise
        raise told from error
    finally:
        dist.destroy_process_group()


def _find_store(limit: timedelta) -> tuple[Store, int, int]:
    """Where the ranks meet, this one's number, and how many there are."""
    if "RANK" not in os.environ:
        return dist.HashStore(), 0, 1  # type: ignore[attr-defined]
    store, rank, ranks = next(rendezvous("env://", timeout=limit))
    store.set_timeout(limit)
    return store, rank, ranks


@contextmanager
def run_folder(out: Path, shards: Path) -> Iterator[threading.Event]:
    """Keep RUN for this run while the body runs on all ranks, and tell other jobs that it reads `shards`; rank 0 holds
    both (see `pretok.base.lock`).

    Raises FolderInUse or OutputError on all ranks. The event is set, on rank 0, when RUN is lost.
    """
    with ExitStack() as stack:

        def take() -> threading.Event:
            if dist.get_rank():
                return threading.Event()
            lost = stack.enter_context(hold(out, "train"))
            stack.enter_context(share(shards, "train"))
            return lost

        yield together(take)


def together(work: Callable[[], T], group: dist.ProcessGroup | None = None) -> T:
    """What `work` gives this rank. Raises the PretokError of the first rank that has one, the same on all of them."""
    problem: PretokError | None = None
    try:
        result = work()
    except PretokError as error:
        problem = error
    answers: list[PretokError | None] = [None] * dist.get_world_size(group)
    dist.all_gather_object(answers, problem, group=group)
    for found in filter(None, answers):
        raise found
    return result


class EndedElsewhere(PretokError):
    """Another rank ended the run."""

    def __init__(self, text: str, exit_code: int) -> None:
        super().__init__(text)
        self.exit_code = exit_code


def cause(store: Store, error: Exception, rank: int) -> Exception:
    """The error itself, told to the other ranks; or, where it only follows from another rank's end, that one's.

    An error that a user can fix is always its own cause.
    """
    with suppress(Exception):  # the store may be gone with the rank that kept it
        if not isinstance(error, PretokError) and store.check([_WHY]):
            why = json.loads(store.get(_WHY))
            return EndedElsewhere(f"rank {why['rank']} ended the run: {why['text']}", why["exit_code"])
        if not store.check([_WHY]):
            text = f"{error}" if isinstance(error, PretokError) else f"{type(error).__name__}: {error}"
            code = error.exit_code if isinstance(error, PretokError) else 1
            store.set(_WHY, json.dumps({"rank": rank, "text": text, "exit_code": code}))
    return error
