"""The report of a vocabulary -> tables and sentences for a person.

Enters: a VocabReport. Leaves: a line, a table of the sources, and what was asked for; with --verbose also what the
vocabulary costs in the planned mix, how its size compares, and what is wrong with it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pretok.base.tell import Table, Teller, table
from pretok.vocab.compare import THIS
from pretok.vocab.entries import LISTED
from pretok.vocab.records import Decision, SourceFigures, VocabReport

READABLE = 3
"""A long entry of no more different characters, such as a line of dashes, tells nothing."""
NAMED = 20
"""Entries named in a sentence."""
BASIS = {
    "mix": "the tokens that [mix] plans",
    "weights": "as much text as there is, mixed by the vocabulary's weights",
    "disk": "the text as it is, for there is no [mix] and no weights",
}


def show_report(report: VocabReport, tell: Teller, languages: Sequence[str], *, compared: bool) -> None:
    """Print a line, and what was asked for: the letters of `languages`, and other tokenizers where some were
    `compared`. The rest are details."""
    words, asked = report.words, tell.show if compared else tell.detail
    dropped = f" ({words.dropped:,} more are too rare)" if words.dropped else ""
    tell.notice(
        f"vocabulary: {report.vocabulary.size:,} entries from {words.distinct:,} distinct words{dropped}, "
        f"{_number(report.mix.sizes[str(report.vocabulary.size)])} bytes per token"
    )
    tell.detail(_sizes(report))
    for made in _planned(report.decision, bool(report.superwords)):
        tell.detail(made)
    for made in _tokenizers(report):
        asked(made)
    tokens = report.tokens
    readable = [entry.token for entry in tokens.longest if len(set(entry.token)) > READABLE]
    longest = ", ".join(map(repr, readable[:5]))
    tell.detail(
        f"{tokens.shared:,} tokens are shared by the sources, {tokens.unused:,} unused; "
        f"{len(tokens.unused_bytes)} bytes never occur; longest words: {longest or '-'}"
    )
    _show_faults(report.decision, languages, tell)


def sources_table(report: VocabReport) -> Table:
    """What the vocabulary costs in each source."""
    rows = [
        (
            name,
            f"{source.weight or 0:.1%}",
            f"{source.distinct_words:,}",
            f"{source.training.tokens:,}",
            f"{source.heldout.documents or 0:,}",
            _number(source.heldout.bytes_per_token),
            _number(source.heldout.tokens_per_word),
            f"{report.tokens.mostly_in[name]:,}",
        )
        for name, source in report.sources.items()
    ]
    columns = (
        "source",
        "weight",
        "distinct words",
        "tokens",
        "held out",
        "bytes/token",
        "tokens/word",
        "own tokens",
    )
    return table(f"vocabulary of {report.vocabulary.size:,} entries", columns, rows)


def _sizes(report: VocabReport) -> Table:
    names = list(report.sources)
    rows = [
        (f"{int(size):,}", *(f"{row[name]:,}" for name in names), _number(report.mix.sizes[size]))
        for size, row in report.sizes.items()
    ]
    title = "tokens of all text by size of the vocabulary, and bytes per token of the mix"
    return table(title, ("size", *names, "mix"), rows)


def _planned(decision: Decision, superwords: bool) -> Iterator[Table]:
    """Tables of sources and of sizes in the planned mix."""
    what = f"in the planned mix ({BASIS[decision.basis]})" + ("; words only" if superwords else "")
    sources = (
        "source",
        "tokens",
        "bytes/token",
        "tokens/word",
        "bytes as tokens",
        "of letters",
        "Renyi",
        "cut before '",
        "digits/token",
        "only steps",
    )
    every = {**decision.sources, "mix": decision.mix}
    yield table(f"this vocabulary {what}", sources, [_planned_row(name, row) for name, row in every.items()])
    limits = list(next(iter(decision.sizes.values())).rare)
    rows = [
        (
            f"{int(size):,}",
            _number(row.text.bytes_per_token),
            _number(row.text.tokens_per_word),
            _number(row.text.renyi),
            f"{row.steps:,}",
            f"{row.left_over:,} ({row.left_over_share or 0:.1%})",
            f"{row.unused:,}",
            *(f"{row.rare[limit]:,}" for limit in limits),
        )
        for size, row in decision.sizes.items()
    ]
    rare = (f"< {int(limit):,} uses" for limit in limits)
    columns = ("size", "bytes/token", "tokens/word", "Renyi", "steps", "left over", "unused", *rare)
    yield table(f"sizes {what}", columns, rows)


def _planned_row(name: str, row: SourceFigures) -> tuple[str, ...]:
    return (
        name,
        f"{row.tokens:,}",
        _number(row.text.bytes_per_token),
        _number(row.text.tokens_per_word),
        _share(row.text.single_bytes),
        _share(row.text.split_characters),
        _number(row.text.renyi),
        _share(row.kinds["cut_before_apostrophe"].share),
        _number(row.kinds["numbers"].bytes_per_token),
        f"{row.only_steps:,}",
    )


def _tokenizers(report: VocabReport) -> Iterator[Table]:
    names = list(report.sources)
    columns = ("tokenizer", *names, "mix")
    rows = [
        [path, *(_number(row[name].bytes_per_token) for name in names), _number(report.mix.compare[path])]
        for path, row in report.compare.items()
    ]
    yield table("bytes per token of held-out texts, and of the mix of the sources by weight", columns, rows)
    rows = [
        [
            path,
            *(_number(report.compare[path][name].fertility) for name in names),
            _number(row.fertility),
            _number(row.renyi),
            f"{row.size:,}",
            f"{row.shared_entries:,}",
            _share(row.share_of_tokens),
        ]
        for path, row in report.decision.tokenizers.items()
    ]
    title = "tokens per word between spaces, of held-out texts and of the planned mix"
    yield table(title, (*columns, "Renyi", "entries", f"as in {THIS}", f"of {THIS}'s tokens"), rows)


def _show_faults(decision: Decision, languages: Sequence[str], tell: Teller) -> None:
    """What a person should look at before deciding."""
    if decision.rare:
        named = ", ".join(repr(entry.token) for entry in decision.rare[:NAMED])
        tell.detail(f"of fewer than {LISTED:,} uses in the planned mix, the rarest first: {named}")
    bad = {name: row.more for name, row in decision.alphabets.items() if row.more}
    two = sum(not row.two and not row.more for row in decision.alphabets.values())
    tell.detail(
        f"of {len(decision.alphabets)} alphabets of Europe {two} have a token for every letter; with letters of more "
        f"than two tokens: {', '.join(bad) or 'none'}"
    )
    for name in languages:
        row = decision.alphabets[name]
        if row.more:
            tell.notice(
                f"{name} has letters of more than two tokens: {' '.join(row.more)}; train on text that has them"
            )
        if row.two:
            tell.notice(f"{name} has letters of two tokens: {' '.join(row.two)}")


def _number(value: float | None) -> str:
    return str(value or "-")


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.2%}"
