"""Inputs -> partitions: what one task reads, planned from sizes before any work.

Input: the probed inputs of one source. Output: a list of partitions, each of about one shard, that cover every byte,
row group or row of every input exactly once. The plan depends on the inputs and the shard size alone, never on workers,
so shard names and contents do not either.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import IO

from pretok.base.records import replace
from pretok.base.storage import tried
from pretok.read.files import InputFile, Stamp, open_input
from pretok.read.probe import Probe

TEXT_PER_TOKEN = 4.0
"""Bytes of text a token is assumed to cover: below what 50k vocabularies reach, so shards come out below target."""
MIN_SHARD, MAX_SHARD = 16 << 20, 1 << 30
"""Bounds in bytes of the automatic shard size."""
LINE_BLOCK = 1 << 16
"""Bytes read at a time to find where a line ends."""
SHARDS_WANTED = 64
"""A source smaller than this many full shards gets smaller ones, so that many workers share the work."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of one input. start, stop: bytes (jsonl), row groups (parquet) or record batches (arrow); None: the whole
    file; first: the number of its first row in a table that is cut."""

    file: InputFile
    start: int | None = None
    stop: int | None = None
    first: int | None = None

    @property
    def origin(self) -> tuple[int, int]:
        """(start, first): record n of the piece is record first + n, counted from `start` in the file. `start` is 0
        but for a later part of a JSON Lines file, whose lines nobody has counted before."""
        return (0, self.first or 0) if not self.start or self.first is not None else (self.start, 0)


@dataclass(frozen=True, slots=True)
class Partition:
    """What one task reads and in which order. `estimate`: expected bytes of text, for scheduling only; stamps: of the
    file of each piece, as this job found it."""

    source: str
    number: int
    pieces: tuple[Piece, ...]
    estimate: int
    stamps: tuple[Stamp, ...] = ()

    @property
    def name(self) -> str:
        """Name of the partition and of its first shard, such as `it-00007`."""
        return f"{self.source}-{self.number:05d}"


def stamped(partition: Partition, stamps: Mapping[str, Stamp]) -> Partition:
    """A partition that knows when its files had changed last. stamps: by path."""
    return replace(partition, stamps=tuple(stamps.get(piece.file.path) for piece in partition.pieces))


def shard_bytes(inputs: Sequence[Probe], itemsize: int) -> int:
    """Automatic shard size in bytes: 1 GiB, less for a source that would give fewer than 64 of them."""
    tokens = sum(probe.size for probe in inputs) / TEXT_PER_TOKEN
    return int(min(MAX_SHARD, max(MIN_SHARD, tokens * itemsize / SHARDS_WANTED)))


def plan(source: str, inputs: Sequence[Probe], target: int, itemsize: int, first: int = 0) -> list[Partition]:
    """Group and cut the inputs of one source into partitions of about `target` bytes of tokens, numbered from `first`.

    Small files share a partition in path order; JSON Lines and tables larger than a partition are cut; other
    large files stand alone and roll over into several shards when they are encoded.
    """
    limit = max(1, int(target / itemsize * TEXT_PER_TOKEN))
    partitions: list[Partition] = []
    group: list[Piece] = []
    weight = 0

    def close() -> None:
        nonlocal weight
        if group:
            partitions.append(Partition(source, first + len(partitions), tuple(group), weight))
            group.clear()
            weight = 0

    for probe in inputs:
        for piece, size in _cut(probe, limit):
            if weight and weight + size > limit:
                close()
            group.append(piece)
            weight += size
    close()
    return partitions


def _cut(probe: Probe, limit: int) -> list[tuple[Piece, int]]:
    """Pieces of a file no larger than `limit` bytes of text where its format allows, with their sizes."""
    file, size = probe.file, probe.size
    if size <= limit or file.compression:
        return [(Piece(file), size)]
    if file.format == "jsonl":
        try:
            borders = tried(lambda: line_starts(file, _even_steps(file.size, limit)))
        except OSError:  # no longer readable: its partition fails by name
            return [(Piece(file), size)]
        return [(Piece(file, a, b), b - a) for a, b in pairwise(borders)]
    if probe.parts:
        return _cut_row_groups(probe, limit)
    return [(Piece(file), size)]


def _even_steps(total: int, step: int) -> list[int]:
    """Borders 0..total of near-equal spans no longer than `step`."""
    count = max(1, -(-total // step))
    return [total * i // count for i in range(count + 1)]


def line_starts(file: InputFile, nominal: list[int]) -> list[int]:
    """Move each inner border forward to the start of a line; borders that meet become one."""
    with open_input(file.path) as stream:
        starts = [_first_line(stream, *span) for span in pairwise(nominal[1:])]
    return [0, *(start for start in starts if start), file.size]


def _first_line(stream: IO[bytes], at: int, end: int) -> int | None:
    """Where a line starts, from `at` to before `end`; None where none does, and the next border stands for this one."""
    for start in range(at - 1, end - 1, LINE_BLOCK):
        stream.seek(start)
        found = stream.read(min(LINE_BLOCK, end - 1 - start)).find(b"\n")
        if found >= 0:
            return start + found + 1
    return None


def _cut_row_groups(probe: Probe, limit: int) -> list[tuple[Piece, int]]:
    pieces: list[tuple[Piece, int]] = []
    start = first = row = weight = 0
    for i, (size, rows) in enumerate(zip(probe.parts, probe.rows, strict=True)):
        if weight and weight + size > limit:
            pieces.append((Piece(probe.file, start, i, first), weight))
            start, first, weight = i, row, 0
        weight += size
        row += rows
    pieces.append((Piece(probe.file, start, len(probe.parts), first), weight))
    return pieces
