"""Blocks of bytes -> spans of whole records, in memory for the longest accepted record.

Input: blocks from a file or a decompressor, and the separator of records. Output: spans of about `batch_bytes` that end
where a record ends, and None for each record that is longer than the limit, whose bytes are dropped at once. The output
depends only on the bytes, not on how they were split into blocks.
"""

from __future__ import annotations

from collections.abc import Iterator

from pretok.read.files import CorruptInputError, read_bytes, unpack, without_bom
from pretok.read.format import Piece


def piece_spans(
    piece: Piece, small: bytes | None, separator: bytes, limit: int, batch_bytes: int
) -> Iterator[memoryview | None]:
    """Yield the spans of a piece, without the byte order mark of its file.

    separator: b"" if the whole file is one record; small: all bytes of the file, if they have been read already.
    """
    file, start = piece.file, piece.start or 0
    if small is None:
        blocks = read_bytes(file.path, file.compression, start, piece.stop)
    else:
        blocks = unpack(small[start : piece.stop], file.compression)
    first = start == 0
    for span in (
        whole_records(blocks, separator, limit, batch_bytes) if separator else whole_file(blocks, limit)
    ):
        yield without_bom(span) if first and span is not None else span
        first = False
        del span


def whole_records(
    blocks: Iterator[bytes], separator: bytes, limit: int, batch_bytes: int
) -> Iterator[memoryview | None]:
    """Yield spans that end at the last separator within batch_bytes, or at the end of a record that is longer.

    The last span ends with the input. None stands for a record of more than max(limit, batch_bytes) bytes.

    Before a CorruptInputError is raised, the complete records that were read are yielded.
    """
    most = max(limit, batch_bytes) + len(separator)
    pending, wanted = bytearray(), batch_bytes  # bytes not yielded yet, and how many are needed to go on
    skipping = False  # whether `pending` continues a record that is too long

    def decided() -> Iterator[memoryview | None]:
        """Yield, and drop, the spans that do not depend on what follows."""
        nonlocal pending, wanted, skipping
        start = 0
        while skipping or len(pending) - start >= batch_bytes:
            if skipping:
                end = pending.find(separator, start)
                if end < 0:  # the last bytes may begin a separator
                    start = max(start, len(pending) - len(separator) + 1)
                    break
                yield None
                start, skipping = end + len(separator), False
                continue
            end = _last(pending, separator, start, start + batch_bytes)
            if end < 0:
                end = pending.find(separator, start + batch_bytes - len(separator) + 1, start + most)
            if end >= 0:
                yield memoryview(pending)[start : end + len(separator)]
                start = end + len(separator)
            elif len(pending) - start >= most:
                start, skipping = start + most - len(separator), True
            else:
                break
        if start:  # new memory, as a span in the old memory may still be in use
            pending = pending[start:]
        # A long record is searched again when it has doubled, not at every block.
        long = len(pending) >= batch_bytes
        wanted = 0 if skipping else min(2 * len(pending), most) if long else batch_bytes

    try:
        for block in blocks:
            pending += block
            if len(pending) >= wanted:
                yield from decided()
    except CorruptInputError:
        yield from decided()
        end = _last(pending, separator, 0, len(pending))
        if end >= 0:
            yield memoryview(pending)[: end + len(separator)]
        raise
    yield from decided()
    if skipping:
        yield None
    elif pending:
        yield memoryview(pending)


def _last(data: bytearray, mark: bytes, start: int, stop: int) -> int:
    r"""Return the last separator that a forward search from `start` finds, or -1.

    A backward search finds the same one unless separators overlap: three line ends contain "\n\n" twice.
    """
    last = data.rfind(mark, start, stop)
    if last < 0 or data.rfind(mark, max(start, last - len(mark) + 1), last + len(mark) - 1) < 0:
        return last
    return stop - len(data[start:stop].split(mark)[-1]) - len(mark)


def whole_file(blocks: Iterator[bytes], limit: int) -> Iterator[memoryview | None]:
    """Read all bytes as one record, also of an empty file; None, without reading further, if more than `limit`."""
    data = bytearray()
    for block in blocks:
        data += block
        if len(data) > limit:
            yield None
            return
    yield memoryview(data)
