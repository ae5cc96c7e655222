"""Inputs -> partitions: what each task reads, planned from sizes before any work.

Input: the probed inputs of one source. Output: partitions of about one shard each, which cover every byte, row group or
row of every input exactly once. The plan depends only on the inputs and the shard size, not on the number of workers,
so names and contents of shards do not either.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pretok.base.records import replace
from pretok.read.files import Stamp
from pretok.read.format import Piece, Probe
from pretok.read.formats import FORMATS

TEXT_PER_TOKEN = 4.0
"""Assumed bytes of text per token: fewer than with vocabularies of 50,000 entries, so shards stay below their
target."""
MIN_SHARD, MAX_SHARD = 16 << 20, 1 << 30
"""Bounds in bytes of the automatic shard size."""
SHARDS_WANTED = 64
"""A source of fewer full shards than this gets smaller ones, so that many workers can share the work."""


@dataclass(frozen=True, slots=True)
class Partition:
    """The pieces that one task reads, in order."""

    source: str
    number: int
    pieces: tuple[Piece, ...]
    estimate: int
    """Expected bytes of text, for scheduling only."""
    stamps: tuple[Stamp, ...] = ()
    """Of the file of each piece, when this job began."""

    @property
    def name(self) -> str:
        """Name of the partition and of its first shard, such as `it-00007`."""
        return f"{self.source}-{self.number:05d}"


def stamped(partition: Partition, stamps: Mapping[str, Stamp]) -> Partition:
    """Return the partition with the stamps of its files. stamps: by path."""
    return replace(partition, stamps=tuple(stamps.get(piece.file.path) for piece in partition.pieces))


def shard_bytes(inputs: Sequence[Probe], itemsize: int) -> int:
    """Automatic shard size in bytes: 1 GiB, less for a source with fewer than SHARDS_WANTED of these."""
    tokens = sum(probe.size for probe in inputs) / TEXT_PER_TOKEN
    return int(min(MAX_SHARD, max(MIN_SHARD, tokens * itemsize / SHARDS_WANTED)))


def plan(source: str, inputs: Sequence[Probe], target: int, itemsize: int, first: int = 0) -> list[Partition]:
    """Group and split the inputs of one source into partitions of about `target` bytes of tokens.

    first: number of the first partition.

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
        fits = probe.size <= limit
        for piece, size in (
            [(Piece(probe.file), probe.size)] if fits else FORMATS[probe.file.format].split(probe, limit)
        ):
            if weight and weight + size > limit:
                close()
            group.append(piece)
            weight += size
    close()
    return partitions
