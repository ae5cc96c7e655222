"""The mix job: shards and wishes -> mix.json and its report.

Input: a shards folder and a `MixRequest`. Output: mix.json (see `stream.mix_file`) and the `MixReport` kept in it.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pretok.base.console import Console, table
from pretok.base.errors import MismatchError, UsageError
from pretok.base.lock import hold
from pretok.base.records import Count, Record, replace
from pretok.base.tokens import Ints
from pretok.base.units import listed
from pretok.shards.manifest import SPLITS, Manifest, load_manifest
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
from pretok.stream.quota import SHOWN, pooled, stage_quotas, weighed
from pretok.stream.tapes import FOLDER, SideFile

if TYPE_CHECKING:
    from pretok.config import MixTable, StageTable


@dataclass(frozen=True, slots=True)
class MixRequest:
    """What a mix is asked to be: a [mix] table, of one split. `after`: its stages follow these positions
    (`stream.continued`), which have its sequence length, seed and split. `learn`: kinds of tokens that are learned of
    sources of conversations, by their names; of the others what an assistant writes."""

    table: MixTable
    split: str = "train"
    after: Mix | None = None
    learn: Mapping[str, Collection[str]] = field(default_factory=dict)

    @property
    def before(self) -> tuple[MixSource, ...]:
        """The entries of the mix before."""
        return self.after.sources if self.after else ()

    @property
    def cuts(self) -> str:
        """Those of the mix before; else each epoch is cut anew, but for validation, which reads its texts once."""
        return self.after.cuts if self.after else "epoch" if self.split == "train" else "fixed"

    @property
    def packs(self) -> bool:
        """Whether what it takes of the shards is packed."""
        return self.after.packs if self.after else self.table.pack == "best-fit"


class MixReport(Record, frozen=True, kw_only=True, omit_defaults=True):
    """What follows from a mix, in tokens that are predicted.

    stages: of each tokens, shares of each pool as given, and prefix_bound_tokens, how far any prefix of it may be from
    these. sources: what `_source_report` says of each entry. left_out: tokens of sources without a place in it; notes:
    what is not read; classes: the conditions that were asked for; continued_at: sequences that are those of the mix it
    goes on with.
    """

    sequences: Count
    tokens: Count
    stages: tuple[dict[str, Any], ...]
    sources: dict[str, dict[str, Any]]
    left_out: dict[str, Count]
    notes: tuple[str, ...]
    classes: dict[str, str]
    continued_at: Count | None = None


def run_mix(shards: Path, out: Path, request: MixRequest) -> MixReport:
    """Plan a mix, write it to `out` and return its report. An equal file is left as it is.

    Raises UsageError (see `plan_mix`; `out` cannot be written), IntegrityError when `out` is no mix and MismatchError
    when it is another one, which a run may depend on.
    """
    if out.is_dir():
        raise UsageError(f"{out} is a folder; name a file for the mix, such as {out / 'mix.json'}")
    now = load_manifest(shards).sized()
    # A mix that was made before the shards grew stays what was asked for.
    standing = load_mix(out) if out.exists() and request.after is None else None
    manifest = (now.as_of(standing.manifest) if standing else None) or now
    mix, report = plan_mix(manifest, request, out.parent / FOLDER)
    if manifest is not now:
        told = f"{out} reads the shards as they were before they grew; pretok mix --continue {out} reads the rest too"
        report = replace(report, notes=(*report.notes, told))
    if not out.exists():
        with hold(out, "mix", beside=True):
            if not out.exists():  # since a moment ago
                write_mix(out, mix, report)
    if (old := load_mix(out)).fingerprint != mix.fingerprint:
        field = next(name for name in Mix.__struct_fields__ if getattr(old, name) != getattr(mix, name))
        raise MismatchError(
            f"{out} holds another mix, with {_shown(old, field)}, not {_shown(mix, field)}. Write this one to "
            "another --out, or delete the old one if no run uses it"
        )
    return report


def _shown(mix: Mix, field: str) -> str:
    """A field of a mix as a person reads it."""
    if field == "stages":
        shares = (zip(mix.pools, stage.quotas, strict=True) for stage in mix.stages)
        return "; ".join(", ".join(f"{quota:,} sequences of {name}" for name, quota in one) for one in shares)
    if field == "sources":
        return ", ".join(
            f"{one.name} with {one.tokens:,} tokens"
            + (f" of which {' and '.join(one.learn)} is learned" if one.learn else "")
            + (f" by the side file {one.tape}" if one.tape else "")
            for one in mix.sources
        )
    return f"{field} = {getattr(mix, field)}"


def plan_mix(manifest: Manifest, request: MixRequest, folder: Path | None = None) -> tuple[Mix, MixReport]:
    """The mix and its report. folder: where side files go, beside the shards by default. Raises UsageError for unknown
    sources, or budgets and weights that do not fit."""
    folder, learn = folder or manifest.folder.parent / FOLDER, _learn(manifest, request)
    if request.split not in SPLITS:
        raise UsageError(f"no split {request.split!r}; there are {' and '.join(SPLITS)}")
    new, notes = _new_entries(manifest, request, folder)
    sources = (*request.before, *(_packed(manifest, request, folder, entry) for entry in new))
    sources = tuple(replace(one, learn=learn_of(manifest, one.held_in, learn)) for one in sources)
    mix = Mix(
        manifest.fingerprint,
        request.split,
        request.table.seq_len,
        request.table.seed,
        request.cuts,
        sources,
        (),
    )
    if request.after is not None:
        none = (0,) * (len(mix.pools) - len(request.after.pools))
        stages = tuple(replace(stage, quotas=(*stage.quotas, *none)) for stage in request.after.stages)
        mix = replace(request.after, sources=sources, stages=stages)
    wish = weighed(request.table, _pooled(mix, [0] * len(sources)))
    for stage in wish.all_stages:
        mix = replace(mix, stages=(*mix.stages, Stage(tuple(_quotas(stage, wish, mix)))))
    mix.order()  # says of a stage that is too long what to do
    return mix, _report(manifest, request, wish, mix, notes, folder)


def _pooled(mix: Mix, given: Sequence[int] | Ints) -> list[MixSource]:
    """The pools of a mix as quotas count them, where entries give so many sequences of them."""
    return [
        pooled(name, [mix.sources[n] for n in numbers], [int(given[n]) for n in numbers], mix.seq_len)
        for name, numbers in mix.pools.items()
    ]


def _quotas(stage: StageTable, table: MixTable, mix: Mix) -> list[int]:
    """The quotas of a stage behind those of a mix."""
    order, entries = mix.order(), len(mix.sources)
    spent = [int(order.spent[numbers].sum()) for numbers in mix.pools.values()]
    quotas = stage_quotas(stage, table, _pooled(mix, [0] * entries), spent)
    if len(mix.pools) < entries:  # what a quota means in tokens depends on how its entries share it
        for _ in range(2):
            quotas = stage_quotas(stage, table, _pooled(mix, order.divide(quotas)), spent)
    return quotas


def _learn(manifest: Manifest, request: MixRequest) -> dict[str, Collection[str]]:
    """The kinds that are learned of each source that was asked for, or is in the mix before. Raises UsageError."""
    check_learn(manifest, request.learn)
    learn = dict(request.learn)
    for entry in request.before:
        if set(learn.setdefault(entry.held_in, entry.learn)) != set(entry.learn):
            kept = ", ".join(entry.learn) or "all of it"
            raise UsageError(
                f"the mix before learns {kept} of {entry.held_in}, and a mix that goes on keeps what it learns: leave "
                "--learn out, or make a mix of its own"
            )
    return learn


def _new_entries(manifest: Manifest, request: MixRequest, folder: Path) -> tuple[list[MixSource], list[str]]:
    """The entries that stand behind those of the mix before, and what to tell of them: of sources that it has what was
    appended, and the sources and classes that a stage names; all of them when a stage is natural. Raises UsageError."""
    begins = _begins(manifest, request)
    wanted = _classes(manifest, request, begins)
    asked = {
        name for stage in request.table.all_stages if stage.weights != "natural" for name in stage.weights
    }
    classes = {name for divided in wanted.values() for name in divided} | {one.pool for one in request.before}
    if unknown := sorted(asked - classes - manifest.sources.keys()):
        known = ", ".join(sorted(classes.union(manifest.sources)))
        raise UsageError(f"{manifest.folder} has no source or class {unknown[0]!r}; there are {known}")
    natural = any(stage.weights == "natural" for stage in request.table.all_stages)
    read = {entry.held_in for entry in request.before}
    found, notes = [], []
    for source in manifest.sources:
        divided, begin = wanted.get(source, {}), begins[source]
        tokens = sum(shard.tokens for shard in behind(manifest.of(source, request.split), begin))
        if not (tokens if source in read else natural or asked & {source, *divided}):
            continue
        if divided:
            with hold(folder, "mix"):
                from pretok.stream.classes import divide

                length, cuts = request.table.seq_len, request.cuts
                made = divide(manifest, request.split, source, divided, folder, length, cuts, begin)
            # A rest without a document is none, unless it is asked for.
            found += [entry for entry in made if entry.tokens or (entry.name in asked and not begin)]
        else:
            size = sequences(tokens, request.table.seq_len, request.cuts)
            found.append(MixSource(source, tokens, size, source if begin else None, begin=begin))
    notes += [
        f"{entry.tokens:,} tokens appended to {entry.name} are less than one sequence, and are not read"
        for entry in found
        if entry.begin and entry.tokens and not entry.sequences
    ]
    return [_appended(entry, request) for entry in sorted(found, key=lambda entry: entry.name)], notes


def _appended(entry: MixSource, request: MixRequest) -> MixSource:
    """A new entry, named as what came behind those of the mix before."""
    if not entry.begin or request.after is None:
        return entry
    alike = sum(one.pool == entry.name for one in request.before)
    name = f"{entry.name}+{alike}" if alike else entry.name
    return replace(entry, name=name, stage=len(request.after.stages))


def _begins(manifest: Manifest, request: MixRequest) -> dict[str, int]:
    """Of each source how many tokens of the split the mix before knew."""
    begins = dict.fromkeys(manifest.sources, 0)
    for entry in request.before:
        then = entry.manifest or manifest.fingerprint
        known = shards_of(then, entry.held_in, request.split, manifest)
        begins[entry.held_in] = max(begins[entry.held_in], sum(shard.tokens for shard in known))
    return begins


def _classes(manifest: Manifest, request: MixRequest, begins: Mapping[str, int]) -> dict[str, dict[str, str]]:
    """Source -> its classes, each with its condition; of sources in the mix before, those that it has. Raises
    UsageError."""
    from pretok.stream.classes import parse_class

    wanted: dict[str, dict[str, str]] = {}
    before: dict[str, set[str]] = {}
    for entry in request.before:
        before.setdefault(entry.held_in, set()).add(entry.pool)
    for name, text in request.table.classes.items():
        asked = parse_class(name, text)
        if asked.source not in manifest.sources or name in manifest.sources:
            wrong = name if name in manifest.sources else asked.source
            told = "is a source itself: give the class another name" if wrong == name else "is no source"
            raise UsageError(f"class {name}: {wrong} {told}; there are {', '.join(manifest.sources)}")
        if of := next((of for of, names in before.items() if name in names and of != asked.source), None):
            raise UsageError(f"class {name} is of {of} in the mix before, not of {asked.source}")
        if name not in before.get(asked.source, {name}):
            raise UsageError(
                f"class {name}: the mix before reads {asked.source} without it, and a mix that goes on keeps what it "
                "calls so"
            )
        wanted.setdefault(asked.source, {})[name] = asked.predicate
    for source, names in before.items():
        missing = sorted(names - wanted.get(source, {}).keys() - {source})
        if missing and begins[source] < sum(shard.tokens for shard in manifest.of(source, request.split)):
            raise UsageError(
                f"{source} was appended to since the mix before: say again which documents are in "
                f"{', '.join(missing)} (--class '{missing[0]}={source} where ...')"
            )
    return wanted


def _packed(manifest: Manifest, request: MixRequest, folder: Path, entry: MixSource) -> MixSource:
    """The same packed, where the mix is so."""
    if not request.packs or entry.tokens < 2:
        return entry
    shards = behind(manifest.of(entry.held_in, request.split), entry.begin)
    members = SideFile(folder, entry.tape, shards) if entry.tape else None
    tape, about = pack(folder, shards, request.table.seq_len, members)
    return replace(
        entry, tape=tape, packed=True, tokens=about.tokens, sequences=about.bins, targets=about.targets
    )


def _report(
    manifest: Manifest, request: MixRequest, wish: MixTable, mix: Mix, notes: Sequence[str], folder: Path
) -> MixReport:
    drawn = mix.order().prefix(len(mix)).tolist()
    pools = _pooled(mix, drawn)
    # What is predicted of each entry up to where each stage ends.
    read = [mix.predicted_by(end) for end in accumulate(mix.lengths, initial=0)]
    stages: list[dict[str, Any]] = []
    for stage, before, after in zip(mix.stages, read, read[1:], strict=False):
        tokens = [sum(after[n] - before[n] for n in numbers) for numbers in mix.pools.values()]
        shares = [float(part / max(sum(tokens), 1)) for part in tokens]
        bounds = [
            prefix_bound(stage.quotas, quota) * float(one.predicted(mix.seq_len))
            for one, quota in zip(pools, stage.quotas, strict=True)
        ]
        stages.append(
            {
                "tokens": int(sum(tokens)),
                "shares": dict(zip(mix.pools, shares, strict=True)),
                "prefix_bound_tokens": dict(zip(mix.pools, bounds, strict=True)),
            }
        )
    held = {source.held_in for source in mix.sources}
    return MixReport(
        sequences=len(mix),
        tokens=sum(stage["tokens"] for stage in stages),
        stages=tuple(stages),
        sources={
            one.name: _source_report(manifest, mix, one, count, int(tokens), folder)
            for one, count, tokens in zip(mix.sources, drawn, read[-1], strict=True)
        },
        left_out={
            name: sum(shard.tokens for shard in manifest.of(name, mix.split))
            for name in manifest.sources
            if name not in held
        },
        notes=tuple(notes),
        classes=wish.classes,
        continued_at=len(request.after) if request.after else None,
    )


def _source_report(
    manifest: Manifest, mix: Mix, source: MixSource, drawn: int, tokens: int, folder: Path
) -> dict[str, Any]:
    """What a mix takes of an entry. unused_tokens: whole sequences not drawn even once; tail_tokens: what an epoch
    leaves before its first and behind its last sequence, other tokens in each where epochs are cut anew. documents: of
    a class or of what is packed, of which cut_documents are longer than a sequence, and padding_tokens fill an epoch
    up. learn: kinds that are learned, none where all are; learned_share: of the tokens of the source how many are
    these; spread_tokens: standard deviation of the tokens that a packed sequence predicts, whose sum is exact at the
    end of each epoch."""
    each = source.predicted(mix.seq_len)
    about = SideFile(folder, source.tape).about if source.tape else {}
    shards = manifest.of(source.held_in, mix.split)
    learned = sum((shard.kinds or {}).get(kind, 0) for shard in shards for kind in source.learn)
    return {
        "sequences": drawn,
        "tokens": tokens,
        "epochs": drawn / max(source.sequences, 1),
        "repeated_tokens": int(max(drawn - source.sequences, 0) * each),
        "unused_tokens": int(max(source.sequences - drawn, 0) * each),
        "tail_tokens": 0 if source.packed else source.tokens - source.sequences * mix.seq_len,
        "documents": about.get("documents", about.get("members")),
        "cut_documents": about.get("cut", 0),
        "padding_tokens": source.sequences * (mix.seq_len + 1) - source.tokens if source.packed else 0,
        "learn": list(source.learn),
        "learned_share": learned / max(sum(shard.tokens for shard in shards), 1) if source.learn else 1.0,
        "spread_tokens": round(_spread(about), 3),
    }


def _spread(about: Mapping[str, int]) -> float:
    """Standard deviation of what a packed sequence predicts."""
    mean = about.get("targets", 0) / max(about.get("bins", 0), 1)
    return math.sqrt(max(about.get("squares", 0) / max(about.get("bins", 0), 1) - mean * mean, 0))


def show_mix(manifest: Manifest, report: MixReport, console: Console, sources: bool = True) -> None:
    """A line for each stage and each packed or masked source, and one for all that is left out or was changed; with
    `sources` a table of these."""
    for number, stage in enumerate(report.stages, 1):
        what = f"stage {number}" if len(report.stages) > 1 else "mix"
        largest = sorted(stage["shares"], key=lambda name: -stage["shares"][name])[:SHOWN]
        named = [f"{name} {share:.4%}" for name, share in stage["shares"].items() if name in largest]
        shares = listed(named, SHOWN, count=len(stage["shares"]))
        bound = math.ceil(max(stage["prefix_bound_tokens"].values()))
        console.notice(
            f"{what}: {stage['tokens']:,} tokens: {shares}; at every point within {bound:,} tokens of it"
        )
    for name, one in report.sources.items():
        if one["padding_tokens"] or one["cut_documents"]:
            console.notice(
                f"{name} is packed: {one['documents']:,} documents, {one['cut_documents']:,} longer ones cut, "
                f"{one['padding_tokens']:,} tokens of padding an epoch; its tokens are exact at the end of each epoch"
            )
        if one["learn"]:
            console.notice(
                f"learned of {name}: {', '.join(one['learn'])}; in its source {one['learned_share']:.1%} of the tokens"
            )
    if at := report.continued_at:
        console.notice(
            f"the first {at:,} sequences are those of the mix before, and its sources go on from there"
        )
    for name, tokens in report.left_out.items():
        console.notice(f"not in the mix: {name}, {tokens:,} tokens")
    for sentence in [*report.notes, *incomplete(manifest)]:
        console.notice(sentence)
    if sources:
        keys = ("sequences", "tokens", "epochs", "repeated_tokens", "unused_tokens", "tail_tokens")
        rows = [
            (name, *(f"{one[key]:,.4f}" if key == "epochs" else f"{one[key]:,}" for key in keys))
            for name, one in report.sources.items()
        ]
        console.show(
            table(f"{report.tokens:,} tokens", ("source", *(key.replace("_", " ") for key in keys)), rows)
        )
