"""What was counted and measured -> the report of a vocabulary, and its tables for a person.

Input: counts, the vocabularies made from them, their Measure, and those of tokenizers on held-out texts. Output: a
VocabReport; a line and tables. What is of the mix is weighed as the vocabulary's training was.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from pretok.base.console import Console, Table, table
from pretok.config import Recipe
from pretok.counts.counts_file import CorpusCounts
from pretok.counts.weigh import Tally, multipliers, shares
from pretok.tokenizer.vocabulary import Vocabulary
from pretok.vocab.measure import Measure, figures, learned
from pretok.vocab.records import (
    MIX,
    CountedWords,
    Figures,
    MadeVocabulary,
    RareEntry,
    SizeFigures,
    SourceText,
    VocabReport,
    ratio,
)

RARE = (100, 1_000, 10_000)
"""Uses in the text counted, weighed, below which entries are counted as rare."""
LISTED = 1_000
"""Rare entries are listed up to so many uses, and up to so many of them."""
NAMED = 20
"""Entries named in a sentence."""
THIS = "this"
"""Name of the vocabulary made, among the tokenizers that are compared."""


def make_report(
    recipe: Recipe,
    counts: CorpusCounts,
    tally: Tally,
    made: Mapping[int, Vocabulary],
    measure: Measure,
    compared: Mapping[str, tuple[Vocabulary, Measure]],
    config: dict[str, Any],
    replaced: tuple[RareEntry, ...],
) -> VocabReport:
    """The report.

    made: the vocabularies by the size asked for, the main one first, as in `measure`; compared: tokenizers on held-out
    texts, THIS first; replaced: entries that gave way.
    """
    names, main = counts.sources, made[recipe.vocab.size]
    scale = mix_scale(recipe.vocab.weights, counts.sizes)
    text = scale * measure.bytes
    factors = multipliers(recipe.vocab.weights, counts.sizes)
    weighted = {name: factors[name] * size for name, size in counts.sizes.items()}
    sizes = {
        str(vocab.size): _size_figures(vocab, measure, uses, names, scale)
        for vocab, uses in zip(made.values(), measure.uses, strict=True)
    }
    return VocabReport(
        vocabulary=MadeVocabulary(main.size, main.fingerprint, main.eod_id),
        words=CountedWords(
            tally.distinct,
            int(measure.words.sum()),
            tally.dropped_words,
            ratio(tally.dropped_bytes, sum(counts.sizes.values())),
        ),
        sources={
            name: SourceText(
                counts.records[name].documents,
                counts.records[name].heldout_documents,
                ratio(weighted[name], sum(weighted.values())),
                int(measure.distinct[k]),
            )
            for k, name in enumerate(names)
        },
        sizes=sizes,
        compare={
            path: figures(vocab, found, found.uses[0], names, _per(text, found.bytes))
            for path, (vocab, found) in compared.items()
        },
        rare=_list_rare(main, scale @ measure.uses[0]),
        failed=counts.failed,
        config=config,
        replaced=replaced or None,
    )


def mix_scale(weights: dict[str, Fraction], sizes: dict[str, int]) -> npt.NDArray[np.float64]:
    """(sources,): how much of each source the mix has, as a multiple of what was counted: as much text in all as there
    is, in the proportion of the vocabulary's weights. Uses, words or bytes times this add up to those of the mix."""
    parts, whole = shares(weights, sizes), sum(sizes.values())
    return np.array([float(parts[name] * whole / max(1, size)) for name, size in sizes.items()])


