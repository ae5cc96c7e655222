"""trace: which positions and steps of a mix or a run read a document, and which documents a position reads.

Input: a mix.json or the folder of a run, and a document of its shards, or a position. Output: `Reading`s.
Both directions are arithmetic (`stream.order`): a document is a range of its source's tokens, a range falls into
sequences, a sequence stands at one position of each epoch. Nothing is replayed, whatever the length of the run. A run
that changed its data or its batch between two steps is traced segment by segment.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import numpy as np

import pretok.stream
from pretok.audit.documents import find_shard, origin
from pretok.base.errors import UsageError
from pretok.base.records import Count, Record, read_record, replace
from pretok.base.storage import read_json
from pretok.shards.manifest import Manifest, Shard, load_manifest
from pretok.stream import View
from pretok.stream.audit import entries_of, of_class, pieces, positions
from pretok.stream.segments import RunSegment, open_segments, read_segments, read_settings


@dataclass(frozen=True, slots=True)
class Traced:
    """An order of sequences over shards: of a mix, or of one segment of a run, whose steps read it from `first` on.

    global_batch: sequences of a step, 0 where no run is known; before: steps of the run before the segment; last: steps
    at its end, None where no run is known; steps: how many the run has done, as far as its
    checkpoints say; removals: how often documents had been removed before it read, None: as often as until now.
    """

    view: View
    manifest: Manifest
    global_batch: int = 0
    steps: int = 0
    before: int = 0
    first: int = 0
    last: int | None = None
    removals: int | None = None

    @property
    def positions(self) -> range:
        """The positions that are read."""
        if not self.global_batch or self.last is None:
            return range(self.first, len(self.view))
        end = self.first + (self.last - self.before) * self.global_batch
        return range(self.first, min(end, len(self.view)))

    def step_of(self, position: int) -> int | None:
        """The step that reads a position; steps count from 1."""
        return self.before + (position - self.first) // self.global_batch + 1 if self.global_batch else None


@dataclass(frozen=True, slots=True)
class Reading:
    """A document, or a part of it, in a sequence that reads it. document: its number in the source's split, from 0;
    first, tokens: which of its tokens the sequence holds, from 0, and how many; the last token of a sequence is only
    predicted. done: whether the run has come so far; None without a run. of_class: the class that reads it, where the
    source has classes; its rest is called by the source's name."""

    position: int
    step: int | None
    done: bool | None
    epoch: int
    sequence: int
    source: str
    document: int
    first: int
    tokens: int
    of_class: str | None


@dataclass(frozen=True, slots=True)
class TraceRow(Reading):
    """A reading for a person: with the input that the document came from; removed: the document was removed before, and
    end-of-document tokens are read in its place."""

    file: str
    line: int
    removed: bool


def open_traced(target: Path, shards: Path | None) -> list[Traced]:
    """A mix.json, or the folder of a run, segment by segment; `shards`: where the documents are, if not where the run
    read them or beside the mix. Raises UsageError, IntegrityError; MismatchError where these do not belong together."""
    if target.is_dir():
        return _open_run(target, shards)
    if not target.exists():  # before a folder of shards follows from it
        raise UsageError(f"{target} does not exist; name the folder of a run (train --out) or a mix.json")
    folder = shards or target.parent / "shards"
    return [Traced(pretok.stream.open(folder, target), _documents(folder))]


def _open_run(run: Path, shards: Path | None) -> list[Traced]:
    segments = read_segments(run)
    done = _steps_done(run, segments)
    # The order may go on behind the last step of the run, which never reads that.
    ends = [*(segment.step for segment in segments[1:]), max(done, read_settings(run).resolved.steps)]
    found = []
    for segment, end in zip(segments, ends, strict=True):
        manifest = _documents(shards or Path(segment.shards))
        (view,) = open_segments((segment,), manifest)
        removals = segment.removals if segment.step < done else None
        found.append(
            Traced(view, manifest, segment.global_batch, done, segment.step, segment.position, end, removals)
        )
    return found


def _documents(folder: Path) -> Manifest:
    """The shards that hold whole documents."""
    manifest = load_manifest(folder)
    if manifest.materialized is not None:
        raise UsageError(f"{folder} holds a mix in its order; name the shards it was made of with --shards")
    return manifest


class _Progress(Record, frozen=True, forbid_unknown_fields=False):
    position: Count


class _Meta(Record, frozen=True, forbid_unknown_fields=False):
    """What is needed of the meta.json of a checkpoint."""

    step: Count
    progress: _Progress


