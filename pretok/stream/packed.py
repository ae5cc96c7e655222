"""Packed sources: sequences of whole documents, by an index that `stream.pack` made.

Input: the digests of packing indexes, one for each generation of shards, and these. Output: a `PackedTape`, which has
their sequences one after the other: what was packed stays as it is when a source grows. Where a document lies and how
long it is stands in the `.idx` of its shard; the index says beside it which documents each sequence has. Its arrays, of
windows of documents in a row:

    entries  u16 (u32 where not all documents are packed): documents, counted from the first of their window; those of a
             sequence stand together
    bins     u32 a sequence: of the first `full` of a window, which one document fills, its piece; of the others the
             place of its first entry in those of the window
    windows  {bin: u64, entry: u64, document: u64, full: u32}: what is before each window, and its own `full`; the last
             one says what there is in all

A sequence has seq_len + 1 tokens. A document's last `length % (seq_len + 1)` tokens stand in one sequence, which is all
of it unless it is longer, and each seq_len + 1 tokens before them fill one. What documents leave is EOD. A sequence
learns all its tokens but the first and what follows an EOD and is one: what fills it up, and the last token of a
longer document where that alone is left of it.
numpy, msgspec and the standard library only.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import sqrt
from pathlib import Path
from typing import Any

import numpy as np

from pretok.base.errors import IntegrityError, PretokError
from pretok.base.records import Count, Record, read_record, replace
from pretok.base.storage import fingerprint
from pretok.base.tokens import Ints
from pretok.shards.manifest import Manifest, Shard, load_manifest
from pretok.stream.members import DocumentStarts
from pretok.stream.mix_file import MixSource, load_mix, mixed_shards, mixes_beside
from pretok.stream.side_file import FOLDER, REMEDY, SideFile
from pretok.stream.tapes import Pieces, in_rows, ranges

KIND = "packing"
WINDOW: np.dtype[Any] = np.dtype(
    [("bin", "<u8"), ("entry", "<u8"), ("document", "<u8"), ("full", "<u4")], align=False
)
CHECKED = 16
"""Windows that are verified at once."""


class Packing(Record, frozen=True, kw_only=True):
    """What an index says of itself. shards: how many it is of; indexes: see `shards_key`; window: documents of one;
    documents, tokens: packed ones; cut: documents longer than a sequence; targets: what all bins learn, and squares: of
    that of each, added up."""

    kind: str
    shards: Count
    indexes: str
    seq_len: Count
    window: Count
    documents: Count
    tokens: Count
    bins: Count
    cut: Count
    targets: Count
    squares: Count

    @property
    def padding(self) -> int:
        """Tokens that only fill bins up."""
        return self.bins * (self.seq_len + 1) - self.tokens

    @property
    def spread(self) -> float:
        """Standard deviation of what a bin learns."""
        mean = self.targets / max(self.bins, 1)
        return sqrt(max(self.squares / max(self.bins, 1) - mean * mean, 0))


def shards_key(shards: Sequence[Shard]) -> str:
    """What a packing depends on: the documents of shards and their order."""
    return fingerprint({"indexes": [shard.index_root for shard in shards]})


def open_packing(
    folder: Path, digest: str, shards: Sequence[Shard], seq_len: int
) -> tuple[SideFile, Packing]:
    """An index, and what it says. shards: those it is of and, behind them, more that came later.

    Raises IntegrityError (missing, damaged, of other shards), MismatchError.
    """
    file = SideFile(folder, digest)
    if file.about.get("kind") != KIND:
        raise IntegrityError(f"{file.path} is no packing index; {REMEDY}")
    about = read_record(Packing, file.about, file.path)
    shards = shards[: about.shards]
    if (about.shards, about.indexes, about.seq_len) != (len(shards), shards_key(shards), seq_len):
        raise IntegrityError(
            f"{file.path} packs other shards, or sequences of {about.seq_len} tokens, not {seq_len}; {REMEDY}"
        )
    dtypes = {name: dtype for name, (dtype, _) in file.arrays.items()}
    entry = np.dtype("<u2" if about.documents == sum(shard.documents for shard in shards) else "<u4")
    if dtypes != {"entries": entry, "bins": np.dtype("<u4"), "windows": WINDOW}:
        raise IntegrityError(
            f"{file.path} has arrays {sorted(dtypes)} that are none of a packing index; {REMEDY}"
        )
    return file, about


def packings_of(
    folder: Path, digests: Sequence[str], shards: Sequence[Shard], seq_len: int
) -> tuple[Packing, ...]:
    """What the indexes of a source say, of one generation of its `shards` after the other. Raises as `open_packing`."""
    found: list[Packing] = []
    for digest in digests:
        seen = sum(about.shards for about in found)
        found.append(open_packing(folder, digest, shards[seen:], seq_len)[1])
    return tuple(found)


class PackedPart:
    """The sequences of one index.

    shards: those it is of and, behind them, more that came later; first_shard: number of the first of them in `starts`.
    """

    def __init__(
        self,
        folder: Path,
        digest: str,
        shards: Sequence[Shard],
        first_shard: int,
        starts: DocumentStarts,
        seq_len: int,
    ) -> None:
        self._file, self.about = open_packing(folder, digest, shards, seq_len)
        self._capacity = seq_len + 1
        self._shards = tuple(shards[: self.about.shards])
        self._first_shard, self._starts = first_shard, starts
        self._documents: Ints = np.cumsum([0, *(shard.documents for shard in self._shards)])
        windows = self._file.whole("windows")
        self._bin, self._entry, self._document = (
            windows[name].astype(np.int64) for name in ("bin", "entry", "document")
        )
        self._full = windows["full"].astype(np.int64)
        ends = (self._file.arrays["bins"][1], self._file.arrays["entries"][1], int(self._documents[-1]))
        rising = (self._bin, self._entry, self._document)
        if (
            not len(windows)
            or tuple(int(part[-1]) for part in rising) != ends
            or any(part[0] < 0 or (np.diff(part) < 0).any() for part in rising)
            or self.about.bins != ends[0]
        ):
            raise IntegrityError(f"{self._file.path}: its windows contradict its arrays; {REMEDY}")

    def pieces(self, number: Ints) -> Pieces:
        """See `Tape`. Raises IntegrityError where the index is not as it was sealed, or not of the shards' `.idx`."""
        window = np.searchsorted(self._bin, number, side="right") - 1
        inside = number - self._bin[window]
        is_full = inside < self._full[window]
        held = self._file.read("bins", np.concatenate([number, np.minimum(number + 1, self._bin[-1] - 1)]))
        head, after = held.astype(np.int64).reshape(2, -1)
        of_window = self._entry[window + 1] - self._entry[window]
        last = number + 1 == self._bin[window + 1]
        first = np.where(is_full, inside, head)
        end = np.where(is_full, inside + 1, np.where(last, of_window, after))
        if ((first >= end) | (end > of_window)).any():
            raise self._contradicts()
        row, inside_window = ranges(first, end)
        entry = self._entry[window][row] + inside_window
        document = self._document[window][row] + self._file.read("entries", entry)
        begin, length = self._lie(document)
        rest = length % self._capacity
        skipped = np.where(is_full[row], head[row] * self._capacity, length - rest)
        taken = np.where(is_full[row], self._capacity, rest)
        before = np.cumsum(taken) - taken
        column = before - before[np.searchsorted(row, row)] if len(row) else before
        if ((skipped + taken > length) | (taken == 0) | (column + taken > self._capacity)).any():
            raise self._contradicts()
        return Pieces(row, column, begin + skipped, taken)

    def _contradicts(self) -> IntegrityError:
        return IntegrityError(
            f"{self._file.path} does not fit the documents of {self._shards[0].index_path.parent}; run pretok verify"
        )

    def _lie(self, documents: Ints) -> tuple[Ints, Ints]:
        """Addresses and tokens of documents (n,), each (n,), by the `.idx` of their shards."""
        if len(documents) and not 0 <= documents.min() <= documents.max() < self._documents[-1]:
            raise self._contradicts()
        shard = np.searchsorted(self._documents, documents, side="right") - 1
        found = self._starts.read(shard + self._first_shard, documents - self._documents[shard], 1)
        return found[:, 0], found[:, 1] - found[:, 0]

    @property
    def documents(self) -> int:
        """Of its shards, packed or not."""
        return int(self._documents[-1])

    def near(self, first: int, end: int) -> Ints:
        """(n,), rising: the sequences that have any of the documents `first` to `end - 1` of its shards."""
        low = max(int(np.searchsorted(self._document, first, side="right")) - 1, 0)
        high = int(np.searchsorted(self._document, end, side="left"))
        found = [self._having(window, first, end) for window in range(low, min(high, len(self._full) - 1))]
        return np.unique(np.concatenate([np.empty(0, np.int64), *found]))

    def documents_at(self, first: int, end: int) -> tuple[int, int]:
        """The first document, and one past the last, that has any of the tokens at addresses `first` to `end - 1`."""
        found = []
        for number, shard in enumerate(self._shards):
            base = int(self._starts.bases[self._first_shard + number])
            low, high = max(first, base), min(end, base + shard.tokens)
            if low < high:
                offsets, before = shard.open().offsets + base, int(self._documents[number])
                found.append(before + int(np.searchsorted(offsets, low, side="right")) - 1)
                found.append(before + int(np.searchsorted(offsets, high, side="left")))
        return min(found, default=0), max(found, default=0)

    def _having(self, window: int, first: int, end: int) -> Ints:
        """The sequences of a window that have any of the documents `first` to `end - 1`."""
        entry = np.arange(self._entry[window], self._entry[window + 1])
        document = self._document[window] + self._file.read("entries", entry)
        at = np.flatnonzero((first <= document) & (document < end))
        full, low = int(self._full[window]), int(self._bin[window])
        heads = self._file.read("bins", np.arange(low + full, self._bin[window + 1])).astype(np.int64)
        return low + np.where(at < full, at, full + np.searchsorted(heads, at, side="right") - 1)

    def verify(self) -> None:
        """Read all of it. IntegrityError unless as many tokens as it states stand in its sequences, each once."""
        self._file.verify()
        held, reached = 0, 0  # windows follow one another, and so do their tokens
        for window in range(0, len(self._bin) - 1, CHECKED):
            number = np.arange(self._bin[window], self._bin[min(window + CHECKED, len(self._bin) - 1)])
            pieces = self.pieces(number)
            order = np.argsort(pieces.address)
            ends = pieces.address[order] + pieces.length[order]
            if (pieces.address[order] < np.concatenate([[reached], ends])[:-1]).any():
                raise self._contradicts()
            held, reached = held + int(pieces.length.sum()), int(ends[-1]) if len(ends) else reached
        if held != self.about.tokens:
            raise self._contradicts()


