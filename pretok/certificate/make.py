"""A step of a run, or a document, -> a certificate of the tokens that were read.

Input: the folder of a run and the number of a step, or the name of a document; the shards that the run read. Output:
the file. Everything that is shown is compared with the roots of the manifest first, so that a certificate that was
written holds.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pretok.audit.documents import find_shard
from pretok.audit.find import find_in
from pretok.audit.trace import Traced, open_traced, positions_of_step, readings
from pretok.base.errors import UsageError
from pretok.base.tree import LEAF, entry_hash, fold, prove, prove_file, prove_nodes
from pretok.certificate.certificate_file import (
    Certificate,
    Entry,
    ReadSegment,
    ShownDocument,
    ShownLeaves,
    ShownPiece,
    ShownSequence,
    write_certificate,
)
from pretok.shards.documents import documents_at
from pretok.shards.ledger import SCHEMA
from pretok.shards.manifest import Manifest
from pretok.stream.audit import pieces as pieces_of
from pretok.stream.mix_file import mix_json

Range = tuple[int, int]
"""The first of some tokens of a shard, and the first behind them."""


@dataclass(frozen=True, slots=True)
class Made:
    """What `pretok certify --json` prints of a certificate. shards: how many it shows leaves of."""

    path: str
    file_bytes: int
    root: str
    sequences: int
    shards: int
    documents: int


def certify_step(run: Path, step: int, shards: Path | None, out: Path) -> Made:
    """Write the certificate of a step of a run. Raises UsageError for a step that was not taken,
    IntegrityError where shards are damaged, OutputError."""
    segments = open_traced(run, shards)
    traced, positions = positions_of_step(segments, step)
    if step > traced.steps:
        raise UsageError(
            f"step {step} was not taken: the newest checkpoint of {run} is of step {traced.steps}"
        )
    return _certify(traced, positions, out, step=step)


def certify_document(target: Path, name: str, shards: Path | None, out: Path) -> Made:
    """Write the certificate of a document, and of all sequences of a run or a mix that read it in one of its segments.
    Raises UsageError where there is no such document, several, or none that was read."""
    segments = open_traced(target, shards)
    places = find_in([traced.manifest for traced in segments], name, 2)
    if len({place for found in places for place in found}) > 1:
        raise UsageError(
            f"several documents are called {name!r}: name one by FILE:LINE, see pretok trace --doc"
        )
    read = [
        (traced, place, sorted({one.position for one in readings(traced, *place) if one.done is not False}))
        for traced, found in zip(segments, places, strict=True)
        for place in found
    ]
    # Of a run that read it in several segments the one that read it most: each has a mix of its own.
    traced, place, positions = max(read, key=lambda one: len(one[2]))
    if not positions:
        raise UsageError(
            f"{target} has not read {name}: there is no sequence to show; see pretok trace --doc"
        )
    return _certify(traced, positions, out, place=place)


def _certify(
    traced: Traced,
    positions: Sequence[int],
    out: Path,
    step: int | None = None,
    place: tuple[str, str, int] | None = None,
) -> Made:
    manifest, view = traced.manifest, traced.view
    numbers = {shard.bin_path: number for number, shard in enumerate(manifest.shards, 1)}
    sequences = []
    for position in positions:
        source, epoch, sequence = view.origin(position)
        pieces = tuple(
            ShownPiece(numbers[path], first, count) for path, first, count in pieces_of(view, position)
        )
        sequences.append(ShownSequence(position, source, epoch, sequence, pieces))
    wanted: defaultdict[int, list[Range]] = defaultdict(list)
    for piece in (piece for sequence in sequences for piece in sequence.pieces):
        wanted[piece.entry].append((piece.first, piece.first + piece.tokens))
    if place is not None:
        shard, number = find_shard(manifest, *place)
        begin, end = (int(at) for at in shard.open().offsets[number : number + 2])
        wanted[numbers[shard.bin_path]].append((begin, end))
    documents = [one for number in sorted(wanted) for one in _documents(manifest, number, wanted[number])]
    document = None
    if place is not None:
        where = numbers[shard.bin_path], begin
        document = next(n for n, one in enumerate(documents) if (one.entry, one.first) == where)
    leaves, shown, hashes = [], [], []
    for number in sorted(wanted):
        ranges = _leaf_ranges(wanted[number], view.dtype.itemsize)
        leaves.append(ShownLeaves(number, tuple((first, end - first) for first, end in ranges)))
        shard = manifest.shards[number - 1]
        nodes = prove_nodes(shard.bin_path, shard.file_bytes, shard.root)
        chosen = [leaf for first, end in ranges for leaf in range(first, end)]
        data, proof = prove_file(shard.bin_path, nodes, shard.file_bytes, chosen)
        shown.append(data)
        hashes += proof
    entries = [0, *sorted(wanted)]
    all_hashes = [entry_hash(entry) for entry in manifest.entries]
    hashes += prove(entries, len(all_hashes), lambda first, end: fold(all_hashes[first:end]))
    segment = ReadSegment(traced.before, traced.first, traced.global_batch) if traced.global_batch else None
    between = None
    if place is not None and traced.global_batch:
        end = traced.first + (traced.steps - traced.before) * traced.global_batch
        between = traced.first, min(end, traced.positions.stop)
    certificate = Certificate(
        root=manifest.root,
        files=len(all_hashes),
        entries=tuple(Entry(number, manifest.entries[number].decode()) for number in entries),
        leaves=tuple(leaves),
        mix=mix_json(view.mix),
        segment=segment,
        step=step,
        document=document,
        between=between,
        sequences=tuple(sequences),
        documents=tuple(documents),
    )
    size = write_certificate(out, certificate, b"".join(shown), b"".join(hashes))
    return Made(str(out), size, manifest.root, len(sequences), len(leaves), len(documents))


def _leaf_ranges(tokens: Iterable[Range], width: int) -> list[Range]:
    """The leaves that hold some tokens of a shard, (first, end), in ranges that do not touch."""
    found: list[Range] = []
    for first, end in sorted(
        (low * width // LEAF, -(-high * width // LEAF)) for low, high in tokens if high > low
    ):
        if found and first <= found[-1][1]:
            found[-1] = found[-1][0], max(end, found[-1][1])
        else:
            found.append((first, end))
    return found


def _documents(manifest: Manifest, number: int, tokens: Iterable[Range]) -> list[ShownDocument]:
    """What the ledger of the shard `number` says of the documents that hold any of some tokens."""
    shard = manifest.shards[number - 1]
    offsets = shard.open().offsets
    chosen = set[int]()
    for low, high in tokens:
        first = int(np.searchsorted(offsets, low, side="right")) - 1
        chosen |= set(range(first, int(np.searchsorted(offsets, high, side="left"))))
    rows = sorted(row for row in chosen if offsets[row + 1] > offsets[row])
    before = next(first for one, first in manifest.numbered if one.path == shard.path)
    return [
        ShownDocument(
            entry=number,
            first=int(offsets[row]),
            tokens=int(offsets[row + 1] - offsets[row]),
            number=before + row,
            file=told["file"],
            line=told["position"],
            hash=told["hash"].hex(),
            kept={name: value for name, value in told.items() if name not in (*SCHEMA.names, "position")},
        )
        for row, told in zip(rows, documents_at(manifest, shard, rows), strict=True)
    ]
