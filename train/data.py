"""From a stream of `pretok` to this rank's micro-batches on its device.

Input: a View, the batch sizes, a position. Output: `MicroBatch`es in order.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Generator, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, get_worker_info

from pretok.base.begin import SIGNALS
from pretok.base.tokens import document_starts
from pretok.stream import View
from pretok.stream.loader import Fetch, PositionSampler, as_read, read_ahead
from train.config import TrainConfig
from train.parallel.layout import BatchSizes

PREFETCH = 4
"""Batches that each loader process holds ready."""


class MicroBatch(NamedTuple):
    """One pass's worth of sequences, on the device.

    tokens: (n, seq_len + 1) ids. checksum: `pretok.stream.digest` of the sequences. documents: `documents_of` the
    inputs, None unless attention stays inside documents. learned: (n, seq_len) bool, True for targets that contribute
    to the loss; None if all do, apart from the padding that the rule of the stream excludes.
    """

    tokens: Tensor
    checksum: int = 0
    documents: Tensor | None = None
    learned: Tensor | None = None


def _prepare_worker(sampler: PositionSampler, here: Sequence[int], workers: int, worker: int) -> None:
    """Prepare a loader process: ignore the signals that stop a job, and make an object store prefetch.

    The signals reach loader processes too, which must live until the trainer stops.
    """
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    info: Any = get_worker_info()
    read_ahead(info.dataset.view, sampler, here, worker, workers)


def documents_of(inputs: Tensor, eod_id: int, config: TrainConfig) -> Tensor | None:
    """Return where the documents of (n, L) inputs end, (1, N + 1) int32 on the host, for `train.model.attention.Spans`.

    None unless attention stays inside documents. Except at the start of a sequence a document has at least two tokens,
    its first one and an EOD, so at most n (L // 2 + 1) documents begin. N is rounded up to a power of two: kernels
    allocate room for each document, and with few sizes the memory can be reused. The documents that fill N up have no
    tokens.
    """
    if config.attention != "document":
        return None
    starts = np.flatnonzero(document_starts(inputs.numpy(), eod_id))
    ends = np.full((1, (1 << (len(starts) - 1).bit_length()) + 1), inputs.numel(), np.int32)
    ends[0, : len(starts)] = starts
    return torch.from_numpy(ends)


class Feed:
    """Iterates over the `MicroBatch`es of this rank.

    `waited` sums the seconds spent waiting for data. Ranks that share sequences (tensor, pipeline, context) each read
    them. rank: number of the data-parallel rank; here: the data-parallel ranks of this host, which share a cache.
    """

    def __init__(
        self,
        view: View,
        batch: BatchSizes,
        rank: int,
        position: int,
        end: int,
        config: TrainConfig,
        device: torch.device,
        here: Sequence[int] = (),
    ) -> None:
        self._device, self._config, self._eod_id = device, config, view.eod_id
        self.waited = 0.0
        # On a CUDA stream of its own, a copy overlaps the previous micro-batch, which is still computing.
        self._copies = torch.cuda.Stream() if device.type == "cuda" else None  # type: ignore[no-untyped-call]
        sampler = PositionSampler(
            end,
            global_batch=batch.global_batch,
            micro_batch=batch.micro_batch,
            rank=rank,
            world_size=batch.ranks,
            position=position,
        )
        loader: Any = DataLoader  # its annotations do not allow a dataset that reads whole batches
        self._loader: Any = loader(
            Fetch(view, digests=True),
            batch_sampler=sampler,
            collate_fn=as_read,
            num_workers=config.workers,
            prefetch_factor=PREFETCH if config.workers else None,
            worker_init_fn=partial(_prepare_worker, sampler, here, config.workers),
        )
        self._here = None if config.workers else partial(read_ahead, view, sampler, here)

    def __iter__(self) -> Generator[MicroBatch, None, None]:
        if self._here is not None:
            self._here()
        batches = iter(self._loader)
        try:
            while True:
                started = time.perf_counter()
                fetched = next(batches, None)
                self.waited += time.perf_counter() - started
                if fetched is None:
                    return
                if isinstance(fetched, Exception):
                    raise fetched
                ids = torch.from_numpy(fetched.ids.astype(np.int32))
                learned = None if fetched.learned is None else self._copy(torch.from_numpy(fetched.learned))
                documents = documents_of(ids[:, :-1], self._eod_id, self._config)
                ends = None if documents is None else self._copy(documents)
                yield MicroBatch(self._copy(ids), fetched.digest, ends, learned)
        finally:
            del batches  # ends its processes, also if an exception keeps this frame alive

    def _copy(self, tokens: Tensor) -> Tensor:
        if self._copies is None:
            return tokens
        pinned = tokens.pin_memory()  # torch's allocator keeps the memory until the copy has read it
        with torch.cuda.stream(self._copies):
            on_device = pinned.to(self._device, non_blocking=True)
        torch.cuda.current_stream().wait_stream(self._copies)
        # Memory of the copy stream is used on the main stream: the allocator must not reuse it before that is done.
        on_device.record_stream(torch.cuda.current_stream())
        return on_device
