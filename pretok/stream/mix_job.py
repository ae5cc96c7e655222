"""The mix job: shards and a request -> mix.json and its report.

Input: a shards folder and a `MixRequest`. Output: mix.json (see `stream.mix_file`), and the `MixReport` in it.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pretok.base.console import Console, table
from pretok.base.errors import MismatchError, UsageError
from pretok.base.lock import hold
from pretok.base.records import Count, Record, replace
from pretok.base.units import listed
from pretok.shards.manifest import Manifest, load_manifest
from pretok.shards.unfinished import incomplete
from pretok.stream.mix_file import (
    Mix,
    MixSource,
    Stage,
    behind,
    check_learn,
    learn_of,
    load_mix,
    sequences,
    shards_of,
    write_mix,
)
from pretok.stream.order import prefix_bound
from pretok.stream.pack import pack
from pretok.stream.quota import SHOWN, divide, epochs_spent, pooled, stage_quotas, weighed
from pretok.stream.tapes import FOLDER, SideTape

if TYPE_CHECKING:
    from pretok.config import MixTable, StageTable


@dataclass(frozen=True, slots=True)
class MixRequest:
    """A request for a mix: a [mix] table, for one split."""

    table: MixTable
    split: str = "train"
    after: Mix | None = None
    """Positions that the new stages follow (`stream.continued`); the new mix keeps their sequence length, seed and
    split."""
    learn: Mapping[str, Collection[str]] = field(default_factory=dict)
    """Kinds of tokens that are learned in sources of conversations, by source; default: the assistant's."""


class MixReport(Record, frozen=True, kw_only=True, omit_defaults=True):
    """The figures of a mix; tokens are counted as targets."""

    sequences: Count
    tokens: Count
    stages: tuple[dict[str, Any], ...]
    """For each its tokens, the share of each pool, and prefix_bound_tokens, how far any prefix may be from these
    shares."""
    sources: dict[str, dict[str, Any]]
    """For each entry the result of `_source_report`."""
    left_out: dict[str, Count]
    """Tokens of sources that are not in the mix."""
    notes: tuple[str, ...]
    """What is not read."""
    classes: dict[str, str]
    """The requested conditions."""
    continued_at: Count | None = None
    """Number of sequences taken from the mix that is continued."""


def run_mix(shards: Path, out: Path, request: MixRequest) -> MixReport:
    """Plan a mix, write it to `out`, and return its report. An equal file is not changed.

    Raises UsageError (see `plan_mix`; `out` cannot be written), IntegrityError if `out` is not a mix, MismatchError if
    it is another mix, which a run may depend on.
    """
    if out.is_dir():
        raise UsageError(f"{out} is a folder; name a file for the mix, such as {out / 'mix.json'}")
    now = load_manifest(shards).sized()
    # A mix that was made before the shards grew still answers the same request: plan it on the shards of its time.
    standing = load_mix(out) if out.exists() and request.after is None else None
    manifest = (now.as_of(standing.manifest) if standing else None) or now
    mix, report = plan_mix(manifest, request, out.parent / FOLDER)
    if manifest is not now:
        note = f"{out} was made before the shards grew; pretok mix --continue {out} adds the new text"
        report = replace(report, notes=(*report.notes, note))
    if not out.exists():
        with hold(out, "mix", beside=True):
            if not out.exists():  # another job may have written it before this one got the lock
                write_mix(out, mix, report)
    if (old := load_mix(out)).fingerprint != mix.fingerprint:
        field = next(name for name in Mix.__struct_fields__ if getattr(old, name) != getattr(mix, name))
        raise MismatchError(
            f"{out} holds another mix (other {field}). Write this one to another --out, or delete the old one if no "
            "run uses it"
        )
    return report


