"""A certificate and a root -> what is proven, without the shards.

Input: a certificate and the root over all files of a folder of shards, as its maker published it. Output: a `Checked`,
or an IntegrityError or MismatchError that names the claim that does not hold. docs/formats.md lists the steps.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from pretok.base.errors import IntegrityError, MismatchError
from pretok.base.records import Count, Digest, Inside, Name, Record, Root, Split
from pretok.base.tree import HASH, LEAF, entry_hash, leaf_hash, proven_root
from pretok.base.units import plural
from pretok.documents.certificate.certificate_file import Certificate, read_certificate
from pretok.shards.manifest import FORMAT, VERSION, Event, TokenizerEntry
from pretok.stream.mix_file import Mix, parse_mix

DTYPES = ("uint16", "int32")


class _Head(Record, frozen=True, forbid_unknown_fields=False):
    """The needed fields of the entry of a folder."""

    format: str
    version: Count
    fingerprint: Digest
    shards: Count
    side_files: Count
    tokenizer: TokenizerEntry
    history: tuple[Event, ...] = ()


class _Shard(Record, frozen=True, forbid_unknown_fields=False):
    """The needed fields of the entry of a shard."""

    path: Inside
    source: Name
    split: Split
    tokens: Count
    file_bytes: Count
    root: Root
    first: Count
    """Tokens of its source and split before it."""


@dataclass(frozen=True, slots=True)
class Checked:
    """What a certificate proves: these tokens are in the shards with the root `root`."""

    root: str
    mix: str
    step: int
    """Stated by the maker, not proven."""
    positions: tuple[int, ...]
    sequences: int
    """Number of sequences at `positions` of the mix."""
    mapped: int
    """How many of them are proven to be at their positions, because their place follows from the mix's arithmetic."""
    tokens: int
    shards: int


def check_certificate(path: Path, root: str, step: int | None = None) -> Checked:
    """Return what a certificate proves under a root; `step`: the step that it must be of, if any.

    Raises IntegrityError for a file that proves nothing, MismatchError for one of other shards or another step.
    """
    certificate, rest = read_certificate(path)
    if step not in (None, certificate.step):
        raise MismatchError(f"{path} is of step {certificate.step}, not of step {step}")
    try:
        _check_step(certificate)
        mix = parse_mix(certificate.mix, path)
        head, shards = _entries(certificate)
        if (found := _root(certificate, head, shards, rest)) != root:
            raise MismatchError(f"{path} is of other shards: it leads to the root {found}, not to {root}")
        if mix.manifest not in {head.fingerprint, *(event.fingerprint for event in head.history)}:
            raise IntegrityError(
                f"its mix was made for shards with the fingerprint {mix.manifest}, which these never had"
            )
        mapped = _check_sequences(certificate, shards, mix)
    except IntegrityError as error:
        raise IntegrityError(f"{path} proves nothing: {error}") from None
    return Checked(
        root=root,
        mix=mix.fingerprint,
        step=certificate.step,
        positions=tuple(sequence.position for sequence in certificate.sequences),
        sequences=len(certificate.sequences),
        mapped=mapped,
        tokens=sum(tokens for sequence in certificate.sequences for _, _, tokens in sequence.pieces),
        shards=len(shards),
    )


def sentences(checked: Checked) -> list[str]:
    """Return what is proven and what is not, for a person."""
    mapped, rest = checked.mapped, checked.sequences - checked.mapped
    places = [f"proven: the mix has {plural(mapped, 'sequence')} at their positions, by its arithmetic"]
    stated = [f"not proven: that the mix has {plural(rest, 'sequence')} of classes or packed sources there"]
    return [
        f"{plural(checked.sequences, 'sequence')}, {plural(checked.tokens, 'token')}, positions {checked.positions[0]} "
        f"to {checked.positions[-1]} of the mix {checked.mix}",
        f"proven: these tokens are in {plural(checked.shards, 'shard')} under the root {checked.root}",
        *(places if mapped else ()),
        *(stated if rest else ()),
        f"not proven: that step {checked.step} of a run read these positions, and nothing else",
    ]


def _entries(certificate: Certificate) -> tuple[_Head, dict[int, _Shard]]:
    """Return the entry of the folder, and those of shards by their numbers."""
    numbers = [number for number, _ in certificate.entries]
    if not numbers or numbers[0] != 0 or numbers != sorted(set(numbers)):
        raise IntegrityError("its entries are not in order")
    (_, text), *others = certificate.entries
    head: _Head = _decoded(text, _Head)
    if (head.format, head.version) != (FORMAT, VERSION) or head.tokenizer.dtype not in DTYPES:
        raise IntegrityError(f"it is of {head.format} of version {head.version}, not of {FORMAT} {VERSION}")
    if numbers[-1] > head.shards:
        raise IntegrityError("an entry is not of a shard")
    return head, {number: _decoded(text, _Shard) for number, text in others}


def _decoded(text: str, kind: type[Any]) -> Any:
    try:
        return msgspec.json.decode(text, type=kind)
    except (ValueError, RecursionError) as error:
        raise IntegrityError(f"an entry is not as the manifest's: {error}") from None


