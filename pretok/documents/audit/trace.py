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
from pretok.base.errors import UsageError
from pretok.base.records import Count, Record, read_record, replace
from pretok.base.storage import read_json
from pretok.documents.audit.find import find_in
from pretok.documents.audit.inspection import find_shard
from pretok.shards.document_table import chosen_shards, documents_at
from pretok.shards.manifest import Manifest, Shard, load_manifest
from pretok.stream import View
from pretok.stream.audit import entries_of, of_class, pieces, positions
from pretok.stream.segments import RunSegment, open_segments, read_segments, read_settings

MOST = 100
"""Most documents that are traced if several have the name."""


@dataclass(frozen=True, slots=True)
class Traced:
    """A mix over its shards, or one segment of a run."""

    view: View
    manifest: Manifest
    segment: RunSegment | None = None
    """None for a mix."""
    steps: int = 0
    """Steps that the whole run has done."""
    last: int = 0
    """The last step of the segment."""

    @property
    def positions(self) -> range:
        """The positions that are read."""
        if self.segment is None:
            return range(len(self.view))
        return range(self.segment.position, min(self.segment.position_after(self.last), len(self.view)))

    @property
    def removals(self) -> int:
        """How many removals the shards had seen when these positions were read."""
        read = self.segment is not None and self.segment.step < self.steps
        return self.segment.removals if self.segment and read else len(self.manifest.removals)

    def step_of(self, position: int) -> int | None:
        """Return the step that reads a position; steps count from 1."""
        if (segment := self.segment) is None:
            return None
        return segment.step + (position - segment.position) // segment.global_batch + 1


@dataclass(frozen=True, slots=True)
class Reading:
    """A document, or a part of it, in a sequence that reads it."""

    position: int
    step: int | None
    done: bool | None
    """Whether the run has done this step, None without a run."""
    epoch: int
    sequence: int
    source: str
    document: int
    """Its number in its source and split, from 0."""
    first: int
    """The first of its tokens that the sequence holds, from 0."""
    tokens: int
    """How many of its tokens the sequence holds; the last token of a sequence is only predicted."""
    of_class: str | None
    """The class that reads it if the source is divided, where the rest has the source's name."""
    file: str = ""
    line: int = 0
    id: str | None = None
    """The value of its kept column of this name."""
    removed: bool = False
    """It was removed before, so that end-of-document tokens are read in its place."""


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
        opened.append(Traced(view, manifest, segment, done, last))
    return opened


def _documents(folder: Path) -> Manifest:
    """Load shards that hold whole documents. Raises UsageError if they hold a mix."""
    manifest = load_manifest(folder)
    chosen_shards(manifest)
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
    """Return every reading of a document, in the order of the stream.

    There is none if the mix leaves its source or split out, its tokens lie after the last whole sequence, or the
    segment does not get to them.
    """
    view = traced.view
    shard, number = find_shard(traced.manifest, source, split, document)
    if split != view.mix.split:
        return []
    begins, ends = (int(offset) for offset in _offsets(shard)[number : number + 2])
    shards = traced.manifest.of(source, split)
    # Tokens of the source before this shard: tapes count them from the first shard on.
    base = sum(earlier.tokens for earlier in shards[: shards.index(shard)])
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
    for source, document in {(reading.source, reading.document) for reading in readings}:
        shard, row = find_shard(manifest, source, split, document)
        of_shard[shard.path][row] = source, document
    origins = {}
    for shard in manifest.shards:
        wanted = sorted(of_shard[shard.path].items())
        rows = documents_at(manifest, shard, [row for row, _ in wanted]) if wanted else []
        for (_, place), known in zip(wanted, rows, strict=True):
            removed = manifest.removal_number(known.get("removed")) < traced.removals
            name = None if known.get("id") is None else str(known["id"])
            origins[place] = {
                "file": known["file"],
                "line": known["position"],
                "id": name,
                "removed": removed,
            }
    return [replace(reading, **origins[reading.source, reading.document]) for reading in readings]


def read_of_name(segments: Sequence[Traced], name: str) -> list[tuple[Traced, Reading]]:
    """Return the readings of at most MOST documents of a name, each with its segment. Raises UsageError."""
    named = find_in([traced.manifest for traced in segments], name, MOST)
    return [
        (traced, reading)
        for traced, places in zip(segments, named, strict=True)
        for place in places
        for reading in readings(traced, *place)
    ]


def read_there(segments: Sequence[Traced], position: int | None, step: int) -> list[tuple[Traced, Reading]]:
    """Return what a position reads, or a step if there is none, each with its segment. Raises UsageError."""
    if position is not None:
        places = [(traced, position) for traced in reading_at(segments, position)]
    else:
        segment, positions = positions_of_step(segments, step)
        places = [(segment, at) for at in positions]
    return [(traced, reading) for traced, at in places for reading in passages(traced, at)]


def reading_at(segments: Sequence[Traced], position: int) -> list[Traced]:
    """Return the segments that read a position of their stream. Raises UsageError if none does."""
    reading = [traced for traced in segments if position in traced.positions]
    if not reading:
        who = "the run reads" if segments[-1].segment else "the stream has"
        raise UsageError(
            f"there is no position {position}; {who} positions 0 to {segments[-1].positions.stop - 1}"
        )
    return reading


def positions_of_step(segments: Sequence[Traced], step: int) -> tuple[Traced, range]:
    """Return the segment of a step of a run, and the positions that the step reads. Raises UsageError."""
    run = [(traced, traced.segment) for traced in segments if traced.segment is not None]
    if not run:
        raise UsageError("a mix has positions and no steps: give --position, or the folder of a run")
    traced, segment = run[-1]
    steps = segment.step + len(traced.positions) // segment.global_batch
    if not 1 <= step <= steps:
        raise UsageError(f"there is no step {step}; the run has steps 1 to {steps}")
    traced, segment = next(part for part in reversed(run) if part[1].step < step)
    return traced, range(segment.position_after(step - 1), segment.position_after(step))


def _offsets(shard: Shard) -> Any:
    """Return where each document of a shard starts in its tokens: (documents + 1,) int64. Raises IntegrityError."""
    # Without `kinds`: the cache needs a hash, which a dictionary does not have.
    return _read_offsets(replace(shard, kinds=None))


@lru_cache(maxsize=4)
def _read_offsets(shard: Shard) -> Any:
    return shard.open().offsets
