"""mix.json: which sources make up a stream, in what shares and in what order.

Input: a manifest, and either nothing (every sequence once, in natural proportion) or a mix.json that `stream.mix_job`
wrote. Output: a `Mix`, small and immutable, from which `Mix.order` computes every position. Only this module knows the
file format. It needs only numpy, msgspec and the standard library.

    format, version, fingerprint
    manifest    fingerprint of the shards it belongs to
    split, seq_len, seed
    cuts        "epoch": each epoch of a source is cut at other places; "fixed": all are cut from the first token on
    sources     the entries, each {name, tokens, sequences, ..}, see `MixSource`
    stages      [{quotas: [n, ...], length}]   sequences that each entry gives; `length` only if the next stage begins
                                               after so many positions, before all quotas are given
    report      what follows from these (`mix_job.MixReport`), for people and other programs; outside of the fingerprint

With fixed cuts a tape of T tokens holds (T - 1) // seq_len sequences. Sequence i has the tokens i * seq_len up to and
including (i + 1) * seq_len; the last one is only a target. If each epoch is cut anew, all sequences begin later by
`order.cut`, and every epoch has (T - seq_len) // seq_len of them. A tape with one sequence is not shifted.

A mix that continues another (`stream.continued`) has the stages of that one, the last of them cut at the position where
the two part, and then its own. An entry never grows: what is appended to `it` is the entry `it+1`. Both form the pool
`it`, whose weight they share. So the positions that two mixes have in common follow from their files alone.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from fractions import Fraction
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Annotated

import numpy as np
from msgspec import Meta

from pretok.base.errors import IntegrityError, MismatchError, UsageError
from pretok.base.records import Count, Digest, Record, Signed, check_version, read_record, replace, to_json
from pretok.base.storage import fingerprint, read_json, write_json, writing
from pretok.shards.manifest import SPLITS, Manifest, Shard
from pretok.stream.order import MAX_SEQUENCES, Order
from pretok.tokenizer.kinds import CHAT_KINDS, LEARNED

FORMAT = "pretok-mix"
VERSION = 3
_BESIDE = ("fingerprint", "format", "version", "report")
"""Keys of the file that are not fields of `Mix`."""
Length = Annotated[int, Meta(ge=1, lt=2**31)]
"""Tokens of a sequence."""


class MixSource(Record, frozen=True, omit_defaults=True):
    """An entry of a mix: a source, a class, the rest of a source, or an append to one of these (`NAME+1`)."""

    name: str
    tokens: Count
    """Of its tape, without padding."""
    sequences: Count
    """Per epoch."""
    of: str | None = None
    """The source of its documents, if it is not `name`."""
    tape: Digest | None = None
    """Digest of its side file (`stream.tapes`), None for all documents."""
    packed: bool = False
    """Whether sequences are whole documents (`stream.pack`)."""
    targets: Count = 0
    """Targets with loss in an epoch of packed sequences."""
    learn: tuple[str, ...] = ()
    """Kinds that are learned in conversations; empty if every token is."""
    manifest: Digest | None = None
    """For appended entries, and for all entries of a mix that has been continued since: the shards when it was added.
    """
    begin: Count = 0
    """For the same, the token of its source in the split at which its documents begin."""

    @property
    def held_in(self) -> str:
        """The source that holds its documents."""
        return self.of or self.name

    @property
    def pool(self) -> str:
        """The name by which weights refer to it and its appends."""
        return self.name.partition("+")[0]

    def predicted(self, seq_len: int) -> Fraction:
        """Return the targets with loss of a sequence, on average over an epoch; padding does not count."""
        return Fraction(self.targets, max(self.sequences, 1)) if self.packed else Fraction(seq_len)


class Stage(Record, frozen=True, omit_defaults=True):
    """A stage of a mix."""

    quotas: tuple[Count, ...]
    """Sequences that each entry gives."""
    length: Count | None = None
    """Its positions, if the next stage begins before all quotas are given."""

    @property
    def positions(self) -> int:
        """Positions of the stream in this stage."""
        return sum(self.quotas) if self.length is None else self.length


class Mix(Record, frozen=True, dict=True):
    """The complete description of an order."""

    manifest: Digest
    split: Annotated[str, Meta(pattern="^(train|val)$")]
    seq_len: Length
    seed: Signed
    cuts: Annotated[str, Meta(pattern="^(fixed|epoch)$")]
    sources: tuple[MixSource, ...]
    stages: tuple[Stage, ...]

    @cached_property
    def fingerprint(self) -> str:
        """Identifies the order: equal fingerprints mean the same tokens at every position."""
        return fingerprint({"format": FORMAT, "version": VERSION, **to_json(self)})

    @property
    def lengths(self) -> tuple[int, ...]:
        """Positions of each stage."""
        return tuple(stage.positions for stage in self.stages)

    @property
    def began(self) -> str:
        """Fingerprint of the shards for which its first position was planned."""
        return self.sources[0].manifest or self.manifest

    @property
    def length(self) -> int:
        """Sequences in all stages; may exceed what `len` can return."""
        return sum(self.lengths)

    @cached_property
    def pools(self) -> dict[str, list[int]]:
        """The pools that weights name: pool -> the numbers of its entries."""
        pools: dict[str, list[int]] = {}
        for number, source in enumerate(self.sources):
            pools.setdefault(source.pool, []).append(number)
        return pools

    @property
    def packs(self) -> bool:
        """Whether any of its entries is packed."""
        return any(source.packed for source in self.sources)

    @property
    def predicted(self) -> int:
        """Targets of all its sequences; a partly read epoch of packed sequences counts with the epoch's mean."""
        return int(sum(self.predicted_by(self.length)))

    def predicted_by(self, length: int) -> list[Fraction]:
        """Return the targets of the first `length` positions, by entry.

        Packed sequences count with their mean, which is exact at the end of each epoch.
        """
        counts = self.order().prefixes(np.array([length]))[0].tolist()
        return [
            count * source.predicted(self.seq_len) for count, source in zip(counts, self.sources, strict=True)
        ]

    def __len__(self) -> int:
        return self.length

    def first(self, positions: int) -> Mix:
        """Return the mix of the first `positions` positions, 1 to `length`."""
        starts = [start for start in accumulate(self.lengths, initial=0) if start < positions]
        count, length = len(starts) - 1, positions - starts[-1]
        last = self.stages[count]
        last = replace(last, length=None if length == sum(last.quotas) else length)
        mix = replace(self, stages=(*self.stages[:count], last))
        # Keep the entries up to the last one of each source that these positions read. Later ones are added again by
        # whoever continues this mix, together with what was appended since.
        newest: dict[str, int] = {}
        for number, source in enumerate(self.sources):
            if any(stage.quotas[number] for stage in mix.stages):
                newest[source.held_in] = max(source.begin, newest.get(source.held_in, 0))
        kept = [n for n, source in enumerate(self.sources) if source.begin <= newest.get(source.held_in, 0)]
        stages = tuple(replace(stage, quotas=tuple(stage.quotas[n] for n in kept)) for stage in mix.stages)
        return replace(mix, sources=tuple(self.sources[n] for n in kept), stages=stages)

    def order(self) -> Order:
        """Return the order of its positions. UsageError for a stage that is too long."""
        # A tape with one sequence is not shifted: it would lose that sequence.
        moved = [
            self.cuts == "epoch" and not source.packed and _fixed(source.tokens, self.seq_len) > 1
            for source in self.sources
        ]
        return Order(
            [source.name for source in self.sources],
            [source.sequences for source in self.sources],
            [stage.quotas for stage in self.stages],
            self.seed,
            self.lengths,
            [self.seq_len * shifted for shifted in moved],
        )

    @property
    def within(self) -> bool:
        """Whether its numbers stay within its entries, so that it reads no other tokens.

        Only a forged file, such as one inside a certificate, fails this.
        """
        for stage in self.stages:
            if len(stage.quotas) != len(self.sources):
                return False
            if not stage.positions <= sum(stage.quotas) < MAX_SEQUENCES:
                return False
            if any(
                quota and not source.sequences
                for quota, source in zip(stage.quotas, self.sources, strict=True)
            ):
                return False
        return self.length > 0 and all(
            source.tape
            if source.packed
            else source.sequences == sequences(source.tokens, self.seq_len, self.cuts)
            for source in self.sources
        )


