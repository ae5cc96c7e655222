"""A certificate and a root -> what is proven, without the shards.

Input: a certificate and the root over all files of a folder of shards, as its maker published it. Output: a `Checked`,
or an IntegrityError or MismatchError that says what does not hold. docs/formats.md has the steps one by one.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from pretok.base.errors import IntegrityError, MismatchError
from pretok.base.records import Count, Record
from pretok.base.tree import HASH, LEAF, entry_hash, leaf_hash, proven_root
from pretok.base.units import plural
from pretok.certificate.certificate_file import Certificate, ShownDocument, ShownPiece, read_certificate
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
        return _Check(certificate, rest).run(root, path)
    except _Wrong as wrong:
        raise IntegrityError(f"{path} proves nothing: {wrong}") from None


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


class _Wrong(Exception):
    """What does not hold, for the message."""


class _Check:
    """The steps of checking one certificate. Each raises _Wrong."""

    def __init__(self, certificate: Certificate, rest: memoryview) -> None:
        self.certificate = certificate
        self.rest = rest
        self.shards: dict[int, _Shard] = {}
        self.tokens: dict[int, tuple[list[int], list[int]]] = {}  # of each shard the ranges that are shown

    def run(self, root: str, path: Path) -> Checked:
        certificate = self.certificate
        head = self._entries()
        found = self._root(head)
        if found != certificate.root:
            raise _Wrong(f"what it shows leads to the root {found}, not to {certificate.root} as it says")
        if found != root:
            raise MismatchError(f"{path} is of other shards: it leads to the root {found}, not to {root}")
        try:
            mix = parse_mix(certificate.mix, path)
        except (IntegrityError, MismatchError) as error:
            raise _Wrong(str(error)) from None
        if mix.manifest not in {head.fingerprint, *(event.fingerprint for event in head.history)}:
            raise _Wrong(
                f"its mix was made for shards with the fingerprint {mix.manifest}, which these never had"
            )
        mapped = self._sequences(mix)
        self._steps()
        self._documents()
        document = place = None
        between, complete = certificate.between or (0, len(mix)), False
        if certificate.document is not None:
            one = certificate.documents[certificate.document]
            document = f"{one.file}:{one.line}"
            place = f"tokens {one.first} to {one.first + one.tokens - 1} of {self.shards[one.entry].path}"
            complete = self._complete(mix, one, range(*between))
        pieces = [piece for sequence in certificate.sequences for piece in sequence.pieces]
        return Checked(
            root=found,
            mix=mix.fingerprint,
            step=certificate.step,
            document=document,
            place=place,
            between=between,
            complete=complete,
            positions=tuple(sequence.position for sequence in certificate.sequences),
            sequences=len(certificate.sequences),
            mapped=mapped,
            tokens=sum(piece.tokens for piece in pieces),
            documents=len(certificate.documents),
            shards=len(self.shards),
        )

    def _entries(self) -> _Head:
        """The entry of the folder; those of shards go to `shards`."""
        entries = self.certificate.entries
        numbers = [entry.number for entry in entries]
        if not numbers or numbers[0] != 0 or numbers != sorted(set(numbers)):
            raise _Wrong("its entries are not in order")
        head: _Head = _decoded(entries[0].text, _Head)
        if (head.format, head.version) != (FORMAT, VERSION) or head.tokenizer.dtype not in DTYPES:
            raise _Wrong(f"it is of {head.format} of version {head.version}, not of {FORMAT} {VERSION}")
        if self.certificate.files != 1 + head.shards + head.side_files or numbers[-1] > head.shards:
            raise _Wrong("its entries are not of that many files")
        self.shards = {entry.number: _decoded(entry.text, _Shard) for entry in entries[1:]}
        return head

    def _root(self, head: _Head) -> str:
        """The root over all, from the leaves that are shown. The roots of their files must stand in the entries."""
        certificate, width = self.certificate, np.dtype(head.tokenizer.dtype).itemsize
        if [shown.entry for shown in certificate.leaves] != sorted(self.shards):
            raise _Wrong("it does not show leaves of just the shards in its entries")
        data, at = self.rest, 0
        held: list[tuple[_Shard, dict[int, bytes]]] = []
        for shown in certificate.leaves:
            shard = self.shards[shown.entry]
            hashes: dict[int, bytes] = {}
            first_tokens, end_tokens, last = [], [], -1
            for first, count in shown.ranges:
                if first <= last or not count or (first + count - 1) * LEAF >= shard.file_bytes:
                    raise _Wrong(f"its leaves of {shard.path} are not in order, or not in the file")
                last = first + count
                end = min(last * LEAF, shard.file_bytes)
                if at + end - first * LEAF > len(data):
                    raise _Wrong("it does not have the bytes that its leaves need")
                for leaf in range(first, last):
                    size = min(LEAF, shard.file_bytes - leaf * LEAF)
                    hashes[leaf] = leaf_hash(data[at : at + size])
                    at += size
                first_tokens.append(first * LEAF // width)
                end_tokens.append(end // width)
            self.tokens[shown.entry] = first_tokens, end_tokens
            held.append((shard, hashes))
        if (len(data) - at) % HASH:
            raise _Wrong("what follows its leaves is not hashes")
        rest = (bytes(data[place : place + HASH]) for place in range(at, len(data), HASH))
        for shard, hashes in held:
            found = _proven(hashes, -(-shard.file_bytes // LEAF), rest)
            if found != shard.root:
                raise _Wrong(
                    f"the leaves of {shard.path} lead to the root {found}, not to its own, {shard.root}"
                )
        entries = {entry.number: entry_hash(entry.text.encode()) for entry in certificate.entries}
        found = _proven(entries, certificate.files, rest)
        if next(rest, None) is not None:
            raise _Wrong("it has more hashes than lead to the root")
        return found

    def _sequences(self, mix: Mix) -> int:
        """Each sequence is the one that the mix has at its position, and its tokens are shown; how many of them are
        where the arithmetic of the mix says."""
        sequences = self.certificate.sequences
        if not sequences:
            raise _Wrong("it shows no sequence")
        positions = np.array([sequence.position for sequence in sequences], np.int64)
        if positions.max() >= len(mix) or (np.diff(positions) <= 0).any():
            raise _Wrong(f"its positions are not rising and below {len(mix)}")
        order = mix.order()
        which, epochs, numbers = order.locate(positions)
        cuts = order.cuts(which, epochs)
        mapped = 0
        columns = (part.tolist() for part in (which, epochs, numbers, cuts))
        for sequence, source, epoch, number, cut in zip(sequences, *columns, strict=True):
            entry = mix.sources[source]
            if (sequence.source, sequence.epoch, sequence.sequence) != (entry.name, epoch, number):
                raise _Wrong(
                    f"at position {sequence.position} the mix has sequence {number} of {entry.name} in epoch {epoch}, "
                    f"not {sequence.sequence} of {sequence.source} in epoch {sequence.epoch}"
                )
            is_cut, at = entry.tape is None, 0
            for piece in sequence.pieces:
                shard = self._shown(piece, sequence.position)
                if (shard.source, shard.split) != (entry.held_in, mix.split):
                    raise _Wrong(
                        f"position {sequence.position} has tokens of {shard.path}, which is not of its source"
                    )
                if is_cut and shard.first + piece.first != entry.begin + cut + number * mix.seq_len + at:
                    raise _Wrong(
                        f"position {sequence.position} has other tokens of {shard.source} than the mix says"
                    )
                at += piece.tokens
            if at > mix.seq_len + 1 or (at < mix.seq_len + 1 and not entry.packed):
                raise _Wrong(
                    f"position {sequence.position} has {at} tokens, a sequence has {mix.seq_len + 1}"
                )
            mapped += is_cut
        return mapped

    def _shown(self, piece: Any, position: object) -> _Shard:
        """The shard of tokens that are shown."""
        shard = self.shards.get(piece.entry)
        if shard is None or piece.first + piece.tokens > shard.tokens or not piece.tokens:
            raise _Wrong(f"{position} has tokens that no shard in its entries has")
        firsts, ends = self.tokens[piece.entry]
        which = bisect_right(firsts, piece.first) - 1
        if which < 0 or piece.first + piece.tokens > ends[which]:
            raise _Wrong(f"{position} has tokens of {shard.path} that are not shown")
        return shard

    def _steps(self) -> None:
        """The positions are those of the step, or read the document."""
        certificate = self.certificate
        positions = [sequence.position for sequence in certificate.sequences]
        if (certificate.step is None) == (certificate.document is None):
            raise _Wrong("it is neither of a step nor of a document")
        segment = certificate.segment
        if segment is not None and not segment.global_batch:
            raise _Wrong("its run has a global batch of 0 sequences")
        if certificate.step is None:
            return
        if segment is None or certificate.step <= segment.step:
            raise _Wrong(f"its part of the run does not have step {certificate.step}")
        first = segment.position + (certificate.step - 1 - segment.step) * segment.global_batch
        if len(positions) != segment.global_batch or positions != [first + n for n in range(len(positions))]:
            raise _Wrong(
                f"step {certificate.step} reads positions {first} to {first + segment.global_batch - 1}, not those it "
                "shows"
            )

    def _documents(self) -> None:
        """The documents follow each other, have all tokens of the sequences, and one is that which it is for."""
        certificate = self.certificate
        places = [(one.entry, one.first, one.first + one.tokens) for one in certificate.documents]
        if places != sorted(places) or any(
            entry == after and end > first for (entry, _, end), (after, first, _) in pairwise(places)
        ):
            raise _Wrong("its documents are not in order")
        for entry, _, end in places:
            if entry not in self.shards or end > self.shards[entry].tokens:
                raise _Wrong("it names a document that no shard in its entries has")
        for sequence in certificate.sequences:
            for piece in sequence.pieces:
                at, end = piece.first, piece.first + piece.tokens
                which = max(bisect_right(places, (piece.entry, at, 1 << 63)) - 1, 0)
                for entry, first, stop in islice(places, which, None):
                    if entry != piece.entry or first > at or at >= end:
                        break
                    at = max(at, stop)
                if at < end:
                    raise _Wrong(f"it does not say which documents position {sequence.position} has")
        if certificate.document is None:
            return
        if certificate.document >= len(places):
            raise _Wrong("it is of a document that it does not name")
        entry, first, end = places[certificate.document]
        self._shown(ShownPiece(entry, first, end - first), "its document")
        for sequence in certificate.sequences:
            if not any(
                piece.entry == entry and piece.first < end and piece.first + piece.tokens > first
                for piece in sequence.pieces
            ):
                raise _Wrong(f"position {sequence.position} does not read its document")

    def _complete(self, mix: Mix, document: ShownDocument, between: range) -> bool:
        """Whether its sequences are all at these positions that read its document, by the arithmetic of the mix: False
        where classes or packing decide that."""
        shown = [sequence.position for sequence in self.certificate.sequences]
        if not 0 <= between.start <= shown[0] <= shown[-1] < between.stop <= len(mix):
            raise _Wrong(f"its positions are not between {between.start} and {between.stop - 1}")
        if self.certificate.segment and self.certificate.segment.position != between.start:
            raise _Wrong(f"its part of the run begins with another position than {between.start}")
        shard, order, found = self.shards[document.entry], mix.order(), list[int]()
        first = shard.first + document.first
        end = first + document.tokens
        for number, entry in enumerate(mix.sources):
            if entry.held_in != shard.source:
                continue
            if entry.tape or order.epochs(number) > MAX_EPOCHS:
                return False
            for epoch in range(order.epochs(number)):
                token = entry.begin + order.cut(number, epoch)
                low = max(first - token - 1, 0) // mix.seq_len
                high = min((end - 1 - token) // mix.seq_len + 1, entry.sequences)
                found += order.positions(number, epoch, np.arange(low, high)).tolist()
        if missing := sorted({at for at in found if at in between} - set(shown)):
            raise _Wrong(f"position {missing[0]} reads its document too, and it does not show it")
        return True


def _proven(hashes: dict[int, bytes], leaves: int, rest: Iterator[bytes]) -> str:
    try:
        return proven_root(hashes, leaves, rest).hex()
    except (StopIteration, RuntimeError):
        raise _Wrong("it has fewer hashes than lead to the root") from None


def _decoded(text: str, kind: type[Any]) -> Any:
    try:
        return msgspec.json.decode(text, type=kind)
    except (ValueError, RecursionError) as error:
        raise _Wrong(f"an entry is not as the manifest's: {error}") from None
