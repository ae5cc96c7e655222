"""mix.json: which sources make up a stream, in what shares, in what order; and the plan of one from weights.

Enters: a manifest, and either nothing (every sequence once, natural proportion) or a mix.json. Leaves: a `Mix`, small
and immutable, from which `Mix.order` gives every position. numpy and the standard library only.

    format, version, fingerprint
    manifest    fingerprint of the shards it belongs to
    split, seq_len, seed
    sources     [{name, tokens, sequences}]    what the shards hold, in the order of quotas
    stages      [{quotas: [n, ...], weights: {NAME: "0.9"}}]   sequences per source; weights only for the reader
    report      what follows from these, for people and other programs

A source of T tokens holds (T - 1) // seq_len sequences: sequence i is its tokens i * seq_len up to and including
(i + 1) * seq_len, the last of which is only a target.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from pretok.errors import IntegrityError, MismatchError, UsageError
from pretok.manifest import Manifest
from pretok.order import Order
from pretok.storage import fingerprint, read_json, write_json

FORMAT = "pretok-mix"
VERSION = 1
MATERIALIZED = "materialized"
"""Key under which the manifest of shards written in mixed order carries the mix."""


@dataclass(frozen=True, slots=True)
class MixSource:
    """A source as a mix sees it: its tokens in the split, and how many sequences they make."""

    name: str
    tokens: int
    sequences: int


@dataclass(frozen=True)
class Mix:
    """The whole description of an order. `stages` holds the quotas of each stage, in the order of `sources`."""

    manifest: str
    split: str
    seq_len: int
    seed: int
    sources: tuple[MixSource, ...]
    stages: tuple[tuple[int, ...], ...]

    def identity(self) -> dict[str, Any]:
        """Everything the order depends on, as JSON; its fingerprint is the mix's."""
        return {
            "format": FORMAT,
            "version": VERSION,
            "manifest": self.manifest,
            "split": self.split,
            "seq_len": self.seq_len,
            "seed": self.seed,
            "sources": [
                {"name": source.name, "tokens": source.tokens, "sequences": source.sequences}
                for source in self.sources
            ],
            "stages": [{"quotas": list(quotas)} for quotas in self.stages],
        }

    @cached_property
    def fingerprint(self) -> str:
        """Identifies the order: equal fingerprints mean the same tokens at every position."""
        return fingerprint(self.identity())

    def __len__(self) -> int:
        return sum(sum(quotas) for quotas in self.stages)

    def order(self) -> Order:
        """The order of its positions."""
        names = [source.name for source in self.sources]
        return Order(names, [source.sequences for source in self.sources], self.stages, self.seed)


def mix_sources(manifest: Manifest, split: str, seq_len: int, names: Iterable[str]) -> tuple[MixSource, ...]:
    """What the shards hold for sequences of `seq_len`. Raises UsageError for an unknown source or a bad length."""
    if seq_len < 1:
        raise UsageError(f"the sequence length is {seq_len}; it must be at least 1")
    found = []
    for name in names:
        if name not in manifest.sources:
            raise UsageError(
                f"{manifest.folder} has no source {name!r}; its sources are {', '.join(manifest.sources)}"
            )
        tokens = sum(shard.tokens for shard in manifest.of(name, split))
        found.append(MixSource(name, tokens, max(tokens - 1, 0) // seq_len))
    return tuple(found)


def natural_mix(manifest: Manifest, split: str, seq_len: int, names: Iterable[str], seed: int) -> Mix:
    """Every sequence of the named sources once, in natural proportion."""
    sources = mix_sources(manifest, split, seq_len, names)
    quotas = tuple(source.sequences for source in sources)
    if not sum(quotas):
        held = ", ".join(f"{source.name} {source.tokens}" for source in sources)
        raise UsageError(
            f"split {split!r} of {manifest.folder} holds no sequence of {seq_len} + 1 tokens (tokens: {held}); "
            "take a smaller sequence length or another split"
        )
    return Mix(manifest.fingerprint, split, seq_len, seed, sources, (quotas,))


def write_mix(path: Path, mix: Mix, report: dict[str, Any]) -> None:
    """Write mix.json atomically; `report` is kept beside the order for people and other programs."""
    write_json(path, {**mix_json(mix), "report": report})


def mix_json(mix: Mix) -> dict[str, Any]:
    """The JSON of a mix as `parse_mix` reads it."""
    return {"fingerprint": mix.fingerprint, **mix.identity()}


def load_mix(path: Path) -> Mix:
    """Read a mix.json. Raises IntegrityError (missing, damaged, edited) or MismatchError (other version)."""
    return parse_mix(read_json(path), path)


def parse_mix(data: Any, where: Path) -> Mix:
    """A Mix from its JSON; `where` names the file in errors."""
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise IntegrityError(f"{where} holds no mix; make one with pretok mix")
    if data.get("version") != VERSION:
        raise MismatchError(f"{where}: mix version {data.get('version')}, this program reads {VERSION}")
    try:
        mix = Mix(
            manifest=data["manifest"],
            split=data["split"],
            seq_len=data["seq_len"],
            seed=data["seed"],
            sources=tuple(
                MixSource(source["name"], source["tokens"], source["sequences"]) for source in data["sources"]
            ),
            stages=tuple(tuple(stage["quotas"]) for stage in data["stages"]),
        )
        stated = data["fingerprint"]
    except (KeyError, TypeError) as error:
        raise IntegrityError(
            f"{where}: the mix is damaged ({error!r}); make it again with pretok mix"
        ) from None
    if stated != mix.fingerprint:
        raise IntegrityError(
            f"{where}: the mix was edited or damaged: it states fingerprint {stated}, its contents have "
            f"{mix.fingerprint}; make it again with pretok mix"
        )
    return mix
