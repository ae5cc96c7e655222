"""Shards, a mix or a run -> which tokens of each source are read, and how often.

Input: a manifest; for a mix its file; for a run the files it writes as JSON (`config.json`, `segments.jsonl`,
`metrics.jsonl`, `done.json`). Output: `Extent`. An entry of a mix gives its sequences in a permuted order, epoch after
epoch, so after k of its n sequences each was read k // n times, and the first k mod n of the epoch in work once more:
`Coverage` knows which. A run that changed its data or its batch has one for each segment, which add up.

A token is read where it is the input of a prediction: a sequence of L + 1 tokens reads its first L, a packed one all.
What is left over before the first and behind the last whole sequence of an epoch is not read in it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import pretok.stream
from pretok.base.errors import IntegrityError, UsageError
from pretok.base.records import replace
from pretok.base.tokens import Ints
from pretok.documents.audit.trace import open_run
from pretok.overview.history import read_run
from pretok.shards.manifest import Manifest
from pretok.stream import View
from pretok.stream.audit import drawn, number_of, runs
from pretok.stream.flat_tokens import ranges
from pretok.stream.mix_file import MixSource
from pretok.stream.segments import RunSegment, read_segments, read_settings
from pretok.stream.tapes import TapeRanges

BLOCK = 1 << 20
"""Sequences whose places are computed at once."""
ReadRange = tuple[View, int, int, int]
"""A stream, its first position that is read, one past the last, and how often documents had been removed by then."""


@dataclass(frozen=True, slots=True)
class Coverage:
    """What is read of an entry's tape, in epochs that are cut at the same place."""

    cut: int
    """Token of the tape at which the first sequence begins."""
    stride: int
    """Tokens of the tape that a sequence reads."""
    whole: int
    """Complete epochs."""
    part: npt.NDArray[np.uint16]
    """(n,): how often each of the n sequences was read in addition."""
    runs: Callable[[int, int], TapeRanges]
    """Where the tape has some tokens of the source."""
    removals: int = 0
    """Removals that the shards had seen by then."""

    def tokens(self, bounds: Ints) -> Ints:
        """Count the tokens read of each stretch between neighbouring bounds, with repetitions.

        bounds: (stretches + 1,), not falling, places in the flat tokens of the source. Returns (stretches,).
        """
        start, address, length = self.runs(int(bounds[0]), int(bounds[-1]))
        # Runs are cut where sequences end: each piece was read as often as its sequence.
        first = np.maximum(start - self.cut, 0) // self.stride
        end = np.minimum(-(-(start + length - self.cut) // self.stride), len(self.part))
        row, sequence = ranges(first, np.maximum(first, end))
        begin = self.cut + sequence * self.stride
        low = np.maximum(start[row], begin)
        high = np.minimum((start + length)[row], begin + self.stride)
        times = self.whole + self.part[sequence].astype(np.int64)
        shift = address[row] - start[row] - bounds[0]
        bounds, read = bounds - bounds[0], np.zeros(len(bounds), np.int64)
        for sign, edges in ((1, low + shift), (-1, high + shift)):
            # Tokens read before a bound: times * (bound - low) of all pieces that begin before it, less
            # times * (bound - high) of those that end before it.
            order = np.argsort(edges)
            reached = np.searchsorted(edges[order], bounds)
            count, before = (
                np.concatenate([[0], np.cumsum(numbers[order])])[reached]
                for numbers in (times, times * edges)
            )
            read += sign * (count * bounds - before)
        return np.diff(read)


@dataclass(frozen=True, slots=True)
class SourceReading:
    """The extent that is read of a source."""

    sequences: int | None = None
    of: int | None = None
    """Sequences that it has, None if these had several lengths."""
    epochs: float | None = None
    """How often it was read on average, None if no order reads it."""
    coverage: tuple[Coverage, ...] | None = None
    """Of each segment and entry, None: every token once, in no sequences."""

    def tokens(self, bounds: Ints, removed: Ints | None = None) -> Ints:
        """Do the same for all of its coverage.

        removed: (stretches,) the removal that took each stretch; later readings do not count.
        """
        if self.coverage is None:
            return np.diff(bounds)
        total = np.zeros(len(bounds) - 1, np.int64)
        for part in self.coverage:
            read = part.tokens(bounds)
            total += read if removed is None else np.where(removed >= part.removals, read, 0)
        return total


@dataclass(frozen=True, slots=True)
class Extent:
    """What a summary is about."""

    scope: str
    """`shards`, `mix` or `run`."""
    split: str
    sources: dict[str, SourceReading]
    mix: str | None = None
    """Fingerprints of the orders read."""
    sequences: int | None = None
    seq_len: int | None = None
    """None if there were several."""
    run: dict[str, Any] | None = None
    """What a run says of itself and its model."""


def read_shards(manifest: Manifest, split: str = "train") -> Extent:
    """Return every document of a split once."""
    return Extent("shards", split, {name: SourceReading() for name in manifest.sources})


def read_mix(manifest: Manifest, mix: Path) -> Extent:
    """Return all sequences of a mix. Raises MismatchError if it belongs to other shards."""
    view = pretok.stream.open(manifest.folder, mix)
    return _extent("mix", [(view, 0, len(view), view.removals)], None)


def read_steps(manifest: Manifest, folder: Path, done: int = 0) -> Extent:
    """Return the sequences of all logged steps of a run, or of those after the first `done`.

    Raises UsageError if nothing was trained, MismatchError if the run read another order or other shards.
    """
    run, segments = load_run(folder)
    steps = run["steps"]
    spans = [
        (part.view, segment.position_after(max(done, segment.step)), part.positions.stop, part.removals)
        for segment, part in zip(segments, open_run(segments, steps, steps, manifest.folder), strict=True)
        if done < part.last
    ]
    return _extent("run", spans, run)


def load_run(folder: Path) -> tuple[dict[str, Any], tuple[RunSegment, ...]]:
    """Return what the files of a run say about it, and the segments of its logged steps.

    Raises IntegrityError for a damaged file, UsageError if there is no run or no finished step, or if it is unknown
    what it read.
    """
    settings, segments = read_settings(folder), read_segments(folder)
    run = read_run(folder)
    if not run.metrics:
        raise UsageError(f"{folder}: no step is finished yet")
    last = run.metrics[-1]
    steps = int(last["step"])
    segments = tuple(segment for segment in segments if segment.step < steps)
    if last["tokens"] != segments[-1].tokens_after(steps):
        raise IntegrityError(
            f"{folder / 'metrics.jsonl'}: {last['tokens']} tokens after step {steps}; by what the run recorded of its "
            f"steps it is {segments[-1].tokens_after(steps)}"
        )
    about = {
        "size": settings.model,
        "sizes": settings.resolved.model,
        "steps": steps,
        "steps_planned": settings.resolved.steps,
        "steps_skipped": int(last.get("skipped", 0)),
        "finished": run.done,
        "trained_from": run.metrics[0].get("time"),
        "trained_to": last.get("time"),
        "energy": run.energy,
    }
    return about, segments


def _extent(scope: str, spans: list[ReadRange], run: dict[str, Any] | None) -> Extent:
    """Combine some spans."""
    views = [view for view, *_ in spans]
    names = dict.fromkeys(entry.held_in for view in views for entry in view.mix.sources)
    splits, lengths = ({getattr(view.mix, name) for view in views} for name in ("split", "seq_len"))
    # A source has other tokens in another split: their figures cannot be added.
    if len(splits) > 1:
        raise UsageError(f"the run read the splits {' and '.join(sorted(splits))}; a summary is of one")
    orders = dict.fromkeys(view.fingerprint for view in views)
    return Extent(
        scope,
        min(splits),
        {name: _reading(name, spans) for name in names},
        ", ".join(orders),
        sum(end - first for _, first, end, _ in spans),
        min(lengths) if len(lengths) == 1 else None,
        run,
    )


def _reading(name: str, spans: list[ReadRange]) -> SourceReading:
    """Return what is read of one source, all its classes together."""
    coverage: list[Coverage] = []
    sizes, epochs, taken = set(), 0.0, 0
    for view, first, end, removals in spans:
        entries = [entry for entry in view.mix.sources if entry.held_in == name]
        size = sum(entry.sequences for entry in entries)
        counts = [view.prefix_counts(length) for length in (first, end)]
        for entry in entries:
            low, high = (count[entry.name] for count in counts)
            coverage += [replace(part, removals=removals) for part in _coverage(view, entry, low, high)]
            taken, epochs = taken + high - low, epochs + ((high - low) / size if size else 0)
        if entries:
            sizes.add(size)
    of = min(sizes) if len(sizes) == 1 else None
    return SourceReading(taken, of, None if sizes == {0} else epochs, tuple(coverage))


def _coverage(view: View, entry: MixSource, low: int, high: int) -> Iterator[Coverage]:
    """Yield what the `low`-th to `high - 1`-th sequences of an entry cover, one item for each offset of the epochs."""
    number, size = number_of(view, entry.name), entry.sequences
    by_cut: dict[int, Coverage] = {}
    runs_between, stride = partial(runs, view, entry.name), int(view.tapes.strides[number])
    # Only a first and a last epoch can be read in part; for all others a count is enough.
    for epoch in range(low // size, (high - 1) // size + 1) if low < high else ():
        start, end = max(low, epoch * size), min(high, (epoch + 1) * size)
        cut = view.order.cut(number, epoch)
        coverage = by_cut.get(cut) or Coverage(
            cut, stride, 0, np.broadcast_to(np.uint16(0), size), runs_between
        )
        # `part` stays one zero that is shown n times (`broadcast_to`), unless an epoch is read in part.
        if end - start == size:
            by_cut[cut] = replace(coverage, whole=coverage.whole + 1)
            continue
        part = coverage.part.copy()
        for at in range(start, end, BLOCK):
            part[drawn(view, entry.name, at, min(at + BLOCK, end))] += 1
        by_cut[cut] = replace(coverage, part=part)
    yield from by_cut.values()
