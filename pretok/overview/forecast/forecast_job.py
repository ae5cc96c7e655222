"""plan: a recipe -> an estimate of its results and costs, before any node-hour is spent.

Input: a Recipe. Output: a `Forecast` and its tables; nothing is written. If the recipe's vocabulary exists, tokens are
counted with it. Otherwise one is trained on another sample of the same sources; it has seen less text than the real one
will, and so makes more tokens.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import chain

from pretok.base.console import Console, Table, table
from pretok.base.errors import UsageError
from pretok.base.tokens import token_dtype
from pretok.base.units import duration, human, human_bytes, listed, plural
from pretok.chat.resolve import resolve
from pretok.config import Recipe, located
from pretok.config.changes import list_sources
from pretok.overview.forecast.estimate import (
    Interval,
    MixForecast,
    SourceForecast,
    forecast_mix,
    forecast_source,
)
from pretok.overview.forecast.measure import MeasuredSource, measure
from pretok.overview.forecast.vocabulary import counting_vocabulary
from pretok.read.batches import NOT_CANONICAL
from pretok.read.damage import too_many
from pretok.read.format import Probe
from pretok.read.partition import shard_bytes
from pretok.read.probe import lacks_text, probe_inputs
from pretok.read.record_format import Conversation
from pretok.read.rejects_file import WORST, most_in
from pretok.tokenizer.encoder import Encoder
from pretok.tokenizer.vocabulary import Vocabulary

WORKER_BYTES = 800_000_000
"""The most memory that a worker of tokenize takes, see docs/running.md."""


@dataclass(frozen=True, slots=True)
class Forecast:
    """The estimate for a recipe."""

    vocabulary: str
    """Fingerprint of the tokenizer that counted; "" if it stands in for the recipe's."""
    vocab_size: int
    """Entries of the recipe's vocabulary."""
    itemsize: int
    """Bytes of a token on disk."""
    workers: int
    tokens: Interval
    seconds: float
    """Of tokenizing with all workers, each at the rate measured here."""
    sources: dict[str, SourceForecast]
    mix: MixForecast | None
    """None without [mix], or with classes, whose documents are known only once they are tokenized."""


def run_forecast(recipe: Recipe, workers: int, console: Console) -> Forecast:
    """Sample every source. Raises UsageError for inputs that do not exist or hold no text, as tokenize would."""
    probed = {}
    for name, listings in list_sources(recipe, console).items():
        files = sorted(chain(*(listing.files for listing in listings)), key=lambda file: file.path)
        with located(recipe, "sources", name, "inputs"):
            probed[name] = probe_inputs(files, *recipe.sources[name].probed, console=console)
    vocab, stands_in = counting_vocabulary(recipe, probed)
    vocab_size = recipe.vocab.size if stands_in else vocab.size  # a sample may allow fewer entries
    if stands_in and recipe.vocab.extend is not None:
        vocab_size = vocab.size + recipe.vocab.add
    itemsize = token_dtype(vocab_size).itemsize
    sources = {
        name: _forecast(recipe, name, probes, vocab, itemsize, console) for name, probes in probed.items()
    }
    mix = None
    if recipe.mix is not None and recipe.mix.classes:
        console.notice("the mix has classes, which cannot be estimated: run pretok mix after tokenizing")
    elif recipe.mix is not None:
        mix = forecast_mix(recipe.mix, sources, 1.0 - recipe.shards.val_fraction)
    parts = [source.tokens for source in sources.values()]
    return Forecast(
        vocabulary="" if stands_in else vocab.fingerprint,
        vocab_size=vocab_size,
        itemsize=itemsize,
        workers=workers,
        # The intervals are added, as if all errors had the same sign.
        tokens=Interval(*(sum(getattr(part, end) for part in parts) for end in ("value", "low", "high"))),
        seconds=sum(source.bytes.value / source.rate for source in sources.values()) / workers,
        sources=sources,
        mix=mix,
    )


