"""The rejected records of a partition on disk, and those of a whole source in one file.

Input: batches; later the plan of the source with the counts of each piece. Output: `NAME.rejects.jsonl` next to the
other unfinished files, by piece and number in the piece; then JSON Lines of {file, position, reason, detail}, where the
position is a line or row from 1, or 0 for a damaged file that was left out whole.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable
from heapq import nlargest
from pathlib import Path
from typing import Any

from msgspec import UNSET

from pretok.base.storage import atomic_open, read_json_lines
from pretok.base.units import listed
from pretok.read.batches import TextBatch
from pretok.read.rejects import DAMAGED_FILE
from pretok.read.source_plan import PieceCounts, SourcePlan

REJECTS = ".rejects.jsonl"
"""The file of a partition with its rejects."""
ALL_REJECTS = "rejects.jsonl"
"""The file of a source among unfinished work, if no document of it is left."""
WORST = 3
"""Files that a message names."""


class RejectsWriter:
    """Writes the rejects of a partition and counts its records.

    The file has its final name when the context is left without an exception.
    """

    def __init__(self, path: Path) -> None:
        self.rejected = Counter[str]()
        """By reason."""
        self._read, self._refused, self._lines = (Counter[int]() for _ in range(3))  # by piece
        self.remarks: defaultdict[int, Counter[str]] = defaultdict(Counter)
        """By piece."""
        self._open = atomic_open(path, "w")

    def __enter__(self) -> RejectsWriter:
        self._file = self._open.__enter__()
        return self

    def __exit__(self, *exc: Any) -> None:
        self._open.__exit__(*exc)

    @property
    def read(self) -> int:
        """Records of all batches."""
        return self._read.total()

    def add(self, batches: Iterable[TextBatch], later: Iterable[dict[str, Any]] = ()) -> int:
        """Count batches and write their rejects; how many these are.

        later: documents of theirs that a later step refused.
        """
        rejects = list(later)
        for batch in batches:
            self._read[batch.piece] += batch.records
            self._lines[batch.piece] = batch.end
            self.remarks[batch.piece].update(batch.remarks)
            rejects += ({"piece": batch.piece, **reject} for reject in batch.rejects.to_pylist())
        for reject in sorted(rejects, key=lambda reject: (reject["piece"], reject["record"])):
            self._refused[reject["piece"]] += 1
            self.rejected[reject["reason"]] += 1
            self._file.write(json.dumps(reject, ensure_ascii=False) + "\n")
        return len(rejects)

    def pieces(self, number: int) -> tuple[PieceCounts, ...]:
        """Return the counts of each of `number` pieces."""
        return tuple(
            PieceCounts(self._read[n], self._refused[n], self._lines[n], dict(+self.remarks[n]) or UNSET)
            for n in range(number)
        )


def most_in(files: Counter[str]) -> str:
    """Name the files with the highest counts, for a message."""
    return listed([f"{number:,} in {path}" for path, number in files.most_common()], WORST)


def merge_rejects(path: Path, state: Path, sealed: SourcePlan) -> int:
    """Return all rejects of a source as one file with positions in the inputs; their number.

    No file if there are none.

    state: the folder of the partitions' files; sealed: the plan with the counts of all pieces.
    """
    if not any(row.counts and row.counts.rejected for row in sealed.rows):
        return 0
    # A worker knows the place of a record in its piece only. How many lines lie before the piece is known
    # when all pieces are read.
    places = {place: (row.file.path, before) for place, row, before in sealed.placed()}
    rejects = 0
    with atomic_open(path, "w") as out:
        for damaged in sealed.left_out:
            row = {"file": damaged.file, "position": 0, "reason": DAMAGED_FILE, "detail": damaged.reason}
            out.write(json.dumps(row, ensure_ascii=False) + "\n")
            rejects += 1
        for partition in sealed.partitions:
            for line in read_json_lines(state / f"{partition.name}{REJECTS}"):
                file, before = places[partition.number, line.pop("piece")]
                place = {"file": file, "position": before + line.pop("record") + 1}
                out.write(json.dumps({**place, **line}, ensure_ascii=False) + "\n")
                rejects += 1
    return rejects


def worst_files(paths: Iterable[Path]) -> str:
    """Say which files have most of the rejects in these files, with the first line and reason of each.

    The text is a part of a message and ends with where to read more.
    """
    number, first = Counter[str](), dict[str, dict[str, Any]]()
    read = [path for path in paths if path.exists()]
    for path in read:
        for reject in read_json_lines(path):
            number[reject["file"]] += 1
            first.setdefault(reject["file"], reject)
    worst = nlargest(WORST, number.items(), key=lambda item: item[1])
    lines = [
        f"{file}: {count:,}, the first at line {first[file]['position']} ({first[file]['reason']}: "
        f"{first[file]['detail']})"
        for file, count in worst
    ]
    return "\n    ".join(["most of them are in", *lines, f"all are in {', '.join(map(str, read))}"])
