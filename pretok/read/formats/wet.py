"""WET: the text of web pages, as Common Crawl extracts it. A document is the text of a record of type `conversion`.

A record is like an object with the field `text` and one for each WARC header, such as `WARC-Target-URI` (ISO 28500).
Other records, which describe the file, are passed over. A file is not split.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from itertools import count, islice

import pyarrow as pa

from pretok.read.files import CorruptInputError, InputFile, read_bytes, unpack
from pretok.read.format import TEXT, Keep, Piece, Probe, Records, text_size, too_long
from pretok.read.formats.tables import documents_of, fields_read
from pretok.read.record_format import RecordFormat

SUFFIXES: tuple[str, ...] = (".wet",)
CERTAIN: bool = True
TABLE: bool = False
FIELD = "text"
"""The name of the text of a record."""
PROBED_RECORDS = 20
"""Records of a file that are read to find out its headers."""
MOST_HEADERS = 1 << 16
"""Bytes of the longest headers of a record."""
_BEGINNING = b"WARC/"
_TYPE = re.compile(rb"^WARC-Type:[ \t]*([\w-]+)", re.IGNORECASE | re.MULTILINE)
_TEXT, _ABOUT_THE_FILE = b"conversion", b"warcinfo"
_GAP, _END, _CONTINUED = (re.compile(text) for text in (rb"[\r\n]*", rb"\r?\n\r?\n", rb"\r?\n[ \t]+"))
_LENGTH = re.compile(rb"\d{1,18}")


def recognise(head: bytes, _tail: bytes) -> bool:
    """See `Format`: its first record, but those about the file, is text."""
    if not head.startswith(_BEGINNING):
        return False
    kinds = (kind.lower() for kind in _TYPE.findall(head))
    return next((kind for kind in kinds if kind != _ABOUT_THE_FILE), _TEXT) == _TEXT


def probe(file: InputFile, sampled: bool) -> Probe:
    """See `Format`. The fields are those of the first records."""
    names = {FIELD} if sampled else set()
    with suppress(CorruptInputError):  # reported when it is read
        records = _records(read_bytes(file.path, file.compression), 0) if sampled else iter(())
        for headers, _ in islice(records, PROBED_RECORDS):
            names.update(name.decode("utf-8", "replace") for name in headers)
    return Probe(file, text_size(file), fields={name: {TEXT} for name in names})


def split(probe: Probe, _limit: int) -> list[tuple[Piece, int]]:
    """See `Format`. Where a record begins is known when those before it are read, so a file is not split."""
    return [(Piece(probe.file), probe.size)]


def read(
    piece: Piece, small: bytes | None, record: RecordFormat, keep: Keep, batch_bytes: int
) -> Iterator[Records]:
    """See `Format`."""
    file, fields = piece.file, fields_read(record)
    names = [name.lower().encode() for name in (*fields, *(column.field for column in keep))]
    blocks = unpack(small, file.compression) if small is not None else read_bytes(file.path, file.compression)
    rows: list[list[bytes | None]] = []
    size, damage = 0, None

    def documents() -> Iterator[Records]:
        if rows:
            text, *others = (pa.array(values, pa.large_binary()) for values in zip(*rows, strict=True))
            rows.clear()
            yield documents_of([text, None, *others], record, keep)

    try:
        for headers, text in _records(blocks, record.max_document):
            if text is None or size + len(text) > batch_bytes:
                yield from documents()
                size = 0
            if text is None:
                yield too_long(record.max_document, keep)
                continue
            values = {name.lower(): value for name, value in headers.items()} | {FIELD.encode(): text}
            rows.append([values.get(name) for name in names])
            size += len(text)
    except CorruptInputError as error:
        damage = error
    yield from documents()
    if damage:
        raise damage


def _records(blocks: Iterator[bytes], limit: int) -> Iterator[tuple[dict[bytes, bytes], bytes | None]]:
    """Yield (headers, text) of each record of text; None for a text of more than `limit` bytes, dropped as they come.

    Raises CorruptInputError after the last whole record.
    """
    data = bytearray()  # its first bytes are removed without a copy of the others

    def more() -> bool:
        block = next(blocks, None)
        data.extend(block or b"")
        return block is not None

    for number in count(1):
        while True:
            gap = _GAP.match(data)
            del data[: gap.end() if gap else 0]
            end = _END.search(data, 0, MOST_HEADERS)
            if end or len(data) >= MOST_HEADERS or not more():
                break
        if not data:
            return
        if not end or not data.startswith(_BEGINNING):
            raise CorruptInputError(f"damaged WET: record {number} does not begin with the headers of WARC")
        lines = _CONTINUED.sub(b" ", data[: end.start()]).splitlines()[1:]
        parts = (line.partition(b":") for line in lines)
        headers = {bytes(name.strip()): bytes(value.strip()) for name, _, value in parts}
        known = {name.lower(): value for name, value in headers.items()}
        length = _LENGTH.fullmatch(known.get(b"content-length", b""))
        if not length:
            raise CorruptInputError(f"damaged WET: record {number} has no Content-Length")
        del data[: end.end()]
        left, is_text = int(length[0]), known.get(b"warc-type", b"").lower() == _TEXT
        kept = is_text and left <= limit
        while len(data) < left + 4:  # the line ends after a record belong to it
            if not kept and len(data) <= left:
                left -= len(data)
                data.clear()
            if not more():
                break
        # A wrong length would make a document of something else.
        follows = bytes(data[left : left + 4]).lstrip(b"\r\n")
        if len(data) < left or not _BEGINNING.startswith(follows):
            raise CorruptInputError(
                f"damaged WET: record {number} is longer or shorter than its Content-Length"
            )
        if is_text:
            yield headers, bytes(data[:left]) if kept else None
        del data[:left]
