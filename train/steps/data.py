"""A stream of `pretok` -> this rank's micro-batches on its device.

Input: a View, the batch sizes, a position. Output: (tokens, checksum) pairs in order. The checksum covers
positions and token ids, is taken where the batch is read, and adds up over ranks to a number that does not
depend on how a global batch was divided.
"""

from __future__ import annotations

import signal
import time
import zlib
from collections.abc import Generator, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from pretok.base.errors import IntegrityError, PretokError
from pretok.base.stop import SIGNALS
from pretok.stream import View
from pretok.stream.loader import Narrow, PositionSampler, identity_of
from train.config import TrainConfig
from train.model.loss import IGNORE, targets_of
from train.parallel.layout import Batch

_Tokens = npt.NDArray[np.integer[Any]]


def batch_checksum(positions: list[int], tokens: _Tokens) -> int:
    """Sum over sequences of the CRC-32 of position and token ids; below 2**53 for two million sequences."""
    rows = zip(np.asarray(positions, np.int64), tokens, strict=True)
    return sum(zlib.crc32(row.tobytes(), zlib.crc32(position.tobytes())) for position, row in rows)


def read_batch(view: View, positions: Sequence[int], dtype: npt.DTypeLike) -> _Tokens:
    """(n, seq_len + 1) ids at n positions. IntegrityError names the shard with an id outside of the vocabulary: the
    model would fail without naming it, on a GPU by an assertion of the device."""
    tokens: _Tokens = view.batch(positions, dtype)
    if tokens.size and not 0 <= tokens.min() <= tokens.max() < view.vocab_size:
        row, column = np.argwhere((tokens < 0) | (tokens >= view.vocab_size))[0].tolist()
        raise IntegrityError(
            f"{view.shard(positions[row], column)} holds the id {tokens[row, column]}, and the vocabulary ends at "
            f"{view.vocab_size - 1}: the shard was damaged. `pretok verify` compares its checksum, which train does not"
        )
    return tokens


class Fetch:
    """Dataset whose one call reads a micro-batch: (n, seq_len + 1) int32 ids and their checksum, or what is wrong: an
    exception that a loader process raises would arrive with a traceback in its text."""

    def __init__(self, view: View) -> None:
        self.view = view

    def __len__(self) -> int:
        return len(self.view)

    def __getitems__(self, positions: list[int]) -> tuple[_Tokens, int] | Exception:
        try:
            tokens = read_batch(self.view, positions, np.int32)
        except (PretokError, OSError) as error:
            return error
        return tokens, batch_checksum(positions, tokens)


class Collate:
    """The tokens as a tensor beside their checksum; out of a loader process they go in the dtype of the shards."""

    def __init__(self, view: View) -> None:
        self._narrow = Narrow(torch.from_numpy, view.dtype)

    def __call__(self, fetched: tuple[_Tokens, int] | Exception) -> tuple[Tensor, int] | Exception:
        if isinstance(fetched, Exception):
            return fetched
        return self._narrow(fetched[0]), fetched[1]


def _ignore_signals(_worker: int) -> None:
    """A signal meant to stop the job reaches loader processes too.

    The trainer must find them alive to finish.
    """
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)


class Feed:
    """Iterates over (tokens (n, seq_len + 1) on the device, checksum).

    `waited` adds up the seconds spent waiting, to those of a feed before.
    """

    def __init__(
        self,
        view: View,
        batch: Batch,
        rank: int,
        position: int,
        end: int,
        config: TrainConfig,
        device: torch.device,
        waited: float = 0.0,
    ) -> None:
        sampler = PositionSampler(
            end,
            global_batch=batch.global_batch,
            micro_batch=batch.micro_batch,
            rank=rank,
            world_size=batch.ranks,
            position=position,
            identity=identity_of(view),
        )
        options: dict[str, Any] = {"prefetch_factor": config.prefetch} if config.workers else {}
        loader: Any = DataLoader  # its annotations know no dataset that reads whole batches
        self._loader = loader(
            Fetch(view),
            batch_sampler=sampler,
            collate_fn=Collate(view),
            num_workers=config.workers,
            pin_memory=device.type == "cuda",
            worker_init_fn=_ignore_signals,
            **options,
        )
        self._device = device
        # On a stream of its own the copy runs beside the previous micro-batch, which the host has only
        # queued.
        self._copies = torch.cuda.Stream() if device.type == "cuda" else None  # type: ignore[no-untyped-call]
        self.waited = waited

    def __iter__(self) -> Generator[tuple[Tensor, int], None, None]:
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
                yield self._copy(fetched[0]), fetched[1]
        finally:
            del batches  # and with it its processes, also where an exception keeps this frame

    def _copy(self, tokens: Tensor) -> Tensor:
        if self._copies is None:
            return tokens
        with torch.cuda.stream(self._copies):
            on_device = tokens.to(self._device, non_blocking=True)
        torch.cuda.current_stream().wait_stream(self._copies)
        on_device.record_stream(torch.cuda.current_stream())
        return on_device


def validation_batches(
    view: View, sequences: int, micro_batch: int, rank: int, ranks: int, device: torch.device
) -> Iterator[tuple[Tensor, Tensor]]:
    """(inputs, targets) of this rank's part of the first `sequences` positions; every rank gets equally many.

    Where the sequences do not divide, the first ones are repeated with targets that carry no loss.
    """
    rounds = -(-sequences // (micro_batch * ranks))
    for number in range(rounds):
        first = (number * ranks + rank) * micro_batch
        positions = np.arange(first, first + micro_batch)
        tokens = torch.from_numpy(read_batch(view, (positions % sequences).tolist(), np.int64)).to(device)
        targets = targets_of(tokens, view.eod_id)
        targets[torch.from_numpy(positions >= sequences).to(device)] = IGNORE
        yield tokens[:, :-1], targets