def _steps_done(run: Path, segments: Sequence[RunSegment]) -> int:
    """The steps of the newest checkpoint: what was done after it does not count, a resumed run does it again.

    UsageError where its position is not the one that the segments give.
    """
    names = sorted(path.name for path in (run / "checkpoints").glob("step-*") if path.name[5:].isdigit())
    if not names:
        return 0
    path = run / "checkpoints" / names[-1] / "meta.json"
    meta = read_record(_Meta, read_json(path), path)
    step, position = meta.step, meta.progress.position
    segment = next(segment for segment in reversed(segments) if segment.step < step or segment.step == 0)
    if segment.position_after(step) != position:
        raise UsageError(
            f"{run} changed its data or its global batch between two steps: its checkpoint of step {step} has read up "
            f"to position {position}, by its record it is {segment.position_after(step)}; give a mix instead"
        )
    return step


def readings(traced: Traced, name: str, split: str, document: int) -> list[Reading]:
    """Every sequence that reads a document, which has this number in a source's split, in the order of the stream; none
    where the mix leaves its source or split out, its tokens lie after the last whole sequence, or the segment does not
    get to them."""
    view = traced.view
    shard, number = find_shard(traced.manifest, name, split, document)
    if split != view.mix.split:
        return []
    begins, ends = (int(offset) for offset in _offsets(shard)[number : number + 2])
    shards = traced.manifest.of(name, split)
    base = sum(one.tokens for one in shards[: shards.index(shard)])
    found = [
        reading
        for entry in entries_of(view, name)  # the source, or those of its classes that have the document
        for position in positions(view, entry, base + begins, base + ends)[:, 0].tolist()
        if position in traced.positions
        for reading in passages(traced, position)
        if (reading.source, reading.document) == (name, document)
    ]
    return sorted(found, key=lambda reading: reading.position)


def passages(traced: Traced, position: int) -> Iterator[Reading]:
    """The documents that a position reads, in the order of their tokens."""
    view = traced.view
    if not 0 <= position < len(view):
        raise UsageError(f"there is no position {position}; the stream has {len(view)}, from 0")
    entry, epoch, sequence = view.origin(position)
    step = traced.step_of(position)
    done, named = None if step is None else step <= traced.steps, of_class(view, entry)
    numbered = {shard.bin_path: (shard, before) for shard, before in traced.manifest.numbered}
    for path, start, tokens in pieces(view, position):
        shard, before = numbered[path]
        offsets, end = _offsets(shard), start + tokens
        row = int(np.searchsorted(offsets, start, side="right")) - 1
        while row < shard.documents and offsets[row] < end:
            begins = int(offsets[row])
            first, last = max(start, begins), min(end, int(offsets[row + 1]))
            if last > first:
                part = before + row, first - begins, last - first
                yield Reading(position, step, done, epoch, sequence, shard.source, *part, named)
            row += 1


def trace_rows(traced: Traced, found: Iterable[Reading]) -> list[TraceRow]:
    """Readings with where their documents came from."""
    rows, split = [], traced.view.mix.split

    @cache
    def told(source: str, document: int) -> dict[str, Any]:
        file, line, kept = origin(traced.manifest, *find_shard(traced.manifest, source, split, document))
        return {"file": file, "line": line, "removed": _was_removed(traced, kept)}

    for reading in found:
        rows.append(TraceRow(**asdict(reading), **told(reading.source, reading.document)))
    return rows


def _was_removed(traced: Traced, kept: dict[str, Any]) -> bool:
    """Whether a document had been removed when it was read. kept: what its ledger keeps."""
    number = traced.manifest.removal_number(kept.get("removed"))
    seen = len(traced.manifest.removals) if traced.removals is None else traced.removals
    return number < seen


def reading_at(segments: Sequence[Traced], position: int) -> list[Traced]:
    """The segments that read a position of their stream. UsageError where none does."""
    found = [traced for traced in segments if position in traced.positions]
    if not found:
        who = "the run reads" if segments[-1].global_batch else "the stream has"
        raise UsageError(f"there is no position {position}; {who} {segments[-1].positions.stop}, from 0")
    return found


def positions_of_step(segments: Sequence[Traced], step: int) -> tuple[Traced, range]:
    """The segment of a step of the run, and the positions that it reads."""
    last = segments[-1]
    if not last.global_batch:
        raise UsageError("a mix has positions and no steps: give --position, or the folder of a run")
    steps = last.before + len(last.positions) // last.global_batch
    if not 1 <= step <= steps:
        raise UsageError(f"there is no step {step}; the run has {steps}, from 1")
    segment = next(segment for segment in reversed(segments) if segment.before < step)
    first = segment.first + (step - 1 - segment.before) * segment.global_batch
    return segment, range(first, first + segment.global_batch)


def _offsets(shard: Shard) -> Any:
    """(documents + 1,) int64, where each document of a shard starts in its tokens. IntegrityError."""
    return _read_offsets(replace(shard, kinds=None))  # a dictionary has no hash


@lru_cache(maxsize=4)
def _read_offsets(shard: Shard) -> Any:
    return shard.open().offsets
