"""The folder of a checkpoint: meta.json records the state and the identity of the run, and the checkpoint's files.

Input: a folder. Output: its checkpoints, a `Meta`, or an IntegrityError that names the damaged file or key. In
meta.json, `seal` is the fingerprint of everything else, so an edit by hand is detected; `version` is the version of the
whole folder.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec

from pretok.base.errors import IntegrityError, UsageError
from pretok.base.records import (
    Checksum,
    Count,
    Digest,
    File,
    Record,
    Signed,
    check_version,
    read_record,
    replace,
    to_json,
)
from pretok.base.storage import checksum, fingerprint, read_json, reading, write_json
from train.config import command_parser, whole_number
from train.model.sizes import ModelConfig

META = "meta.json"
VERSION = 2
"""Version of the whole folder; any change that other versions of train would misread raises it.

Version 1 had the files of torch.distributed.checkpoint.
"""
OLDER = "resume with the train that wrote it, or export its model with that one and start a new run with --init-from"


class FileRecord(Record, frozen=True):
    """Size and checksum of one file."""

    size: Count
    checksum: Checksum


class RunState(Record, frozen=True):
    """Where a run is."""

    step: Count = 0
    """Steps done."""
    position: Count = 0
    """Sequences of the stream read."""
    data_hash: str = ""
    """Of all sequences read."""
    best: tuple[float, ...] = ()
    """The lowest validation losses."""
    tokens: Count = 0
    """Tokens done."""
    phase: Count = 0
    """`at` of the current phase, as in the settings."""
    schedule: Count = 0
    """Tokens that were done when the learning rate schedule began."""
    unit: Count = 0
    """Tokens per step in which the schedule counts; 0 before it began."""


class Identity(Record, frozen=True):
    """The identity of a run: model, batch, seed and data."""

    model: ModelConfig
    global_batch: Count
    seed: Signed
    stream: Digest
    """Fingerprint of the mix."""
    manifest: Digest
    """Fingerprint of the shards."""
    mix: dict[str, Any]
    """The content of the mix file."""

    @property
    def step_tokens(self) -> int:
        """Tokens per step."""
        return self.global_batch * self.model.seq_len


class TokenizerOrigin(Record, frozen=True):
    """The tokenizer of the ids, by fingerprint, and the shards folder that held a copy of it."""

    fingerprint: Digest
    shards: str


class Meta(Record, frozen=True, omit_defaults=True):
    """Everything in meta.json except its seal."""

    step: Count
    """As in the folder's name."""
    progress: RunState
    val_loss: float | None
    identity: Identity
    config: dict[str, Any]
    """The settings."""
    eod_id: Count
    """Of the token that ends every document."""
    tokenizer: TokenizerOrigin
    provenance: dict[str, Any]
    files: dict[File, FileRecord] = msgspec.field(default_factory=dict)
    """By name."""
    bos_id: Count | None = None
    """Of the token that begins every document; None if there is none."""


def write_meta(folder: Path, meta: Meta, files: dict[str, FileRecord]) -> None:
    """Write meta.json atomically. A non-finite loss, which JSON cannot represent, becomes null."""
    val_loss = None if meta.val_loss is None or not math.isfinite(meta.val_loss) else meta.val_loss
    data = {"version": VERSION} | to_json(replace(meta, val_loss=val_loss, files=files))
    write_json(folder / META, {"seal": fingerprint(data)} | data)


def read_meta(checkpoint: Path) -> Meta:
    """Read meta.json of a checkpoint and check its seal.

    Raises IntegrityError if it was damaged or edited, MismatchError for another version. It does not look at the files
    themselves; `check_files` does. If each of a thousand ranks asked for the sizes of a thousand files, a parallel file
    system would take minutes.
    """
    path = checkpoint / META
    data = read_json(path)
    if not isinstance(data, dict) or data.pop("seal", None) != fingerprint(data):
        raise IntegrityError(f"{path} does not match its seal: it was damaged or edited")
    check_version(data.pop("version", 1), VERSION, path, OLDER)
    try:
        meta = read_record(Meta, data, path)
    except UsageError as error:  # ModelConfig refuses the sizes
        raise IntegrityError(f"{path}: {error}; it was damaged or edited") from None
    if not meta.files:
        raise IntegrityError(f"{path} lists no file; it was damaged or edited")
    return meta


_NAME = re.compile(r"step-\d{8}")
_THREADS = 4
"""Files that one rank reads at a time: a single stream does not saturate a parallel file system."""


def complete_checkpoints(folder: Path) -> list[Path]:
    """Return the finished checkpoints in a `checkpoints` folder, oldest first."""
    if not folder.is_dir():
        return []
    return sorted(path for path in folder.iterdir() if _NAME.fullmatch(path.name))


def find_checkpoints(run: Path, step: int | None) -> list[Path]:
    """Return the checkpoints of a run, oldest first: all, or that of `step`. UsageError names those that exist."""
    existing = complete_checkpoints(run / "checkpoints")
    wanted = [path for path in existing if step is None or path.name == f"step-{step:08d}"]
    if not wanted:
        what, names = "" if step is None else f" of step {step}", ", ".join(path.name for path in existing)
        raise UsageError(
            f"{run} has no checkpoint{what}; name the folder of a run (train --out). It has: {names or 'none'}"
        )
    return wanted


def check_files(checkpoint: Path, meta: Meta, rank: int = 0, ranks: int = 1) -> None:
    """Check this rank's share of the files against their checksums; IntegrityError names the first that differs.

    Over all ranks, every file is read once.
    """
    records = meta.files
    # Ranks take files in turns, the largest first, so that their shares are of similar size.
    by_size = sorted(records, key=lambda name: (-records[name].size, name))

    def check(name: str) -> None:
        with reading(checkpoint / name):
            actual = checksum(checkpoint / name)
        if actual != records[name].checksum:
            raise IntegrityError(f"{checkpoint / name} is damaged: its checksum is not the recorded one")

    with ThreadPoolExecutor(_THREADS) as pool:
        list(pool.map(check, by_size[rank::ranks]))


def main(arguments: Sequence[str]) -> None:
    """Run `train verify`: check all files of a run's checkpoints. Raises IntegrityError if some are damaged."""
    description = "Check every file of a run's checkpoints against the checksum recorded when it was written."
    parser = command_parser("train verify", description, "  train verify RUN")
    parser.add_argument("run", type=Path, metavar="RUN", help="folder of the run")
    parser.add_argument("--step", type=whole_number, help="step of one checkpoint (default: all)")
    space = parser.parse_args(list(arguments))
    checkpoints = find_checkpoints(space.run, space.step)
    bad = 0
    for checkpoint in checkpoints:
        try:
            check_files(checkpoint, read_meta(checkpoint))
            print(f"{checkpoint}: good")
        except IntegrityError as error:
            if checkpoint.exists():  # else the run has just deleted it, as it does with old ones
                bad += 1
                print(f"{checkpoint}: {error}")
    if bad:
        raise IntegrityError(f"{bad} of {len(checkpoints)} checkpoints are damaged; delete those named above")
