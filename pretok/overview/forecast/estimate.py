"""Measured windows -> whole sources with intervals, and how often a mix would read each.

Input: a `MeasuredSource` of a source. Output: `SourceForecast`; of all sources and a [mix], a `MixForecast`.

A window of `units` units stands for `amount` of them, so its contents count amount/units times; the sum over the
windows estimates the total. The share of rejects is taken per file, see `_share`. The interval is two standard errors,
computed from the differences between neighbours, as is right for windows at equal distances: files differ more than
the parts of a file (Wolter, "An Investigation of Some Estimators of Variance for Systematic Sampling", 1984, estimator
v2).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from pretok.base.errors import UsageError
from pretok.config import MixTable
from pretok.overview.forecast.measure import Measured, MeasuredSource
from pretok.overview.forecast.windows import POINTS
from pretok.stream.mix_file import MixSource, sequences
from pretok.stream.quota import stage_quotas, weighed

ERRORS = 2.0
"""Standard errors on each side: an interval of about 95 %."""
ROUNDING = 1e-9
"""How far `amount` and `units` of a window may differ if it covers its part of the source."""
ENDLESS = 1 << 60
"""The upper bound of tokens of a source with a single window, which says nothing of the rest."""


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate with its lower and upper bound; all three are equal if everything was read."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class SourceForecast:
    """The expected contents of a source."""

    files: int
    """The number of its inputs."""
    stored: int
    """Their bytes on disk."""
    documents: Interval
    bytes: Interval
    """Of text."""
    tokens: Interval
    reject_share: float
    """Of the records."""
    lost_share: float
    """The same without those that a setting rejects."""
    rejected: dict[str, float]
    """Records by reason."""
    rate: float
    """Bytes of text that one core parses and encodes per second."""
    shard_bytes: int
    shards: int
    """Their number, with `shard_bytes` bytes of tokens each."""


def forecast_source(
    sample: MeasuredSource, files: int, stored: int, shard_bytes: int, itemsize: int
) -> SourceForecast:
    """Estimate a source from its windows. itemsize: bytes of a token on disk.

    Raises UsageError if no window has any text.
    """
    reasons = sum((part.rejected for part in sample.windows), Counter[str]())
    every = files <= POINTS
    if not any(part.bytes for part in sample.windows):
        known = ", ".join(f"{count} {reason}" for reason, count in reasons.most_common(3))
        raise UsageError(f"no text in any of {len(sample.windows)} samples ({known or 'no record'})")
    documents = _total(sample.windows, lambda part: part.documents, _is_all)
    text = _total(sample.windows, lambda part: part.bytes, _is_all)
    # Only the first `encoded` bytes of a window were encoded; the rest counts in proportion.
    tokens = _total(
        sample.windows,
        lambda part: part.tokens * part.bytes / max(1, part.encoded),
        lambda part: _is_all(part) and part.encoded == part.bytes,
    )
    shares = {
        name: _share(sample.windows, lambda part, name=name: part.rejected[name], every)  # type: ignore[misc]
        for name in sorted(reasons)
    }
    refused = sum(shares.values())
    records = documents.value / max(1 - refused, 1e-9)
    return SourceForecast(
        files=files,
        stored=stored,
        documents=documents,
        bytes=text,
        tokens=tokens,
        reject_share=refused,
        lost_share=_share(sample.windows, lambda part: part.lost, every),
        rejected={name: share * records for name, share in shares.items()},
        rate=sample.rate,
        shard_bytes=shard_bytes,
        shards=math.ceil(tokens.value * itemsize / shard_bytes),
    )


def _share(measured: Sequence[Measured], count: Callable[[Measured], float], every: bool) -> float:
    """Estimate `count` as a share of the records of a source.

    It is the mean of the shares of its files, by the records that their bytes have. If not every file was sampled, by
    their bytes: a small file stands for many others, which must not be taken to have as many records to the byte.
    """
    files: dict[str, list[float]] = {}
    for part in measured:
        weight = part.records if every else part.bytes + part.refused
        for at, number in enumerate(
            (count(part), part.records, weight * part.window.amount / part.window.units)
        ):
            files.setdefault(part.window.path, [0.0, 0.0, 0.0])[at] += number
    whole = sum(weight for _, _, weight in files.values())
    return sum(weight * counted / max(1.0, records) for counted, records, weight in files.values()) / max(
        whole, 1e-9
    )


def _is_all(part: Measured) -> bool:
    """Whether a window stands for itself alone."""
    return abs(part.window.amount - part.window.units) <= ROUNDING * part.window.units


def _total(
    measured: Sequence[Measured], count: Callable[[Measured], float], exact: Callable[[Measured], bool]
) -> Interval:
    """Estimate the total of `count` over a source.

    exact: whether the count of a window has no error. Windows that could not be read count as none.
    """
    known = float(sum(count(part) for part in measured if exact(part)))
    parts = [part.window.amount / part.window.units * count(part) for part in measured if not exact(part)]
    value = known + sum(parts)
    if not parts:
        return Interval(value, value, value)
    if len(parts) == 1:  # one window says nothing of the rest
        return Interval(value, known, math.inf)
    variance = sum((b - a) ** 2 for a, b in pairwise(parts)) / (2 * (len(parts) - 1))
    error = ERRORS * math.sqrt(len(parts) * variance)
    return Interval(value, max(known, value - error), value + error)


@dataclass(frozen=True, slots=True)
class MixForecast:
    """The expected contents of a mix."""

    tokens: int
    epochs: dict[str, float]
    """Of each source."""
    problem: str
    """Why the mix is not possible, or ""."""
    sure: bool
    """Whether the answer is the same at both ends of all intervals."""


def forecast_mix(mix: MixTable, sources: Mapping[str, SourceForecast], train: float) -> MixForecast:
    """Compute how often a mix without classes would read each source if the estimates were exact; packing is ignored.

    train: the share of the documents that is not held out for validation.
    """
    named = {name for stage in mix.all_stages for name in (stage.weights or sources)}
    mixed = {name: source for name, source in sorted(sources.items()) if name in named}
    tokens, epochs, problem = _try(mix, mixed, train, lambda estimate: estimate.value)
    low = _try(mix, mixed, train, lambda estimate: estimate.low)
    high = _try(mix, mixed, train, lambda estimate: min(estimate.high, ENDLESS))
    return MixForecast(tokens, epochs, problem, bool(low[2]) == bool(high[2]) == bool(problem))


def _try(
    mix: MixTable, sources: Mapping[str, SourceForecast], train: float, of: Callable[[Interval], float]
) -> tuple[int, dict[str, float], str]:
    """Return (tokens, epochs of each source, problem) of a mix. of: picks the value of an interval to count with."""
    entries = []
    for name, source in sources.items():
        count = int(train * of(source.tokens))
        entries.append(MixSource(name, count, sequences(count, mix.seq_len, "epoch")))
    drawn, problem = [0] * len(entries), ""
    try:
        mix = weighed(mix, entries)
        for stage in mix.all_stages:
            quotas = stage_quotas(stage, mix, entries, drawn)
            drawn = [before + quota for before, quota in zip(drawn, quotas, strict=True)]
    except UsageError as error:
        problem = str(error)
    epochs = {
        entry.name: count / max(entry.sequences, 1) for entry, count in zip(entries, drawn, strict=True)
    }
    return sum(drawn) * mix.seq_len, epochs, problem
