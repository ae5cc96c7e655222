"""Parquet: a document is a row. A file is split between row groups."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pyarrow as pa
import pyarrow.parquet as pq

from pretok.read.files import READ_SIZE, InputFile, open_parquet
from pretok.read.format import Keep, Piece, Probe, Records
from pretok.read.formats.tables import Choose, Columns, read_table, schema_fields, split_parts
from pretok.read.record_format import RecordFormat

SUFFIXES: tuple[str, ...] = (".parquet",)
CERTAIN: bool = True
TABLE: bool = True
_MARK = b"PAR1"
"""First and last bytes of a file. A truncated one is recognised by its name, and reading it fails."""
MOST_ROWS = 1024
"""Most rows that are decoded at a time. Arrow has no limit in bytes, and a value in a dictionary takes the same space
in the file for one row as for all."""


def recognise(head: bytes, tail: bytes) -> bool:
    """See `Format`."""
    return head.startswith(_MARK) and tail.endswith(_MARK)


def probe(file: InputFile, _sampled: bool) -> Probe:
    """See `Format`: from the footer.

    The sizes are those of row groups: reading the size of a column in a damaged footer makes pyarrow abort the process
    (seen with version 23).
    """
    with open_parquet(file.path) as stream, pq.ParquetFile(stream) as opened:
        groups = [opened.metadata.row_group(index) for index in range(opened.num_row_groups)]
        fields = schema_fields(opened.schema_arrow)
    # A damaged footer may have negative numbers.
    parts = tuple(max(0, group.total_byte_size) for group in groups)
    return Probe(file, sum(parts), parts, tuple(max(0, group.num_rows) for group in groups), fields)


split = split_parts


def read(
    piece: Piece, small: bytes | None, record: RecordFormat, keep: Keep, batch_bytes: int
) -> Iterator[Records]:
    """See `Format`."""
    return read_table(partial(_rows, small), "Parquet", piece, record, keep, batch_bytes)


def _rows(small: bytes | None, piece: Piece, choose: Choose, batch_bytes: int) -> Iterator[Columns]:
    """Yield some rows at a time, of about batch_bytes of text.

    Their sizes are known from the rows before, at first from the footer.
    """
    # Without a buffer, Arrow reads a whole row group before its first row: 400 MB for 850 MB of text. Page checksums
    # are verified if the file has any: 1 ms of a core for 16 MiB of text under zstd.
    options = {"pre_buffer": False, "buffer_size": READ_SIZE, "page_checksum_verification": True}
    with open_parquet(piece.file.path) if small is None else pa.BufferReader(small) as stream:
        file = pq.ParquetFile(stream, **options)
        chosen = choose(file.schema_arrow)
        flat = {file.schema.column(at).path for at in range(len(file.schema))}.intersection(chosen.leaves)
        packed = pq.ParquetFile(stream, metadata=file.metadata, read_dictionary=[*flat], **options)
        rows = size = 0
        for group in range(piece.start or 0, file.num_row_groups if piece.stop is None else piece.stop):
            which = {"row_groups": [group], "columns": chosen.leaves, "use_threads": False}
            # One row holds its column's whole dictionary; more could be above the 2 GiB of a dictionary of Arrow.
            if (first := next(packed.iter_batches(1, **which), None)) is None:
                continue
            bytes_per_row = size / max(1, rows)
            if not rows:
                about = file.metadata.row_group(group)
                bytes_per_row = about.total_byte_size / max(1, about.num_rows)
            # Each of the next rows may be the longest of the dictionary: 661 bytes became 20 GB.
            bytes_per_row = max(1, bytes_per_row, chosen.longest(first))
            for batch in file.iter_batches(min(MOST_ROWS, max(1, int(batch_bytes / bytes_per_row))), **which):
                rows += len(batch)
                for columns in chosen.columns(batch, batch_bytes):
                    size += columns[0].nbytes
                    yield columns
