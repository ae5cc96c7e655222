"""A partition -> batches of documents, whatever format its inputs have.

Enters: a Partition and how to find the text in a record. Leaves: TextBatch after TextBatch of about BATCH_BYTES of
text, in the order of the inputs. Refused records are in the batch; an input whose rest is unreadable raises
CorruptInputError after the batch that holds its last good record.
"""

from __future__ import annotations

import json
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pretok.files import READ_SIZE, CorruptInputError, open_parquet, read_bytes, stamp, what_changed
from pretok.hub import open_hub
from pretok.jsonl import OK, REASONS, field_bytes, parse_lines
from pretok.overlap import ahead
from pretok.partition import Partition, Piece
from pretok.texts import Reject, TextBatch, from_buffers

BATCH_BYTES = 4 << 20
"""Text per batch: large enough to hide the cost of a call, small enough for many workers on a node."""


@dataclass(frozen=True, slots=True)
class RecordFormat:
    """How to find documents. field: name of the text field or column; separator: what ends a document in a plain text
    file, "" for one document a file; max_document: bytes of the longest record that is read."""

    field: str = "text"
    separator: str = ""
    max_document: int = 256 << 20


@dataclass(frozen=True, slots=True)
class Damage:
    """Stands in the stream of batches where the rest of a piece is unreadable."""

    piece: int
    error: str


def read_partition(partition: Partition, record: RecordFormat) -> Iterator[TextBatch | Damage]:
    """All batches of a partition, read ahead in a thread; a damaged piece does not end the others.

    A file that is no longer what was planned, or was written to meanwhile, counts as damaged once it has been read.
    """

    def batches() -> Iterator[TextBatch | Damage]:
        for index, piece in enumerate(partition.pieces):
            before, error = stamp(piece.file), ""
            try:
                yield from read_piece(piece, index, record)
            except CorruptInputError as damage:
                error = str(damage)
            if error := what_changed(piece.file, before) or error:
                yield Damage(index, error)

    return ahead(batches())


def read_piece(piece: Piece, index: int, record: RecordFormat) -> Iterator[TextBatch]:
    """Batches of one piece, which stands at `index` in its partition. Raises CorruptInputError."""
    if piece.file.format == "unreadable":
        raise CorruptInputError(f"cannot be opened: {piece.file.identity}")
    if piece.file.format == "jsonl":
        yield from _read_jsonl(piece, index, record.field)
    elif piece.file.format == "text":
        yield from _read_text(piece, index, record.separator)
    else:
        tables = {"parquet": _parquet_batches, "dataset": _dataset_batches, "hub": _hub_batches}
        start = 0
        for column in tables[piece.file.format](piece, record.field):
            batch = _from_column(column, index, start)
            start += batch.records
            yield batch


def _whole_records(blocks: Iterator[bytes], separator: bytes) -> Iterator[memoryview]:
    """Regroup blocks into spans that end where a record ends: at the last end within BATCH_BYTES, or where the record
    that is longer ends; the last span ends where the input does. Spans do not depend on how blocks were cut. A span is
    overwritten when the next one is asked for: new memory for each would cost more than the copy into it.

    On CorruptInputError what was read before it is yielded first, its unfinished last record left out.
    """
    buffer = bytearray(2 * BATCH_BYTES)
    size = 0
    wanted = BATCH_BYTES
    try:
        for block in blocks:
            if size + len(block) > len(buffer):
                buffer = buffer[:size] + bytes(size + len(block))
            buffer[size : size + len(block)] = block
            size += len(block)
            if size >= wanted:
                start = yield from _cut_records(buffer, size, separator)
                buffer[: size - start] = buffer[start:size]
                size -= start
                wanted = max(BATCH_BYTES, 2 * size)  # a longer record waits for as much more
    except CorruptInputError:
        start = yield from _cut_records(buffer, size, separator)
        if (end := buffer.rfind(separator, start, size)) >= 0:
            yield memoryview(buffer)[start : end + len(separator)]
        raise
    start = yield from _cut_records(buffer, size, separator)
    if start < size:
        yield memoryview(buffer)[start:size]


def _cut_records(data: bytearray, size: int, separator: bytes) -> Generator[memoryview, None, int]:
    """Yield the spans of data[:size] that are complete whatever follows it; returns where the rest starts."""
    view = memoryview(data)
    start = 0
    while size - start >= BATCH_BYTES:
        cut = data.rfind(separator, start, start + BATCH_BYTES)
        if cut < 0:
            cut = data.find(separator, start + BATCH_BYTES - len(separator) + 1, size)
        if cut < 0:
            break
        yield view[start : cut + len(separator)]
        start = cut + len(separator)
    return start


def _read_jsonl(piece: Piece, index: int, field: str) -> Iterator[TextBatch]:
    name = field_bytes(field)
    first = 0
    stream = read_bytes(piece.file.path, piece.file.compression, piece.start or 0, piece.stop)
    for at, data in enumerate(_whole_records(stream, b"\n")):
        if at == 0 and bytes(data[:3]) == b"\xef\xbb\xbf":
            data = data[3:]  # a BOM is no part of the JSON text (RFC 8259, 8.1)
        texts, offsets, starts, status = parse_lines(np.frombuffer(data, np.uint8), name)
        good = np.flatnonzero(status == OK)
        rejects = [
            Reject(
                first + int(line),
                REASONS[status[line]],
                _explain(bytes(data[starts[line] : starts[line + 1]])),
            )
            for line in np.flatnonzero(status != OK)
        ]
        yield _checked(index, len(status), first, good, from_buffers(texts, offsets), rejects)
        first += len(status)


