"""Checkpoints: written in the background, complete or invisible, deleted by rule, loaded on any mesh.

Input: the state of all ranks and its `Meta`. Output: RUN/checkpoints/step-XXXXXXXX/ with the files of `tensors` and
meta.json (run state, settings, provenance, size and checksum of every file). A folder with that name is complete: it is
written under a temporary name, and renamed once the data of all ranks is on disk. A save that fails costs no step: rank
0 reports it and asks for another one.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import accumulate
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
from train.checkpoint.meta import FileRecord, Meta, check_files, complete_checkpoints, read_meta, write_meta
from train.checkpoint.tensors import Index, in_a_line, load, make_index, own_pieces, write_pieces
from train.config import TrainConfig, parse_save_every
from train.parallel.mesh import REPLICATE, SHARD, TENSOR

SETTLE_SECONDS = 300.0
"""How long a run that ends with an error waits for the save in progress."""
RETRY_SECONDS = 60.0
"""Seconds between a failed save and the next try."""
PATIENCE = 1200.0
"""Seconds for which saves may fail before the run ends: steps that cannot be saved are wasted."""
HOST = torch.device("cpu")
"""Of objects that are sent: gloo sends them, in the one group that has it."""
_ALIGNED = 64
"""Bytes to whose multiples copies are aligned."""


@dataclass
class _Pending:
    future: Future[dict[str, FileRecord]]
    meta: Meta
    started: float


def to_keep(metas: dict[Path, Meta], config: TrainConfig) -> set[Path]:
    """Return the checkpoints to keep: the newest, the best by validation loss, and milestones. metas: oldest first."""
    paths = list(metas)
    kept = set(paths[-config.keep_last :])
    rated = [(loss, path.name, path) for path in paths if (loss := metas[path].val_loss) is not None]
    kept |= {path for *_, path in sorted(rated)[: config.keep_best]}
    if config.milestone:
        kept |= {path for path in paths if metas[path].step % config.milestone == 0}
    return kept


def _host_copies(pieces: dict[str, Tensor], *, pinned: bool) -> dict[str, Tensor]:
    """Return memory of the host for a copy of each piece, as parts of a single array.

    pinned: registered with the driver, as torch's own checkpoints do it. torch's allocator of pinned memory rounds each
    size up to a power of two, which costs up to twice the memory.
    """
    ends = list(accumulate(-(-piece.nbytes // _ALIGNED) * _ALIGNED for piece in pieces.values()))
    memory = torch.empty(ends[-1] if ends else 0, dtype=torch.uint8)
    if pinned and len(memory):
        register: Any = torch.cuda.cudart().cudaHostRegister  # type: ignore[no-untyped-call]
        torch.cuda.check_error(int(register(memory.data_ptr(), len(memory), 1)))
    return {
        name: memory[begin : begin + piece.nbytes].view(piece.dtype).view(piece.shape)
        for (name, piece), begin in zip(pieces.items(), [0, *ends], strict=False)
    }


def auto_interval(start: float, cost: float) -> float:
    """Return the seconds between saves for --save-every auto: what a kill loses is worth a few starts.

    start: seconds from the start of the process to the first step. cost: seconds for which a save stops the steps.
    """
    return min(3600.0, max(4 * start, 20 * cost))


def _delete(path: Path) -> None:
    doomed = path.with_name(f".{path.name}.deleted{TEMPORARY_SUFFIX}")
    path.rename(doomed)  # a half deleted checkpoint must not look complete
    # A kill here leaves the temporary name, which the next start deletes.
    shutil.rmtree(doomed)


class Checkpoints:
    """Saves and loads checkpoints; all ranks call every method. `report` prints a line on rank 0.

    A save that takes longer than --timeout is given up, like any other collective.
    """

    def __init__(
        self, folder: Path, config: TrainConfig, pinned: bool, report: Callable[[str], None]
    ) -> None:
        self.folder, self._config, self._report = folder, config, report
        self.save_seconds = 0.0
        self.every = parse_save_every(config.save_every)
        self.agreed = False  # whether all ranks have agreed to save after the current step
        self.saved_at = 0.0
        self.start_seconds = self._cost = 0.0
        self._saved: tuple[int, float | None] = -1, None  # step and validation loss of the newest checkpoint
        self._pending: _Pending | None = None
        self._failing_since: float | None = None  # rank 0 only, which alone knows how each save ended
        self._retry_at = 0.0
        self._rank = dist.get_rank()
        self._deletes, self._writes = ThreadPoolExecutor(1), ThreadPoolExecutor(1)  # each may take minutes
        self._index: Index | None = None
        self._pinned = pinned
        self._copy: dict[str, Tensor] = {}  # on the host: the pieces that this rank writes
        if self._rank == 0:
            folder.mkdir(parents=True, exist_ok=True)
            for leftover in folder.glob(f"*{TEMPORARY_SUFFIX}"):
                with self._warning(f"{leftover} was left behind and cannot be deleted"):
                    shutil.rmtree(leftover) if leftover.is_dir() else leftover.unlink()
        # No rank writes into the folder before rank 0 has deleted leftovers: all wait for it in `load_newest`.

    def asked(self) -> bool:
        """Return on rank 0 whether it is time for a save, or to retry a failed one; False on other ranks."""
        # Clocks differ between ranks, so only that of rank 0 counts; the step's all-reduce informs the others.
        if self._rank:
            return False
        now, (kind, amount) = time.monotonic(), self.every
        if kind == "auto":
            kind, amount = "seconds", auto_interval(self.start_seconds, self._cost)
        again = self._failing_since is not None and now >= self._retry_at
        return again or (kind == "seconds" and now - self.saved_at > amount)

    def due(self, step: int) -> bool:
        """Return whether the state after `step` steps must be saved."""
        kind, amount = self.every
        milestone = self._config.milestone and step % self._config.milestone == 0
        return bool(self.agreed or milestone or (kind == "steps" and step % amount == 0))

    def wanted(self, step: int, val_loss: float | None) -> bool:
        """Return whether a save makes sense: not if this state is already saved, or if --save-every is never."""
        return self._saved != (step, val_loss) and self.every[0] != "never"

    def save(
        self, state: dict[str, Tensor], mesh: DeviceMesh, meta: Meta, first: Callable[[], None] = lambda: None
    ) -> None:
        """Copy the state to host memory and write it in the background, after first(). Waits for an unfinished save."""
        # The thread of that save reads the copies in host memory until it ends; below they are overwritten.
        self._conclude()
        started = time.monotonic()
        self._saved = meta.step, meta.val_loss
        if self._index is None:
            self._index = make_index(state, mesh)
        pieces = own_pieces(state, self._index, self._rank)
        if not self._copy:
            self._copy = _host_copies(pieces, pinned=self._pinned)
        for name, piece in pieces.items():
            self._copy[name].copy_(piece, non_blocking=True)
        if self._pinned:  # the next step changes the state, so the copies must be complete before it
            torch.cuda.synchronize()
        self._cost = max(self._cost, time.monotonic() - started)
        # The first rank of each pipeline stage writes the index of its stage.
        leads = not any(mesh.get_local_rank(name) for name in (REPLICATE, SHARD, TENSOR))
        future = self._writes.submit(self._write, self._temporary(meta.step), self._index, leads, first)
        self._pending = _Pending(future, meta, started)

    def _write(
        self, folder: Path, index: Index, leads: bool, first: Callable[[], None]
    ) -> dict[str, FileRecord]:
        """Write this rank's files. Rank 0 returns the records of all ranks' files, or raises the error of any rank.

        Runs in a thread, so without collectives, which would mix with those of training: each rank sends to rank 0, on
        the host. A rank that writes slowly keeps only this thread of rank 0 waiting.
        """
        try:
            first()
            answer: Any = write_pieces(folder, self._rank, index, self._copy, leads=leads)
        except Exception as error:  # sent to rank 0, which decides
            answer = in_a_line(error)
        # Every rank sends, also one that failed: otherwise rank 0 would wait for it until the timeout.
        if self._rank:
            dist.send_object_list([answer], dst=0, device=HOST)
            return {}
        answers = [answer]
        for rank in range(1, dist.get_world_size()):
            dist.recv_object_list(received := [None], src=rank, device=HOST)
            answers += received
        for sent in answers:
            if isinstance(sent, str):
                raise PretokError(sent)
        return {name: record for sent in answers for name, record in sorted(sent.items())}

    def poll(self) -> None:
        """Finish a save whose data is on disk, or give up one that hangs; otherwise return at once."""
        # No collective, so each rank may do this after another step.
        if self._pending is not None and (self._pending.future.done() or self._left(self._pending) < 0):
            self._conclude()

    def wait(self) -> bool:
        """Finish the save in progress, if any, on all ranks. If it failed, return False when it is time to retry."""
        self._conclude()
        if self._failing_since is not None:
            time.sleep(max(0.0, self._retry_at - time.monotonic()))
        # Only rank 0 knows how the save ended, and all ranks must agree whether to repeat it.
        saved = [self._failing_since is None]
        dist.broadcast_object_list(saved, device=HOST)
        if not saved[0]:
            self._saved = -1, None
        return saved[0]

    def settle(self) -> None:
        """Finish the save in progress when the run ends with an error; its state was taken before the error.

        Without communication, as other ranks may be gone; so after SETTLE_SECONDS the save is given up.
        """
        if self._pending is not None and not wait([self._pending.future], SETTLE_SECONDS).not_done:
            with suppress(PretokError):  # the error that ends the run is the one to report
                self._finish(self._pending)

    def close(self) -> None:
        """Wait until checkpoints that are no longer kept are deleted."""
        self._deletes.shutdown()
        self._writes.shutdown()

    def _temporary(self, step: int) -> Path:
        # One folder for all ranks; the first that writes a file creates it.
        return self.folder / f".step-{step:08d}{TEMPORARY_SUFFIX}"

    def _left(self, pending: _Pending) -> float:
        """Return the seconds that the save still has."""
        return pending.started + self._config.timeout - time.monotonic()

    def _conclude(self) -> None:
        """Wait for the save in progress, and on rank 0 note how it ended. Stopped if saves have failed for PATIENCE."""
        if self._pending is None:
            return
        step, problem, now = self._pending.meta.step, self._finish(self._pending), time.monotonic()
        if problem is None:
            self._failing_since = None
        elif self._rank == 0:
            self._failing_since = self._failing_since or now
            message = f"{self.folder}: the checkpoint of step {step} could not be written: {problem}"
            if now - self._failing_since >= PATIENCE:
                raise Stopped(
                    f"{message}; no save has succeeded for {duration(now - self._failing_since)}. The previous "
                    "checkpoint is intact: fix the cause (space, permissions), then run the same command to resume"
                )
            # At the end of a run the other ranks wait in a collective for the retry, so it must come before --timeout.
            pause = min(RETRY_SECONDS, self._config.timeout / 2)
            self._retry_at = now + pause
            self._report(f"warning: {message}; training continues, the next try is in {pause:.0f} s")

    def _finish(self, pending: _Pending) -> str | None:
        """Make a checkpoint of the files on disk, on rank 0. Returns the problem, if any, or raises HungSave.

        Rank 0 learns of the problems of all ranks, another rank only of its own.
        """
        self._pending = None
        step = pending.meta.step
        temporary, final = self._temporary(step), self.folder / f"step-{step:08d}"
        try:
            files = pending.future.result(max(0.0, self._left(pending)))
            self.save_seconds = time.monotonic() - pending.started
            if self._rank:
                return None
            # All files of all ranks are on disk. A kill before the rename leaves a folder with a temporary name, which
            # the next start deletes.
            write_meta(temporary, pending.meta, files)
            if final.exists():  # a damaged one that could not be renamed: a good one would have been loaded
                _delete(final)
            temporary.rename(final)
        except Exception as error:
            if isinstance(error, FutureTimeout) and not pending.future.done():
                raise HungSave(
                    f"{self.folder}: the checkpoint of step {step} could not be written: not done after --timeout "
                    f"{self._config.timeout} s; the previous one is intact. Run the same command to resume from it"
                ) from error
            if not self._rank:  # on a full disk its files take the space that the next try needs
                shutil.rmtree(temporary, ignore_errors=True)
            return in_a_line(error)
        size = sum(record.size for record in files.values()) / 1e9
        self._report(f"saved {final} ({size:.2f} GB in {self.save_seconds:.1f} s)")
        kept = self._config.milestone and step % self._config.milestone == 0
        if self._config.backup and (kept or pending.meta.val_loss in pending.meta.progress.best):
            # In the thread that deletes, so that nothing is deleted while it is copied.
            self._deletes.submit(self._back_up, final, Path(self._config.backup) / final.name)
        self._retain(final)
        return None

    def _back_up(self, path: Path, copy: Path) -> None:
        """Copy a checkpoint under a temporary name, compare it with its checksums, and rename it."""
        temporary = copy.with_name(f".{copy.name}{TEMPORARY_SUFFIX}")
        with self._warning(f"{path} cannot be copied to {copy.parent}"):
            if copy.exists() and read_meta(copy) == read_meta(path):
                return
            shutil.rmtree(temporary, ignore_errors=True)  # of an attempt that was killed
            shutil.copytree(path, temporary)
            check_files(temporary, read_meta(temporary))
            os.sync()  # a rename must not be on disk before the data
            if copy.exists():  # of another run
                _delete(copy)
            temporary.rename(copy)
            self._report(f"copied {path} to {copy}")

    def _retain(self, newest: Path) -> None:
        """Delete in the background the checkpoints that the rule does not keep, but never `newest`.

        So one good checkpoint always stays. Also called at the start of a run, because a kill may have come before the
        deletion.
        """

        def work() -> None:
            metas = {}
            with self._warning(f"old checkpoints in {self.folder} cannot be found"):
                for path in complete_checkpoints(self.folder):
                    try:
                        metas[path] = read_meta(path)
                    except PretokError as error:
                        self._report(f"this checkpoint is ignored, and not deleted: {error}")
            for path in sorted(set(metas) - to_keep(metas, self._config) - {newest}):
                with self._warning(f"{path} is no longer needed and cannot be deleted"):
                    _delete(path)

        if self.every[0] != "never":
            self._deletes.submit(work)

    @contextmanager
    def _warning(self, text: str) -> Iterator[None]:
        """Report failures of work in the body that do no harm; the next save tries again."""
        try:
            yield
        except (OSError, PretokError) as error:
            self._report(f"warning: {text}: {getattr(error, 'strerror', None) or error}")

    def load_newest(
        self, state: dict[str, Tensor], mesh: DeviceMesh, check: Callable[[Meta], None]
    ) -> Meta | None:
        """Load the newest usable checkpoint into `state` on all ranks of `mesh`; return its meta, or None.

        A damaged one is reported and renamed, so that a person can look at it, and the previous one is used.
        check(meta) raises if the checkpoint must not be loaded. Raises IntegrityError if all are damaged, Stopped if
        one cannot be read now.
        """
        # All ranks use the list of rank 0: another node may still see an older state of the shared folder.
        candidates: list[Any] = [complete_checkpoints(self.folder)]
        dist.broadcast_object_list(candidates, device=HOST)
        for path in reversed(candidates[0]):
            try:
                meta = load(path, state, mesh, check)
            except IntegrityError as error:  # the same on all ranks
                self._report(f"{path} is damaged, trying the previous one: {error}")
                continue
            self._saved = meta.step, meta.val_loss
            if not self._rank:
                # Damaged ones are newer than the one loaded: under their name they would count as the newest.
                for damaged in candidates[0][candidates[0].index(path) + 1 :]:
                    with self._warning(f"{damaged} cannot be renamed"):
                        shutil.rmtree(aside := Path(f"{damaged}.damaged"), ignore_errors=True)
                        damaged.rename(aside)
                self._retain(path)
            return meta
        if candidates[0]:
            raise IntegrityError(
                f"no checkpoint in {self.folder} can be read, for the reasons above. None was changed: restore the "
                "files that are named there, or start another run with another --out"
            )
        return None
