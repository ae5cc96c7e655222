"""Members: which documents of a source a class has -> its own tape, without a table of where each document lies.

Input: for each document of a source's split whether the class has it, and its tokens; or the digest of the side file
made of these, and the shards. Output: a `ClassTape`, on which the members' tokens stand one after the other, and back
the tokens before any document. numpy, msgspec, xxhash and the standard library only.

Where a document lies stands in the `.idx` of its shard. The side file says beside it which documents are members, and
how many tokens are before some of them. Its arrays:

    groups     dense form, each 64 documents of a shard: {before: u32, mask: u64}, 0.19 bytes a document
               sparse form, each 8 members: {before: u32, documents: u32[8]}, 4.6 bytes a member
    tokens     u64 for each block of groups: tokens of members before it; and at last of all
    documents  u64 for each block of the sparse form: what its documents count from, in the split

`before` is modulo 2^32: within a block it is added up from differences. A token is found by a search in `tokens`, which
is in memory, one block, and one read of pointers for each group: 64 in a row, or two for each of 8 members.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from pretok.base.errors import IntegrityError
from pretok.base.storage import reading
from pretok.base.tokens import Ints
from pretok.shards.format import index_size, offset_places
from pretok.shards.manifest import Shard
from pretok.stream.flat_tokens import OpenFiles
from pretok.stream.side_file import REMEDY, ROOM, SideFile, SideFileWriter
from pretok.stream.tapes import Pieces, in_rows, ranges

KIND = "members"
DENSE: np.dtype[Any] = np.dtype([("before", "<u4"), ("mask", "<u8")])
SPARSE: np.dtype[Any] = np.dtype([("before", "<u4"), ("documents", "<u4", (8,))])
WORD = 64
"""Documents of a group of the dense form."""
FEW = 8
"""Members of a group of the sparse form."""
RARE = 24
"""One member in so many documents costs the same in both forms; with fewer the sparse one is smaller."""
BLOCK_MEMBERS = ROOM // SPARSE.itemsize * FEW
ASKED = 4096
"""Documents that are looked up at once."""


class MembersWriter:
    """Writes the side file of one class: `append` all `documents` of a split in their order, then `seal`.

    Both forms are written until it is known which is the smaller one. label: see `SideFileWriter`.
    """

    def __init__(self, folder: Path, label: str, documents: int) -> None:
        self.members = self.tokens = 0
        self._documents, self._seen = documents, 0
        self._dense = SideFileWriter(folder, f"{label}.dense")
        self._sparse = SideFileWriter(folder, f"{label}.sparse")
        self._groups = 0
        self._tops: list[Ints] = []  # of the dense form: tokens before each block
        self._sparse_tops: list[Ints] = []
        self._bases: list[Ints] = []
        self._waiting: Ints = np.empty(
            (2, 0), np.int64
        )  # documents and tokens of members of no whole sparse block
        self._sparse_tokens = 0
        self._dense.append("groups", np.empty(0, DENSE))
        self._sparse.append("groups", np.empty(0, SPARSE))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._dense.__exit__()
        self._sparse.__exit__()

    @property
    def _few(self) -> bool:
        return self.members * RARE < self._documents

    def append(self, chosen: npt.NDArray[np.bool_], lengths: Ints) -> None:
        """Add documents; as many as a multiple of 64, or all that a shard still has. chosen, lengths: (n,), whether the
        class has each, and its tokens."""
        count = -(-len(chosen) // WORD)
        held = np.zeros(count * WORD, np.int64)
        np.multiply(chosen, lengths, out=held[: len(chosen)])
        sizes = held.reshape(count, WORD).sum(axis=1)
        if count and sizes.max() >= 1 << 32:
            raise AssertionError("64 documents have 2^32 tokens or more")
        before = self.tokens + np.cumsum(sizes) - sizes
        groups = np.zeros(count, DENSE)
        groups["before"] = before & 0xFFFFFFFF
        bits = np.zeros(count * WORD, np.bool_)
        bits[: len(chosen)] = chosen
        groups["mask"] = np.packbits(bits, bitorder="little").view("<u8")
        self._dense.append("groups", groups)
        # The groups that begin a block.
        self._tops.append(before[-self._groups % (ROOM // DENSE.itemsize) :: ROOM // DENSE.itemsize])
        self._groups += count
        members = np.flatnonzero(chosen)
        if self._few:
            found = np.stack([members + self._seen, lengths[members]])
            self._waiting = np.concatenate([self._waiting, found], axis=1)
            self._write_sparse(self._waiting.shape[1] // BLOCK_MEMBERS * BLOCK_MEMBERS)
        self.members += len(members)
        self.tokens += int(sizes.sum())
        self._seen += len(chosen)

    def _write_sparse(self, count: int) -> None:
        """Write the first `count` members that wait: whole blocks, or all at the end."""
        if not count:
            return
        (documents, lengths), self._waiting = self._waiting[:, :count], self._waiting[:, count:]
        bases = documents[::BLOCK_MEMBERS]
        inside = documents - np.repeat(bases, BLOCK_MEMBERS)[:count]
        if inside.max() >= 1 << 32:
            raise AssertionError("members of one block are 2^32 documents apart")
        before = self._sparse_tokens + np.cumsum(lengths) - lengths
        groups = np.zeros(-(-count // FEW), SPARSE)
        groups["before"] = before[::FEW] & 0xFFFFFFFF
        groups["documents"] = np.pad(inside, (0, len(groups) * FEW - count)).reshape(-1, FEW)
        self._sparse.append("groups", groups)
        self._sparse_tops.append(before[::BLOCK_MEMBERS])
        self._bases.append(bases)
        self._sparse_tokens += int(lengths.sum())

    def seal(self, shards: int) -> str:
        """Flush and rename; the digest. shards: how many the documents are of."""
        if self._seen != self._documents:
            raise AssertionError(f"{self._seen} documents of {self._documents}")
        few = self._few
        if few:
            self._write_sparse(self._waiting.shape[1])
        file, tops = (self._sparse, self._sparse_tops) if few else (self._dense, self._tops)
        file.append("tokens", np.array([*np.concatenate([*tops, np.empty(0, np.int64)]), self.tokens], "<u8"))
        if few:
            file.append("documents", np.concatenate([*self._bases, np.empty(0, np.int64)]).astype("<u8"))
        return file.seal(
            {
                "kind": KIND,
                "form": "sparse" if few else "dense",
                "shards": shards,
                "documents": self._documents,
                "members": self.members,
                "tokens": self.tokens,
            }
        )


class DocumentStarts:
    """Where documents begin, as addresses in the tokens of `shards`, one shard after the other; from their `.idx`.

    bases: (shards,), the address of the first token of each.
    """

    def __init__(self, shards: Sequence[Shard], dtype: np.dtype[Any]) -> None:
        paths = [shard.index_path for shard in shards]
        self._files = OpenFiles(paths, [index_size(shard.documents) for shard in shards], sequential=False)
        self._width = dtype.itemsize
        self._documents: Ints = np.array([shard.documents for shard in shards], np.int64)
        self._tokens: Ints = np.array([shard.tokens for shard in shards], np.int64)
        self.bases: Ints = np.cumsum(self._tokens) - self._tokens

    def read(self, shard: Ints, first: Ints, count: int) -> Ints:
        """(n, count + 1): where documents `first` (n,) to `first + count - 1` of `shard` (n,) begin, and the last ends;
        documents that the shard has not are empty at its end. Raises IntegrityError."""
        found = np.zeros((len(shard), count + 1), "<i8")
        held = np.minimum(self._documents[shard] - first, count + 1)
        row = memoryview(found.view(np.uint8).reshape(-1).data)
        width = 8 * (count + 1)
        places = offset_places(self._documents[shard], first)
        asked = zip(*(numbers.tolist() for numbers in (shard, places, held)), strict=True)
        for number, (which, place, pointers) in enumerate(asked):
            rest = row[number * width : number * width + 8 * pointers]
            if os.preadv(self._files.get(which), [rest], place) != len(rest):
                self._fill(which, rest, place)
        starts, odd = np.divmod(found, self._width) if self._width > 1 else (found, np.zeros_like(found))
        np.copyto(starts, self._tokens[shard][:, None], where=np.arange(count + 1) >= held[:, None])
        wrong = (np.diff(starts, axis=1) < 0).any(axis=1) | (starts[:, 0] < 0) | odd.any(axis=1)
        wrong |= starts[:, -1] > self._tokens[shard]
        if wrong.any():
            path = self._files.paths[int(shard[np.argmax(wrong)])]
            raise IntegrityError(f"{path} is damaged: documents overlap in it; run pretok verify")
        addresses: Ints = starts + self.bases[shard][:, None]
        return addresses

    def _fill(self, which: int, rest: memoryview, place: int) -> None:
        """Read again what came in parts."""
        path = self._files.paths[which]
        with reading(path):
            while rest:
                if not (done := os.preadv(self._files.get(which), [rest], place)):
                    raise IntegrityError(f"{path} was cut while it was being read")
                rest = rest[done:]
                place += done


class Members:
    """The members of a class in some shards of a source in a row, by their side file.

    shards: those shards and, behind them, more that came later; first_shard: number of the first of them in `starts`.
    tokens, members, documents, shards: of the side file. Raises IntegrityError where the file is not of such shards.
    """

    def __init__(
        self, folder: Path, digest: str, shards: Sequence[Shard], first_shard: int, starts: DocumentStarts
    ) -> None:
        self._file = SideFile(folder, digest)
        self.path = self._file.path
        about = self._file.about
        count = about.get("shards")
        held = np.array([shard.documents for shard in shards], np.int64)[
            : count if type(count) is int else None
        ]
        self.shards = len(held)
        self.documents = int(held.sum())
        sizes = (about.get("kind"), about.get("shards"), about.get("documents"))
        if sizes != (KIND, self.shards, self.documents):
            raise IntegrityError(
                f"{self.path} is of {about}, not the members of a class in {self.shards} shards of {self.documents} "
                f"documents; {REMEDY}"
            )
        self.dense = about["form"] == "dense"
        self.members, self.tokens = int(about["members"]), int(about["tokens"])
        self._starts, self._first_shard = starts, first_shard
        self._document_ends = np.cumsum(held)
        self._shard_groups = np.cumsum([0, *(-(-held // WORD))]) if self.dense else np.zeros(1, np.int64)
        groups = int(self._shard_groups[-1]) if self.dense else -(-self.members // FEW)
        self._groups, self._each = groups, self._file.elements("groups")
        blocks = -(-groups // self._each)
        self._tops = self._file.whole("tokens").astype(np.int64)
        self._bases = np.empty(0, np.int64) if self.dense else self._file.whole("documents").astype(np.int64)
        fits = self._file.arrays["groups"] == (DENSE if self.dense else SPARSE, groups)
        if not fits or len(self._tops) != blocks + 1 or len(self._bases) not in (0, blocks):
            raise IntegrityError(f"{self.path}: its arrays contradict each other; {REMEDY}")
        if (np.diff(self._tops) < 0).any() or self._tops[0] or self._tops[-1] != self.tokens:
            raise IntegrityError(f"{self.path}: its tokens contradict each other; {REMEDY}")
        # Blocks without a member's token are never read: a class may be in two far parts of a source.
        self._filled = np.flatnonzero(np.diff(self._tops))
        self._filled_tops = self._tops[self._filled]

    def verify(self) -> None:
        """Read the whole side file. IntegrityError where it is not as it was sealed."""
        self._file.verify()

    def every(self) -> Iterator[tuple[Ints, Ints]]:
        """(numbers, lengths) of all members, rising, in parts: documents of these shards, and their tokens."""
        for block in range(-(-self._groups // self._each)):
            groups = np.arange(block * self._each, min((block + 1) * self._each, self._groups))
            records, before = self._load(np.array([block]))
            rows = records[0, : len(groups)]
            _, length = self._members(groups, rows, np.diff(before[0])[: len(groups)])
            if self.dense:
                shard = np.searchsorted(self._shard_groups, groups, side="right") - 1
                first = np.concatenate([[0], self._document_ends])[shard]
                first += (groups - self._shard_groups[shard]) * WORD
                numbers = first[:, None] + np.arange(WORD)
            else:
                numbers = self._bases[block] + rows["documents"].astype(np.int64)
            yield numbers[length > 0], length[length > 0]

    def pieces(self, first: Ints, end: Ints) -> Pieces:
        """The tokens `first` (n,) to `end - 1` (n,) of the members' tape, 0 <= first < end <= tokens: where they are,
        in pieces as long as possible. column: from `first` on."""
        low = np.searchsorted(self._filled_tops, first, side="right") - 1
        high = np.searchsorted(self._filled_tops, end - 1, side="right") - 1
        _, numbers = ranges(low, high + 1)
        blocks = self._filled[np.unique(numbers)]
        records, before = self._load(blocks)
        # Blocks that were left out have no tokens, so all that were read rise as one array.
        flat = before[:, :-1].reshape(-1)
        row, group = ranges(
            np.searchsorted(flat, first, side="right") - 1, np.searchsorted(flat, end - 1, side="right")
        )
        sizes = (before[:, 1:] - before[:, :-1]).reshape(-1)
        kept = sizes[group] > 0
        row, group = row[kept], group[kept]
        used, which = np.unique(group, return_inverse=True)
        block = blocks[used // self._each]
        address, length = self._members(
            block * self._each + used % self._each, records.reshape(-1)[used], sizes[used]
        )
        begins = flat[used][:, None] + np.cumsum(length, axis=1) - length
        begins, address, length = (part[which.reshape(-1)] for part in (begins, address, length))
        skipped = np.maximum(first[row][:, None] - begins, 0)
        length = np.minimum(length, end[row][:, None] - begins) - skipped
        at = np.nonzero(length > 0)
        row = row[at[0]]
        column = (begins + skipped)[at] - first[row]
        return _joined(Pieces(row, column, (address + skipped)[at], length[at]))

    def before(self, documents: Ints) -> Ints:
        """(n,): tokens of members before each of `documents` (n,), 0 to the number of documents, in rising order."""
        if not self.members:
            return np.zeros_like(documents)
        parts = [self._before(documents[at : at + ASKED]) for at in range(0, len(documents), ASKED)]
        return np.concatenate([np.empty(0, np.int64), *parts])

    def _before(self, documents: Ints) -> Ints:
        group, ahead = (self._dense_place if self.dense else self._sparse_place)(documents)
        inside = (group >= 0) & (group < self._groups)
        found = np.where(group < 0, 0, self.tokens)
        if inside.any():
            groups, which = np.unique(group[inside], return_inverse=True)
            blocks, of = np.unique(groups // self._each, return_inverse=True)
            records, before = self._load(blocks)
            here = of.reshape(-1), groups % self._each
            _, length = self._members(groups, records[here], (before[:, 1:] - before[:, :-1])[here])
            less = np.cumsum(np.pad(length, ((0, 0), (1, 0))), axis=1)
            found[inside] = (before[here][:, None] + less)[which.reshape(-1), ahead[inside]]
        return found

    def _dense_place(self, documents: Ints) -> tuple[Ints, Ints]:
        """The group of each document, -1 before all, the number of groups behind all; and how many documents of the
        group are before it."""
        shard = np.searchsorted(self._document_ends, documents, side="right")
        number = documents - np.concatenate([[0], self._document_ends])[shard]
        return self._shard_groups[shard] + number // WORD, number % WORD

    def _sparse_place(self, documents: Ints) -> tuple[Ints, Ints]:
        """The same, and how many of its members are before the document."""
        block = (
            np.searchsorted(self._bases, documents, side="right") - 1
        )  # the last that begins at or before each
        blocks, which = np.unique(np.maximum(block, 0), return_inverse=True)
        held = self._load(blocks)[0]["documents"].reshape(len(blocks), self._each * FEW).astype(np.int64)
        held[block_members(blocks, self._each * FEW) >= self.members] = 1 << 40  # behind the last
        less = held[which.reshape(-1)] < (documents - self._bases[block])[:, None]
        group, ahead = np.divmod(block * self._each * FEW + less.sum(axis=1), FEW)
        return np.where(block < 0, -1, group), ahead

    def _load(self, blocks: Ints) -> tuple[npt.NDArray[Any], Ints]:
        """Blocks (b,) of groups: records (b, each); before (b, each + 1), the tokens before each, and at its end."""
        records = self._file.blocks("groups", blocks)
        words = np.ascontiguousarray(records["before"])
        before = np.empty((len(blocks), self._each + 1), np.int64)
        before[:, 0] = self._tops[blocks]
        np.cumsum(np.diff(words, axis=1), axis=1, dtype=np.int64, out=before[:, 1:-1])
        before[:, 1:-1] += before[:, :1]
        if len(blocks) and (behind := int(blocks[-1] + 1) * self._each - self._groups) > 0:
            before[-1, self._each - behind :] = self._tops[blocks[-1] + 1]
        before[:, -1] = self._tops[blocks + 1]
        if (words[:, 0] != before[:, 0] & 0xFFFFFFFF).any() or (before[:, -2] > before[:, -1]).any():
            raise IntegrityError(f"{self.path}: the tokens before its groups contradict each other; {REMEDY}")
        return records, before

    def _members(self, groups: Ints, records: npt.NDArray[Any], sizes: Ints) -> tuple[Ints, Ints]:
        """Addresses and tokens of the members of groups (m,): (m, k) each; a length of 0 where there is none."""
        if self.dense:
            shard = np.searchsorted(self._shard_groups, groups, side="right") - 1
            first = (groups - self._shard_groups[shard]) * WORD
            starts = self._starts.read(shard + self._first_shard, first, WORD)
            mask = np.ascontiguousarray(records["mask"]).view(np.uint8).reshape(-1, 8)
            bits = np.unpackbits(mask, axis=1, bitorder="little")
            address, length = starts[:, :-1], np.multiply(np.diff(starts, axis=1), bits, dtype=np.int64)
        else:
            held = block_members(groups, FEW) < self.members
            documents = self._bases[groups // self._each][:, None] + records["documents"]
            if (documents[held] >= self.documents).any():
                raise IntegrityError(f"{self.path} names documents that its shards have not; {REMEDY}")
            shard = np.searchsorted(self._document_ends, documents[held], side="right")
            first = documents[held] - np.concatenate([[0], self._document_ends])[shard]
            starts = self._starts.read(shard + self._first_shard, first, 1)
            address, length = np.zeros(held.shape, np.int64), np.zeros(held.shape, np.int64)
            address[held], length[held] = starts[:, 0], np.diff(starts, axis=1)[:, 0]
        if (length.sum(axis=1) != sizes).any():
            raise IntegrityError(
                f"{self.path}: the documents it names have other lengths in the .idx of their shards; run pretok verify"
            )
        return address, length


def block_members(groups: Ints, each: int) -> Ints:
    """(n, each): the numbers of the members of groups (n,) of so many."""
    numbers: Ints = groups[:, None] * each + np.arange(each)
    return numbers


class ClassTape:
    """The tape of a class: the members of each generation of shards, one after the other. `tokens`: of all."""

    def __init__(self, parts: Sequence[Members], seq_len: int) -> None:
        self.parts = tuple(parts)
        self._seq_len = seq_len
        self._begins = np.cumsum([0, *(part.tokens for part in parts)])
        self.tokens = int(self._begins[-1])

    def pieces(self, source: Ints, cut: Ints, number: Ints) -> Pieces:  # noqa: ARG002
        """See `Tape`."""
        first = cut + number * self._seq_len
        return self.between(first, first + self._seq_len + 1)

    def between(self, first: Ints, end: Ints) -> Pieces:
        """The tokens `first` (n,) to `end - 1` (n,) of the tape. A row a range."""
        found = []
        for part, begins in zip(self.parts, self._begins.tolist(), strict=False):
            low, high = np.clip(first - begins, 0, part.tokens), np.clip(end - begins, 0, part.tokens)
            rows = np.flatnonzero(low < high)
            if len(rows):
                piece = part.pieces(low[rows], high[rows])
                column = piece.column + (low + begins - first)[rows][piece.row]
                found.append(piece._replace(row=rows[piece.row], column=column))
        return found[0] if len(found) == 1 else _joined(in_rows(found))

    def before(self, documents: Ints) -> Ints:
        """(n,): tokens of the tape before documents (n,) of the source's split, in rising order."""
        found = np.zeros(len(documents), np.int64)
        held = 0
        for part in self.parts:
            found += part.before(np.clip(documents - held, 0, part.documents))
            held += part.documents
        return found


def _joined(pieces: Pieces) -> Pieces:
    """The same where what lies together is one piece."""
    row, column, address, length = pieces
    if not len(row):
        return pieces
    begins = np.ones(len(row), np.bool_)
    np.logical_or(row[1:] != row[:-1], address[1:] != address[:-1] + length[:-1], out=begins[1:])
    at = np.flatnonzero(begins)
    return Pieces(row[at], column[at], address[at], np.add.reduceat(length, at))
