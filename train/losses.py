"""`train losses`: the loss of every document that a step reads, to find the one behind a spike.

Input: the folder of a run and a step; under torchrun any number of ranks. Output: the documents with the worst losses.
The weights are those of the newest checkpoint before the step; passes go forward only, so the parameters, spread over
the ranks of a node, are all that takes memory.

A document is ranked by how far its mean loss is above that of the step, times the square root of its tokens: the mean
over a few tokens is large by chance, the mean over many is not.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812 - torch's own name
from torch import nn

from pretok.base.console import table
from pretok.base.errors import UsageError
from pretok.base.records import replace
from pretok.base.terminal import Terminal, print_json
from pretok.base.tokens import IGNORE
from pretok.documents.audit.inspection import find_shard
from pretok.documents.audit.trace import (
    Reading,
    Traced,
    open_traced,
    passages,
    positions_of_step,
    with_origins,
)
from pretok.shards.texts import load_vocabulary
from pretok.stream.loader import read_batch
from train.checkpoint.meta import TokenizerOrigin, complete_checkpoints, read_meta
from train.checkpoint.tensors import load_weights
from train.config import TrainConfig, command_parser, whole_number
from train.data import documents_of
from train.model.loss import targets_of
from train.model.sizes import LOSS_CHUNK
from train.model.transformer import Decoder
from train.parallel.context import Context
from train.parallel.devices import Device, find_device
from train.parallel.group import process_group
from train.parallel.layout import solve_layout
from train.parallel.mesh import build_mesh
from train.parallel.parallelize import parallelize
from train.report import complain, explain

COLUMNS = ("loss", "tokens", "source", "document", "id", "file", "line", "position", "text")
FIRST = 32
"""Tokens of a document whose text is shown, at most WIDTH characters of it."""
WIDTH = 60


def main(arguments: Sequence[str]) -> None:
    """Run `train losses`."""
    parser = command_parser(
        "train losses",
        "Show the documents of a step with the worst losses, by the newest checkpoint before it.",
        "  train losses RUN --step 81\n  torchrun --nproc-per-node 4 -m train losses RUN --step 81 --json",
    )
    parser.add_argument("run", type=Path, metavar="RUN", help="folder of the run")
    parser.add_argument("--step", type=whole_number, required=True, help="the step, from 1")
    parser.add_argument("--top", type=whole_number, default=20, help="documents to show (default: 20)")
    parser.add_argument("--shards", type=Path, help="shards of the run (default: those that it read)")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    space = parser.parse_args(list(arguments))
    device, config = find_device(), TrainConfig(out=str(space.run))
    traced, positions = positions_of_step(open_traced(space.run, space.shards), space.step)
    with process_group(device, config.timeout, space.run, partial(explain, config=config)):
        found = losses(traced, positions, space.run, space.step, device)
        if dist.get_rank() == 0:
            _show(found | {"documents": _named(traced, found["documents"][: space.top])}, space.json)


def losses(traced: Traced, positions: range, run: Path, step: int, device: Device) -> dict[str, Any]:
    """Compute the losses of the documents at `positions`, which `step` of the run reads.

    Returns `step`, `checkpoint` (its step), `loss` (mean over `learned` tokens), and `documents`, the worst first:
    (a Reading, its mean loss, its learned tokens at these positions). Raises UsageError if no checkpoint is older.
    """
    older = [path for path in complete_checkpoints(run / "checkpoints") if int(path.name[5:]) < step]
    chosen = [older[-1] if older else None]
    dist.broadcast_object_list(chosen)  # the run may save meanwhile
    if (checkpoint := chosen[0]) is None:
        raise UsageError(f"{run} has no checkpoint from before step {step}; --milestone keeps some of them")
    model, config = _model(traced, checkpoint, step, device)
    sums: dict[tuple[str, int], list[Any]] = {}
    mine = list(_passes(model, traced, positions, config, device.device))
    everywhere: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everywhere, mine)
    read = [row for rows in everywhere for row in rows]
    for reading, nats, tokens in sorted(read, key=lambda row: row[0].position):
        of = sums.setdefault((reading.source, reading.document), [reading, 0.0, 0])
        of[1], of[2] = of[1] + nats, of[2] + tokens
    nats, learned = (sum(of[column] for of in sums.values()) for column in (1, 2))
    mean = nats / learned if learned else math.nan
    means = [(reading, nats / tokens, tokens) for reading, nats, tokens in sums.values()]
    worst = sorted(means, key=lambda row: (row[1] - mean) * math.sqrt(row[2]), reverse=True)
    at = int(checkpoint.name[5:])
    return {"step": step, "checkpoint": at, "loss": mean, "learned": learned, "documents": worst}


def _model(traced: Traced, checkpoint: Path, step: int, device: Device) -> tuple[nn.Module, TrainConfig]:
    """Return the model with the weights of a checkpoint and the rotary positions of the step, and what it runs with."""
    meta, view, segment = read_meta(checkpoint), traced.view, traced.segment
    assert segment is not None
    at = segment.tokens_after(step - 1)
    settings = TrainConfig(phases=tuple(meta.config["phases"])).in_phases()
    theta = [phase.rope_theta for begin, phase, _ in settings if begin <= at][-1]
    sizes = meta.identity.model
    sizes = replace(sizes, seq_len=view.seq_len, rope_theta=float(theta or sizes.rope_theta))
    precision = meta.config["precision"].replace("float8", "bf16")  # float8 products only save time
    config = TrainConfig(attention=meta.config["attention"], precision=precision, compile=False)
    world = dist.get_world_size()
    layout = solve_layout(world, int(os.environ.get("LOCAL_WORLD_SIZE", world)), None, 1)
    mesh = build_mesh(device, layout)
    with torch.device("meta"):
        model = Decoder(sizes)
    parallelize(model, mesh, Context(), config, device)
    model.to_empty(device=device.device)
    origin = TokenizerOrigin(view.tokenizer["fingerprint"], str(traced.manifest.folder))
    load_weights(model, mesh, checkpoint, sizes, origin, complain if dist.get_rank() == 0 else lambda _: None)
    return model, config


@torch.no_grad()
def _passes(
    model: nn.Module, traced: Traced, positions: range, config: TrainConfig, device: torch.device
) -> Iterator[tuple[Reading, float, int]]:
    """Yield (part of a document, sum of its losses, number of its learned tokens) for this rank's share of positions.

    The last token of a document is its EOD, which is predicted like any other.
    """
    view, ranks = traced.view, dist.get_world_size()
    some, own = max(1, LOSS_CHUNK // view.seq_len), positions[dist.get_rank() :: ranks]
    for first in range(
        0, -(-len(positions) // ranks), some
    ):  # as often on all ranks, which gather parameters together
        taken = own[first : first + some]
        ids, mask = read_batch(view, taken or positions[:1], np.int64)
        tokens, learned = torch.from_numpy(ids), None if mask is None else torch.from_numpy(mask)
        targets = targets_of(tokens, view.eod_id, learned)
        ends = documents_of(tokens[:, :-1], view.eod_id, config)
        ends = None if ends is None else ends.to(device)
        logits = model(tokens[:, :-1].to(device), None, ends).flatten(0, 1)[:, : view.vocab_size]
        flat = torch.split(targets.to(device).flatten(), LOSS_CHUNK)
        pairs = zip(torch.split(logits, LOSS_CHUNK), flat, strict=True)
        parts = [F.cross_entropy(x.float(), y, reduction="none", ignore_index=IGNORE) for x, y in pairs]
        nll = torch.cat(parts).view(targets.shape).double().cpu()
        for row, position in enumerate(taken):
            end = -1  # the first token of a sequence is no target
            for reading in passages(traced, position):
                begin, end = max(0, end), end + reading.tokens
                if count := int((targets[row, begin:end] != IGNORE).sum()):
                    yield reading, float(nll[row, begin:end].sum()), count


def _named(traced: Traced, rows: Sequence[tuple[Reading, float, int]]) -> list[dict[str, Any]]:
    """Return rows of COLUMNS: the documents by the names that `pretok trace` gives, and their first words."""
    vocab, split = load_vocabulary(traced.manifest), traced.view.mix.split
    named = []
    for reading, (_, loss, tokens) in zip(with_origins(traced, [row[0] for row in rows]), rows, strict=True):
        shard, number = find_shard(traced.manifest, reading.source, split, reading.document)
        ids = np.asarray(shard.open()[number][:FIRST]).tolist()
        text = b"".join(map(vocab.token_bytes, ids)).decode("utf-8", "replace")
        values = (loss, tokens, reading.source, reading.document, reading.id, reading.file, reading.line)
        row = (*values, reading.position, " ".join(text.split())[:WIDTH])
        named.append(dict(zip(COLUMNS, row, strict=True)))
    return named


def _show(found: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(found)
        return

    def cell(name: str, value: Any) -> str:
        if name == "loss":
            return f"{value:.4f}"
        return "" if value is None else f"{value}"

    rows = [[cell(name, value) for name, value in row.items()] for row in found["documents"]]
    title = (
        f"step {found['step']} by the checkpoint of step {found['checkpoint']}: loss {found['loss']:.4f} over "
        f"{found['learned']:,} tokens"
    )
    Terminal().show(table(title, COLUMNS, rows), result=True)
