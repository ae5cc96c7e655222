"""Shards, a mix or a run -> which tokens of each source are read, and how often.

Input: a manifest; for a mix its file; for a run the files it writes as JSON (`config.json`, `segments.jsonl`,
`metrics.jsonl`, `done.json`). Output: `Extent`. A source gives its sequences in a permuted order, epoch after epoch, so
after k of its n sequences each was read k // n times, and the first k mod n of the epoch in work once more: `Coverage`
knows which. A run that changed its data or its batch has one for each segment, which add up.

A token is read where it is the input of a prediction: a sequence of L + 1 tokens reads its first L. What is left over
before the first and behind the last whole sequence of an epoch is not read in it.
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
from pretok.base.history import read_run
from pretok.base.records import replace
from pretok.base.tokens import Ints
from pretok.shards.manifest import Manifest
from pretok.stream import View
from pretok.stream.audit import drawn, number_of, runs
from pretok.stream.mix_file import MixSource
from pretok.stream.segments import RunSegment, open_segments, read_segments, read_settings
from pretok.stream.tapes import Runs

BLOCK = 1 << 20
"""Sequences whose places are computed at once."""
Span = tuple[View, int, int, int]
"""A stream, its first position that is read, one past the last, and how often documents had been removed by then."""


@dataclass(frozen=True, slots=True)
class Coverage:
    """What is read of the tokens of a source, or of one of its classes, in parts of epochs that are cut alike.

    cut: at which token they begin; seq_len: of a sequence; whole: epochs that are complete; part: (n,) how often each
    of the n sequences was read besides: not at all, once, or twice where the reading neither begins nor ends with an
    epoch; runs: of a class, where it has tokens of the source; removals: how often documents had been removed by then.
    """

    cut: int
    seq_len: int
    whole: int
    part: npt.NDArray[np.uint8]
    runs: Callable[[int, int], Runs] | None = None
    removals: int = 0

    def tokens(self, bounds: Ints) -> Ints:
        """How many tokens were read of each stretch between neighbours, repetitions counted.

        bounds: (stretches + 1,), not falling, places in the flat tokens. Returns (stretches,).
        """
        if self.runs is not None:  # where they are in what the class has
            start, address, length = self.runs(int(bounds[0]), int(bounds[-1]))
            if not len(start):
                return np.zeros(len(bounds) - 1, np.int64)
            run = np.maximum(np.searchsorted(address, bounds, side="right") - 1, 0)
            bounds = start[run] + np.clip(bounds - address[run], 0, length[run])
        inside = np.clip(bounds - self.cut, 0, len(self.part) * self.seq_len)
        first, last = int(inside[0]) // self.seq_len, int(inside[-1]) // self.seq_len
        part = np.append(self.part[first : last + 1], np.uint8(0)).astype(np.int64)
        before = np.concatenate([[0], np.cumsum(part, dtype=np.int64)])
        sequence, offset = np.divmod(inside, self.seq_len)
        sequence -= first
        read = before[sequence] * self.seq_len + part[sequence] * offset + self.whole * inside
        tokens: Ints = np.diff(read)
        return tokens


@dataclass(frozen=True, slots=True)
class PackedCoverage:
    """What is read of a packed source. whole: epochs that are complete; part: (n,) how often each of its sequences was
    read besides; length: of a sequence; runs, removals: as of `Coverage`."""

    whole: int
    part: npt.NDArray[np.uint16]
    length: int
    runs: Callable[[int, int], Runs]
    removals: int = 0

    def tokens(self, bounds: Ints) -> Ints:
        """As of `Coverage`. A packed sequence reads all its tokens: its last one is of no other."""
        start, address, length = self.runs(int(bounds[0]), int(bounds[-1]))
        address, bounds = address - bounds[0], bounds - bounds[0]
        times = np.full(len(start), self.whole)
        if len(self.part):
            times += self.part[start // self.length]
        read = np.zeros(len(bounds), np.int64)
        for sign, edges in ((1, address), (-1, address + length)):
            # Of a run, as often as it was read: bound - start, less bound - end behind it.
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
    """sequences: read of the source, of `of` that it has, None where these had several lengths; epochs: how often it
    was read on average, None where no order reads it; coverage: of each segment, None: every token once, in no
    sequences.
    """

    sequences: int | None = None
    of: int | None = None
    epochs: float | None = None
    coverage: tuple[Coverage | PackedCoverage, ...] | None = None

    def tokens(self, bounds: Ints, removed: Ints | None = None) -> Ints:
        """As of `Coverage`, of all of them. removed (n,): by which of the removals each stretch went; what was read of
        it since is not of it."""
        if self.coverage is None:
            return np.diff(bounds)
        found = np.zeros(len(bounds) - 1, np.int64)
        for one in self.coverage:
            read = one.tokens(bounds)
            found += read if removed is None else np.where(removed >= one.removals, read, 0)
        return found


@dataclass(frozen=True, slots=True)
class RunRecord:
    """What a run says of itself. steps: finished ones, of `planned`; skipped: those among
    them whose update was refused; began, ended: when the first and the last step on
    record were, UTC; segments: what its steps read; sizes: of the model."""

    folder: Path
    model: str
    sizes: dict[str, Any]
    steps: int
    planned: int
    finished: bool
    skipped: int
    began: str | None
    ended: str | None
    segments: tuple[RunSegment, ...]


@dataclass(frozen=True, slots=True)
class Extent:
    """scope: shards, mix or run; sequences: how many are read in all; sources: by name; mix: fingerprints of the orders
    read; seq_len: None where there were several."""

    scope: str
    split: str
    sources: dict[str, SourceReading]
    mix: str | None = None
    sequences: int | None = None
    seq_len: int | None = None
    run: RunRecord | None = None


def read_shards(manifest: Manifest) -> Extent:
    """Every document of the training split once."""
    return Extent("shards", "train", {name: SourceReading() for name in manifest.sources})


def read_mix(manifest: Manifest, mix: Path) -> Extent:
    """All sequences of a mix. Raises MismatchError when it belongs to other shards."""
    view = pretok.stream.open(manifest.folder, mix)
    return _extent("mix", [(view, 0, len(view), view.removals)], None)


def read_steps(manifest: Manifest, folder: Path, mix: Path | None, done: int = 0) -> Extent:
    """The sequences of all steps that are on record in a run's folder, or of those after the first `done`; mix: where
    its last mix is now, None: where it was, or what the run recorded of it.

    Raises UsageError where nothing was trained, MismatchError when the run read another order or other shards.
    """
    run = load_run(folder)
    spans = []
    segments = tuple(segment for segment in run.segments if segment.step < run.steps)
    ends = [*(segment.step for segment in segments[1:]), run.steps]
    for segment, view, end in zip(segments, open_segments(segments, manifest, mix), ends, strict=True):
        if done < end:
            first = segment.position_after(max(done, segment.step))
            spans.append((view, first, segment.position_after(end), segment.removals))
    return _extent("run", spans, run)


def load_run(folder: Path) -> RunRecord:
    """What the files of a run say. Raises IntegrityError for a file that is damaged, UsageError where there is no run
    or not one finished step, or where it is not known what it read."""
    settings, segments = read_settings(folder), read_segments(folder)
    run = read_run(folder)
    if not run.metrics:
        raise UsageError(f"{folder}: no step is finished yet")
    last = run.metrics[-1]
    steps = int(last["step"])
    segment = next(segment for segment in reversed(segments) if segment.step < steps)
    if last["tokens"] != segment.tokens_after(steps):
        raise IntegrityError(
            f"{folder / 'metrics.jsonl'}: {last['tokens']} tokens after step {steps}; by what the run recorded of its "
            f"steps it is {segment.tokens_after(steps)}"
        )
    return RunRecord(
        folder=folder,
        model=settings.model,
        sizes=settings.resolved.model,
        steps=steps,
        planned=settings.resolved.steps,
        finished=run.done,
        skipped=int(last.get("skipped", 0)),
        began=run.metrics[0].get("time"),
        ended=last.get("time"),
        segments=segments,
    )


def _extent(scope: str, spans: list[Span], run: RunRecord | None) -> Extent:
    """What is read of some spans."""
    views = [view for view, *_ in spans]
    names = dict.fromkeys(entry.held_in for view in views for entry in view.mix.sources)
    splits, lengths = ({getattr(view.mix, name) for view in views} for name in ("split", "seq_len"))
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


def _reading(name: str, spans: list[Span]) -> SourceReading:
    """What is read of one source, all its classes together."""
    coverage: list[Coverage | PackedCoverage] = []
    sizes, epochs, taken = set(), 0.0, 0
    for view, first, end, removals in spans:
        entries = [entry for entry in view.mix.sources if entry.held_in == name]
        size = sum(entry.sequences for entry in entries)
        counts = [view.prefix_counts(length) for length in (first, end)]
        for entry in entries:
            low, high = (count[entry.name] for count in counts)
            parts = (_packed_coverage if entry.packed else _coverage)(view, entry, low, high)
            coverage += [replace(part, removals=removals) for part in parts]
            taken, epochs = taken + high - low, epochs + ((high - low) / size if size else 0)
        if entries:
            sizes.add(size)
    of = min(sizes) if len(sizes) == 1 else None
    return SourceReading(taken, of, None if sizes == {0} else epochs, tuple(coverage))


def _packed_coverage(view: View, entry: MixSource, low: int, high: int) -> list[PackedCoverage]:
    """As `_coverage`, of what is packed."""
    whole, part = 0, np.zeros(0, np.uint16)
    for _, start, end in _epochs(entry, low, high):
        if end - start == entry.sequences:
            whole += 1
            continue
        part = part if len(part) else np.zeros(entry.sequences, np.uint16)
        for at in range(start, end, BLOCK):
            part[drawn(view, entry.name, at, min(at + BLOCK, end))] += 1
    return [PackedCoverage(whole, part, view.seq_len + 1, partial(runs, view, entry.name))]


def _epochs(entry: MixSource, low: int, high: int) -> Iterator[tuple[int, int, int]]:
    """(epoch, from which draw, to which) of each epoch of which an entry gives some as its `low`-th to `high - 1`-th
    sequences."""
    size = entry.sequences
    for epoch in range(low // size, (high - 1) // size + 1) if low < high else ():
        yield epoch, max(low, epoch * size), min(high, (epoch + 1) * size)


def _coverage(view: View, entry: MixSource, low: int, high: int) -> list[Coverage]:
    """What of an entry its `low`-th to `high - 1`-th sequences are; by where epochs are cut."""
    number, size = number_of(view, entry.name), entry.sequences
    held = partial(runs, view, entry.name) if entry.tape else None
    found: dict[int, Coverage] = {}
    for epoch, start, end in _epochs(entry, low, high):
        cut = view.order.cut(number, epoch) + (0 if entry.tape else entry.begin)
        one = found.get(cut) or Coverage(cut, view.seq_len, 0, np.broadcast_to(np.uint8(0), size), held)
        if end - start == size:
            found[cut] = replace(one, whole=one.whole + 1)
            continue
        part = one.part.copy()
        for at in range(start, end, BLOCK):
            part[drawn(view, entry.name, at, min(at + BLOCK, end))] += 1
        found[cut] = replace(one, part=part)
    return list(found.values())
