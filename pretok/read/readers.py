"""A partition -> batches of documents, whatever the format of its inputs.

Input: a Partition, how to find the text in a record, and the kept columns. Output: batches of about BATCH_BYTES of
text, in the order of the inputs, with the rejected records. An input whose rest is unreadable raises CorruptInputError
after the batch with its last good record. Any other exception is a bug.
"""

from __future__ import annotations

import json
from codecs import BOM_UTF8
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import UNSET, UnsetType

from pretok.base.records import Count, Record, replace
from pretok.read.batches import REJECTS, TextBatch, from_buffers
from pretok.read.conversation import Conversation, fields_of
from pretok.read.files import (
    CorruptInputError,
    read_bytes,
    read_small,
    stamp,
    unpack,
    what_changed,
)
from pretok.read.jsonl import MAX_DEPTH, parse_lines
from pretok.read.kept import TYPES, KeptColumn, KeptValues, keep_column
from pretok.read.partition import Partition, Piece
from pretok.read.prefetch import ahead
from pretok.read.probe import values_of
from pretok.read.rejects import (
    CONVERT,
    EMPTY,
    MALFORMED,
    MISSING,
    NOT_AN_OBJECT,
    NULL,
    OK,
    REASONS,
    TOO_LONG,
)
from pretok.read.spans import whole_file, whole_records
from pretok.read.tables import table_columns

BATCH_BYTES = 4 << 20
"""Text per batch: large enough to make the cost of calls negligible, small enough for many workers on a node."""
BATCH_RECORDS = 1 << 18
"""Most records per batch: a file may have nothing but rejects."""
NO_TEXTS = from_buffers(np.empty(0, np.uint8), np.zeros(1, np.int64))
EXPLAINED_BYTES = 1 << 20
"""Longest line that is parsed again to find out what is wrong with it."""


class RecordFormat(Record, frozen=True):
    """How to find documents.

    field: name of the text field or column, such as `meta.text` inside `meta`; separator: the end of a document in a
    plain text file, "" for one document per file; max_document: bytes of the longest text that is accepted, before
    normalization; conversation: how the value of the field, or with "" the whole record, becomes text, if it is not
    text itself.
    """

    field: str = "text"
    separator: str = ""
    max_document: Count = 256 << 20
    conversation: Conversation | UnsetType = UNSET

    @property
    def max_line(self) -> int:
        """Bytes of the longest line of JSON Lines that is parsed; a longer one is rejected as too long without parsing.
        A text takes three times its bytes if all its letters are escaped; 1 MiB is for other fields."""
        return 3 * self.max_document + (1 << 20)


@dataclass(frozen=True, slots=True)
class Damage:
    """Takes the place of the batches of a piece whose rest is unreadable."""

    piece: int
    error: str


Keep = Sequence[KeptColumn]


