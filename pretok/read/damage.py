"""Damaged files: what a partition leaves of them in the folder of unfinished work, and what follows from it.

Input: the batches of a partition. Output: those of a whole partition, or an error that names the damaged files and a
note of them next to the other unfinished files. A file that was repaired is read again by its partition alone
(`source_plan.repaired`). If the settings say that damaged files are to be skipped, the plan goes on without them: their
partitions are done again from what is left. So no document of a damaged file counts, and the result depends on the
inputs alone, not on workers, kills or how far a damaged file could be read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from pretok.base.console import Console
from pretok.base.errors import DamagedInput
from pretok.base.failures import SHOWN, Failures
from pretok.base.records import Record, read_record, to_json
from pretok.base.storage import read_json, write_bytes, write_json
from pretok.base.units import human_bytes, listed, plural, unit_words
from pretok.read.batches import TextBatch
from pretok.read.files import UNREADABLE
from pretok.read.partition import Partition
from pretok.read.readers import Damage
from pretok.read.rejects import DAMAGED
from pretok.read.source_plan import SourcePlan

CHANGED = ".changed"
"""A file that a partition leaves if an input that was cut changed: nothing of its source counts, as other partitions
may have read the input as it was before."""
OPEN = "make each file readable that cannot be opened, or leave it out"
REPAIR = (
    "repair each damaged file or replace it by what can be read of it (an empty file will do), or leave it out whole: "
    "--skip-damaged"
)


class DamagedFile(Record, frozen=True):
    """What a partition notes of a file."""

    error: str
    skippable: bool
    """Whether its own bytes are at fault, not the disk or a change."""


def read_whole(
    partition: Partition, batches: Iterable[TextBatch | Damage], unit: str, state: Path
) -> Iterator[TextBatch]:
    """Yield the batches of documents of a partition.

    Raises DamagedInput after the last one if inputs could not be read to their end: the error names all of them,
    and the partition is done again from its beginning. state: the folder of unfinished work.
    """
    damaged, advice, note = dict[str, DamagedFile](), dict[str, None](), state / f"{partition.name}{DAMAGED}"
    for batch in batches:
        if isinstance(batch, Damage):
            piece = partition.pieces[batch.piece]
            damaged[piece.file.path] = DamagedFile(batch.error, batch.skippable)
            if batch.changed and piece.is_part:
                write_bytes(state / f"{partition.name}{CHANGED}", b"")
                advice[f"all of {unit_words(unit)} starts again, as the file was read in parts"] = None
            else:
                remedy = OPEN if piece.file.format == UNREADABLE else REPAIR
                advice["it is read again as it is then" if batch.changed else remedy] = None
        else:
            yield batch
            del batch  # frees it before the next one is read
    if not damaged:
        note.unlink(missing_ok=True)
        return
    write_json(note, to_json(damaged))
    reasons = [f"{path}: {note.error}" for path, note in damaged.items()]
    raise DamagedInput("; ".join((listed(reasons, SHOWN, "; "), *advice)))


def read_in_part(plan: SourcePlan, state: Path) -> dict[str, DamagedFile]:
    """Return the damaged files of a plan that is not done, by path."""
    names, found = {partition.name for partition in plan.partitions}, dict[str, DamagedFile]()
    for path in sorted(state.glob(f"{plan.name}-*{DAMAGED}")):
        if path.name.removesuffix(DAMAGED) in names:
            found |= read_record(dict[str, DamagedFile], read_json(path), path)
    return found


def forget(partitions: Iterable[Partition], state: Path) -> None:
    """Remove what these partitions left, so that they are done again from their beginning."""
    for partition in partitions:
        # Before all others: a kill in between must not leave a partition that looks done.
        for path in sorted(state.glob(f"{partition.name}.*"), key=lambda path: path.suffix != ".json"):
            path.unlink()


def until_whole(
    plans: list[SourcePlan],
    work: Callable[[list[SourcePlan]], Failures],
    leave_out: Callable[[SourcePlan], SourcePlan],
) -> tuple[list[SourcePlan], Failures]:
    """Let `work` do the partitions of the plans, and again those that lost a damaged file by `leave_out`.

    Returns the plans that were done, and the failures of the last time.
    """
    while True:
        failures = work(plans)
        now = [leave_out(plan) for plan in plans]
        if now == plans:
            return plans, failures
        plans = now


def too_many(damaged: int, files: int, most: int) -> str:
    """Say that of so many files more are damaged than may be left out."""
    return f"{plural(damaged, 'damaged file')} of {files:,}, and max_damaged allows {most:,} to be left out"


def without_damaged(
    plan: SourcePlan, state: Path, most: Callable[[int], int], console: Console, final: Sequence[str] = ()
) -> SourcePlan:
    """Return the plan without the files that its partitions found damaged, whose partitions are then to do again.

    It is returned as it is if these would be more than `most` says of the number of files.

    final: endings of files of a partition that must stay once they exist. Other files than those of the plan's own
    partitions are left alone; the caller stores the plan.
    """
    damaged = {path: note.error for path, note in read_in_part(plan, state).items() if note.skippable}
    readers = [p for p in plan.partitions if any(piece.file.path in damaged for piece in p.pieces)]
    if not damaged or any((state / f"{p.name}{suffix}").exists() for p in readers for suffix in final):
        return plan
    files, unit = len(plan.inputs), unit_words(plan.unit)
    if (number := len(damaged) + len(plan.left_out)) > most(files):
        console.notice(f"{unit}: {too_many(number, files, most(files))}")
        return plan
    if not (left := plan.without(damaged)).partitions:
        return plan
    lines = [
        f"{lost.file} ({human_bytes(lost.bytes)}): {lost.reason}"
        for lost in left.left_out
        if lost.file in damaged
    ]
    console.notice(f"warning: {unit}: left out, damaged:\n  " + listed(lines, SHOWN, "\n  "))
    forget(readers, state)
    return left
