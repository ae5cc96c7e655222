"""A partition -> batches of documents, whatever the format of its inputs.

Input: a Partition, how to find the text in a record, and the kept columns. Output: batches of about BATCH_BYTES of
text, in the order of the inputs, with the rejected records. An input whose rest is unreadable raises CorruptInputError
after the batch with its last good record. Any other exception is a bug.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from msgspec import UNSET

from pretok.base.errors import UsageError
from pretok.base.reads import read_ahead
from pretok.base.records import replace
from pretok.read.batches import REJECTS, TextBatch
from pretok.read.files import (
    REFUSED,
    SMALL,
    UNREADABLE,
    CorruptInputError,
    InputFile,
    read_small,
    stamp,
    what_changed,
)
from pretok.read.format import Keep, Piece, Records
from pretok.read.formats import FORMATS
from pretok.read.partition import Partition
from pretok.read.prefetch import ahead
from pretok.read.probe import chosen_field
from pretok.read.record_format import RecordFormat
from pretok.read.rejects import CONVERT, EMPTY, NOT_LOST, NULL, OK, REASONS

BATCH_BYTES = 4 << 20
"""Text per batch: large enough to make the cost of calls negligible, small enough for many workers on a node."""
BATCH_RECORDS = 1 << 18
"""Most records per batch: a file may have nothing but rejects."""
TOGETHER = 16
"""Most small files that a thread takes at once: from memory, handing over a file takes as long as reading it."""
UNEVEN = 4
"""How many times BATCH_BYTES a batch may have, if it is not one record: making all of equal size would copy text."""


@dataclass(frozen=True, slots=True)
class Damage:
    """Takes the place of the batches of a piece whose rest is unreadable, or follows those of a file that changed."""

    piece: int
    error: str
    changed: bool = False
    """Since the plan, so that other pieces of the file may be of other text."""
    skippable: bool = False
    """Whether the bytes of the file are at fault, which another try would find again."""


def read_partition(
    partition: Partition, record: RecordFormat, make: Callable[[TextBatch], TextBatch], keep: Keep = ()
) -> Iterator[TextBatch | Damage]:
    """Yield all batches of a partition, read ahead in a thread, small files in several.

    After a damaged piece, the next is read. A piece counts as damaged, too, if none of its records is accepted and one
    of them is not just empty.

    make: turns records into documents, in the thread of the caller (`chat.read_documents`). A file that differs from
    the plan, or was written to in the meantime, counts as damaged once it has been read.
    """
    planned = partition.stamps or (None,) * len(partition.pieces)

    def read_early(index: int) -> tuple[bytes | None, RecordFormat]:
        file = partition.pieces[index].file
        small = read_small(file, planned[index])
        return small, record if small is None else _of_file(record, file)

    def batches() -> Iterator[TextBatch | Damage]:
        early = read_ahead(read_early, _together(partition.pieces))
        for index, (piece, (small, settled)) in enumerate(zip(partition.pieces, early, strict=True)):
            error, lasting = "", True
            before = None if small is not None else planned[index] or stamp(piece.file)
            try:
                yield from read_piece(piece, index, settled, keep, small)
            except CorruptInputError as damage:
                error = str(damage)
                lasting = piece.file.format != UNREADABLE and not isinstance(damage.__cause__, OSError)
            changed = "" if small is not None else what_changed(piece.file, before)
            yield Damage(index, changed or error, bool(changed), lasting and not changed)

    accepted, first = False, ""  # of the piece that is being read: whether a record was, and the first defect

    def documents(batch: TextBatch | Damage) -> TextBatch | Damage:
        nonlocal accepted, first
        if isinstance(batch, Damage):
            nothing, accepted, first = "" if accepted else first, False, ""
            return replace(batch, error=batch.error or nothing)
        try:
            made = make(batch)
        except UsageError as error:
            raise UsageError(f"{partition.pieces[batch.piece].place}: {error}") from None
        accepted = accepted or bool(len(made.texts))
        if not accepted and not first:
            first = _first_defect(made)
        return made

    # A generator would keep the batch of records alive while the consumer works on the documents.
    read = map(documents, ahead(batches(), _held_bytes, BATCH_BYTES // 16))
    return filter(lambda item: not isinstance(item, Damage) or bool(item.error), read)


def _together(pieces: Sequence[Piece]) -> Iterator[range]:
    """Yield the pieces that a thread reads one after another, by number.

    They are at most TOGETHER, of files that have at most SMALL bytes together.
    """
    start, size = 0, 0
    for index, piece in enumerate(pieces):
        size += piece.file.size
        if index > start and (size > SMALL or index - start == TOGETHER):
            yield range(start, index)
            start, size = index, piece.file.size
    yield range(start, len(pieces))


def _of_file(record: RecordFormat, file: InputFile) -> RecordFormat:
    """Return how the records of one file are read, if files differ."""
    if record.fields is UNSET:
        return record
    return replace(record, field=chosen_field(file, record.fields), fields=UNSET)


def _first_defect(batch: TextBatch) -> str:
    """Say what is wrong with the first record that is not empty, null or removed by a setting; "" if there is none."""
    for reject in batch.rejects.to_pylist():
        if reject["reason"] not in (REASONS[NULL], REASONS[EMPTY], *NOT_LOST):
            what = f"{reject['reason']} ({reject['detail']})" if reject["detail"] else reject["reason"]
            return f"none of its records was accepted; record {reject['record'] + 1}: {what}"
    return ""


def _held_bytes(batch: TextBatch | Damage) -> int:
    return batch.nbytes if isinstance(batch, TextBatch) else 0


def read_piece(
    piece: Piece,
    index: int,
    record: RecordFormat,
    keep: Keep = (),
    small: bytes | None = None,
) -> Iterator[TextBatch]:
    """Yield batches of one piece, number `index` of its partition.

    small: all bytes of its file, if they have been read. Raises CorruptInputError.
    """
    if piece.file.format == UNREADABLE:
        raise CorruptInputError(f"cannot be opened: {piece.file.identity}")
    if piece.file.format == REFUSED:
        raise CorruptInputError(piece.file.identity)
    record, first = _of_file(record, piece.file), 0
    for records in FORMATS[piece.file.format].read(piece, small, record, keep, BATCH_BYTES):
        yield from _batches(index, first, records)
        first += records.lines
        del records  # frees the bytes of the file that it refers to, before the next are read


def _batches(index: int, first: int, records: Records) -> Iterator[TextBatch]:
    """Yield batches of records, the first of which is number `first` of its piece."""
    count, ends = len(records.status), np.cumsum(records.sizes)
    at = start = 0
    while True:  # lines that are all blank are a batch too: it says how far the piece is read
        most = UNEVEN * BATCH_BYTES + (ends[start - 1] if start else 0)
        stop = min(count, start + BATCH_RECORDS, max(start + 1, int(np.searchsorted(ends, most, "right"))))
        status, numbers = records.status[start:stop], first + records.numbers[start:stop]
        good, bad = np.flatnonzero(status == OK), np.flatnonzero(status != OK)
        batch = TextBatch(
            piece=index,
            end=first + (records.lines if stop == count else int(records.numbers[stop])),
            records=len(status),
            texts=records.texts.slice(at, len(good)),
            numbers=numbers[good],
            kept=tuple(column.slice(at, len(good)) for column, _ in records.kept),
            mismatches=tuple(wrong[at : at + len(good)] for _, wrong in records.kept),
            before=None if records.before is None else records.before[at : at + len(good)],
            remarks={} if start else records.remarks,
        )
        if len(bad):
            reasons = [REASONS[reason] for reason in status[bad].tolist()]
            details = [records.explain(start + record) for record in bad.tolist()]
            rejects = pa.table([numbers[bad], reasons, details], schema=REJECTS)
            batch = replace(batch, rejects=rejects, refused=int(records.sizes[start + bad].sum()))
        yield _of_utf8(batch)
        at, start = at + len(good), stop
        if start == count:
            return


def _of_utf8(batch: TextBatch) -> TextBatch:
    """Return the batch with texts that are not UTF-8 as rejects."""
    try:
        batch.texts.validate(full=True)
        return batch
    except pa.ArrowInvalid:
        values = batch.texts.cast(pa.large_binary()).to_pylist()
    rejects, refused = [], batch.refused
    for number, value in zip(batch.numbers.tolist(), values, strict=True):
        try:
            value.decode()
        except UnicodeDecodeError as error:
            what = f"byte {value[error.start]:#04x} at {error.start}: {error.reason}"
            rejects.append((number, "invalid_utf8", f"{what}; convert the file, from Latin-1 by {CONVERT}"))
            refused += len(value)
    return replace(batch, refused=refused).without(rejects)
