"""The folder of a checkpoint: meta.json says where the run was, what it was, and which files there are.

Input: a folder. Output: its checkpoints, a `Meta`, or an IntegrityError that names the file and the key, or a file
that has not the size and checksum with which it was written. `seal`, the fingerprint of all else in meta.json, shows
a change by another hand; `version` is that of the folder.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec

from pretok.base.errors import IntegrityError, UsageError
from pretok.base.records import Count, Record, Signed, check_version, read_record, replace, to_json
from pretok.base.storage import checksum, fingerprint, read_json, reading, write_json
from train.model.sizes import ModelConfig

META = "meta.json"
VERSION = 2
"""Of the whole folder: a change by which other versions of train would read it wrongly raises it. 1 had the files of
torch.distributed.checkpoint."""
OLDER = "go on with the train that wrote it, or export its model with that one and begin a new run with --init-from"


class FileRecord(Record, frozen=True):
    """One file as meta.json describes it."""

    size: Count
    checksum: str


class RunState(Record, frozen=True):
    """Where a run is: `step` steps are done, `position` sequences of the stream read.

    data_hash: of all sequences read; best: the lowest validation losses; tokens: done; phase: tokens at which the
    settings say that the phase begins; schedule: tokens that were done when that of the learning rate began, and unit:
    tokens of the steps in which it counts, 0 before it began.
    """

    step: Count = 0
    position: Count = 0
    data_hash: str = ""
    best: tuple[float, ...] = ()
    tokens: Count = 0
    phase: Count = 0
    schedule: Count = 0
    unit: Count = 0


class Identity(Record, frozen=True):
    """What a run is. stream: fingerprint of the mix; manifest: that of the shards; mix: the mix itself, as its file has
    it."""

    model: ModelConfig
    global_batch: Count
    seed: Signed
    stream: str
    manifest: str
    mix: dict[str, Any]

    @property
    def step_tokens(self) -> int:
        """Tokens of a step."""
        return self.global_batch * self.model.seq_len


class TokenizerOrigin(Record, frozen=True):
    """Which tokenizer the ids are of, and the folder of shards where a copy of it lay."""

    fingerprint: str
    shards: str


class Meta(Record, frozen=True, omit_defaults=True):
    """All of meta.json but its seal. step: as in the folder's name; config: the settings; files: by name;
    eod_id, bos_id: of the tokens that end and, where there is one, begin every document."""

    step: Count
    progress: RunState
    val_loss: float | None
    identity: Identity
    config: dict[str, Any]
    eod_id: Count
    tokenizer: TokenizerOrigin
    provenance: dict[str, Any]
    files: dict[str, FileRecord] = msgspec.field(default_factory=dict)
    bos_id: Count | None = None


def write_meta(folder: Path, meta: Meta, files: dict[str, FileRecord]) -> None:
    """Write meta.json, atomically. A loss that is not finite, which JSON cannot say, is left out."""
    val_loss = None if meta.val_loss is None or not math.isfinite(meta.val_loss) else meta.val_loss
    data = {"version": VERSION} | to_json(replace(meta, val_loss=val_loss, files=files))
    write_json(folder / META, {"seal": fingerprint(data)} | data)


def read_meta(checkpoint: Path) -> Meta:
    """meta.json of a checkpoint, as it was sealed; else IntegrityError, or MismatchError for one of another version.

    The files themselves are `check_files`'s: if a thousand ranks each asked for the sizes of a thousand files, a
    parallel file system would answer in minutes.
    """
    path = checkpoint / META
    data = read_json(path)
    if isinstance(data, dict) and data.pop("seal", None) != fingerprint(data):
        raise IntegrityError(f"{path} does not match its seal: it was damaged or edited")
    if isinstance(data, dict):
        check_version(data.pop("version", 1), VERSION, path, OLDER)
    try:
        meta = read_record(Meta, data, path)
    except UsageError as error:  # sizes that no model can have
        raise IntegrityError(f"{path}: {error}; it was damaged or edited") from None
    for name in meta.files:
        if (checkpoint / name).parent != checkpoint:
            raise IntegrityError(f"{path} does not list its files: {name!r} leads out of the folder")
    if not meta.files:
        raise IntegrityError(f"{path} lists no file; it was damaged or edited")
    return meta


_NAME = re.compile(r"step-\d{8}")
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
        what, names = "" if step is None else f" of step {step}", ", ".join(path.name for path in found)
        raise UsageError(
            f"{run} has no checkpoint{what}; name the folder that train --out was given; there are: {names or 'none'}"
        )
    return wanted


def check_files(checkpoint: Path, meta: Meta, rank: int = 0, ranks: int = 1) -> None:
    """Compare the checksums of this rank's share of the files; IntegrityError names the first that differs.

    Every file is read once by one rank.
    """
    records = meta.files
    by_size = sorted(records, key=lambda name: (-records[name].size, name))  # shares of like size

    def check(name: str) -> None:
        with reading(checkpoint / name):
            found = checksum(checkpoint / name)
        if found != records[name].checksum:
            raise IntegrityError(f"{checkpoint / name} was damaged: its checksum is not the one it had")

    with ThreadPoolExecutor(_THREADS) as pool:
        list(pool.map(check, by_size[rank::ranks]))


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
    if bad:
        raise IntegrityError(f"{bad} of {len(found)} checkpoints are damaged; delete those named above")
