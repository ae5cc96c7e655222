"""trace: which positions and steps of a mix or a run read a document, and which documents a position reads.

Input: a mix.json or the folder of a run, and a document of its shards, or a position. Output: `Reading`s.
Both directions are arithmetic (`stream.order`): a document is a range of its source's tokens, a range falls into
sequences, a sequence stands at one position of each epoch. Nothing is replayed, whatever the length of the run. A run
that changed its data or its batch between two steps is traced segment by segment.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

import pretok.stream
from pretok.audit.documents import find_shard
from pretok.base.errors import UsageError
from pretok.base.records import Count, Record, read_record, replace
from pretok.base.storage import read_json
from pretok.shards.documents import documents_at
from pretok.shards.manifest import Manifest, Shard, load_manifest
from pretok.stream import View
from pretok.stream.audit import entries_of, of_class, pieces, positions
from pretok.stream.segments import RunSegment, open_segments, read_segments, read_settings


@dataclass(frozen=True, slots=True)
class Traced:
    """A mix over its shards, or one segment of a run, whose steps read a mix from position `first` on.

    global_batch: sequences per step, 0 without a run; steps: steps that the whole run has done; before, last: steps of
    the run before the segment and up to its end, `last` is None without a run; removals: removals that the shards had
    seen before the segment read them, None: all.
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
        end = len(self.view) if self.last is None else self.position_after(self.last)
        return range(self.first, min(end, len(self.view)))

    def position_after(self, step: int) -> int:
        """The first position that is not read after `step` steps of the run."""
        return self.first + (step - self.before) * self.global_batch

    def step_of(self, position: int) -> int | None:
        """The step that reads a position; steps count from 1."""
        return self.before + (position - self.first) // self.global_batch + 1 if self.global_batch else None


@dataclass(frozen=True, slots=True)
class Reading:
    """A document, or a part of it, in a sequence that reads it.

    document: its number in its source and split, from 0; first, tokens: which of its tokens the sequence holds, from 0,
    and how many, where the last token of a sequence is only predicted; done: whether the run has done this step, None
    without a run; of_class: the class that reads it if the source is divided, where the rest has the source's name;
    removed: it was removed before, so that end-of-document tokens are read in its place.
    """

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
    file: str = ""
    line: int = 0
    removed: bool = False


def open_traced(target: Path, shards: Path | None) -> list[Traced]:
    """Open a mix.json, or a run as far as its newest checkpoint, segment by segment.

    shards: where the documents are; None: where the run read them, or next to the mix. Raises UsageError,
    IntegrityError; MismatchError if these do not belong together.
    """
    if target.is_dir():
        segments = read_segments(target)
        done = _steps_done(target, segments)
        # The order may continue after the last step of the run, which never reads that part.
        end = max(done, read_settings(target).resolved.steps)
        return open_run(segments, done, end, shards)
    if not target.exists():  # before a folder of shards is derived from it
        raise UsageError(f"{target} does not exist; name the folder of a run (train --out) or a mix.json")
    folder = shards or target.parent / "shards"
    return [Traced(pretok.stream.open(folder, target), _documents(folder))]


def open_run(segments: Sequence[RunSegment], done: int, end: int, shards: Path | None) -> list[Traced]:
    """Open each segment of a run whose last step is `end`, of which `done` are done. Raises as `open_traced` does."""
    opened = []
    ends = [*(segment.step for segment in segments[1:]), end]
    for segment, last in zip(segments, ends, strict=True):
        manifest = _documents(shards or Path(segment.shards))
        (view,) = open_segments((segment,), manifest)
        removals = segment.removals if segment.step < done else None
        opened.append(
            Traced(view, manifest, segment.global_batch, done, segment.step, segment.position, last, removals)
        )
    return opened


def _documents(folder: Path) -> Manifest:
    """Load shards that hold whole documents."""
    manifest = load_manifest(folder)
    if manifest.materialized is not None:
        raise UsageError(f"{folder} holds a mix in its order; name the shards it was made of with --shards")
    return manifest


class _Progress(Record, frozen=True, forbid_unknown_fields=False):
    position: Count


class _Meta(Record, frozen=True, forbid_unknown_fields=False):
    """The needed fields of the meta.json of a checkpoint."""

    step: Count
    progress: _Progress