def _fixed(tokens: int, seq_len: int) -> int:
    """Return how many sequences, each with its last target, `tokens` hold from the first token on."""
    return max(tokens - 1, 0) // seq_len


def sequences(tokens: int, seq_len: int, cuts: str) -> int:
    """Return how many sequences each epoch of a source of `tokens` has."""
    fixed = _fixed(tokens, seq_len)
    return (tokens - seq_len) // seq_len if cuts == "epoch" and fixed > 1 else fixed


def learn_of(manifest: Manifest, source: str, learn: Mapping[str, Collection[str]]) -> tuple[str, ...]:
    """Return the kinds that are learned in a source: those that `learn` names, else the assistant's.

    () if the source holds no conversations: then everything is learned.
    """
    if source not in manifest.conversations:
        return ()
    return tuple(kind for kind in CHAT_KINDS if kind in learn.get(source, LEARNED))


def check_learn(manifest: Manifest, learn: Mapping[str, Collection[str]]) -> None:
    """Raise UsageError for sources or kinds that cannot be learned."""
    empty = {name for name, counts in manifest.sources.items() if not counts.tokens}
    for name, kinds in learn.items():
        if name not in empty.union(manifest.conversations):
            raise UsageError(
                f"learn names {name!r}, which is not a source of conversations: all of a plain text is learned"
            )
        if wrong := set(kinds) - set(CHAT_KINDS) if kinds else {""}:
            raise UsageError(f"learn of {name}: {min(wrong)!r} is not one of {', '.join(CHAT_KINDS)}")


