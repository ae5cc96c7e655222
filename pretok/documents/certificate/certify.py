"""A step of a run -> a certificate of the tokens that it read.

Input: the folder of a run, the number of a step, and the shards that the run read. Output: the file, and what it
proves. Everything that is shown is compared with the roots of the manifest first, so that a certificate that was
written holds.
"""

from __future__ import annotations

from pathlib import Path

from pretok.base.errors import UsageError
from pretok.base.records import replace
from pretok.base.tree import entry_hash, fold, prove, prove_file, prove_nodes
from pretok.documents.audit.trace import open_traced, positions_of_step
from pretok.documents.certificate.certificate_file import (
    Certificate,
    ReadSegment,
    ShownSequence,
    write_certificate,
)
from pretok.documents.certificate.check import Checked, check_certificate
from pretok.stream.audit import pieces
from pretok.stream.mix_file import mix_json


def certify_step(run: Path, step: int, shards: Path | None, out: Path) -> Checked:
    """Write the certificate of a step of a run.

    Raises UsageError for a step that was not taken, IntegrityError for damaged shards, OutputError.
    """
    traced, positions = positions_of_step(open_traced(run, shards), step)
    if step > traced.steps:
        raise UsageError(
            f"step {step} was not taken: the newest checkpoint of {run} is of step {traced.steps}"
        )
    manifest, view, segment = traced.manifest, traced.view, traced.segment
    assert segment is not None  # a step is one of a run
    numbers = {shard.bin_path: number for number, shard in enumerate(manifest.shards, 1)}
    certificate = Certificate(
        entries=(),
        mix=mix_json(view.mix),
        segment=ReadSegment(segment.step, segment.position, segment.global_batch),
        step=step,
        sequences=tuple(
            ShownSequence(at, tuple((numbers[path], first, count) for path, first, count in pieces(view, at)))
            for at in positions
        ),
    )
    # Entry 0 is that of the folder, which says what the numbers of the others mean.
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
    # Read back from the disk and checked as somebody else would: what is returned is what holds.
    return check_certificate(out, manifest.root, step)
