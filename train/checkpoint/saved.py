"""A checkpoint's files on disk: whether they are what was written.

Input: the bytes torch's distributed checkpoint writes, or a folder. Output: size and checksum of every file, summed up
while the bytes pass on their way to the disk: nothing is read again, no rank waits, and what is damaged between memory
and disk is found too. Reading checks sizes always, and checksums before a checkpoint is loaded.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import xxhash
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import FileSystem, FileSystemWriter
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future

from pretok.base.errors import IntegrityError, OutputError, PretokError, UsageError
from pretok.base.storage import TEMPORARY_SUFFIX, NewFile, checksum
from train.checkpoint.meta import FileRecord, Meta, read_meta, write_meta

_NAME = re.compile(r"step-\d{8}")
LATEST = "latest"
"""File that names the newest checkpoint, for people and other programs."""
_BLOCK = 1 << 24
"""Bytes copied at a time."""
_THREADS = 4
"""Files that one rank reads at a time: one stream does not fill a parallel file system."""


def complete_checkpoints(folder: Path) -> list[Path]:
    """Finished checkpoints in a `checkpoints` folder, oldest first."""
    if not folder.is_dir():
        return []
    return sorted(path for path in folder.iterdir() if _NAME.fullmatch(path.name))


def find_checkpoints(run: Path, step: int | None) -> list[Path]:
    """Checkpoints of a run folder, oldest first: all, or that of a step. UsageError names what there is."""
    found = complete_checkpoints(run / "checkpoints")
    wanted = [path for path in found if step is None or path.name == f"step-{step:08d}"]
    if not wanted:
        if found:
            names = ", ".join(path.name for path in found)
            raise UsageError(f"{run} has no checkpoint of step {step}; there are: {names}")
        there = "is no run with a checkpoint" if run.is_dir() else "does not exist"
        raise UsageError(f"{run} {there}; name the folder that train --out was given, once it has saved one")
    return wanted


def check_files(checkpoint: Path, meta: Meta, rank: int = 0, ranks: int = 1) -> None:
    """Compare the checksums of this rank's share of the files; IntegrityError names the first that differs.

    Every file is read once by one rank.
    """
    records = meta.files
    by_size = sorted(records, key=lambda name: (-records[name].size, name))  # shares of like size
    mine = by_size[rank::ranks]
    with ThreadPoolExecutor(_THREADS) as pool:
        found = pool.map(checksum, [checkpoint / name for name in mine])
        for name, value in zip(mine, found, strict=True):
            if value != records[name].checksum:
                raise IntegrityError(f"{checkpoint / name} was damaged: its checksum is not the one it had")


def verify(run: Path, step: int | None, report: Callable[[str], None]) -> None:
    """Compare all files of a run's checkpoints, or of one. IntegrityError when some are damaged."""
    found = find_checkpoints(run, step)
    bad = 0
    for checkpoint in found:
        try:
            check_files(checkpoint, read_meta(checkpoint))
            report(f"{checkpoint}: good")
        except PretokError as error:
            bad += 1
            report(f"{checkpoint}: {error}")
    latest = run / "checkpoints" / LATEST
    named = latest.read_text(encoding="utf-8").strip() if latest.exists() else "nothing"
    newest = complete_checkpoints(latest.parent)[-1]
    if named != newest.name:
        report(
            f"warning: {latest} names {named}, and the newest checkpoint is {newest.name}; train takes the newest"
        )
    if bad:
        raise IntegrityError(f"{bad} of {len(found)} checkpoints are damaged; delete those named above")


