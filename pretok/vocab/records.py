"""What VOCAB/report.json holds, as typed records; `pretok.base.records` reads and writes them.

Shares are of 1. A figure is None where there is no text to say it from. `heldout` and `compare` are of the held-out
texts that were kept; all other figures are of the words of all training documents, which is exact.
"""

from __future__ import annotations

from typing import Any

from pretok.base.failures import Failure
from pretok.base.records import Count, Record


class MadeVocabulary(Record, frozen=True):
    """The vocabulary that was written; asked: the entries it was to have."""

    size: Count
    asked: Count
    fingerprint: str
    eod_id: Count


class CountedWords(Record, frozen=True):
    """What it was trained from. dropped: words rarer than `min_count`."""

    distinct: Count
    occurrences: Count
    dropped: Count
    dropped_share_of_text: float | None


class Costs(Record, frozen=True, kw_only=True, omit_defaults=True):
    """Text of one source by this vocabulary; words are those of the pattern, signs and spaces among them."""

    documents: Count | None = None
    bytes: Count
    words: Count
    tokens: Count
    bytes_per_token: float | None
    tokens_per_word: float | None


class SourceCosts(Record, frozen=True):
    """One source. weight: its share of the text trained on; multiplier: what its counts were multiplied by for that."""

    documents: Count
    weight: float | None
    multiplier: Count
    distinct_words: Count
    training: Costs
    heldout: Costs


class LongToken(Record, frozen=True):
    """One of the longest entries."""

    id: Count
    token: str
    occurrences: dict[str, Count]


class TokenOwners(Record, frozen=True):
    """Whose the entries are. mostly_in: source -> entries found there above all; unused_bytes: hexadecimal."""

    mostly_in: dict[str, Count]
    shared: Count
    unused: Count
    longest: tuple[LongToken, ...]
    unused_bytes: tuple[str, ...]


class Compared(Record, frozen=True):
    """One source by one tokenizer. fertility: tokens per word between spaces, as papers count them."""

    tokens: Count | None
    bytes: Count
    bytes_per_token: float | None
    fertility: float | None


class MixCosts(Record, frozen=True):
    """Bytes per token where the sources have their shares of the vocabulary's training text: of all text by size, of
    held-out texts by tokenizer."""

    shares: dict[str, float]
    sizes: dict[str, float | None]
    compare: dict[str, float | None]


class TextFigures(Record, frozen=True):
    """One vocabulary in the text of a source or of the planned mix.

    single_bytes: share of the bytes that are a token each; split_characters: share of the bytes that are a token each
    and only a part of a character; renyi: efficiency, see `entries.renyi_efficiency`.
    """

    bytes_per_token: float | None
    tokens_per_word: float | None
    single_bytes: float | None
    split_characters: float | None
    renyi: float | None


class WordFigures(Record, frozen=True):
    """Words of one kind. share: of all words; tokens_per_word, bytes_per_token: None where there are none."""

    share: float | None
    tokens_per_word: float | None
    bytes_per_token: float | None


class SourceFigures(Record, frozen=True):
    """A source, or the planned mix, by this vocabulary. tokens: planned; only_steps: entries that its text has inside
    of longer ones alone; kinds: as `cost.KINDS`."""

    tokens: Count
    text: TextFigures
    only_steps: Count
    kinds: dict[str, WordFigures]


class SizeFigures(Record, frozen=True):
    """A vocabulary of one size in the planned mix.

    steps: learned entries that longer ones are made of; left_over: those of them that the text trained on uses less
    often than the last entry that was made; unused: learned entries the mix does not use; rare: uses -> learned entries
    of fewer uses than that.
    """

    text: TextFigures
    steps: Count
    left_over: Count
    left_over_share: float | None
    unused: Count
    rare: dict[str, Count]


class RareEntry(Record, frozen=True):
    """An entry that the planned mix uses seldom; step: whether longer ones are made of it."""

    id: Count
    token: str
    uses: Count
    step: bool


class OtherTokenizer(Record, frozen=True):
    """A tokenizer, this one included, on the held-out texts as the planned mix weighs them.

    shared_entries: entries whose bytes are an entry of this vocabulary too; share_of_tokens: how large a part of this
    vocabulary's tokens they are.
    """

    size: Count
    shared_entries: Count
    share_of_tokens: float | None
    bytes_per_token: float | None
    fertility: float | None
    renyi: float | None


class Decision(Record, frozen=True):
    """What decides on a vocabulary, in the text that is planned.

    basis: where the proportions are from, see `planned.plan_text`; sources: and `mix` for all of them; sizes: by
    entries; rare: the rarest entries of this vocabulary.
    """

    basis: str
    sources: dict[str, SourceFigures]
    mix: SourceFigures
    sizes: dict[str, SizeFigures]
    rare: tuple[RareEntry, ...]
    tokenizers: dict[str, OtherTokenizer]


class RowCosts(Record, frozen=True):
    """What a vocabulary costs the model that it extends. parameters: of the rows that were added, in both matrices;
    output_share: of the output matrix in the FLOPs of a token; compute: FLOPs for a byte of the mix, 1 being those by
    the old vocabulary."""

    parameters: Count
    output_share: float
    compute: float


class VocabReport(Record, frozen=True, omit_defaults=True):
    """The whole file. sizes: entries -> source -> tokens of all its text; compare: tokenizer -> source; config: all
    that decides the vocabulary; replaced: old entries whose ids went to new ones, in the order in which they went;
    rows: by entries, where the model that is extended is known."""

    vocabulary: MadeVocabulary
    words: CountedWords
    sources: dict[str, SourceCosts]
    sizes: dict[str, dict[str, Count]]
    tokens: TokenOwners
    compare: dict[str, dict[str, Compared]]
    mix: MixCosts
    failed: tuple[Failure, ...]
    config: dict[str, Any]
    decision: Decision
    replaced: tuple[RareEntry, ...] | None = None
    rows: dict[str, RowCosts] | None = None


def ratio(a: float, b: float | None) -> float | None:
    """a / b, rounded for a report; None where there is nothing to divide by."""
    return round(float(a) / float(b), 4) if b else None
