"""Plain PyTorch and accelerate: a View -> this rank's micro-batches, with labels and starts of documents.

Input: a View, a rank, a micro-batch. Output: `Loader`, an iterable of dictionaries of tensors whose state is one
position. The modules for trainers take the same batches by other names.

    loader = Loader(view, micro_batch=8, rank=rank, ranks=ranks, workers=2)
    for batch in loader:                      # batch["input_ids"], batch["labels"]: (8, seq_len) int64
        ...
    checkpoint["loader"] = loader.state_dict()
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from pretok.integrations.checks import check_length, checked_position, saved_state
from pretok.integrations.digests import DigestLog
from pretok.stream import View
from pretok.stream.loader import Collate, Fetch, PositionSampler, document_boundaries

IGNORE = -100
"""A label that carries no loss, as torch's cross_entropy has it."""


class Batch(NamedTuple):
    """A micro-batch of n sequences of L tokens.

    inputs, labels: (n, L) int64, labels[i, j] the token behind inputs[i, j], IGNORE where it is not learned;
    position_ids: (n, L) int64, 0 at each document's first token; cu_seqlens: (documents + 1,) int32 over the flattened
    inputs, as variable-length attention takes them. The last two are None where nobody asks for documents.
    """

    inputs: Tensor
    labels: Tensor
    position_ids: Tensor | None = None
    cu_seqlens: Tensor | None = None


def make_batch(view: View, ids: Tensor, documents: bool, learned: Tensor | None = None) -> Batch:
    """What a model gets of (n, L + 1) ids, of which the targets `learned` (n, L) count, None being all: here alone
    labels and starts of documents are made.

    An EOD behind an EOD only fills a sequence up, and is not learned (`pretok.stream`, rule of the stream).
    """
    inputs, labels = (part.long().contiguous() for part in (ids[:, :-1], ids[:, 1:]))
    labels = labels.masked_fill((inputs == view.eod_id) & (labels == view.eod_id), IGNORE)
    if learned is not None:
        labels = labels.masked_fill(~learned, IGNORE)
    if not documents:
        return Batch(inputs, labels)
    position_ids, cu_seqlens = document_boundaries(inputs.numpy(), view.eod_id)
    return Batch(inputs, labels, torch.from_numpy(position_ids), torch.from_numpy(cu_seqlens))


def named(batch: Batch) -> dict[str, Tensor]:
    """The batch as a dictionary: input_ids, labels; with documents position_ids and cu_seqlens."""
    found = {"input_ids": batch.inputs, "labels": batch.labels}
    if batch.position_ids is not None and batch.cu_seqlens is not None:
        found |= {"position_ids": batch.position_ids, "cu_seqlens": batch.cu_seqlens}
    return found


class Loader:
    """This rank's micro-batches from `position` on, each once; it ends where no whole round is left.

    view: the stream; micro_batch: sequences of a batch; rank, ranks: among those that read different data; position:
    how many sequences were read before, by all ranks; sequences: how many the whole run is to read from the stream's
    first on, refused now if it has fewer; workers: processes that read ahead; documents: also give starts of documents;
    digests: a folder for `digests.DigestLog`; form: makes of a `Batch` what is handed out.

    The state counts what was handed out, however far workers have read ahead. Raises UsageError, and MismatchError for
    a state of another stream.
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
        digests: str | Path | None = None,
        form: Callable[[Batch], Any] = named,
    ) -> None:
        if sequences is not None:
            check_length(view, sequences)
        self.view, self.micro_batch, self.rank, self.ranks = view, micro_batch, rank, ranks
        self.position = position
        self._options: dict[str, Any] = {"num_workers": workers, "pin_memory": pin_memory}
        if workers:
            self._options["prefetch_factor"] = prefetch
        self._documents, self._digests, self._form = documents, digests, form
        self._sampler()  # refuses what cannot be divided

    def _sampler(self) -> PositionSampler:
        return PositionSampler(
            len(self.view),
            global_batch=self.micro_batch * self.ranks,
            micro_batch=self.micro_batch,
            rank=self.rank,
            world_size=self.ranks,
            position=self.position,
        )

    def __len__(self) -> int:
        """Micro-batches that are left."""
        return len(self._sampler())

    def __iter__(self) -> Iterator[Any]:
        loader: Any = DataLoader  # its annotations know no dataset that reads whole batches
        batches = loader(
            Fetch(self.view),
            batch_sampler=self._sampler(),
            collate_fn=Collate(self.view, torch.from_numpy),
            **self._options,
        )
        log = (
            None if self._digests is None else DigestLog(self._digests, self.position, self.rank, self.ranks)
        )
        try:
            for fetched in batches:
                if isinstance(fetched, Exception):
                    raise fetched
                ids, learned, digest = fetched
                if log is not None:
                    log.add(self.position + self.rank * self.micro_batch, self.micro_batch, digest)
                self.position += self.ranks * self.micro_batch
                yield self._form(make_batch(self.view, ids, self._documents, learned))
        finally:
            if log is not None:
                log.close()

    def state_dict(self) -> dict[str, str | int]:
        """{position, stream, mix}: the same on all ranks. Take it where all ranks have been handed equally much."""
        return saved_state(self.view, self.position)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state, with any ranks, micro-batch and workers, before the first batch."""
        self.position = checked_position(self.view, state)
