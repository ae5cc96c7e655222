"""Checkpoints: written in the background, complete or invisible, deleted by rule, loaded on any mesh.

Input: the state of all ranks and a `meta` of JSON values. Output: RUN/checkpoints/step-XXXXXXXX/ with the files of
`tensors` and meta.json (run state, settings, provenance, every file's size and checksum). A folder of that name is
complete: it is written under a temporary name and renamed when every rank's data is on disk. A save that fails costs no
step: rank 0 tells, and asks for another one.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from pretok.base.errors import IntegrityError, PretokError, Stopped
from pretok.base.storage import TEMPORARY_SUFFIX
from pretok.base.units import duration
from train.checkpoint import HungSave
from train.checkpoint.meta import FileRecord, Meta, complete_checkpoints, read_meta, write_meta
from train.checkpoint.tensors import (
    Index,
    in_a_line,
    make_index,
    open_checkpoint,
    own_pieces,
    restore_everywhere,
    write_pieces,
)
from train.config import TrainConfig, parse_save_every

SETTLE_SECONDS = 300.0
"""How long a run that ends by an error waits for the save in progress."""
RETRY_SECONDS = 60.0
"""Between a save that failed and the next try."""
PATIENCE = 1200.0
"""Seconds for which saves may fail before the run ends: its devices work for nothing when nothing can be saved."""


@dataclass
class _Pending:
    future: Future[dict[str, FileRecord]]
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
        self.folder, self._config, self._report = folder, config, report
        self.save_seconds = 0.0
        self.every = parse_save_every(config.save_every)
        self.agreed = False  # by all ranks, on a save after the step in work
        self.saved_at = 0.0
        self._saved_step = -1
        self._pending: _Pending | None = None
        self._failing_since: float | None = None  # on rank 0, which alone knows how every save ended
        self._retry_at = 0.0
        # Its own group: a save talks while training talks. A rank that writes slowly keeps the others waiting in it.
        self._group = dist.new_group(backend="gloo", timeout=timedelta(seconds=config.timeout))
        self._rank = dist.get_rank()
        self._deletes, self._writes = ThreadPoolExecutor(1), ThreadPoolExecutor(1)  # each may take minutes
        self._index: Index | None = None
        self._pinned = pinned
        self._copy: dict[str, Tensor] = {}  # on the host, of what this rank writes
        if self._rank == 0:
            folder.mkdir(parents=True, exist_ok=True)
            for leftover in folder.glob(f"*{TEMPORARY_SUFFIX}"):
                with self._warning(f"{leftover} was left behind and cannot be deleted"):
                    shutil.rmtree(leftover) if leftover.is_dir() else leftover.unlink()
        dist.barrier(group=self._group)

    def asked(self) -> bool:
        """On rank 0, whether it is time for a save, or to try again after one that failed; others are told."""
        now, (kind, amount) = time.monotonic(), self.every
        if self._rank:
            return False
        again = self._failing_since is not None and now >= self._retry_at
        return again or (kind == "seconds" and now - self.saved_at > amount)

    def due(self, step: int) -> bool:
        """Whether the state after so many steps is to be saved."""
        kind, amount = self.every
        return self.agreed or (kind == "steps" and step % amount == 0)

    def wanted(self, step: int) -> bool:
        """Whether a save would bring anything: not where this very state is saved, or none is to be."""
        return self._saved_step != step and self.every[0] != "never"

    def save(self, state: dict[str, Tensor], mesh: DeviceMesh, meta: Meta) -> None:
        """Copy the state to host memory, write it in the background. Waits for an unfinished save first."""
        self._conclude()
        started = time.monotonic()
        self._saved_step = meta.step
        if self._index is None:
            self._index = make_index(state, mesh)
        for name, piece in own_pieces(state, self._index, self._rank).items():
            if name not in self._copy:
                self._copy[name] = torch.empty(piece.shape, dtype=piece.dtype, pin_memory=self._pinned)
            self._copy[name].copy_(piece, non_blocking=True)
        if self._pinned:
            torch.cuda.synchronize()
        leads = not any(mesh.get_local_rank(name) for name in ("replicate", "shard", "tensor"))
        future = self._writes.submit(self._write, self._temporary(meta.step), self._index, leads)
        self._pending = _Pending(future, meta, started)

    def _write(self, folder: Path, index: Index, leads: bool) -> dict[str, FileRecord]:
        """Write this rank's files; on rank 0, all ranks' by name. Raises what went wrong on any, there."""
        try:
            answer: Any = write_pieces(folder, self._rank, index, self._copy, leads=leads)
        except Exception as error:  # told to rank 0, which judges
            answer = in_a_line(error)
        answers: list[Any] | None = None if self._rank else [None] * dist.get_world_size()
        dist.gather_object(answer, answers, group=self._group, group_dst=0)
        for found in answers or ():
            if isinstance(found, str):
                raise PretokError(found)
        return {name: record for found in answers or () for name, record in sorted(found.items())}

    def poll(self) -> None:
        """Finish a save whose data is on disk, or give up one that hangs; returns at once otherwise."""
        if self._pending is not None and (self._pending.future.done() or self._left(self._pending) < 0):
            self._conclude()

    def wait(self) -> bool:
        """Finish the save in progress, if any, on all ranks. False where it failed, when it is time to try again."""
        self._conclude()
        if self._failing_since is not None:
            time.sleep(max(0.0, self._retry_at - time.monotonic()))
        saved = [self._failing_since is None]
        dist.broadcast_object_list(saved, group=self._group)
        if not saved[0]:
            self._saved_step = -1
        return saved[0]

    def settle(self) -> None:
        """Finish the save in progress where the run ends by an error: what it writes was taken before that.

        Without a word to other ranks, which may be gone; then the save is given up after SETTLE_SECONDS.
        """
        if self._pending is not None and not wait([self._pending.future], SETTLE_SECONDS).not_done:
            with suppress(PretokError):  # what ends the run is what to tell
                self._finish(self._pending)

    def close(self) -> None:
        """Wait until what is no longer kept is deleted."""
        self._deletes.shutdown()
        self._writes.shutdown()

    def _temporary(self, step: int) -> Path:
        return self.folder / f".step-{step:08d}{TEMPORARY_SUFFIX}"

    def _left(self, pending: _Pending) -> float:
        """Seconds it still has."""
        return pending.started + self._config.timeout - time.monotonic()

    def _conclude(self) -> None:
        """Wait for the save in progress and, on rank 0, take in how it ended. Stopped when saves have failed for
        PATIENCE."""
        if self._pending is None:
            return
        step, problem, now = self._pending.meta.step, self._finish(self._pending), time.monotonic()
        if problem is None:
            self._failing_since = None
        elif self._rank == 0:
            self._failing_since = self._failing_since or now
            told = f"{self.folder}: the checkpoint of step {step} could not be written: {problem}"
            if now - self._failing_since >= PATIENCE:
                raise Stopped(
                    f"{told}; no save has succeeded for {duration(now - self._failing_since)}. The checkpoint before "
                    "is untouched: fix the cause (space, rights) and run the same command to go on from there"
                )
            pause = min(RETRY_SECONDS, self._config.timeout / 2)  # the other ranks wait, at the end
            self._retry_at = now + pause
            self._report(f"warning: {told}; the run goes on and tries again in {pause:.0f} s")

    def _finish(self, pending: _Pending) -> str | None:
        """Make a checkpoint of what is on disk. Returns what went wrong, on rank 0 always. Raises HungSave."""
        self._pending = None
        step = pending.meta.step
        temporary, final = self._temporary(step), self.folder / f"step-{step:08d}"
        try:
            files = pending.future.result(max(0.0, self._left(pending)))
            self.save_seconds = time.monotonic() - pending.started
            if self._rank:
                return None
            write_meta(temporary, pending.meta, files)
            if final.exists():  # damaged and not renamed, or resume would have started after it
                _delete(final)
            temporary.rename(final)
        except Exception as error:
            if isinstance(error, FutureTimeout) and not pending.future.done():
                raise HungSave(
                    f"{self.folder}: the checkpoint of step {step} could not be written: not done after --timeout "
                    f"{self._config.timeout} s; the one before is untouched. Run the same command to go on from there"
                ) from error
            if not self._rank:  # on a full disk it takes the space that is needed to go on
                shutil.rmtree(temporary, ignore_errors=True)
            return in_a_line(error)
        size = sum(record.size for record in files.values()) / 1e9
        self._report(f"saved {final} ({size:.2f} GB in {self.save_seconds:.1f} s)")
        self._retain(final)
        return None

    def _retain(self, newest: Path) -> None:
        """Beside training, delete what the rule does not keep, never the `newest`: one good one always stays. Again at
        a start: a kill may have come first."""

        def work() -> None:
            metas = {}
            with self._warning(f"{self.folder} cannot be tidied"):
                for path in complete_checkpoints(self.folder):
                    try:
                        metas[path] = read_meta(path)
                    except PretokError as error:
                        self._report(f"not counted among the checkpoints, and not deleted: {error}")
            for path in sorted(set(metas) - to_keep(metas, self._config) - {newest}):
                with self._warning(f"{path} is no longer needed and cannot be deleted"):
                    _delete(path)

        if self.every[0] != "never":
            self._deletes.submit(work)

    @contextmanager
    def _warning(self, text: str) -> Iterator[None]:
        """Around what harms nothing when it fails: a line says so, and the next save tries again."""
        try:
            yield
        except OSError as error:
            self._report(f"warning: {text}: {error.strerror or error}")

    def load_newest(
        self, state: dict[str, Tensor], mesh: DeviceMesh, check: Callable[[Meta], None]
    ) -> Meta | None:
        """Load the newest usable checkpoint into `state` on all ranks of `mesh`, return its meta; None when there is
        none.

        A damaged one is reported and renamed for a person to look at, and the one before is used. `check(meta)` raises
        when it must not be loaded. IntegrityError when all are damaged; Stopped when one cannot be read now.
        """
        candidates: list[Any] = [complete_checkpoints(self.folder)]
        dist.broadcast_object_list(candidates, group=self._group)
        for path in reversed(candidates[0]):
            try:
                meta, reader = open_checkpoint(path, self._group)
                check(meta)
                restore_everywhere(state, reader, mesh, self._group)
            except IntegrityError as error:  # the same on all ranks
                self._report(f"{path} is broken, trying the one before: {error}")
                continue
            self._saved_step = meta.step
            if not self._rank:
                # Newer than what the run goes on with: left as they are, they would count as the newest.
                for damaged in candidates[0][candidates[0].index(path) + 1 :]:
                    with self._warning(f"{damaged} cannot be renamed"):
                        shutil.rmtree(aside := Path(f"{damaged}.damaged"), ignore_errors=True)
                        damaged.rename(aside)
                self._retain(path)
            return meta
        if candidates[0]:
            raise IntegrityError(
                f"no checkpoint in {self.folder} can be read; the lines above say why. None was changed: bring back "
                "what they name, or start another run with another --out"
            )
        return None
