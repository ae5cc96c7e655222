"""Packed sources: sequences of whole documents, by an index that `stream.pack` made.

Input: the digest of a packing index, and the shards it was made of. Output: a `PackedTape`. Where a document lies and
how long it is stands in the `.idx` of its shard; the index says beside it which documents each sequence has. Its
arrays, of windows of documents in a row:

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

import os
import weakref
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from math import sqrt
from pathlib import Path
from typing import Any

import numpy as np

from pretok.base.errors import IntegrityError, PretokError
from pretok.base.records import Count, Record, read_record, replace
from pretok.base.storage import fingerprint, reading
from pretok.base.tokens import Ints
from pretok.shards.format import HEADER
from pretok.shards.manifest import Manifest, Shard, load_manifest
from pretok.stream.mix_file import Mix, load_mix
from pretok.stream.side_file import FOLDER, REMEDY, SideFile
from pretok.stream.tapes import Pieces

KIND = "packing"
WINDOW: np.dtype[Any] = np.dtype(
    [("bin", "<u8"), ("entry", "<u8"), ("document", "<u8"), ("full", "<u4")], align=False
)
FILES = 64
"""`.idx` files that are open at a time."""
CHECKED = 16
"""Windows that are verified at once."""


class Packing(Record, frozen=True, kw_only=True):
    """What an index says of itself. shards: see `shards_key`; window: documents of one; documents, tokens: packed ones;
    cut: documents longer than a sequence; targets: what all bins learn, and squares: of that of each, added up."""

    kind: str
    shards: str
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
    return fingerprint({"indexes": [shard.index_checksum for shard in shards]})


def open_packing(
    folder: Path, digest: str, shards: Sequence[Shard], seq_len: int
) -> tuple[SideFile, Packing]:
    """An index, and what it says. Raises IntegrityError (missing, damaged, of other shards), MismatchError."""
    file = SideFile(folder, digest)
    if file.about.get("kind") != KIND:
        raise IntegrityError(f"{file.path} is no packing index; {REMEDY}")
    about = read_record(Packing, file.about, file.path)
    if (about.shards, about.seq_len) != (shards_key(shards), seq_len):
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


class PackedTape:
    """The sequences of a packed source, whose first token has the address `base`."""

    def __init__(self, folder: Path, digest: str, shards: Sequence[Shard], seq_len: int, base: int) -> None:
        self._file, self.about = open_packing(folder, digest, shards, seq_len)
        self._capacity = seq_len + 1
        self._shards = tuple(shards)
        self._documents: Ints = np.cumsum([0, *(shard.documents for shard in shards)])
        self._bases: Ints = base + np.cumsum([0, *(shard.tokens for shard in shards)])
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
        self._files: OrderedDict[int, int] = self._own_files()

    def __getstate__(self) -> dict[str, object]:
        return {key: value for key, value in self.__dict__.items() if key != "_files"}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state, _files=self._own_files())

    def _own_files(self) -> OrderedDict[int, int]:
        files: OrderedDict[int, int] = OrderedDict()
        weakref.finalize(self, _close_all, files)
        return files

    def pieces(self, source: Ints, cut: Ints, number: Ints) -> Pieces:  # noqa: ARG002
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
        row = np.repeat(np.arange(len(number)), end - first)
        at = np.arange(len(row)) - np.repeat(np.cumsum(end - first) - (end - first), end - first)
        entry = (self._entry[window] + first)[row] + at
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
        number = documents - self._documents[shard]
        counts = np.diff(self._documents)[shard]
        found = np.empty((len(documents), 2), "<i8")
        rows = memoryview(found.view(np.uint8).reshape(-1).data)
        places = (HEADER.size + 4 * counts + 8 * number).tolist()
        for row, (which, place) in enumerate(zip(shard.tolist(), places, strict=True)):
            if os.preadv(self._index(which), [rows[16 * row : 16 * row + 16]], place) != 16:
                raise IntegrityError(f"{self._shards[which].index_path} was cut while it was being read")
        width = self._shards[0].file_bytes // self._shards[0].tokens
        sizes = np.diff(self._bases)[shard]
        start, end = found[:, 0] // width, np.where(number + 1 == counts, sizes, found[:, 1] // width)
        if ((start < 0) | (start > end) | (end > sizes)).any():
            raise self._contradicts()
        return self._bases[shard] + start, end - start

    def _index(self, shard: int) -> int:
        file = self._files.get(shard)
        if file is None:
            if len(self._files) >= FILES:
                os.close(self._files.popitem(last=False)[1])
            with reading(self._shards[shard].index_path):
                file = os.open(self._shards[shard].index_path, os.O_RDONLY | os.O_CLOEXEC)
            self._files[shard] = file
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_RANDOM)
        self._files.move_to_end(shard)
        return file

    def sequences(self, first: int, end: int) -> Ints:
        """(n,), rising: the sequences that have any of the tokens at addresses `first` to `end - 1`."""
        found = [np.empty(0, np.int64)]
        for number, shard in enumerate(self._shards):
            low, high = max(first, int(self._bases[number])), min(end, int(self._bases[number + 1]))
            if low >= high:
                continue
            offsets = shard.open().offsets + self._bases[number]
            documents = (
                self._documents[number] + np.searchsorted(offsets, low, side="right") - 1,
                self._documents[number] + np.searchsorted(offsets, high, side="left"),
            )
            windows = (
                np.searchsorted(self._document, documents[0], side="right") - 1,
                np.searchsorted(self._document, documents[1], side="left"),
            )
            found += [self._having(window, *documents) for window in range(*map(int, windows))]
        candidates = np.unique(np.concatenate(found))
        pieces = self.pieces(candidates, candidates, candidates)
        hit = (pieces.address < end) & (pieces.address + pieces.length > first)
        return candidates[np.unique(pieces.row[hit])]

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
        held, reached = 0, int(self._bases[0])  # windows follow one another, and so do their tokens
        for window in range(0, len(self._bin) - 1, CHECKED):
            number = np.arange(self._bin[window], self._bin[min(window + CHECKED, len(self._bin) - 1)])
            pieces = self.pieces(number, number, number)
            order = np.argsort(pieces.address)
            ends = pieces.address[order] + pieces.length[order]
            if (pieces.address[order] < np.concatenate([[reached], ends])[:-1]).any():
                raise self._contradicts()
            held, reached = held + int(pieces.length.sum()), int(ends[-1]) if len(ends) else reached
        if held != self.about.tokens:
            raise self._contradicts()


def open_packed(manifest: Manifest, mix: Mix, folder: Path | None, bases: Ints) -> dict[int, PackedTape]:
    """The tapes of the packed sources of a mix, by their number. folder: of its side files; bases: (sources,), address
    of the first token of each. Raises IntegrityError where the indexes are missing, damaged, or of something else."""
    found = {}
    for number, source in enumerate(mix.sources):
        if not source.packed:
            continue
        if folder is None:
            raise IntegrityError(
                f"source {source.name} is packed, and where its index lies is not known: name the mix.json, beside "
                f"which the folder {FOLDER} is"
            )
        shards = manifest.of(source.name, mix.split)
        tape = PackedTape(folder, source.packed[0], shards, mix.seq_len, int(bases[number]))
        stated, found_there = (
            (part.tokens, sequences, part.targets)
            for part, sequences in ((source, source.sequences), (tape.about, tape.about.bins))
        )
        if stated != found_there:
            raise IntegrityError(
                f"the packing index of {source.name} has {found_there} tokens, sequences and targets, the mix says "
                f"{stated}; {REMEDY}"
            )
        found[number] = tape
    return found


def packings_beside(manifest: Manifest) -> Iterator[tuple[Path, str]]:
    """(mix, source) of every packed source of a mix of these shards that lies beside their folder."""
    for path in sorted(manifest.folder.parent.glob("*.json")):
        with suppress(PretokError):  # another file, or a mix of others, which whoever reads it is told
            mix = load_mix(path)
            if mix.manifest == manifest.fingerprint:
                yield from ((path, source.name) for source in mix.sources if source.packed)


def verify_packing(shards: Path, mix: Path, source: str) -> str | None:
    """What is wrong with the packing index of a source in a mix, or None; reads all of it, and the `.idx` of shards."""
    manifest, plan = load_manifest(shards), load_mix(mix)
    only = replace(plan, sources=tuple(entry for entry in plan.sources if entry.name == source))
    try:
        open_packed(manifest, only, mix.parent / FOLDER, np.zeros(1, np.int64))[0].verify()
    except PretokError as error:
        return f"{mix}, source {source}: {error}"
    return None


def _close_all(files: OrderedDict[int, int]) -> None:
    while files:
        os.close(files.popitem()[1])
