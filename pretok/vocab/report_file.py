"""The contents of VOCAB/report.json, as typed records that `pretok.base.records` reads and writes.

Shares are fractions of 1. A figure is None without text to compute it from.
"""

from __future__ import annotations

from typing import Any

from pretok.base.failures import LeftOut
from pretok.base.records import Count, Digest, Record

MIX = "weighted mix"
"""Stands among the names of the sources for all of them, weighted as in training. No source name has a space."""


class SourceText(Record, frozen=True):
    """The counts of a source."""

    documents: Count
    heldout_documents: Count
    weight: float | None
    """Its share of the training text."""
    distinct_words: Count


class TokenizerFigures(Record, frozen=True):
    """What one tokenizer makes of one text."""

    bytes: Count | None
    tokens: Count | None
    """None where the tokenizer cannot encode the text."""
    bytes_per_token: float | None
    tokens_per_word: float | None
    single_bytes: float | None
    """Share of the bytes that are a token each."""
    split_characters: float | None
    """Share of the bytes that are a token each and only a part of a character."""


class RareEntry(Record, frozen=True):
    """An entry that the mix uses rarely."""

    id: Count
    token: str
    uses: Count


class VocabReport(Record, frozen=True):
    """The whole file."""

    size: Count
    fingerprint: Digest
    distinct_words: Count
    """Those it was trained from and those that were dropped."""
    dropped_words: Count
    """Words rarer than `min_count`."""
    dropped_share_of_text: float | None
    sources: dict[str, SourceText]
    sizes: dict[str, dict[str, TokenizerFigures]]
    """Entries -> source or MIX -> all training documents, exactly. The first is the main vocabulary. Words are those of
    the pattern, signs and spaces too."""
    compare: dict[str, dict[str, TokenizerFigures]]
    """Tokenizer, `this` first -> source or MIX -> the held-out texts that were kept. Words are those between spaces."""
    rare: dict[str, dict[str, Count]]
    """Entries -> uses -> how many learned entries the mix uses fewer times."""
    rarest: tuple[RareEntry, ...]
    """The rarest learned entries of the main vocabulary."""
    left_out: tuple[LeftOut, ...]
    """Damaged files of which nothing was counted."""
    config: dict[str, Any]
    """Everything that decides the vocabulary."""

    def __repr__(self) -> str:  # without the thousand rarest entries, which would fill a notebook
        per_token = self.sizes[str(self.size)][MIX].bytes_per_token
        return f"<pretok vocabulary {self.fingerprint}: {self.size:,} entries, {per_token} bytes per token>"


def ratio(a: float, b: float | None, digits: int = 4) -> float | None:
    """Return a / b, rounded for the report; None if b is 0."""
    return round(float(a) / float(b), digits) if b else None