def natural_mix(
    manifest: Manifest,
    split: str,
    seq_len: int,
    names: Iterable[str],
    seed: int,
    learn: Mapping[str, Collection[str]] | None = None,
) -> Mix:
    """Return the mix with every sequence of the named sources once, in natural proportion.

    Cuts are fixed, as there is only one epoch. learn: see `learn_of`. Raises UsageError for an unknown source or split,
    a bad length, or if there is no sequence.
    """
    if split not in SPLITS:
        raise UsageError(f"no split {split!r}; the splits are {' and '.join(SPLITS)}")
    if seq_len < 1:
        raise UsageError(f"the sequence length is {seq_len}; it must be at least 1")
    check_learn(manifest, learn or {})
    sources = []
    for name in names:
        if name not in manifest.sources:
            raise UsageError(
                f"{manifest.folder} has no source {name!r}; its sources are {', '.join(manifest.sources)}"
            )
        tokens = sum(shard.tokens for shard in manifest.of(name, split))
        kinds = learn_of(manifest, name, learn or {})
        sources.append(MixSource(name, tokens, sequences(tokens, seq_len, "fixed"), learn=kinds))
    quotas = tuple(source.sequences for source in sources)
    if not sum(quotas):
        sizes = ", ".join(f"{source.name} {source.tokens}" for source in sources)
        raise UsageError(
            f"split {split!r} of {manifest.folder} holds no sequence of {seq_len} + 1 tokens (tokens: {sizes}); "
            "use a smaller sequence length or another split"
        )
    return Mix(manifest.fingerprint, split, seq_len, seed, "fixed", tuple(sources), (Stage(quotas),))


def mixed_shards(mix: Mix, manifest: Manifest) -> dict[str, tuple[Shard, ...]]:
    """Return the shards of each source of a mix, as they were when it was made. MismatchError if they have changed."""
    return {
        name: shards_of(mix.manifest, name, mix.split, manifest)
        for name in dict.fromkeys(source.held_in for source in mix.sources)
    }


def shards_of(fingerprint: str, source: str, split: str, manifest: Manifest) -> tuple[Shard, ...]:
    """Return the shards of a source when all shards had this fingerprint. MismatchError if they never had it."""
    was = manifest.was(fingerprint)
    if was is None:
        raise MismatchError(
            f"the mix was made for shards with fingerprint {fingerprint}; {manifest.folder} has "
            f"{manifest.fingerprint} and has not grown from those: name the shards it was made for, or make it again "
            "with pretok mix"
        )
    return was.of(source, split)


def behind(shards: Sequence[Shard], begin: int) -> list[Shard]:
    """Return the shards of a source from its token `begin` on, where one of them begins."""
    starts = accumulate((shard.tokens for shard in shards), initial=0)
    return [shard for shard, start in zip(shards, starts, strict=False) if start >= begin]


def check_sources(mix: Mix, manifest: Manifest, where: Path) -> None:
    """Raise IntegrityError unless the entries of a mix match its shards; MismatchError if these are other shards."""
    for source in mix.sources:
        try:
            shards = shards_of(source.manifest or mix.manifest, source.held_in, mix.split, manifest)
        except MismatchError as error:
            raise MismatchError(f"{where}: {error}") from None
        tokens = sum(shard.tokens for shard in behind(shards, source.begin))
        if source.tape is None and tokens != source.tokens:  # `View` checks side files
            raise IntegrityError(
                f"{where}: in the mix source {source.name} has {source.tokens} {mix.split} tokens, but "
                f"{manifest.folder} holds {tokens}; make it again with pretok mix"
            )


def write_mix(path: Path, mix: Mix, report: object) -> None:
    """Write mix.json atomically; `report`, a record, is included for people. Raises OutputError."""
    with writing(path):
        write_json(path, {**mix_json(mix), "report": to_json(report)})


def mix_json(mix: Mix) -> dict[str, object]:
    """Return the JSON of a mix as `parse_mix` reads it."""
    return {"fingerprint": mix.fingerprint, "format": FORMAT, "version": VERSION, **to_json(mix)}


def load_mix(path: Path) -> Mix:
    """Read a mix.json. Raises IntegrityError (missing, damaged, edited) or MismatchError (another version)."""
    if not path.exists():
        raise IntegrityError(f"{path} does not exist; name a mix, or make it with pretok mix")
    return parse_mix(read_json(path), path, "make it with pretok mix")


def parse_mix(data: object, where: Path, remedy: str = "restore it from a copy") -> Mix:
    """Parse a Mix from its JSON; `where` names the file that holds it, and `remedy` what to do if it is damaged."""
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise IntegrityError(f"{where} holds no mix; {remedy}")
    check_version(data.get("version"), VERSION, where, remedy)
    body = {name: value for name, value in data.items() if name not in _BESIDE}
    mix = read_record(Mix, body, where)
    if data.get("fingerprint") != mix.fingerprint:
        raise IntegrityError(
            f"{where}: the mix was edited or damaged: it states fingerprint {data.get('fingerprint')}, but its content "
            f"has {mix.fingerprint}; {remedy}"
        )
    if not mix.within:
        raise IntegrityError(f"{where}: the mix is damaged, it reads more than its sources have; {remedy}")
    return mix
