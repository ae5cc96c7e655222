"""The mix job: shards and wishes -> mix.json, its report, and what other budgets would mean.

Input: a shards folder and a `MixRequest`. Output: mix.json (see `stream.mix_file`) and the `MixReport` kept in it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import accumulate, pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import msgspec

from pretok.base.console import Console, table
from pretok.base.errors import MismatchError, UsageError
from pretok.base.failures import Failure
from pretok.base.html import html_table
from pretok.base.lock import hold
from pretok.base.records import Count, Record, replace
from pretok.base.units import listed
from pretok.shards.manifest import Manifest, load_manifest
from pretok.shards.unfinished import failures
from pretok.stream.mix_file import Mix, MixSource, load_mix, mix_sources, possible, write_mix
from pretok.stream.order import prefix_bound
from pretok.stream.pack import pack
from pretok.stream.packed import Packing, open_packing
from pretok.stream.quota import learned_of, most_that_fits, one_epoch, shares_of, stage_quotas
from pretok.stream.side_file import FOLDER

if TYPE_CHECKING:
    from pretok.config import MixTable, StageTable

SHOWN = 6
"""Sources that a line or the columns of a table name, the largest or most often read; each has a row of its own."""


@dataclass(frozen=True, slots=True)
class MixRequest:
    """What a mix is asked to be: a [mix] table, of one split. `after`: its stages follow these positions
    (`stream.continued`), which have its sequence length, seed and split."""

    table: MixTable
    split: str = "train"
    after: Mix | None = None


@dataclass(frozen=True, slots=True)
class WhatIf:
    """One line of the table: the last stage with another budget, and how often each source is read by its end.

    capped: some source is held at its limit; problem: why it cannot be, or None.
    """

    tokens: int
    epochs: dict[str, float]
    capped: bool
    problem: str | None


class StageReport(Record, frozen=True):
    """A stage by source. weights: as asked for, exact fractions; shares: as given; prefix_bound_tokens: how far any
    prefix of it may be from them."""

    tokens: Count
    weights: dict[str, str]
    shares: dict[str, float]
    prefix_bound_tokens: dict[str, float]


class PackedReport(Record, frozen=True):
    """How the documents of a source were packed. cut_documents: those longer than a sequence; padding_tokens: what an
    epoch has of them; spread_tokens: standard deviation of the learned tokens of a sequence, whose sum is exact at the
    end of each epoch."""

    documents: Count
    cut_documents: Count
    padding_tokens: Count
    spread_tokens: float


class SourceReport(Record, frozen=True, omit_defaults=True):
    """What a mix takes of a source, in learned tokens. unused_tokens: whole sequences not drawn even once; tail_tokens:
    what an epoch leaves before its first and behind its last sequence, other tokens in each where epochs are cut anew;
    packed: None where it is cut."""

    sequences: Count
    tokens: Count
    epochs: float
    repeated_tokens: Count
    unused_tokens: Count
    tail_tokens: Count
    packed: PackedReport | None = None


class MixReport(Record, frozen=True, kw_only=True, omit_defaults=True):
    """What follows from a mix. left_out: tokens of sources without a place in it; notes: what --cap changed;
    continued_at: sequences that are those of the mix it goes on with; failed: inputs that the shards lack."""

    sequences: Count
    tokens: Count
    stages: tuple[StageReport, ...]
    sources: dict[str, SourceReport]
    left_out: dict[str, Count]
    notes: tuple[str, ...]
    continued_at: Count | None = None
    failed: tuple[Failure, ...]

    def _repr_html_(self) -> str:
        columns = tuple(name.replace("_", " ") for name in SourceReport.__struct_fields__[:-1])
        rows = [(name, *msgspec.structs.astuple(source)[:-1]) for name, source in self.sources.items()]
        title = f"mix: {self.tokens:,} tokens in {self.sequences:,} sequences"
        return html_table(title, ("source", *columns), rows, " ".join(self.notes))


def run_mix(shards: Path, out: Path, request: MixRequest) -> MixReport:
    """Plan a mix, write it to `out` and return its report. An equal file is left as it is.

    Raises UsageError (see `plan_mix`; `out` cannot be written), IntegrityError when `out` is no mix and MismatchError
    when it is another one, which a run may depend on.
    """
    refuse_another_mix(out, request)
    mix, report = plan_mix(load_manifest(shards), request, out.parent / FOLDER)
    if not out.exists():
        with hold(out, "mix", beside=True):
            if not out.exists():  # since a moment ago
                write_mix(out, mix, report)
    if (old := load_mix(out)).fingerprint != mix.fingerprint:
        raise _another(out, old, f"this one has {mix.fingerprint}")
    return report


def refuse_another_mix(out: Path, request: MixRequest) -> None:
    """MismatchError where `out` holds a mix that no shards can give for this request, UsageError for a folder; what
    depends on the shards is not compared."""
    if out.is_dir():
        raise UsageError(f"{out} is a folder; name a file for the mix, such as {out / 'mix.json'}")
    if not out.exists() or request.after is not None:
        return
    old = load_mix(out)
    for what, there, asked in (
        ("sequence length", old.seq_len, request.table.seq_len),
        ("seed", old.seed, request.table.seed),
        ("split", old.split, request.split),
        ("number of stages", len(old.stages), len(request.table.all_stages)),
        ("packing", "best-fit" if old.packs else "none", request.table.pack),
    ):
        if there != asked:
            raise _another(out, old, f"its {what} is {there}, not {asked}")
    for length, stage in zip(old.lengths, request.table.all_stages, strict=True):
        if (
            stage.tokens != "all"
            and not old.packs
            and length != (asked := stage.tokens // request.table.seq_len)
        ):
            raise _another(out, old, f"a stage of it has {length:,} sequences, not {asked:,}")


def _another(out: Path, old: Mix, difference: str) -> MismatchError:
    return MismatchError(
        f"{out} holds another mix (fingerprint {old.fingerprint}; {difference}): delete it if no run needs it, or "
        "choose another name"
    )


def plan_mix(manifest: Manifest, request: MixRequest, folder: Path | None = None) -> tuple[Mix, MixReport]:
    """The mix and its report. folder: where side files go, by default nowhere that lasts. Raises UsageError for unknown
    sources, or budgets and weights that do not fit."""
    if folder is None:
        with TemporaryDirectory() as nowhere:
            return plan_mix(manifest, request, Path(nowhere))
    sources, packings = _sources(manifest, request, folder)
    table, cuts = request.table, _cuts(request)
    empty = Mix(manifest.fingerprint, request.split, table.seq_len, table.seed, cuts, sources, ())
    start = empty if request.after is None else _with_sources(request.after, sources)
    drawn = [0] * len(sources) if request.after is None else start.order().prefix(len(start)).tolist()
    quotas = list(start.stages)
    notes: list[str] = []
    for stage in request.table.all_stages:
        given, changed = stage_quotas(stage, request.table, sources, drawn)
        drawn = [before + quota for before, quota in zip(drawn, given, strict=True)]
        quotas.append(tuple(given))
        notes += changed
    taken = (*start.taken, *map(sum, quotas[len(start.stages) :])) if start.taken else ()
    mix = possible(replace(start, stages=tuple(quotas), taken=taken))
    return mix, _report(manifest, request, mix, notes, packings)


def _with_sources(mix: Mix, sources: tuple[MixSource, ...]) -> Mix:
    """The same positions of a mix that has more sources, which stand behind its own."""
    none = (0,) * (len(sources) - len(mix.sources))
    return replace(mix, sources=sources, stages=tuple((*quotas, *none) for quotas in mix.stages))


def _given(mix: Mix) -> list[list[int]]:
    """Sequences that each source gives to each stage."""
    order = mix.order()
    counts = [order.prefix(end).tolist() for end in accumulate(mix.lengths, initial=0)]
    return [[b - a for a, b in zip(*ends, strict=True)] for ends in pairwise(counts)]


def what_if(manifest: Manifest, request: MixRequest, folder: Path | None = None) -> list[WhatIf]:
    """The last stage with a quarter, half, twice and four times its budget, one epoch, and the most that fits."""
    mix, _ = plan_mix(manifest, request, folder)
    last = request.table.all_stages[-1]
    before = mix.order().prefix(len(mix) - mix.lengths[-1]).tolist()
    weights = shares_of(last, mix.sources, mix.seq_len)
    room = [
        int(request.table.max_epochs * source.sequences) - drawn
        for source, drawn in zip(mix.sources, before, strict=True)
    ]
    planned = sum(mix.stages[-1])
    lengths = {planned * 2**power // 4 for power in range(5)}
    lengths |= {one_epoch(weights, mix.sources, before), most_that_fits(weights, room)}
    learned = learned_of(weights, mix.sources, mix.seq_len)
    return [
        _what_if(mix, before, last.model_copy(update={"tokens": math.ceil(length * learned)}), request.table)
        for length in sorted(lengths - {0})
    ]


def _what_if(mix: Mix, before: Sequence[int], stage: StageTable, table: MixTable) -> WhatIf:
    anything = table.model_copy(update={"max_epochs": Fraction(10**9), "cap": False})
    problem = None
    try:
        quotas, notes = stage_quotas(stage, table, mix.sources, before)
    except UsageError as error:
        problem = str(error)
        quotas, notes = stage_quotas(stage, anything, mix.sources, before)
    epochs = {
        source.name: (drawn + quota) / source.sequences if source.sequences else 0.0
        for source, drawn, quota in zip(mix.sources, before, quotas, strict=True)
    }
    tokens = sum(
        quota * source.learned(mix.seq_len) for quota, source in zip(quotas, mix.sources, strict=True)
    )
    return WhatIf(int(tokens), epochs, bool(notes), problem)


def _sources(
    manifest: Manifest, request: MixRequest, folder: Path
) -> tuple[tuple[MixSource, ...], dict[str, Packing]]:
    """The sources any stage names, sorted, behind those of the mix before; all of them when a stage is natural. And how
    those that are packed are."""
    names: set[str] = set()
    for stage in request.table.all_stages:
        names |= set(manifest.sources if stage.weights == "natural" else stage.weights)
    first = [source.name for source in request.after.sources] if request.after else []
    named = [*first, *sorted(names.difference(first))]
    found = list(mix_sources(manifest, request.split, request.table.seq_len, named, _cuts(request)))
    before = {source.name: source for source in request.after.sources} if request.after else {}
    packs = request.after.packs if request.after else request.table.pack == "best-fit"
    packings = {}
    for number, source in enumerate(found):
        shards = manifest.of(source.name, request.split)
        if source.name in before:
            if not before[source.name].packed:
                continue
            digest = before[source.name].packed[0]
            packings[source.name] = open_packing(folder, digest, shards, request.table.seq_len)[1]
        elif packs and source.tokens > 1:
            digest, packings[source.name] = pack(folder, shards, request.table.seq_len)
        else:
            continue
        about = packings[source.name]
        found[number] = replace(source, sequences=about.bins, packed=(digest,), targets=about.targets)
    return tuple(found), packings


def _cuts(request: MixRequest) -> str:
    """Those of the mix before; else each epoch is cut anew, but for validation, which reads its texts once."""
    return request.after.cuts if request.after else "epoch" if request.split == "train" else "fixed"


def _report(
    manifest: Manifest, request: MixRequest, mix: Mix, notes: list[str], packings: dict[str, Packing]
) -> MixReport:
    names = [source.name for source in mix.sources]
    learned = [source.learned(mix.seq_len) for source in mix.sources]
    given = _given(mix)
    asked = [shares_of(stage, mix.sources, mix.seq_len) for stage in request.table.all_stages]
    kept = mix.stages[: -len(asked)]  # what was asked for of the mix before is not known any more
    stages = []
    for weights, quotas, counts in zip(
        [*([Fraction(quota, max(sum(quotas), 1)) for quota in quotas] for quotas in kept), *asked],
        mix.stages,
        given,
        strict=True,
    ):
        tokens = [count * each for count, each in zip(counts, learned, strict=True)]
        stages.append(
            StageReport(
                tokens=int(sum(tokens)),
                weights=dict(zip(names, map(str, weights), strict=True)),
                shares={
                    name: float(part / max(sum(tokens), 1)) for name, part in zip(names, tokens, strict=True)
                },
                prefix_bound_tokens={
                    name: prefix_bound(quotas, quota) * float(each)
                    for name, quota, each in zip(names, quotas, learned, strict=True)
                },
            )
        )
    sources = {}
    for source, each, *drawn in zip(mix.sources, learned, *given, strict=True):
        sequences, packing = sum(drawn), packings.get(source.name)
        sources[source.name] = SourceReport(
            sequences=sequences,
            tokens=int(sequences * each),
            epochs=sequences / source.sequences if source.sequences else 0.0,
            repeated_tokens=int(max(sequences - source.sequences, 0) * each),
            unused_tokens=int(max(source.sequences - sequences, 0) * each),
            tail_tokens=0 if packing else source.tokens - source.sequences * mix.seq_len,
            packed=None if packing is None else _packed_report(packing),
        )
    return MixReport(
        sequences=len(mix),
        tokens=sum(stage.tokens for stage in stages),
        stages=tuple(stages),
        sources=sources,
        left_out={
            name: sum(shard.tokens for shard in manifest.of(name, mix.split))
            for name in manifest.sources
            if name not in names
        },
        notes=tuple(notes),
        continued_at=len(request.after) if request.after else None,
        failed=manifest.failed,
    )


def show_mix(
    manifest: Manifest, request: MixRequest, report: MixReport, console: Console, folder: Path | None = None
) -> None:
    """Show the stages, the sources, what is left out or was changed, and the what-if table."""
    show_stages(manifest, report, console)
    columns = ("source", "sequences", "tokens", "epochs", "repeated tokens", "unused tokens", "tail")
    rows = [
        (
            name,
            f"{part.sequences:,}",
            f"{part.tokens:,}",
            f"{part.epochs:.4f}",
            *(f"{tokens:,}" for tokens in (part.repeated_tokens, part.unused_tokens, part.tail_tokens)),
        )
        for name, part in report.sources.items()
    ]
    console.show(table(f"{report.tokens:,} tokens in sequences of {request.table.seq_len}", columns, rows))
    _show_what_if(manifest, request, report, console, folder)


def _packed_report(packing: Packing) -> PackedReport:
    return PackedReport(packing.documents, packing.cut, packing.padding, round(packing.spread, 3))


def _packed_words(name: str, source: SourceReport, packed: PackedReport) -> str:
    """What packing did to a source. Over a random half of an epoch the sum of its sequences is farthest from exact."""
    sequences = round(source.sequences / source.epochs) if source.epochs else 0
    held = source.tokens / max(source.sequences, 1) * sequences
    padding = packed.padding_tokens / max(packed.padding_tokens + held + sequences, 1)
    spread = packed.spread_tokens * math.sqrt(sequences) / 2
    return (
        f"{name} is packed: {packed.documents:,} documents in {sequences:,} sequences, {packed.cut_documents:,} longer "
        f"ones cut, padding {padding:.3%}; its learned tokens are exact at the end of each epoch, inside of one within "
        f"some {math.ceil(3 * spread):,} more"
    )


def show_stages(manifest: Manifest, report: MixReport, console: Console) -> None:
    """A line for each stage, and one for all that is left out or was changed."""
    for number, stage in enumerate(report.stages, 1):
        largest = sorted(stage.shares, key=lambda name: -stage.shares[name])[:SHOWN]
        named = [f"{name} {share:.4%}" for name, share in stage.shares.items() if name in largest]
        shares = listed(named, SHOWN, count=len(stage.shares))
        bound = max(stage.prefix_bound_tokens.values())
        what = f"stage {number}" if len(report.stages) > 1 else "mix"
        console.notice(
            f"{what}: {stage.tokens:,} tokens: {shares}; at every point within {math.ceil(bound):,} tokens of it"
        )
    for name, source in report.sources.items():
        if source.packed is not None:
            console.notice(_packed_words(name, source, source.packed))
    if at := report.continued_at:
        console.notice(
            f"the first {at:,} sequences are those of the mix before, and its sources go on from there"
        )
    for name, tokens in report.left_out.items():
        console.notice(f"not in the mix: {name}, {tokens:,} tokens")
    for sentence in [*report.notes, *failures(manifest)]:
        console.notice(sentence)


def _show_what_if(
    manifest: Manifest, request: MixRequest, report: MixReport, console: Console, folder: Path | None
) -> None:
    names = list(report.sources)
    lines = what_if(manifest, request, folder)
    if len(names) > SHOWN:  # a column each would fit no terminal
        names = sorted(names, key=lambda name: -lines[-1].epochs[name])[:SHOWN]
    rows = [
        (
            f"{line.tokens:,}",
            *(f"{line.epochs[name]:.2f}" for name in names),
            "no" if line.problem else "capped" if line.capped else "yes",
        )
        for line in lines
    ]
    subject = "the last stage" if len(report.stages) > 1 else "the mix"
    console.show(
        table(f"if {subject} had", ("tokens", *(f"epochs of {name}" for name in names), "fits"), rows)
    )
    if problems := [line.problem for line in lines if line.problem]:
        console.notice(problems[0])
