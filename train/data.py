"""From a stream of `pretok` to this rank's micro-batches on its device.

Input: a View, the batch sizes, a position. Output: `MicroBatch`es in order.
"""

from __future__ import annotations

import pickle
import threading
import time
from collections.abc import Generator, Sequence
from contextlib import closing
from itertools import cycle, islice
from queue import SimpleQueue
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from pretok.base.tokens import document_starts
from pretok.stream import View
from pretok.stream.loader import Fetch, Fetched, PositionSampler, read_ahead
from train.config import TrainConfig
from train.parallel.layout import BatchSizes

PREFETCH = 4
"""Batches that each loader thread holds ready."""


class MicroBatch(NamedTuple):
    """One pass's worth of sequences, on the device."""

    tokens: Tensor
    """(n, seq_len + 1) ids."""
    checksum: int = 0
    """`pretok.stream.digest` of the sequences."""
    documents: Tensor | None = None
    """`documents_of` the inputs, None unless attention stays inside documents."""
    learned: Tensor | None = None
    """(n, seq_len) bool, True for targets that contribute to the loss; None if all do, apart from the padding that the
    rule of the stream excludes."""


class _Reader:
    """A thread that reads every n-th micro-batch, at most PREFETCH ahead. `workers`: n; `worker`: the first one.

    A process would be forked after CUDA, NCCL and gloo have started threads, whose locks it would inherit as they are.
    The thread waits for the disk without the interpreter lock, and ends with the process, even in a read that hangs.
    """

    def __init__(
        self, view: View, sampler: PositionSampler, here: Sequence[int], worker: int, workers: int
    ) -> None:
        self._ready: SimpleQueue[Fetched | BaseException | None] = SimpleQueue()
        self._room = threading.Semaphore(PREFETCH)
        self._ended = False
        copy: View = pickle.loads(pickle.dumps(view))  # a view is for one thread
        reading = (copy, sampler, here, worker, workers)
        threading.Thread(target=self._read, args=reading, daemon=True, name=f"loader-{worker}").start()

    def _read(
        self, view: View, sampler: PositionSampler, here: Sequence[int], worker: int, workers: int
    ) -> None:
        try:
            read_ahead(view, sampler, here, worker, workers)
            fetch = Fetch(view, digests=True)
            for positions in islice(sampler, worker, None, workers):
                self._room.acquire()
                if self._ended:
                    return
                self._ready.put(fetch.__getitems__(positions))
            self._ready.put(None)
        except BaseException as error:  # raised where the batch is taken
            self._ready.put(error)

    def take(self) -> Fetched | BaseException | None:
        """Return the next micro-batch, or the error that reading it gave; None after the last one."""
        taken = self._ready.get()
        self._room.release()
        return taken

    def end(self) -> None:
        """Let the thread end after its current read."""
        self._ended = True
        self._room.release()


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
        self._view, self._here = view, here
        self._sampler = PositionSampler(
            end,
            global_batch=batch.global_batch,
            micro_batch=batch.micro_batch,
            rank=rank,
            world_size=batch.ranks,
            position=position,
        )

    def _fetched(self) -> Generator[Fetched | BaseException | None, None, None]:
        """Yield what is read, in order: by threads, or by this one without `workers`."""
        workers = self._config.workers
        if not workers:
            read_ahead(self._view, self._sampler, self._here)
            yield from map(Fetch(self._view, digests=True).__getitems__, self._sampler)
            return
        readers = [
            _Reader(self._view, self._sampler, self._here, worker, workers) for worker in range(workers)
        ]
        try:
            for reader in cycle(readers):
                yield reader.take()
        finally:
            for reader in readers:
                reader.end()

    def __iter__(self) -> Generator[MicroBatch, None, None]:
        with closing(self._fetched()) as batches:
            while True:
                started = time.perf_counter()
                fetched = next(batches, None)
                self.waited += time.perf_counter() - started
                if fetched is None:
                    return
                if isinstance(fetched, BaseException):
                    raise fetched
                ids = torch.from_numpy(fetched.ids.astype(np.int32))
                learned = None if fetched.learned is None else self._copy(torch.from_numpy(fetched.learned))
                documents = documents_of(ids[:, :-1], self._eod_id, self._config)
                ends = None if documents is None else self._copy(documents)
                yield MicroBatch(self._copy(ids), fetched.digest, ends, learned)

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