def _forecast(
    recipe: Recipe, name: str, probes: list[Probe], vocab: Vocabulary, itemsize: int, console: Console
) -> SourceForecast:
    """Sample one source."""
    source = recipe.sources[name]
    record = resolve(source.record_format(), vocab, name, source.limits)
    how = record.conversation
    encoder = Encoder(vocab.with_special(how.markers if isinstance(how, Conversation) else ()))
    # `probe_inputs` has named the tables without the text.
    fields, lists, _ = source.probed
    readable = [probe for probe in probes if not (probe.parts and lacks_text(probe, fields, lists))]
    sample = measure(readable, name, record, recipe.normalize.function, encoder, source.limits)
    for path, error in sample.errors.items():
        what = "left out, damaged" if source.skip_damaged else "not sampled"
        console.notice(f"{name}: {what}: {path}: {error}")
    most = source.most_damaged(len(probes))
    if source.skip_damaged and len(sample.errors) > most:
        console.notice(f"{name}: {too_many(len(sample.errors), len(probes), most)}: tokenize would fail")
    remarks: dict[str, Counter[str]] = {}
    for part in sample.windows:
        for remark, number in part.remarks.items():
            remarks.setdefault(remark, Counter())[part.window.path] += number
    sampled = sum(part.documents for part in sample.windows)
    for remark, files in sorted(remarks.items()):
        if not (number := files.total()):
            continue
        other = ": they are of another tokenizer" if remark == NOT_CANONICAL and 2 * number > sampled else ""
        what = f"{number:,} of {plural(sampled, 'sampled document')} of tokens {remark}{other}"
        console.notice(f"{name}: {what}: {most_in(+files)}")
    target = recipe.shards.size or shard_bytes(probes, itemsize)
    stored = sum(probe.file.size for probe in probes)
    try:
        found = forecast_source(sample, len(probes), stored, target, itemsize)
    except UsageError as error:
        raise UsageError(f"source {name}: {error}") from None
    if lost := _lost(sample):
        allowed = recipe.shards.max_reject_share
        more = (
            f"; by its files, {found.lost_share:.1%} of the source, more than the share of {float(allowed):g} that "
            "max_reject_share allows"
        )
        console.notice(f"{name}: {lost}{more if found.lost_share > allowed else ''}")
    return found


def _lost(sample: MeasuredSource) -> str:
    """Say how many of the sampled records give no document, and where the first of each file is; "" if all do."""
    lost, first = Counter[str](), dict[str, str]()
    for part in sample.windows:
        if part.lost:
            lost[part.window.path] += part.lost
            first.setdefault(part.window.path, part.defect)
    places = [first[path] for path, _ in lost.most_common()]
    sampled = plural(sum(part.records for part in sample.windows), "sampled record")
    return f"of {sampled}, {lost.total():,} cannot be read ({listed(places, WORST, '; ')})" if lost else ""


def tables(forecast: Forecast) -> list[Table]:
    """Lay the forecast out for a person."""
    columns = ["source", "files", "on disk", "documents", "tokens", "bytes per token", "rejected", "shards"]
    rows = [
        (
            name,
            f"{source.files:,}",
            human_bytes(source.stored),
            _spread(source.documents),
            _spread(source.tokens),
            f"{source.bytes.value / max(1.0, source.tokens.value):.3f}",
            f"{source.reject_share:.2%}",
            f"{source.shards:,} of {human_bytes(source.shard_bytes)}",
        )
        for name, source in forecast.sources.items()
    ]
    rate = human_bytes(min(source.rate for source in forecast.sources.values()))
    on_disk = human_bytes(forecast.tokens.value * forecast.itemsize)
    time = f"{duration(forecast.seconds)} with {forecast.workers} workers at {rate}/s each, measured here"
    cost = [
        ("tokens", f"{_spread(forecast.tokens)}, {on_disk} on disk"),
        ("tokenize", f"{time}; start-up not counted"),
        ("memory", f"{human_bytes(WORKER_BYTES * forecast.workers)} at most for the workers"),
    ]
    parts = [
        table("estimated contents of the sources", columns, rows),
        table("estimated cost", ("", "estimate"), cost),
    ]
    if (mix := forecast.mix) is not None:
        fits = "no" if mix.problem else "yes"
        lines = [
            ("fits", fits if mix.sure else f"{fits}, but the estimates do not exclude the opposite"),
            ("why not", mix.problem) if mix.problem else ("tokens", f"{mix.tokens:,}"),
            *((f"epochs of {name}", f"{epochs:.2f}") for name, epochs in mix.epochs.items()),
        ]
        parts.append(table("the mix", ("", "estimate"), lines))
    return parts


def _spread(interval: Interval) -> str:
    """Format an estimate as `1.23 M ± 2.1 %`; without a spread if everything was read."""
    if interval.low == interval.value:
        return human(interval.value)
    if interval.high == float("inf"):
        return f"about {human(interval.value)}"
    return f"{human(interval.value)} ± {(interval.high - interval.value) / max(interval.value, 1e-9):.1%}"
