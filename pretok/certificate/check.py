"""A certificate and a root -> what is proven, without the shards.

Input: a certificate and the root over all files of a folder of shards, as its maker published it. Output: a `Checked`,
or an IntegrityError or MismatchError that says what does not hold. docs/formats.md has the steps one by one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from pretok.base.errors import IntegrityError, MismatchError
from pretok.base.records import Count, Record
from pretok.base.tree import HASH, LEAF, entry_hash, leaf_hash, proven_root
from pretok.base.units import plural
from pretok.certificate.certificate_file import Certificate, ShownDocument, read_certificate
from pretok.shards.manifest import FORMAT, VERSION, Event, TokenizerEntry
from pretok.stream.mix_file import Mix, parse_mix

DTYPES = ("uint16", "int32")
MAX_EPOCHS = 1 << 16
"""Epochs that are looked through for a document: in time that no certificate can prolong."""


class _Head(Record, frozen=True, forbid_unknown_fields=False):
    """What is needed of the entry of a folder."""

    format: str
    version: Count
    fingerprint: str
    shards: Count
    side_files: Count
    tokenizer: TokenizerEntry
    history: tuple[Event, ...] = ()


class _Shard(Record, frozen=True, forbid_unknown_fields=False):
    """What is needed of the entry of a shard. first: tokens of its source and split before it."""

    path: str
    source: str
    split: str
    tokens: Count
    file_bytes: Count
    root: str
    first: Count


@dataclass(frozen=True, slots=True)
class Checked:
    """What a certificate proves: that these tokens stand in the shards of `root`, in the sequences which the mix has at
    these positions. step: of the run, as whoever made it states; document: the file and line of the one that it is for,
    as they state; place: its tokens; between: the first position, and the one behind the last, between which these are
    all that read it; complete: whether that is proven; mapped: sequences of which the place in the shards is proven
    too, as the arithmetic of the mix gives it; of the others, of classes and packed sources, it is stated."""

    root: str
    mix: str
    step: int | None
    document: str | None
    place: str | None
    between: tuple[int, int]
    complete: bool
    positions: tuple[int, ...]
    sequences: int
    mapped: int
    tokens: int
    documents: int
    shards: int


def check_certificate(path: Path, root: str, step: int | None = None) -> Checked:
    """What is proven by a certificate under a root; `step`: the one that it must be of, if any. Raises IntegrityError
    for a file that proves nothing, MismatchError for one of other shards or another step."""
    certificate, rest = read_certificate(path)
    if step is not None and certificate.step != step:
        what = "no step" if certificate.step is None else f"step {certificate.step}"
        raise MismatchError(f"{path} is of {what}, not of step {step}")
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
        return _checked(certificate, shards, mix, root)
    except IntegrityError as error:
        raise IntegrityError(f"{path} proves nothing: {error}") from None


def _checked(certificate: Certificate, shards: dict[int, _Shard], mix: Mix, root: str) -> Checked:
    """What is proven of tokens that stand under the root."""
    mapped = _check_sequences(certificate, shards, mix)
    document = place = None
    between, complete = certificate.between or (0, len(mix)), False
    if certificate.document is not None:
        one = certificate.documents[certificate.document]
        document = f"{one.file}:{one.line}"
        place = f"tokens {one.first} to {one.first + one.tokens - 1} of {shards[one.entry].path}"
        complete = _check_document(certificate, shards[one.entry], mix, one, range(*between))
    return Checked(
        root=root,
        mix=mix.fingerprint,
        step=certificate.step,
        document=document,
        place=place,
        between=between,
        complete=complete,
        positions=tuple(sequence.position for sequence in certificate.sequences),
        sequences=len(certificate.sequences),
        mapped=mapped,
        tokens=sum(tokens for sequence in certificate.sequences for _, _, tokens in sequence.pieces),
        documents=len(certificate.documents),
        shards=len(shards),
    )


def sentences(checked: Checked) -> list[str]:
    """What is proven, and what is only stated, for a person."""
    lines = [
        f"{plural(checked.sequences, 'sequence')}, {plural(checked.tokens, 'token')}, positions {checked.positions[0]} "
        f"to {checked.positions[-1]} of the mix {checked.mix}",
        f"proven: these tokens stand in {plural(checked.shards, 'shard')} under the root {checked.root}",
    ]
    if checked.mapped:
        lines.append(
            f"proven: {plural(checked.mapped, 'sequence')} stand where the mix has them, by its arithmetic"
        )
    stated = [f"where {plural(checked.documents, 'document')} came from"]
    if checked.step is not None:
        stated.insert(0, f"that step {checked.step} read these positions")
    if checked.document is not None:
        first, end = checked.between
        every = f"no other sequence at the positions {first} to {end - 1} reads {checked.place}"
        stated.insert(0, f"that these tokens are the document {checked.document}")
        if checked.complete:
            lines.append(f"proven: {every}")
        else:
            stated.insert(1, f"that {every}")
    if rest := checked.sequences - checked.mapped:
        stated.append(f"where {plural(rest, 'sequence')} of classes or packed sources lie")
    return [*lines, f"stated by whoever made it: {', '.join(stated)}"]


def _entries(certificate: Certificate) -> tuple[_Head, dict[int, _Shard]]:
    """The entry of the folder, and those of shards by their numbers."""
    numbers = [number for number, _ in certificate.entries]
    if not numbers or numbers[0] != 0 or numbers != sorted(set(numbers)):
        raise IntegrityError("its entries are not in order")
    (_, text), *others = certificate.entries
    head: _Head = _decoded(text, _Head)
    if (head.format, head.version) != (FORMAT, VERSION) or head.tokenizer.dtype not in DTYPES:
        raise IntegrityError(f"it is of {head.format} of version {head.version}, not of {FORMAT} {VERSION}")
    if numbers[-1] > head.shards:
        raise IntegrityError("its entries are not of shards")
    return head, {number: _decoded(text, _Shard) for number, text in others}


def _decoded(text: str, kind: type[Any]) -> Any:
    try:
        return msgspec.json.decode(text, type=kind)
    except (ValueError, RecursionError) as error:
        raise IntegrityError(f"an entry is not as the manifest's: {error}") from None


def _root(certificate: Certificate, head: _Head, shards: dict[int, _Shard], data: memoryview) -> str:
    """The root over all, from the leaves that hold what is shown. The roots of their files must stand in the
    entries."""
    width = np.dtype(head.tokenizer.dtype).itemsize
    if certificate.document is not None and certificate.document >= len(certificate.documents):
        raise IntegrityError("it is of a document that it does not name")
    ranges = certificate.ranges(width)
    if ranges.keys() != shards.keys():
        raise IntegrityError("its entries are not just of the shards whose tokens it shows")
    held, at = list[tuple[_Shard, dict[int, bytes]]](), 0
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
        held.append((shard, hashes))
    if (len(data) - at) % HASH:
        raise IntegrityError("what follows its leaves is not hashes")
    rest = (bytes(data[place : place + HASH]) for place in range(at, len(data), HASH))
    for shard, hashes in held:
        found = _proven(hashes, -(-shard.file_bytes // LEAF), rest)
        if found != shard.root:
            raise IntegrityError(
                f"the leaves of {shard.path} lead to the root {found}, not to its own, {shard.root}"
            )
    entries = {number: entry_hash(text.encode()) for number, text in certificate.entries}
    found = _proven(entries, 1 + head.shards + head.side_files, rest)
    if next(rest, None) is not None:
        raise IntegrityError("it has more hashes than lead to the root")
    return found


def _proven(hashes: dict[int, bytes], leaves: int, rest: Iterator[bytes]) -> str:
    try:
        return proven_root(hashes, leaves, rest).hex()
    except (StopIteration, RuntimeError):
        raise IntegrityError("it has fewer hashes than lead to the root") from None


def _check_sequences(certificate: Certificate, shards: dict[int, _Shard], mix: Mix) -> int:
    """Each sequence is of the source that the mix has at its position; how many of them are where its arithmetic
    says."""
    sequences = certificate.sequences
    positions = np.array([sequence.position for sequence in sequences], np.int64)
    if positions.max() >= len(mix) or (np.diff(positions) <= 0).any():
        raise IntegrityError(f"its positions are not rising and below {len(mix)}")
    order, mapped = mix.order(), 0
    which, epochs, numbers = order.locate(positions)
    begins = order.cuts(which, epochs) + numbers * mix.seq_len
    for sequence, source, begin in zip(sequences, which.tolist(), begins.tolist(), strict=True):
        entry, at = mix.sources[source], 0
        is_cut = entry.tape is None
        for number, first, tokens in sequence.pieces:
            shard = shards[number]
            if (shard.source, shard.split) != (entry.held_in, mix.split):
                raise IntegrityError(
                    f"position {sequence.position} has tokens of {shard.path}, which is not of its source"
                )
            if is_cut and shard.first + first != entry.begin + begin + at:
                raise IntegrityError(
                    f"position {sequence.position} has other tokens of {shard.source} than the mix says"
                )
            at += tokens
        if at > mix.seq_len + 1 or (at < mix.seq_len + 1 and not entry.packed):
            raise IntegrityError(
                f"position {sequence.position} has {at} tokens, a sequence has {mix.seq_len + 1}"
            )
        mapped += is_cut
    return mapped


def _check_step(certificate: Certificate) -> None:
    """The positions are those of the step, where it is of one."""
    step, segment = certificate.step, certificate.segment
    if not certificate.sequences:
        raise IntegrityError("it shows no sequence")
    if (step is None) == (certificate.document is None):
        raise IntegrityError("it is neither of a step nor of a document")
    if step is None:
        return
    if segment is None or step <= segment.step:
        raise IntegrityError(f"its part of the run does not have step {step}")
    first = segment.position + (step - 1 - segment.step) * segment.global_batch
    positions = [sequence.position for sequence in certificate.sequences]
    if len(positions) != segment.global_batch or positions != [first + n for n in range(len(positions))]:
        raise IntegrityError(
            f"step {step} reads positions {first} to {first + segment.global_batch - 1}, not those it shows"
        )


def _check_document(
    certificate: Certificate, shard: _Shard, mix: Mix, document: ShownDocument, between: range
) -> bool:
    """All sequences read the document; whether they are all at these positions that do, by the arithmetic of the mix:
    False where classes or packing decide that."""
    low, high = document.first, document.first + document.tokens
    for sequence in certificate.sequences:
        if not any(
            number == document.entry and first < high and first + tokens > low
            for number, first, tokens in sequence.pieces
        ):
            raise IntegrityError(f"position {sequence.position} does not read its document")
    shown = [sequence.position for sequence in certificate.sequences]
    if not 0 <= between.start <= shown[0] <= shown[-1] < between.stop <= len(mix):
        raise IntegrityError(f"its positions are not between {between.start} and {between.stop - 1}")
    order, found = mix.order(), list[int]()
    for number, entry in enumerate(mix.sources):
        if entry.held_in != shard.source:
            continue
        if entry.tape or order.epochs(number) > MAX_EPOCHS:
            return False
        for epoch in range(order.epochs(number)):
            token = entry.begin + order.cut(number, epoch) - shard.first
            begin = max(low - token - 1, 0) // mix.seq_len
            end = min((high - 1 - token) // mix.seq_len + 1, entry.sequences)
            found += order.positions(number, epoch, np.arange(begin, end)).tolist()
    if missing := sorted({at for at in found if at in between} - set(shown)):
        raise IntegrityError(f"position {missing[0]} reads its document too, and it does not show it")
    return True
