"""Shards and a mix -> the blend that the data loaders of Megatron-LM and NeMo take.

Input: a shards folder, optionally a mix.json. Output: weights and paths; the shards are their format already.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from fractions import Fraction
from pathlib import Path

import pretok.stream
from pretok.base.errors import UsageError
from pretok.export.formats import ExportedFile
from pretok.shards.manifest import FILE_NAME, Manifest, Shard, load_manifest
from pretok.stream.mix_file import load_mix, parse_mix


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
    if classes := [s.name for s, quota in zip(plan.sources, quotas, strict=True) if quota and s.members]:
        raise UsageError(
            f"{mix} weighs classes ({', '.join(classes)}), and this format takes whole files of a source: write the "
            "mix as shards in its order (pretok mix --materialize) and export those, or read it in Python: "
            "docs/trainers.md"
        )
    return {
        source.name: round(quota * source.predicted(plan.seq_len))
        for source, quota in zip(plan.sources, quotas, strict=True)
        if quota
    }


def mix_notices(manifest: Manifest, mix: Path | None, to: str) -> list[str]:
    """What another trainer does otherwise with a mix: a sentence each."""
    if manifest.materialized is not None:
        if not parse_mix(manifest.materialized, manifest.folder / FILE_NAME).packs:
            return []
        return [
            f"warning: sequences of this mix end in runs of end-of-document tokens, which pretok's own trainer does "
            f"not learn; {to} will learn them, unless its loss leaves out a target that is one behind one"
        ]
    if mix is None:
        return []
    plan, told = load_mix(mix), []
    if plan.packs:
        told.append(
            f"warning: {to} cuts the documents by itself: it takes the shares of this mix and not its packing. To keep "
            "that, write the sequences (pretok mix --materialize) and export those"
        )
    if plan.manifest != manifest.fingerprint:
        told.append(
            f"warning: {mix} reads the shards as they were before they grew; the export has all of them, in the shares "
            "of this mix"
        )
    return told
