"""Arrow files and streams, as `datasets` saves them: a document is a row. A file is split between record batches."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Any

import pyarrow as pa

from pretok.read.files import READ_SIZE, InputFile, open_input
from pretok.read.format import Keep, Piece, Probe, Records
from pretok.read.formats.tables import Choose, Columns, read_table, schema_fields, split_parts
from pretok.read.paths import is_remote
from pretok.read.record_format import RecordFormat

SUFFIXES: tuple[str, ...] = (".arrow",)
CERTAIN: bool = True
TABLE: bool = True
_FILE, _STREAM = b"ARROW1", b"\xff\xff\xff\xff"
"""First bytes of an Arrow file, and of an Arrow stream, as `datasets` saves it."""


def recognise(head: bytes, _tail: bytes) -> bool:
    """See `Format`."""
    return head.startswith((_FILE + b"\0\0", _STREAM))


@contextmanager
def _opened(path: str) -> Iterator[tuple[pa.Schema, Iterator[Any]]]:
    """(schema, record batches) of an Arrow file or stream. A local file is memory-mapped, so only the header of a
    skipped batch is read."""
    with open_input(path, READ_SIZE) if is_remote(path) else pa.memory_map(path) as stream:
        beginning = stream.read(len(_FILE))
        stream.seek(0)
        if beginning == _FILE:
            file = pa.ipc.open_file(stream)
            yield file.schema, map(file.get_batch, range(file.num_record_batches))
        else:
            reader = pa.ipc.open_stream(stream)
            yield reader.schema, reader


def probe(file: InputFile, _sampled: bool) -> Probe:
    """See `Format`. From the headers of its record batches; of a remote file from its schema alone."""
    with _opened(file.path) as (schema, batches):
        sizes = [
            (min(batch.nbytes, file.size), batch.num_rows)
            for batch in (() if is_remote(file.path) else batches)
        ]
    parts, rows = zip(*sizes, strict=True) if sizes else ((), ())
    return Probe(file, sum(parts) or file.size, parts, rows, schema_fields(schema))


split = split_parts


def read(
    piece: Piece, _small: bytes | None, record: RecordFormat, keep: Keep, batch_bytes: int
) -> Iterator[Records]:
    """See `Format`."""
    return read_table(_rows, "Arrow", piece, record, keep, batch_bytes)


def _rows(piece: Piece, choose: Choose, batch_bytes: int) -> Iterator[Columns]:
    """Some rows at a time: a record batch may have any size, so it is split by its bytes."""
    with _opened(piece.file.path) as (schema, batches):
        chosen = choose(schema)
        for batch in islice(batches, piece.start or 0, piece.stop):
            yield from chosen.columns(batch, batch_bytes)