def plan_mix(manifest: Manifest, request: MixRequest, folder: Path | None = None) -> tuple[Mix, MixReport]:
    """Return the mix and its report. folder: for side files, by default next to the shards.

    Raises UsageError for unknown sources, and for budgets and weights that do not fit.
    """
    folder = folder or manifest.folder.parent / FOLDER
    table = request.table
    # Each epoch is cut anew, except for validation, which has only one.
    cuts = "epoch" if request.split == "train" else "fixed"
    nothing = Mix(manifest.fingerprint, request.split, table.seq_len, table.seed, cuts, (), ())
    old = request.after or nothing
    packs = old.packs if old.sources else table.pack == "best-fit"
    learn = _learn(manifest, request.learn, old)
    new, notes = _new_entries(manifest, table, old, folder)
    entries = (*old.sources, *(_packed(manifest, old, folder, entry) if packs else entry for entry in new))
    mix = replace(
        old,
        sources=tuple(replace(entry, learn=learn_of(manifest, entry.held_in, learn)) for entry in entries),
        stages=tuple(replace(stage, quotas=(*stage.quotas, *[0] * len(new))) for stage in old.stages),
    )
    wish = weighed(request.table, _pooled(mix))
    for stage in wish.all_stages:
        for name in sorted({name for name, weight in stage.weights.items() if weight} - mix.pools.keys()):
            classes = ", ".join(dict.fromkeys(entry.pool for entry in mix.sources if entry.held_in == name))
            raise UsageError(
                f"{name} has a weight but no documents outside of its classes ({classes}), which have all of them: "
                "give the weight to these"
            )
        quotas = _quotas(stage, wish, mix)
        mix = replace(mix, stages=(*mix.stages, Stage(tuple(quotas))))
        notes += [
            f"{name} has a weight of {float(weight):.2g}, too small for one of the {sum(quotas):,} sequences of its "
            "stage: it is not read there"
            for name, weight in stage.weights.items()
            if weight and not any(quotas[number] for number in mix.pools[name])
        ]
    mix.order()  # raises UsageError for a stage that is too long
    return mix, _report(manifest, request, wish, mix, notes, folder)


def _pooled(mix: Mix) -> list[MixSource]:
    """Return the pools of a mix as quotas count them."""
    return [
        pooled(name, [mix.sources[n] for n in numbers], mix.seq_len) for name, numbers in mix.pools.items()
    ]


def _quotas(stage: StageTable, table: MixTable, mix: Mix) -> list[int]:
    """Return the quotas of a stage that follows those of a mix, by entry."""
    stages = mix.order().given.tolist()
    sizes = [entry.sequences for entry in mix.sources]
    pools = []
    for numbers in mix.pools.values():
        own = [sizes[n] for n in numbers]
        pools.append((own, epochs_spent(own, [[stage[n] for n in numbers] for stage in stages])))
    quotas = stage_quotas(stage, table, _pooled(mix), [sum(spent) for _, spent in pools])
    given = [0] * len(sizes)
    for numbers, quota, pool in zip(mix.pools.values(), quotas, pools, strict=True):
        for number, part in zip(numbers, divide(quota, *pool), strict=True):
            given[number] = part
    return given


def _learn(manifest: Manifest, asked: Mapping[str, Collection[str]], old: Mix) -> dict[str, Collection[str]]:
    """Return the kinds that are learned in each requested or previous source. Raises UsageError."""
    check_learn(manifest, asked)
    learn = dict(asked)
    for entry in old.sources:
        if set(learn.setdefault(entry.held_in, entry.learn)) != set(entry.learn):
            kept = ", ".join(entry.learn) or "everything"
            raise UsageError(
                f"in {entry.held_in} the previous mix learns {kept}, and a mix that continues it must do the same: "
                "leave out --learn, or make a separate mix"
            )
    return learn


