"""A partition -> batches of documents, whatever format its inputs have.

Input: a Partition, how to find the text in a record, how it is normalized, what else is kept. Output: TextBatch after
TextBatch of about BATCH_BYTES of text, in the order of the inputs. Refused records are in the batch; an input whose
rest is unreadable raises CorruptInputError after the batch that holds its last good record. Any other exception is a
bug.
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
"""Text per batch: large enough to hide the cost of a call, small enough for many workers on a node."""
BATCH_RECORDS = 1 << 18
"""Records per batch at most: a file may hold nothing but rejects."""
NO_TEXTS = from_buffers(np.empty(0, np.uint8), np.zeros(1, np.int64))
EXPLAINED_BYTES = 1 << 20
"""The longest line that is parsed again to say what is wrong with it."""


class RecordFormat(Record, frozen=True):
    """How to find documents. field: name of the text field or column, `meta.text` inside another; separator: what ends
    a document in a plain text file, "" for one document a file; max_document: bytes of the longest text that is no
    reject, before normalization; conversation: how what is in the field, or with "" in the whole record, becomes text,
    where it is not text itself."""

    field: str = "text"
    separator: str = ""
    max_document: Count = 256 << 20
    conversation: Conversation | UnsetType = UNSET

    @property
    def max_line(self) -> int:
        """Bytes of the longest line of JSON Lines that is parsed. A longer one is rejected as too long unread: a text
        within the limit takes three times its bytes if all of it is escaped letters, the rest is for other fields."""
        return 3 * self.max_document + (1 << 20)


@dataclass(frozen=True, slots=True)
class Damage:
    """Stands in the stream of batches where the rest of a piece is unreadable."""

    piece: int
    error: str


Keep = Sequence[KeptColumn]


def read_partition(
    partition: Partition, record: RecordFormat, make: Callable[[TextBatch], TextBatch], keep: Keep = ()
) -> Iterator[TextBatch | Damage]:
    """All batches of a partition, read ahead in a thread; a damaged piece does not end the others.

    make: turns what was read into documents, in the thread of the caller (`chat.documents`).
    A file that is no longer what was planned, or was written to meanwhile, counts as damaged once it has been read.
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

    # A generator would hold each batch as it was read for as long as its consumer works on it.
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
    """Batches of one piece, which stands at `index` in its partition. small: all bytes of its file, where they are at
    hand. Raises CorruptInputError."""
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
        del found  # with the bytes it was found in: the next may be as large


def _spans(piece: Piece, small: bytes | None, mark: bytes, limit: int) -> Iterator[memoryview | None]:
    """Spans of whole records of a piece. mark: what ends a record, b"" for one that is the whole file."""
    file, start = piece.file, piece.start or 0
    if small is None:
        blocks = read_bytes(file.path, file.compression, start, piece.stop)
    else:
        blocks = unpack(small[start : piece.stop], file.compression)
    return whole_records(blocks, mark, limit, BATCH_BYTES) if mark else whole_file(blocks, limit)


@dataclass(frozen=True, slots=True)
class _Found:
    """Records in a row. status: (records,) uint8, an index of REASONS; texts: those of the OK ones, UTF-8 not checked;
    explain: what to tell of a refused record, by its number from 0 here; sizes: (records,) bytes of the input that each
    took; numbers: (records,) the line or row of each from 0 here; lines: how many these are; kept: of the OK ones, a
    column each."""

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
    """The batch without texts that are not UTF-8, which are rejects."""
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
    """A record that was dropped while it was read."""
    kept = [(pa.nulls(0, TYPES[column.type]), 0) for column in keep]
    status, one = np.array([TOO_LONG], np.uint8), np.zeros(1, np.int64)
    return _Found(status, NO_TEXTS, lambda _: f"more than {limit} bytes", one + limit, one, 1, kept)


def _without_bom(beginning: memoryview) -> memoryview:
    """The beginning of a file without a byte order mark, which says how text is encoded and is no part of it (RFC 8259,
    8.1; Unicode, 23.8)."""
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
    """What the ledger says of a line: what the json module finds wrong, which fields there are instead, its start."""
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
        return f"nested more than {MAX_DEPTH:,} deep"  # all that this reader takes for worse than the module does
    names = ", ".join(name for name, _ in values_of(found)) or "no field"
    return f"there is {names[:200]}".encode("utf-8", "replace").decode()  # a key may escape a lone surrogate


def _read_text(
    spans: Iterator[memoryview | None], at_start: bool, mark: bytes, limit: int
) -> Iterator[_Found]:
    """Documents of a plain text file: the whole file, or the texts between separators. It has nothing else to keep.

    As with line ends, a separator at the end of the file ends the last document and starts no other.
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
    """Texts of a column of strings or bytes, and what is kept beside them."""
    for column, others in _columns(piece, record, [column.field for column in keep]):
        yield _of_column(column, others, keep, record.max_document)


def _of_column(column: pa.Array, others: list[pa.Array | None], keep: Keep, limit: int) -> _Found:
    """Texts in an array of large offsets, and other columns of the same rows; nulls are rejects."""
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
    """The texts of a table and its other columns; the JSON of conversations, or of all fields of a template."""
    how = record.conversation
    if not isinstance(how, Conversation) or not how.fields:
        yield from table_columns(piece, record.field, fields, BATCH_BYTES, isinstance(how, Conversation))
        return
    first, *names = dict.fromkeys(field for _, field in fields_of(how.template) if field)
    for column, others in table_columns(piece, first, [*names, *fields], BATCH_BYTES):
        given = [pa.nulls(len(column)) if found is None else found for found in others[: len(names)]]
        rows = pa.table([column.cast(pa.large_string()), *given], [first, *names]).to_pylist()
        yield pa.array(map(msgspec.json.encode, rows), pa.large_binary()), others[len(names) :]
