"""Checkpoints: written in the background, complete or invisible, deleted by rule, loaded on any mesh.

Enters: the state dict of all ranks and a `meta` of JSON values. Leaves: RUN/checkpoints/step-XXXXXXXX/ with
torch's distributed checkpoint and meta.json (run state, settings, provenance, every file's size and checksum). A
folder of that name is complete: it is written under a temporary name and renamed when every rank's data is on
disk; `latest` follows.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.distributed.checkpoint.state_dict_saver import async_save

from pretok.base.errors import IntegrityError, PretokError, UsageError
from pretok.base.storage import TEMPORARY_SUFFIX, atomic_open
from train.checkpoint import HungSave
from train.checkpoint.meta import Meta, read_meta, write_meta
from train.checkpoint.restore import Reader, first_failure, restore
from train.checkpoint.saved import SummedWriter, check_files, complete_checkpoints
from train.config import TrainConfig
from train.parallel.mesh import first_problem

SETTLE_SECONDS = 300.0
"""How long a run that ends by an error waits for the save in progress."""


@dataclass
class _Pending:
    future: Future[Any]
    writer: SummedWriter
    meta: Meta
    started: float


def to_keep(metas: dict[Path, Meta], config: TrainConfig) -> set[Path]:
    """Which checkpoints stay: the last, the best by validation loss, milestones. metas: oldest first."""
    paths = list(metas)
    kept = set(paths[-config.keep_last :])
    rated = [(loss, path.name, path) for path in paths if (loss := metas[path].val_loss) is not None]
    kept |= {path for *_, path in sorted(rated)[: config.keep_best]}
    if config.milestone:
        kept |= {path for path in paths if metas[path].step % config.milestone == 0}
    return kept


def _delete(path: Path) -> None:
    doomed = path.with_name(f".{path.name}.deleted{TEMPORARY_SUFFIX}")
    path.rename(doomed)  # half deleted, it must not look complete
    shutil.rmtree(doomed)


class Checkpoints:
    """Saves and loads; every method is called by all ranks. `report` prints a line on rank 0.

    A save that takes longer than --timeout is given up, as every other collective is.
    """

    def __init__(
        self, folder: Path, config: TrainConfig, pinned: bool, report: Callable[[str], None]
    ) -> None:
        self.folder = folder
        self.save_seconds = 0.0
        self._config = config
        self._report = report
        self._pending: _Pending | None = None
        # Its own group: a save talks while training talks. A rank that writes slowly keeps the others waiting in it.
        self._group = dist.new_group(backend="gloo", timeout=timedelta(seconds=config.timeout))
        self._rank = dist.get_rank()
        self._stager = DefaultStager(StagingOptions(pinned, False, False, pinned))
        if self._rank == 0:
            folder.mkdir(parents=True, exist_ok=True)
            for leftover in folder.glob(f"*{TEMPORARY_SUFFIX}"):
                with self._telling("was left behind and cannot be deleted", leftover):
                    shutil.rmtree(leftover) if leftover.is_dir() else leftover.unlink()
        dist.barrier(group=self._group)

    def check_space(self, checkpoint_bytes: int) -> None:
        """UsageError unless the disk holds what retention keeps (milestones apart) and one more."""
        if self._rank:
            return
        wanted = (self._config.keep_last + self._config.keep_best + 1) * checkpoint_bytes
        present = sum(
            file.stat().st_size for path in complete_checkpoints(self.folder) for file in path.iterdir()
        )
        free = shutil.disk_usage(self.folder).free
        if free + present < wanted:
            raise UsageError(
                f"{self.folder} has {free / 1e9:.1f} GB free and needs {wanted / 1e9:.1f} for "
                f"checkpoints of {checkpoint_bytes / 1e9:.1f} GB. "
                "Free space, or lower --keep-last or --keep-best"
            )

    def save(self, state: dict[str, Any], meta: Meta) -> None:
        """Copy the state to host memory, write it in the background. Waits for an unfinished save first."""
        self.wait()
        started = time.monotonic()
        temporary = self._temporary(meta.step)
        if self._rank == 0:
            temporary.mkdir()
        dist.barrier(group=self._group)
        writer = SummedWriter(temporary)
        future: Any = async_save(
            state,
            storage_writer=writer,
            process_group=self._group,
            async_stager=self._stager,
        )
        self._pending = _Pending(future, writer, meta, started)

    def poll(self) -> None:
        """Finish a save whose data is on disk, or give up one that hangs; returns at once otherwise."""
        if self._pending is not None and (self._pending.future.done() or self._left(self._pending) < 0):
            self._finish(self._pending)

    def wait(self) -> None:
        """Finish the save in progress, if any, on all ranks."""
        if self._pending is not None:
            self._finish(self._pending)
        dist.barrier(group=self._group)

    def settle(self) -> None:
        """Finish the save in progress where the run ends by an error: what it writes was taken before that.

        Without a word to other ranks, which may be gone; then the save is given up after SETTLE_SECONDS.
        """
        if self._pending is not None and not wait([self._pending.future], SETTLE_SECONDS).not_done:
            with suppress(PretokError):  # what ends the run is what to tell
                self._finish(self._pending)

    def close(self) -> None:
        """Finish, and free the staging memory."""
        self.wait()
        self._stager.close()

    def _temporary(self, step: int) -> Path:
        return self.folder / f".step-{step:08d}{TEMPORARY_SUFFIX}"

    def _left(self, pending: _Pending) -> float:
        """Seconds it still has."""
        return pending.started + self._config.timeout - time.monotonic()

    def _finish(self, pending: _Pending) -> None:
        self._pending = None
        step = pending.meta.step
        temporary = self._temporary(step)
        final = self.folder / f"step-{step:08d}"
        try:
            # Done on every rank once it is done on one: its last act is collective.
            pending.future.result(max(0.0, self._left(pending)))
            self.save_seconds = time.monotonic() - pending.started
            if self._rank:
                return
            files = pending.writer.records()
            write_meta(temporary, pending.meta, files)
            read_meta(temporary)  # compares the sizes on disk with what was written
            if final.exists():  # broken, or resume would have started after it
                _delete(final)
            temporary.rename(final)
        except (Exception, CheckpointException) as error:
            slow = isinstance(error, FutureTimeout) and not pending.future.done()
            if not self._rank and not slow:  # on a full disk it takes the space that is needed to go on
                shutil.rmtree(temporary, ignore_errors=True)
            told = f"not done after --timeout {self._config.timeout} s" if slow else first_failure(error)
            raise (HungSave if slow else PretokError)(
                f"the checkpoint of step {step} could not be written: {told}; the one "
                "before is untouched. Mend the cause (space, rights) and run the same command to go on from there"
            ) from error
        with atomic_open(self.folder / "latest", "w") as file:
            file.write(final.name + "\n")
        size = sum(record.size for record in files.values()) / 1e9
        self._report(f"saved {final} ({size:.2f} GB in {self.save_seconds:.1f} s)")
        self._retain()

    def _retain(self) -> None:
        """Delete what the rule does not keep.

        Called when the newest is durable, so one good one always stays.
        """
        metas = {}
        for path in complete_checkpoints(self.folder):
            try:
                metas[path] = read_meta(path)
            except PretokError as error:
                self._report(f"not counted among the checkpoints, and not deleted: {error}")
        for path in sorted(set(metas) - to_keep(metas, self._config)):
            with self._telling("is no longer needed and cannot be deleted", path):
                _delete(path)

    @contextmanager
    def _telling(self, what: str, path: Path) -> Iterator[None]:
        """What cannot be deleted takes space and harms nothing: a line says so, and the next save tries again."""
        try:
            yield
        except OSError as error:
            self._report(f"warning: {path} {what}: {error.strerror}")

    def load_newest(self, state: dict[str, Any], check: Callable[[Meta], None]) -> Meta | None:
        """Load the newest usable checkpoint into `state`, return its meta; None when there is none.

        A broken one is reported and the one before is used. `check(meta)` raises when it must not be loaded.
        IntegrityError when all are broken.
        """
        candidates: list[Any] = [complete_checkpoints(self.folder)]
        dist.broadcast_object_list(candidates, group=self._group)
        for path in reversed(candidates[0]):
            problem, meta = self._try_load(path, state, check)
            if problem is None:
                return meta
            self._report(f"{path} is broken, trying the one before: {problem}")
        if candidates[0]:
            raise IntegrityError(
                f"no checkpoint in {self.folder} can be read; the lines above say why. None was changed: bring back "
                "what they name, or start another run with another --out"
            )
        return None

    def _try_load(
        self, path: Path, state: dict[str, Any], check: Callable[[Meta], None]
    ) -> tuple[str | None, Meta | None]:
        opened = open_checkpoint(path, self._report, self._group)
        if isinstance(opened, str):
            return opened, None
        meta, reader = opened
        check(meta)
        problem: str | None = None
        try:
            # Statistics of bad steps begin anew where another version kept others.
            restore(state | {"guard": reader.known("guard", state["guard"])}, reader, self._group)
        except IntegrityError as error:
            problem = f"{error}"
        return first_problem(problem, self._group), meta


def open_checkpoint(
    checkpoint: Path, report: Callable[[str], None], group: dist.ProcessGroup | None
) -> tuple[Meta, Reader] | str:
    """On all ranks: a checkpoint's meta and reader, its files compared with their checksums; or what is wrong."""
    problem: str | None = None
    try:
        meta = read_meta(checkpoint, sizes=dist.get_rank() == 0)
        check_files(checkpoint, meta, report, dist.get_rank(), dist.get_world_size())
        reader = Reader(checkpoint)
    except (PretokError, OSError) as error:
        problem = f"{error}"
    problem = first_problem(problem, group)
    return (meta, reader) if problem is None else problem