def _new_entries(
    manifest: Manifest, table: MixTable, old: Mix, folder: Path
) -> tuple[list[MixSource], list[str]]:
    """Return the entries that follow those of the previous mix, and notes about them. Raises UsageError.

    They are the appends to its sources, and the sources and classes that a stage names; if a stage has natural weights,
    all sources.
    """
    wanted = _classes(manifest, table, old)
    asked = {name for stage in table.all_stages for name in stage.weights}
    known = {*table.classes, *old.pools, *manifest.sources}
    if unknown := sorted(asked - known):
        have = ", ".join(sorted(known))
        raise UsageError(f"{manifest.folder} has no source or class {unknown[0]!r}; it has {have}")
    natural = any(not stage.weights for stage in table.all_stages)
    new: list[MixSource] = []
    for source in manifest.sources:
        divided, begin = wanted.get(source, {}), _begin(manifest, source, old)
        tokens = sum(shard.tokens for shard in behind(manifest.of(source, old.split), begin))
        pools = {entry.pool for entry in old.sources if entry.held_in == source}
        if pools and (divided or tokens) and divided.keys() != pools - {source}:
            raise UsageError(
                f"the previous mix divides {source} into {', '.join(sorted(pools - {source})) or 'no classes'}, and a "
                "mix that continues it must do the same: give the condition of each of these again "
                f"(--class NAME='{source} where ...'), and no others"
            )
        if not (tokens if pools else natural or asked & {source, *divided}):
            continue
        if divided:
            with hold(folder, "mix"):
                from pretok.stream.classes import divide

                entries = divide(manifest, old.split, source, divided, folder, old.seq_len, old.cuts, begin)
            # Leave out a rest without documents, unless a weight names it.
            new += [entry for entry in entries if entry.tokens or (entry.name in asked and not begin)]
        else:
            size = sequences(tokens, old.seq_len, old.cuts)
            new.append(MixSource(source, tokens, size, source if begin else None, begin=begin))
    notes = [
        f"the {entry.tokens:,} tokens appended to {entry.name} are less than one sequence and are not read"
        for entry in new
        if entry.begin and entry.tokens and not entry.sequences
    ]
    return [_named(entry, old) for entry in sorted(new, key=lambda entry: entry.name)], notes


def _named(entry: MixSource, old: Mix) -> MixSource:
    """Name a new entry: if the previous mix has its pool, it gets the next number, `NAME+1`."""
    alike = len(old.pools.get(entry.name, ()))
    return replace(entry, name=f"{entry.name}+{alike}", of=entry.held_in) if alike else entry


def _begin(manifest: Manifest, source: str, old: Mix) -> int:
    """Return how many tokens of a source the previous mix already covered."""
    dates = {entry.manifest or manifest.fingerprint for entry in old.sources if entry.held_in == source}
    covered = [shards_of(date, source, old.split, manifest) for date in dates]
    return max((sum(shard.tokens for shard in shards) for shards in covered), default=0)


def _classes(manifest: Manifest, table: MixTable, old: Mix) -> dict[str, dict[str, str]]:
    """Return source -> class -> condition. Raises UsageError."""
    from pretok.stream.classes import parse_class

    wanted: dict[str, dict[str, str]] = {}
    for name, text in table.classes.items():
        source, condition = parse_class(name, text)
        taken = {entry.pool for entry in old.sources if entry.held_in != source}.union(manifest.sources)
        if source not in manifest.sources or name in taken:
            raise UsageError(
                f"class {name}: it must have a name of its own, and {source} must be a source; the sources are "
                f"{', '.join(manifest.sources)}"
            )
        wanted.setdefault(source, {})[name] = condition
    return wanted


def _packed(manifest: Manifest, old: Mix, folder: Path, entry: MixSource) -> MixSource:
    """Pack the documents of an entry into sequences."""
    if entry.tokens < 2:
        return entry
    shards = behind(manifest.of(entry.held_in, old.split), entry.begin)
    members = SideTape(folder, entry.tape, shards) if entry.tape else None
    tape, about = pack(folder, shards, old.seq_len, members)
    return replace(
        entry, tape=tape, packed=True, tokens=about.tokens, sequences=about.bins, targets=about.targets
    )


