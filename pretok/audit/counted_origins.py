"""Where a document came from, in shards made before there were ledgers: by counting.

Enters: a shard and the number of a document in it. Leaves: its input and the line or row there. A shard's documents are
the records of its partition without those that were rejected or went to validation, which two files list.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pretok.base.errors import IntegrityError
from pretok.base.records import read_record
from pretok.base.storage import read_json_lines
from pretok.shards.contents import PartEntry
from pretok.shards.inputs import load_inputs, piece_starts
from pretok.shards.manifest import Manifest, Shard
from pretok.shards.seal import origins_path, rejects_path


@dataclass(frozen=True, slots=True)
class _Reject:
    """A line of a file of rejects; position: line or row of the file, from 1."""

    file: str
    position: int
    reason: str
    detail: str


def counted_origin(manifest: Manifest, shard: Shard, number: int) -> tuple[str, int]:
    """(input file, line or row from 1) of document `number` of a shard."""
    records = _Records(manifest, shard.source)
    held_out = _origins(manifest, shard.source)
    if shard.split == "val":
        index, record = (int(x) for x in held_out[number])
        return records.locate(records.parts[index].partition, record)
    index = next(i for i, part in enumerate(records.parts) if part.name == shard.prefix.name)
    partition = records.parts[index].partition
    first = sum(sum(p.records.values()) for p in records.parts[:index] if p.partition == partition)
    elsewhere = {int(record) for part, record in held_out if records.parts[part].partition == partition}
    elsewhere |= records.rejected(partition, _rejects(manifest, shard.source))
    record = first
    left = number
    for gone in sorted(elsewhere):
        if gone < first:
            continue
        if gone - record > left:
            break
        left -= gone - record
        record = gone + 1
    return records.locate(partition, record + left)


class _Records:
    """Which records of a source's inputs its parts were made of. Partitions and pieces count from 0; so do records,
    over all pieces of a partition."""

    def __init__(self, manifest: Manifest, source: str) -> None:
        self.parts: tuple[PartEntry, ...] = (manifest.contents.parts or {})[source]
        inputs = load_inputs(manifest.folder, manifest.contents, source)
        self.starts = piece_starts(inputs.plan, inputs.read)

    def pieces(self, partition: int) -> dict[int, int]:
        """Records read of each piece of a partition."""
        records: Counter[int] = Counter()
        for part in self.parts:
            if part.partition == partition:
                records.update({int(piece): count for piece, count in part.records.items()})
        return dict(sorted(records.items()))

    def locate(self, partition: int, record: int) -> tuple[str, int]:
        """File and position of a record."""
        for piece, count in self.pieces(partition).items():
            if record < count:
                file, start = self.starts[partition, piece]
                return file, start + record + 1
            record -= count
        raise IntegrityError(f"partition {partition} has fewer records than its shards; see pretok verify")

    def rejected(self, partition: int, rejects: list[_Reject]) -> set[int]:
        """Records of a partition that are in the list."""
        spans = []  # file, first position, one past the last, record of the partition at the first
        before = 0
        for piece, count in self.pieces(partition).items():
            file, start = self.starts[partition, piece]
            spans.append((file, start + 1, start + count + 1, before))
            before += count
        return {
            record + reject.position - first
            for reject in rejects
            for file, first, end, record in spans
            if reject.file == file and first <= reject.position < end
        }


def _origins(manifest: Manifest, source: str) -> npt.NDArray[np.int64]:
    """(documents, 2): part and record of each validation document."""
    path = origins_path(manifest.folder, source)
    if not manifest.check(path):
        return np.empty((0, 2), np.int64)
    found: npt.NDArray[np.int64] = np.load(path)
    return found


def _rejects(manifest: Manifest, source: str) -> list[_Reject]:
    path = rejects_path(manifest.folder, source)
    if not manifest.check(path):
        return []
    return [read_record(_Reject, line, path) for line in read_json_lines(path)]
