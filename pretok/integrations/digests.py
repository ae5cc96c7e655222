"""What each rank was handed, line by line; afterwards the hash of each step, to compare two runs on any trainers.

Input: micro-batches as they are handed out. Output: FOLDER/START-RANKS-RANK.jsonl, a line {position, sequences, digest}
for each, in a run from position START on with so many ranks; from these the hashes that `train` logs as `data_hash`,
without any communication between ranks.

A run that goes on from a position counts from there: what an attempt before it read beyond is forgotten.
"""

from __future__ import annotations

import json
from itertools import groupby
from pathlib import Path
from typing import IO

from pretok.base.errors import IntegrityError, UsageError
from pretok.stream import data_hash


class DigestLog:
    """The file of one rank for a run from position `start` on. Lines are in the file when `add` returns."""

    def __init__(self, folder: str | Path, start: int, rank: int, ranks: int) -> None:
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        if rank == 0:  # of an attempt that began here or later, and is done again
            for path in folder.glob("*.jsonl"):
                begun, of, _ = map(int, path.stem.split("-"))
                if begun > start or (begun == start and of != ranks):
                    path.unlink()
        self._file: IO[str] = (folder / f"{start:012d}-{ranks:05d}-{rank:05d}.jsonl").open("w", buffering=1)

    def add(self, position: int, sequences: int, digest: int) -> None:
        """A micro-batch of consecutive positions was handed out."""
        self._file.write(json.dumps({"position": position, "sequences": sequences, "digest": digest}) + "\n")

    def close(self) -> None:
        """Nothing more is read."""
        self._file.close()


def data_hashes(folder: str | Path, global_batch: int) -> list[str]:
    """`data_hash` after each whole step of a run that began at position 0: [hash of step 1, ...].

    Raises UsageError where there are no lines or the batch is not theirs, IntegrityError where a sequence was handed to
    two ranks, or to none.
    """
    found = sorted(_lines(Path(folder)))
    if not found:
        raise UsageError(f"{folder} has no digests: give the loader this folder as `digests`")
    whole = found[-1][0] // global_batch  # the last step may be in work
    expected, steps = 0, [0] * (whole + 1)
    for position, sequences, digest in found:
        if position != expected:
            what = "was handed out twice" if position < expected else "was never handed out"
            raise IntegrityError(f"{folder}: position {min(position, expected)} {what}")
        expected += sequences
        if position // global_batch != (expected - 1) // global_batch:
            raise UsageError(
                f"{folder}: a micro-batch of {sequences} sequences from {position} on is in two steps of {global_batch}"
            )
        steps[position // global_batch] += digest
    hashes = [""]
    for step in steps[: expected // global_batch]:
        hashes.append(data_hash(hashes[-1], step))
    return hashes[1:]


def _lines(folder: Path) -> list[tuple[int, int, int]]:
    """(position, sequences, digest) of every micro-batch that counts."""
    paths = sorted(folder.glob("*.jsonl"))
    attempts = [(start, list(files)) for start, files in groupby(paths, lambda path: path.stem.split("-")[0])]
    found = []
    for number, (_, files) in enumerate(attempts):
        read = [_rows(path) for path in files]
        if number + 1 < len(attempts):
            end = int(attempts[number + 1][0])
            found += [row for rows in read for row in rows if row[0] < end]
        else:  # some ranks are a little ahead of others while it runs, or where it was killed
            found += [row for rows in read for row in rows[: min(map(len, read))]]
    return found


def _rows(path: Path) -> list[tuple[int, int, int]]:
    text = path.read_text(encoding="utf-8")
    rows = map(json.loads, text[: text.rfind("\n") + 1].splitlines())  # a kill may have cut the last line
    return [(row["position"], row["sequences"], row["digest"]) for row in rows]
