"""Validation loss of every source, per token and per byte of text.

Input: the validation split of the shards. Output: mean loss in nats per token and in bits per byte, by source and over
all, equal on all ranks; None when a stop was asked for on the way.

Nats per token depend on the vocabulary, bits per byte do not. With S the scored tokens of a source, nats the sum of
their losses, and tokens and bytes those of the source's whole validation split in the manifest (end-of-document tokens
are tokens and no bytes; bytes are of text in UTF-8),

    bits per byte = nats / ln 2 / (S x bytes / tokens)

(Gao et al. 2020, The Pile, section 3.1). What an end-of-document token costs is in the sum: a model of text must also
say where it ends. The bytes of what was scored are thus S tokens at the split's mean bytes per token, which is exact
when the whole split is scored but for its first token and the last, incomplete sequence. Of conversations the learned
tokens are scored, those that the mix names, and their bytes are counted token by token: a marker has none. Over all
sources nats and bytes are summed first; a source of whose sequences nothing is learned has no loss.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

import pretok.stream
from pretok.base.errors import UsageError
from pretok.shards.manifest import Manifest
from pretok.stream import View
from pretok.stream.loader import read_batch
from pretok.stream.mix_file import Mix
from pretok.stream.object_store import manifest_of
from train.config import TrainConfig
from train.data import MicroBatch, documents_of
from train.parallel.mesh import data_rank, reshard
from train.step import Trainee


@dataclass(frozen=True, slots=True)
class ValidationSource:
    """The validation split of one source, and the bytes of text that a token of it stands for on average; sizes:
    (vocabulary,) int64, the bytes of each token, where those that are scored are counted."""

    view: View
    bytes_per_token: float
    sizes: torch.Tensor | None = None


def validation_sources(config: TrainConfig, mix: Mix) -> dict[str, ValidationSource]:
    """Each source whose validation split holds a sequence; UsageError when none does. Of shards that have grown it is
    the split of those that the mix began with, so that losses before and after are of the same text."""
    now, seq_len = manifest_of(config.shards, config.cache), mix.seq_len
    manifest = now.as_of(mix.began) or now
    learn = {
        source.held_in: source.learn
        for source in mix.sources
        if source.learn and source.held_in in manifest.sources
    }
    found, sizes = {}, None
    for name, held in manifest.sources.items():
        if (counts := held.val).tokens > seq_len:
            view = pretok.stream.open(
                config.shards,
                seq_len=seq_len,
                split="val",
                source=name,
                manifest=manifest.fingerprint,
                learn=learn,
                cache=config.cache,
            )
            if view.masked and sizes is None:
                sizes = _token_sizes(now)
            found[name] = ValidationSource(view, counts.bytes / counts.tokens, sizes if view.masked else None)
    if not found:
        raise UsageError(
            f"{config.shards} holds no validation sequence of {seq_len} tokens: "
            "tokenize with --val-fraction, or do without --val-every and --keep-best"
        )
    return found


def _token_sizes(manifest: Manifest) -> torch.Tensor:
    """(vocabulary,) int64: bytes of text of each token, 0 of added ones."""
    from pretok.shards.texts import load_vocabulary

    vocab = load_vocabulary(manifest)
    added = set(vocab.added_tokens.values())
    return torch.tensor([0 if i in added else len(vocab.token_bytes(i)) for i in range(vocab.size)])


def bits_per_byte(nats: float, text_bytes: float) -> float:
    """nats, a sum over tokens, in bits over the bytes of text these stand for."""
    return nats / math.log(2) / text_bytes


def evaluate(
    trainee: Trainee, sources: Mapping[str, ValidationSource], stop: Callable[[], bool]
) -> dict[str, Any] | None:
    """Evaluate the first `val_sequences` of each source: `val_loss` over all and by name `sources` in nats per token,
    `val_bits_per_byte` and `bits_per_byte`. The stop flag is looked at after every batch."""
    sums: dict[str, list[float]] = {}
    try:
        for name, source in sources.items():
            total = torch.zeros(3, dtype=torch.float64, device=trainee.device)
            sizes = None if source.sizes is None else source.sizes.to(trainee.device)
            for batch in _batches(trainee, source.view):
                inputs, targets = trainee.part(batch.tokens, batch.learned)
                with torch.no_grad():
                    _, nll = trainee.model(inputs, targets, batch.documents)
                scored = targets >= 0
                total[0] += nll
                total[1] += scored.sum()
                if sizes is not None:
                    total[2] += sizes[targets[scored]].sum()
                asked = torch.tensor(float(stop()), device=trainee.device)
                dist.all_reduce(asked)  # so that all ranks agree
                if asked.item():
                    return None
            dist.all_reduce(total)
            nats, tokens, text_bytes = total.tolist()
            sums[name] = [nats, tokens, tokens * source.bytes_per_token if sizes is None else text_bytes]
    finally:
        reshard(trainee.model)
    sums = {name: found for name, found in sums.items() if found[1] and found[2]}
    if not sums:
        raise UsageError(
            "of the first --val-sequences of each source nothing is learned: validate more of them, or do without"
        )
    nats, tokens, text_bytes = (sum(column) for column in zip(*sums.values(), strict=True))
    return {
        "val_loss": nats / tokens,
        "val_bits_per_byte": bits_per_byte(nats, text_bytes),
        "sources": {name: nats / tokens for name, (nats, tokens, _) in sums.items()},
        "bits_per_byte": {name: bits_per_byte(nats, of) for name, (nats, _, of) in sums.items()},
    }


def _batches(trainee: Trainee, view: View) -> Iterator[MicroBatch]:
    """This rank's part of the first positions of a split, on the device; every rank gets equally many.

    Where the sequences do not divide, the first ones are repeated, and nothing of them is learned.
    """
    sequences = min(len(view), trainee.config.val_sequences)
    micro_batch, ranks = trainee.batch.micro_batch, trainee.batch.ranks
    rank = data_rank(trainee.mesh, trainee.context.ranks)
    for number in range(-(-sequences // (micro_batch * ranks))):
        first = (number * ranks + rank) * micro_batch
        positions = np.arange(first, first + micro_batch)
        ids, mask = read_batch(view, (positions % sequences).tolist(), np.int64)
        learned = np.broadcast_to((positions < sequences)[:, None], ids[:, 1:].shape)
        learned = learned.copy() if mask is None else learned & mask
        tokens = torch.from_numpy(ids)
        documents = documents_of(tokens[:, :-1], trainee.eod_id, trainee.config)
        yield MicroBatch(
            tokens.to(trainee.device),
            0,
            None if documents is None else documents.to(trainee.device),
            torch.from_numpy(learned).to(trainee.device),
        )
