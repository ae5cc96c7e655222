"""Counts and measurements -> the report of a vocabulary, and its tables for a person.

Input: counts, the vocabularies trained from them and their Measure, and that of other tokenizers on held-out texts.
Output: a VocabReport; tables, each row of which shows the figures of one text. The mix is weighted as in training.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from pretok.base.console import Console, Table, table
from pretok.config import Recipe
from pretok.tokenizer.vocabulary import Vocabulary
from pretok.vocab.counts.counts_file import CorpusCounts
from pretok.vocab.counts.weigh import Tally, shares
from pretok.vocab.measure import Measure, names_of
from pretok.vocab.report_file import MIX, RareEntry, SourceText, TokenizerFigures, VocabReport, ratio

RARE = (1, 100, 1_000, 10_000)
"""The report counts the learned entries that the mix uses fewer times than these."""
LISTED = 1_000
"""Rare entries are listed up to so many uses, and up to so many of them."""
NAMED = 20
"""Rare entries named in a sentence."""
THIS = "this"
"""Name of the new vocabulary among the tokenizers that are compared."""

Floats = npt.NDArray[np.float64]


def make_report(
    recipe: Recipe,
    counts: CorpusCounts,
    tally: Tally,
    vocabularies: Mapping[int, Vocabulary],
    measure: Measure,
    compared: Mapping[str, tuple[Vocabulary, Measure]],
    config: dict[str, Any],
) -> VocabReport:
    """Make the report.

    vocabularies: by the size asked for, the main one first, as in `measure`; compared: tokenizers on held-out texts,
    THIS first.
    """
    names, main, whole = counts.sources, vocabularies[recipe.vocab.size], sum(counts.sizes.values())
    scale = mix_scale(recipe.vocab.weights, counts.sizes)
    text = scale * measure.bytes
    trained = list(zip(vocabularies.values(), measure.uses, strict=True))
    by_use = {str(vocab.size): _learned_by_use(vocab, scale @ uses) for vocab, uses in trained}
    rarest, fewest = by_use[str(main.size)]
    return VocabReport(
        size=main.size,
        fingerprint=main.fingerprint,
        distinct_words=tally.distinct,
        dropped_words=tally.dropped_words,
        dropped_share_of_text=ratio(tally.dropped_bytes, whole),
        sources={
            name: SourceText(
                record.documents,
                record.heldout_documents,
                ratio(scale[k] * record.bytes, whole),
                int(measure.distinct[k]),
            )
            for k, (name, record) in enumerate(counts.records.items())
        },
        sizes={str(vocab.size): figures(vocab, measure, uses, names, scale) for vocab, uses in trained},
        compare={
            path: figures(vocab, heldout, heldout.uses[0], names, _per(text, heldout.bytes))
            for path, (vocab, heldout) in compared.items()
        },
        rare={
            size: {str(limit): int(np.searchsorted(uses, limit)) for limit in RARE}
            for size, (_, uses) in by_use.items()
        },
        rarest=tuple(
            RareEntry(i, main.token_bytes(i).decode(errors="replace"), int(uses))
            for i, uses in zip(rarest[:LISTED].tolist(), fewest[:LISTED].tolist(), strict=True)
            if uses < LISTED
        ),
        left_out=counts.left_out,
        config=config,
    )


def mix_scale(weights: dict[str, Fraction], sizes: dict[str, int]) -> Floats:
    """Return how much of each source the mix has, as a multiple of what was counted, float64[sources].

    The mix has as much text as was counted, in the proportions of `weights`. Uses, words or bytes times this add up to
    those of the mix.
    """
    parts, whole = shares(weights, sizes), sum(sizes.values())
    return np.array([float(parts[name] * whole / max(1, size)) for name, size in sizes.items()])


def _per(text: Floats, heldout: npt.NDArray[Any]) -> Floats:
    """Return text / heldout; NaN without held-out text."""
    scale = np.where(text == 0, 0.0, np.nan)
    np.divide(text, heldout, out=scale, where=heldout > 0)
    return scale


def _learned_by_use(vocab: Vocabulary, uses: Floats) -> tuple[npt.NDArray[np.int64], Floats]:
    """Return (the entries that merges made, the rarest first; how often the mix uses each).

    uses: float64[ids], in the mix.
    """
    learned = np.flatnonzero([len(name) > 1 for name in names_of(vocab)])
    order = learned[np.argsort(uses[learned], kind="stable")]
    return order, uses[order]


def figures(
    vocab: Vocabulary, measure: Measure, uses: npt.NDArray[Any], names: Sequence[str], scale: Floats
) -> dict[str, TokenizerFigures]:
    """Return the figures of a vocabulary for each source, and for MIX.

    uses: (sources, ids), those of this vocabulary; scale: float64[sources], how much of each source the mix has, as a
    multiple of the measured amount; NaN without a measured amount.
    """
    entries = names_of(vocab)
    single = np.array([len(entry) == 1 for entry in entries])
    part = np.array([len(entry) == 1 and entry >= b"\x80" for entry in entries])
    mixed = scale != 0
    rows = {name: (measure.bytes[k], measure.words[k], uses[k]) for k, name in enumerate(names)}
    rows[MIX] = tuple(scale[mixed] @ column[mixed] for column in (measure.bytes, measure.words, uses))
    return {name: _figures(*row, single, part) for name, row in rows.items()}


def _figures(
    size: float,
    words: float,
    uses: npt.NDArray[Any],
    single: npt.NDArray[np.bool_],
    part: npt.NDArray[np.bool_],
) -> TokenizerFigures:
    tokens = uses.sum()
    if not np.isfinite(tokens):
        return TokenizerFigures(round(size) if np.isfinite(size) else None, None, None, None, None, None)
    return TokenizerFigures(
        round(size),
        round(tokens),
        ratio(size, tokens),
        ratio(tokens, words) if tokens else None,
        ratio(uses[single].sum(), size, 6),
        ratio(uses[part].sum(), size, 6),
    )


COLUMNS = {
    "tokens": "{0.tokens:,}",
    "bytes/token": "{0.bytes_per_token}",
    "tokens/word": "{0.tokens_per_word}",
    "bytes as tokens": "{0.single_bytes:.2%}",
    "of letters": "{0.split_characters:.2%}",
}
"""Heading -> how `str.format` writes the figures."""


def figures_table(
    title: str, headings: Sequence[str], rows: Iterable[tuple[str, TokenizerFigures, Sequence[str]]]
) -> Table:
    """Make a table of figures.

    headings: of the first column and of those behind COLUMNS; rows: (first cell, figures, cells behind COLUMNS).
    """
    cells = [(name, *(_cell(form, row) for form in COLUMNS.values()), *more) for name, row, more in rows]
    return table(title, (headings[0], *COLUMNS, *headings[1:]), cells)


def sources_table(report: VocabReport) -> Table:
    """Return the figures of the vocabulary for each source."""
    more = {
        name: (
            _cell("{0.weight:.1%}", source),
            f"{source.distinct_words:,}",
            _cell("{0.bytes_per_token}", report.compare[THIS][name]),
        )
        for name, source in report.sources.items()
    }
    texts = report.sizes[str(report.size)]
    rows = [(name, row, more.get(name, ("", "", ""))) for name, row in texts.items()]
    headings = ("source", "weight", "distinct words", "held out, bytes/token")
    return figures_table(f"vocabulary of {report.size:,} entries", headings, rows)


def show_report(report: VocabReport, console: Console, *, compared: bool) -> None:
    """Print a line, and other tokenizers if some were `compared`. The rest are details."""
    dropped = f" ({report.dropped_words:,} more are too rare)" if report.dropped_words else ""
    per_token = _cell("{0.bytes_per_token}", report.sizes[str(report.size)][MIX])
    console.notice(
        f"vocabulary: {report.size:,} entries from {report.distinct_words:,} distinct words{dropped}, "
        f"{per_token} bytes per token"
    )
    headings = ("size", *(f"< {limit:,} uses" for limit in RARE))
    rare = {size: [f"{n:,}" for n in numbers.values()] for size, numbers in report.rare.items()}
    sizes = [(size, texts[MIX], rare[size]) for size, texts in report.sizes.items()]
    console.detail(figures_table("sizes, all sources as weighted", headings, sizes))
    rows = [
        (f"{name}, {path}", texts[name], ())
        for name in (*report.sources, MIX)
        for path, texts in report.compare.items()
    ]
    heldout = figures_table("held-out texts", ("source, tokenizer",), rows)
    console.show(heldout) if compared else console.detail(heldout)
    if report.rarest:
        named = ", ".join(repr(entry.token) for entry in report.rarest[:NAMED])
        console.detail(f"fewer than {LISTED:,} uses, the rarest first: {named}")


def _cell(template: str, record: object) -> str:
    """Fill a cell; a dash if there is no figure."""
    try:
        text = template.format(record)
    except TypeError:  # None has no number format
        return "-"
    return "-" if text == "None" else text
