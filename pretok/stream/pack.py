"""Packing: documents -> sequences of seq_len + 1 tokens that split only documents longer than that (see `tapes`).

Input: the shards of a source, from whose `.idx` it reads only the document lengths, and the tape of a class if only
that is packed. Output: a side file, and its `Packing`. A document of more than seq_len + 1 tokens is split after each
seq_len + 1 tokens: these pieces fill a sequence each, and the remainder is packed like a document. Free space is filled
with EOD. All tokens of a sequence but the first are targets, except for an EOD that follows an EOD: the padding, and
the last token of a longer document if it is all that remains of it.

Windows of consecutive documents are packed one by one (`kernels.packing`). So memory holds the lengths of one shard,
and the result is the same wherever it is computed. `packing-KEY.json` in the folder records a finished tape; by it a
resumed job, or another mix of the same shards, finds the tape.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from pretok.base.errors import IntegrityError
from pretok.base.lock import hold
from pretok.base.records import Count, Digest, Record, read_record, to_json
from pretok.base.storage import FULL, fingerprint, read_json, write_json, writing
from pretok.base.tokens import Ints
from pretok.shards.manifest import Shard
from pretok.stream.tapes import FILL, SideTape, TapeWriter, path_of, shards_key

DOCUMENTS = 4096
"""The smallest window, in documents.