def _steps_done(run: Path, segments: Sequence[RunSegment]) -> int:
    """Return the step of the newest checkpoint: a resumed run repeats the steps after it.

    Raises UsageError if its position is not the one that the segments give.
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


def readings(traced: Traced, source: str, split: str, document: int) -> list[Reading]:
    """Return every reading of a document, in the order of the stream; none if the mix leaves its source or split out,
    its tokens lie after the last whole sequence, or the segment does not get to them."""
    view = traced.view
    shard, number = find_shard(traced.manifest, source, split, document)
    if split != view.mix.split:
        return []
    begins, ends = (int(offset) for offset in _offsets(shard)[number : number + 2])
    shards = traced.manifest.of(source, split)
    base = sum(one.tokens for one in shards[: shards.index(shard)])
    read = [
        reading
        for entry in entries_of(view, source)  # the source, or those of its classes that have the document
        for position in positions(view, entry, base + begins, base + ends)[:, 0].tolist()
        if position in traced.positions
        for reading in passages(traced, position)
        if (reading.source, reading.document) == (source, document)
    ]
    return sorted(read, key=lambda reading: reading.position)


def passages(traced: Traced, position: int) -> Iterator[Reading]:
    """Yield the documents that a position reads, in the order of their tokens, without their origin."""
    view = traced.view
    if not 0 <= position < len(view):
        raise UsageError(f"there is no position {position}; the stream has positions 0 to {len(view) - 1}")
    entry, epoch, sequence = view.origin(position)
    step = traced.step_of(position)
    done, named = None if step is None else step <= traced.steps, of_class(view, entry)
    numbered = {shard.bin_path: (shard, before) for shard, before in traced.manifest.numbered}
    for path, start, tokens in pieces(view, position):
        shard, before = numbered[path]
        offsets, end = _offsets(shard), start + tokens
        first, last = np.searchsorted(offsets, [start, end], side="right")
        for row in range(int(first) - 1, int(min(last, shard.documents))):
            begins = int(offsets[row])
            low, high = max(start, begins), min(end, int(offsets[row + 1]))
            if low < high:
                part = before + row, low - begins, high - low
                yield Reading(position, step, done, epoch, sequence, shard.source, *part, named)


def with_origins(traced: Traced, readings: Sequence[Reading]) -> list[Reading]:
    """Fill in where the documents came from, and whether they were removed before they were read."""
    manifest, split = traced.manifest, traced.view.mix.split
    of_shard: defaultdict[str, dict[int, tuple[str, int]]] = defaultdict(dict)
    for source, document in {(one.source, one.document) for one in readings}:
        shard, row = find_shard(manifest, source, split, document)
        of_shard[shard.path][row] = source, document
    removals = len(manifest.removals) if traced.removals is None else traced.removals
    origins = {}
    for shard in manifest.shards:
        wanted = sorted(of_shard[shard.path].items())
        rows = documents_at(manifest, shard, [row for row, _ in wanted]) if wanted else []
        for (_, place), known in zip(wanted, rows, strict=True):
            removed = manifest.removal_number(known.get("removed")) < removals
            origins[place] = {"file": known["file"], "line": known["position"], "removed": removed}
    return [replace(one, **origins[one.source, one.document]) for one in readings]


def reading_at(segments: Sequence[Traced], position: int) -> list[Traced]:
    """Return the segments that read a position of their stream. Raises UsageError if none does."""
    reading = [traced for traced in segments if position in traced.positions]
    if not reading:
        who = "the run reads" if segments[-1].global_batch else "the stream has"
        raise UsageError(f"there is no position {position}; {who} {segments[-1].positions.stop}, from 0")
    return reading


def positions_of_step(segments: Sequence[Traced], step: int) -> tuple[Traced, range]:
    """Return the segment of a step of the run, and the positions that the step reads."""
    last = segments[-1]
    if not last.global_batch:
        raise UsageError("a mix has positions and no steps: give --position, or the folder of a run")
    steps = last.before + len(last.positions) // last.global_batch
    if not 1 <= step <= steps:
        raise UsageError(f"there is no step {step}; the run has {steps}, from 1")
    segment = next(segment for segment in reversed(segments) if segment.before < step)
    return segment, range(segment.position_after(step - 1), segment.position_after(step))


def _offsets(shard: Shard) -> Any:
    """Return where each document of a shard starts in its tokens: (documents + 1,) int64. Raises IntegrityError."""
    # Without `kinds`: the cache needs a hash, which a dictionary does not have.
    return _read_offsets(replace(shard, kinds=None))


@lru_cache(maxsize=4)
def _read_offsets(shard: Shard) -> Any:
    return shard.open().offsets