def read_partition(
    partition: Partition, record: RecordFormat, make: Callable[[TextBatch], TextBatch], keep: Keep = ()
) -> Iterator[TextBatch | Damage]:
    """All batches of a partition, read ahead in a thread. After a damaged piece, the next is read.

    make: turns records into documents, in the thread of the caller (`chat.documents`). A file that differs from the
    plan, or was written to in the meantime, counts as damaged once it has been read.
    """
    planned = partition.stamps or (None,) * len(partition.pieces)

    def batches() -> Iterator[TextBatch | Damage]:
        for index, piece in enumerate(partition.pieces):
            small, error = read_small(piece.file), ""
            before = None if small is not None else planned[index] or stamp(piece.file)
            try:
                yield from read_piece(piece, index, record, keep, small)
            except CorruptInputError as damage:
                error = str(damage)
            if small is None:
                error = what_changed(piece.file, before) or error
            if error:
                yield Damage(index, error)

    def made(batch: TextBatch | Damage) -> TextBatch | Damage:
        return batch if isinstance(batch, Damage) else make(batch)

    # A generator would keep the batch of records alive while the consumer works on the documents.
    return map(made, ahead(batches(), _held_bytes, BATCH_BYTES // 16))


def _held_bytes(batch: TextBatch | Damage) -> int:
    return batch.nbytes if isinstance(batch, TextBatch) else 0


def read_piece(
    piece: Piece,
    index: int,
    record: RecordFormat,
    keep: Keep = (),
    small: bytes | None = None,
) -> Iterator[TextBatch]:
    """Batches of one piece, number `index` of its partition. small: all bytes of its file, if they have been read.
    Raises CorruptInputError."""
    kind = piece.file.format
    if kind == "unreadable":
        raise CorruptInputError(f"cannot be opened: {piece.file.identity}")
    if kind == "jsonl":
        spans = _spans(piece, small, b"\n", record.max_line)
        records = _read_jsonl(spans, not piece.start, record, keep)
    elif kind == "text":
        mark, limit = record.separator.encode(), record.max_document
        records = _read_text(_spans(piece, small, mark, limit), not piece.start, mark, limit)
    else:
        records = _read_table(piece, record, keep)
    first = 0
    for found in records:
        yield from _batches(index, first, found)
        first += found.lines
        del found  # frees the bytes of the file that it refers to, before the next are read


def _spans(piece: Piece, small: bytes | None, mark: bytes, limit: int) -> Iterator[memoryview | None]:
    """Spans of whole records of a piece. mark: the end of a record, b"" if the whole file is one."""
    file, start = piece.file, piece.start or 0
    if small is None:
        blocks = read_bytes(file.path, file.compression, start, piece.stop)
    else:
        blocks = unpack(small[start : piece.stop], file.compression)
    return whole_records(blocks, mark, limit, BATCH_BYTES) if mark else whole_file(blocks, limit)


@dataclass(frozen=True, slots=True)
class _Found:
    """Consecutive records.

    status: (records,) uint8, an index of REASONS; texts: of the OK ones, not yet checked for UTF-8; explain: number of
    a rejected record, from 0 here -> details; sizes: (records,) bytes of each in the input; numbers: (records,) the
    line or row of each, from 0 here; lines: number of lines or rows; kept: the kept columns of the OK ones.
    """

    status: npt.NDArray[np.uint8]
    texts: pa.LargeStringArray
    explain: Callable[[int], str]
    sizes: npt.NDArray[np.int64]
    numbers: npt.NDArray[np.int64]
    lines: int
    kept: Sequence[KeptValues]


def _batches(index: int, first: int, found: _Found) -> Iterator[TextBatch]:
    at, records = 0, len(found.status)
    for start in range(0, max(1, records), BATCH_RECORDS):
        stop = min(start + BATCH_RECORDS, records)
        status, numbers = found.status[start:stop], first + found.numbers[start:stop]
        good, bad = np.flatnonzero(status == OK), np.flatnonzero(status != OK)
        batch = TextBatch(
            piece=index,
            end=first + (found.lines if stop == records else int(found.numbers[stop])),
            records=len(status),
            texts=found.texts.slice(at, len(good)),
            numbers=numbers[good],
            kept=tuple(column.slice(at, len(good)) for column, _ in found.kept),
            mismatches=() if start else tuple(wrong for _, wrong in found.kept),
        )
        if len(bad):
            reasons = [REASONS[reason] for reason in status[bad].tolist()]
            details = [found.explain(start + record) for record in bad.tolist()]
            rejects = pa.table([numbers[bad], reasons, details], schema=REJECTS)
            batch = replace(batch, rejects=rejects, refused=int(found.sizes[start + bad].sum()))
        at += len(good)
        yield _of_utf8(batch)


def _of_utf8(batch: TextBatch) -> TextBatch:
    """The batch with texts that are not UTF-8 as rejects."""
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


def _too_long(limit: int, keep: Keep) -> _Found:
    """A record that was skipped because it is too long."""
    kept = [(pa.nulls(0, TYPES[column.type]), 0) for column in keep]
    status, one = np.array([TOO_LONG], np.uint8), np.zeros(1, np.int64)
    return _Found(status, NO_TEXTS, lambda _: f"more than {limit} bytes", one + limit, one, 1, kept)


def _without_bom(beginning: memoryview) -> memoryview:
    """The beginning of a file without a byte order mark, which is not part of the text (RFC 8259, 8.1; Unicode,
    23.8)."""
    return beginning[len(BOM_UTF8) :] if bytes(beginning[: len(BOM_UTF8)]) == BOM_UTF8 else beginning


def _read_jsonl(
    spans: Iterator[memoryview | None], at_start: bool, record: RecordFormat, keep: Keep
) -> Iterator[_Found]:
    for span in spans:
        if span is None:
            yield _too_long(record.max_line, keep)
        else:
            yield _parse(_without_bom(span) if at_start else span, record, keep)
        at_start = False
        del span


def _parse(data: memoryview, record: RecordFormat, keep: Keep) -> _Found:
    block = np.frombuffer(data, np.uint8)
    raw = record.conversation is not UNSET  # the JSON of the field
    lines = parse_lines(block, record.field, keep, record.max_document, record.max_line, raw)

    def explain(at: int) -> str:
        return _explain(data[slice(*lines.places[at])], int(lines.status[at]), record)

    texts, sizes = from_buffers(lines.texts, lines.offsets), np.diff(lines.places)[:, 0]
    return _Found(lines.status, texts, explain, sizes, lines.numbers, lines.lines, lines.kept)


def _explain(line: memoryview, status: int, record: RecordFormat) -> str:
    """The details of a rejected line: the error of the json module, the fields that it has instead, or its start."""
    if status == TOO_LONG:
        return f"more than {record.max_line if len(line) > record.max_line else record.max_document} bytes"
    start = bytes(line[:80]).decode("utf-8", "replace").strip()
    if status in (MALFORMED, NOT_AN_OBJECT) and start.startswith("["):
        return "a JSON array; JSON Lines has one object a line"
    if status not in (MALFORMED, MISSING) or len(line) > EXPLAINED_BYTES:
        return start
    try:
        found = json.loads(str(line, "utf-8", "replace").rstrip("\r"))  # of bytes it guesses the encoding
    except json.JSONDecodeError as error:
        return f"{error.msg.removesuffix(' at')} at character {error.pos + 1}"
    except RecursionError:
        return f"nested more than {MAX_DEPTH:,} deep"
    except ValueError as error:
        return str(error)[:200]
    if status == MALFORMED:
        return f"nested more than {MAX_DEPTH:,} deep"  # else the json module accepts no less than this parser
    names = ", ".join(name for name, _ in values_of(found)) or "no field"
    return f"there is {names[:200]}".encode("utf-8", "replace").decode()  # a key may escape a lone surrogate


def _read_text(
    spans: Iterator[memoryview | None], at_start: bool, mark: bytes, limit: int
) -> Iterator[_Found]:
    """Documents of a plain text file: the whole file, or the texts between separators.

    As with line ends, a separator at the end of the file ends the last document and does not begin another.
    """
    for span in spans:
        if span is None:
            yield _too_long(limit, ())
        else:
            data = bytes(_without_bom(span) if at_start else span)
            parts = data.split(mark) if mark else [data]
            if mark and not parts[-1]:
                parts.pop()
            offsets = np.cumsum([0, *map(len, parts)], dtype=np.int64)
            texts = np.frombuffer(b"".join(parts), np.uint8)  # of a single text no copy
            yield _of_column(from_buffers(texts, offsets), [], (), limit)
        at_start = False


def _read_table(piece: Piece, record: RecordFormat, keep: Keep) -> Iterator[_Found]:
    """Texts of a column of strings or bytes, and the kept columns."""
    for column, others in _columns(piece, record, [column.field for column in keep]):
        yield _of_column(column, others, keep, record.max_document)


def _of_column(column: pa.Array, others: list[pa.Array | None], keep: Keep, limit: int) -> _Found:
    """Records of a large_binary or large_string array, with other columns of the same rows; nulls are rejects."""
    lengths = np.asarray(pc.binary_length(column).fill_null(0), np.int64)
    reasons = [np.asarray(column.is_null()), lengths == 0, lengths > limit]
    status = np.select(reasons, [NULL, EMPTY, TOO_LONG], OK).astype(np.uint8)
    if status.any():  # a filter copies the text
        good = pa.array(status == OK)
        column = column.filter(good)
        others = [None if other is None else other.filter(good) for other in others]
    _, offsets, data = column.buffers()
    texts = pa.LargeStringArray.from_buffers(len(column), offsets, data, offset=column.offset)
    kept = [
        (pa.nulls(len(texts), TYPES[column.type]), 0) if other is None else keep_column(other, column.type)
        for other, column in zip(others, keep, strict=True)
    ]
    return _Found(
        status,
        texts,
        lambda row: f"more than {limit} bytes" if status[row] == TOO_LONG else "",
        lengths,
        np.arange(len(status)),
        len(status),
        kept,
    )


def _columns(
    piece: Piece, record: RecordFormat, fields: list[str]
) -> Iterator[tuple[pa.LargeBinaryArray, list[pa.Array | None]]]:
    """(texts, other columns) of a table. The texts of conversations, or of a template's fields, are their JSON."""
    how = record.conversation
    if not isinstance(how, Conversation) or not how.fields:
        yield from table_columns(piece, record.field, fields, BATCH_BYTES, isinstance(how, Conversation))
        return
    first, *names = dict.fromkeys(field for _, field in fields_of(how.template) if field)
    for column, others in table_columns(piece, first, [*names, *fields], BATCH_BYTES):
        given = [pa.nulls(len(column)) if found is None else found for found in others[: len(names)]]
        rows = pa.table([column.cast(pa.large_string()), *given], [first, *names]).to_pylist()
        yield pa.array(map(msgspec.json.encode, rows), pa.large_binary()), others[len(names) :]