def _report(
    manifest: Manifest, request: MixRequest, wish: MixTable, mix: Mix, notes: Sequence[str], folder: Path
) -> MixReport:
    given = mix.order().given
    each = [entry.predicted(mix.seq_len) for entry in mix.sources]  # targets of a sequence
    stages: list[dict[str, Any]] = []
    for stage, counts in zip(mix.stages, given.tolist(), strict=True):
        tokens = {name: sum(counts[n] * each[n] for n in numbers) for name, numbers in mix.pools.items()}
        total = sum(tokens.values())
        bounds = {
            name: float(sum(prefix_bound(stage.quotas, stage.quotas[n]) * each[n] for n in numbers))
            for name, numbers in mix.pools.items()
        }
        shares = {name: float(part / max(total, 1)) for name, part in tokens.items()}
        stages.append({"tokens": int(total), "shares": shares, "prefix_bound_tokens": bounds})
    mixed = {source.held_in for source in mix.sources}
    return MixReport(
        sequences=len(mix),
        tokens=sum(stage["tokens"] for stage in stages),
        stages=tuple(stages),
        sources={
            entry.name: _source_report(manifest, mix, entry, count, folder)
            for entry, count in zip(mix.sources, given.sum(axis=0).tolist(), strict=True)
        },
        left_out={
            name: sum(shard.tokens for shard in manifest.of(name, mix.split))
            for name in manifest.sources
            if name not in mixed
        },
        notes=tuple(notes),
        classes=wish.classes,
        continued_at=len(request.after) if request.after else None,
    )


def _source_report(
    manifest: Manifest, mix: Mix, source: MixSource, drawn: int, folder: Path
) -> dict[str, Any]:
    """Return the figures of an entry in a mix.

    unused_tokens: in sequences that are never read. documents: of a class or a packed entry; cut_documents of them are
    longer than a sequence; padding_tokens: per epoch. learn: kinds that are learned, empty if all are; learned_share:
    their share of the tokens of the source.
    """
    each = source.predicted(mix.seq_len)
    about = SideTape(folder, source.tape).about if source.tape else {}
    shards = manifest.of(source.held_in, mix.split)
    learned = sum((shard.kinds or {}).get(kind, 0) for shard in shards for kind in source.learn)
    return {
        "sequences": drawn,
        "tokens": int(drawn * each),
        "epochs": drawn / max(source.sequences, 1),
        "repeated_tokens": int(max(drawn - source.sequences, 0) * each),
        "unused_tokens": int(max(source.sequences - drawn, 0) * each),
        "documents": about.get("documents", about.get("members")),
        "cut_documents": about.get("cut", 0),
        "padding_tokens": source.sequences * (mix.seq_len + 1) - source.tokens if source.packed else 0,
        "learn": list(source.learn),
        "learned_share": learned / max(sum(shard.tokens for shard in shards), 1) if source.learn else 1.0,
    }


def show_mix(manifest: Manifest, report: MixReport, console: Console, sources: bool = True) -> None:
    """Print a line per stage, per packed or masked source, and for everything left out or changed.

    sources: also print a table of the sources.
    """
    for number, stage in enumerate(report.stages, 1):
        what = f"stage {number}" if len(report.stages) > 1 else "mix"
        largest = sorted(stage["shares"], key=lambda name: -stage["shares"][name])[:SHOWN]
        named = [f"{name} {share:.4%}" for name, share in stage["shares"].items() if name in largest]
        shares = listed(named, SHOWN, count=len(stage["shares"]))
        bound = math.ceil(max(stage["prefix_bound_tokens"].values()))
        console.show(
            f"{what}: {stage['tokens']:,} tokens: {shares} (never more than {bound:,} tokens off at any prefix)",
            result=True,
        )
    for name, source in report.sources.items():
        if source["padding_tokens"] or source["cut_documents"]:
            console.notice(
                f"{name} is packed: {source['documents']:,} documents, {source['cut_documents']:,} longer ones split, "
                f"{source['padding_tokens']:,} tokens of padding per epoch; its share is exact at the end of each epoch"
            )
        if source["learn"]:
            console.notice(
                f"in {name} the loss covers {', '.join(source['learn'])}: {source['learned_share']:.1%} of its tokens"
            )
    if at := report.continued_at:
        console.notice(
            f"the first {at:,} sequences are those of the previous mix, and its sources continue from there"
        )
    for name, tokens in report.left_out.items():
        console.notice(f"not in the mix: {name}, {tokens:,} tokens")
    for sentence in [*report.notes, *incomplete(manifest)]:
        console.notice(sentence)
    if sources:
        rows = [
            (name, f"{source['sequences']:,}", f"{source['tokens']:,}", f"{source['epochs']:,.4f}")
            for name, source in report.sources.items()
        ]
        titles = ("source", "sequences", "tokens", "epochs")
        console.show(table(f"{report.tokens:,} tokens", titles, rows), result=True)
