"""A step of a run, or a document, -> a certificate of the tokens that were read.

Input: the folder of a run and the number of a step, or the name of a document; the shards that the run read. Output:
the file, and what it proves. Everything that is shown is compared with the roots of the manifest first, so that a
certificate that was written holds.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

from pretok.audit.documents import find_shard
from pretok.audit.find import Place, find_in
from pretok.audit.trace import Traced, open_traced, passages, positions_of_step, readings
from pretok.base.errors import UsageError
from pretok.base.records import replace
from pretok.base.tree import entry_hash, fold, prove, prove_file, prove_nodes
from pretok.certificate.certificate_file import (
    Certificate,
    ReadSegment,
    ShownDocument,
    ShownSequence,
    write_certificate,
)
from pretok.certificate.check import Checked, check_certificate
from pretok.shards.documents import documents_at
from pretok.shards.ledger import SCHEMA
from pretok.stream.audit import pieces
from pretok.stream.mix_file import mix_json


def certify_step(run: Path, step: int, shards: Path | None, out: Path) -> Checked:
    """Write the certificate of a step of a run. Raises UsageError for a step that was not taken,
    IntegrityError where shards are damaged, OutputError."""
    segments = open_traced(run, shards)
    traced, positions = positions_of_step(segments, step)
    if step > traced.steps:
        raise UsageError(
            f"step {step} was not taken: the newest checkpoint of {run} is of step {traced.steps}"
        )
    return _certify(traced, positions, out, step=step)


def certify_document(target: Path, name: str, shards: Path | None, out: Path) -> Checked:
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
    place: Place | None = None,
) -> Checked:
    manifest, view, batch = traced.manifest, traced.view, traced.global_batch
    numbers = {shard.bin_path: number for number, shard in enumerate(manifest.shards, 1)}
    read = {(one.source, view.mix.split, one.document) for at in positions for one in passages(traced, at)}
    documents = list(_documents(traced, read, numbers))
    between = document = None
    if place is not None:
        document = next(n for n, (where, _) in enumerate(documents) if where == place)
        if batch:
            end = traced.first + (traced.steps - traced.before) * batch
            between = traced.first, min(end, traced.positions.stop)
    certificate = Certificate(
        entries=(),
        mix=mix_json(view.mix),
        segment=ReadSegment(traced.before, traced.first, batch) if step is not None else None,
        step=step,
        document=document,
        between=between,
        sequences=tuple(
            ShownSequence(at, tuple((numbers[path], first, count) for path, first, count in pieces(view, at)))
            for at in positions
        ),
        documents=tuple(shown for _, shown in documents),
    )
    leaves, hashes, shown = [], [], [0]
    for number, ranges in sorted(certificate.ranges(view.dtype.itemsize).items()):
        shard = manifest.shards[number - 1]
        nodes = prove_nodes(shard.bin_path, shard.file_bytes, shard.root)
        chosen = [leaf for first, end in ranges for leaf in range(first, end)]
        data, proof = prove_file(shard.bin_path, nodes, shard.file_bytes, chosen)
        leaves.append(data)
        hashes += proof
        shown.append(number)
    every = [entry_hash(entry) for entry in manifest.entries]
    hashes += prove(shown, len(every), lambda first, end: fold(every[first:end]))
    entries = tuple((number, manifest.entries[number].decode()) for number in shown)
    write_certificate(out, replace(certificate, entries=entries), b"".join(leaves), b"".join(hashes))
    return check_certificate(out, manifest.root, step)


def _documents(
    traced: Traced, places: set[Place], numbers: dict[Path, int]
) -> Iterator[tuple[Place, ShownDocument]]:
    """What ledgers say of some documents, in the order of the shards. numbers: of the entry of each shard."""
    held = defaultdict(list)
    for place in places:
        shard, row = find_shard(traced.manifest, *place)
        held[numbers[shard.bin_path]].append((row, place))
    for entry, rows in sorted(held.items()):
        rows.sort()
        shard = traced.manifest.shards[entry - 1]
        told = documents_at(traced.manifest, shard, [row for row, _ in rows])
        offsets = shard.open().offsets
        for (row, place), known in zip(rows, told, strict=True):
            yield (
                place,
                ShownDocument(
                    entry=entry,
                    first=int(offsets[row]),
                    tokens=int(offsets[row + 1] - offsets[row]),
                    number=place[2],
                    file=known["file"],
                    line=known["position"],
                    hash=known["hash"].hex(),
                    kept={
                        name: value
                        for name, value in known.items()
                        if name not in (*SCHEMA.names, "position")
                    },
                ),
            )