def _explain(line: bytes) -> str:
    """Why the json module refuses a line, or the start of the line where it does not."""
    try:
        json.loads(line)
    except (ValueError, RecursionError) as error:
        return str(error)[:200]
    return line[:80].decode("utf-8", "replace").strip()


def _checked(
    index: int,
    records: int,
    first: int,
    good: npt.NDArray[np.int64],
    texts: pa.LargeStringArray,
    rejects: list[Reject],
) -> TextBatch:
    """A batch whose texts are valid UTF-8: documents that are not become rejects."""
    try:
        texts.validate(full=True)
    except pa.ArrowInvalid:
        valid = np.ones(len(texts), np.bool_)
        for i, value in enumerate(texts.cast(pa.large_binary())):
            try:
                value.as_py().decode()
            except UnicodeDecodeError as error:
                valid[i] = False
                rejects.append(Reject(first + int(good[i]), "invalid_utf8", str(error)[:200]))
        texts = texts.cast(pa.large_binary()).filter(pa.array(valid)).cast(pa.large_string())
        good = good[valid]
        rejects.sort(key=lambda reject: reject.record)
    return TextBatch(index, first, records, texts, first + good, rejects)


def _read_text(piece: Piece, index: int, separator: str) -> Iterator[TextBatch]:
    """Documents of a plain text file: the whole file, or the texts between separators.

    As with line ends, a separator at the end of the file ends the last document and starts no other.
    """
    stream = read_bytes(piece.file.path, piece.file.compression)
    mark = separator.encode()
    first = 0
    spans = map(bytes, _whole_records(stream, mark)) if mark else iter([b"".join(stream)])
    for data in spans:
        parts = data.split(mark) if mark else [data]
        if mark and not parts[-1]:
            parts.pop()
        empty = np.array([not part for part in parts])
        rejects = [Reject(first + int(i), "empty_text") for i in np.flatnonzero(empty)]
        lengths = np.array([len(part) for part in parts if part], np.int64)
        texts = from_buffers(
            np.frombuffer(b"".join(parts), np.uint8),
            np.concatenate([np.zeros(1, np.int64), lengths.cumsum()]),
        )
        yield _checked(index, len(parts), first, np.flatnonzero(~empty), texts, rejects)
        first += len(parts)


def _from_column(column: pa.Array, index: int, first: int) -> TextBatch:
    """A batch from a column of strings or bytes; nulls and empty strings become rejects."""
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if not _is_text(column.type):
        raise CorruptInputError(f"the text column has type {column.type}, not string or binary")
    null = np.asarray(column.is_null())
    empty = np.asarray(pc.equal(pc.binary_length(column), 0).fill_null(False))
    rejects = [
        Reject(first + int(i), "null_text" if null[i] else "empty_text") for i in np.flatnonzero(null | empty)
    ]
    keep = ~(null | empty)
    binary = column.cast(pa.large_binary())
    if rejects:  # a filter copies the text
        binary = binary.filter(pa.array(keep))
    _, offsets, data = binary.buffers()
    texts = pa.LargeStringArray.from_buffers(len(binary), offsets, data, offset=binary.offset)
    return _checked(index, len(column), first, np.flatnonzero(keep), texts, rejects)


def _is_text(kind: pa.DataType) -> bool:
    tests = (pa.types.is_string, pa.types.is_large_string, pa.types.is_binary, pa.types.is_large_binary)
    return any(test(kind) for test in (*tests, pa.types.is_string_view, pa.types.is_binary_view))


def _missing(field: str, names: list[str]) -> CorruptInputError:
    return CorruptInputError(f"no column {field!r}; the columns are {', '.join(names)}")


def _parquet_batches(piece: Piece, field: str) -> Iterator[pa.Array]:
    try:
        # Without a buffer Arrow reads all of a row group before its first row: 400 MB of one of 850 MB of text.
        options: dict[str, Any] = {"pre_buffer": False, "buffer_size": READ_SIZE}
        with open_parquet(piece.file.path) as stream, pq.ParquetFile(stream, **options) as file:
            if field not in file.schema_arrow.names:
                raise _missing(field, file.schema_arrow.names)
            stop = file.metadata.num_row_groups if piece.stop is None else piece.stop
            for group in range(piece.start or 0, stop):
                meta = file.metadata.row_group(group)
                rows = max(1, meta.num_rows * BATCH_BYTES // max(1, meta.total_byte_size))
                for batch in file.iter_batches(
                    batch_size=rows, row_groups=[group], columns=[field], use_threads=False
                ):
                    yield batch.column(0)
    except (pa.ArrowException, OSError) as error:
        raise CorruptInputError(f"damaged Parquet: {error}") from None


def _dataset_batches(piece: Piece, field: str) -> Iterator[pa.Array]:
    from datasets import load_from_disk

    dataset = load_from_disk(piece.file.path)
    if field not in dataset.column_names:
        raise _missing(field, dataset.column_names)
    dataset = dataset.select_columns([field]).with_format("arrow")
    start, stop = piece.start or 0, len(dataset) if piece.stop is None else piece.stop
    rows = max(1, int(BATCH_BYTES * len(dataset) / max(1, piece.file.size)))
    for at in range(start, stop, rows):
        yield dataset[at : min(stop, at + rows)][field].combine_chunks()


def _hub_batches(piece: Piece, field: str) -> Iterator[pa.Array]:
    """Rows of one shard of a hub dataset."""
    dataset = open_hub(piece.file.path)
    names = dataset.column_names
    if names is not None and field not in names:
        raise _missing(field, names)
    if piece.start is not None:
        dataset = dataset.shard(dataset.num_shards, piece.start)
    for batch in dataset.iter(batch_size=256):
        if field not in batch:
            raise _missing(field, list(batch))
        yield pa.array(batch[field])
