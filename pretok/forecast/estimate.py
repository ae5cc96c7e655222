"""Measured windows -> whole sources with intervals, and what a mix would take of them.

Input: a `Sample` of a source. Output: `SourceForecast`; and of all sources and a [mix], how often each source and class
would be read: conditions are evaluated on the documents of the sample, and these are packed as all would be.

A window of `units` units stands for `amount` of them, so what it holds counts amount/units times; the sum over the
windows estimates the total. Its interval is two standard errors, from the differences between neighbours, as windows at
equal distances want it: files differ more than the parts of a file (Wolter, "An Investigation of Some Estimators of
Variance for Systematic Sampling", 1984, estimator v2).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from typing import Literal

import numpy as np
import pyarrow as pa

from pretok.base.errors import UsageError
from pretok.base.kinds import LEARNED
from pretok.base.records import replace
from pretok.base.tokens import Ints
from pretok.config import MixTable
from pretok.forecast.measure import Found, Sample
from pretok.stream.classes import evaluate, parse_class
from pretok.stream.mix_file import MixSource, sequences
from pretok.stream.pack import packed_shares
from pretok.stream.quota import as_counted, stage_quotas, weighed

ERRORS = 2.0
"""Standard errors on each side: an interval of about 95 %."""
ROUNDING = 1e-9
"""How far what a window stands for may be from what it holds, when it is all of it."""
ENDLESS = 1 << 60
"""Tokens of a source of which one window says nothing."""


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate and the bounds between which it should lie; equal where everything was read."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class SourceForecast:
    """What a source should hold. files, stored: its inputs and their bytes; bytes: of text; learned: tokens of
    conversations that are learned, None of plain text; reject_share: of records; sampled: bytes of text that were
    encoded; rate: bytes of text that one core parses and encodes in a second; words: distinct ones; shards: their
    number, of `shard_bytes` bytes of tokens each."""

    files: int
    stored: int
    documents: Interval
    bytes: Interval
    tokens: Interval
    learned: Interval | None
    reject_share: float
    rejected: dict[str, float]
    words: float
    sampled: int
    rate: float
    shard_bytes: int
    shards: int


def forecast_source(
    sample: Sample, files: int, stored: int, shard_bytes: int, itemsize: int, chat: bool = False
) -> SourceForecast:
    """A source from its windows. chat: whether it holds conversations.

    Raises UsageError where no text was found in any."""
    found = [part for part in sample.found if part.bytes]
    if not found:
        reasons = sum((part.rejected for part in sample.found), Counter[str]())
        said = ", ".join(f"{count} {reason}" for reason, count in reasons.most_common(3))
        raise UsageError(f"no text in any of {len(sample.found)} samples ({said or 'no record'})")
    whole = all(part.window.amount <= part.window.units * (1 + ROUNDING) for part in sample.found)
    documents = _total(sample.found, lambda part: part.documents, whole)
    text = _total(sample.found, lambda part: part.bytes, whole)
    read = whole and all(part.encoded == part.bytes for part in sample.found)
    tokens, learned = (_total(sample.found, of, read) for of in (_tokens, _learned))
    rejected = {
        reason: _total(sample.found, lambda part, reason=reason: part.rejected[reason], whole).value  # type: ignore[misc]
        for reason in sorted(sum((part.rejected for part in sample.found), Counter[str]()))
    }
    refused = sum(rejected.values())
    return SourceForecast(
        files=files,
        stored=stored,
        documents=documents,
        bytes=text,
        tokens=tokens,
        learned=learned if chat else None,
        reject_share=refused / max(1.0, refused + documents.value),
        rejected=rejected,
        words=sample.distinct_words(text.value),
        sampled=sample.bytes,
        rate=sample.rate,
        shard_bytes=shard_bytes,
        shards=math.ceil(tokens.value * itemsize / shard_bytes),
    )


def _tokens(part: Found) -> float:
    return part.tokens * part.bytes / part.encoded if part.encoded else 0.0


def _learned(part: Found) -> float:
    return sum(int(some.sum()) for some in part.learned) * part.bytes / part.encoded if part.encoded else 0.0


def _total(found: Sequence[Found], of: Callable[[Found], float], whole: bool) -> Interval:
    """The total of what `of` gives for each window; whole: each window is all that it stands for. Windows that could
    not be read count as the others' average."""
    if whole:  # a sum that nothing is rounded in
        value = float(sum(map(of, found)))
        return Interval(value, value, value)
    parts = [part.window.amount / part.window.units * of(part) for part in found]
    value = sum(parts)
    if len(parts) == 1:  # of one window nothing is known of the others
        return Interval(value, 0.0, math.inf)
    variance = sum((b - a) ** 2 for a, b in pairwise(parts)) / (2 * (len(parts) - 1))
    error = ERRORS * math.sqrt(len(parts) * variance)
    return Interval(value, max(0.0, value - error), value + error)


@dataclass(frozen=True, slots=True)
class MixForecast:
    """What a mix would take. tokens: of the mix; learned: those of them that are learned, None of plain text; epochs:
    of each source and class; problem: why it cannot be, or ""; sure: whether that is the same at both ends of all
    intervals; classes: tokens of each; notes: what the sample does not tell."""

    tokens: int
    learned: int | None
    epochs: dict[str, float]
    problem: str
    sure: bool
    classes: dict[str, Interval]
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Entry:
    """What a mix weighs: its tokens and, of its documents in the sample, those of each; learned: the share that is
    learned of conversations, None of plain text."""

    tokens: Interval
    lengths: Ints
    learned: float | None


