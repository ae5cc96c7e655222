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
from pretok.read.kept import Keep
from pretok.read.partition import shard_bytes
from pretok.read.probe import Probe, decide_types, probe_inputs
from pretok.read.readers import RecordFormat
from pretok.read.recognise import list_inputs
from pretok.read.rejects import poor_sources
from pretok.tokenizer.encoder import Encoder
from pretok.tokenizer.vocabulary import Vocabulary

WORD_BYTES = 140
"""Memory of build-vocab's driver for each distinct word at most, see docs/scaling.md."""
WORKER_BYTES = 600_000_000
"""Memory of a worker of tokenize at most, see docs/scaling.md."""
FILES_A_SHARD = 3


@dataclass(frozen=True, slots=True)
class Forecast:
    """What a recipe should give. vocabulary: the tokenizer that counted, "" for one made for the purpose; vocab_size:
    entries of it, or of the one to be made; itemsize: bytes of a token on disk; words: distinct ones of all sources, at
    most."""

    vocabulary: str
    vocab_size: int
    itemsize: int
    workers: int
    sources: dict[str, SourceForecast]
    mix: MixForecast | None

    @property
    def tokens(self) -> Interval:
        """Of all sources. The intervals are added, as if all erred to the same side."""
        parts = [source.tokens for source in self.sources.values()]
        return Interval(*(sum(getattr(part, name) for part in parts) for name in ("value", "low", "high")))

    @property
    def words(self) -> float:
        """Distinct words at most: those of all sources, as if they shared none."""
        return sum(source.words for source in self.sources.values())

    @property
    def seconds(self) -> float:
        """Tokenizing with all workers, each at the rate measured here."""
        return sum(source.bytes.value / source.rate for source in self.sources.values()) / max(
            1, self.workers
        )


def run_forecast(recipe: Recipe, workers: int, seed: int, console: Console) -> Forecast:
    """Sample every source. Raises UsageError for inputs that are not there or hold no text, as tokenize would."""
    probed = {name: _probe(source, console) for name, source in recipe.sources.items()}
    with counting_vocabulary(recipe, probed, seed) as (vocab, trained):
        vocab_size = recipe.vocab.size if trained else vocab.size  # a sample may allow fewer entries
        if trained and recipe.vocab.extend is not None:
            vocab_size = vocab.size + (0 if recipe.vocab.replace else recipe.vocab.added)
        itemsize = token_dtype(vocab_size).itemsize
        sources, samples = {}, {}
        for name, source in recipe.sources.items():
            kept = decide_types(name, source.kept, probed[name], console)
            record = resolve(source.record, vocab, name)
            encoder = _encoder(vocab, record)
            found = measure(
                probed[name],
                f"{seed}/{name}",
                record,
                recipe.normalize.function,
                encoder,
                recipe.vocab.pattern,
                Keep(kept, source.on_mismatch == "reject"),
                (source.messages and source.learn) or LEARNED,
            )
            samples[name] = found
            for error in found.errors:
                console.notice(f"{name}: not sampled: {error}")
            probes = probed[name]
            target = recipe.shards.size or shard_bytes(probes, itemsize)
            stored, chat = sum(probe.file.size for probe in probes), bool(source.messages or source.template)
            try:
                sources[name] = forecast_source(found, len(probes), stored, target, itemsize, chat)
            except UsageError as error:
                raise UsageError(f"source {name}: {error}") from None
        read = {}
        for name, held in sources.items():
            rejected = {reason: round(number) for reason, number in held.rejected.items()}
            read[name] = round(held.documents.value) + sum(rejected.values()), rejected
        for complaint in poor_sources(recipe.shards.max_reject_share, read, "estimated from a sample"):
            console.notice(complaint)
        fingerprint = "" if trained else vocab.fingerprint
    train = 1.0 - recipe.shards.val_fraction
    mix = None if recipe.mix is None else forecast_mix(recipe.mix, sources, samples, train)
    return Forecast(fingerprint, vocab_size, itemsize, workers, sources, mix)


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
    learned = ("learned",) if masked else ()
    columns = (
        "source",
        "files",
        "on disk",
        "documents",
        "tokens",
        "bytes per token",
        "rejected",
        "shards",
        *learned,
    )
    made = [table("what the sources hold, estimated", columns, rows), _cost(forecast)]
    if forecast.mix is not None:
        made.append(_mix(forecast.mix))
    return made


def _cost(forecast: Forecast) -> Table:
    shards = sum(source.shards for source in forecast.sources.values())
    tokens = forecast.tokens
    rates = [source.rate for source in forecast.sources.values()]
    rows = [
        ("tokens", f"{_spread(tokens)}, {human_bytes(tokens.value * forecast.itemsize)} on disk"),
        ("files", f"about {FILES_A_SHARD * shards:,} in {shards:,} shards"),
        ("tokenize", f"{duration(forecast.seconds)} with {forecast.workers} workers, each at the "
         f"{human_bytes(min(rates))}/s measured here; start-up not counted"),
        ("memory", f"{human_bytes(WORKER_BYTES * forecast.workers)} at most for the workers"),
    ]  # fmt: skip
    if not forecast.vocabulary:
        need = human_bytes(max(WORD_BYTES * forecast.words, 5e8))
        rows.append(("build-vocab", f"up to {human(forecast.words)} distinct words, {need} in the driver"))
    return table("what it takes", ("", "estimate"), rows)


def _mix(mix: MixForecast) -> Table:
    fits = "no" if mix.problem else "yes"
    rows = [
        ("fits", fits if mix.sure else f"{fits}, but the estimates allow the other too"),
        *([("why not", mix.problem)] if mix.problem else [("tokens", f"{mix.tokens:,}")]),
        *([("learned", f"{mix.learned:,} of them")] if mix.learned is not None and not mix.problem else []),
        *((name, f"{_spread(held)} tokens by its condition") for name, held in mix.classes.items()),
        *((f"epochs of {name}", f"{epochs:.2f}") for name, epochs in mix.epochs.items()),
        *(("not known", note) for note in mix.notes),
    ]
    return table("the mix", ("", "estimate"), rows)


def _spread(interval: Interval) -> str:
    """`1.23 M ± 2.1 %`; no spread where everything was read."""
    if interval.low == interval.value:
        return human(interval.value)
    if interval.high == float("inf"):
        return f"about {human(interval.value)}"
    return f"{human(interval.value)} ± {(interval.high - interval.value) / max(interval.value, 1e-9):.1%}"
