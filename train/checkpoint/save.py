"""Checkpoints: written in the background, complete or invisible, deleted by rule, loaded on any mesh.

Enters: the state dict of all ranks and a `meta` of JSON values. Leaves: RUN/checkpoints/step-XXXXXXXX/ with
torch's distributed checkpoint and meta.json (run state, settings, provenance, every file's size and checksum). A
folder of that name is complete: it is written under a temporary name and renamed when every rank's data is on
disk; `latest` follows.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.distributed.checkpoint.state_dict import get_model_state_dict, set_model_state_dict
from torch.distributed.checkpoint.state_dict_saver import async_save

from pretok.base.errors import IntegrityError, MismatchError, PretokError, UsageError
from pretok.base.storage import TEMPORARY_SUFFIX, atomic_open, write_json
from train.checkpoint.restore import Reader, first_failure, restore
from train.checkpoint.saved import META, SummedWriter, check_files, complete_checkpoints, read_meta
from train.config import TrainConfig
from train.model.sizes import ModelConfig
from train.parallel.mesh import first_problem

SETTLE_SECONDS = 300.0
"""How long a run that ends by an error waits for the save in progress."""


@dataclass
class _Pending:
    future: Future[Any]
    writer: SummedWriter
    step: int
    meta: dict[str, Any]
    started: float


def to_keep(metas: dict[Path, dict[str, Any]], config: TrainConfig) -> set[Path]:
    """Which checkpoints stay: the last, the best by validation loss, milestones. metas: oldest first."""
    paths = list(metas)
    kept = set(paths[-config.keep_last :])
    rated = [path for path in paths if metas[path]["val_loss"] is not None]
    kept |= set(sorted(rated, key=lambda path: (metas[path]["val_loss"], path.name))[: config.keep_best])
    if config.milestone:
        kept |= {path for path in paths if metas[path]["step"] % config.milestone == 0}
    return kept


def _delete(path: Path) -> None:
    doomed = path.with_name(f".{path.name}.deleted{TEMPORARY_SUFFIX}")
    path.rename(doomed)  # half deleted, it must not look complete
    shutil.rmtree(doomed)


class Checkpoints:
    """Saves and loads; every method is called by all ranks. `report` prints a line on rank 0."""

    def __init__(
        self, folder: Path, config: TrainConfig, pinned: bool, report: Callable[[str], None]
    ) -> None:
        self.folder = folder
        self.save_seconds = 0.0
        self._config = config
        self._report = report
        self._pending: _Pending | None = None
        # Its own group: a save talks while training talks.
        self._group = dist.new_group(backend="gloo")
        self._rank = dist.get_rank()
        self._stager = DefaultStager(StagingOptions(pinned, False, False, pinned))
        if self._rank == 0:
            folder.mkdir(parents=True, exist_ok=True)
            for leftover in folder.glob(f"*{TEMPORARY_SUFFIX}"):
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

    def save(self, step: int, state: dict[str, Any], meta: dict[str, Any]) -> None:
        """Copy the state to host memory, write it in the background. Waits for an unfinished save first."""
        self.wait()
        started = time.monotonic()
        temporary = self._temporary(step)
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
        self._pending = _Pending(future, writer, step, meta | {"step": step}, started)

    def poll(self) -> None:
        """Finish a save whose data is on disk; returns at once otherwise."""
        if self._pending is not None and self._pending.future.done():
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

    def _finish(self, pending: _Pending) -> None:
        self._pending = None
        temporary = self._temporary(pending.step)
        final = self.folder / f"step-{pending.step:08d}"
        try:
            pending.future.result()  # done on every rank once it is done on one: its last act is collective
            self.save_seconds = time.monotonic() - pending.started
            if self._rank:
                return
            files = pending.writer.records()
            write_json(temporary / META, pending.meta | {"files": files})
            read_meta(temporary)  # compares the sizes on disk with what was written
            if final.exists():  # broken, or resume would have started after it
                _delete(final)
            temporary.rename(final)
        except (Exception, CheckpointException) as error:
            if not self._rank:  # on a full disk it takes the space that is needed to go on
                shutil.rmtree(temporary, ignore_errors=True)
            raise PretokError(
                f"the checkpoint of step {pending.step} could not be written: {first_failure(error)}; the one "
                "before is untouched. Mend the cause (space, rights) and run the same command to go on from there"
            ) from error
        with atomic_open(self.folder / "latest", "w") as file:
            file.write(final.name + "\n")
        size = sum(record["size"] for record in files.values()) / 1e9
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
        for path in set(metas) - to_keep(metas, self._config):
            _delete(path)

    def load_newest(
        self, state: dict[str, Any], check: Callable[[dict[str, Any]], None]
    ) -> dict[str, Any] | None:
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
                f"no checkpoint in {self.folder} can be read; move the folder away to start anew"
            )
        return None

    def _try_load(
        self, path: Path, state: dict[str, Any], check: Callable[[dict[str, Any]], None]
    ) -> tuple[str | None, dict[str, Any]]:
        opened = _open(path, self._report, self._group)
        if isinstance(opened, str):
            return opened, {}
        meta, reader = opened
        check(meta)
        problem: str | None = None
        try:
            restore(state, reader, self._group)
        except IntegrityError as error:
            problem = f"{error}"
        return first_problem(problem, self._group), meta


def _open(
    checkpoint: Path, report: Callable[[str], None], group: dist.ProcessGroup | None
) -> tuple[dict[str, Any], Reader] | str:
    """On all ranks: a checkpoint's meta and reader, its files compared with their checksums; or what is wrong."""
    problem: str | None = None
    try:
        meta = read_meta(checkpoint)
        check_files(checkpoint, meta, report, dist.get_rank(), dist.get_world_size())
        reader = Reader(checkpoint)
    except (PretokError, OSError) as error:
        problem = f"{error}"
    problem = first_problem(problem, group)
    return (meta, reader) if problem is None else problem


def load_weights(
    model: torch.nn.Module, checkpoint: Path, config: ModelConfig, report: Callable[[str], None]
) -> None:
    """Load the model alone from a checkpoint folder, of any mesh.

    Raises IntegrityError for a damaged one, MismatchError for one of other sizes.
    """
    opened = _open(checkpoint, report, None)
    if isinstance(opened, str):
        raise IntegrityError(opened)
    meta, reader = opened
    saved = meta["identity"]["model"]
    ours = {name: getattr(config, name) for name in saved}
    different = [
        f"{name} {saved[name]} (here {ours[name]})"
        for name in saved
        if name != "seq_len" and saved[name] != ours[name]
    ]
    if different:
        raise MismatchError(f"{checkpoint} holds a model of other sizes: {', '.join(different)}")
    state = {"model": get_model_state_dict(model)}
    restore(state, reader)
    set_model_state_dict(model, state["model"])
