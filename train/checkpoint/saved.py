"""A checkpoint's files on disk: whether they are what was written.

Input: a folder. Output: its checkpoints, or that a file has not the size and checksum with which it was written.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from pretok.base.errors import IntegrityError, UsageError
from pretok.base.storage import checksum
from train.checkpoint.meta import Meta, read_meta

_NAME = re.compile(r"step-\d{8}")
LATEST = "latest"
"""File that names the newest checkpoint, for people and other programs."""
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
        except IntegrityError as error:
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
