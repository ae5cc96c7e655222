"""Validation loss of every source, per token and per byte of text.

Input: the validation split of the shards. Output: mean loss in nats per token and in bits per byte, by source and over
all sources, equal on all ranks; None if a stop was requested meanwhile.

Nats per token depend on the vocabulary, bits per byte do not. Let S be the number of scored tokens of a source, nats
the sum of their losses, and tokens and bytes those of the source's whole validation split in the manifest. EOD tokens
count as tokens without bytes; bytes are those of the UTF-8 text. Then

    bits per byte = nats / ln 2 / (S x bytes / tokens)

(Gao et al. 2020, The Pile, section 3.1). The loss of EOD tokens is included, because a model of text must also predict
where a document ends. The scored bytes are estimated as S times the mean bytes per token of the split. That is exact if
the whole split is scored, except for its first token and its last, incomplete sequence.

In conversations only the tokens that the mix trains on are scored, and their bytes are counted token by token; markers
have none. Over all sources, nats and bytes are summed first. A source without any scored token has no loss.
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
from train.step import TrainState


@dataclass(frozen=True, slots=True)
class ValidationSource:
    """The validation split of one source."""

    view: View
    bytes_per_token: float
    """Mean bytes of text per token."""
    sizes: torch.Tensor | None = None
    """(vocabulary,) int64, the bytes of each token, if the bytes of scored tokens are counted one by one; else None."""


def validation_sources(config: TrainConfig, mix: Mix) -> dict[str, ValidationSource]:
    """Open the validation split of each source that has at least one sequence. UsageError if there is none.

    If the shards have grown, the split is that of the shards that the mix began with, so that losses before and after
    are losses of the same text.
    """
    now, seq_len = manifest_of(config.shards, config.cache), mix.seq_len
    manifest = now.as_of(mix.began) or now
    learn = {
        source.held_in: source.learn
        for source in mix.sources
        if source.learn and source.held_in in manifest.sources
    }
    sources, sizes = {}, None
    for name, source in manifest.sources.items():
        if (val := source.val).tokens > seq_len:
            view = pretok.stream.open(
                config.shards,
                seq_len=seq_len,
                split="val",
                source=name,
                manifest=manifest.fingerprint,
                learn=learn,
                cache=config.cache,
            )
            view.compare_places()
            if view.masked and sizes is None:
                sizes = _token_sizes(now)
            sources[name] = ValidationSource(view, val.bytes / val.tokens, sizes if view.masked else None)
    if not sources:
        raise UsageError(
            f"{config.shards} has no validation sequence of {seq_len} tokens: "
            "tokenize with --val-fraction, or leave out --val-every and --keep-best"
        )
    return sources


def _token_sizes(manifest: Manifest) -> torch.Tensor:
    """Return the bytes of text of each token, (vocabulary,) int64; 0 for added tokens."""
    from pretok.shards.texts import load_vocabulary

    vocab = load_vocabulary(manifest)
    added = set(vocab.added_tokens.values())
    return torch.tensor([0 if i in added else len(vocab.token_bytes(i)) for i in range(vocab.size)])


def bits_per_byte(nats: float, text_bytes: float) -> float:
    """Convert `nats`, a sum over tokens, to bits per byte of their text."""
    return nats / math.log(2) / text_bytes


def evaluate(
    state: TrainState, sources: Mapping[str, ValidationSource], stop: Callable[[], bool]
) -> dict[str, Any] | None:
    """Evaluate the first `val_sequences` sequences of each source.

    Returns `val_loss` and by source `sources` in nats per token, `val_bits_per_byte` and by source `bits_per_byte`;
    None if a stop was requested, which is checked after every batch.
    """
    sums: dict[str, list[float]] = {}
    try:
        for name, source in sources.items():
            # float64: a sum over millions of tokens would lose digits in float32.
            total = torch.zeros(3, dtype=torch.float64, device=state.device)
            sizes = None if source.sizes is None else source.sizes.to(state.device)
            for batch in _batches(state, source.view):
                inputs, targets = state.part(batch.tokens, batch.learned)
                with torch.no_grad():
                    _, nll = state.model(inputs, targets, batch.documents)
                scored = targets >= 0
                total[0] += nll
                total[1] += scored.sum()
                if sizes is not None:
                    total[2] += sizes[targets[scored]].sum()
                asked = torch.tensor(float(stop()), device=state.device)
                dist.all_reduce(asked)  # all ranks leave the loop together, or the next collective would hang
                if asked.item():
                    return None
            dist.all_reduce(total)
            nats, tokens, text_bytes = total.tolist()
            sums[name] = [nats, tokens, tokens * source.bytes_per_token if sizes is None else text_bytes]
    finally:  # passes without a backward pass leave parameters gathered
        reshard(state.model)
    sums = {name: values for name, values in sums.items() if values[1] and values[2]}
    if not sums:
        raise UsageError(
            "no token in the first --val-sequences of any source contributes to the loss: raise --val-sequences, or "
            "leave out --val-every and --keep-best"
        )
    nats, tokens, text_bytes = (sum(column) for column in zip(*sums.values(), strict=True))
    return {
        "val_loss": nats / tokens,
        "val_bits_per_byte": bits_per_byte(nats, text_bytes),
        "sources": {name: nats / tokens for name, (nats, tokens, _) in sums.items()},
        "bits_per_byte": {name: bits_per_byte(nats, size) for name, (nats, _, size) in sums.items()},
    }


def _batches(state: TrainState, view: View) -> Iterator[MicroBatch]:
    """Yield this rank's share of the first positions of a split.

    Every rank gets the same number of batches, because each pass gathers parameters from all ranks. If the sequences do
    not divide evenly, the first ones are repeated, without loss.
    """
    sequences = min(len(view), state.config.val_sequences)
    micro_batch, ranks = state.batch.micro_batch, state.batch.ranks
    rank = data_rank(state.mesh, state.context.ranks)
    for number in range(-(-sequences // (micro_batch * ranks))):
        first = (number * ranks + rank) * micro_batch
        positions = np.arange(first, first + micro_batch)
        ids, mask = read_batch(view, (positions % sequences).tolist(), np.int64)
        learned = np.broadcast_to((positions < sequences)[:, None], ids[:, 1:].shape)
        learned = learned.copy() if mask is None else learned & mask
        tokens = torch.from_numpy(ids)
        documents = documents_of(tokens[:, :-1], state.eod_id, state.config)
        yield MicroBatch(
            tokens.to(state.device),
            0,
            None if documents is None else documents.to(state.device),
            torch.from_numpy(learned).to(state.device),
        )
