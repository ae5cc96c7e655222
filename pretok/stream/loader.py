"""Which rank reads what: positions of a stream -> the micro-batches of a rank; tokens -> their document boundaries.

Input: the length of a stream, the batch sizes and the rank. Output: `PositionSampler`, a `batch_sampler` for torch's
DataLoader; `Fetch` and `as_read`, a dataset and its `collate_fn` that read several sequences at once and check their
ids; `document_boundaries`, for attention within documents. It needs only numpy and the standard library.

    view = pretok.stream.open("shards", "mix.json")
    sampler = PositionSampler(len(view), global_batch=512, micro_batch=8, rank=rank, world_size=world_size)
    loader = DataLoader(view, batch_sampler=sampler, collate_fn=torch.from_numpy, num_workers=2)

Global batch g has the positions [g * global_batch, (g + 1) * global_batch), counted from `position`. Rank r takes the
r-th of world_size equal contiguous parts, and divides it into micro-batches in order. So the sequences of an optimizer
step do not depend on ranks, micro-batch, accumulation or workers, and a trainer that resumes needs only its position:
the sequences of the steps that it has done, however far its loader has read ahead.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from operator import index
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pretok.base.errors import IntegrityError, PretokError, UsageError
from pretok.base.tokens import document_starts
from pretok.stream.audit import shard
from pretok.stream.digests import digest
from pretok.stream.learned import Mask
from pretok.stream.view import View

_Ids = npt.NDArray[np.integer[Any]]


class PositionSampler:
    """Yields lists of positions, one list per micro-batch. Every `iter` starts at `position`.

    length: positions to read of the stream; the last ones, if they do not fill a global batch, are not read. Raises
    UsageError if the sizes do not divide.
    """

    def __init__(
        self,
        length: int,
        *,
        global_batch: int,
        micro_batch: int,
        rank: int = 0,
        world_size: int = 1,
        position: int = 0,
    ) -> None:
        for name, number in (
            ("micro_batch", micro_batch),
            ("ranks", world_size),
            ("global_batch", global_batch),
        ):
            if index(number) < 1:
                raise UsageError(f"{name} = {number}: give at least 1")
        if global_batch % (micro_batch * world_size):
            raise UsageError(
                f"a global batch of {global_batch} sequences cannot be divided into micro-batches of {micro_batch} on "
                f"{world_size} ranks: it must be a multiple of {micro_batch} x {world_size}"
            )
        if not 0 <= rank < world_size:
            raise UsageError(f"rank {rank} does not exist: {world_size} ranks are numbered from 0")
        if not 0 <= position <= length:
            raise UsageError(f"position {position} lies outside the {length} sequences that are to be read")
        self.global_batch = global_batch
        self.micro_batch = micro_batch
        self.rank = rank
        self.world_size = world_size
        self.position = position
        self.accumulation = global_batch // (micro_batch * world_size)
        self._steps = (length - position) // global_batch

    def __len__(self) -> int:
        """Micro-batches from `position` to the end."""
        return self._steps * self.accumulation

    def __iter__(self) -> Iterator[list[int]]:
        first = self.position + self.rank * (self.global_batch // self.world_size)
        for number in range(len(self)):
            step, micro = divmod(number, self.accumulation)
            at = first + step * self.global_batch + micro * self.micro_batch
            yield list(range(at, at + self.micro_batch))


def messages(sampler: PositionSampler, together: int) -> Iterator[list[int]]:
    """Yield the positions of the remaining micro-batches, `together` of them in one list."""
    batches = iter(sampler)
    while some := [position for batch in islice(batches, together) for position in batch]:
        yield some


def read_ahead(
    view: View,
    sampler: PositionSampler,
    ranks: Sequence[int] = (),
    worker: int = 0,
    workers: int = 1,
    together: int = 1,
) -> None:
    """Make a stream on an object store prefetch what `sampler` will ask for. Other streams need no call.

    Call it in each process that reads: this one is number `worker` of the `workers` of its rank. ranks: those that
    share the cache, by default only this one. together: micro-batches that one call of `View.batch` reads.
    """
    positions = islice(messages(sampler, together), worker, None, workers)
    view.expect(positions, max(len(ranks), 1) / sampler.world_size)


def read_batch(view: View, positions: Sequence[int], dtype: npt.DTypeLike) -> tuple[_Ids, Mask | None]:
    """Return the ids at n positions, (n, seq_len + 1), and the mask of learned targets, (n, seq_len) or None.

    The mask is None unless the stream is masked. IntegrityError names the shard of an id outside of the vocabulary; a
    model would fail without naming it, on a GPU with a device assertion.
    """
    tokens, learned = (
        view.batch(positions, dtype, loss=True) if view.masked else (view.batch(positions, dtype), None)
    )
    if tokens.size and not 0 <= tokens.min() <= tokens.max() < view.vocab_size:
        row, column = np.argwhere((tokens < 0) | (tokens >= view.vocab_size))[0].tolist()
        raise IntegrityError(
            f"{shard(view, positions[row], column)} holds the id {tokens[row, column]}, but the largest id of the "
            f"vocabulary is {view.vocab_size - 1}: the shard was damaged; run pretok verify"
        )
    return tokens, learned


class Fetched(NamedTuple):
    """The result of one read."""

    ids: _Ids
    """(n, seq_len + 1) in the dtype of the shards."""
    learned: Mask | None
    """Which targets are learned, or None (see `read_batch`)."""
    digest: int
    """Of both, 0 if not requested."""


class Fetch:
    """A dataset that reads all positions of a list in one call, for a DataLoader with the `collate_fn` `as_read`.

    Numpy arrays leave a loader process through a pipe, ids in the 2 bytes of the shards. Each tensor would be a new
    file in shared memory, mapped and faulted in on both sides, which takes the trainer three times the processor time.
    Errors are returned, not raised: an exception raised in a loader process would arrive with a traceback in its text.
    """

    def __init__(self, view: View, digests: bool = False) -> None:
        self.view, self.digests = view, digests

    def __len__(self) -> int:
        return len(self.view)

    def __getitems__(self, positions: Sequence[int]) -> Fetched | Exception:
        try:
            ids, learned = read_batch(self.view, positions, self.view.dtype)
        except (PretokError, OSError) as error:
            return error
        return Fetched(ids, learned, digest(positions, ids, learned) if self.digests else 0)


def as_read(fetched: Fetched | Exception) -> Fetched | Exception:
    """Return the arrays unchanged; a `collate_fn`."""
    return fetched


class Boundaries(NamedTuple):
    """Where documents begin, for attention within documents."""

    position_ids: npt.NDArray[np.int64]
    """Shape of the tokens, int64, 0 at the first token of every document."""
    cu_seqlens: npt.NDArray[np.int32]
    """(documents + 1,) int32, cumulative lengths over the flattened tokens, as variable-length attention kernels
    expect."""


def document_boundaries(tokens: npt.ArrayLike, eod_id: int) -> Boundaries:
    """Return the boundaries of the documents in `tokens`, the model's inputs: (seq_len,) or (n, seq_len) ids.

    A document ends with its EOD and any EODs that follow as padding. A document that continues from the previous
    sequence starts at 0 again.
    """
    array = np.asarray(tokens)
    flat = np.flatnonzero(document_starts(array, eod_id))
    lengths = np.diff(flat, append=array.size)
    position_ids = np.arange(array.size) - np.repeat(flat, lengths)
    return Boundaries(position_ids.reshape(array.shape), np.append(flat, array.size).astype(np.int32))
