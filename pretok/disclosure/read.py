"""Shards, a mix or a run -> which tokens of each source are read, and how often.

Enters: a manifest; for a mix its file; for a run the files it writes as JSON (`config.json`, `metrics.jsonl`,
`done.json`). Leaves: `Extent`. A source gives its sequences in a permuted order, epoch after epoch, so after k of its
n sequences each was read k // n times, and the first k mod n of the epoch in work once more: `Coverage` knows which.

A token is read where it is the input of a prediction: a sequence of L + 1 tokens reads its first L. What is left over
behind the last whole sequence of a source is never read.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import pretok.stream
from pretok.base.errors import IntegrityError, MismatchError, UsageError
from pretok.base.records import Signed, read_record
from pretok.base.storage import read_json, read_lines
from pretok.base.tokens import Ints
from pretok.report.history import read_run
from pretok.shards.manifest import Manifest
from pretok.stream import View

DATA = {"shards", "mix", "seed", "seq_len", "global_batch"}
"""Settings of a run that say what its steps read."""
BLOCK = 1 << 20
"""Sequences whose places are computed at once."""


@dataclass(frozen=True, slots=True)
class Coverage:
    """What is read of the flat tokens of a source. seq_len: of a sequence; whole: epochs that are complete; part: (n,)
    which of its n sequences were read once more."""

    seq_len: int
    whole: int
    part: npt.NDArray[np.bool_]

    def tokens(self, bounds: Ints) -> Ints:
        """How many tokens were read of each stretch between neighbours, repetitions counted.

        bounds: (stretches + 1,), not falling, places in the flat tokens. Returns (stretches,).
        """
        inside = np.minimum(bounds, len(self.part) * self.seq_len)
        first, last = int(inside[0]) // self.seq_len, int(inside[-1]) // self.seq_len
        part = np.append(self.part[first : last + 1], False)
        before = np.concatenate([[0], np.cumsum(part, dtype=np.int64)])
        sequence, offset = np.divmod(inside, self.seq_len)
        sequence -= first
        read = before[sequence] * self.seq_len + part[sequence] * offset + self.whole * inside
        tokens: Ints = np.diff(read)
        return tokens


@dataclass(frozen=True, slots=True)
class SourceReading:
    """sequences: read of the source, of `of` that it has; coverage None: every token once, in no sequences."""

    sequences: int | None = None
    of: int | None = None
    coverage: Coverage | None = None

    @property
    def epochs(self) -> float | None:
        """How often the source was read on average; None where no order reads it."""
        return self.sequences / self.of if self.sequences is not None and self.of else None


@dataclass(frozen=True, slots=True)
class RunRecord:
    """What a run says of itself. steps: finished ones, of `planned`; skipped: those among
    them whose update was refused; began, ended: when the first and the last step on
    record were, UTC; stream: fingerprint of the order it read; sizes: of the model."""

    folder: Path
    model: str
    sizes: dict[str, Any]
    steps: int
    planned: int
    finished: bool
    skipped: int
    began: str | None
    ended: str | None
    seq_len: int
    global_batch: int
    seed: int
    mix: str | None
    stream: str


@dataclass(frozen=True, slots=True)
class Extent:
    """scope: shards, mix or run; sequences: how many are read in all; sources: by name."""

    scope: str
    split: str
    sources: dict[str, SourceReading]
    mix: str | None = None
    sequences: int | None = None
    seq_len: int | None = None
    run: RunRecord | None = None


@dataclass(frozen=True, slots=True)
class _Resolved:
    """What is needed of what `train` solved and wrote into `config.json`."""

    model: dict[str, Any]
    global_batch: int
    seed: Signed
    stream: str
    steps: int


def read_shards(manifest: Manifest) -> Extent:
    """Every document of the training split once."""
    return Extent("shards", "train", {name: SourceReading() for name in manifest.sources})


def read_mix(manifest: Manifest, mix: Path) -> Extent:
    """All sequences of a mix. Raises MismatchError when it belongs to other shards."""
    view = pretok.stream.open(manifest.folder, mix)
    return _prefix("mix", view, len(view), None)


def read_steps(manifest: Manifest, folder: Path, mix: Path | None) -> Extent:
    """The sequences of all steps that are on record in a run's folder; mix: where its mix is now, None: where it was.

    Raises UsageError where nothing was trained, MismatchError when the run read another order or other shards.
    """
    run = load_run(folder)
    path = mix if mix is not None else Path(run.mix) if run.mix else None
    if path is not None and not path.exists():
        raise UsageError(f"{folder} read the mix {path}, which is not there; say where it is now: --mix MIX")
    if path is not None:
        view = pretok.stream.open(manifest.folder, path, seq_len=run.seq_len)
    else:
        view = pretok.stream.open(manifest.folder, seq_len=run.seq_len, seed=run.seed)
    if view.fingerprint != run.stream:
        raise MismatchError(
            f"{folder} read a stream with the fingerprint {run.stream}; {path or 'these shards without a mix'} of "
            f"{manifest.folder} is {view.fingerprint}: name the shards and the mix (--mix) of that run"
        )
    return _prefix("run", view, run.steps * run.global_batch, run)


def load_run(folder: Path) -> RunRecord:
    """What the files of a run say. Raises IntegrityError for a file that is damaged, UsageError where there is no run
    or not one finished step."""
    if not (folder / "config.json").exists():
        raise UsageError(f"{folder} holds no config.json: it is not the folder of a training run")
    config = read_json(folder / "config.json")
    if not isinstance(config, dict) or "resolved" not in config:
        raise IntegrityError(f"{folder / 'config.json'} was not written by train, or by an older version")
    known = {field.name for field in fields(_Resolved)}
    solved = {key: value for key, value in config["resolved"].items() if key in known}
    resolved = read_record(_Resolved, solved, folder / "config.json")
    run = read_run(folder)
    if not run.metrics:
        raise UsageError(f"{folder}: no step is finished yet")
    changes = read_lines(folder / "changes.jsonl")
    moved = any(line["position"] != line["step"] * resolved.global_batch for line in changes)
    if moved or any(DATA & line.get("changes", {}).keys() for line in changes):
        raise UsageError(
            f"{folder} changed its data or its global batch between two steps (see changes.jsonl there), so what its "
            "steps read is not known from its files alone; give a mix (--mix, without --run) instead"
        )
    last, seq_len = run.metrics[-1], int(resolved.model["seq_len"])
    steps = int(last["step"])
    if last["tokens"] != steps * resolved.global_batch * seq_len:
        raise IntegrityError(
            f"{folder / 'metrics.jsonl'}: {last['tokens']} tokens after step {steps}; steps of {resolved.global_batch} "
            f"sequences of {seq_len} tokens give {steps * resolved.global_batch * seq_len}"
        )
    return RunRecord(
        folder=folder,
        model=str(config["model"]),
        sizes=resolved.model,
        steps=steps,
        planned=resolved.steps,
        finished=run.done,
        skipped=int(last.get("skipped", 0)),
        began=run.metrics[0].get("time"),
        ended=last.get("time"),
        seq_len=seq_len,
        global_batch=resolved.global_batch,
        seed=resolved.seed,
        mix=config.get("mix"),
        stream=resolved.stream,
    )


def _prefix(scope: str, view: View, length: int, run: RunRecord | None) -> Extent:
    sources = {}
    for entry in view.mix.sources:
        taken = view.prefix_counts(length)[entry.name]
        whole, rest = divmod(taken, entry.sequences) if entry.sequences else (0, 0)
        part = np.zeros(entry.sequences, np.bool_)
        for low in range(taken - rest, taken, BLOCK):
            part[view.drawn(entry.name, low, min(low + BLOCK, taken))] = True
        sources[entry.name] = SourceReading(taken, entry.sequences, Coverage(view.seq_len, whole, part))
    return Extent(scope, view.mix.split, sources, view.fingerprint, length, view.seq_len, run)
