"""Plain PyTorch and accelerate: a View -> this rank's micro-batches, with labels and the starts of documents.

Input: a View, a rank, a micro-batch. Output: `Loader`, an iterable of dictionaries of tensors whose state is one
position. The modules for trainers use the same batches under other names.

    loader = Loader(view, micro_batch=8, rank=rank, ranks=ranks, workers=2)
    for batch in loader:                      # batch["input_ids"], batch["labels"]: (8, seq_len) int64
        ...
    checkpoint["loader"] = loader.state_dict()
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils.data import DataLoader, get_worker_info

from pretok.base.tokens import IGNORE, padded_targets
from pretok.integrations.checks import check_length, checked_position
from pretok.stream import View
from pretok.stream.loader import Fetch, PositionSampler, as_read, document_boundaries, messages, read_ahead
from pretok.stream.mix_file import mix_json

_MESSAGE = 1 << 19
"""Tokens that are read at once, and leave a loader process in one message."""


class Batch(NamedTuple):
    """A micro-batch of n sequences of L tokens."""

    inputs: Tensor
    """(n, L) int64."""
    labels: Tensor
    """(n, L) int64; labels[i, j] is the token after inputs[i, j], or IGNORE if it is not learned."""
    position_ids: Tensor | None = None
    """(n, L) int64, 0 at the first token of every document; None unless documents are requested."""
    cu_seqlens: Tensor | None = None
    """(documents + 1,) int32 over the flattened inputs, as variable-length attention expects; None as above."""


def make_batch(
    view: View,
    ids: npt.NDArray[Any],
    documents: bool,
    learned: npt.NDArray[np.bool_] | None = None,
    pin_memory: bool = False,
) -> Batch:
    """Make a batch from (n, L + 1) ids; only here are labels and starts of documents computed.

    learned: (n, L) bool, which targets contribute to the loss; None means all. An EOD after an EOD is padding and never
    learned (`pretok.stream`, rule of the stream).
    """
    # Each id is converted once, directly into the memory from which the device copies. torch's `long`, `eq` and
    # `masked_fill` on int64 took five times as long.
    both = torch.empty((2, len(ids), ids.shape[1] - 1), dtype=torch.int64, pin_memory=pin_memory)
    inputs, labels = both.numpy()
    inputs[:], labels[:] = ids[:, :-1], ids[:, 1:]
    labels[padded_targets(ids, view.eod_id)] = IGNORE
    if learned is not None:
        labels[~learned] = IGNORE
    if not documents:
        return Batch(both[0], both[1])
    position_ids, cu_seqlens = document_boundaries(ids[:, :-1], view.eod_id)
    return Batch(both[0], both[1], torch.from_numpy(position_ids), torch.from_numpy(cu_seqlens))


def named(batch: Batch) -> dict[str, Tensor]:
    """Return the batch as a dictionary: input_ids, labels, and with documents position_ids and cu_seqlens."""
    tensors = {"input_ids": batch.inputs, "labels": batch.labels}
    if batch.position_ids is not None and batch.cu_seqlens is not None:
        tensors |= {"position_ids": batch.position_ids, "cu_seqlens": batch.cu_seqlens}
    return tensors


def _prepare_worker(sampler: PositionSampler, workers: int, together: int, worker: int) -> None:
    """Let an object store fetch ahead the sequences that this worker will read."""
    info: Any = get_worker_info()
    read_ahead(info.dataset.view, sampler, (), worker, workers, together)


class Loader:
    """Iterates over this rank's micro-batches from `position` on, each once, until no whole round is left.

    view: the stream. micro_batch: sequences per batch. rank, ranks: among those that read different data. position:
    sequences read before, by all ranks. sequences: where to end, counted from the start of the stream, by default its
    length, which it may not exceed. workers: processes that read ahead; prefetch: messages that each holds ready, of
    about half a million tokens. pin_memory: create tensors in pinned memory if there is a GPU. documents: also return
    the starts of documents. form: converts a `Batch` to what is returned.

    The state counts what was returned, however far workers have read ahead. Raises UsageError, IntegrityError (see
    `View.compare_places`), and MismatchError for a state of another stream.
    """

    def __init__(
        self,
        view: View,
        micro_batch: int,
        *,
        rank: int = 0,
        ranks: int = 1,
        position: int = 0,
        sequences: int | None = None,
        workers: int = 0,
        prefetch: int = 2,
        pin_memory: bool = False,
        documents: bool = False,
        form: Callable[[Batch], Any] = named,
    ) -> None:
        if sequences is not None:
            check_length(view, sequences)
        self.view, self.micro_batch, self.rank, self.ranks = view, micro_batch, rank, ranks
        self.position, self.end = position, len(view) if sequences is None else sequences
        self._workers, self._prefetch = workers, prefetch
        self._pin_memory = pin_memory and torch.cuda.is_available()
        self._documents, self._form = documents, form
        self._sampler()  # raises UsageError for sizes that do not divide
        view.compare_places(rank)

    def _sampler(self) -> PositionSampler:
        return PositionSampler(
            self.end,
            global_batch=self.micro_batch * self.ranks,
            micro_batch=self.micro_batch,
            rank=self.rank,
            world_size=self.ranks,
            position=self.position,
        )

    def __repr__(self) -> str:
        where = f"positions {self.position:,} to {self.end:,} of {self.view!r}"
        return (
            f"<pretok loader of {self.micro_batch} sequences for rank {self.rank} of {self.ranks}: {where}>"
        )

    def __len__(self) -> int:
        """Return the number of micro-batches that are left."""
        return len(self._sampler())

    def __iter__(self) -> Iterator[Any]:
        sampler, fetch = self._sampler(), Fetch(self.view)
        # The cost of a message in torch's queues hardly depends on its size. With a single micro-batch of 8 x 4,096 in
        # each, it would exceed all other costs of a batch in the trainer.
        together = max(1, _MESSAGE // (self.micro_batch * (self.view.seq_len + 1)))
        if self._workers:
            loader: Any = DataLoader  # its annotations do not allow a dataset that reads whole batches
            fetched: Any = loader(
                fetch,
                batch_sampler=messages(sampler, together),
                collate_fn=as_read,
                num_workers=self._workers,
                prefetch_factor=self._prefetch,
                worker_init_fn=partial(_prepare_worker, sampler, self._workers, together),
            )
        else:
            read_ahead(self.view, sampler, together=together)
            fetched = map(fetch.__getitems__, messages(sampler, together))
        for message in fetched:
            if isinstance(message, Exception):
                raise message
            for first in range(0, len(message.ids), self.micro_batch):
                rows = slice(first, first + self.micro_batch)
                learned = None if message.learned is None else message.learned[rows]
                self.position += self.ranks * self.micro_batch
                yield self._form(
                    make_batch(self.view, message.ids[rows], self._documents, learned, self._pin_memory)
                )

    def state_dict(self) -> dict[str, str | int]:
        """Return {position, stream, mix}, the same on all ranks once all have taken equally many batches."""
        mix = json.dumps(mix_json(self.view.mix))
        return {"position": self.position, "stream": self.view.fingerprint, "mix": mix}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state, with any ranks, micro-batch and workers; call it before the first batch."""
        self.position = checked_position(self.view, state)
        self._sampler()  # raises UsageError for a position after the end
