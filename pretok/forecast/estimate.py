"""Measured windows -> whole sources with intervals, and what a mix would take of them.

Input: a `Sample` of a source. Output: `SourceForecast`; and of all sources and a [mix], how often each would be read.

A window of `units` units stands for `amount` of them, so what it holds counts amount/units times; the sum over the
windows estimates the total. Its interval is two standard errors, from the differences between neighbours, as windows at
equal distances want it: files differ more than the parts of a file (Wolter, "An Investigation of Some Estimators of
Variance for Systematic Sampling", 1984, estimator v2).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from typing import Literal

from pretok.base.errors import UsageError
from pretok.config import MixTable
from pretok.forecast.measure import Found, Sample
from pretok.stream.mix_file import MixSource, sequences
from pretok.stream.quota import stage_quotas

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
    """What a source should hold. files, stored: its inputs and their bytes; bytes: of text; reject_share: of records;
    sampled: bytes of text that were encoded; rate: bytes of text that one core parses and encodes in a second; words:
    distinct ones; shards: their number, of `shard_bytes` bytes of tokens each."""

    files: int
    stored: int
    documents: Interval
    bytes: Interval
    tokens: Interval
    reject_share: float
    rejected: dict[str, float]
    words: float
    sampled: int
    rate: float
    shard_bytes: int
    shards: int


def forecast_source(
    sample: Sample, files: int, stored: int, shard_bytes: int, itemsize: int
) -> SourceForecast:
    """A source from its windows. Raises UsageError where no text was found in any."""
    found = [part for part in sample.found if part.bytes]
    if not found:
        reasons = sum((part.rejected for part in sample.found), Counter[str]())
        said = ", ".join(f"{count} {reason}" for reason, count in reasons.most_common(3))
        raise UsageError(f"no text in any of {len(sample.found)} samples ({said or 'no record'})")
    whole = all(part.window.amount <= part.window.units * (1 + ROUNDING) for part in sample.found)
    documents = _total(sample.found, lambda part: part.documents, whole)
    text = _total(sample.found, lambda part: part.bytes, whole)
    tokens = _total(sample.found, _tokens, whole and all(part.encoded == part.bytes for part in sample.found))
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
    """What a mix would take. tokens: of the mix; epochs: of each source; problem: why it cannot be, or ""; sure:
    whether that is the same at both ends of all intervals."""

    tokens: int
    epochs: dict[str, float]
    problem: str
    sure: bool


def forecast_mix(mix: MixTable, sources: Mapping[str, SourceForecast], train: float) -> MixForecast:
    """How often a mix would read each source, were the estimates exact. train: the share of the documents that is not
    kept for validation; a mix is of these."""
    mix = _whole_sources(mix)
    asked = {name for stage in mix.all_stages for name in (stage.named or sources)}
    tokens = {name: sources[name].tokens for name in sorted(asked)}
    middle, *ends = (
        _try(mix, held)
        for held in (
            {name: int(train * interval.value) for name, interval in tokens.items()},
            {name: int(train * interval.low) for name, interval in tokens.items()},
            {name: int(train * min(interval.high, ENDLESS)) for name, interval in tokens.items()},
        )
    )
    return MixForecast(
        *middle, sure=not mix.classes and all(bool(problem) == bool(middle[2]) for _, _, problem in ends)
    )


def _whole_sources(mix: MixTable) -> MixTable:
    """The same where a class counts as its source: what it holds is known when the mix is made, so nothing is sure."""

    def whole(weights: dict[str, Fraction] | Literal["natural"]) -> dict[str, Fraction] | Literal["natural"]:
        if weights == "natural":
            return weights
        found: dict[str, Fraction] = {}
        for name, weight in weights.items():
            source = mix.classes[name].split()[0] if name in mix.classes else name
            found[source] = found.get(source, Fraction(0)) + weight
        return found

    stages = tuple(stage.model_copy(update={"weights": whole(stage.weights)}) for stage in mix.stages)
    return mix.model_copy(update={"weights": whole(mix.weights), "stages": stages})


def _try(mix: MixTable, tokens: Mapping[str, int]) -> tuple[int, dict[str, float], str]:
    """(tokens, epochs of each source, problem) of a mix over sources of so many tokens."""
    length = mix.seq_len
    sources = [MixSource(name, count, sequences(count, length, "epoch")) for name, count in tokens.items()]
    drawn = [0] * len(sources)
    problem = ""
    for stage in mix.all_stages:
        try:
            quotas, _ = stage_quotas(stage, mix, sources, drawn)
        except UsageError as error:
            problem = str(error)
            break
        drawn = [taken + quota for taken, quota in zip(drawn, quotas, strict=True)]
    epochs = {
        source.name: taken / source.sequences if source.sequences else 0.0
        for source, taken in zip(sources, drawn, strict=True)
    }
    return sum(drawn) * length, epochs, problem
