"""plan: a recipe -> what it will give and cost, before any node-hour is spent.

Input: a Recipe. Output: a `Forecast`, its tables, and nothing on disk. Where the recipe's vocabulary is there, tokens
are counted with it; else with one that is trained on another sample of the same sources, which has seen less text than
the real one will and so needs more tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain

from pretok.base.console import Console, Table, table
from pretok.base.errors import UsageError
from pretok.base.kinds import LEARNED
from pretok.base.tokens import token_dtype
from pretok.base.units import duration, human, human_bytes
from pretok.chat.resolve import chat_tokenizer, resolve
from pretok.config import Recipe, Source
from pretok.forecast.estimate import Interval, MixForecast, SourceForecast, forecast_mix, forecast_source
from pretok.forecast.measure import measure
from pretok.forecast.vocabulary import counting_vocabulary
from pretok.read.conversation import Conversation
from pretok.read.partition import shard_bytes
from pretok.read.probe import Probe, probe_inputs
from pretok.read.readers import RecordFormat
from pretok.read.recognise import list_inputs
from pretok.read.rejects import poor_sources
from pretok.tokenizer.encoder import Encoder
from pretok.tokenizer.vocabulary import Vocabulary

WORKER_BYTES = 600_000_000
"""Memory of a worker of tokenize at most, see docs/running.md."""
FILES_A_SHARD = 3


@dataclass(frozen=True, slots=True)
class Forecast:
    """What a recipe should give. vocabulary: the tokenizer that counted, "" for one that stands in for it; vocab_size:
    entries of the recipe's; itemsize: bytes of a token on disk; seconds: of tokenizing with all workers, each at the
    rate measured here; mix: None without [mix] or with classes, whose documents are known when they are tokenized."""

    vocabulary: str
    vocab_size: int
    itemsize: int
    workers: int
    tokens: Interval
    seconds: float
    sources: dict[str, SourceForecast]
    mix: MixForecast | None


def run_forecast(recipe: Recipe, workers: int, seed: int, console: Console) -> Forecast:
    """Sample every source. Raises UsageError for inputs that are not there or hold no text, as tokenize would."""
    probed = {name: _probe(source, console) for name, source in recipe.sources.items()}
    vocab, stands_in = counting_vocabulary(recipe, probed, seed)
    vocab_size = recipe.vocab.size if stands_in else vocab.size  # a sample may allow fewer entries
    if stands_in and recipe.vocab.extend is not None:
        vocab_size = vocab.size + recipe.vocab.added
    itemsize = token_dtype(vocab_size).itemsize
    sources = {
        name: _forecast(recipe, name, probes, vocab, itemsize, seed, console)
        for name, probes in probed.items()
    }
    read = {}
    for name, held in sources.items():
        rejected = {reason: round(number) for reason, number in held.rejected.items()}
        read[name] = round(held.documents.value) + sum(rejected.values()), rejected
    for complaint in poor_sources(recipe.shards.max_reject_share, read, "estimated from a sample"):
        console.notice(complaint)
    mix = None
    if recipe.mix is not None and recipe.mix.classes:
        console.notice(
            "the mix has classes, whose documents are known once they are tokenized: pretok mix says it"
        )
    elif recipe.mix is not None:
        mix = forecast_mix(recipe.mix, sources, 1.0 - recipe.shards.val_fraction)
    parts = [source.tokens for source in sources.values()]
    return Forecast(
        vocabulary="" if stands_in else vocab.fingerprint,
        vocab_size=vocab_size,
        itemsize=itemsize,
        workers=workers,
        # The intervals are added, as if all erred to the same side.
        tokens=Interval(*(sum(getattr(part, end) for part in parts) for end in ("value", "low", "high"))),
        seconds=sum(source.bytes.value / source.rate for source in sources.values()) / workers,
        sources=sources,
        mix=mix,
    )


def _forecast(
    recipe: Recipe,
    name: str,
    probes: list[Probe],
    vocab: Vocabulary,
    itemsize: int,
    seed: int,
    console: Console,
) -> SourceForecast:
    """Sample one source."""
    source = recipe.sources[name]
    record = resolve(source.record, vocab, name)
    found = measure(
        probes,
        f"{seed}/{name}",
        record,
        recipe.normalize.function,
        _encoder(vocab, record),
        (source.messages and source.learn) or LEARNED,
    )
    for error in found.errors:
        console.notice(f"{name}: not sampled: {error}")
    target = recipe.shards.size or shard_bytes(probes, itemsize)
    stored, chat = sum(probe.file.size for probe in probes), bool(source.messages or source.template)
    try:
        return forecast_source(found, len(probes), stored, target, itemsize, chat)
    except UsageError as error:
        raise UsageError(f"source {name}: {error}") from None


def _encoder(vocab: Vocabulary, record: RecordFormat) -> Encoder:
    """What encodes the documents of a source."""
    how = record.conversation
    json = chat_tokenizer(vocab.raw.decode(), how.markers if isinstance(how, Conversation) else ())
    return Encoder(json, vocab.eod_id, vocab.size, str(vocab.path), vocab.bos_id)


def _probe(source: Source, console: Console) -> list[Probe]:
    inputs, notices = list_inputs(tuple(chain(*source.inputs_by_append)), source.format)
    for text in notices:
        console.notice(text)
    return probe_inputs(inputs, *source.probed, console=console)


def tables(forecast: Forecast) -> list[Table]:
    """The forecast as a person reads it."""
    masked = any(source.learned for source in forecast.sources.values())
    columns = ("source", "files", "on disk", "documents", "tokens", "bytes per token", "rejected", "shards")
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
            *([_spread(source.learned or source.tokens)] if masked else []),
        )
        for name, source in forecast.sources.items()
    ]
    made = [
        table("what the sources hold, estimated", (*columns, *(["learned"] if masked else [])), rows),
        table("what it takes", ("", "estimate"), _cost(forecast)),
    ]
    if (mix := forecast.mix) is not None:
        fits = "no" if mix.problem else "yes"
        rows = [
            ("fits", fits if mix.sure else f"{fits}, but the estimates allow the other too"),
            ("why not", mix.problem) if mix.problem else ("tokens", f"{mix.tokens:,}"),
            *((f"epochs of {name}", f"{epochs:.2f}") for name, epochs in mix.epochs.items()),
        ]
        made.append(table("the mix", ("", "estimate"), rows))
    return made


def _cost(forecast: Forecast) -> list[tuple[str, str]]:
    shards = sum(source.shards for source in forecast.sources.values())
    rate = human_bytes(min(source.rate for source in forecast.sources.values()))
    on_disk = human_bytes(forecast.tokens.value * forecast.itemsize)
    return [
        ("tokens", f"{_spread(forecast.tokens)}, {on_disk} on disk"),
        ("files", f"about {FILES_A_SHARD * shards:,} in {shards:,} shards"),
        ("tokenize", f"{duration(forecast.seconds)} with {forecast.workers} workers at {rate}/s each, measured here; "
         "start-up not counted"),
        ("memory", f"{human_bytes(WORKER_BYTES * forecast.workers)} at most for the workers"),
    ]  # fmt: skip


def _spread(interval: Interval) -> str:
    """`1.23 M ± 2.1 %`; no spread where everything was read."""
    if interval.low == interval.value:
        return human(interval.value)
    if interval.high == float("inf"):
        return f"about {human(interval.value)}"
    return f"{human(interval.value)} ± {(interval.high - interval.value) / max(interval.value, 1e-9):.1%}"
