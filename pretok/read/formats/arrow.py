"""Arrow files and streams, as `datasets` saves them: a document is a row. A file is split between record batches."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from itertools import islice
from typing import Any, NamedTuple

import pyarrow as pa

from pretok.base.units import human_bytes
from pretok.read.files import READ_SIZE, CorruptInputError, InputFile, open_input
from pretok.read.format import Keep, Piece, Probe, Records
from pretok.read.formats.tables import Choose, Columns, read_table, schema_fields, split_parts
from pretok.read.paths import is_remote
from pretok.read.record_format import RecordFormat

SUFFIXES: tuple[str, ...] = (".arrow",)
CERTAIN: bool = True
TABLE: bool = True
_FILE, _STREAM = b"ARROW1", b"\xff\xff\xff\xff"
"""First bytes of an Arrow file, and of an Arrow stream, as `datasets` saves it."""
MOST_UNPACKED = 2 << 30
"""Most bytes that a record batch may have once it is decompressed, which Arrow does for a whole batch at a time."""


def recognise(head: bytes, _tail: bytes) -> bool:
    """See `Format`."""
    return head.startswith((_FILE + b"\0\0", _STREAM))


@contextmanager
def _opened(path: str, small: bytes | None = None) -> Iterator[tuple[pa.Schema, Iterator[Any]]]:
    """Yield (schema, record batches) of an Arrow file or stream.

    A local file is memory-mapped, so only the header of a skipped batch is read. small: all its bytes, if they have
    been read.
    """
    remote = small is None and is_remote(path)
    with open_input(path, READ_SIZE) if remote else _mapped(path, small) as stream:
        beginning = stream.read(len(_FILE))
        stream.seek(0)
        if beginning == _FILE:
            file = pa.ipc.open_file(stream)
            schema, batches = file.schema, map(file.get_batch, range(file.num_record_batches))
        else:
            reader = pa.ipc.open_stream(stream)
            schema, batches = reader.schema, iter(reader)
        yield schema, batches if remote else _bounded(_headers(path, small), batches)


def _mapped(path: str, small: bytes | None) -> Any:
    return pa.memory_map(path) if small is None else pa.BufferReader(small)


class _Header(NamedTuple):
    """What the headers of a record batch and of the dictionaries before it say."""

    rows: int
    bytes: int
    """Of their buffers, decompressed."""


def _headers(path: str, small: bytes | None = None) -> Iterator[_Header]:
    """Yield what the headers of a local file's record batches say, without decompressing one.

    Headers are flatbuffers of Arrow's format/Message.fbs; pyarrow has checked their offsets. A buffer of a compressed
    batch begins with its size. Raises CorruptInputError for a buffer outside of its batch.
    """
    size = 0
    with _mapped(path, small) as stream:
        stream.seek(8 if stream.read(len(_FILE)) == _FILE else 0)
        for message in pa.ipc.MessageReader.open_stream(stream):
            head, body = memoryview(message.metadata), message.body
            batch = _pointed(head, _field(head, _pointed(head, 0), 2))
            if message.type == "dictionary":
                batch = _pointed(head, _field(head, batch, 1))
            elif message.type != "record batch":
                continue
            rows, buffers, packed = (_field(head, batch, number) for number in (0, 2, 3))
            places = (
                [*struct.iter_unpack("<qq", _vector(head, _pointed(head, buffers), 16))] if buffers else []
            )
            if any(not 0 <= start <= start + length <= len(body) for start, length in places):
                raise CorruptInputError("damaged Arrow: a buffer is outside of its record batch")
            for start, length in places:
                unpacked = struct.unpack_from("<q", body, start)[0] if packed and length >= 8 else length
                size += length if unpacked < 0 else unpacked  # -1: a buffer that is not compressed
            if message.type == "record batch":
                yield _Header(struct.unpack_from("<q", head, rows)[0] if rows else 0, size)
                size = 0


def _pointed(head: memoryview, at: int) -> int:
    """Return where the offset at a place of a flatbuffer leads."""
    return at + int(struct.unpack_from("<I", head, at)[0])


def _vector(head: memoryview, at: int, width: int) -> memoryview:
    """Return the elements of `width` bytes of a flatbuffer's vector."""
    return head[at + 4 : at + 4 + width * int(struct.unpack_from("<I", head, at)[0])]


def _field(head: memoryview, table: int, number: int) -> int:
    """Return the place of a field in a table of a flatbuffer, 0 if it is not written."""
    names = table - int(struct.unpack_from("<i", head, table)[0])
    if 4 + 2 * number >= struct.unpack_from("<H", head, names)[0]:
        return 0
    offset = int(struct.unpack_from("<H", head, names + 4 + 2 * number)[0])
    return table + offset if offset else 0


def _bounded(headers: Iterator[_Header], batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the record batches of a local file.

    Raises CorruptInputError before one that unpacks to too much, and if the file's own list of its batches is another.
    """
    for number, header in enumerate(headers):
        if header.bytes > MOST_UNPACKED:
            raise CorruptInputError(
                f"record batch {number} unpacks to {human_bytes(header.bytes)}, more than the "
                f"{human_bytes(MOST_UNPACKED)} that one may; write the file again with smaller record batches"
            )
        batch = next(batches, None)
        if batch is None or len(batch) != header.rows:
            raise CorruptInputError(f"damaged Arrow: the footer does not list record batch {number}")
        yield batch
    if next(batches, None) is not None:
        raise CorruptInputError("damaged Arrow: the footer lists more record batches than there are")


def probe(file: InputFile, _sampled: bool) -> Probe:
    """See `Format`. From the headers of its record batches; of a remote file from its schema alone."""
    with _opened(file.path) as (schema, _):
        fields = schema_fields(schema)
    batches = [] if is_remote(file.path) else [*_headers(file.path)]
    parts = tuple(max(0, min(batch.bytes, file.size)) for batch in batches)
    rows = tuple(max(0, batch.rows) for batch in batches)
    return Probe(file, sum(parts) or file.size, parts, rows, fields)


split = split_parts


def read(
    piece: Piece, small: bytes | None, record: RecordFormat, keep: Keep, batch_bytes: int
) -> Iterator[Records]:
    """See `Format`."""
    return read_table(partial(_rows, small), "Arrow", piece, record, keep, batch_bytes)


def _rows(small: bytes | None, piece: Piece, choose: Choose, batch_bytes: int) -> Iterator[Columns]:
    """Yield some rows at a time: a record batch may have any size, so it is split by its bytes."""
    with _opened(piece.file.path, small) as (schema, batches):
        chosen = choose(schema)
        for batch in islice(batches, piece.start or 0, piece.stop):
            yield from chosen.columns(batch, batch_bytes)
