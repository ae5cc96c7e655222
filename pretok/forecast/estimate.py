"""Measured windows -> whole sources with intervals, and how often a mix would read each.

Input: a `Sample` of a source. Output: `SourceForecast`; of all sources and a [mix], a `MixForecast`.

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
from itertools import pairwise

from pretok.base.errors import UsageError
from pretok.config import MixTable
from pretok.forecast.measure import Found, Sample
from pretok.stream.mix_file import MixSource, sequences
from pretok.stream.quota import stage_quotas, weighed

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
    conversations that are learned, None of plain text; reject_share: of records; rate: bytes of text that one
    core parses and encodes in a second; shards: their number, of `shard_bytes` bytes of tokens each."""

    files: int
    stored: int
    documents: Interval
    bytes: Interval
    tokens: Interval
    learned: Interval | None
    reject_share: float
    rejected: dict[str, float]
    rate: float
    shard_bytes: int
    shards: int


def forecast_source(
    sample: Sample, files: int, stored: int, shard_bytes: int, itemsize: int, chat: bool = False
) -> SourceForecast:
    """A source from its windows. chat: whether it holds conversations; itemsize: bytes of a token on disk.

    Raises UsageError where no text was found in any."""
    reasons = sum((part.rejected for part in sample.found), Counter[str]())
    if not any(part.bytes for part in sample.found):
        said = ", ".join(f"{count} {reason}" for reason, count in reasons.most_common(3))
        raise UsageError(f"no text in any of {len(sample.found)} samples ({said or 'no record'})")
    whole = all(part.window.amount <= part.window.units * (1 + ROUNDING) for part in sample.found)
    encoded = whole and all(part.encoded == part.bytes for part in sample.found)

    def of_all(count: Callable[[Found], float]) -> Interval:
        return _total(sample.found, count, whole)

    def of_encoded(count: Callable[[Found], float]) -> Interval:
        # Of a window only the first `encoded` bytes have tokens; the rest of it counts as these do.
        return _total(sample.found, lambda part: count(part) * part.bytes / max(1, part.encoded), encoded)

    documents, text = of_all(lambda part: part.documents), of_all(lambda part: part.bytes)
    tokens = of_encoded(lambda part: part.tokens)
    rejected = {name: of_all(lambda part, name=name: part.rejected[name]).value for name in sorted(reasons)}  # type: ignore[misc]
    refused = sum(rejected.values())
    return SourceForecast(
        files=files,
        stored=stored,
        documents=documents,
        bytes=text,
        tokens=tokens,
        learned=of_encoded(lambda part: part.learned) if chat else None,
        reject_share=refused / max(1.0, refused + documents.value),
        rejected=rejected,
        rate=sample.rate,
        shard_bytes=shard_bytes,
        shards=math.ceil(tokens.value * itemsize / shard_bytes),
    )


def _total(found: Sequence[Found], count: Callable[[Found], float], whole: bool) -> Interval:
    """The total of what `count` gives for each window; whole: each window is all that it stands for. Windows that could
    not be read count as the others' average."""
    if whole:  # a sum that nothing is rounded in
        value = float(sum(map(count, found)))
        return Interval(value, value, value)
    parts = [part.window.amount / part.window.units * count(part) for part in found]
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
    """How often a mix without classes would read each source, were the estimates exact; packing is left out of account.
    train: the share of the documents that is not kept for validation; a mix is of these."""
    named = {name for stage in mix.all_stages for name in (stage.named or sources)}
    held = {name: source for name, source in sorted(sources.items()) if name in named}
    tokens, epochs, problem = _try(mix, held, train, lambda one: one.value)
    ends = [_try(mix, held, train, end) for end in (lambda one: one.low, lambda one: min(one.high, ENDLESS))]
    return MixForecast(tokens, epochs, problem, all(bool(end[2]) == bool(problem) for end in ends))


def _try(
    mix: MixTable, sources: Mapping[str, SourceForecast], train: float, of: Callable[[Interval], float]
) -> tuple[int, dict[str, float], str]:
    """(tokens, epochs of each source, problem) of a mix over sources of which `of` says how many tokens they have."""
    made = []
    for name, source in sources.items():
        count = int(train * of(source.tokens))
        made.append(MixSource(name, count, sequences(count, mix.seq_len, "epoch")))
    drawn, problem = [0] * len(made), ""
    try:
        mix = weighed(mix, made)
        for stage in mix.all_stages:
            quotas = stage_quotas(stage, mix, made, drawn)
            drawn = [taken + quota for taken, quota in zip(drawn, quotas, strict=True)]
    except UsageError as error:
        problem = str(error)
    epochs = {one.name: taken / max(one.sequences, 1) for one, taken in zip(made, drawn, strict=True)}
    return sum(drawn) * mix.seq_len, epochs, problem
