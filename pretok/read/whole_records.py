"""The bytes of a file -> spans of whole records, in memory for the longest accepted record.

Input: the Fill of a file, and the separator of records. Output: spans of about `batch_bytes` that end where a record
ends, and None for each record that is longer than the limit, whose bytes are dropped at once. The output depends on the
bytes alone, not on how many of them the Fill gives at once.
"""

from __future__ import annotations

from collections.abc import Iterator

from pretok.read.files import CorruptInputError, in_file, in_memory, without_bom
from pretok.read.fill import Fill, fill_from
from pretok.read.format import Piece


def piece_spans(
    piece: Piece, small: bytes | None, separator: bytes, limit: int, batch_bytes: int
) -> Iterator[memoryview | None]:
    """Yield the spans of a piece, without the byte order mark of its file.

    separator: b"" if the whole file is one record; small: all bytes of the file, if they have been read already.
    """
    file, start = piece.file, piece.start or 0
    blocks = in_file(file.path, start, piece.stop) if small is None else in_memory(small[start : piece.stop])
    fill = fill_from(blocks, file.compression)
    first = start == 0
    for span in whole_records(fill, separator, limit, batch_bytes) if separator else whole_file(fill, limit):
        yield without_bom(span) if first and span is not None else span
        first = False
        del span


def whole_records(fill: Fill, separator: bytes, limit: int, batch_bytes: int) -> Iterator[memoryview | None]:
    """Yield spans that end at the last separator within batch_bytes, or at the end of a record that is longer.

    The last span ends with the input. None stands for a record of more than max(limit, batch_bytes) bytes.

    Before a CorruptInputError is raised, the complete records that were read are yielded.
    """
    most = max(limit, batch_bytes) + len(separator)
    pending, size = bytearray(), 0  # the first `size` bytes are not yielded yet
    wanted = batch_bytes  # how many are needed to go on
    skipping = False  # whether `pending` continues a record that is too long

    def decided() -> Iterator[memoryview | None]:
        """Yield, and drop, the spans that do not depend on what follows."""
        nonlocal pending, size, wanted, skipping
        start = 0
        while skipping or size - start >= batch_bytes:
            if skipping:
                end = pending.find(separator, start, size)
                if end < 0:  # the last bytes may begin a separator
                    start = max(start, size - len(separator) + 1)
                    break
                yield None
                start, skipping = end + len(separator), False
                continue
            end = _last(pending, separator, start, start + batch_bytes)
            if end < 0:
                end = pending.find(
                    separator, start + batch_bytes - len(separator) + 1, min(start + most, size)
                )
            if end >= 0:
                yield memoryview(pending)[start : end + len(separator)]
                start = end + len(separator)
            elif size - start >= most:
                start, skipping = start + most - len(separator), True
            else:
                break
        if start:
            # In the same memory, as new memory costs more than the copy, unless a span in it is still in use.
            rest = pending[start:size]
            size = len(rest)
            try:
                pending.append(0)  # is refused while a span is in use; the byte does not matter
            except BufferError:
                pending = bytearray(len(pending))
            pending[:size] = rest
        # A long record is searched again when it has doubled, not at every block.
        long = size >= batch_bytes
        wanted = 0 if skipping else min(2 * size, most) if long else batch_bytes

    try:
        while (end := fill(pending, size)) > size:
            size = end
            if size >= wanted:
                yield from decided()
    except CorruptInputError:
        yield from decided()
        end = _last(pending, separator, 0, size)
        if end >= 0:
            yield memoryview(pending)[: end + len(separator)]
        raise
    yield from decided()
    if skipping:
        yield None
    elif size:
        yield memoryview(pending)[:size]


def _last(data: bytearray, mark: bytes, start: int, stop: int) -> int:
    r"""Return the last separator that a forward search from `start` finds, or -1.

    A backward search finds the same one unless separators overlap: three line ends contain "\n\n" twice.
    """
    last = data.rfind(mark, start, stop)
    if last < 0 or data.rfind(mark, max(start, last - len(mark) + 1), last + len(mark) - 1) < 0:
        return last
    return stop - len(data[start:stop].split(mark)[-1]) - len(mark)


def whole_file(fill: Fill, limit: int) -> Iterator[memoryview | None]:
    """Read all bytes as one record, also of an empty file; None, without reading further, if more than `limit`."""
    data, size = bytearray(), 0
    while (end := fill(data, size)) > size:
        size = end
        if size > limit:
            yield None
            return
    yield memoryview(data)[:size]
