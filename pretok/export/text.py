"""Shards and a mix -> what other trainers need to read them as they are.

Input: a shards folder, optionally a mix.json. Output: for Megatron-LM and NeMo the blend that their data loaders take
(the shards are their format already); for nanoGPT-style and litgpt-style trainers a few lines of Python over
`pretok.stream`, which keep the exact order.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from fractions import Fraction
from pathlib import Path

import pretok.stream
from pretok.base.errors import UsageError
from pretok.export.formats import ExportedFile
from pretok.shards.manifest import FILE_NAME, Manifest, Shard, load_manifest
from pretok.stream.mix_file import load_mix, parse_mix

READERS = ("megatron", "nanogpt", "litgpt")


def export_text(
    shards: Path, to: str, mix: Path | None = None, stage: int | None = None, seq_len: int = 4096
) -> str:
    """The text for one trainer. Raises UsageError for an unknown one and what `pretok.stream.open` raises."""
    if to not in READERS:
        raise UsageError(f"cannot export to {to!r}; known are {', '.join(READERS)}")
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
    """The blend of the shards as they are, see `blend`."""
    manifest = load_manifest(shards)
    prefixes = [shard.prefix for shard in manifest.shards]
    return blend(prefixes, manifest.shards, source_tokens(manifest, mix, stage))


def blend(
    prefixes: Sequence[Path], files: Sequence[Shard | ExportedFile], wanted: Mapping[str, int]
) -> dict[str, list[str] | None]:
    """{"train", "valid", "test"}: weight, prefix, weight, prefix, ... as `--per-split-data-args-path` reads them.

    prefixes: the `.bin` and `.idx` of each file without their suffixes. The tokens that are wanted of a source are
    divided among its files by what they hold; in validation every token of these sources weighs the same. None stands
    for a split without data.
    """
    train = Counter[str]()
    for file in files:
        train[file.source] += file.tokens if file.split == "train" else 0
    blended: dict[str, list[str]] = {"train": [], "val": []}
    for prefix, file in zip(prefixes, files, strict=True):
        if tokens := wanted.get(file.source):
            share = Fraction(tokens, train[file.source]) if file.split == "train" else Fraction(1)
            blended[file.split] += [repr(float(file.tokens * share)), str(prefix)]
    return {"train": blended["train"] or None, "valid": blended["val"] or None, "test": None}


def source_tokens(manifest: Manifest, mix: Path | None, stage: int | None) -> dict[str, int]:
    """Tokens of each source in a stage of a mix, or in the train split where there is none.

    Other trainers have one set of proportions a run, so of several stages one is chosen, from 1. Raises UsageError.
    """
    if mix is None:
        return {name: counts.train.tokens for name, counts in manifest.sources.items()}
    plan = pretok.stream.open(manifest.folder, mix).mix
    if stage is None and len(plan.stages) > 1:
        raise UsageError(
            f"{mix} has {len(plan.stages)} stages and other trainers one a run: choose with --stage"
        )
    if stage is not None and not 1 <= stage <= len(plan.stages):
        raise UsageError(f"{mix} has no stage {stage}; its stages are 1 to {len(plan.stages)}")
    quotas = plan.stages[(stage or 1) - 1]
    return {
        source.name: round(quota * source.learned(plan.seq_len))
        for source, quota in zip(plan.sources, quotas, strict=True)
        if quota
    }


def packing_notice(manifest: Manifest, mix: Path | None, to: str) -> str | None:
    """What another trainer does with a packed mix, if it is one: a sentence, or None."""
    if manifest.materialized is not None:
        plan = parse_mix(manifest.materialized, manifest.folder / FILE_NAME)
    elif mix is not None:
        plan = load_mix(mix)
    else:
        return None
    if not any(source.packed for source in plan.sources):
        return None
    if manifest.materialized is None and to not in ("nanogpt", "litgpt"):
        return (
            f"warning: {to} cuts the documents by itself: it takes the shares of this mix and not its packing. To keep "
            "that, write the sequences (pretok mix --materialize) and export those"
        )
    return (
        f"warning: sequences of this mix end in runs of end-of-document tokens, which pretok's own trainer does not "
        f"learn; {to} will learn them, unless its loss leaves out a target that is one behind one"
    )


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
from pretok.stream.loader import Narrow, PositionSampler
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
        collate = Narrow(torch.from_numpy, view.dtype)
        return DataLoader(view, batch_sampler=sampler, collate_fn=collate, num_workers=2)

    def val_dataloader(self):
        return []
"""
