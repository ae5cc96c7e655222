r"""The bytes of a certificate (docs/formats.md).

Input: a `Certificate`, the leaves of shards that it shows and the hashes that lead to the root; or a file. Output: the
file; or these three, where the file is whole.

    pretok-certificate 3 N DIGEST\n    N: bytes of JSON; DIGEST: SHA-256 of everything after this line
    N bytes                            the certificate as JSON, compressed by zlib
    leaves                             the leaves that hold its tokens, shard after shard: 4,096 bytes each, the last of
                                       a file fewer
    hashes                             32 bytes each: those that lead to the roots of these shards, in their order, and
                                       then from `entries` to the root over all files

The file leaves out what can be computed: which leaves there are, and what the mix has at a position.
"""

from __future__ import annotations

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
VERSION = 3
MAX_HEAD = 128
MAX_JSON = 1 << 28
"""Most bytes of JSON that are unpacked: a larger file is an attempt to fill the memory."""

ProvenRange = tuple[Count, Count, Count]
"""Adjacent tokens: number of the shard's entry, first token in the shard, number of tokens."""


class ReadSegment(Record, frozen=True):
    """After `step` steps of a run, each step reads `global_batch` positions, starting at `position`."""

    step: Count
    position: Count
    global_batch: Count


class ShownSequence(Record, frozen=True):
    """The tokens at one position of the mix."""

    position: Count
    pieces: tuple[ProvenRange, ...]


class Certificate(Record, frozen=True, kw_only=True):
    """The claims of a certificate: the step `step` of a run read these sequences."""

    entries: tuple[tuple[Count, str], ...]
    """(number in the tree over all files, the JSON that is hashed there): the folder, then each shard."""
    mix: dict[str, object]
    """The content of the mix file."""
    segment: ReadSegment
    step: Count
    sequences: tuple[ShownSequence, ...]

    def ranges(self, width: int) -> dict[int, list[tuple[int, int]]]:
        """Return the leaves that hold the tokens: number of an entry -> disjoint ranges (first, end).

        width: bytes of a token.
        """
        by_entry: dict[int, list[tuple[int, int]]] = {}
        for entry, first, tokens in sorted(piece for sequence in self.sequences for piece in sequence.pieces):
            low, high = first * width // LEAF, -(-(first + tokens) * width // LEAF)
            ranges = by_entry.setdefault(entry, [])
            # Neighbouring sequences may share a leaf, which is shown once.
            if ranges and low <= ranges[-1][1]:
                ranges[-1] = ranges[-1][0], max(high, ranges[-1][1])
            else:
                ranges.append((low, high))
        return by_entry


def write_certificate(path: Path, certificate: Certificate, leaves: bytes, hashes: bytes) -> int:
    """Write the file atomically and return its size. Raises OutputError."""
    packed = zlib.compress(msgspec.json.encode(to_json(certificate)), 9)
    body = b"".join((packed, leaves, hashes))
    head = f"{MAGIC} {VERSION} {len(packed)} {sha256(body).hexdigest()}\n".encode()
    with hold(path, "certify", beside=True):  # deletes what a killed job left
        write_bytes(path, head + body)
    return len(head) + len(body)


def read_certificate(path: Path) -> tuple[Certificate, memoryview]:
    """Return (claims, leaves and hashes). Raises IntegrityError; MismatchError for another version."""
    with reading(path):
        data = path.read_bytes()
    line, newline, _ = data[:MAX_HEAD].partition(b"\n")
    words = line.decode("ascii", "replace").split(" ")
    if words[0] != MAGIC or not newline or len(words) != 4:
        raise IntegrityError(f"{path} is not a certificate of pretok certify, or its first line is damaged")
    if words[1] != str(VERSION):
        raise MismatchError(f"{path} is a certificate of version {words[1]}; this pretok reads {VERSION}")
    body = memoryview(data)[len(line) + 1 :]
    if sha256(body).hexdigest() != words[3]:
        raise IntegrityError(
            f"{path} is cut short or damaged: its SHA-256 differs from the one in its first line"
        )
    size = int(words[2]) if words[2].isdecimal() else -1
    # `str` again, so that 007 is refused: a certificate has one form.
    if str(size) != words[2] or size > len(body):
        raise IntegrityError(f"{path} is damaged: its first line says {words[2]} bytes of JSON")
    return _decoded(path, body[:size]), body[size:]


def _decoded(path: Path, packed: memoryview) -> Certificate:
    unpacking = zlib.decompressobj()
    try:
        # Bounded: a few bytes of zlib may stand for gigabytes.
        text = unpacking.decompress(packed, MAX_JSON)
        if not unpacking.eof or unpacking.unused_data:
            raise IntegrityError(
                f"{path} is damaged: its JSON is cut short, too long, or followed by other bytes"
            )
        return read_record(Certificate, msgspec.json.decode(text), path)
    except (zlib.error, ValueError, RecursionError) as error:
        raise IntegrityError(
            f"{path} is damaged: what follows its first line is not a certificate ({error})"
        ) from None
