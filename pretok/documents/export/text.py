"""Shards and a mix -> the blend that the data loaders of Megatron-LM and NeMo read.

Input: a shards folder, optionally a mix.json. Output: weights and paths; the shards have their format already.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from pathlib import Path

import pretok.stream
from pretok.base.errors import UsageError
from pretok.shards.manifest import FILE_NAME, Manifest, load_manifest
from pretok.stream.mix_file import load_mix, parse_mix
from pretok.tokenizer.kinds import CHAT_KINDS, KINDS, LEARNED, TEXT


def megatron_blend(shards: Path, mix: Path | None, stage: int | None) -> dict[str, list[str] | None]:
    """Return the blend of each split, as `--per-split-data-args-path` reads it: weight, prefix, weight, prefix, ...

    A prefix is the path of the `.bin` and `.idx` of a shard. The shards of a source share its weight by their tokens;
    in validation, every token has the same weight. None for a split without data.
    """
    manifest = load_manifest(shards)
    wanted = source_tokens(manifest, mix, stage)
    blended: dict[str, list[str]] = {"train": [], "val": []}
    for shard in manifest.shards:
        if tokens := wanted.get(shard.source):
            train = manifest.sources[shard.source].train.tokens
            share = Fraction(tokens, train) if shard.split == "train" else Fraction(1)
            # `repr` writes as many digits as give the same float again.
            blended[shard.split] += [repr(float(shard.tokens * share)), str(shard.prefix)]
    return {"train": blended["train"] or None, "valid": blended["val"] or None, "test": None}


def source_tokens(manifest: Manifest, mix: Path | None, stage: int | None) -> dict[str, int]:
    """Count the tokens of each source in a stage of a mix, or in the train split if there is no mix.

    stage: from 1; needed if the mix has several, since other trainers have one set of proportions per run. Raises
    UsageError.
    """
    if mix is None:
        return {name: counts.train.tokens for name, counts in manifest.sources.items()}
    plan = pretok.stream.open(manifest.folder, mix).mix
    if stage is None and len(plan.stages) > 1:
        raise UsageError(
            f"{mix} has {len(plan.stages)} stages, and other trainers read one per run: choose with --stage"
        )
    if stage is not None and not 1 <= stage <= len(plan.stages):
        raise UsageError(f"{mix} has no stage {stage}; its stages are 1 to {len(plan.stages)}")
    quotas = plan.stages[(stage or 1) - 1].quotas
    divided = {source.held_in for source in plan.sources if source.pool != source.held_in}
    read = [source for source, quota in zip(plan.sources, quotas, strict=True) if quota]
    if classes := [source.name for source in read if source.held_in in divided]:
        raise UsageError(
            f"{mix} weighs classes ({', '.join(classes)}), but this format holds whole sources: write the mix as "
            "shards in its order (pretok mix --materialize) and export those, or read it in Python (docs/trainers.md)"
        )
    # What a stage predicts is the difference of two prefixes: a stage that is left early gives less than its quotas.
    tokens: dict[str, Fraction] = {}
    first, last = (plan.predicted_by(sum(plan.lengths[:n])) for n in ((stage or 1) - 1, stage or 1))
    for source, before, after in zip(plan.sources, first, last, strict=True):
        if after > before:
            tokens[source.held_in] = tokens.get(source.held_in, Fraction(0)) + after - before
    return {name: round(count) for name, count in tokens.items()}


def learned_kinds(manifest: Manifest, mix: Path | None) -> dict[str, tuple[str, ...]]:
    """Return the kinds of tokens that are learned in each source of conversations.

    They are those of the mix, by default the assistant's; plain text is always learned. Raises UsageError if a
    materialized mix learns different kinds in different sources.
    """
    text = (KINDS[TEXT],)
    if manifest.materialized is not None:
        plan = parse_mix(manifest.materialized, manifest.folder / FILE_NAME)
        kinds = {source.learn for source in plan.sources if source.learn}
        if len(kinds) > 1:
            raise UsageError(
                f"{manifest.folder} is a mix that learns different kinds of tokens in different sources, and its files "
                "hold all sources: export the shards that it was made of, or read it with pretok.integrations"
            )
        return {name: (*kinds.pop(), *text) for name in manifest.conversations}
    learn = {} if mix is None else {source.held_in: source.learn for source in load_mix(mix).sources}
    return {name: (*(learn.get(name, LEARNED) or CHAT_KINDS), *text) for name in manifest.conversations}


def notices(manifest: Manifest, mix: Path | None, to: str, learn: Mapping[str, Sequence[str]]) -> list[str]:
    """List what another trainer does differently with conversations and with a mix, a sentence each."""
    sentences = []
    if learn and to != "olmo":
        sentences.append(
            f"warning: {', '.join(learn)} holds conversations, and the format of {to} has no loss masks: it will learn "
            "every token, those of users too. To keep the masks, export to olmo or read the mix itself "
            "(docs/trainers.md)"
        )
    if manifest.materialized is not None:
        if parse_mix(manifest.materialized, manifest.folder / FILE_NAME).packs:
            sentences.append(
                "warning: sequences of this mix are padded with end-of-document tokens, which pretok's trainer does "
                f"not learn; {to} will learn them, unless its loss skips an end-of-document token that follows another"
            )
    elif mix is not None:
        plan = load_mix(mix)
        if plan.packs:
            sentences.append(
                f"warning: {to} cuts the documents by itself: it takes the shares of this mix and not its packing. "
                "To keep the packing, write the sequences (pretok mix --materialize) and export those"
            )
        if plan.manifest != manifest.fingerprint:
            sentences.append(
                f"warning: {mix} was made before the shards grew; the export has all of them, in the shares of this mix"
            )
    return sentences