class PackedTape:
    """The sequences of a packed source: those of each of its indexes, one after the other."""

    def __init__(self, parts: Sequence[PackedPart]) -> None:
        self.parts = tuple(parts)
        self._begins: Ints = np.cumsum([0, *(part.about.bins for part in parts)])

    def pieces(self, source: Ints, cut: Ints, number: Ints) -> Pieces:  # noqa: ARG002
        """See `Tape`."""
        which = np.searchsorted(self._begins, number, side="right") - 1
        found = []
        for one in np.unique(which).tolist():
            rows = np.flatnonzero(which == one)
            pieces = self.parts[one].pieces(number[rows] - self._begins[one])
            found.append(pieces._replace(row=rows[pieces.row]))
        return found[0] if len(found) == 1 else in_rows(found)

    def near(self, first: int, end: int) -> Ints:
        """(n,), rising: the sequences that have any of the documents `first` to `end - 1` of the split."""
        found, held = [np.empty(0, np.int64)], 0
        for part, begins in zip(self.parts, self._begins.tolist(), strict=False):
            low, high = (min(max(document - held, 0), part.documents) for document in (first, end))
            if low < high:
                found.append(begins + part.near(low, high))
            held += part.documents
        return np.concatenate(found)

    def sequences(self, first: int, end: int) -> Ints:
        """(n,), rising: the sequences that have any of the tokens at addresses `first` to `end - 1`."""
        found = [np.empty(0, np.int64)]
        for part, begins in zip(self.parts, self._begins.tolist(), strict=False):
            found.append(begins + part.near(*part.documents_at(first, end)))
        candidates = np.concatenate(found)
        pieces = self.pieces(candidates, candidates, candidates)
        hit = (pieces.address < end) & (pieces.address + pieces.length > first)
        return candidates[np.unique(pieces.row[hit])]

    def verify(self) -> None:
        """Read all of it. IntegrityError unless as many tokens as it states stand in its sequences, each once."""
        for part in self.parts:
            part.verify()


