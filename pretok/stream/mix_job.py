"""The mix job: shards and wishes -> mix.json, its report, and what other budgets would mean.

Input: a shards folder and a `MixRequest`. Output: mix.json (see `stream.mix_file`) and the `MixReport` kept in it.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import accumulate, pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import numpy as np

from pretok.base.console import Console, table
from pretok.base.errors import MismatchError, UsageError
from pretok.base.failures import Failure
from pretok.base.lock import hold
from pretok.base.records import Count, Record, replace
from pretok.base.units import listed
from pretok.shards.manifest import Manifest, Shard, load_manifest
from pretok.shards.unfinished import failures
from pretok.stream import View
from pretok.stream.members import DocumentStarts, Members
from pretok.stream.mix_file import (
    Mix,
    MixSource,
    check_learn,
    learn_of,
    load_mix,
    mix_sources,
    possible,
    sequences,
    write_mix,
)
from pretok.stream.order import prefix_bound
from pretok.stream.pack import pack
from pretok.stream.packed import Packing, packings_of, together
from pretok.stream.quota import (
    as_counted,
    learned_of,
    most_that_fits,
    one_epoch,
    shares_of,
    stage_quotas,
    weighed,
)
from pretok.stream.side_file import FOLDER, SideFile, path_of

if TYPE_CHECKING:
    from pretok.config import MixTable, StageTable

SHOWN = 6
"""Sources that a line or the columns of a table name, the largest or most often read; each has a row of its own."""


@dataclass(frozen=True, slots=True)
class Divided:
    """Sources by their classes: entries: of each source its classes and its rest; reports: of each class; notes: what
    to tell of them."""

    entries: dict[str, tuple[MixSource, ...]]
    reports: dict[str, ClassReport]
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class MixRequest:
    """What a mix is asked to be: a [mix] table, of one split. `after`: its stages follow these positions
    (`stream.continued`), which have its sequence length, seed and split; `beside`: the folder where the mix of these
    is, to look at what would follow where nothing is written. `learn`: kinds of tokens that are learned of sources of
    conversations, by their names; of the others what an assistant writes."""

    table: MixTable
    split: str = "train"
    after: Mix | None = None
    beside: Path | None = None
    learn: Mapping[str, Collection[str]] = field(default_factory=dict)
    made: dict[tuple[str, Path | None], Divided] = field(default_factory=dict, compare=False)
    """Shards and folder -> the classes there: they are evaluated once."""
    packings: dict[tuple[str, str], tuple[tuple[str, ...], Packing]] = field(
        default_factory=dict, compare=False
    )
    """Shards and source -> its packing indexes, and what they say, where no folder keeps them."""
    counted: dict[tuple[str, MixSource], tuple[int, float]] = field(default_factory=dict, compare=False)
    """Shards and source -> learned tokens and their spread: they are counted once."""


@dataclass(frozen=True, slots=True)
class WhatIf:
    """One line of the table: the last stage with another budget, and how often each source is read by its end.

    capped: some source is held at its limit; problem: why it cannot be, or None.
    """

    tokens: int
    epochs: dict[str, float]
    capped: bool
    problem: str | None


class StageReport(Record, frozen=True, omit_defaults=True):
    """A stage by source. weights: as asked for, exact fractions; shares: as given; prefix_bound_tokens: how far any
    prefix of it may be from them. These three are of learned tokens where `count` is so. learned_tokens: None where
    all are learned."""

    tokens: Count
    weights: dict[str, str]
    shares: dict[str, float]
    prefix_bound_tokens: dict[str, float]
    learned_tokens: Count | None = None


class ClassReport(Record, frozen=True, omit_defaults=True):
    """What a class holds. predicate: as it was asked for; of a class of the mix before what was asked of the documents
    that came since, None where none came."""

    source: str
    documents: Count
    tokens: Count
    predicate: str | None = None


class PackedReport(Record, frozen=True):
    """How the documents of a source were packed. tokens, sequences: of an epoch; cut_documents: those longer than a
    sequence; padding_tokens: what an epoch has of them; spread_tokens: standard deviation of the learned tokens of a
    sequence, whose sum is exact at the end of each epoch."""

    documents: Count
    tokens: Count
    sequences: Count
    cut_documents: Count
    padding_tokens: Count
    spread_tokens: float


class LearnedReport(Record, frozen=True):
    """What is learned of conversations. tokens: of all that the mix takes; share: of its tokens; spread_tokens:
    standard deviation of what a sequence learns, whose sum is right at the end of each epoch."""

    kinds: tuple[str, ...]
    tokens: Count
    share: float
    spread_tokens: float


class SourceReport(Record, frozen=True, omit_defaults=True):
    """What a mix takes of a source, in tokens that are predicted; of one that was appended to, epochs, repeated and
    unused are counted as if it had always held what it holds now. unused_tokens: whole sequences not drawn even once;
    tail_tokens: what an epoch leaves before its first and behind its last sequence, other tokens in each where epochs
    are cut anew; packed: None where it is cut; learned: None where all of it is."""

    sequences: Count
    tokens: Count
    epochs: float
    repeated_tokens: Count
    unused_tokens: Count
    tail_tokens: Count
    packed: PackedReport | None = None
    learned: LearnedReport | None = None


class MixReport(Record, frozen=True, kw_only=True, omit_defaults=True):
    """What follows from a mix. left_out: tokens of sources without a place in it; notes: what --cap changed;
    learned_tokens: None where all are learned; continued_at: sequences that are those of the mix it goes on with;
    classes: those it has; failed: inputs that the shards lack."""

    sequences: Count
    tokens: Count
    stages: tuple[StageReport, ...]
    sources: dict[str, SourceReport]
    left_out: dict[str, Count]
    notes: tuple[str, ...]
    learned_tokens: Count | None = None
    continued_at: Count | None = None
    classes: dict[str, ClassReport] | None = None
    failed: tuple[Failure, ...]


def run_mix(shards: Path, out: Path, request: MixRequest) -> MixReport:
    """Plan a mix, write it to `out` and return its report. An equal file is left as it is.

    Raises UsageError (see `plan_mix`; `out` cannot be written), IntegrityError when `out` is no mix and MismatchError
    when it is another one, which a run may depend on.
    """
    refuse_another_mix(out, request)
    now, folder = load_manifest(shards).sized(), out.parent / FOLDER
    # A mix that was made before the shards grew stays what was asked for.
    standing = out.exists() and request.after is None
    manifest = (now.as_of(load_mix(out).manifest) if standing else None) or now
    mix, report = plan_mix(manifest, request, folder)
    for digest in (digest for source in mix.sources for digest in (*source.members, *source.packed)):
        SideFile(folder, digest)  # of a mix that is continued they must be there
    if manifest is not now:
        told = f"{out} reads the shards as they were before they grew; pretok mix --continue {out} reads the rest too"
        report = replace(report, notes=(*report.notes, told))
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
    for source in old.sources:
        learn = request.learn.get(source.held_in, source.learn)
        if source.learn and set(learn) != set(source.learn):
            raise _another(
                out, old, f"of {source.held_in} it learns {', '.join(source.learn)}, not {', '.join(learn)}"
            )
    for length, stage in zip(old.lengths, request.table.all_stages, strict=True):
        # How long it is depends on the shards.
        if old.packs or request.table.count == "learned" or stage.tokens == "all":
            continue
        if length != (asked := stage.tokens // request.table.seq_len):
            raise _another(out, old, f"a stage of it has {length:,} sequences, not {asked:,}")


def _another(out: Path, old: Mix, difference: str) -> MismatchError:
    return MismatchError(
        f"{out} holds another mix (fingerprint {old.fingerprint}; {difference}): delete it if no run needs it, or "
        "choose another name"
    )


def plan_mix(manifest: Manifest, request: MixRequest, folder: Path | None = None) -> tuple[Mix, MixReport]:
    """The mix and its report. folder: where side files go, None: nowhere. Raises UsageError for unknown sources, or
    budgets and weights that do not fit."""
    sources, divided, packings, spreads = _weighable(manifest, request, folder)
    counted, cuts = as_counted(request.table, sources), _cuts(request)
    table = weighed(request.table, counted)
    empty = Mix(manifest.fingerprint, request.split, table.seq_len, table.seed, cuts, sources, ())
    start = empty if request.after is None else _with_sources(request.after, sources)
    drawn = [0] * len(sources) if request.after is None else start.order().spent(len(start))
    quotas = list(start.stages)
    notes = list(divided.notes)
    for stage in table.all_stages:
        given, changed = stage_quotas(stage, table, counted, drawn)
        drawn = [before + quota for before, quota in zip(drawn, given, strict=True)]
        quotas.append(tuple(given))
        notes += changed
    taken = (*start.taken, *map(sum, quotas[len(start.stages) :])) if start.taken else ()
    mix = possible(replace(start, stages=tuple(quotas), taken=taken))
    report = _report(manifest, request, table, mix, notes, packings, spreads)
    return mix, replace(report, classes=divided.reports or None)


def _weighable(
    manifest: Manifest, request: MixRequest, folder: Path | None
) -> tuple[tuple[MixSource, ...], Divided, dict[str, Packing], dict[str, float]]:
    """The entries of a mix, how they were divided and packed, and the spread of what is learned of conversations;
    without a folder by side files that do not stay."""
    with ExitStack() as held:
        standing = {digest for one in _before(request).values() for digest in (*one.members, *one.packed)}
        if folder is None and (standing or request.table.classes or _packs(request)):
            where = Path(held.enter_context(TemporaryDirectory(dir=manifest.folder.parent))) / FOLDER
            where.mkdir()
            if standing and request.beside is None:
                raise UsageError(
                    "the mix before has classes or is packed, by side files beside it: say with --out where the mix "
                    "that goes on goes, beside it"
                )
            for digest in standing:
                beside = SideFile((request.beside or Path()).absolute() / FOLDER, digest)
                path_of(where, digest).symlink_to(beside.path)
        else:
            where = folder or Path()
        divided = _divided(manifest, request, where, folder)
        sources = _sources(manifest, request, divided)
        packed, packings = _packed(manifest, request, where, folder, sources)
        entries, spreads = _learning(manifest, request, where, packed)
    return entries, divided, packings, spreads


def _learn(manifest: Manifest, request: MixRequest) -> dict[str, Collection[str]]:
    """The kinds that are learned of each source that was asked for, or is in the mix before. Raises UsageError."""
    check_learn(manifest, request.learn)
    learn = dict(request.learn)
    for entry in _before(request).values():
        if set(learn.setdefault(entry.held_in, entry.learn)) != set(entry.learn):
            kept = ", ".join(entry.learn) or "all of it"
            raise UsageError(
                f"the mix before learns {kept} of {entry.held_in}, and a mix that goes on keeps what it learns: leave "
                "--learn out, or make a mix of its own"
            )
    return learn


def _learning(
    manifest: Manifest, request: MixRequest, folder: Path, sources: Sequence[MixSource]
) -> tuple[tuple[MixSource, ...], dict[str, float]]:
    """The same where those of conversations say what is learned of them; and how much the sequences of each spread."""
    learn = _learn(manifest, request)
    entries = tuple(replace(one, learn=learn_of(manifest, one.held_in, learn)) for one in sources)
    if not any(entry.learn and entry.sequences for entry in entries):
        return entries, {}
    keys = [(manifest.fingerprint, replace(entry, learned_tokens=0)) for entry in entries]
    if any(entry.learn and key not in request.counted for entry, key in zip(entries, keys, strict=True)):
        table, bare = request.table, tuple(entry for _, entry in keys)
        quotas = tuple(entry.sequences for entry in bare)
        mix = Mix(manifest.fingerprint, request.split, table.seq_len, 0, _cuts(request), bare, (quotas,))
        view = View(manifest, mix, folder=folder.parent)
        for key, entry in zip(keys, bare, strict=True):
            if entry.learn:
                request.counted[key] = view.learned_tokens(entry.name)
    found = [request.counted.get(key, (0, 0.0)) for key in keys]
    spreads = {entry.name: spread for entry, (_, spread) in zip(entries, found, strict=True) if entry.learn}
    return tuple(
        replace(entry, learned_tokens=tokens) for entry, (tokens, _) in zip(entries, found, strict=True)
    ), spreads


def _before(request: MixRequest) -> dict[str, MixSource]:
    """The entries of the mix before."""
    return {entry.name: entry for entry in request.after.sources} if request.after else {}


def _divided(manifest: Manifest, request: MixRequest, where: Path, folder: Path | None) -> Divided:
    """The classes that the mix asks for and does not have from the mix before, made in `where`. Raises UsageError."""
    key = manifest.fingerprint, folder
    divided = request.after is not None and any(source.members for source in request.after.sources)
    if not request.table.classes and not divided:
        return Divided({}, {}, ())
    if key not in request.made:
        with hold(where, "mix"):
            request.made[key] = _divide(manifest, request, where)
    return request.made[key]


def _packed(
    manifest: Manifest,
    request: MixRequest,
    where: Path,
    folder: Path | None,
    sources: Sequence[MixSource],
) -> tuple[tuple[MixSource, ...], dict[str, Packing]]:
    """The same where those that are packed say how; and what their indexes say. Of a source that a mix goes on with
    only what was appended is packed. Raises UsageError."""
    before, packs = _before(request), _packs(request)
    found, packings = [], {}
    for source in sources:
        old = before.get(source.name)
        packed = old.packed if old else ()
        if not packed and (not packs or source.tokens < 2 or (old and old.sequences)):
            found.append(source)
            continue
        key = manifest.fingerprint, source.name
        made = request.packings.get(key) if folder is None else None
        made = made or _indexes(manifest, request, where, source, packed)
        if folder is None:
            request.packings[key] = made
        packed, about = made
        packings[source.name] = about
        tokens, bins, targets = about.tokens, about.bins, about.targets
        found.append(replace(source, tokens=tokens, sequences=bins, packed=packed, targets=targets))
    return tuple(found), packings


def _packs(request: MixRequest) -> bool:
    return request.after.packs if request.after else request.table.pack == "best-fit"


def _indexes(
    manifest: Manifest, request: MixRequest, folder: Path, source: MixSource, packed: tuple[str, ...]
) -> tuple[tuple[str, ...], Packing]:
    """The packing indexes of an entry, and what they say together; `packed`: those of its first shards."""
    shards, seq_len = manifest.of(source.held_in, request.split), request.table.seq_len
    about = list(packings_of(folder, packed, shards, seq_len))
    if rest := shards[(seen := sum(one.shards for one in about)) :]:
        digest, new = pack(folder, rest, seq_len, _members_of(manifest, folder, source, shards, seen))
        packed, about = (*packed, digest), [*about, new]
    return packed, together(about)


def _members_of(
    manifest: Manifest, folder: Path, source: MixSource, shards: Sequence[Shard], skip: int
) -> list[Members] | None:
    """Those of a class in its shards behind the first `skip`; None for a whole source."""
    if not source.members:
        return None
    starts = DocumentStarts(shards, np.dtype(manifest.tokenizer.dtype).newbyteorder("<"))
    parts, at = [], 0
    for digest in source.members:
        parts.append((at, Members(folder, digest, shards[at:], at, starts)))
        at += parts[-1][1].shards
    return [part for at, part in parts if at >= skip]


def _divide(manifest: Manifest, request: MixRequest, folder: Path) -> Divided:
    from pretok.stream.classes import divide, parse_class

    table, cuts = request.table, _cuts(request)
    before = {entry.name: entry for entry in request.after.sources} if request.after else {}
    wanted: dict[str, dict[str, str]] = {}
    for name, text in table.classes.items():
        asked = parse_class(name, text)
        if asked.source not in manifest.sources or name in manifest.sources:
            wrong = name if name in manifest.sources else asked.source
            told = "is a source itself: give the class another name" if wrong == name else "is no source"
            raise UsageError(f"class {name}: {wrong} {told}; there are {', '.join(manifest.sources)}")
        if name in before:
            if before[name].of != asked.source:
                raise UsageError(
                    f"class {name} is of {before[name].of} in the mix before, not of {asked.source}"
                )
            continue  # an old document keeps its class
        if asked.source in {entry.held_in for entry in before.values()}:
            raise UsageError(
                f"class {name}: the mix before reads {asked.source} without it, and a mix that goes on keeps what it "
                "calls so"
            )
        wanted.setdefault(asked.source, {})[name] = asked.predicate
    entries = _grown(manifest, request, before, folder)
    reports, notes = _standing(request, before, entries, folder), []
    for source, predicates in wanted.items():
        made = divide(
            manifest, request.split, source, predicates, folder, table.seq_len, cuts,
            overlap=table.overlap, rest=table.rest,
        )  # fmt: skip
        entries[source] = made.entries
        for entry in made.entries[:-1]:
            reports[entry.name] = ClassReport(
                source, made.documents[entry.name], entry.tokens, predicates[entry.name]
            )
        if made.overlap:
            notes.append(f"classes of {source} overlap: {made.overlap:,} tokens are in one more")
        notes += [
            f"{name} holds less than one sequence: {table.rest} takes its documents" for name in made.folded
        ]
    return Divided(entries, reports, tuple(notes))


def _grown(
    manifest: Manifest, request: MixRequest, before: Mapping[str, MixSource], folder: Path
) -> dict[str, tuple[MixSource, ...]]:
    """The parts of each source that was appended to since it was divided, with what belongs to them of that."""
    from pretok.stream.classes import divide, parse_class

    table, cuts = request.table, _cuts(request)
    grown = {}
    for source in dict.fromkeys(entry.held_in for entry in before.values() if entry.members):
        parts = [entry for entry in before.values() if entry.held_in == source]
        files = [SideFile(folder, digest) for digest in parts[0].members]
        skip = sum(int(file.about["shards"]) for file in files)
        if skip == len(manifest.of(source, request.split)):
            continue
        classes = [entry.name for entry in parts if entry.name != source]
        if missing := [name for name in classes if name not in table.classes]:
            raise UsageError(
                f"{source} was appended to since the mix before: say again which documents are in "
                f"{', '.join(missing)} (--class '{missing[0]}={source} where ...')"
            )
        made = divide(
            manifest, request.split, source,
            {name: parse_class(name, table.classes[name]).predicate for name in classes},
            folder, table.seq_len, cuts, overlap=table.overlap, rest=table.rest, skip=skip,
        )  # fmt: skip
        new = {entry.name: entry for entry in made.entries}
        if unread := sum(entry.tokens for name, entry in new.items() if name not in before):
            raise UsageError(
                f"{unread:,} tokens that were appended to {source} are in none of its classes, and the mix before has "
                f"no rest of it: let a condition take them ({', '.join(classes)})"
            )
        grown[source] = tuple(_longer(entry, new[entry.name], table.seq_len, cuts) for entry in parts)
    return grown


def _standing(
    request: MixRequest,
    before: Mapping[str, MixSource],
    grown: Mapping[str, tuple[MixSource, ...]],
    folder: Path,
) -> dict[str, ClassReport]:
    """Of each class of the mix before, as it is by now."""
    from pretok.stream.classes import parse_class

    now = {**before, **{entry.name: entry for entries in grown.values() for entry in entries}}
    reports = {}
    for name, entry in now.items():
        if entry.members and entry.of != name:
            documents = sum(int(SideFile(folder, digest).about["members"]) for digest in entry.members)
            asked = request.table.classes[name] if entry.held_in in grown else None
            predicate = asked and parse_class(name, asked).predicate
            reports[name] = ClassReport(entry.held_in, documents, entry.tokens, predicate)
    return reports


def _longer(entry: MixSource, more: MixSource, seq_len: int, cuts: str) -> MixSource:
    tokens = entry.tokens + more.tokens
    return replace(
        entry, tokens=tokens, sequences=sequences(tokens, seq_len, cuts), members=entry.members + more.members
    )


def _with_sources(mix: Mix, sources: tuple[MixSource, ...]) -> Mix:
    """The same positions of a mix that has more sources, which stand behind its own."""
    none = (0,) * (len(sources) - len(mix.sources))
    return replace(mix, sources=sources, stages=tuple((*quotas, *none) for quotas in mix.stages))


def what_if(manifest: Manifest, request: MixRequest, folder: Path | None = None) -> list[WhatIf]:
    """The last stage with a quarter, half, twice and four times its budget, one epoch, and the most that fits."""
    mix, _ = plan_mix(manifest, request, folder)
    table = weighed(request.table, as_counted(request.table, mix.sources))
    last = table.all_stages[-1]
    before = mix.order().spent(len(mix) - mix.lengths[-1])
    sources = as_counted(table, mix.sources)
    weights = shares_of(last, sources, mix.seq_len)
    room = [
        int(table.max_epochs * source.sequences) - drawn
        for source, drawn in zip(mix.sources, before, strict=True)
    ]
    planned = sum(mix.stages[-1])
    lengths = {planned * 2**power // 4 for power in range(5)}
    lengths |= {one_epoch(weights, mix.sources, before), most_that_fits(weights, room)}
    learned = learned_of(weights, sources, mix.seq_len)
    return [
        _what_if(mix, before, last.model_copy(update={"tokens": math.ceil(length * learned)}), table)
        for length in sorted(lengths - {0})
    ]


def _what_if(mix: Mix, before: Sequence[int], stage: StageTable, table: MixTable) -> WhatIf:
    anything = table.model_copy(update={"max_epochs": Fraction(10**9), "cap": False})
    problem, sources = None, as_counted(table, mix.sources)
    try:
        quotas, notes = stage_quotas(stage, table, sources, before)
    except UsageError as error:
        problem = str(error)
        quotas, notes = stage_quotas(stage, anything, sources, before)
    epochs = {
        source.name: (drawn + quota) / source.sequences if source.sequences else 0.0
        for source, drawn, quota in zip(mix.sources, before, quotas, strict=True)
    }
    tokens = sum(quota * source.learned(mix.seq_len) for quota, source in zip(quotas, sources, strict=True))
    return WhatIf(int(tokens), epochs, bool(notes), problem)


def _sources(manifest: Manifest, request: MixRequest, divided: Divided) -> tuple[MixSource, ...]:
    """The sources and classes any stage names, sorted, behind those of the mix before; all of them when a stage is
    natural. All parts of a source stand in a mix that reads one, so that a mix that goes on may read the others."""
    before = {entry.name: entry for entry in request.after.sources} if request.after else {}
    made = {entry.name: entry for entries in divided.entries.values() for entry in entries}
    parts = {name: entry for name, entry in before.items() if entry.members} | made
    in_parts = {entry.held_in for entry in parts.values()}
    # A rest without a document is none, unless it is asked for.
    held = {name for name, entry in parts.items() if entry.tokens}
    names: set[str] = set()
    for stage in request.table.all_stages:
        natural = held.union(manifest.sources.keys() - in_parts)
        names |= natural if stage.weights == "natural" else stage.weights.keys()
    if unknown := sorted(names - parts.keys() - (manifest.sources.keys() - in_parts)):
        known = ", ".join(sorted({*parts, *manifest.sources} - (in_parts - parts.keys())))
        raise UsageError(f"{manifest.folder} has no source or class {unknown[0]!r}; there are {known}")
    read = {parts[name].held_in for name in names & parts.keys()}
    names |= {name for name in held if parts[name].held_in in read}
    named = [*before, *sorted(names - before.keys())]
    plain = [name for name in named if name not in parts]
    found = mix_sources(manifest, request.split, request.table.seq_len, plain, _cuts(request), {})
    entries = parts | {entry.name: entry for entry in found}
    return tuple(entries[name] for name in named)


def _cuts(request: MixRequest) -> str:
    """Those of the mix before; else each epoch is cut anew, but for validation, which reads its texts once."""
    return request.after.cuts if request.after else "epoch" if request.split == "train" else "fixed"


def _report(
    manifest: Manifest,
    request: MixRequest,
    table: MixTable,
    mix: Mix,
    notes: list[str],
    packings: Mapping[str, Packing],
    spreads: Mapping[str, float],
) -> MixReport:
    names = [source.name for source in mix.sources]
    predicted = [source.predicted(mix.seq_len) for source in mix.sources]
    sized = [source.learned(mix.seq_len) for source in as_counted(table, mix.sources)]
    asked = [shares_of(stage, as_counted(table, mix.sources), mix.seq_len) for stage in table.all_stages]
    ends = list(accumulate(mix.lengths, initial=0))
    read, known = ([by(end) for end in ends] for by in (mix.predicted_by, mix.learned_by))
    kept = mix.stages[: -len(asked)]  # what was asked for of the mix before is not known any more
    stages = []
    for weights, quotas, tokens, learned in zip(
        [*([Fraction(quota, max(sum(quotas), 1)) for quota in quotas] for quotas in kept), *asked],
        mix.stages,
        *([[b - a for a, b in zip(*pair, strict=True)] for pair in pairwise(each)] for each in (read, known)),
        strict=True,
    ):
        counted = learned if table.count == "learned" else tokens
        stages.append(
            StageReport(
                tokens=int(sum(tokens)),
                learned_tokens=int(sum(learned)) if spreads else None,
                weights=dict(zip(names, map(str, weights), strict=True)),
                shares={
                    name: float(part / max(sum(counted), 1))
                    for name, part in zip(names, counted, strict=True)
                },
                prefix_bound_tokens={
                    name: prefix_bound(quotas, quota) * float(each)
                    for name, quota, each in zip(names, quotas, sized, strict=True)
                },
            )
        )
    sources = {}
    order = mix.order()
    drawn, spends = order.prefix(len(mix)).tolist(), order.spent(len(mix))
    for source, each, taken, total, spent, count in zip(
        mix.sources, predicted, read[-1], known[-1], spends, drawn, strict=True
    ):
        packing = packings.get(source.name)
        sources[source.name] = SourceReport(
            sequences=count,
            tokens=int(taken),
            epochs=spent / source.sequences if source.sequences else 0.0,
            repeated_tokens=int(max(spent - source.sequences, 0) * each),
            unused_tokens=int(max(source.sequences - spent, 0) * each),
            tail_tokens=0 if packing else source.tokens - source.sequences * mix.seq_len,
            packed=_packed_report(packing) if packing else None,
            learned=LearnedReport(
                source.learn,
                int(total),
                round(float(total / max(taken, 1)), 6),
                round(spreads.get(source.name, 0.0), 3),
            )
            if source.learn
            else None,
        )
    return MixReport(
        sequences=len(mix),
        tokens=sum(stage.tokens for stage in stages),
        stages=tuple(stages),
        sources=sources,
        left_out={
            name: sum(shard.tokens for shard in manifest.of(name, mix.split))
            for name in manifest.sources
            if name not in {source.held_in for source in mix.sources}
        },
        notes=tuple(notes),
        learned_tokens=sum(stage.learned_tokens or 0 for stage in stages) if spreads else None,
        continued_at=len(request.after) if request.after else None,
        failed=manifest.failed,
    )


def show_mix(
    manifest: Manifest, request: MixRequest, report: MixReport, console: Console, folder: Path | None = None
) -> None:
    """Show the stages, the sources, what is left out or was changed, and the what-if table. folder: see `plan_mix`."""
    show_stages(manifest, report, console, request.table.count == "learned")
    columns: tuple[str, ...] = (
        "source",
        "sequences",
        "tokens",
        "epochs",
        "repeated tokens",
        "unused tokens",
        "tail",
    )
    masked = report.learned_tokens is not None
    rows = [
        (
            name,
            f"{part.sequences:,}",
            f"{part.tokens:,}",
            f"{part.epochs:.4f}",
            *(f"{tokens:,}" for tokens in (part.repeated_tokens, part.unused_tokens, part.tail_tokens)),
            *([f"{part.learned.tokens if part.learned else part.tokens:,}"] if masked else []),
        )
        for name, part in report.sources.items()
    ]
    columns += ("learned",) if masked else ()
    console.show(table(f"{report.tokens:,} tokens in sequences of {request.table.seq_len}", columns, rows))
    _show_what_if(manifest, request, report, console, folder)


def _packed_report(packing: Packing) -> PackedReport:
    return PackedReport(
        packing.documents,
        packing.tokens,
        packing.bins,
        packing.cut,
        packing.padding,
        round(packing.spread, 3),
    )


def _packed_words(name: str, packed: PackedReport, learned: bool) -> str:
    """What packing did to a source. Over a random half of an epoch the sum of its sequences is farthest from exact."""
    padding = packed.padding_tokens / max(packed.padding_tokens + packed.tokens, 1)
    spread = packed.spread_tokens * math.sqrt(packed.sequences) / 2
    return (
        f"{name} is packed: {packed.documents:,} documents in {packed.sequences:,} sequences, {packed.cut_documents:,} "
        f"longer ones cut, padding {padding:.3%}; its {'learned ' if learned else ''}tokens are exact at the end of "
        f"each epoch, inside of one within some {math.ceil(3 * spread):,} more"
    )


def _learned_words(name: str, source: SourceReport, learned: LearnedReport, in_epoch: float) -> str:
    """What is learned of a source. As for packing, half an epoch is farthest from exact."""
    spread = math.ceil(3 * learned.spread_tokens * math.sqrt(in_epoch) / 2)
    return (
        f"learned of {name}: {', '.join(learned.kinds)}, {learned.tokens:,} of {source.tokens:,} tokens "
        f"({learned.share:.1%}); right at the end of each epoch, inside of one within some {spread:,} more"
    )


def show_stages(manifest: Manifest, report: MixReport, console: Console, by_learned: bool = False) -> None:
    """A line for each stage, and one for all that is left out or was changed."""
    for number, stage in enumerate(report.stages, 1):
        largest = sorted(stage.shares, key=lambda name: -stage.shares[name])[:SHOWN]
        named = [f"{name} {share:.4%}" for name, share in stage.shares.items() if name in largest]
        shares = listed(named, SHOWN, count=len(stage.shares))
        bound = max(stage.prefix_bound_tokens.values())
        what = f"stage {number}" if len(report.stages) > 1 else "mix"
        learned = f", {stage.learned_tokens:,} of them learned" if stage.learned_tokens is not None else ""
        unit = "learned tokens" if by_learned else "tokens"
        console.notice(
            f"{what}: {stage.tokens:,} tokens{learned}: {shares}; at every point within {math.ceil(bound):,} {unit} of "
            "it"
        )
    for name, source in report.sources.items():
        if source.packed is not None:
            console.notice(_packed_words(name, source.packed, source.learned is None))
        if source.learned is not None:
            in_epoch = source.sequences / source.epochs if source.epochs else 0
            console.notice(_learned_words(name, source, source.learned, in_epoch))
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
