"""mix.json: which sources make up a stream, in what shares and in what order.

Input: a manifest, and either nothing (every sequence once, natural proportion) or a mix.json, which `stream.mix_job`
planned. Output: a `Mix`, small and immutable, from which `Mix.order` gives every position. This module alone knows the
file. numpy, msgspec and the standard library only.

    format, version, fingerprint
    manifest    fingerprint of the shards it belongs to
    split, seq_len, seed
    cuts        "epoch": each epoch of a source is cut at another place; "fixed": all at its first token
    sources     [{name, tokens, sequences}]    what the shards hold, in the order of quotas; {.., of, members} for a
                                               class of the source `of` and for its rest: digests of the side files
                                               beside mix.json that say which documents it has; {.., packed, targets}
                                               where sequences are whole documents: digests of its packing indexes
                                               (`stream.packed`), and targets of an epoch; {.., learn, learned_tokens}
                                               of conversations: the kinds of tokens that are learned, and how many
                                               tokens these are, of an epoch where it is packed, else of all its tokens
    stages      [{quotas: [n, ...], length}]   sequences that each source gives; `length` only where the next stage
                                               begins after so many positions, before all quotas are given
    earlier     [{manifest, length, tokens}]   only where the shards have grown since a mix that this one goes on with:
                                               until that position each source held so many tokens; those that came
                                               later are left out; and `members`, how many side files of classes;
                                               where some are packed `sequences` of an epoch then, and `packed`, how
                                               many indexes
    report      what follows from these (`mix_job.MixReport`), for people and other programs; outside of the fingerprint

With fixed cuts a source of T tokens holds (T - 1) // seq_len sequences: sequence i is its tokens i * seq_len up to and
including (i + 1) * seq_len, the last of which is only a target. Where each epoch is cut anew all begin later, at
`order.cut`, and there are (T - seq_len) // seq_len of them, whatever the epoch. A source of one sequence is not
shifted.

A mix that goes on with another (`stream.continued`) has its stages, the last of them cut at the position where the two
part, and then its own. So which positions two mixes have in common follows from their files alone, and a mix that was
never continued has the file it always had.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from fractions import Fraction
from functools import cached_property
from itertools import accumulate, pairwise
from pathlib import Path

from pretok.base.errors import IntegrityError, MismatchError, PretokError, UsageError
from pretok.base.kinds import CHAT_KINDS, LEARNED
from pretok.base.records import Count, Record, Signed, check_version, read_record, replace, to_json
from pretok.base.storage import fingerprint, read_json, write_json, writing
from pretok.shards.manifest import MAX_TOKENS, SPLITS, Manifest, Shard
from pretok.stream.growth import Epochs, Growth
from pretok.stream.order import Order

FORMAT = "pretok-mix"
VERSION = 2
CUTS = ("fixed", "epoch")
_DIGEST = re.compile("[0-9a-f]{32}")
MAX_STAGES = 1 << 20
"""So many stages of fewer than `order.MAX_SEQUENCES` positions each stay within 64 bits."""


class MixSource(Record, frozen=True, omit_defaults=True):
    """What a mix weighs: a source, a class or the rest of a source; its tokens in the split, how many sequences they
    make. of: the source whose documents a class or a rest takes; members: digests of its side files
    (`stream.members`), one for each generation of shards; packed: those of its packing indexes, empty where it is cut;
    targets: what an epoch of packed sequences predicts; learn: of conversations the kinds that are learned, in the
    order of `base.kinds`, empty where every token is; learned_tokens: how many tokens these are, see the module."""

    name: str
    tokens: Count
    sequences: Count
    of: str | None = None
    members: tuple[str, ...] = ()
    packed: tuple[str, ...] = ()
    targets: Count = 0
    learn: tuple[str, ...] = ()
    learned_tokens: Count = 0

    @property
    def held_in(self) -> str:
        """The source whose documents it takes."""
        return self.of or self.name

    def predicted(self, seq_len: int) -> Fraction:
        """Targets of a sequence, on average over an epoch; of a packed one not what fills it up."""
        return Fraction(self.targets, max(self.sequences, 1)) if self.packed else Fraction(seq_len)

    def learned(self, seq_len: int) -> Fraction:
        """Those of them that are learned."""
        if not self.learn:
            return self.predicted(seq_len)
        if self.packed:
            return Fraction(self.learned_tokens, max(self.sequences, 1))
        return Fraction(self.learned_tokens * seq_len, max(self.tokens, 1))


class Earlier(Record, frozen=True, omit_defaults=True):
    """The first `length` positions were planned for shards with this fingerprint, all of which the mix's own have;
    tokens: of each source in them, as many of the sources as there were; members: how many side files each had, none
    where no source had any; packed, sequences: how many packing indexes each had, and sequences of an epoch, none where
    no source was packed."""

    manifest: str
    length: Count
    tokens: tuple[Count, ...]
    members: tuple[Count, ...] = ()
    packed: tuple[Count, ...] = ()
    sequences: tuple[Count, ...] = ()
    targets: tuple[Count, ...] = ()


class Mix(Record, frozen=True, dict=True):
    """The whole description of an order. `stages` holds the quotas of each stage, in the order of `sources`.

    taken: positions of each stage, empty where all stages are whole; earlier: shards of before, ever longer.
    """

    manifest: str
    split: str
    seq_len: Count
    seed: Signed
    cuts: str
    sources: tuple[MixSource, ...]
    stages: tuple[tuple[Count, ...], ...]
    taken: tuple[Count, ...] = ()
    earlier: tuple[Earlier, ...] = ()

    def identity(self) -> dict[str, object]:
        """Everything the order depends on, as JSON; its fingerprint is the mix's."""
        stages = [
            {"quotas": list(quotas)} | ({"length": length} if length != sum(quotas) else {})
            for quotas, length in zip(self.stages, self.lengths, strict=True)
        ]
        data = {"format": FORMAT, "version": VERSION, **to_json(self), "stages": stages}
        del data["taken"]
        if not self.earlier:
            del data["earlier"]
        return data

    @cached_property
    def fingerprint(self) -> str:
        """Identifies the order: equal fingerprints mean the same tokens at every position."""
        return fingerprint(self.identity())

    @property
    def lengths(self) -> tuple[int, ...]:
        """Positions of each stage."""
        return self.taken or tuple(sum(quotas) for quotas in self.stages)

    @property
    def began(self) -> str:
        """Fingerprint of the shards that its first position was planned for."""
        return self.earlier[0].manifest if self.earlier else self.manifest

    @property
    def now(self) -> Earlier:
        """What its sources hold, as `earlier` says it of before."""
        members, packed = ([len(part) for part in parts] for parts in zip(*self._files, strict=True))
        sizes = tuple(source.sequences for source in self.sources) if any(packed) else ()
        targets = tuple(source.targets for source in self.sources) if any(packed) else ()
        return Earlier(
            self.manifest,
            self.length,
            tuple(source.tokens for source in self.sources),
            tuple(members) if any(members) else (),
            tuple(packed) if any(packed) else (),
            sizes,
            targets,
        )

    @property
    def _files(self) -> list[tuple[tuple[str, ...], tuple[str, ...]]]:
        return [(source.members, source.packed) for source in self.sources]

    @property
    def then(self) -> list[Earlier]:
        """What the sources held in each stage."""
        starts = accumulate(self.lengths[:-1], initial=0)
        return [next((part for part in self.earlier if start < part.length), self.now) for start in starts]

    @property
    def length(self) -> int:
        """Sequences in all stages; of any size, unlike `len`."""
        return sum(self.lengths)

    @property
    def packs(self) -> bool:
        """Whether some of its sources are packed."""
        return any(source.packed for source in self.sources)

    @property
    def predicted(self) -> int:
        """Targets of all its sequences, where packed epochs are read in part by their mean."""
        return int(sum(self.predicted_by(self.length)))

    @property
    def learned(self) -> int:
        """Those of them that are learned."""
        return int(sum(self.learned_by(self.length)))

    def predicted_by(self, length: int) -> list[Fraction]:
        """Targets of the first `length` positions, of each source. Of a packed one that is right at the end of each
        epoch, and inside of it as if its sequences had as many: those that it had and, from where it grew on, those
        that were left with those that came."""
        order = self.order()
        drawn = order.prefix(length).tolist()
        grown = [(order.prefix(part.length).tolist(), part) for part in self.earlier]
        found = []
        for number, source in enumerate(self.sources):
            if not source.packed:
                found.append(Fraction(drawn[number] * self.seq_len))
                continue
            spans = [
                (given[number], part.sequences[number], part.targets[number])
                for given, part in grown
                if part.sequences and given[number]
            ]
            found.append(
                _predicted(drawn[number], [*spans, (drawn[number], source.sequences, source.targets)])
            )
        return found

    def learned_by(self, length: int) -> list[Fraction]:
        """Those of them that are learned, by the mean of each source."""
        rates = (
            source.learned(self.seq_len) / (source.predicted(self.seq_len) or 1) for source in self.sources
        )
        return [count * rate for count, rate in zip(self.predicted_by(length), rates, strict=True)]

    def __len__(self) -> int:
        return self.length

    def __repr__(self) -> str:
        drawn = self.order().prefix(self.length).tolist()
        shares = ", ".join(
            f"{source.name} {count / self.length:.4%}"
            for source, count in zip(self.sources, drawn, strict=True)
        )
        return f"<pretok mix: {self._extent()}: {shares}; fingerprint {self.fingerprint}>"

    def _extent(self) -> str:
        length = f"{self.length:,} sequences of {self.seq_len:,} tokens"
        return f"{length} in {len(self.stages)} stages" if len(self.stages) > 1 else length

    def first(self, positions: int) -> Mix:
        """The mix of these positions, of which there are 1 to `length`."""
        ends = list(accumulate(self.lengths))
        count = next(number for number, end in enumerate(ends, 1) if end >= positions)
        taken = (*self.lengths[: count - 1], positions - (ends[count - 2] if count > 1 else 0))
        stages = self.stages[:count]
        whole = taken == tuple(sum(quotas) for quotas in stages)
        earlier = tuple(
            replace(part, length=min(part.length, positions))
            for part, before in zip(self.earlier, (0, *(part.length for part in self.earlier)), strict=False)
            if before < positions
        )
        return replace(self, stages=stages, taken=() if whole else taken, earlier=earlier)

    def order(self) -> Order:
        """The order of its positions."""
        names = [source.name for source in self.sources]
        sizes = [source.sequences for source in self.sources]
        shifts = [0 if source.packed else self._shift(source.tokens) for source in self.sources]
        order = Order(names, sizes, self.stages, self.seed, self.lengths, shifts)
        if not self.earlier:
            return order
        drawn = [(part, order.prefix(part.length).tolist()) for part in self.earlier]
        grown = {}
        for number, source in enumerate(self.sources):
            # Of several with nothing drawn between them the first counts: what came and went was never read.
            held = {
                given[number]: (part.tokens[number], self._had(part, number))
                for part, given in reversed(drawn)
                if given[number]
            }
            now = source.tokens, source.sequences
            if growth := self._growth(number, [*sorted(held.items()), (-1, now)]):
                grown[number] = Epochs(growth, sizes[number], shifts[number])
        return Order(names, sizes, self.stages, self.seed, self.lengths, shifts, grown)

    def _growth(self, number: int, held: Sequence[tuple[int, tuple[int, int]]]) -> list[Growth]:
        """held: (drawn, tokens and sequences until then) of a source, the last of them what it holds now. Of a packed
        one the sequences of what came stand behind those of before, and nothing is moved."""
        found = []
        for (drawn, (tokens, size)), (_, (after, whole)) in pairwise(held):
            if after > tokens and self.sources[number].packed:
                found.append(Growth(drawn, tokens, size, 0, whole - size, 0))
            elif after > tokens:
                found.append(Growth(drawn, tokens, *self._cut(tokens), *self._cut(after - tokens)))
        return found

    def _had(self, then: Earlier, number: int) -> int:
        """Sequences of an epoch of a source then."""
        return (
            then.sequences[number]
            if then.sequences
            else sequences(then.tokens[number], self.seq_len, self.cuts)
        )

    def _cut(self, tokens: int) -> tuple[int, int]:
        """Sequences that so many tokens make, and how far their cuts are moved."""
        return sequences(tokens, self.seq_len, self.cuts), self._shift(tokens)

    def _shift(self, tokens: int) -> int:
        """How far the cuts of so many tokens are moved: a source of one sequence would lose it."""
        return self.seq_len if self.cuts == "epoch" and _fixed(tokens, self.seq_len) > 1 else 0

    def problem(self) -> str | None:
        """Why there is no such stream whatever the shards hold, or None."""
        if self.split not in SPLITS:
            return f"no split {self.split!r}; there are {' and '.join(SPLITS)}"
        if not 1 <= self.seq_len < 2**31:
            return f"the sequence length is {self.seq_len}; it must be at least 1 and below 2^31"
        if not -(2**63) <= self.seed < 2**63:
            return f"the seed {self.seed} does not fit 64 bits"
        if self.cuts not in CUTS:
            return f"no cuts {self.cuts!r}; there are {' and '.join(CUTS)}"
        if len({source.name for source in self.sources}) != len(self.sources):
            return "a source stands twice in it"
        if sum(source.tokens for source in self.sources) >= MAX_TOKENS:
            return f"its sources have more than {MAX_TOKENS} tokens"
        for quotas in self.stages:
            if len(quotas) != len(self.sources) or min(quotas, default=0) < 0:
                return f"a stage has {len(quotas)} quotas for {len(self.sources)} sources, or one below 0"
        for number, source in enumerate(self.sources):
            if (source.of is None) != (not source.members):
                return f"{source.name} is a class without members or without a source"
            if wrong := [name for name in (*source.members, *source.packed) if not _DIGEST.fullmatch(name)]:
                return f"source {source.name} names the side file {wrong[0][:60]!r}, which is no digest"
            if not self._fits(source, source.tokens, source.sequences):
                return f"source {source.name} has {source.tokens} tokens, not {source.sequences} sequences"
            unknown = set(source.learn) - set(CHAT_KINDS)
            if unknown or source.learned_tokens > (source.tokens if source.learn else 0):
                return f"source {source.name} cannot learn {source.learned_tokens} tokens of {source.learn}"
            if not source.sequences and any(quotas[number] for quotas in self.stages):
                return f"source {source.name} has not one sequence to give"
        if len(self.lengths) != len(self.stages) or any(
            not 0 <= length <= sum(quotas) for length, quotas in zip(self.lengths, self.stages, strict=True)
        ):
            return f"its stages cannot be of {self.lengths} positions"
        if not 0 < len(self.stages) <= MAX_STAGES or not self.length:
            return f"it has {len(self.stages)} stages and {self.length} sequences"
        ends = [0, *(part.length for part in self.earlier), self.length]
        if any(end <= before for before, end in pairwise(ends)):
            return f"its segments cannot end at {ends[1:]}"
        if not set(ends) <= {0, *accumulate(self.lengths)}:
            return f"its shards did not grow between two stages, but at {ends[1:-1]}"
        if problem := self._grown_problem():
            return problem
        for then, quotas in zip(self.then, self.stages, strict=True):
            for number, quota in enumerate(quotas):
                if quota and (number >= len(then.tokens) or not self._had(then, number)):
                    return f"source {self.sources[number].name} had not one sequence to give yet"
        try:
            self.order()
        except UsageError as error:
            return str(error)
        return None

    def _grown_problem(self) -> str | None:
        """What of `earlier` contradicts itself or what the sources hold."""
        for part, after in pairwise([*self.earlier, self.now]):
            for held, more in zip(_counts(part), _counts(after), strict=True):
                if len(held) > len(more or held) or any(a > b for a, b in zip(held, more, strict=False)):
                    return "its sources have lost tokens since an earlier manifest"
        for part in self.earlier:
            if any(len(counts) not in (0, len(part.tokens)) for counts in _counts(part)):
                return "it does not say of each source what it held"
            if not bool(part.packed) == bool(part.sequences) == bool(part.targets):
                return "it does not say of each source what it held"
            for source, tokens, count, size, targets in zip(
                self.sources, part.tokens, part.packed, part.sequences, part.targets, strict=False
            ):
                then = replace(source, packed=source.packed[:count], targets=targets)
                if not self._fits(then, tokens, size):
                    return f"source {source.name} had {tokens} tokens, not {size} sequences"
        return None

    def _fits(self, source: MixSource, tokens: int, size: int) -> bool:
        """Whether so many tokens can make so many sequences."""
        if not source.packed:
            return not source.targets and size == sequences(tokens, self.seq_len, self.cuts)
        least = -(-tokens // (self.seq_len + 1))
        return 0 < least <= size <= tokens and source.targets <= tokens - size


def _counts(part: Earlier) -> tuple[tuple[int, ...], ...]:
    return part.tokens, part.members, part.packed, part.sequences, part.targets


def _predicted(drawn: int, spans: Sequence[tuple[int, int, int]]) -> Fraction:
    """Targets of the first `drawn` sequences of a packed source, see `Mix.predicted_by`. spans: ever more draws, and
    until then the sequences and targets of an epoch."""
    predicted = inside = Fraction(0)  # all, and in the epoch that is on
    at = index = 0
    for until, size, targets in spans:
        more = min(min(until, drawn) - at, size - index)
        if more > 0:
            part = (targets - inside) * Fraction(more, size - index)
            predicted, inside, at, index = predicted + part, inside + part, at + more, index + more
        if index == size:
            whole, index = divmod(min(until, drawn) - at, size)
            inside = Fraction(targets * index, size)
            predicted, at = predicted + whole * targets + inside, min(until, drawn)
    return predicted


class _StageEntry(Record, frozen=True):
    """A stage as the file has it."""

    quotas: tuple[Count, ...]
    length: Count | None = None


class _MixFile(Record, frozen=True):
    """The whole file; see the module."""

    fingerprint: str
    format: str
    version: Count
    manifest: str
    split: str
    seq_len: Count
    seed: Signed
    cuts: str
    sources: tuple[MixSource, ...]
    stages: tuple[_StageEntry, ...]
    earlier: tuple[Earlier, ...] = ()
    report: dict[str, object] | None = None


def _fixed(tokens: int, seq_len: int) -> int:
    """How many sequences, each with its target, a flat stream of `tokens` holds from its first token on."""
    return max(tokens - 1, 0) // seq_len


def sequences(tokens: int, seq_len: int, cuts: str) -> int:
    """How many sequences each epoch of a source of `tokens` has."""
    fixed = _fixed(tokens, seq_len)
    return (tokens - seq_len) // seq_len if cuts == "epoch" and fixed > 1 else fixed


def learn_of(manifest: Manifest, source: str, learn: Mapping[str, Collection[str]]) -> tuple[str, ...]:
    """The kinds that are learned of a source: as `learn` says by its name, or what an assistant writes; () where it
    holds no conversations, as all of it is learned."""
    if source not in manifest.conversations:
        return ()
    return tuple(kind for kind in CHAT_KINDS if kind in learn.get(source, LEARNED))


def check_learn(manifest: Manifest, learn: Mapping[str, Collection[str]]) -> None:
    """UsageError for what nobody can learn."""
    for name, kinds in learn.items():
        if name not in manifest.sources:
            raise UsageError(
                f"learn names {name!r}, which is no source; there are {', '.join(manifest.sources)}"
            )
        if manifest.sources[name].tokens and name not in manifest.conversations:
            raise UsageError(f"learn names {name}, which holds no conversations: plain text is learned whole")
        if unknown := sorted(set(kinds) - set(CHAT_KINDS)):
            raise UsageError(f"learn: {unknown[0]!r} is none of {', '.join(CHAT_KINDS)}")
        if not kinds:
            raise UsageError(f"learn names nothing of {name}; there are {', '.join(CHAT_KINDS)}")


def mix_sources(
    manifest: Manifest,
    split: str,
    seq_len: int,
    names: Iterable[str],
    cuts: str,
    learn: Mapping[str, Collection[str]] | None = None,
) -> tuple[MixSource, ...]:
    """What the shards hold for sequences of `seq_len`. learn: see `learn_of`. Raises UsageError for an unknown source,
    split or bad length."""
    if split not in SPLITS:
        raise UsageError(f"no split {split!r}; there are {' and '.join(SPLITS)}")
    if seq_len < 1:
        raise UsageError(f"the sequence length is {seq_len}; it must be at least 1")
    found = []
    for name in names:
        if name not in manifest.sources:
            raise UsageError(
                f"{manifest.folder} has no source {name!r}; its sources are {', '.join(manifest.sources)}"
            )
        shards = manifest.of(name, split)
        tokens, kinds = sum(shard.tokens for shard in shards), learn_of(manifest, name, learn or {})
        learned = sum((shard.kinds or {}).get(kind, 0) for shard in shards for kind in kinds)
        found.append(
            MixSource(name, tokens, sequences(tokens, seq_len, cuts), learn=kinds, learned_tokens=learned)
        )
    return tuple(found)


def natural_mix(
    manifest: Manifest,
    split: str,
    seq_len: int,
    names: Iterable[str],
    seed: int,
    learn: Mapping[str, Collection[str]] | None = None,
) -> Mix:
    """Every sequence of the named sources once, in natural proportion; cuts are fixed, as there is one epoch."""
    check_learn(manifest, learn or {})
    sources = mix_sources(manifest, split, seq_len, names, "fixed", learn)
    quotas = tuple(source.sequences for source in sources)
    if not sum(quotas):
        held = ", ".join(f"{source.name} {source.tokens}" for source in sources)
        raise UsageError(
            f"split {split!r} of {manifest.folder} holds no sequence of {seq_len} + 1 tokens (tokens: {held}); "
            "take a smaller sequence length or another split"
        )
    return possible(Mix(manifest.fingerprint, split, seq_len, seed, "fixed", sources, (quotas,)))


def possible(mix: Mix) -> Mix:
    """The mix itself. Raises UsageError when what was asked for cannot be streamed."""
    if problem := mix.problem():
        raise UsageError(f"this mix is not possible: {problem}")
    return mix


def mixed_shards(mix: Mix, manifest: Manifest) -> dict[str, list[Shard]]:
    """The shards of each source whose documents a mix takes, as they were when it was made. MismatchError where they
    are others."""
    shards = manifest.was(mix.manifest)
    if shards is None:
        raise MismatchError(
            f"the mix was made for shards with fingerprint {mix.manifest}; {manifest.folder} has "
            f"{manifest.fingerprint} and has not grown from those: name the shards it was made for, or make it again "
            "with pretok mix"
        )
    found: dict[str, list[Shard]] = {source.held_in: [] for source in mix.sources}
    for shard in shards:
        if shard.split == mix.split and shard.source in found:
            found[shard.source].append(shard)
    return found


def check_sources(mix: Mix, manifest: Manifest, where: Path) -> None:
    """IntegrityError unless the sources of a mix are what its shards hold; MismatchError where these are others."""
    try:
        held = mixed_shards(mix, manifest)
    except MismatchError as error:
        raise MismatchError(f"{where}: {error}") from None
    for source in mix.sources:
        if source.members:  # its side files say what it holds: `View` compares
            continue
        tokens = sum(shard.tokens for shard in held[source.name])
        if tokens != source.tokens:
            raise IntegrityError(
                f"{where}: the mix says that source {source.name} has {source.tokens} {mix.split} tokens, "
                f"{manifest.folder} holds {tokens}; make it again with pretok mix"
            )


def write_mix(path: Path, mix: Mix, report: object) -> None:
    """Write mix.json atomically; `report`, a record, is kept beside the order for people. Raises OutputError."""
    with writing(path):
        write_json(path, {**mix_json(mix), "report": to_json(report)})


def mix_json(mix: Mix) -> dict[str, object]:
    """The JSON of a mix as `parse_mix` reads it."""
    return {"fingerprint": mix.fingerprint, **mix.identity()}


def load_mix(path: Path) -> Mix:
    """Read a mix.json. Raises IntegrityError (missing, damaged, edited) or MismatchError (other version)."""
    if not path.exists():
        raise IntegrityError(f"{path} does not exist; name a mix, or make it with pretok mix")
    return parse_mix(read_json(path), path)


def mixes_beside(manifest: Manifest) -> Iterator[tuple[Path, Mix]]:
    """Every mix of these shards that lies beside their folder, and its path."""
    for path in sorted(manifest.folder.parent.glob("*.json")):
        with suppress(PretokError):  # another file, or a mix of others, which whoever reads it is told
            mix = load_mix(path)
            if manifest.was(mix.manifest) is not None:
                yield path, mix


def parse_mix(data: object, where: Path) -> Mix:
    """A Mix from its JSON; `where` names the file in errors."""
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise IntegrityError(f"{where} holds no mix; make one with pretok mix")
    check_version(data.get("version"), VERSION, where, "make the mix again with pretok mix")
    file = read_record(_MixFile, data, where)
    stages = tuple(stage.quotas for stage in file.stages)
    taken = tuple(sum(stage.quotas) if stage.length is None else stage.length for stage in file.stages)
    if all(stage.length is None for stage in file.stages):
        taken = ()
    head = (file.manifest, file.split, file.seq_len, file.seed, file.cuts, file.sources)
    mix = Mix(*head, stages, taken, file.earlier)
    if problem := mix.problem():
        raise IntegrityError(f"{where}: the mix is damaged ({problem}); make it again with pretok mix")
    if file.fingerprint != mix.fingerprint:
        raise IntegrityError(
            f"{where}: the mix was edited or damaged: it states fingerprint {file.fingerprint}, its contents have "
            f"{mix.fingerprint}; make it again with pretok mix"
        )
    return mix