Consecutive documents packed like this leave 0.1 % of padding; windows of 65,536 leave a tenth of that, but combine
documents that lie farther apart.
"""
MOST_DOCUMENTS = 1 << 16
BINS = 512
"""About the least number of bins of a window, because the last bins of a window are not full."""


class _Noted(Record, frozen=True):
    """packing-KEY.json: the tape that was packed under this key."""

    digest: Digest


class Packing(Record, frozen=True, kw_only=True):
    """The record in a packed tape."""

    shards: Count
    """Their number."""
    indexes: Digest
    """See `shards_key`."""
    seq_len: Count
    documents: Count
    """Those packed."""
    tokens: Count
    """Of the packed documents."""
    bins: Count
    """Sequences."""
    cut: Count
    """Documents longer than a sequence."""
    targets: Count
    """Targets with loss in all bins."""
    squares: Count
    """Sum over bins of their squared targets."""


def pack(
    folder: Path, shards: Sequence[Shard], seq_len: int, members: SideTape | None = None
) -> tuple[str, Packing]:
    """Return the digest of the packed tape of `shards` in `folder` and its `Packing`; make the tape unless it exists.

    members: the tape of a class in these shards; only its documents are packed. Raises IntegrityError for an `.idx`
    that differs from the manifest, OutputError.
    """
    named = {} if members is None else {"members": members.path.name}
    key = fingerprint({"shards": shards_key(shards), "seq_len": seq_len, **named})
    noted = folder / f"packing-{key.removeprefix('xxh3:')}.json"
    digest = read_record(_Noted, read_json(noted), noted).digest if noted.exists() else ""
    if not digest or not path_of(folder, digest).exists():
        folder.mkdir(parents=True, exist_ok=True)
        # The folder of side files is shared by all mixes next to it: only one job at a time may write there.
        with hold(folder, "mix"), writing(folder, FULL):
            digest = _write_packing(folder, shards, seq_len, members)
            # After the tape: a kill in between leaves a tape that is made again, never a note of one that is not there.
            write_json(noted, {"digest": digest})
    file = SideTape(folder, digest, shards)
    return digest, read_record(Packing, file.about, file.path)


def documents_of(shards: Sequence[Shard], members: SideTape | None) -> Iterator[Ints]:
    """Yield (2, n) for each shard: addresses and lengths of its documents, or of those that belong to a class."""
    base = 0
    for shard in shards:
        length = shard.open().lengths.astype(np.int64)
        if (len(length), int(length.sum())) != (shard.documents, shard.tokens):
            raise IntegrityError(
                f"{shard.index_path} has {len(length)} documents, the manifest {shard.documents}"
            )
        address = base + np.cumsum(length) - length
        if members is not None:
            # A document belongs to the class if it begins inside one of the runs of the class's tape.
            _, begin, size = members.holding(base, base + shard.tokens)
            run = np.searchsorted(begin, address, side="right") - 1
            chosen = (run >= 0) & (address < np.append(begin + size, 0)[run])
            address, length = address[chosen], length[chosen]
        yield np.stack([address, length])
        base += shard.tokens


def window_of(documents: int, tokens: int, seq_len: int) -> int:
    """Return the documents of a window: DOCUMENTS, or more if so many short ones fill fewer than BINS bins."""
    window = DOCUMENTS
    while window < MOST_DOCUMENTS and window * tokens < BINS * (seq_len + 1) * documents:
        window *= 2
    return window


def _write_packing(folder: Path, shards: Sequence[Shard], seq_len: int, members: SideTape | None) -> str:
    """Pack the documents of `shards`, or those of `members`; return the digest of the tape."""
    count, tokens = sum(shard.documents for shard in shards), sum(shard.tokens for shard in shards)
    if members is not None:
        count, tokens = members.about["members"], members.tokens
    window = window_of(count, tokens, seq_len)
    cut = targets = squares = bins = 0
    with TapeWriter(folder, f"packing-{shards[0].source}-{seq_len}", seq_len + 1) as writer:
        for address, length in _windows(documents_of(shards, members), window):
            start, lengths, learned = window_runs(address, length, seq_len + 1)
            # Pieces of one document, which follow each other both in the shard and on the tape, come first.
            whole = int((length // (seq_len + 1)).sum())
            writer.append(start[:whole], lengths[:whole])
            writer.append(start[whole:], lengths[whole:], joined=False)
            targets, squares = targets + int(learned.sum()), squares + int((learned**2).sum())
            cut, bins = cut + int((length > seq_len + 1).sum()), bins + len(learned)
        about = Packing(
            shards=len(shards),
            indexes=shards_key(shards),
            seq_len=seq_len,
            documents=count,
            tokens=tokens,
            bins=bins,
            cut=cut,
            targets=targets,
            squares=squares,
        )
        return writer.seal(to_json(about))


def _windows(parts: Iterable[Ints], window: int) -> Iterator[npt.NDArray[np.int64]]:
    """Yield (2, n): the same documents, `window` at a time."""
    # What a shard leaves of a window is packed with the first documents of the next: where shards end changes nothing.
    rest = np.empty((2, 0), np.int64)
    for part in parts:
        rest = np.concatenate([rest, part], axis=1)
        whole = rest.shape[1] // window * window
        for at in range(0, whole, window):
            yield rest[:, at : at + window]
        rest = rest[:, whole:]
    if rest.shape[1]:
        yield rest


def window_runs(address: Ints, length: Ints, capacity: int) -> tuple[Ints, Ints, Ints]:
    """Return addresses and lengths of the runs of a window's bins, with padding, and each bin's targets (bins,)."""
    from pretok.kernels.packing import best_fit

    # best_fit lists the bins in order: first `full` ones, each with one whole piece of a long document (the bin's start
    # is the piece's number in it), then those with several documents or remainders (the start is where they begin).
    length = np.ascontiguousarray(length)
    room = len(length) + int((length // capacity).sum())
    starts, entries = np.empty(room, np.int64), np.empty(room, np.int64)
    full, count = best_fit(length, capacity, starts, entries)
    alone, packed = entries[:full], entries[full : full + int((length % capacity > 0).sum())]
    begins, rest = starts[full:count] - full, length[packed] % capacity
    learned = np.full(count, capacity - 1)
    fill = np.empty(0, np.int64)
    if len(begins):
        fill = capacity - np.add.reduceat(rest, begins)
        of_another = rest == 1  # a remainder of one token is an EOD, and follows another EOD: no target
        of_another[begins] = False
        learned[full:] = np.add.reduceat(rest - of_another, begins) - 1
    behind = np.append(begins[1:], len(rest))[: len(begins)]
    starts_of_runs = np.concatenate(
        [
            address[alone] + starts[:full] * capacity,
            np.insert(address[packed] + length[packed] - rest, behind, FILL),
        ]
    )
    lengths = np.concatenate([np.full(full, capacity), np.insert(rest, behind, fill)])
    # A bin that its documents fill exactly has no padding.
    return starts_of_runs[lengths > 0], lengths[lengths > 0], learned