def copy_checkpoint(checkpoint: Path, folder: Path, ending: Callable[[], bool]) -> bool:
    """Copy a complete checkpoint into a folder, where it is complete too or has no such name. False where it was there
    already, or where `ending` said so first.

    Raises IntegrityError where the bytes are not those that were written, OutputError where the folder cannot take them
    or has a checkpoint of this name from another run.
    """
    meta, target = read_meta(checkpoint), folder / checkpoint.name
    if target.exists():
        if read_meta(target).files != meta.files:
            raise OutputError(f"{target} is another run's checkpoint: name another --copy-to")
        return False
    temporary = target.with_name(f".{target.name}{TEMPORARY_SUFFIX}")
    shutil.rmtree(temporary, ignore_errors=True)  # of a copy that a kill ended
    temporary.mkdir(parents=True)
    try:
        for name, record in meta.files.items():
            with (checkpoint / name).open("rb") as source, NewFile(temporary / name) as new:
                while data := source.read(_BLOCK):
                    if ending():
                        return False
                    new.write(data)
                new.seal()
            if new.checksum != record.checksum:
                raise IntegrityError(f"{checkpoint / name} was damaged: its checksum is not the one it had")
        write_meta(temporary, meta, meta.files)
        temporary.rename(target)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return True


def _cause(error: BaseException) -> BaseException:
    """The OSError in whose handling an error was raised; else the error itself."""
    behind: BaseException | None = error
    while behind is not None and not isinstance(behind, OSError):
        behind = behind.__cause__ or behind.__context__
    return behind or error


class _SummedStream:
    """A file being written whose bytes are summed up in passing; it has no seek, so they pass in order."""

    def __init__(self, stream: Any) -> None:
        self._digest = xxhash.xxh3_128()
        self._size = 0
        self._stream = stream
        self.tell, self.flush, self.close, self.fileno = (
            stream.tell,
            stream.flush,
            stream.close,
            stream.fileno,
        )

    def write(self, data: Any) -> int:
        """Pass bytes on."""
        self._digest.update(data)
        count: int = self._stream.write(data)
        self._size += count
        return count

    def record(self) -> FileRecord:
        """What has passed; the checksum in the form `pretok.base.storage.checksum` gives of the file."""
        return FileRecord(self._size, f"xxh3:{self._digest.hexdigest()}")


class _SummedFiles(FileSystem):
    """Files on disk; `records` of those written, by name."""

    def __init__(self) -> None:
        self.records: dict[str, FileRecord] = {}

    @contextmanager
    def create_stream(self, path: str | os.PathLike[str], mode: str) -> Iterator[Any]:
        with super().create_stream(path, mode) as stream:
            summed = _SummedStream(stream)
            yield summed
        self.records[Path(path).name] = summed.record()

    def rename(self, path: str | os.PathLike[str], new_path: str | os.PathLike[str]) -> None:
        super().rename(path, new_path)
        self.records[Path(new_path).name] = self.records.pop(Path(path).name)


@dataclass(frozen=True)
class _SummedResult(WriteResult):
    """What a rank tells the first one of an item it wrote, and of the file it wrote it to."""

    file: tuple[str, FileRecord]


def cached_planner(run: str) -> DefaultSavePlanner:
    """torch's planner of a save, which from the second one of a run on makes no plan anew and sends none. run: what no
    other run of this process is called, as torch keeps plans by the name of the class."""
    planner = DefaultSavePlanner(enable_plan_caching=True)
    planner._cached_plans_key = run
    return planner


class SummedWriter(FileSystemWriter):
    """torch's writer, with a record of every file. The records of all ranks travel with what ranks tell each other
    anyway, so that making them is no collective of its own; on rank 0 `records` has them when the save is done."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.fs = self._files = _SummedFiles()

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """Write this rank's files. Raises the OSError where torch makes 'unexpected pos 704 vs 598' of it."""
        results: list[WriteResult] = []
        try:
            written = super().write_data(plan, planner).wait()
        except Exception as error:
            raise _cause(error) from error
        for result in written:
            name = result.storage_data.relative_path
            file = (name, self._files.records[name])
            results.append(_SummedResult(result.index, result.size_in_bytes, result.storage_data, file))
        future: Future[list[WriteResult]] = Future()
        future.set_result(results)
        return future

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """On rank 0, when all have written."""
        super().finish(metadata, results)
        for rank_results in results:
            self._files.records.update(
                result.file for result in rank_results if isinstance(result, _SummedResult)
            )

    def records(self) -> dict[str, FileRecord]:
        """meta.json's `files`."""
        return dict(sorted(self._files.records.items()))
