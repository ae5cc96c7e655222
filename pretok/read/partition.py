"""Inputs -> partitions: what each task reads, planned from sizes before any work.

Input: the probed inputs of one source. Output: partitions of about one shard each, which cover every byte, row group or
row of every input exactly once. The plan depends only on the inputs and the shard size, not on the number of workers,
so names and contents of shards do not either.
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
"""Assumed bytes of text per token: fewer than with vocabularies of 50,000 entries, so shards stay below their
target."""
MIN_SHARD, MAX_SHARD = 16 << 20, 1 << 30
"""Bounds in bytes of the automatic shard size."""
LINE_BLOCK = 1 << 16
"""Bytes read at a time to find where a line ends."""
SHARDS_WANTED = 64
"""A source of fewer full shards than this gets smaller ones, so that many workers can share the work."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of one input. start, stop: bytes (jsonl), row groups (parquet) or record batches (arrow), None for the
    whole file; first: number of its first row, if a table is split."""

    file: InputFile
    start: int | None = None
    stop: int | None = None
    first: int | None = None

    @property
    def origin(self) -> tuple[int, int]:
        """(start, first): record n of the piece is record first + n, counted from `start` in the file. `start` is 0,
        except for later parts of a JSON Lines file: the lines before them are not counted."""
        return (0, self.first or 0) if not self.start or self.first is not None else (self.start, 0)


@dataclass(frozen=True, slots=True)
class Partition:
    """What one task reads, in order. estimate: expected bytes of text, for scheduling only; stamps: of the file of each
    piece, when this job began."""

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
    """The partition with the stamps of its files. stamps: by path."""
    return replace(partition, stamps=tuple(stamps.get(piece.file.path) for piece in partition.pieces))


def shard_bytes(inputs: Sequence[Probe], itemsize: int) -> int:
    """Automatic shard size in bytes: 1 GiB, less for a source with fewer than SHARDS_WANTED of these."""
    tokens = sum(probe.size for probe in inputs) / TEXT_PER_TOKEN
    return int(min(MAX_SHARD, max(MIN_SHARD, tokens * itemsize / SHARDS_WANTED)))


def plan(source: str, inputs: Sequence[Probe], target: int, itemsize: int, first: int = 0) -> list[Partition]:
    """Group and split the inputs of one source into partitions of about `target` bytes of tokens, numbered from
    `first`.

    Small files share a partition, in path order. JSON Lines and tables larger than a partition are split. Other large
    files are a partition each, which gives several shards.
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
    """(piece, size) of the pieces of a file, of at most `limit` bytes of text if its format can be split."""
    file, size = probe.file, probe.size
    if size <= limit or file.compression:
        return [(Piece(file), size)]
    if file.format == "jsonl":
        try:
            borders = tried(lambda: line_starts(file, _even_steps(file.size, limit)))
        except OSError:  # no longer readable: reading its partition will report it
            return [(Piece(file), size)]
        return [(Piece(file, a, b), b - a) for a, b in pairwise(borders)]
    if probe.parts:
        return _cut_row_groups(probe, limit)
    return [(Piece(file), size)]


def _even_steps(total: int, step: int) -> list[int]:
    """Borders from 0 to total of nearly equal spans, of at most `step`."""
    count = max(1, -(-total // step))
    return [total * i // count for i in range(count + 1)]


def line_starts(file: InputFile, nominal: list[int]) -> list[int]:
    """Move each inner border forward to the start of a line; equal borders become one."""
    with open_input(file.path) as stream:
        starts = [_first_line(stream, *span) for span in pairwise(nominal[1:])]
    return [0, *(start for start in starts if start), file.size]


def _first_line(stream: IO[bytes], at: int, end: int) -> int | None:
    """The first start of a line from `at` on and before `end`, None if there is none."""
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