def _root(certificate: Certificate, head: _Head, shards: dict[int, _Shard], data: memoryview) -> str:
    """Compute the root over all files from the leaves. The roots of the shards must be those in their entries."""
    width = np.dtype(head.tokenizer.dtype).itemsize
    ranges = certificate.ranges(width)
    # Else an entry could be shown whose tokens nobody checked.
    if ranges.keys() != shards.keys():
        raise IntegrityError("its entries are not just of the shards whose tokens it shows")
    by_shard, at = list[tuple[_Shard, dict[int, bytes]]](), 0
    for number, shard in shards.items():
        hashes: dict[int, bytes] = {}
        for first, end in ranges[number]:
            if (end - 1) * LEAF >= shard.file_bytes:
                raise IntegrityError(f"{shard.path} does not have all tokens that it shows")
            stop = at + min(end * LEAF, shard.file_bytes) - first * LEAF
            if stop > len(data):
                raise IntegrityError("it does not have the bytes that its leaves need")
            for leaf in range(first, end):
                hashes[leaf] = leaf_hash(data[at : min(at + LEAF, stop)])
                at = min(at + LEAF, stop)
        by_shard.append((shard, hashes))
    if (len(data) - at) % HASH:
        raise IntegrityError("what follows its leaves is not hashes")
    rest = (bytes(data[place : place + HASH]) for place in range(at, len(data), HASH))
    for shard, hashes in by_shard:
        computed = _proven(hashes, -(-shard.file_bytes // LEAF), rest)
        if computed != shard.root:
            raise IntegrityError(
                f"the leaves of {shard.path} lead to the root {computed}, not to its own, {shard.root}"
            )
    entries = {number: entry_hash(text.encode()) for number, text in certificate.entries}
    computed = _proven(entries, 1 + head.shards + head.side_files, rest)
    # Exactly as many hashes as are needed, so that nothing unproven travels with the file.
    if next(rest, None) is not None:
        raise IntegrityError("it has more hashes than lead to the root")
    return computed


def _proven(hashes: dict[int, bytes], leaves: int, rest: Iterator[bytes]) -> str:
    try:
        return proven_root(hashes, leaves, rest).hex()
    except (StopIteration, RuntimeError):
        raise IntegrityError("it has fewer hashes than lead to the root") from None


def _check_sequences(certificate: Certificate, shards: dict[int, _Shard], mix: Mix) -> int:
    """Check that each sequence is of the source that the mix has at its position.

    Returns how many of them are proven to be the right ones.
    """
    sequences = certificate.sequences
    if sequences[-1].position >= len(mix):
        raise IntegrityError(f"the mix has no position {sequences[-1].position}")
    positions = np.array([sequence.position for sequence in sequences], np.int64)
    order, mapped = mix.order(), 0
    which, epochs, numbers = order.locate(positions)
    begins = order.cuts(which, epochs) + numbers * mix.seq_len
    for sequence, source, begin in zip(sequences, which.tolist(), begins.tolist(), strict=True):
        entry, at = mix.sources[source], 0
        # Without a side file the place of a sequence is arithmetic. With one, only its digest is in the mix, and what
        # the tape holds there cannot be shown.
        is_cut = entry.tape is None
        for number, first, tokens in sequence.pieces:
            shard = shards[number]
            if (shard.source, shard.split) != (entry.held_in, mix.split):
                raise IntegrityError(
                    f"position {sequence.position} has tokens of {shard.path}, which is not of its source"
                )
            if not 0 < tokens <= shard.tokens - first:  # also within its last leaf
                raise IntegrityError(
                    f"position {sequence.position} has {plural(tokens, 'token')} of {shard.path} from token {first} "
                    f"on, which has {shard.tokens}"
                )
            if is_cut and shard.first + first != entry.begin + begin + at:
                raise IntegrityError(
                    f"position {sequence.position} has other tokens of {shard.source} than the mix says"
                )
            at += tokens
        # A packed sequence ends with padding, which is of no shard and is not shown.
        if not (1 if entry.packed else mix.seq_len + 1) <= at <= mix.seq_len + 1:
            raise IntegrityError(
                f"position {sequence.position} has {at} tokens, a sequence has {mix.seq_len + 1}"
            )
        mapped += is_cut
    return mapped


def _check_step(certificate: Certificate) -> None:
    """Check that the positions are those of the step."""
    step, segment = certificate.step, certificate.segment
    if not certificate.sequences:
        raise IntegrityError("it shows no sequence")
    if step <= segment.step:
        raise IntegrityError(f"its segment of the run does not have step {step}")
    first = segment.position + (step - 1 - segment.step) * segment.global_batch
    positions = [sequence.position for sequence in certificate.sequences]
    # The first comparison bounds the list: the batch may be any number.
    if len(positions) != segment.global_batch or positions != [first + n for n in range(len(positions))]:
        raise IntegrityError(
            f"step {step} reads positions {first} to {first + segment.global_batch - 1}, not those it shows"
        )
