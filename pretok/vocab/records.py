"""What VOCAB/report.json holds, as typed records; `pretok.base.records` reads and writes them.

Shares are of 1. A figure is None where there is no text to say it from. `heldout` and `compare` are of the held-out
texts that were kept; all other figures are of the words of all training documents, which is exact.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pretok.base.failures import Failure
from pretok.base.html import html_table


@dataclass(frozen=True, slots=True)
class MadeVocabulary:
    """The vocabulary that was written; asked: the entries it was to have."""

    size: int
    asked: int
    fingerprint: str
    eod_id: int


@dataclass(frozen=True, slots=True)
class CountedWords:
    """What it was trained from. dropped: words rarer than `min_count`."""

    distinct: int
    occurrences: int
    dropped: int
    dropped_share_of_text: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """Text of one source by this vocabulary; words are those of the pattern, signs and spaces among them."""

    documents: int | None = None
    bytes: int
    words: int
    tokens: int
    bytes_per_token: float | None
    tokens_per_word: float | None


@dataclass(frozen=True, slots=True)
class SourceCosts:
    """One source. weight: its share of the text trained on; multiplier: what its counts were multiplied by for that."""

    documents: int
    weight: float | None
    multiplier: int
    distinct_words: int
    training: Costs
    heldout: Costs


@dataclass(frozen=True, slots=True)
class LongToken:
    """One of the longest entries."""

    id: int
    token: str
    occurrences: dict[str, int]


@dataclass(frozen=True, slots=True)
class TokenOwners:
    """Whose the entries are. mostly_in: source -> entries found there above all; unused_bytes: hexadecimal."""

    mostly_in: dict[str, int]
    shared: int
    unused: int
    longest: tuple[LongToken, ...]
    unused_bytes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Compared:
    """One source by one tokenizer. fertility: tokens per word between spaces, as papers count them."""

    tokens: int | None
    bytes: int
    bytes_per_token: float | None
    fertility: float | None


@dataclass(frozen=True, slots=True)
class MixCosts:
    """Bytes per token where the sources have their shares of the vocabulary's training text: of all text by size, of
    held-out texts by tokenizer."""

    shares: dict[str, float]
    sizes: dict[str, float | None]
    compare: dict[str, float | None]


@dataclass(frozen=True, slots=True)
class UsedSuperword:
    """A superword. share: of the tokens of the mix."""

    token: str
    share: float
    uses: dict[str, int]


@dataclass(frozen=True, slots=True)
class Budget:
    """What the mix's tokens are worth in tokens of a vocabulary without superwords."""

    tokens: int
    plain_tokens: int


@dataclass(frozen=True, slots=True)
class SuperwordReport:
    """Superwords: heldout_tokens and mix_bytes_per_token are by number of superwords, `plain` being words only."""

    entries: int
    words: int
    separators: str
    most_words: int
    sample_bytes: dict[str, int]
    heldout_tokens: dict[str, dict[str, int]]
    mix_bytes_per_token: dict[str, float | None]
    share_of_tokens: float
    most_used: tuple[UsedSuperword, ...]
    budget: Budget | None


@dataclass(frozen=True, slots=True)
class TextFigures:
    """One vocabulary in the text of a source or of the planned mix.

    single_bytes: share of the bytes that are a token each; split_characters: share of the bytes that are a token each
    and only a part of a character; renyi: efficiency, see `entries.renyi_efficiency`.
    """

    bytes_per_token: float | None
    tokens_per_word: float | None
    single_bytes: float | None
    split_characters: float | None
    renyi: float | None


@dataclass(frozen=True, slots=True)
class WordFigures:
    """Words of one kind. share: of all words; tokens_per_word, bytes_per_token: None where there are none."""

    share: float | None
    tokens_per_word: float | None
    bytes_per_token: float | None


@dataclass(frozen=True, slots=True)
class SourceFigures:
    """A source, or the planned mix, by this vocabulary. tokens: planned; only_steps: entries that its text has inside
    of longer ones alone; kinds: as `cost.KINDS`."""

    tokens: int
    text: TextFigures
    only_steps: int
    kinds: dict[str, WordFigures]


@dataclass(frozen=True, slots=True)
class SizeFigures:
    """A vocabulary of one size in the planned mix.

    steps: learned entries that longer ones are made of; left_over: those of them that the text trained on uses less
    often than the last entry that was made; unused: learned entries the mix does not use; rare: uses -> learned entries
    of fewer uses than that.
    """

    text: TextFigures
    steps: int
    left_over: int
    left_over_share: float | None
    unused: int
    rare: dict[str, int]


@dataclass(frozen=True, slots=True)
class RareEntry:
    """An entry that the planned mix uses seldom; step: whether longer ones are made of it."""

    id: int
    token: str
    uses: int
    step: bool


@dataclass(frozen=True, slots=True)
class AlphabetReport:
    """A language's letters. two: those that take two tokens; more: those that take more than two."""

    letters: int
    two: str
    more: str


@dataclass(frozen=True, slots=True)
class OtherTokenizer:
    """A tokenizer, this one included, on the held-out texts as the planned mix weighs them.

    shared_entries: entries whose bytes are an entry of this vocabulary too; share_of_tokens: how large a part of this
    vocabulary's tokens they are.
    """

    size: int
    shared_entries: int
    share_of_tokens: float | None
    bytes_per_token: float | None
    fertility: float | None
    renyi: float | None


@dataclass(frozen=True, slots=True)
class Decision:
    """What decides on a vocabulary, in the text that is planned.

    basis: where the proportions are from, see `planned.plan_text`; sources: and `mix` for all of them; sizes: by
    entries; rare: the rarest entries of this vocabulary; alphabets: by language.
    """

    basis: str
    sources: dict[str, SourceFigures]
    mix: SourceFigures
    sizes: dict[str, SizeFigures]
    rare: tuple[RareEntry, ...]
    alphabets: dict[str, AlphabetReport]
    tokenizers: dict[str, OtherTokenizer]


@dataclass(frozen=True, slots=True)
class VocabReport:
    """The whole file. sizes: entries -> source -> tokens of all its text; compare: tokenizer -> source; config: all
    that decides the vocabulary."""

    vocabulary: MadeVocabulary
    words: CountedWords
    sources: dict[str, SourceCosts]
    sizes: dict[str, dict[str, int]]
    tokens: TokenOwners
    compare: dict[str, dict[str, Compared]]
    mix: MixCosts
    failed: tuple[Failure, ...]
    superwords: SuperwordReport | None
    config: dict[str, Any]
    decision: Decision

    def _repr_html_(self) -> str:
        columns = ("source", "documents", "bytes of text", "tokens", "bytes per token", "the same, held out")
        rows = [
            (name, s.documents, s.training.bytes, s.training.tokens, s.training.bytes_per_token,
             s.heldout.bytes_per_token)
            for name, s in self.sources.items()
        ]  # fmt: skip
        made = self.vocabulary
        return html_table(
            f"vocabulary of {made.size:,} entries", columns, rows, f"fingerprint {made.fingerprint}"
        )


def ratio(a: float, b: float | None) -> float | None:
    """a / b, rounded for a report; None where there is nothing to divide by."""
    return round(float(a) / float(b), 4) if b else None