def open_packed(
    folder: Path,
    source: MixSource,
    shards: Sequence[Shard],
    first_shard: int,
    starts: DocumentStarts,
    seq_len: int,
) -> PackedTape:
    """The tape of a packed source of a mix. folder: of side files; first_shard: number of the first of its `shards` in
    `starts`. Raises IntegrityError where its indexes are missing, damaged, or of something else."""
    parts: list[PackedPart] = []
    for digest in source.packed:
        seen = sum(part.about.shards for part in parts)
        parts.append(PackedPart(folder, digest, shards[seen:], first_shard + seen, starts, seq_len))
    about = [part.about for part in parts]
    stated = source.tokens, source.sequences, source.targets, len(shards)
    found = tuple(
        sum(counts) for counts in zip(*((a.tokens, a.bins, a.targets, a.shards) for a in about), strict=True)
    )
    if stated != found:
        raise IntegrityError(
            f"the packing indexes of {source.name} have {found} tokens, sequences, targets and shards, the mix says "
            f"{stated}; {REMEDY}"
        )
    return PackedTape(parts)


def packings_beside(manifest: Manifest) -> Iterator[tuple[Path, str]]:
    """(mix, source) of every packed source of a mix of these shards that lies beside their folder."""
    for path, mix in mixes_beside(manifest):
        yield from ((path, source.name) for source in mix.sources if source.packed)


def verify_packing(shards: Path, mix: Path, source: str) -> str | None:
    """What is wrong with the packing indexes of a source in a mix, or None; reads all of them, and the `.idx` of
    shards."""
    manifest, plan = load_manifest(shards), load_mix(mix)
    entry = next(entry for entry in plan.sources if entry.name == source)
    try:
        held = mixed_shards(plan, manifest)[entry.held_in]
        starts = DocumentStarts(held, np.dtype(manifest.tokenizer.dtype).newbyteorder("<"))
        open_packed(mix.parent / FOLDER, entry, held, 0, starts, plan.seq_len).verify()
    except PretokError as error:
        return f"{mix}, source {source}: {error}"
    return None


def together(packings: Sequence[Packing]) -> Packing:
    """What several indexes of a source say, as one."""
    added = ("shards", "documents", "tokens", "bins", "cut", "targets", "squares")
    return replace(packings[0], **{name: sum(getattr(one, name) for one in packings) for name in added})
