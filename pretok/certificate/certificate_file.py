"""The bytes of a certificate (docs/formats.md).

Input: a `Certificate`, the leaves of shards that it shows and the hashes that lead to the root; or a file. Output: the
file; or these three, where the file is whole.

    pretok-certificate 1 N DIGEST\\n    N: bytes of what follows; DIGEST: SHA-256 of all behind this line
    N bytes                            the certificate as JSON, compressed by zlib
    leaves                             of the files in `leaves`, in their order: 4,096 bytes, the last of a file fewer
    hashes                             32 bytes each: what leads to the roots of these files, in their order, and then
                                       from `entries` to the root over all
"""

from __future__ import annotations

import json
import zlib
from hashlib import sha256
from pathlib import Path

import msgspec

from pretok.base.errors import IntegrityError, MismatchError
from pretok.base.lock import hold
from pretok.base.records import Count, Record, read_record, to_json
from pretok.base.storage import reading, write_bytes

MAGIC = "pretok-certificate"
VERSION = 1
MAX_HEAD = 128
MAX_JSON = 1 << 28
"""Bytes of JSON that are taken: more is no certificate, but an attempt to fill the memory."""


class ShownLeaves(Record, frozen=True):
    """Leaves of the shard that `entry` describes. ranges: (first, how many), rising."""

    entry: Count
    ranges: tuple[tuple[Count, Count], ...]


class Entry(Record, frozen=True):
    """What the root over all says of a file. number: its place in the tree; text: the JSON that is hashed."""

    number: Count
    text: str


class ReadSegment(Record, frozen=True):
    """Steps of a run: from `step` on, from 0, each reads `global_batch` positions, the first of them from `position`
    on."""

    step: Count
    position: Count
    global_batch: Count


class ShownPiece(Record, frozen=True):
    """Tokens that lie together. entry: of their shard; first: of them in it; tokens: how many."""

    entry: Count
    first: Count
    tokens: Count


class ShownSequence(Record, frozen=True):
    """What stands at a position of the mix."""

    position: Count
    source: str
    epoch: Count
    sequence: Count
    pieces: tuple[ShownPiece, ...]


class ShownDocument(Record, frozen=True):
    """A document of which tokens are shown. entry, first, tokens: where it lies; number: in its source's split, from 0;
    file, line: where it came from; hash: of its text; kept: the columns that the recipe keeps."""

    entry: Count
    first: Count
    tokens: Count
    number: Count
    file: str
    line: Count
    hash: str
    kept: dict[str, object]


class Certificate(Record, frozen=True, kw_only=True, omit_defaults=True):
    """What a certificate says. root: over all files of the shards; files: how many entries that tree has; entries:
    those of them that are shown, the first being of the folder; mix: as its file has it; step, segment: of a run;
    document: the number in `documents` of the one that the sequences are for, which are all between two positions that
    read it; between: the first of these positions and the one behind the last, as far as the run has come, None: all of
    the mix. One of step and document is there."""

    root: str
    files: Count
    entries: tuple[Entry, ...]
    leaves: tuple[ShownLeaves, ...]
    mix: dict[str, object]
    segment: ReadSegment | None = None
    step: Count | None = None
    document: Count | None = None
    between: tuple[Count, Count] | None = None
    sequences: tuple[ShownSequence, ...]
    documents: tuple[ShownDocument, ...]


def write_certificate(path: Path, certificate: Certificate, leaves: bytes, hashes: bytes) -> int:
    """Write it atomically; its size. Raises OutputError."""
    text = json.dumps(to_json(certificate), ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    packed = zlib.compress(text.encode(), 9)
    body = b"".join((packed, leaves, hashes))
    head = f"{MAGIC} {VERSION} {len(packed)} {sha256(body).hexdigest()}\n".encode()
    with hold(path, "certify", beside=True):  # takes away what a killed one left
        write_bytes(path, head + body)
    return len(head) + len(body)


def read_certificate(path: Path) -> tuple[Certificate, memoryview]:
    """(what it says, the leaves and the hashes). Raises IntegrityError, MismatchError for another version."""
    with reading(path):
        data = path.read_bytes()
    line, newline, _ = data[:MAX_HEAD].partition(b"\n")
    words = line.decode("ascii", "replace").split(" ")
    if words[0] != MAGIC or not newline or len(words) != 4:
        raise IntegrityError(f"{path} is no certificate of pretok certify, or its first line is damaged")
    if words[1] != str(VERSION):
        raise MismatchError(f"{path} is a certificate of version {words[1]}; this pretok reads {VERSION}")
    body = memoryview(data)[len(line) + 1 :]
    if sha256(body).hexdigest() != words[3]:
        raise IntegrityError(
            f"{path} was cut short or is damaged: it has another SHA-256 than its first line says"
        )
    size = int(words[2]) if words[2].isdecimal() else -1
    if str(size) != words[2] or size > len(body):
        raise IntegrityError(f"{path} is damaged: its first line says {words[2]} bytes of JSON")
    return _decoded(path, body[:size]), body[size:]


def _decoded(path: Path, packed: memoryview) -> Certificate:
    unpacking = zlib.decompressobj()
    try:
        text = unpacking.decompress(packed, MAX_JSON)
        if not unpacking.eof or unpacking.unused_data:
            raise IntegrityError(f"{path} is damaged: its JSON is cut short, too long, or followed by more")
        return read_record(Certificate, msgspec.json.decode(text), path)
    except (zlib.error, ValueError, RecursionError) as error:
        raise IntegrityError(f"{path} is damaged: what follows its first line is no JSON ({error})") from None
