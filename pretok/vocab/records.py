"""What VOCAB/report.json holds, as typed records; `pretok.base.records` reads and writes them.

Shares are of 1. A figure is None where there is no text to say it from.
"""

from __future__ import annotations

from typing import Any

from pretok.base.failures import Failure
from pretok.base.records import Count, Record

MIX = "weighted mix"
"""Stands beside the names of the sources for all of them, as the vocabulary weighs them. No source has a space."""


class MadeVocabulary(Record, frozen=True):
    """The vocabulary that was written."""

    size: Count
    fingerprint: str
    eod_id: Count


class CountedWords(Record, frozen=True):
    """The distinct words it was trained from."""

    distinct: Count
    occurrences: Count
    dropped: Count
    """Words rarer than `min_count`."""
    dropped_share_of_text: float | None


class SourceText(Record, frozen=True):
    """What was counted of a source."""

    documents: Count
    heldout_documents: Count
    weight: float | None
    """Its share of the text trained on."""
    distinct_words: Count


class Figures(Record, frozen=True):
    """One tokenizer in one text."""

    bytes: Count | None
    tokens: Count | None
    """None where the tokenizer gives up on the text."""
    bytes_per_token: float | None
    tokens_per_word: float | None
    single_bytes: float | None
    """Share of the bytes that are a token each."""
    split_characters: float | None
    """Share of the bytes that are a token each and only a part of a character."""


class SizeFigures(Record, frozen=True):
    """A vocabulary of one size."""

    text: dict[str, Figures]
    """Source, or MIX -> all training documents, exactly. Words are those of the pattern, signs and spaces too."""
    unused: Count
    """Learned entries that the mix does not use."""
    rare: dict[str, Count]
    """Uses -> learned entries of fewer uses in the mix than that."""


class RareEntry(Record, frozen=True):
    """An entry that the mix uses seldom."""

    id: Count
    token: str
    uses: Count


class VocabReport(Record, frozen=True, omit_defaults=True):
    """The whole file."""

    vocabulary: MadeVocabulary
    words: CountedWords
    sources: dict[str, SourceText]
    sizes: dict[str, SizeFigures]
    """By entries, the vocabulary that was written first."""
    compare: dict[str, dict[str, Figures]]
    """Tokenizer, `this` first -> source, or MIX -> held-out texts that were kept. Words are those between spaces."""
    rare: tuple[RareEntry, ...]
    """The rarest entries of the vocabulary that was written."""
    failed: tuple[Failure, ...]
    config: dict[str, Any]
    """All that decides the vocabulary."""
    replaced: tuple[RareEntry, ...] | None = None
    """Old entries whose ids went to new ones, in the order in which they went."""


def ratio(a: float, b: float | None) -> float | None:
    """a / b, rounded for a report; None where there is nothing to divide by."""
    return round(float(a) / float(b), 4) if b else None
