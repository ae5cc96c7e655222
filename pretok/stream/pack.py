"""pack: documents -> bins of seq_len + 1 tokens, of which none is cut unless it is longer; sealed in a side file.

Input: the shards of a source, of which only the lengths in their `.idx` are read. Output: a packing index in a folder
of side files, and what it says (`stream.packed`). A document of more than seq_len + 1 tokens is cut behind each
seq_len + 1 tokens: these pieces fill a bin each, and what is left is packed as a document is.

Windows of documents in a row are packed by themselves (`kernels.packing`), so a sequence has documents from one place
of a source, memory holds the lengths of one shard, and the result is the same wherever it is computed. A finished index
is noted in the folder as `packing-KEY.json`, by which a job that was killed, and another mix of the same shards, find
it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryFile

import numpy as np
import numpy.typing as npt

from pretok.base.errors import IntegrityError
from pretok.base.lock import hold
from pretok.base.records import Record, read_record, to_json
from pretok.base.storage import FULL, fingerprint, read_json, write_json, writing
from pretok.base.tokens import Ints
from pretok.shards.manifest import Shard
from pretok.stream.members import Members
from pretok.stream.packed import KIND, WINDOW, Packing, open_packing, shards_key
from pretok.stream.side_file import SideFileWriter, path_of

DOCUMENTS = 4096
"""Of a window, at least. Packed in a row they leave 0.1 % of padding; 65,536 a tenth of that, in bins of documents that
lie farther apart."""
MOST_DOCUMENTS = 1 << 16
"""Of a window, at most: an entry of a whole source has two bytes."""
BINS = 512
"""Of a window, about, at least: the last bins of a window are not full."""


class _Made(Record, frozen=True):
    """A finished index, by its digest."""

    digest: str


def pack(
    folder: Path, shards: Sequence[Shard], seq_len: int, members: Sequence[Members] | None = None
) -> tuple[str, Packing]:
    """The digest of the packing index of `shards` in `folder`, and what it says; made unless it is there.

    members: those of a class in these shards, which alone are packed. Raises IntegrityError for an `.idx` that is not
    as it was sealed, OutputError.
    """
    named = {} if members is None else {"members": [part.path.name for part in members]}
    key = fingerprint({"shards": shards_key(shards), "seq_len": seq_len, **named})
    noted = folder / f"packing-{key.removeprefix('xxh3:')}.json"
    if noted.exists():
        digest = read_record(_Made, read_json(noted), noted).digest
        if path_of(folder, digest).exists():
            return digest, open_packing(folder, digest, shards, seq_len)[1]
    folder.mkdir(parents=True, exist_ok=True)
    with hold(folder, "mix"):
        if members is None:
            held = sum(shard.documents for shard in shards), sum(shard.tokens for shard in shards)
            documents = _documents(shards)
        else:
            held = sum(part.members for part in members), sum(part.tokens for part in members)
            documents = _members(members)
        digest = write_packing(folder, shards, seq_len, documents, *held)
        write_json(noted, to_json(_Made(digest)))
    return digest, open_packing(folder, digest, shards, seq_len)[1]


def _documents(shards: Sequence[Shard]) -> Iterator[tuple[Ints, Ints]]:
    """(numbers, lengths) of all documents in the split, shard by shard."""
    first = 0
    for shard in shards:
        lengths = shard.open().lengths.astype(np.int64)
        if (len(lengths), int(lengths.sum())) != (shard.documents, shard.tokens):
            raise IntegrityError(
                f"{shard.index_path} has {len(lengths)} documents, the manifest {shard.documents}"
            )
        yield np.arange(first, first + len(lengths)), lengths
        first += len(lengths)


def _members(parts: Sequence[Members]) -> Iterator[tuple[Ints, Ints]]:
    """The same of the members of a class."""
    first = 0
    for part in parts:
        for numbers, lengths in part.every():
            yield numbers + first, lengths
        first += part.documents


def window_of(documents: int, tokens: int, seq_len: int) -> int:
    """Documents of a window: DOCUMENTS, or more where they are so short that these make fewer than BINS bins."""
    window = DOCUMENTS
    while window < MOST_DOCUMENTS and window * tokens < BINS * (seq_len + 1) * documents:
        window *= 2
    return window


def packed_shares(lengths: Ints, seq_len: int) -> tuple[float, float]:
    """Sequences, and learned tokens, for each token of documents of such `lengths` (n,): what packing should give of
    more documents like these."""
    bins = learned = 0
    window = window_of(len(lengths), int(lengths.sum()), seq_len)
    for at in range(0, len(lengths), window):
        some = lengths[at : at + window]
        starts, members, full = pack_window(some, seq_len + 1)
        bins += len(starts)
        learned += int(_targets(some, starts, members, full, seq_len + 1).sum())
    return bins / max(int(lengths.sum()), 1), learned / max(int(lengths.sum()), 1)


def write_packing(
    folder: Path,
    shards: Sequence[Shard],
    seq_len: int,
    documents: Iterable[tuple[Ints, Ints]],
    given: int,
    given_tokens: int,
) -> str:
    """Pack documents of `shards` and write their index; its digest.

    documents: (numbers in the split, lengths) of those that are packed, rising, in parts of any size; given,
    given_tokens: how many they are and have. Where they are few among others an entry has four bytes.
    """
    capacity = seq_len + 1
    held = sum(shard.documents for shard in shards)
    window = window_of(given, given_tokens, seq_len)
    entry = np.dtype("<u2" if given == held else "<u4")
    windows = bytearray()
    count = tokens = entries = cut = targets = squares = bins_so_far = 0
    folder.mkdir(parents=True, exist_ok=True)
    label = f"packing-{shards[0].source if shards else ''}-{seq_len}"
    # Bins wait on the disk until all entries are written: of 3 billion documents they are gigabytes.
    with (
        writing(folder, FULL),
        TemporaryFile(dir=folder) as bins,
        SideFileWriter(folder, label) as writer,
    ):
        writer.append("entries", np.empty(0, entry))
        for numbers, lengths in _windows(documents, window):
            starts, members, full = pack_window(lengths, capacity)
            windows += np.array((bins_so_far, entries, int(numbers[0]), full), WINDOW).tobytes()
            bins.write(starts.astype("<u4").data)
            writer.append("entries", (numbers[members] - numbers[0]).astype(entry))
            learned = _targets(lengths, starts, members, full, capacity)
            targets, squares = targets + int(learned.sum()), squares + int((learned**2).sum())
            count, tokens = count + len(numbers), tokens + int(lengths.sum())
            cut += int((lengths > capacity).sum())
            bins_so_far, entries = bins_so_far + len(starts), entries + len(members)
        bins.seek(0)
        writer.append("bins", np.empty(0, "<u4"))
        while part := bins.read(1 << 22):
            writer.append("bins", np.frombuffer(part, "<u4"))
        windows += np.array((bins_so_far, entries, held, 0), WINDOW).tobytes()
        writer.append("windows", np.frombuffer(windows, WINDOW))
        about = Packing(
            kind=KIND,
            shards=len(shards),
            indexes=shards_key(shards),
            seq_len=seq_len,
            window=window,
            documents=count,
            tokens=tokens,
            bins=bins_so_far,
            cut=cut,
            targets=targets,
            squares=squares,
        )
        return writer.seal(to_json(about))


def _windows(documents: Iterable[tuple[Ints, Ints]], window: int) -> Iterator[tuple[Ints, Ints]]:
    """The same documents, `window` at a time."""
    waiting: list[npt.NDArray[np.int64]] = []
    held = 0
    for part in documents:
        waiting.append(np.stack(part))
        held += waiting[-1].shape[1]
        if held >= window:
            whole = np.concatenate(waiting, axis=1)
            for at in range(0, held - window + 1, window):
                yield whole[0, at : at + window], whole[1, at : at + window]
            waiting = [whole[:, held - held % window :]]
            held %= window
    if held:
        numbers, lengths = np.concatenate(waiting, axis=1)
        yield numbers, lengths


def _targets(lengths: Ints, starts: Ints, members: Ints, full: int, capacity: int) -> Ints:
    """(bins,): how many tokens each bin of a window learns, see `stream.packed`."""
    learned = np.full(len(starts), capacity - 1)
    if full < len(starts):
        rests = lengths[members[full:]] % capacity
        ends_alone = rests == 1
        ends_alone[starts[full:] - full] = False
        learned[full:] = np.add.reduceat(rests - ends_alone, starts[full:] - full) - 1
    return learned


def pack_window(lengths: Ints, capacity: int) -> tuple[Ints, Ints, int]:
    """Bins and entries of one window, and how many bins one document fills, as `best_fit` says."""
    from pretok.kernels.packing import best_fit

    lengths = np.ascontiguousarray(lengths)
    room = len(lengths) + int((lengths // capacity).sum())
    starts, members = np.empty(room, np.int64), np.empty(room, np.int64)
    full, count = best_fit(lengths, capacity, starts, members)
    return starts[:count], members[: full + int((lengths % capacity > 0).sum())], full
