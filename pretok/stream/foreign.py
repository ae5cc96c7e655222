"""export: shards and a mix -> what other trainers read.

Enters: a shards folder, optionally a mix.json. Leaves: for Megatron-LM and NeMo the blend that their data loaders take
(the shards are their format already); for nanoGPT-style and litgpt-style trainers a few lines of Python over
`pretok.stream`, which keep the exact order.
"""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path

import pretok.stream
from pretok.base.errors import UsageError
from pretok.shards.manifest import Shard, load_manifest

FORMATS = ("megatron", "nanogpt", "litgpt")


def export_text(
    shards: Path, to: str, mix: Path | None = None, stage: int | None = None, seq_len: int = 4096
) -> str:
    """The text for one trainer. Raises UsageError for an unknown one and what `pretok.stream.open` raises."""
    if to not in FORMATS:
        raise UsageError(f"cannot export to {to!r}; known are {', '.join(FORMATS)}")
    if to == "megatron":
        return json.dumps(megatron_blend(shards, mix, stage), indent=1) + "\n"
    if stage is not None:
        raise UsageError(f"--stage is for megatron; {to} reads all stages of a mix in order")
    pretok.stream.open(shards, mix, seq_len=None if mix else seq_len)  # refuses what could not be streamed
    opening = f"pretok.stream.open({str(shards.absolute())!r}, " + (
        f"{str(mix.absolute())!r})" if mix else f"seq_len={seq_len})"
    )
    return {"nanogpt": NANOGPT, "litgpt": LITGPT}[to].replace("OPEN", opening)


def megatron_blend(shards: Path, mix: Path | None, stage: int | None) -> dict[str, list[str] | None]:
    """{"train", "valid", "test"}: weight, prefix, weight, prefix, ... as `--per-split-data-args-path` reads them.

    A source's quota in the mix is divided among its shards by their tokens; without a mix every token weighs the same,
    as it does in validation. Megatron-LM has one blend per run, so of several stages one is chosen, from 1.
    """
    manifest = load_manifest(shards)
    per_token: dict[str, Fraction] = dict.fromkeys(manifest.sources, Fraction(1))
    if mix is not None:
        plan = pretok.stream.open(shards, mix).mix
        if stage is None and len(plan.stages) > 1:
            raise UsageError(
                f"{mix} has {len(plan.stages)} stages and Megatron-LM one blend a run: choose with --stage"
            )
        if stage is not None and not 1 <= stage <= len(plan.stages):
            raise UsageError(f"{mix} has no stage {stage}; its stages are 1 to {len(plan.stages)}")
        quotas = plan.stages[(stage or 1) - 1]
        per_token = {
            source.name: Fraction(quota * plan.seq_len, source.tokens)
            for source, quota in zip(plan.sources, quotas, strict=True)
            if quota
        }
    train = [shard for shard in manifest.shards if shard.split == "train" and shard.source in per_token]
    valid = [shard for shard in manifest.shards if shard.split == "val" and shard.source in per_token]
    return {
        "train": _blend([(shard, shard.tokens * per_token[shard.source]) for shard in train]),
        "valid": _blend([(shard, Fraction(shard.tokens)) for shard in valid]),
        "test": None,
    }


def _blend(weighted: list[tuple[Shard, Fraction]]) -> list[str] | None:
    """None stands for a split without data."""
    blend = []
    for shard, weight in weighted:
        if weight:
            blend += [repr(float(weight)), str(shard.prefix)]
    return blend or None


NANOGPT = """\
# For a nanoGPT-style train.py: replaces get_batch. Every call takes the next batch of the mix; `position` is the whole
# state, so save it in the checkpoint. One .bin alone is also a nanoGPT file: numpy.memmap(path, VIEW.dtype, "r").
import pretok.stream
import torch

VIEW = OPEN
position = 0


def get_batch(split):
    global position
    tokens = torch.from_numpy(VIEW.batch(range(position, position + batch_size)))
    position += batch_size
    return tokens[:, :-1].to(device), tokens[:, 1:].to(device)
"""

LITGPT = """\
# For litgpt: save as pretok_data.py and give the class as the data module of `litgpt pretrain`; a batch is
# (micro-batch, seq_len + 1) token ids, of which litgpt takes inputs and targets itself.
import pretok.stream
import torch
from litgpt.data import DataModule
from pretok.stream.loader import PositionSampler
from torch.utils.data import DataLoader


class Pretok(DataModule):
    def connect(self, tokenizer=None, batch_size=1, max_seq_length=None):
        self.batch_size = batch_size

    def train_dataloader(self):
        view = OPEN
        distributed = torch.distributed.is_initialized()
        ranks = torch.distributed.get_world_size() if distributed else 1
        sampler = PositionSampler(
            len(view),
            global_batch=self.batch_size * ranks,
            micro_batch=self.batch_size,
            rank=torch.distributed.get_rank() if distributed else 0,
            world_size=ranks,
        )
        return DataLoader(view, batch_sampler=sampler, collate_fn=torch.from_numpy, num_workers=2)

    def val_dataloader(self):
        return []
"""
