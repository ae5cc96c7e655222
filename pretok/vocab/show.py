"""The report of a vocabulary -> tables and sentences for a person.

Input: a VocabReport. Output: a line, a table of the sources, and what was asked for; with --verbose also what the
vocabulary costs in the planned mix, how its size compares, and what is wrong with it.
"""

from __future__ import annotations

from collections.abc import Mapping

from pretok.base.console import Console, Table, table
from pretok.vocab.compare import THIS
from pretok.vocab.entries import LISTED
from pretok.vocab.records import VocabReport

READABLE = 3
"""A long entry of no more different characters, such as a line of dashes, tells nothing."""
NAMED = 20
"""Entries named in a sentence."""
BASIS = {
    "mix": "the tokens that [mix] plans",
    "weights": "as much text as there is, mixed by the vocabulary's weights",
    "disk": "the text as it is, for there is no [mix] and no weights",
}

Columns = Mapping[str, str]
"""Heading -> what `str.format` makes of a record, the argument 0."""

SOURCE: Columns = {
    "weight": "{0.weight:.1%}",
    "distinct words": "{0.distinct_words:,}",
    "tokens": "{0.training.tokens:,}",
    "held out": "{0.heldout.documents:,}",
    "bytes/token": "{0.heldout.bytes_per_token}",
    "tokens/word": "{0.heldout.tokens_per_word}",
}
"""Of a SourceCosts."""
PLANNED: Columns = {
    "tokens": "{0.tokens:,}",
    "bytes/token": "{0.text.bytes_per_token}",
    "tokens/word": "{0.text.tokens_per_word}",
    "bytes as tokens": "{0.text.single_bytes:.2%}",
    "of letters": "{0.text.split_characters:.2%}",
    "Renyi": "{0.text.renyi}",
    "cut before '": "{0.kinds[cut_before_apostrophe].share:.2%}",
    "digits/token": "{0.kinds[numbers].bytes_per_token}",
    "only steps": "{0.only_steps:,}",
}
"""Of a SourceFigures."""
SIZE: Columns = {
    "bytes/token": "{0.text.bytes_per_token}",
    "tokens/word": "{0.text.tokens_per_word}",
    "Renyi": "{0.text.renyi}",
    "steps": "{0.steps:,}",
    "left over": "{0.left_over:,} ({0.left_over_share:.1%})",
    "unused": "{0.unused:,}",
}
"""Of a SizeFigures."""
TOKENIZER: Columns = {
    "mix": "{0.fertility}",
    "Renyi": "{0.renyi}",
    "entries": "{0.size:,}",
    f"as in {THIS}": "{0.shared_entries:,}",
    f"of {THIS}'s tokens": "{0.share_of_tokens:.2%}",
}
"""Of an OtherTokenizer."""


ROWS = {
    "new rows": "{0.parameters:,} parameters",
    "output matrix": "{0.output_share:.1%} of FLOPs",
    "FLOPs a byte": "{0.compute:.1%}",
}
"""Of RowCosts."""


def show_report(report: VocabReport, console: Console, *, compared: bool) -> None:
    """Print a line, and other tokenizers where some were `compared`. The rest are details."""
    words, decision = report.words, report.decision
    size = min(report.mix.sizes, key=lambda size: abs(int(size) - report.vocabulary.size))
    dropped = f" ({words.dropped:,} more are too rare)" if words.dropped else ""
    console.notice(
        f"vocabulary: {report.vocabulary.size:,} entries from {words.distinct:,} distinct words{dropped}, "
        f"{_cell(report.mix.sizes[size])} bytes per token"
    )
    what = f"in the planned mix ({BASIS[decision.basis]})"
    every = {**decision.sources, "mix": decision.mix}
    console.detail(
        _table(f"this vocabulary {what}", "source", {n: _row(PLANNED, of) for n, of in every.items()})
    )
    sizes = {
        f"{int(size):,}": _row(SIZE, of)
        | {f"< {int(limit):,} uses": f"{n:,}" for limit, n in of.rare.items()}
        for size, of in decision.sizes.items()
    }
    console.detail(_table(f"sizes {what}", "size", sizes))
    if "extend" in report.config and len(report.sizes) > 1:
        console.show(_growth(report))
    for made in _tokenizers(report):
        console.show(made) if compared else console.detail(made)
    tokens = report.tokens
    readable = [entry.token for entry in tokens.longest if len(set(entry.token)) > READABLE]
    console.detail(
        f"{tokens.shared:,} tokens are shared by the sources, {tokens.unused:,} unused; {len(tokens.unused_bytes)} "
        f"bytes never occur; longest words: {', '.join(map(repr, readable[:5])) or '-'}"
    )
    if decision.rare:
        named = ", ".join(repr(entry.token) for entry in decision.rare[:NAMED])
        console.detail(f"of fewer than {LISTED:,} uses in the planned mix, the rarest first: {named}")


def sources_table(report: VocabReport) -> Table:
    """What the vocabulary costs in each source."""
    rows = {
        name: {**_row(SOURCE, source), "own tokens": f"{report.tokens.mostly_in[name]:,}"}
        for name, source in report.sources.items()
    }
    return _table(f"vocabulary of {report.vocabulary.size:,} entries", "source", rows)


def _growth(report: VocabReport) -> Table:
    """How many tokens less each source takes than by the old tokenizer, the more entries are added."""
    (old, was), *larger = sorted((int(size), tokens) for size, tokens in report.sizes.items())
    rows = {
        f"{size - old:,}": {name: f"{1 - tokens[name] / max(1, was[name]):.1%}" for name in tokens}
        | {"bytes/token of the mix": _cell(report.mix.sizes[str(size)])}
        | (_row(ROWS, report.rows[str(size)]) if report.rows else {})
        for size, tokens in larger
    }
    return _table("fewer tokens than by the old tokenizer", "entries added", rows)


def _tokenizers(report: VocabReport) -> tuple[Table, Table]:
    """Bytes per token, and tokens per word, of each tokenizer."""
    sizes, words = {}, {}
    for path, row in report.compare.items():
        mix = _cell(report.mix.compare[path])
        sizes[path] = {**{name: _cell(of.bytes_per_token) for name, of in row.items()}, "mix": mix}
        mixed = _row(TOKENIZER, report.decision.tokenizers[path])
        words[path] = {**{name: _cell(of.fertility) for name, of in row.items()}, **mixed}
    return (
        _table(
            "bytes per token of held-out texts, and of the mix of the sources by weight", "tokenizer", sizes
        ),
        _table(
            "tokens per word between spaces, of held-out texts and of the planned mix", "tokenizer", words
        ),
    )


def _table(title: str, first: str, rows: Mapping[str, Mapping[str, str]]) -> Table:
    """Rows by name, each with a text by heading."""
    columns = next(iter(rows.values()))
    return table(title, (first, *columns), [(name, *row.values()) for name, row in rows.items()])


def _row(columns: Columns, record: object) -> dict[str, str]:
    return {heading: _cell(record, template) for heading, template in columns.items()}


def _cell(value: object, template: str = "{0}") -> str:
    """A dash where there is no figure."""
    try:
        text = template.format(value)
    except TypeError:  # None has no format of numbers
        return "-"
    return "-" if text == "None" else text
