"""JSON Lines: an object a line, plain or compressed.

An uncompressed file is split where lines start. `json_parser` parses the lines; a rejected line is parsed once more by
the json module, to say what is wrong with it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import islice, pairwise
from typing import IO, Any

import numpy as np
from msgspec import UNSET

from pretok.base.storage import tried
from pretok.base.texts import from_buffers
from pretok.read.files import CorruptInputError, InputFile, open_input, read_bytes, without_bom
from pretok.read.format import LIST, NOTHING, TEXT, Keep, Piece, Probe, Records, text_size, too_long
from pretok.read.formats.json_parser import parse_lines
from pretok.read.formats.json_scan import MAX_DEPTH
from pretok.read.record_format import RecordFormat
from pretok.read.rejects import MALFORMED, MISSING, NOT_AN_OBJECT, TOO_LONG
from pretok.read.whole_records import piece_spans

SUFFIXES: tuple[str, ...] = (".jsonl", ".json", ".ndjson")
CERTAIN: bool = False
TABLE: bool = False
PROBED_RECORDS, PROBED_BYTES = 20, 1 << 20
"""How much of a file is read to find out its fields, whichever limit comes first."""
KINDS = {
    str: TEXT, list: LIST, type(None): NOTHING, int: "integer", float: "float", bool: "boolean",
}  # fmt: skip
"""Type of a value of JSON that is no object -> its kind."""
LINE_BLOCK = 1 << 16
"""Bytes read at a time to find where a line ends."""
EXPLAINED_BYTES = 1 << 20
"""Longest line that is parsed again to find out what is wrong with it."""


def recognise(head: bytes, _tail: bytes) -> bool:
    """See `Format`: it begins with an object."""
    return without_bom(head).lstrip()[:1] == b"{"


def probe(file: InputFile, sampled: bool) -> Probe:
    """See `Format`. The fields are those of the first records."""
    fields: dict[str, set[str]] = {}
    for record in _first_records(file) if sampled else ():
        for name, value in values_of(record) if isinstance(record, dict) else ():
            fields.setdefault(name, set()).add(KINDS[type(value)])
    return Probe(file, text_size(file), fields=fields)


def _first_records(file: InputFile) -> Iterator[Any]:
    """Yield the first lines that are complete and valid JSON."""
    data = b""
    stop = None if file.compression else min(file.size, PROBED_BYTES)
    try:
        for block in read_bytes(file.path, file.compression, 0, stop):
            data += block
            if len(data) >= PROBED_BYTES or data.count(b"\n") >= PROBED_RECORDS:
                break
        else:
            data += b"\n" * (stop is None or stop == file.size)  # the last line may lack its end
    except CorruptInputError:  # reported when it is read
        pass
    for line in islice(without_bom(data[: data.rfind(b"\n") + 1]).split(b"\n"), PROBED_RECORDS):
        try:
            yield json.loads(line)
        except (ValueError, RecursionError):
            continue


def values_of(record: dict[str, object], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (dotted name, value) of everything in a record that is not an object itself."""
    for key, value in record.items():
        if isinstance(value, dict):
            yield from values_of(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def split(probe: Probe, limit: int) -> list[tuple[Piece, int]]:
    """See `Format`: nearly equal byte ranges, which begin where a line does."""
    file, count = probe.file, -(-probe.size // limit)
    if file.compression:
        return [(Piece(file), probe.size)]
    try:
        borders = tried(lambda: line_starts(file, [file.size * i // count for i in range(count + 1)]))
    except OSError:  # no longer readable: reading the piece will report it
        return [(Piece(file), file.size)]
    return [(Piece(file, start, stop), stop - start) for start, stop in pairwise(borders)]


def line_starts(file: InputFile, nominal: list[int]) -> list[int]:
    """Move each inner border forward to the start of a line; equal borders become one."""
    with open_input(file.path) as stream:
        starts = [_first_line(stream, *span) for span in pairwise(nominal[1:])]
    return [0, *(start for start in starts if start), file.size]


def _first_line(stream: IO[bytes], at: int, end: int) -> int | None:
    """Return the first start of a line from `at` on and before `end`, None if there is none."""
    for start in range(at - 1, end - 1, LINE_BLOCK):
        stream.seek(start)
        line_feed = stream.read(min(LINE_BLOCK, end - 1 - start)).find(b"\n")
        if line_feed >= 0:
            return start + line_feed + 1
    return None


def read(
    piece: Piece, small: bytes | None, record: RecordFormat, keep: Keep, batch_bytes: int
) -> Iterator[Records]:
    """See `Format`."""
    for span in piece_spans(piece, small, b"\n", record.max_line, batch_bytes):
        yield too_long(record.max_line, keep) if span is None else _parse(span, record, keep)
        del span  # the span and what refers to it are freed before the next one is read


def _parse(data: memoryview, record: RecordFormat, keep: Keep) -> Records:
    block = np.frombuffer(data, np.uint8)
    raw = record.conversation is not UNSET  # the JSON of the field
    parsed = parse_lines(block, record.field, keep, record.max_document, record.max_line, raw)

    def explain(at: int) -> str:
        return _explain(data[slice(*parsed.places[at])], int(parsed.status[at]), record)

    texts, sizes = from_buffers(parsed.texts, parsed.offsets), np.diff(parsed.places)[:, 0]
    return Records(parsed.status, texts, explain, sizes, parsed.numbers, parsed.lines, parsed.kept)


def _explain(line: memoryview, status: int, record: RecordFormat) -> str:
    """Return the details of a rejected line.

    They are the error of the json module, the fields that it has instead, or its start.
    """
    if status == TOO_LONG:
        return f"more than {record.max_line if len(line) > record.max_line else record.max_document} bytes"
    start = bytes(line[:80]).decode("utf-8", "replace").strip()
    if status in (MALFORMED, NOT_AN_OBJECT) and start.startswith("["):
        return "a JSON array; JSON Lines has one object a line"
    if status not in (MALFORMED, MISSING) or len(line) > EXPLAINED_BYTES:
        return start
    try:
        value = json.loads(str(line, "utf-8", "replace").rstrip("\r"))  # of bytes it guesses the encoding
    except json.JSONDecodeError as error:
        return f"{error.msg.removesuffix(' at')} at character {error.pos + 1}"
    except RecursionError:
        return f"nested more than {MAX_DEPTH:,} deep"
    except ValueError as error:
        return str(error)[:200]
    if status == MALFORMED:
        return f"nested more than {MAX_DEPTH:,} deep"  # else the json module accepts no less than this parser
    names = ", ".join(name for name, _ in values_of(value)) or "no field"
    return f"there is {names[:200]}".encode("utf-8", "replace").decode()  # a key may escape a lone surrogate
