"""Shards and a mix -> the blend that the data loaders of Megatron-LM and NeMo take.

Input: a shards folder, optionally a mix.json. Output: weights and paths; the shards are their format already.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from pathlib import Path

import pretok.stream
from pretok.base.errors import UsageError
from pretok.base.kinds import CHAT_KINDS, KINDS, LEARNED, TEXT
from pretok.shards.manifest import FILE_NAME, Manifest, load_manifest
from pretok.stream.mix_file import load_mix, parse_mix


def megatron_blend(shards: Path, mix: Path | None, stage: int | None) -> dict[str, list[str] | None]:
    """{"train", "valid", "test"}: weight, prefix, weight, prefix, ... as `--per-split-data-args-path` reads them.

    prefix: the path of `.bin` and `.idx` of a shard. The tokens that are wanted of a source are divided among its
    shards by what they hold; in validation every token of these sources weighs the same. None stands for a split
    without data.
    """
    manifest = load_manifest(shards)
    wanted = source_tokens(manifest, mix, stage)
    blended: dict[str, list[str]] = {"train": [], "val": []}
    for shard in manifest.shards:
        if tokens := wanted.get(shard.source):
            train = manifest.sources[shard.source].train.tokens
            share = Fraction(tokens, train) if shard.split == "train" else Fraction(1)
            blended[shard.split] += [repr(float(shard.tokens * share)), str(shard.prefix)]
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
    quotas = plan.stages[(stage or 1) - 1].quotas
    read = dict(zip(plan.pools, quotas, strict=True))
    divided = {source.held_in for source in plan.sources if source.pool != source.held_in}
    if classes := [one.name for one in plan.sources if read[one.pool] and one.held_in in divided]:
        raise UsageError(
            f"{mix} weighs classes ({', '.join(classes)}), and this format takes whole files of a source: write the "
            "mix as shards in its order (pretok mix --materialize) and export those, or read it in Python: "
            "docs/trainers.md"
        )
    tokens: dict[str, Fraction] = {}
    first, last = (plan.predicted_by(sum(plan.lengths[:n])) for n in ((stage or 1) - 1, stage or 1))
    for source, before, after in zip(plan.sources, first, last, strict=True):
        if after > before:
            tokens[source.held_in] = tokens.get(source.held_in, Fraction(0)) + after - before
    return {name: round(count) for name, count in tokens.items()}


def learned_kinds(manifest: Manifest, mix: Path | None) -> dict[str, tuple[str, ...]]:
    """The kinds that are learned of each source of conversations: as a mix says, or what an assistant writes; text
    always. UsageError where a materialized mix learns other kinds of one source than of another."""
    text = (KINDS[TEXT],)
    if manifest.materialized is not None:
        plan = parse_mix(manifest.materialized, manifest.folder / FILE_NAME)
        found = {source.learn for source in plan.sources if source.learn}
        if len(found) > 1:
            raise UsageError(
                f"{manifest.folder} is a mix that learns other kinds of one source than of another, and its files hold "
                "both: export the shards that it was made of, or read it with pretok.integrations"
            )
        return {name: (*found.pop(), *text) for name in manifest.conversations}
    learn = {} if mix is None else {source.held_in: source.learn for source in load_mix(mix).sources}
    return {name: (*(learn.get(name, LEARNED) or CHAT_KINDS), *text) for name in manifest.conversations}


def notices(manifest: Manifest, mix: Path | None, to: str, learn: Mapping[str, Sequence[str]]) -> list[str]:
    """What another trainer does otherwise with conversations and with a mix: a sentence each."""
    told = []
    if learn and to != "olmo":
        told.append(
            f"warning: {', '.join(learn)} holds conversations, and what {to} reads has no place for what is learned of "
            "them: it will learn every token, of users too. To keep the masks export to olmo, or read the mix itself "
            "(docs/trainers.md)"
        )
    if manifest.materialized is not None:
        if parse_mix(manifest.materialized, manifest.folder / FILE_NAME).packs:
            told.append(
                f"warning: sequences of this mix end in runs of end-of-document tokens, which pretok's own trainer "
                f"does not learn; {to} will learn them, unless its loss leaves out a target that is one behind one"
            )
    elif mix is not None:
        plan = load_mix(mix)
        if plan.packs:
            told.append(
                f"warning: {to} cuts the documents by itself: it takes the shares of this mix and not its packing. To "
                "keep that, write the sequences (pretok mix --materialize) and export those"
            )
        if plan.manifest != manifest.fingerprint:
            told.append(
                f"warning: {mix} reads the shards as they were before they grew; the export has all of them, in the "
                "shares of this mix"
            )
    return told