def forecast_mix(
    mix: MixTable, sources: Mapping[str, SourceForecast], samples: Mapping[str, Sample], train: float
) -> MixForecast:
    """How often a mix would read each source and class, were the estimates exact. train: the share of the documents
    that is not kept for validation; a mix is of these."""
    entries: dict[str, _Entry] = {}
    unknown: set[str] = set()
    notes = []
    for name, source in sources.items():
        asked = {c: parse_class(c, text) for c, text in mix.classes.items()}
        of = {c: one.predicate for c, one in asked.items() if one.source == name}
        try:
            entries |= _entries(name, source, samples[name], of)
        except UsageError as error:  # the columns of annotations come later
            entries |= _entries(name, source, samples[name], {})
            unknown |= of.keys()
            notes.append(f"{', '.join(of)} counts as all of {name}: {str(error).partition(chr(10))[0]}")
    mix = _whole_sources(mix, unknown)
    asked_for = {name for stage in mix.all_stages for name in (stage.named or entries)}
    held = {name: entry for name, entry in sorted(entries.items()) if name in asked_for}
    middle, *ends = (
        _try(mix, held, train, of)
        for of in (lambda one: one.value, lambda one: one.low, lambda one: min(one.high, ENDLESS))
    )
    return MixForecast(
        *middle,
        sure=not unknown and all(bool(problem) == bool(middle[3]) for *_, problem in ends),
        classes={name: entry.tokens for name, entry in entries.items() if name not in sources},
        notes=tuple(notes),
    )


def _entries(
    name: str, source: SourceForecast, sample: Sample, predicates: Mapping[str, str]
) -> dict[str, _Entry]:
    """A source, or its classes and its rest. Raises UsageError for a condition on what the sample does not have."""
    rows = [pa.concat_tables(part.rows) for part in sample.found if part.rows]
    every = pa.concat_tables(rows).combine_chunks()
    lengths = np.asarray(every["tokens"])
    if not predicates:
        known = source.learned
        share = None if known is None else known.value / max(source.tokens.value, 1.0)
        return {name: _Entry(source.tokens, lengths, share)}
    chosen = evaluate(every, predicates)
    chosen = np.vstack([chosen, ~chosen.any(axis=0)])  # and the rest
    ends = iter(np.cumsum([0, *map(len, rows)]).tolist())
    at = {id(part): slice(begin, end) for part, (begin, end) in zip(
        (part for part in sample.found if part.rows), pairwise(ends), strict=True)}  # fmt: skip
    exact = source.tokens.low == source.tokens.value == source.tokens.high
    learned = np.concatenate([some for part in sample.found for some in part.learned])
    found = {}
    for mask, entry in zip(chosen, (*predicates, name), strict=True):
        of_entry = np.where(mask, lengths, 0)

        def tokens(part: Found, of_entry: Ints = of_entry) -> float:
            inside = int(of_entry[at[id(part)]].sum()) if part.rows else 0
            return inside * part.bytes / part.encoded if part.encoded else 0.0

        share = None if source.learned is None else float(learned[mask].sum() / max(lengths[mask].sum(), 1))
        found[entry] = _Entry(_total(sample.found, tokens, exact), lengths[mask], share)
    return found


def _whole_sources(mix: MixTable, unknown: AbstractSet[str]) -> MixTable:
    """The same where a class of which nothing is known counts as its source, and its repetition as none."""

    def whole(weights: dict[str, Fraction] | Literal["natural"]) -> dict[str, Fraction] | Literal["natural"]:
        if weights == "natural":
            return weights
        found: dict[str, Fraction] = {}
        for name, weight in weights.items():
            source = parse_class(name, mix.classes[name]).source if name in unknown else name
            found[source] = found.get(source, Fraction(0)) + weight
        return found

    stages = tuple(stage.model_copy(update={"weights": whole(stage.weights)}) for stage in mix.stages)
    repeat = {name: times for name, times in mix.repeat.items() if name not in unknown}
    return mix.model_copy(update={"weights": whole(mix.weights), "stages": stages, "repeat": repeat})


def _try(
    mix: MixTable, entries: Mapping[str, _Entry], train: float, of: Callable[[Interval], float]
) -> tuple[int, int | None, dict[str, float], str]:
    """(tokens, those that are learned, epochs of each entry, problem) of a mix over entries of which `of` says how many
    tokens they have."""
    length = mix.seq_len
    sources = []
    for name, entry in entries.items():
        count = int(train * of(entry.tokens))
        made = MixSource(name, count, sequences(count, length, "epoch"))
        if mix.pack != "none" and count > 1:
            bins, targets = (int(count * share) for share in packed_shares(entry.lengths, length))
            made = replace(made, sequences=bins, packed=True, targets=targets)
        if entry.learned is not None:
            known = int((made.targets if made.packed else count) * entry.learned)
            made = replace(made, learn=LEARNED, learned_tokens=known)
        sources.append(made)
    drawn = [0] * len(sources)
    problem = ""
    counted = as_counted(mix, sources)
    try:
        mix = weighed(mix, counted)
        for stage in mix.all_stages:
            quotas, _ = stage_quotas(stage, mix, counted, drawn)
            drawn = [taken + quota for taken, quota in zip(drawn, quotas, strict=True)]
    except UsageError as error:
        problem = str(error)
    epochs = {
        source.name: taken / source.sequences if source.sequences else 0.0
        for source, taken in zip(sources, drawn, strict=True)
    }
    tokens = sum(taken * source.predicted(length) for source, taken in zip(sources, drawn, strict=True))
    learned = sum(taken * source.learned(length) for source, taken in zip(sources, drawn, strict=True))
    masked = any(source.learn for source in sources)
    return int(tokens), int(learned) if masked else None, epochs, problem
