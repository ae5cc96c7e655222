"""The bytes of a certificate (docs/formats.md).

Input: a `Certificate`, the leaves of shards that it shows and the hashes that lead to the root; or a file. Output: the
file; or these three, where the file is whole.

    pretok-certificate 2 N DIGEST\\n    N: bytes of what follows; DIGEST: SHA-256 of all behind this line
    N bytes                            the certificate as JSON, compressed by zlib
    leaves                             those that hold its tokens, shard after shard: 4,096 bytes, the last of a file
                                       fewer
    hashes                             32 bytes each: what leads to the roots of these shards, in their order, and then
                                       from `entries` to the root over all

What follows from something else is not in it: which leaves there are, and what the mix has at a position.
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
from pretok.base.tree import LEAF

MAGIC = "pretok-certificate"
VERSION = 2
MAX_HEAD = 128
MAX_JSON = 1 << 28
"""Bytes of JSON that are taken: more is no certificate, but an attempt to fill the memory."""


Piece = tuple[Count, Count, Count]
"""Tokens that lie together: the entry of their shard, the first of them there, how many."""


class ReadSegment(Record, frozen=True):
    """Steps of a run: from `step` on, from 0, each reads `global_batch` positions, the first of them from `position`
    on."""

    step: Count
    position: Count
    global_batch: Count


class ShownSequence(Record, frozen=True):
    """What is read at a position of the mix."""

    position: Count
    pieces: tuple[Piece, ...]


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
    """What a certificate says. One of step and document is there."""

    entries: tuple[tuple[Count, str], ...]
    """(its place in the tree over all files, the JSON that is hashed there): the folder, then each shard."""
    mix: dict[str, object]
    """As its file has it."""
    segment: ReadSegment | None = None
    step: Count | None = None
    document: Count | None = None
    """The number in `documents` of the one that the sequences are for."""
    between: tuple[Count, Count] | None = None
    """The first position and the one behind the last between which these sequences are all that read the document, as
    far as the run has come; None: all of the mix."""
    sequences: tuple[ShownSequence, ...]
    documents: tuple[ShownDocument, ...]

    def ranges(self, width: int) -> dict[int, list[tuple[int, int]]]:
        """Of each entry the leaves, (first, end), that hold what is shown, in ranges that do not touch. width: bytes of
        a token."""
        pieces = [piece for sequence in self.sequences for piece in sequence.pieces]
        if self.document is not None:
            one = self.documents[self.document]
            pieces.append((one.entry, one.first, one.tokens))
        found: dict[int, list[tuple[int, int]]] = {}
        for entry, first, tokens in sorted(pieces):
            low, high = first * width // LEAF, -(-(first + tokens) * width // LEAF)
            held = found.setdefault(entry, [])
            if held and low <= held[-1][1]:
                held[-1] = held[-1][0], max(high, held[-1][1])
            else:
                held.append((low, high))
        return found


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