def _per(text: npt.NDArray[np.float64], found: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """text / found; NaN where there is nothing to make the text of."""
    scale = np.where(text == 0, 0.0, np.nan)
    np.divide(text, found, out=scale, where=found > 0)
    return scale


def _size_figures(
    vocab: Vocabulary, measure: Measure, uses: npt.NDArray[Any], names: Sequence[str], scale: npt.NDArray[Any]
) -> SizeFigures:
    weighed = (scale @ uses)[learned(vocab)]
    rare = {str(limit): int((weighed < limit).sum()) for limit in RARE}
    return SizeFigures(figures(vocab, measure, uses, names, scale), int((weighed == 0).sum()), rare)


def _list_rare(vocab: Vocabulary, uses: npt.NDArray[np.float64]) -> tuple[RareEntry, ...]:
    """The learned entries of fewer than LISTED uses, the rarest first."""
    rare = np.flatnonzero(learned(vocab) & (uses < LISTED))
    order = rare[np.argsort(uses[rare], kind="stable")][:LISTED]
    return tuple(rare_entry(vocab, i, uses[i]) for i in order.tolist())


def rare_entry(vocab: Vocabulary, entry: int, uses: float) -> RareEntry:
    """An entry with its uses in the mix."""
    return RareEntry(entry, vocab.token_bytes(entry).decode(errors="replace"), int(uses))


COLUMNS = {
    "tokens": "{0.tokens:,}",
    "bytes/token": "{0.bytes_per_token}",
    "tokens/word": "{0.tokens_per_word}",
    "bytes as tokens": "{0.single_bytes:.2%}",
    "of letters": "{0.split_characters:.2%}",
}
"""Heading -> what `str.format` makes of Figures."""


def figures_table(
    title: str, first: str, rows: Mapping[str, Figures], more: Mapping[str, dict[str, str]]
) -> Table:
    """The figures of each row, and `more` of the row by heading."""
    texts = {name: {h: _cell(t, row) for h, t in COLUMNS.items()} | more[name] for name, row in rows.items()}
    headings = next(iter(texts.values()))
    return table(title, (first, *headings), [(name, *row.values()) for name, row in texts.items()])


def sources_table(report: VocabReport) -> Table:
    """What the vocabulary costs in each source."""
    main = report.sizes[str(report.vocabulary.size)].text
    more = {
        name: {
            "weight": _cell("{0.weight:.1%}", of),
            "distinct words": f"{of.distinct_words:,}",
            "held out, bytes/token": _cell("{0.bytes_per_token}", report.compare[THIS][name]),
        }
        for name, of in report.sources.items()
    }
    more[MIX] = dict.fromkeys(next(iter(more.values())), "")
    return figures_table(f"vocabulary of {report.vocabulary.size:,} entries", "source", main, more)


def show_report(report: VocabReport, console: Console, *, compared: bool) -> None:
    """Print a line, and other tokenizers where some were `compared`. The rest are details."""
    words = report.words
    size = min(report.sizes, key=lambda size: abs(int(size) - report.vocabulary.size))
    dropped = f" ({words.dropped:,} more are too rare)" if words.dropped else ""
    per_token = _cell("{0.bytes_per_token}", report.sizes[size].text[MIX])
    console.notice(
        f"vocabulary: {report.vocabulary.size:,} entries from {words.distinct:,} distinct words{dropped}, "
        f"{per_token} bytes per token"
    )
    more = {
        size: {"unused": f"{of.unused:,}"} | {f"< {int(n):,} uses": f"{k:,}" for n, k in of.rare.items()}
        for size, of in report.sizes.items()
    }
    rows = {size: of.text[MIX] for size, of in report.sizes.items()}
    console.detail(figures_table("sizes, all sources as weighed", "size", rows, more))
    if "extend" in report.config and len(report.sizes) > 1:
        console.show(_growth(report))
    for title, cell in (("bytes per token", "bytes_per_token"), ("tokens per word", "tokens_per_word")):
        found = [
            (path, *(_cell(f"{{0.{cell}}}", of) for of in row.values()))
            for path, row in report.compare.items()
        ]
        made = table(f"{title} of held-out texts", ("tokenizer", *next(iter(report.compare.values()))), found)
        console.show(made) if compared else console.detail(made)
    if report.rare:
        named = ", ".join(repr(entry.token) for entry in report.rare[:NAMED])
        console.detail(f"of fewer than {LISTED:,} uses, the rarest first: {named}")


def _growth(report: VocabReport) -> Table:
    """How many tokens less each source takes than by the old tokenizer, the more entries are added."""
    (old, was), *larger = sorted((int(size), of.text) for size, of in report.sizes.items())
    rows = [
        (
            f"{size - old:,}",
            *(
                f"{1 - (now[name].tokens or 0) / max(1, was[name].tokens or 0):.1%}"
                for name in report.sources
            ),
            _cell("{0.bytes_per_token}", now[MIX]),
        )
        for size, now in larger
    ]
    columns = ("entries added", *report.sources, "bytes/token of the mix")
    return table("fewer tokens than by the old tokenizer", columns, rows)


def _cell(template: str, record: object) -> str:
    """A dash where there is no figure."""
    try:
        text = template.format(record)
    except TypeError:  # None has no format of numbers
        return "-"
    return "-" if text == "None" else text
