"""A partition -> the hash of every document in it: the task of a pass before tokenizing, where copies are left out.

Input: a HashTask. Output: a file of hashes with the piece and record of each document, in the order in which
tokenizing will meet them; and whether an input was damaged. Which document is the first can only be known of all.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from pretok.base.execute import Report
from pretok.base.storage import atomic_open
from pretok.base.tokens import Hashes
from pretok.chat.documents import read_documents
from pretok.read.batches import buffers, hash_texts
from pretok.read.kept import Keep
from pretok.read.normalize import Normalization
from pretok.read.partition import Partition
from pretok.read.readers import Damage, RecordFormat


@dataclass(frozen=True, slots=True)
class HashTask:
    """The documents are those that tokenizing reads; path: where their hashes go."""

    partition: Partition
    record: RecordFormat
    keep: Keep
    normalization: Normalization
    path: Path


@dataclass(frozen=True, slots=True)
class PartitionHashes:
    """hashes: (documents, 2); pieces, records: (documents,), where in the partition each is, from 0; damaged: whether
    an input could not be read to its end."""

    hashes: Hashes
    pieces: npt.NDArray[np.int64]
    records: npt.NDArray[np.int64]
    damaged: bool


def hash_partition(task: HashTask, report: Report) -> int:
    """Write the hashes of a partition unless they are there; how many there are."""
    if task.path.exists():
        return len(load_hashes(task.path).hashes)
    hashes, pieces = [np.empty((0, 2), np.uint64)], [np.empty(0, np.int64)]
    records, damaged = [np.empty(0, np.int64)], False
    for batch in read_documents(task.partition, task.record, task.normalization, task.keep):
        if isinstance(batch, Damage):
            damaged = True
            continue
        hashes.append(hash_texts(batch.texts))
        pieces.append(np.full(len(batch.texts), batch.piece))
        records.append(batch.numbers)
        size = len(buffers(batch.texts)[0])
        report({"documents": len(batch.texts), "bytes": size, f"bytes:{task.partition.source}": size})
    with atomic_open(task.path) as file:
        np.savez(
            file,
            hashes=np.concatenate(hashes),
            pieces=np.concatenate(pieces),
            records=np.concatenate(records),
            damaged=np.bool_(damaged),
        )
    return sum(map(len, records))


def load_hashes(path: Path) -> PartitionHashes:
    """What `hash_partition` wrote."""
    with np.load(path) as file:
        return PartitionHashes(file["hashes"], file["pieces"], file["records"], bool(file["damaged"]))
