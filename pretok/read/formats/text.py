"""Plain text: a file is one document, or several with a separator after each.

As with line ends, a separator at the end of the file ends the last document and does not begin another.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from pretok.base.texts import from_buffers
from pretok.read.files import InputFile
from pretok.read.format import Keep, Piece, Probe, Records, text_size, too_long
from pretok.read.formats.tables import column_records
from pretok.read.record_format import RecordFormat
from pretok.read.whole_records import piece_spans

SUFFIXES: tuple[str, ...] = (".txt", ".text", ".md")
CERTAIN: bool = False
TABLE: bool = False


def recognise(_head: bytes, _tail: bytes) -> bool:
    """See `Format`. Any bytes may be text: only the name of a file, or its source, says that it is."""
    return False


def probe(file: InputFile, _sampled: bool) -> Probe:
    """See `Format`."""
    return Probe(file, text_size(file))


def split(probe: Probe, _limit: int) -> list[tuple[Piece, int]]:
    """See `Format`. A document may have any length, so a file is not split."""
    return [(Piece(probe.file), probe.size)]


def read(
    piece: Piece, small: bytes | None, record: RecordFormat, _keep: Keep, batch_bytes: int
) -> Iterator[Records]:
    """See `Format`. Plain text has no fields to keep."""
    mark = record.separator.encode()
    for span in piece_spans(piece, small, mark, record.max_document, batch_bytes):
        if span is None:
            yield too_long(record.max_document)
            continue
        data = bytes(span)
        parts = data.split(mark) if mark else [data]
        if mark and not parts[-1]:
            parts.pop()
        offsets = np.cumsum([0, *map(len, parts)], dtype=np.int64)
        texts = np.frombuffer(b"".join(parts), np.uint8)  # a single text is not copied
        yield column_records(from_buffers(texts, offsets), [], (), record.max_document)
